"""The books of a cluster: who holds what on which device, what every queue holds and asks, who waits.

Place in the flow: made from a snapshot (`Ledger.of`), kept and followed by a long-lived caller (`apply`), forked by
every plan. Invariant: a ledger that followed changes equals one made from the snapshot they lead to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gpuyard.model.jobs import NOBODY, Job, Task, TaskState
from gpuyard.model.nodes import Node, Topology
from gpuyard.model.plan import Waiting
from gpuyard.model.queues import Queue, QueueUsage
from gpuyard.model.reasons import Reason, Token
from gpuyard.model.snapshot import (
    Change,
    JobGone,
    JobSeen,
    MovesCounted,
    NodeGone,
    NodeSeen,
    QueuesSet,
    Snapshot,
    TimePassed,
    UsageSet,
)
from gpuyard.scheduler.eligibility import Eligibility
from gpuyard.scheduler.endings import is_timed
from gpuyard.scheduler.gang import ACTIVE, IN_PLACE, Gang, is_incomplete
from gpuyard.scheduler.jobbook import Lines, Waiter, waiter_of
from gpuyard.scheduler.neighbours import Filing, Neighbours, soft_rules_of
from gpuyard.scheduler.nodebook import NodeBook
from gpuyard.scheduler.nodestate import NodeFrame
from gpuyard.scheduler.queuebook import QueueBook
from gpuyard.scheduler.resources import Amounts, Resources, plus, times
from gpuyard.scheduler.scopes import Scopes
from gpuyard.scheduler.shapes import Shape, Shapes
from gpuyard.scheduler.topology import Domains, Levels
from gpuyard.scheduler.yielding import Yielders


class Account(NamedTuple):
    """What one job holds and asks. Made anew from the job whenever needed: nodes stay the same between loads."""

    leaf: int
    held: Amounts
    asked: Amounts
    closed: Amounts
    """The part of what it holds that lies on nodes that take no new work."""
    firm: bool
    waits: bool
    promised: bool
    yields: bool
    """Whether it runs and may be made to give way."""
    unshared: Amounts
    """What it takes off what is shared out, where it is nobody's."""


class Ledger:
    """The state of a cluster in the form the planner works with."""

    nodes: NodeBook
    queues: QueueBook
    shapes: Shapes
    eligibility: Eligibility
    domains: Domains
    levels: Levels
    neighbours: Neighbours
    wished: Neighbours
    """The kinds of tasks that soft rules are about."""
    lines: Lines
    yielders: list[Yielders]
    """Per queue: who can give way there."""
    _open_total: Amounts

    def __init__(self, snapshot: Snapshot) -> None:
        self.now_ms = snapshot.now_ms
        self.moves_last_hour = snapshot.moves_last_hour
        self.affinity_scope = snapshot.affinity_scope
        self.topologies: tuple[Topology, ...] = snapshot.topologies
        self.usage: tuple[QueueUsage, ...] = snapshot.usage
        self._nodes: dict[str, Node] = {node.name: node for node in snapshot.nodes}
        self._queues: tuple[Queue, ...] = snapshot.queues
        self.jobs: dict[str, Job] = {job.id: job for job in snapshot.jobs}
        self._load()

    @classmethod
    def of(cls, snapshot: Snapshot) -> Ledger:
        return cls(snapshot)

    def fork(self) -> Ledger:
        """A copy on which changes can be tried: what is written in place is copied, everything else is shared."""
        copy = Ledger.__new__(Ledger)
        vars(copy).update(vars(self))
        copy._nodes, copy.jobs = self._nodes.copy(), self.jobs.copy()
        copy.nodes, copy.queues = self.nodes.fork_with_tasks(), self.queues.fork()
        copy.yielders = [yielders.fork() for yielders in self.yielders]
        copy.queues.asked = [amounts.copy() for amounts in self.queues.asked]
        copy.lines, copy.neighbours, copy.wished = self.lines.fork(), self.neighbours.fork(), self.wished.fork()
        copy.shapes = self.shapes.fork(copy.neighbours)
        copy._stranded, copy.incomplete = self._stranded.copy(), self.incomplete.copy()
        copy.promised, copy.timed = self.promised.copy(), self.timed.copy()
        return copy

    @property
    def queue_tree(self) -> tuple[Queue, ...]:
        """The queues, as written."""
        return self._queues

    def apply(self, changes: Iterable[Change]) -> None:
        """Follow what has changed in the world. Other nodes or another tree of queues load the books anew."""
        touched: set[int] = set()
        before: dict[str, Job | None] = {}
        reload = False
        for change in changes:
            match change:
                case JobSeen(job):
                    before.setdefault(job.id, self.jobs.get(job.id))
                    self._forget(job.id, touched)
                    self.jobs[job.id] = job
                    self._enter(job, touched)
                case JobGone(id):
                    before.setdefault(id, self.jobs.get(id))
                    self._forget(id, touched)
                    self.jobs.pop(id, None)
                case MovesCounted(moves):
                    self.moves_last_hour = moves
                case TimePassed(now_ms):
                    self.now_ms = now_ms
                case UsageSet(usage):
                    self.usage = usage
                    self.queues.set_usage(usage)
                case NodeSeen(node) if not reload and node.name in self.nodes.at:
                    reload = not self._has_changed(node, touched)
                case _:
                    reload = self._note(change) or reload
        if reload:
            self._load()
        else:
            self._line_up_changed(before)
            self.nodes.load(touched)

    def total(self) -> Amounts:
        """What the cluster has to give: open nodes, and what is still held on the others; but for what is nobody's."""
        total = plus(self._open_total, self._held_on_closed) if any(self._held_on_closed) else self._open_total
        if not any(self._unshared):
            return total
        return tuple([max(0, amount - unshared) for amount, unshared in zip(total, self._unshared, strict=True)])

    @property
    def never_started(self) -> list[Waiting]:
        """Jobs that cannot even be tried: no such queue, or fewer tasks than their gang needs."""
        return [Waiting(self.jobs[id].queue, (id,), (reason,)) for id, reason in sorted(self._stranded.items())]

    def snapshot(self) -> Snapshot:
        """The state of the world these books were made from."""
        return Snapshot(
            nodes=tuple(self._nodes.values()),
            queues=self._queues,
            jobs=tuple(self.jobs.values()),
            topologies=self.topologies,
            usage=self.usage,
            now_ms=self.now_ms,
            moves_last_hour=self.moves_last_hour,
            affinity_scope=self.affinity_scope,
        )

    def facts(self) -> tuple[object, ...]:
        """Everything that is booked, as one comparable value."""
        stranded = tuple(sorted((id, reason.token.value) for id, reason in self._stranded.items()))
        waiting = self.lines.facts(), stranded, tuple(sorted(self.incomplete)), tuple(sorted(self.timed))
        kinds = self.neighbours.facts(), self.wished.facts()
        return self.nodes.facts(), self.queues.facts(), waiting, kinds, self.total(), self.now_ms

    def _note(self, change: Change) -> bool:
        match change:
            case NodeSeen(node) if self._nodes.get(node.name) != node:
                self._nodes[node.name] = node
                return True
            case NodeGone(name):
                return self._nodes.pop(name, None) is not None
            case QueuesSet(queues) if queues != self._queues:
                self._queues = queues
                return self._retune(queues)
        return False

    def _has_changed(self, node: Node, touched: set[int]) -> bool:
        """Follow one node that is not what it was; False where that changes what all others count, too."""
        position = self.nodes.at[node.name]
        old, new = self.nodes.frames[position], NodeFrame(node)
        if old.node == node:
            return True
        self._nodes[node.name] = node
        if [device.mig for device in old.devices] != [device.mig for device in new.devices]:
            return False
        jobs = {job.id: job for _, job in self.nodes.tasks_on[position]}
        accounts = [self._account(job) for job in jobs.values()]
        self.nodes.reframe(new, position)
        if old.memory_ranges() != new.memory_ranges() and _memory_ranges(self.nodes.frames) != self.shapes.memories:
            return False
        self._reckon_with(old.node, node, position)
        for job, before in zip(jobs.values(), accounts, strict=True):
            self._recharge(job, before)
        touched.add(position)
        return True

    def _reckon_with(self, old: Node, new: Node, position: int) -> None:
        """Replace what was worked out for all nodes from what they are."""
        frames, resources = self.nodes.frames, self.shapes.resources
        self.eligibility = self.eligibility.with_frame(frames, position)
        if old.labels != new.labels:
            self.domains, self.levels = Domains(self.topologies, frames), Levels(frames)
        for node, times_counted in ((old, -1), (new, 1)):
            if node.open:
                self._open_total = plus(self._open_total, times(resources.of_node(node), times_counted))

    def _recharge(self, job: Job, before: Account) -> None:
        """Count a job anew: what a node is may change what its tasks count."""
        after = self._account(job)
        if after == before:
            return
        self._charge(before, -1)
        self._charge(after, 1)
        if before.yields:
            self.yielders[before.leaf].remove(job.id, before.held[0])
            self.yielders[after.leaf].add(job, after.held[0])

    def _retune(self, queues: tuple[Queue, ...]) -> bool:
        """Put new bounds on the same queues; True where that is not enough."""
        retuned = self.queues.retuned(queues)
        self.queues = retuned or self.queues
        return retuned is None

    # Loading -------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Make all books from nodes, queues and jobs. One pass over the jobs: this is the floor of a large cycle."""
        resources = Resources(self._queues, self._nodes.values())
        self.nodes = NodeBook(self._nodes.values())
        self.queues = QueueBook(self._queues, resources)
        self.queues.set_usage(self.usage)
        scopes = Scopes(self._queues, self.affinity_scope)
        self.neighbours, self.wished = Neighbours(scopes), Neighbours(scopes, soft_rules_of)
        self.shapes = Shapes(resources, _memory_ranges(self.nodes.frames), self.neighbours)
        self.eligibility = Eligibility(self.nodes.frames)
        self.domains = Domains(self.topologies, self.nodes.frames)
        self.levels = Levels(self.nodes.frames)
        self.lines = Lines()
        self.yielders = [Yielders() for _ in self.queues.frames]
        self._stranded: dict[str, Reason] = {}
        self.promised: set[str] = set()
        """Jobs with tasks that were promised a place."""
        self.incomplete: set[str] = set()
        """Jobs of which something is in place, but less than their minimum."""
        self.timed: dict[str, Job] = {}
        """Jobs that have a run limit or an estimate. Where there are none, nothing is reckoned in time."""
        self._held_on_closed = resources.zero
        self._unshared = resources.zero
        """What lies on open nodes and is nobody's."""
        # Where single models are rationed, what a task counts hangs on where it lies.
        self._plain = not resources.by_model
        self._all_open = all(node.open for node in self._nodes.values())
        """As the books were loaded: whether equal jobs have equal accounts, wherever they lie."""
        self._open_total = resources.zero
        for node in self._nodes.values():
            if node.open:
                self._open_total = plus(self._open_total, resources.of_node(node))
        self._load_jobs()
        self.nodes.load_all()

    def _load_jobs(self) -> None:
        """Enter all jobs. Most hold and ask the same as many others, so equal accounts are made and charged once."""
        waiting: list[tuple[Job, int]] = []
        accounts: dict[object, Account] = {}
        counts: dict[object, int] = {}
        at, tasks_on = self.nodes.at, self.nodes.tasks_on
        for job in self.jobs.values():
            for task in job.tasks:
                if task.node and task.state in IN_PLACE and task.node in at:
                    tasks_on[at[task.node]].append((task, job))
            kind: object = self._kind(job)
            account = accounts.get(kind) if kind else None
            if account is None:
                account = self._account(job)
                kind = kind or account
                accounts[kind] = account
            counts[kind] = counts.get(kind, 0) + 1
            if account.yields:
                self.yielders[account.leaf].add(job, account.held[0])
            if account.promised:
                self.promised.add(job.id)
            if (len(job.tasks) > 1 or job.group.min_tasks > 1) and job.queue != NOBODY and is_incomplete(job):
                self.incomplete.add(job.id)
            if account.waits:
                waiting.append((job, account.leaf))
        for kind, account in accounts.items():
            self._charge(account, counts[kind])
        self.timed = {job.id: job for job in self.jobs.values() if is_timed(job)}
        self._follow_neighbours({})
        self.lines.load(waiter for job, leaf in waiting if (waiter := self._waiter(job, leaf)) is not None)

    def _enter(self, job: Job, touched: set[int]) -> None:
        """Enter one job that is new or has changed."""
        for task in job.tasks:
            position = self.nodes.at.get(task.node, -1)
            if position >= 0 and task.state in IN_PLACE:
                self.nodes.tasks_on[position].append((task, job))
                touched.add(position)
        if job.queue != NOBODY and is_incomplete(job):
            self.incomplete.add(job.id)
        if is_timed(job):
            self.timed[job.id] = job
        account = self._account(job)
        self._charge(account, 1)
        if account.yields:
            self.yielders[account.leaf].add(job, account.held[0])
        if account.promised:
            self.promised.add(job.id)

    def _line_up_changed(self, before: dict[str, Job | None]) -> None:
        """Give jobs that have changed their place among those who wait; `before` is what they were."""
        for id in before:
            self.lines.remove(id)
            self._stranded.pop(id, None)
        others = self._follow_neighbours(before)
        for id in before:
            if id in self.jobs:
                self._line_up(self.jobs[id])
        for waiter in others:
            self.lines.remove(waiter.job.id)
            self._line_up(waiter.job)

    def _line_up(self, job: Job) -> None:
        if job.queue != NOBODY and any(task.state is TaskState.PENDING for task in job.tasks):
            waiter = self._waiter(job, self.queues.leaf_at(job.queue))
            if waiter is not None:
                self.lines.add(waiter)

    def _follow_neighbours(self, before: dict[str, Job | None]) -> list[Waiter]:
        """Note who is where, from the first task on that has a rule about others: most clusters have none.

        Says who else waits that rules have come to be about, or are about no longer.
        """
        if self.shapes.any_choosy:
            self._follow(self.wished, before)
        changed = self._follow(self.neighbours, before) if self.shapes.any_ruled else None
        if changed is None:
            return []
        return [waiter for waiter in self.lines.waiters.values() if changed.any_of(waiter.job)]

    def _follow(self, kinds: Neighbours, before: dict[str, Job | None]) -> Filing | None:
        if not kinds.followed:
            kinds.followed = True
            before = dict.fromkeys(self.jobs)
        old = [job for job in before.values() if job is not None]
        new = [self.jobs[id] for id in before if id in self.jobs]
        others = (job for id, job in self.jobs.items() if id not in before)
        return kinds.follow(old, new, others, self.nodes.at)

    def _kind(self, job: Job) -> tuple[object, ...]:
        """Equal for jobs of equal tasks whose accounts are equal; empty where that hangs on where the tasks lie."""
        if not job.tasks or job.queue == NOBODY:
            return ()
        task = job.tasks[0]
        request, state = task.request, task.state
        if not self._plain or not self._all_open or request.gpu_memory_mib:
            return ()
        if len(job.tasks) > 1:
            for other in job.tasks:
                if other.request is not request or other.state is not state:
                    return ()
        return job.queue, self.shapes.of(request).id, state, job.preemptible, job.protected, len(job.tasks)

    def _account(self, job: Job) -> Account:
        """What a job counts: its active tasks as held, its pending ones as asked."""
        if job.queue == NOBODY:
            return self._account_of_nobody(job)
        zero = self.shapes.resources.zero
        held = asked = closed = zero
        waits = runs = promised = False
        for task in job.tasks:
            shape = self.shapes.of(task.request)
            if task.state is TaskState.PENDING:
                waits = True
                asked = shape.asked if asked is zero else plus(asked, shape.asked)
            elif task.state in ACTIVE:
                runs = runs or task.state is TaskState.RUNNING
                promised = promised or task.state is TaskState.PROMISED
                position = self.nodes.at.get(task.node, -1)
                amounts = self.amounts(task, shape, position)
                held = amounts if held is zero else plus(held, amounts)
                if position >= 0 and not self.nodes.frames[position].node.open:
                    closed = plus(closed, amounts)
        leaf = self.queues.leaf_at(job.queue)
        yields = runs and job.may_stop and leaf >= 0
        return Account(leaf, held, asked, closed, not job.preemptible, waits, promised, yields, zero)

    def _account_of_nobody(self, job: Job) -> Account:
        """Such a job holds its places, and that is all there is to say of it."""
        zero = unshared = self.shapes.resources.zero
        for task in job.tasks:
            shape, position = self.shapes.of(task.request), self.nodes.at.get(task.node, -1)
            if task.state in ACTIVE and position >= 0 and self.nodes.frames[position].node.open:
                unshared = plus(unshared, self._taken_off(task, shape, self.nodes.frames[position].node))
        return Account(-1, zero, zero, zero, True, False, False, False, unshared)

    def _taken_off(self, task: Task, shape: Shape, node: Node) -> Amounts:
        """What a task holds of what its node adds to the whole: a broken GPU adds nothing."""
        resources, devices = self.shapes.resources, node.devices
        if not task.shares:
            return shape.asked
        sound = [share for share in task.shares if share.device < len(devices) and devices[share.device].healthy]
        return resources.of_task(task.request, sound, node)

    def amounts(self, task: Task, shape: Shape, position: int) -> Amounts:
        """What a placed task counts."""
        if not task.shares or (self._plain and not task.request.gpu_memory_mib):
            return shape.asked
        node = self.nodes.frames[position].node if position >= 0 else None
        return self.shapes.resources.of_task(task.request, task.shares, node)

    def _charge(self, account: Account, count: int) -> None:
        """Count an account `count` times (below zero: take it back)."""
        if account.leaf >= 0:
            self.queues.charge(account.leaf, account.held, account.firm, count)
            self.queues.ask(account.leaf, account.asked, count)
        if any(account.closed):
            self._held_on_closed = plus(self._held_on_closed, times(account.closed, count))
        if any(account.unshared):
            self._unshared = plus(self._unshared, times(account.unshared, count))

    def _waiter(self, job: Job, leaf: int) -> Waiter | None:
        """What a job waits for; None where it cannot be tried at all."""
        if leaf < 0:
            self._stranded[job.id] = Reason(Token.QUEUE_MISSING, subject=job.queue, never=True)
            return None
        found = waiter_of(job, leaf, self.shapes)
        if isinstance(found, Gang):
            there, needed, group = found.missing()
            self._stranded[job.id] = Reason(Token.GANG_INCOMPLETE, have=there, need=needed, subject=group)
            return None
        return found

    def _forget(self, id: str, touched: set[int]) -> None:
        """Take a job off the books as if it had never been there."""
        job = self.jobs.get(id)
        if job is None:
            return
        for position in {self.nodes.at.get(task.node, -1) for task in job.tasks} - {-1}:
            on_node = self.nodes.tasks_on[position]
            on_node[:] = [entry for entry in on_node if entry[1].id != id]
            touched.add(position)
        account = self._account(job)
        self._charge(account, -1)
        if account.yields:
            self.yielders[account.leaf].remove(id, account.held[0])
        self.incomplete.discard(id)
        self.promised.discard(id)
        self.timed.pop(id, None)


def _memory_ranges(frames: Iterable[NodeFrame]) -> dict[str, tuple[int, int]]:
    """The smallest and the largest GPU of each model, and of all under ''."""
    ranges: dict[str, tuple[int, int]] = {}
    for frame in frames:
        for model, (smallest, largest) in frame.memory_ranges().items():
            for name in (model, ""):
                low, high = ranges.get(name, (smallest, largest))
                ranges[name] = (min(low, smallest), max(high, largest))
    return ranges
