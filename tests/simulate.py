"""A cluster in virtual time: plans are carried out at once, jobs end exactly when their run limit says.

Small on purpose: no agents, no failures, no delays. What a plan starts runs from that moment; what it evicts waits
again from the next moment on; what was promised starts when a plan says so. Time jumps from one arrival or end to the
next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from gpuyard.model.jobs import Job, Task, TaskState
from gpuyard.model.plan import Move, Plan
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import DEFAULT, Policy
from gpuyard.scheduler.allocate import allocate
from gpuyard.scheduler.cycle import schedule
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.ledger import Ledger
from gpuyard.scheduler.reserve import Start
from gpuyard.scheduler.verify import verify
from tests.replay import Held, overbooked, replay


class Simulation:
    """One run. `snapshot` is how things stand, `started` when each job first ran."""

    def __init__(self, snapshot: Snapshot, arrivals: Iterable[Job] = (), policy: Policy = DEFAULT) -> None:
        self.snapshot = snapshot
        self.arrivals = sorted(arrivals, key=lambda job: (job.submitted_at_ms, job.id))
        self.policy = policy
        self.started: dict[str, int] = {}
        self.ended: dict[str, int] = {}

    def run(self, until_ms: int) -> Iterator[tuple[Snapshot, Plan]]:
        """Cycle by cycle: what the planner saw, and what it decided. Ends early where nothing more can happen."""
        while self.snapshot.now_ms <= until_ms:
            self._arrive()
            seen = self.snapshot
            plan = schedule(seen, self.policy)
            assert [verdict.why for verdict in verify(plan, seen) if not verdict.holds] == []
            self._carry_out(plan)
            yield seen, plan
            following = self._next_moment()
            if following is None:
                return
            self._pass_time(following)

    def _arrive(self) -> None:
        now = self.snapshot.now_ms
        come = [job for job in self.arrivals if job.submitted_at_ms <= now]
        self.arrivals = self.arrivals[len(come) :]
        self.snapshot = replace(self.snapshot, jobs=(*self.snapshot.jobs, *come))

    def _carry_out(self, plan: Plan) -> None:
        now = self.snapshot.now_ms
        before = {task.id: task.state for job in self.snapshot.jobs for task in job.tasks}
        moved = {action.task: action for action in plan.actions if isinstance(action, Move)}
        jobs = []
        for job in replay(plan, self.snapshot).snapshot().jobs:
            tasks = [_moved(_stamped(task, before[task.id], now), moved.get(task.id)) for task in job.tasks]
            if any(task.state is TaskState.RUNNING for task in tasks):
                self.started.setdefault(job.id, now)
            jobs.append(replace(job, tasks=tuple(tasks)))
        self.snapshot = replace(self.snapshot, jobs=tuple(jobs))

    def _next_moment(self) -> int | None:
        now = self.snapshot.now_ms
        moments = [end for job in self.snapshot.jobs if (end := end_of(job)) is not None]
        moments += [job.submitted_at_ms for job in self.arrivals]
        if any(
            task.state in (TaskState.FREEING, TaskState.PROMISED) for job in self.snapshot.jobs for task in job.tasks
        ):
            moments.append(now + 1)
        return min((moment for moment in moments if moment > now), default=None)

    def _pass_time(self, now_ms: int) -> None:
        over = {job.id for job in self.snapshot.jobs if (end := end_of(job)) is not None and end <= now_ms}
        self.ended |= dict.fromkeys(over, now_ms)
        jobs = tuple(_settled(job) for job in self.snapshot.jobs if job.id not in over)
        self.snapshot = replace(self.snapshot, jobs=jobs, now_ms=now_ms)


def end_of(job: Job) -> int | None:
    running = [task.started_at_ms for task in job.tasks if task.state is TaskState.RUNNING]
    return min(running) + job.run_limit_ms if running and job.run_limit_ms is not None else None


class KeptStart(NamedTuple):
    """A start that a cycle keeps while it places work."""

    job: str
    start_ms: int
    end_ms: int
    places: tuple[Held, ...]


def kept_in_turn(snapshot: Snapshot, policy: Policy = DEFAULT) -> list[KeptStart]:
    """The starts one cycle keeps, in the order of turns."""
    draft = Draft(Ledger.of(snapshot), policy)
    allocate(draft)
    if draft.reserved is None:
        return []
    names = [frame.node.name for frame in draft.nodes.frames]
    return [
        KeptStart(start.waiter.job.id, start.start_ms, start.end_ms, _places(start, names))
        for start in draft.reserved.in_turn
    ]


def _places(start: Start, names: list[str]) -> tuple[Held, ...]:
    holdings = [place.holding for place in start.places]
    id = start.waiter.job.id
    return tuple(Held(id, one.task.id, one.task.request, names[one.position], one.shares) for one in holdings)


def kept_starts(snapshot: Snapshot, policy: Policy = DEFAULT) -> dict[str, int]:
    return {kept.job: kept.start_ms for kept in kept_in_turn(snapshot, policy)}


def in_the_way(snapshot: Snapshot, kept: Sequence[KeptStart]) -> list[str]:
    """What would be held beyond what nodes have when a kept start comes, if all ends come as they are known."""
    problems = []
    for one in kept:
        held = [place for other in kept if other.start_ms <= one.start_ms < other.end_ms for place in other.places]
        for job in snapshot.jobs:
            end = end_of(job)
            tasks = [task for task in job.tasks if task.state is TaskState.RUNNING]
            if end is None or end > one.start_ms:
                held += [Held(job.id, task.id, task.request, task.node, task.shares) for task in tasks]
        for node in snapshot.nodes:
            problems += overbooked(node, [place for place in held if place.node == node.name])
    return problems


def stream(builders: Sequence[Job], every_ms: int, count: int) -> list[Job]:
    """The same jobs again and again, each time under new names."""
    return [renamed(job, f"{job.id}.{n}", n * every_ms) for n in range(count) for job in builders]


def renamed(job: Job, id: str, submitted_at_ms: int) -> Job:
    tasks = tuple(replace(task, id=f"{id}-{index}") for index, task in enumerate(job.tasks))
    return replace(job, id=id, tasks=tasks, submitted_at_ms=submitted_at_ms)


def _stamped(task: Task, before: TaskState, now_ms: int) -> Task:
    new = task.state is TaskState.RUNNING and before is not TaskState.RUNNING
    return replace(task, started_at_ms=now_ms) if new else task


def _moved(task: Task, move: Move | None) -> Task:
    """A moved task gets its new place as soon as what is there has gone."""
    return task if move is None else replace(task, state=TaskState.PROMISED, node=move.node, shares=move.shares)


def _settled(job: Job) -> Job:
    return replace(job, tasks=tuple(map(_settle, job.tasks)))


def _settle(task: Task) -> Task:
    if task.state is TaskState.FREEING:
        return replace(task, state=TaskState.PENDING, node="", shares=(), started_at_ms=0)
    return task
