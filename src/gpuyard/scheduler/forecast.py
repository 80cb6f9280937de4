"""When waiting jobs will start, if things go as they are thought to.

Place in the flow: asked on demand, for explanations; no part of a cycle. The clock is run ahead on a copy of the
books: the ordinary step of placing work serves everyone in turn, with starts kept and gaps filled as the policy says,
and jobs end when they are thought to. Twice: at the likely pace (p50: estimates) and at the slow one (p90: run limits).
Nobody is made to give way meanwhile, and nobody new comes. Invariant: the books it is given are not changed, and its
effort is counted in steps, never in time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from gpuyard.model.explanation import Forecast, Unknown
from gpuyard.model.jobs import Job, Task, TaskState
from gpuyard.model.snapshot import Change, JobGone, JobSeen, Snapshot, TimePassed
from gpuyard.policies.policy import DEFAULT, Policy
from gpuyard.scheduler.allocate import allocate
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.endings import end_after_ms, planned_ms, started_ms
from gpuyard.scheduler.ledger import Ledger

SLOW_FACTOR: Final = 2
"""Where only an estimate is known, nine of ten jobs are taken to be done after so many times as long."""

MAX_CYCLES: Final = 512
"""How often the clock is run ahead to another end."""

MAX_STEPS: Final = 1_000_000
"""How many jobs that run or wait are looked at, over all cycles: what bounds the time on a large cluster."""

STRIDE_PART: Final = 16
"""Ends that lie closer together than this part of the time already run ahead are taken as one: the answer is late by
no more than that part of it."""


Pace = Callable[[Job], int | None]
"""How long a job runs; None: nobody knows."""


def forecast(ledger: Ledger, policy: Policy = DEFAULT) -> dict[str, Forecast]:
    """When each job that waits to start will. Jobs that have started and wait to grow are left out."""
    return _forecast(ledger, policy, None)


def forecast_job(ledger: Ledger, job_id: str, policy: Policy = DEFAULT) -> Forecast | None:
    """The same for one job, looking no further than its start; None where it does not wait to start."""
    return _forecast(ledger, policy, job_id).get(job_id)


def likely_ms(job: Job) -> int | None:
    """p50: its estimate, never beyond its limit; else its limit."""
    if job.estimate_ms is None or job.run_limit_ms is None:
        return planned_ms(job)
    return min(job.estimate_ms, job.run_limit_ms)


def slow_ms(job: Job) -> int | None:
    """p90: its limit; else its estimate some times over."""
    if job.run_limit_ms is not None or job.estimate_ms is None:
        return job.run_limit_ms
    return SLOW_FACTOR * job.estimate_ms


def _forecast(ledger: Ledger, policy: Policy, only: str | None) -> dict[str, Forecast]:
    waiting = {id for id, waiter in ledger.lines.waiters.items() if not waiter.rank[1]}
    if only is not None:
        waiting &= {only}
    if not waiting:
        return {}
    if not ledger.timed:
        return _now_or_unknown(ledger, policy, waiting)
    likely = _Ahead(ledger, policy, likely_ms, waiting)
    likely.run()
    certain = all(likely_ms(job) == slow_ms(job) for job in ledger.timed.values())
    slow = likely if certain else _Ahead(ledger, policy, slow_ms, waiting)
    if slow is not likely:
        slow.run()
    return {id: _of(id, likely, slow) for id in sorted(waiting)}


def _now_or_unknown(ledger: Ledger, policy: Policy, waiting: set[str]) -> dict[str, Forecast]:
    """Where no end is known: whoever can start now does; of everyone else nothing can be told."""
    draft = Draft(ledger, policy)
    allocate(draft)
    starting = {placed.waiter.job.id for placed in draft.placed}
    now, unknown = Forecast(ledger.now_ms, ledger.now_ms), Forecast(unknown=Unknown.NO_END)
    return {id: now if id in starting else unknown for id in sorted(waiting)}


def _of(id: str, likely: _Ahead, slow: _Ahead) -> Forecast:
    p50_ms, p90_ms = likely.starts.get(id), slow.starts.get(id)
    if p50_ms is None:
        return Forecast(unknown=likely.why_not)
    if p90_ms is None:
        return Forecast(p50_ms, unknown=slow.why_not)
    # When others take longer, a job can come to start sooner: then it is no less certain at the later time.
    return Forecast(p50_ms, max(p50_ms, p90_ms))


class _Ahead:
    """A copy of the books whose clock is run ahead."""

    def __init__(self, ledger: Ledger, policy: Policy, pace: Pace, wanted: set[str]) -> None:
        self.policy = policy
        self.pace = pace
        self.began_ms = ledger.now_ms
        self.wanted = set(wanted)
        """Whose start is still to be found."""
        self.starts: dict[str, int] = {}
        self.why_not = Unknown.NO_END
        self.ledger = Ledger.of(_settled(ledger.snapshot()))
        self.ends: dict[str, int] = {}
        for job in self.ledger.jobs.values():
            self._note_end(job)

    def run(self) -> None:
        """Serve, let time pass, serve again, until all that is wanted is known or nothing more will happen."""
        steps_left = MAX_STEPS
        for _ in range(MAX_CYCLES):
            steps_left -= len(self.ledger.lines.waiters) + len(self.ends)
            self._serve()
            if not self.wanted or not self.ends:
                return
            if steps_left <= 0:
                break
            self._pass_time()
        self.why_not = Unknown.TOO_FAR

    def _serve(self) -> None:
        draft = Draft(self.ledger, self.policy)
        allocate(draft)
        given: dict[str, dict[str, tuple[str, object]]] = {}
        for placed in draft.placed:
            place = (draft.nodes.frames[placed.position].node.name, placed.shares)
            given.setdefault(placed.waiter.job.id, {})[placed.task.id] = place
        changes: list[Change] = []
        for id, places in given.items():
            job = self.ledger.jobs[id]
            if id in self.wanted:
                self.wanted.discard(id)
                self.starts[id] = self.ledger.now_ms
            tasks = tuple([self._started(task, places) for task in job.tasks])
            changes.append(JobSeen(replace(job, tasks=tasks)))
        self.ledger.apply(changes)
        for id in given:
            self._note_end(self.ledger.jobs[id])

    def _started(self, task: Task, places: dict[str, tuple[str, object]]) -> Task:
        if task.id not in places:
            return task
        node, shares = places[task.id]
        return replace(task, state=TaskState.RUNNING, node=node, shares=shares, started_at_ms=self.ledger.now_ms)

    def _note_end(self, job: Job) -> None:
        length_ms, now_ms = self.pace(job), self.ledger.now_ms
        if length_ms is not None and any(task.state is TaskState.RUNNING for task in job.tasks):
            self.ends[job.id] = end_after_ms(started_ms(job, now_ms), length_ms, now_ms)

    def _pass_time(self) -> None:
        """Go to the next end, and a little further where that takes in others."""
        now_ms = self.ledger.now_ms
        until_ms = max(min(self.ends.values()), now_ms + (now_ms - self.began_ms) // STRIDE_PART)
        over = {id: end for id, end in self.ends.items() if end <= until_ms}
        for id in over:
            del self.ends[id]
        self.ledger.apply([*map(JobGone, over), TimePassed(max(over.values()))])


def _settled(snapshot: Snapshot) -> Snapshot:
    """As it will be in a moment: what is ending is gone, and what was promised a place has it."""
    return replace(snapshot, jobs=tuple([_settled_job(job, snapshot.now_ms) for job in snapshot.jobs]))


def _settled_job(job: Job, now_ms: int) -> Job:
    if not any(task.state in (TaskState.FREEING, TaskState.PROMISED) for task in job.tasks):
        return job
    return replace(job, tasks=tuple([_settled_task(task, now_ms) for task in job.tasks]))


def _settled_task(task: Task, now_ms: int) -> Task:
    if task.state is TaskState.PROMISED:
        return replace(task, state=TaskState.RUNNING, started_at_ms=now_ms)
    if task.state is TaskState.FREEING:
        return replace(task, state=TaskState.SUCCEEDED, node="", shares=())
    return task
