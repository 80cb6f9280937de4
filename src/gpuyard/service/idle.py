"""GPUs that are held and not used: noticed, warned of, and at last open to others. Never a silent end.

Place in the flow: hub ─use─▶ **idle** ─events─▶ journal. A team sets how long its jobs may idle (`idle_limit`); then a
job is warned, and after as long again it is reclaimable: anyone who waits may have its place, by the ordinary rules,
with notice and grace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from gpuyard.worlds.standalone.events import Event, IdleNoticed, IdleReclaimable, IdleWarned
from gpuyard.worlds.standalone.lifecycle import JobState, TaskPhase
from gpuyard.worlds.standalone.records import JobRecord, State

BUSY: Final = 100
SETTLING_MS: Final = 60_000
"""A job that has just started is not idle yet: it may be loading its data."""


class IdleWatch:
    """Who idles. `use` of all tasks of a job counts: it idles only if all do."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._use: dict[str, dict[int, int]] = {}

    def noticed(self, use: Mapping[tuple[str, int], int], now_ms: int) -> Iterator[Event]:
        """What one machine's report says about idling."""
        for (id, task), percent in use.items():
            job = self.state.jobs.get(id)
            running = _running(job) if job is not None else {}
            if job is None or not running:
                self._use.pop(id, None)
                continue
            used = self._use.setdefault(id, {})
            used[task] = percent
            # Only those that run now count, and each of them: one that has not been heard of may be busy.
            idle = all(used.get(index, BUSY) < self._threshold(job) for index in running)
            if idle and job.idle_since_ms is None and now_ms - max(running.values()) > SETTLING_MS:
                yield IdleNoticed(id, now_ms)
            elif not idle and job.idle_since_ms is not None:
                yield IdleNoticed(id, None)

    def overdue(self, now_ms: int) -> Iterator[Event]:
        """Who has idled for too long."""
        for id in list(self._use):
            job = self.state.jobs.get(id)
            if job is None or job.idle_since_ms is None or job.state is not JobState.RUNNING:
                continue
            team = self.state.teams.get(job.team)
            limit = team.idle_limit_ms if team else None
            idle_ms = now_ms - job.idle_since_ms
            if limit is None or idle_ms < limit:
                continue
            if not job.warned_idle:
                yield IdleWarned(id, idle_ms)
            elif not job.reclaimable and idle_ms >= 2 * limit:
                yield IdleReclaimable(id, idle_ms)

    def _threshold(self, job: JobRecord) -> int:
        team = self.state.teams.get(job.team)
        return team.idle_percent if team else 0


def _running(job: JobRecord) -> dict[int, int]:
    """Its tasks that hold GPUs and run → since when; none unless the job as a whole runs."""
    if job.state is not JobState.RUNNING:
        return {}
    return {
        index: task.started_at_ms
        for index, task in enumerate(job.tasks)
        if task.phase is TaskPhase.RUNNING and task.place is not None and task.place.shares
    }
