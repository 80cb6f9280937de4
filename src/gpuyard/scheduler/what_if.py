"""What would be different if something changed: the plan before and the plan after, side by side.

Place in the flow: snapshot or ledger ─changes─▶ **what_if** ─Difference─▶ text, for people. Both plans are made by the
ordinary cycle. Invariants: the books it is given stay as they were; no change makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from gpuyard.model.difference import Affected, Difference, Moved, NowWaiting, Started, Staying, Stopped
from gpuyard.model.jobs import DeviceShare, Job, Task, TaskState
from gpuyard.model.nodes import Node
from gpuyard.model.plan import Bind, Evict, Move, Plan, Promise, Resize
from gpuyard.model.reasons import Reason, Token
from gpuyard.model.snapshot import Change, JobSeen, NodeGone, NodeSeen, Snapshot
from gpuyard.policies.policy import DEFAULT, Policy
from gpuyard.scheduler.cycle import plan
from gpuyard.scheduler.gang import ACTIVE
from gpuyard.scheduler.ledger import Ledger

_WANTING: Final = frozenset({TaskState.PENDING})


def what_if(snapshot: Snapshot, changes: tuple[Change, ...], policy: Policy = DEFAULT) -> Difference:
    """What the changes would make different, from a snapshot alone."""
    return what_if_on(Ledger.of(snapshot), changes, policy)


def what_if_on(ledger: Ledger, changes: tuple[Change, ...], policy: Policy = DEFAULT) -> Difference:
    """The same, on books that are kept; they stay as they were."""
    changed = ledger.fork()
    changed.apply(changes)
    return difference(ledger.jobs, plan(ledger, policy), changed.jobs, plan(changed, policy))


def drained(jobs: Iterable[Job], nodes: Iterable[Node], now_ms: int) -> tuple[Change, ...]:
    """What draining nodes comes to: they take nothing new, and what runs there must find another place."""
    closing = {node.name: node for node in nodes}
    cordoned = [NodeSeen(replace(node, cordoned=True)) for node in closing.values()]
    return (*cordoned, *sent_away(jobs, frozenset(closing), now_ms))


def removed(jobs: Iterable[Job], nodes: Iterable[Node], now_ms: int) -> tuple[Change, ...]:
    """What taking nodes away comes to."""
    names = [node.name for node in nodes]
    return (*map(NodeGone, names), *sent_away(jobs, frozenset(names), now_ms))


def sent_away(jobs: Iterable[Job], nodes: frozenset[str], now_ms: int) -> Iterator[JobSeen]:
    """Jobs with tasks on these nodes, with those tasks waiting again and the reason why.

    What is nobody's is not there to be placed anew: it stays in the books as it was.
    """
    for job in jobs:
        if not job.queue:
            continue
        leaving = [task for task in job.tasks if task.node in nodes and task.state in ACTIVE]
        if not leaving:
            continue
        gone = {task.id for task in leaving}
        tasks = tuple(_waiting_again(task) if task.id in gone else task for task in job.tasks)
        running = next((task for task in leaving if task.state is TaskState.RUNNING), None)
        if running is None:
            yield JobSeen(replace(job, tasks=tasks))
        else:
            reason = Reason(Token.DRAINED, subject=running.node)
            yield JobSeen(replace(job, tasks=tasks, last_evicted_at_ms=now_ms, last_eviction=reason))


def _waiting_again(task: Task) -> Task:
    return replace(task, state=TaskState.PENDING, node="", shares=(), started_at_ms=0)


# Comparing -------------------------------------------------------------------------------------------------------


class Spot(NamedTuple):
    """The place a task has once a plan is carried out."""

    node: str
    shares: tuple[DeviceShare, ...]
    promised: bool


Outcome = dict[str, Spot]
"""The place of every task of a job that has one once a plan is carried out."""


def difference(before: Mapping[str, Job], planned: Plan, after: Mapping[str, Job], planned_after: Plan) -> Difference:
    """What two plans, each for its own state of the jobs, do differently."""
    return _Comparison(_Side(before, planned), _Side(after, planned_after)).difference()


class _Side:
    """One state of the jobs and the plan for it."""

    def __init__(self, jobs: Mapping[str, Job], planned: Plan) -> None:
        self.jobs = jobs
        self.actions: dict[str, list[Bind | Promise | Evict | Move | Resize]] = {}
        for action in planned.actions:
            self.actions.setdefault(action.job, []).append(action)
        self.waiting: dict[str, tuple[Reason, ...]] = {}
        for entry in planned.waiting:
            for job in entry.jobs:
                self.waiting[job] = (*self.waiting.get(job, ()), *entry.reasons)

    def outcome(self, id: str) -> Outcome:
        job = self.jobs.get(id)
        found = {task.id: _spot(task) for task in job.tasks if task.state in ACTIVE} if job else {}
        for action in self.actions.get(id, ()):
            match action:
                case Bind() | Promise() | Move():
                    found[action.task] = Spot(action.node, action.shares, not isinstance(action, Bind))
                case Evict():
                    found.pop(action.task, None)
                case Resize():
                    found[action.task] = found[action.task]._replace(shares=action.shares)
        return found

    def reason(self, id: str, task: str) -> Reason | None:
        """Why a task lost the place it had: what the plan says, or what the change did to it."""
        for action in self.actions.get(id, ()):
            if action.task == task and isinstance(action, Evict | Move):
                return action.reason
        job = self.jobs.get(id)
        return job.last_eviction if job else None


class _Comparison:
    def __init__(self, before: _Side, after: _Side) -> None:
        self.before = before
        self.after = after
        self.started: list[Started] = []
        self.stopped: list[Stopped] = []
        self.moved: list[Moved] = []
        self.staying: list[Staying] = []
        self.waiting: list[NowWaiting] = []

    def difference(self) -> Difference:
        # Whatever neither plan touches and no change has replaced is the same on both sides.
        touched = self.before.actions.keys() | self.after.actions.keys() | self._replaced()
        for id in sorted(touched):
            self._compare(id)
        for id in sorted(self.after.waiting.keys() - self.before.waiting.keys()):
            self._now_waits(id)
        entries: list[Affected] = [*self.started, *self.stopped, *self.moved, *self.staying, *self.waiting]
        affected = {entry.job for entry in entries}
        others = [job for id, job in self.after.jobs.items() if id not in affected]
        return Difference(
            tuple(self.started),
            tuple(self.stopped),
            tuple(self.moved),
            tuple(self.staying),
            tuple(self.waiting),
            unaffected_running=sum(any(task.state in ACTIVE for task in job.tasks) for job in others),
            unaffected_waiting=sum(all(task.state in _WANTING for task in job.tasks) for job in others),
        )

    def _replaced(self) -> set[str]:
        before, after = self.before.jobs, self.after.jobs
        gone = before.keys() - after.keys()
        return gone | {id for id, job in after.items() if before.get(id) is not job}

    def _compare(self, id: str) -> None:
        old, new = self.before.outcome(id), self.after.outcome(id)
        queue = (self.after.jobs.get(id) or self.before.jobs[id]).queue
        running, in_place = _running(self.before.jobs.get(id)), self._in_place(id, new)
        self._note_staying(id, queue, {task: spot for task, spot in in_place.items() if task not in old}, moves=False)
        self._note_started(id, queue, {task: spot for task, spot in new.items() if task not in old | in_place})
        self._note_stopped(id, queue, {task: old[task] for task in old if task in running and task not in new})
        elsewhere = [task for task in old if task in new and _place(old[task]) != _place(new[task])]
        self._note_staying(id, queue, {task: new[task] for task in elsewhere if task in in_place}, moves=True)
        self._note_moved(id, queue, [task for task in elsewhere if task in running and task not in in_place], old, new)
        starting = [task for task in elsewhere if task not in running and old[task].node != new[task].node]
        self._note_moved(id, queue, starting, old, new)

    def _in_place(self, id: str, new: Outcome) -> Outcome:
        """Tasks that run, whatever is changed, and stay where they are after it."""
        if id not in self.before.jobs or id not in self.after.jobs:
            return {}
        running = {task.id: _spot(task) for task in self.before.jobs[id].tasks if task.state is TaskState.RUNNING}
        still = _running(self.after.jobs[id])
        return {task: spot for task, spot in new.items() if task in still and running.get(task) == spot}

    def _note_started(self, id: str, queue: str, spots: Outcome) -> None:
        if spots:
            promised = all(spot.promised for spot in spots.values())
            self.started.append(Started(id, queue, len(spots), _nodes(spots.values()), promised))

    def _note_staying(self, id: str, queue: str, spots: Outcome, moves: bool) -> None:
        if spots:
            self.staying.append(Staying(id, queue, len(spots), _nodes(spots.values()), moves))

    def _note_stopped(self, id: str, queue: str, spots: Outcome) -> None:
        if spots:
            reason = self.after.reason(id, next(iter(spots)))
            self.stopped.append(Stopped(id, queue, len(spots), _nodes(spots.values()), reason))

    def _note_moved(self, id: str, queue: str, tasks: list[str], old: Outcome, new: Outcome) -> None:
        if not tasks:
            return
        running = tasks[0] in _running(self.before.jobs.get(id))
        reason = self.after.reason(id, tasks[0]) if running else None
        sources, targets = _nodes(old[task] for task in tasks), _nodes(new[task] for task in tasks)
        self.moved.append(Moved(id, queue, len(tasks), sources, targets, reason))

    def _now_waits(self, id: str) -> None:
        job = self.after.jobs[id]
        more = bool(self.after.outcome(id))
        self.waiting.append(NowWaiting(id, job.queue, self.after.waiting[id], more))


def _spot(task: Task) -> Spot:
    return Spot(task.node, task.shares, task.state is TaskState.PROMISED)


def _place(spot: Spot) -> tuple[str, tuple[DeviceShare, ...]]:
    return spot.node, spot.shares


def _running(job: Job | None) -> frozenset[str]:
    return frozenset(task.id for task in job.tasks if task.state is TaskState.RUNNING) if job else frozenset()


def _nodes(spots: Iterable[Spot]) -> tuple[str, ...]:
    return tuple(sorted({spot.node for spot in spots}))
