"""Who can give way: the running jobs of each queue that may be preempted, the first to stay first.

Place in the flow: the ledger keeps one list per leaf queue and follows changes; `blocks` reads it from its end. The
order does not change as time passes: among equals whoever has lost least per GPU by stopping now comes last.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from gpuyard.model.jobs import Job, TaskState
from gpuyard.scheduler.gang import ABOVE_MINIMUM, ACTIVE, Gang

StayKey = tuple[int, bool, int, int, str]
"""Falling priority, above its minimum or not, since when work would be lost, age, id: lower stays longer."""


class Yielders:
    """The jobs of one leaf queue that can give way. Sorted when first asked for, and kept sorted from then on."""

    __slots__ = ("_order", "_sizes", "jobs")

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self._sizes: dict[int, int] = {}
        """How many of them hold how many GPU milli."""
        self._order: list[StayKey] | None = None

    def fork(self) -> Yielders:
        copy = Yielders()
        copy.jobs, copy._sizes = self.jobs.copy(), self._sizes.copy()
        copy._order = None if self._order is None else self._order.copy()
        return copy

    def add(self, job: Job, gpu_milli: int) -> None:
        self.jobs[job.id] = job
        self._sizes[gpu_milli] = self._sizes.get(gpu_milli, 0) + 1
        if self._order is not None:
            insort(self._order, stay_key(job))

    @property
    def largest_milli(self) -> int:
        """The most GPU milli that one of them holds."""
        return max(self._sizes, default=0)

    def remove(self, id: str, gpu_milli: int) -> None:
        job = self.jobs.pop(id)
        self._sizes[gpu_milli] -= 1
        if not self._sizes[gpu_milli]:
            del self._sizes[gpu_milli]
        if self._order is not None:
            del self._order[bisect_left(self._order, stay_key(job))]

    def order(self) -> list[StayKey]:
        """Whoever should stay longest first. Read only."""
        if self._order is None:
            self._order = sorted(map(stay_key, self.jobs.values()))
        return self._order


def stay_key(job: Job) -> StayKey:
    return -job.priority, _has_surplus(job), losing_since_ms(job), job.submitted_at_ms, job.id


def _has_surplus(job: Job) -> bool:
    if len(job.tasks) == 1:
        return False
    if not job.group.leaf:
        return Gang(job).stage() == ABOVE_MINIMUM
    return sum([task.state in ACTIVE for task in job.tasks]) > job.group.min_tasks


def losing_since_ms(job: Job) -> int:
    """Work done after this moment is lost if the job stops; what it costs to start again counts as such work."""
    since = started_at_ms(job)
    if job.checkpoint_at_ms is not None and job.checkpoint_at_ms > since:
        since = job.checkpoint_at_ms
    return since - job.restart_ms


def started_at_ms(job: Job) -> int:
    if len(job.tasks) == 1:
        return job.tasks[0].started_at_ms
    return min([task.started_at_ms for task in job.tasks if task.state is TaskState.RUNNING], default=0)
