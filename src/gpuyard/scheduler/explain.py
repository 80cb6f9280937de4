"""Why a job is where it is, or is not, and what would let it start. Asked for one job, on demand.

Place in the flow: snapshot or ledger ─job─▶ **explain** ─Explanation─▶ text, for people. It looks at the very plan the
next cycle makes. Invariants: the books it is given stay as they were; what it calls a blocker includes what the plan
says, and what it calls a way out has been tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple

from msgspec.structs import replace

from gpuyard.errors import InputError
from gpuyard.model.explanation import Explanation, Forecast, QueueStanding, Rank, Standing, Stay, Unknown
from gpuyard.model.jobs import NOBODY, DeviceShare, Job, Task, TaskState
from gpuyard.model.plan import Action, Bind, Evict, Move, Plan, Promise
from gpuyard.model.reasons import Reason, Token
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import DEFAULT, Policy
from gpuyard.scheduler.cycle import drafted
from gpuyard.scheduler.diagnose import every_blocker
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.forecast import forecast_job
from gpuyard.scheduler.gang import IN_PLACE
from gpuyard.scheduler.jobbook import Waiter, waiter_of
from gpuyard.scheduler.ledger import Ledger
from gpuyard.scheduler.resources import GPU_AT
from gpuyard.scheduler.tryout import costs_for
from gpuyard.scheduler.ways_out import WaysOut

MAX_AHEAD_NAMED: Final = 5

_OVER: Final = frozenset({TaskState.SUCCEEDED, TaskState.FAILED})
_LEAVING: Final = frozenset({TaskState.FREEING, TaskState.STUCK})
_UNSERVED: Final = frozenset({Standing.WAITING, Standing.NEVER})


def explain(snapshot: Snapshot, job: str, policy: Policy = DEFAULT) -> Explanation:
    """Everything there is to say about one job, from a snapshot alone."""
    return explain_on(Ledger.of(snapshot), job, policy)


def explain_on(ledger: Ledger, job: str, policy: Policy = DEFAULT) -> Explanation:
    """The same, on books that are kept; they stay as they were."""
    if job not in ledger.jobs:
        raise InputError(f'there is no job "{job}"', fix="name a job of this cluster")
    books = ledger.fork()
    draft = drafted(books, policy)
    return _Case(draft, policy, books.jobs[job], draft.finish()).explanation()


class JobStand(NamedTuple):
    """The short answer: where a job stands, and everything in its way."""

    standing: Standing
    blockers: tuple[Reason, ...]


def stands_on(ledger: Ledger, jobs: Iterable[str], policy: Policy = DEFAULT) -> dict[str, JobStand]:
    """The short answer about many jobs, by one plan; the books stay as they were."""
    books = ledger.fork()
    draft = drafted(books, policy)
    plan = draft.finish()
    return {job: _Case(draft, policy, books.jobs[job], plan).stand() for job in jobs}


class _Case:
    """One job, the plan, and what the plan does with it."""

    def __init__(self, draft: Draft, policy: Policy, job: Job, plan: Plan) -> None:
        self.draft = draft
        self.ledger = draft.ledger
        self.policy = policy
        self.job = job
        self.plan = plan
        self.actions = [action for action in plan.actions if action.job == job.id]
        self.told = tuple(reason for entry in plan.waiting if job.id in entry.jobs for reason in entry.reasons)

    def stand(self) -> JobStand:
        blockers = self._blockers()
        return JobStand(self._standing(blockers), blockers)

    def explanation(self) -> Explanation:
        job, blockers = self.job, self._blockers()
        standing = self._standing(blockers)
        waits = standing in _UNSERVED
        return Explanation(
            job=job.id,
            queue=job.queue,
            standing=standing,
            blockers=blockers,
            rank=rank_of(self.ledger, job.id),
            queues=tuple(self._queues()),
            ways_out=WaysOut(self.draft, self.policy, job, blockers, self.plan).all() if waits else (),
            stays=_held(job),
            gets=_given(self.actions),
            why=tuple(self._why()),
            starts=self._forecast() if standing is Standing.WAITING else None,
            placement=self.policy.node_placement.value,
            costs=costs_for(self.plan.actions, job.id, self.ledger.jobs),
            last_evicted_at_ms=job.last_evicted_at_ms,
            last_eviction=job.last_eviction,
        )

    def _forecast(self) -> Forecast | None:
        """When it would start by itself. Looked for only where some end is known."""
        if not self.ledger.timed:
            return Forecast(unknown=Unknown.NO_END)
        return forecast_job(self.ledger, self.job.id, self.policy)

    # What stands in its way ------------------------------------------------------------------------------------

    def _blockers(self) -> tuple[Reason, ...]:
        """Of a job that waits, or waits for more tasks; a place that is being freed is one, too."""
        if self.job.queue == NOBODY and any(task.state is TaskState.PENDING for task in self.job.tasks):
            return (Reason(Token.QUEUE_MISSING, never=True),)
        freeing = dict.fromkeys(action.reason for action in self.actions if isinstance(action, Promise))
        # A job that only waits for a place it was promised has no other blocker.
        waiter = self._waiter() if any(reason.token is not Token.PLACE_FREEING for reason in self.told) else None
        found = every_blocker(self.draft, waiter, self.told) if waiter else self.told
        return tuple(dict.fromkeys((*freeing, *found)))

    def _waiter(self) -> Waiter | None:
        """What the job still wants once the plan is carried out."""
        if not self.actions:
            return self.ledger.lines.waiters.get(self.job.id)
        leaf = self.ledger.queues.leaf_at(self.job.queue)
        found = waiter_of(job_after(self.job, self.actions), leaf, self.ledger.shapes) if leaf >= 0 else None
        return found if isinstance(found, Waiter) else None

    # Where it stands -------------------------------------------------------------------------------------------

    def _standing(self, blockers: tuple[Reason, ...]) -> Standing:
        if any(isinstance(action, Move) for action in self.actions):
            return Standing.MOVING
        states = [task.state for task in self.job.tasks]
        evicted = sum(isinstance(action, Evict) for action in self.actions)
        if evicted and evicted >= states.count(TaskState.RUNNING):
            return Standing.EVICTED
        if TaskState.RUNNING in states:
            return Standing.RUNNING
        if any(isinstance(action, Bind) for action in self.actions):
            return Standing.STARTING
        if TaskState.PROMISED in states or self.actions:
            return Standing.PROMISED
        return self._unplaced(states, blockers)

    def _unplaced(self, states: list[TaskState], blockers: tuple[Reason, ...]) -> Standing:
        """The standing of a job that neither has nor gets a place."""
        incomplete = any(reason.token is Token.GANG_INCOMPLETE for reason in blockers)
        if TaskState.GATED in states and (incomplete or TaskState.PENDING not in states):
            return Standing.GATED
        if TaskState.PENDING in states:
            return Standing.NEVER if any(reason.never for reason in blockers) else Standing.WAITING
        if not _LEAVING.isdisjoint(states):
            return Standing.ENDING
        return Standing.FINISHED

    def _why(self) -> Iterator[Reason]:
        """The reasons of what the plan does with it; for what it holds already, that it was placed there."""
        yield from dict.fromkeys(action.reason for action in self.actions)
        if not self.actions:
            yield from (Reason(Token.PLACED, subject=stay.node) for stay in _held(self.job))

    def _queues(self) -> Iterator[QueueStanding]:
        books = self.ledger.queues
        leaf = books.by_name.get(self.job.queue, -1)
        for at in books.frames[leaf].path if leaf >= 0 else ():
            yield _standing(self.draft, at)


def standings(ledger: Ledger, policy: Policy = DEFAULT) -> tuple[QueueStanding, ...]:
    """How every queue stands, in the order of the tree."""
    draft = Draft(ledger, policy)
    return tuple(_standing(draft, at) for at in range(len(ledger.queues.frames)))


def _standing(draft: Draft, at: int) -> QueueStanding:
    books = draft.ledger.queues
    frame = books.frames[at]
    return QueueStanding(
        frame.name,
        owed_milli=frame.quota[GPU_AT],
        limit_milli=frame.limit[GPU_AT],
        held_milli=books.held[at][GPU_AT],
        asked_milli=books.asked[at][GPU_AT],
        fair_share_milli=draft.shares[at][GPU_AT],
    )


def rank_of(ledger: Ledger, job: str) -> Rank | None:
    """Where a job that wants a place stands in its queue; None for one that wants nothing, or cannot be tried."""
    lines = ledger.lines
    waiter = lines.waiters.get(job)
    if waiter is None:
        return None
    before = list(lines.before(waiter))
    heads = [[lines.waiters[id].rank for _, id in line[: min(count, MAX_AHEAD_NAMED)]] for line, count in before]
    ahead = islice(merge(*heads), MAX_AHEAD_NAMED)
    waiting = sum(len(line) for key, line in lines.lines.items() if key[0] == waiter.leaf)
    position = 1 + sum(count for _, count in before)
    return Rank(waiter.job.queue, position, waiting, tuple(rank[3] for rank in ahead))


def job_after(job: Job, actions: Iterable[Action]) -> Job:
    """The job as it is once a plan's actions about it are carried out."""
    by_task = {action.task: action for action in actions if action.job == job.id}
    return replace(job, tasks=tuple(_task_after(task, by_task.get(task.id)) for task in job.tasks))


def _task_after(task: Task, action: Action | None) -> Task:
    match action:
        case Bind():
            return replace(task, state=TaskState.RUNNING, node=action.node, shares=action.shares)
        case Promise() | Move():
            return replace(task, state=TaskState.PROMISED, node=action.node, shares=action.shares)
        case Evict():
            return replace(task, state=TaskState.PENDING, node="", shares=())
        case _:
            return task


# What it holds and gets ------------------------------------------------------------------------------------------


def _held(job: Job) -> tuple[Stay, ...]:
    """What a job holds, node by node."""
    placed = [task for task in job.tasks if task.state in IN_PLACE]
    return _stays((task.node, task.state, task.shares, task.started_at_ms) for task in placed)


def _given(actions: Iterable[Action]) -> tuple[Stay, ...]:
    """What a plan gives a job."""
    given = [action for action in actions if isinstance(action, Bind | Promise | Move)]
    return _stays(
        (action.node, TaskState.RUNNING if isinstance(action, Bind) else TaskState.PROMISED, action.shares, 0)
        for action in given
    )


def _stays(places: Iterable[tuple[str, TaskState, tuple[DeviceShare, ...], int]]) -> tuple[Stay, ...]:
    by_node: dict[tuple[str, TaskState], list[tuple[tuple[DeviceShare, ...], int]]] = {}
    for node, state, shares, since_ms in places:
        by_node.setdefault((node, state), []).append((shares, since_ms))
    return tuple(
        Stay(
            node,
            len(tasks),
            tuple(sorted({share.device for shares, _ in tasks for share in shares})),
            state,
            min(since_ms for _, since_ms in tasks),
        )
        for (node, state), tasks in sorted(by_node.items())
    )
