"""Does a plan still hold on a newer state? Action by action, before anything is done about it.

Place in the flow: a plan is made from one snapshot and acted on a moment later, when the world may have moved on.
Each action is tried on the newer books in order: an eviction frees its place for what comes after it, a move is tried
at its destination. What no longer holds is named and skipped; with one task of a gang's minimum the whole chunk goes,
and with one eviction or place of a bargain the whole bargain: nobody gives way for a job that does not get the place.
Pure; changes nothing it is given.
"""

from __future__ import annotations

import msgspec

from gpuyard.model.jobs import DeviceShare, Job, Task, TaskState
from gpuyard.model.plan import Action, Bind, Evict, Move, Plan, Promise, Resize
from gpuyard.model.quantities import CPU, GPU, MEMORY, MILLI
from gpuyard.model.reasons import MIG_PREFIX, TASKS, Reason, Token
from gpuyard.model.snapshot import Snapshot
from gpuyard.scheduler.company import Company
from gpuyard.scheduler.eligibility import may_use
from gpuyard.scheduler.gang import ACTIVE, leaves, satisfied
from gpuyard.scheduler.headroom import blockers
from gpuyard.scheduler.ledger import Ledger
from gpuyard.scheduler.nodebook import NodeBook
from gpuyard.scheduler.nodestate import NodeFrame, NodeState
from gpuyard.scheduler.promises import release
from gpuyard.scheduler.queuebook import QueueBook
from gpuyard.scheduler.resources import Amounts
from gpuyard.scheduler.topology import level_left

Placing = Bind | Promise | Move
"""What gives a task a place."""


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
        replay = _Replay(ledger, refused)
        found = replay.run(plan)
        broken = (
            replay.in_bad_company()
            or _broken_gangs(ledger, found)
            or _broken_domains(ledger, found)
            or _broken_victims(ledger, found)
            or _broken_bargains(found)
        )
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
        self.company = Company(ledger.neighbours, ledger.levels, ledger.eligibility)
        self.doubtful: list[tuple[Placing, Job, Task, int]] = []
        """Tasks whose company was not right when their turn came; who comes to be there is known in the end."""

    def run(self, plan: Plan) -> tuple[Verdict, ...]:
        return tuple([Verdict(action, self._why_not(action)) for action in plan.actions])

    def _why_not(self, action: Action) -> Reason | None:
        refused = self.refused.get((action.job, action.task))
        if refused is not None:
            return refused
        match action:
            case Bind() | Promise():
                return self._place(action)
            case Evict():
                return self._evict(action, action.node)
            case Move():
                return self._move(action)
            case Resize():
                running = self._running(action) is not None
                return None if running else Reason(Token.GANG_INCOMPLETE, subject=action.task)

    def _running(self, action: Evict | Move | Resize) -> tuple[Job, Task] | None:
        job = self.ledger.jobs.get(action.job)
        task = _task(job, action.task)
        return (job, task) if job and task and task.state is TaskState.RUNNING else None

    def _evict(self, action: Evict | Move, node: str) -> Reason | None:
        """Let a task go that still runs there, and may be made to; or take back a promise that cannot be kept."""
        promised = self._promised(action) if isinstance(action, Evict) else None
        if promised is not None:
            if action.reason.beneficiary and not promised[0].may_stop:
                return Reason(Token.OVER_QUOTA, subject=promised[0].queue)
            self._take_back(*promised)
            return None
        found = self._running(action)
        position = self.nodes.at.get(node, -1)
        if found is None or found[1].node != node or position < 0:
            return Reason(Token.GANG_INCOMPLETE, subject=action.task)
        job, task = found
        leaf = self.queues.leaf_at(job.queue)
        may_go = job.may_stop or (isinstance(action, Move) and job.checkpointable and not job.protected)
        if action.reason.beneficiary and (not may_go or leaf < 0):
            return Reason(Token.OVER_QUOTA, subject=job.queue)
        # Where a world reports a device as held twice, taking one task off frees nothing that can be counted on.
        if self.nodes.sound(position):
            self.nodes.evict(position, [(task.request, self.nodes.held(job, task))])
        if leaf >= 0:
            amounts = self.ledger.amounts(task, self.ledger.shapes.of(task.request), position)
            self.queues.charge(leaf, amounts, not job.preemptible, times=-1)
        self.company.leave(job, task, position)
        return None

    def _promised(self, action: Evict) -> tuple[Job, Task] | None:
        job = self.ledger.jobs.get(action.job)
        task = _task(job, action.task)
        return (job, task) if job and task and task.state is TaskState.PROMISED else None

    def _take_back(self, job: Job, task: Task) -> None:
        if task.node in self.nodes.at:
            self.company.come(job, task, self.nodes.at[task.node], -1)
        release(self.ledger, self.nodes, self.queues, job, task)

    def _move(self, action: Move) -> Reason | None:
        undo = self.nodes.fork(), self.queues.fork(), self.company.fork(), self.doubtful.copy()
        reason = self._evict(action, action.source)
        found = self._running(action)
        if reason is None and found is not None:
            reason = self._book(action, *found)
        if reason is not None:
            self.nodes, self.queues, self.company, self.doubtful = undo
        return reason

    def _place(self, action: Bind | Promise) -> Reason | None:
        job = self.ledger.jobs.get(action.job)
        task = _task(job, action.task)
        if job is not None and task is not None and self._was_promised(task, action):
            return self._keep(job, task)
        if job is None or task is None or task.state is not TaskState.PENDING:
            return Reason(Token.GANG_INCOMPLETE, subject=action.task)
        return self._book(action, job, task)

    def _book(self, action: Placing, job: Job, task: Task) -> Reason | None:
        """Give a task its new place, unless something is in the way."""
        leaf = self.queues.leaf_at(job.queue)
        if leaf < 0:
            return Reason(Token.QUEUE_MISSING, subject=job.queue)
        position = self.nodes.at.get(action.node, -1)
        if position < 0 or not may_use(self.nodes.frames[position].node, task.request.where):
            return Reason(Token.NO_MATCHING_NODE, subject=action.node)
        reason = self._room(action, task, position) or self._bounds(job, task, action, leaf, position)
        if reason is None:
            if self.company.concerns(job, task) and not self._is_welcome(action, job, task, position):
                self.doubtful.append((action, job, task, position))
            take = self.nodes.bind if isinstance(action, Bind) else self.nodes.promise
            take(position, task.request, action.shares)
            self.queues.charge(leaf, self._amounts(task, action, position), not job.preemptible)
            self.company.come(job, task, position)
        return reason

    def _was_promised(self, task: Task, action: Bind | Promise) -> bool:
        promised = task.state is TaskState.PROMISED and isinstance(action, Bind)
        return promised and (task.node, task.shares or action.shares) == (action.node, action.shares)

    def _keep(self, job: Job, task: Task) -> Reason | None:
        """A promise of before: its place is booked for later and charged already, and must be free now."""
        position = self.nodes.at.get(task.node, -1)
        if position < 0 or self.nodes.is_broken(job, task):
            return Reason(Token.NO_MATCHING_NODE, subject=task.node)
        if task.leaving:
            return Reason(Token.PLACE_FREEING, subject=task.node)
        shares = self.nodes.held(job, task)
        short = _shortage(task, shares, self.nodes.now[position], self.nodes.frames[position])
        if short is None and not self.company.is_clear(job, task, position):
            short = Reason(Token.PLACE_FREEING, subject=task.node)
        if short is None:
            self.nodes.start(position, task.request, shares)
        return short

    def _room(self, action: Placing, task: Task, position: int) -> Reason | None:
        now, later = self.nodes.now[position], self.nodes.later.get(position)
        states = [now, *([later] if later else [])] if isinstance(action, Bind) else [later or now]
        frame = self.nodes.frames[position]
        return next((short for state in states if (short := _shortage(task, action.shares, state, frame))), None)

    def _is_welcome(self, action: Placing, job: Job, task: Task, position: int) -> bool:
        """Whether rules about other tasks, its own and theirs, let a task have its place. Of one that ran before, only
        those count that keep tasks apart."""
        if isinstance(action, Move):
            return self.company.is_free(job, task, position)
        allowed = self.company.allowed(job, task)
        nodes = allowed.now if isinstance(action, Bind) else allowed.later
        return nodes is None or bool(nodes[position])

    def in_bad_company(self) -> dict[tuple[str, str], Reason]:
        """Tasks that others are in the way of even once all of the plan is done. Moves are told before whatever they
        were reckoned with, so the order in which things are told does not count."""
        found: dict[tuple[str, str], Reason] = {}
        for action, job, task, position in self.doubtful:
            self.company.come(job, task, position, -1)
            if not self._is_welcome(action, job, task, position):
                found[job.id, task.id] = Reason(Token.NO_MATCHING_NODE, subject=action.node)
            self.company.come(job, task, position)
        return found

    def _bounds(self, job: Job, task: Task, action: Placing, leaf: int, position: int) -> Reason | None:
        amounts = self._amounts(task, action, position)
        return next(iter(blockers(self.queues, leaf, amounts, not job.preemptible)), None)

    def _amounts(self, task: Task, action: Placing, position: int) -> Amounts:
        return self.queues.resources.of_task(task.request, action.shares, self.nodes.frames[position].node)


def _task(job: Job | None, id: str) -> Task | None:
    return next((task for task in job.tasks if task.id == id), None) if job else None


def _shortage(task: Task, shares: tuple[DeviceShare, ...], state: NodeState, frame: NodeFrame) -> Reason | None:
    """What a state lacks for a task with exactly these shares."""
    request = task.request
    wanted = [(CPU, state.cpu_milli, request.cpu_milli), (MEMORY, state.memory_bytes, request.memory_bytes)]
    wanted += [(name, state.other.get(name, 0), amount) for name, amount in request.other]
    for profile, device in {(share.mig, share.device) for share in shares if share.mig}:
        count = sum(share.mig == profile and share.device == device for share in shares)
        wanted.append((f"{MIG_PREFIX}{profile}", state.mig.get((profile, device), 0), count))
    whole = [share for share in shares if not share.mig]
    free = sum(share.gpu_milli for share in whole if _device_holds(task, share, state, frame))
    kept = all(_device_holds(task, share, state, frame) for share in whole)
    if not kept:
        return Reason(Token.NOT_ENOUGH, GPU, free, sum(share.gpu_milli for share in whole), subject=frame.node.name)
    for resource, have, need in [*wanted, (TASKS, state.slots, 1)]:
        if need and have < need:
            return Reason(Token.NOT_ENOUGH, resource, max(have, 0), need, subject=frame.node.name)
    return None


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
    active = {task.id for task in job.tasks if task.state in ACTIVE}
    single = job.group.leaf
    for leaf in leaves(job.group):
        mine = [task.id for task in job.tasks if single or task.group == leaf.name]
        up = sum(id in active or id in holding for id in mine)
        planned = any(verdict.action.task in mine for verdict in verdicts)
        if planned and up < leaf.min_tasks and holding:
            reason = Reason(Token.GANG_INCOMPLETE, have=up, need=leaf.min_tasks, subject=leaf.name)
            return {(job.id, task): reason for task in holding}
    return {}


def _broken_domains(ledger: Ledger, verdicts: tuple[Verdict, ...]) -> dict[tuple[str, str], Reason]:
    """Tasks of groups that would no longer lie in one domain of the level they require."""
    broken: dict[tuple[str, str], Reason] = {}
    nodes_by_job: dict[str, dict[str, str]] = {}
    gone_by_job: dict[str, set[str]] = {}
    for verdict in verdicts:
        if verdict.holds and isinstance(verdict.action, Evict):
            gone_by_job.setdefault(verdict.action.job, set()).add(verdict.action.task)
        if verdict.holds and isinstance(verdict.action, Placing):
            nodes_by_job.setdefault(verdict.action.job, {})[verdict.action.task] = verdict.action.node
    for id, given in nodes_by_job.items():
        job, gone = ledger.jobs[id], gone_by_job.get(id, set())
        staying = {task.id: task.node for task in job.tasks if task.state in ACTIVE and task.id not in gone}
        left = {task: node for task, node in (staying | given).items() if task not in gone}
        level = level_left(ledger.domains, ledger.nodes.at, job, left)
        if level:
            reason = Reason(Token.NO_DOMAIN, subject=level)
            broken |= {(id, task): reason for task in given}
    return broken


def _broken_victims(ledger: Ledger, verdicts: tuple[Verdict, ...]) -> dict[tuple[str, str], Reason]:
    """Evictions that would leave a job below its minimum that has it now, and still running."""
    gone: dict[str, set[str]] = {}
    for verdict in verdicts:
        if verdict.holds and isinstance(verdict.action, Evict):
            gone.setdefault(verdict.action.job, set()).add(verdict.action.task)
    broken: dict[tuple[str, str], Reason] = {}
    for id, tasks in gone.items():
        job = ledger.jobs[id]
        left = _active(job, tasks)
        if any(left.values()) and not satisfied(job.group, left) and satisfied(job.group, _active(job, set())):
            reason = Reason(Token.GANG_INCOMPLETE, have=sum(left.values()), subject=id)
            broken |= {(id, task): reason for task in tasks}
    return broken


def _active(job: Job, without: set[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for task in job.tasks:
        if task.state in ACTIVE and task.id not in without:
            leaf = job.group.name if job.group.leaf else task.group
            counts[leaf] = counts.get(leaf, 0) + 1
    return counts


def _broken_bargains(verdicts: tuple[Verdict, ...]) -> dict[tuple[str, str], Reason]:
    """What was to happen for the sake of one job, where a part of it cannot: neither the rest, nor the job's places."""
    bargains: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        action = verdict.action
        if isinstance(action, Evict | Move) and action.reason.beneficiary:
            bargains.setdefault(action.reason.beneficiary, []).append(verdict)
        elif isinstance(action, Bind | Promise) and action.job in bargains:
            bargains[action.job].append(verdict)
    broken: dict[tuple[str, str], Reason] = {}
    for bargain in bargains.values():
        why = next((verdict.why for verdict in bargain if verdict.why is not None), None)
        if why is not None:
            broken |= {(verdict.action.job, verdict.action.task): why for verdict in bargain if verdict.holds}
    return broken
