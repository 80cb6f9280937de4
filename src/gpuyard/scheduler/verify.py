"""Does a plan still hold on a newer state? Action by action, before anything is done about it.

Place in the flow: a plan is made from one snapshot and acted on a moment later, when the world may have moved on.
Each action is tried on the newer books in order; what no longer holds is named and skipped, and with one task of a
gang's minimum the whole chunk goes. Pure; changes nothing it is given.
"""

from __future__ import annotations

import msgspec

from gpuyard.model.jobs import DeviceShare, Job, Task, TaskState
from gpuyard.model.plan import Action, Bind, Evict, Move, Plan, Promise, Resize
from gpuyard.model.quantities import MILLI
from gpuyard.model.reasons import Reason, Token
from gpuyard.model.snapshot import Snapshot
from gpuyard.scheduler.eligibility import may_use
from gpuyard.scheduler.gang import leaves
from gpuyard.scheduler.headroom import blockers
from gpuyard.scheduler.ledger import Ledger
from gpuyard.scheduler.nodebook import NodeBook
from gpuyard.scheduler.nodestate import NodeFrame, NodeState
from gpuyard.scheduler.queuebook import QueueBook
from gpuyard.scheduler.resources import Amounts


class Verdict(msgspec.Struct, frozen=True):
    """Whether one action still holds, and if not, why."""

    action: Action
    why: Reason | None = None

    @property
    def holds(self) -> bool:
        return self.why is None


def verify(plan: Plan, snapshot: Snapshot) -> tuple[Verdict, ...]:
    """One verdict per action of the plan, in its order, against a newer snapshot."""
    return verify_on(plan, Ledger.of(snapshot))


def verify_on(plan: Plan, ledger: Ledger) -> tuple[Verdict, ...]:
    """The same, on books that are kept."""
    refused: dict[tuple[str, str], Reason] = {}
    while True:
        found = _Replay(ledger, refused).run(plan)
        broken = _broken_gangs(ledger, found)
        if not broken:
            return found
        refused |= broken


class _Replay:
    """Tries the actions one after the other on a copy of the books."""

    def __init__(self, ledger: Ledger, refused: dict[tuple[str, str], Reason]) -> None:
        self.ledger = ledger
        self.refused = refused
        self.nodes: NodeBook = ledger.nodes.fork()
        self.queues: QueueBook = ledger.queues.fork()

    def run(self, plan: Plan) -> tuple[Verdict, ...]:
        return tuple([Verdict(action, self._why_not(action)) for action in plan.actions])

    def _why_not(self, action: Action) -> Reason | None:
        refused = self.refused.get((action.job, action.task))
        if refused is not None:
            return refused
        match action:
            case Bind() | Promise():
                return self._place(action)
            case Evict() | Move() | Resize():
                return self._still_running(action)

    def _still_running(self, action: Evict | Move | Resize) -> Reason | None:
        task = _task(self.ledger.jobs.get(action.job), action.task)
        running = task is not None and task.state is TaskState.RUNNING
        return None if running else Reason(Token.GANG_INCOMPLETE, subject=action.task)

    def _place(self, action: Bind | Promise) -> Reason | None:
        job = self.ledger.jobs.get(action.job)
        task = _task(job, action.task)
        if job is None or task is None or task.state is not TaskState.PENDING:
            return Reason(Token.GANG_INCOMPLETE, subject=action.task)
        leaf = self.queues.leaf_at(job.queue)
        if leaf < 0:
            return Reason(Token.QUEUE_MISSING, subject=job.queue)
        position = self.nodes.at.get(action.node, -1)
        if position < 0 or not may_use(self.nodes.frames[position].node, task.request.where):
            return Reason(Token.NO_MATCHING_NODE, subject=action.node)
        reason = self._room(action, task, position) or self._bounds(job, task, action, leaf, position)
        if reason is None:
            take = self.nodes.bind if isinstance(action, Bind) else self.nodes.promise
            take(position, task.request, action.shares)
            self.queues.charge(leaf, self._amounts(task, action, position), not job.preemptible)
        return reason

    def _room(self, action: Bind | Promise, task: Task, position: int) -> Reason | None:
        now, later = self.nodes.now[position], self.nodes.later.get(position)
        states = [later or now] if isinstance(action, Promise) else [now, *([later] if later else [])]
        frame = self.nodes.frames[position]
        if all(_holds(task, action.shares, state, frame) for state in states):
            return None
        return Reason(Token.NOT_ENOUGH, subject=action.node)

    def _bounds(self, job: Job, task: Task, action: Bind | Promise, leaf: int, position: int) -> Reason | None:
        amounts = self._amounts(task, action, position)
        return next(iter(blockers(self.queues, leaf, amounts, not job.preemptible)), None)

    def _amounts(self, task: Task, action: Bind | Promise, position: int) -> Amounts:
        return self.queues.resources.of_task(task.request, action.shares, self.nodes.frames[position].node)


def _task(job: Job | None, id: str) -> Task | None:
    return next((task for task in job.tasks if task.id == id), None) if job else None


def _holds(task: Task, shares: tuple[DeviceShare, ...], state: NodeState, frame: NodeFrame) -> bool:
    """Whether a state has room for a task with exactly these shares."""
    request = task.request
    if (
        state.slots < 1
        or request.cpu_milli > max(state.cpu_milli, 0)
        or request.memory_bytes > max(state.memory_bytes, 0)
    ):
        return False
    if any(state.other.get(name, 0) < amount for name, amount in request.other):
        return False
    slices: dict[tuple[str, int], int] = {}
    for share in shares:
        if share.mig:
            key = (share.mig, share.device)
            slices[key] = slices.get(key, 0) + 1
        elif not _device_holds(task, share, state, frame):
            return False
    return all(state.mig.get(key, 0) >= count for key, count in slices.items())


def _device_holds(task: Task, share: DeviceShare, state: NodeState, frame: NodeFrame) -> bool:
    mask = frame.whole_mask if share.gpu_milli == MILLI else frame.share_mask
    if not mask >> share.device & 1:
        return False
    models = task.request.where.gpu_models
    if models and frame.devices[share.device].model not in models:
        return False
    if state.free >> share.device & 1:
        return share.memory_mib <= frame.device_memory_mib[share.device]
    part = state.parts.get(share.device)
    if part is None or share.gpu_milli == MILLI:
        return False
    fits = share.gpu_milli <= part.milli and share.memory_mib <= part.memory_mib
    return fits and part.sharing is task.request.sharing


def _broken_gangs(ledger: Ledger, verdicts: tuple[Verdict, ...]) -> dict[tuple[str, str], Reason]:
    """Tasks that would start although their group would stay below its minimum."""
    by_job: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if isinstance(verdict.action, Bind | Promise):
            by_job.setdefault(verdict.action.job, []).append(verdict)
    broken: dict[tuple[str, str], Reason] = {}
    for id, mine in by_job.items():
        job = ledger.jobs.get(id)
        if job is not None and not all(verdict.holds for verdict in mine):
            broken |= _below_minimum(job, mine)
    return broken


def _below_minimum(job: Job, verdicts: list[Verdict]) -> dict[tuple[str, str], Reason]:
    holding = {verdict.action.task for verdict in verdicts if verdict.holds}
    active = {task.id for task in job.tasks if task.state in (TaskState.RUNNING, TaskState.PROMISED)}
    single = job.group.leaf
    for leaf in leaves(job.group):
        mine = [task.id for task in job.tasks if single or task.group == leaf.name]
        up = sum(id in active or id in holding for id in mine)
        planned = any(verdict.action.task in mine for verdict in verdicts)
        if planned and up < leaf.min_tasks and holding:
            reason = Reason(Token.GANG_INCOMPLETE, have=up, need=leaf.min_tasks, subject=leaf.name)
            return {(job.id, task): reason for task in holding}
    return {}
