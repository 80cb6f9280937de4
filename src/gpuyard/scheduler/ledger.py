"""The books of a cluster: who holds what on which device, what every queue holds and asks, who waits.

Place in the flow: made from a snapshot (`Ledger.of`), kept and followed by a long-lived caller (`apply`), forked by
every plan. Invariant: a ledger that followed changes equals one made from the snapshot they lead to.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuyard.errors import LedgerError
from gpuyard.model.jobs import Job, Task, TaskState
from gpuyard.model.nodes import Node, Topology
from gpuyard.model.plan import Waiting
from gpuyard.model.queues import Queue, QueueUsage
from gpuyard.model.reasons import Reason, Token
from gpuyard.model.snapshot import (
    Change,
    JobGone,
    JobSeen,
    NodeGone,
    NodeSeen,
    QueuesSet,
    Snapshot,
    TimePassed,
    UsageSet,
)
from gpuyard.scheduler.eligibility import Eligibility
from gpuyard.scheduler.gang import ACTIVE, Gang
from gpuyard.scheduler.jobbook import Lines, Waiter, asked_in_all, waiter_of
from gpuyard.scheduler.neighbours import Neighbours
from gpuyard.scheduler.nodebook import NodeBook
from gpuyard.scheduler.queuebook import QueueBook
from gpuyard.scheduler.resources import Amounts, Resources, minus, plus
from gpuyard.scheduler.shapes import Shapes
from gpuyard.scheduler.topology import Domains

PLACED = ACTIVE | {TaskState.FREEING, TaskState.STUCK}
"""Tasks that take up room on a node. Only active ones count against their queue: what is ending no longer does."""


class Account:
    """What one job holds and asks, as it was charged: taken back exactly when the job changes."""

    __slots__ = ("asked", "closed", "firm", "held", "leaf")

    def __init__(self, leaf: int, held: Amounts, asked: Amounts, closed: Amounts, firm: bool) -> None:
        self.leaf = leaf
        self.held = held
        self.asked = asked
        self.closed = closed
        """The part of what it holds that lies on nodes that take no new work."""
        self.firm = firm


class Ledger:
    """The state of a cluster in the form the planner works with."""

    nodes: NodeBook
    queues: QueueBook
    shapes: Shapes
    eligibility: Eligibility
    domains: Domains
    neighbours: Neighbours
    lines: Lines

    def __init__(self, snapshot: Snapshot) -> None:
        self.now_ms = snapshot.now_ms
        self.topologies: tuple[Topology, ...] = snapshot.topologies
        self.usage: tuple[QueueUsage, ...] = snapshot.usage
        self._nodes: dict[str, Node] = {node.name: node for node in snapshot.nodes}
        self._queues: tuple[Queue, ...] = snapshot.queues
        self.jobs: dict[str, Job] = {job.id: job for job in snapshot.jobs}
        self._load()

    @classmethod
    def of(cls, snapshot: Snapshot) -> Ledger:
        return cls(snapshot)

    def apply(self, changes: Iterable[Change]) -> None:
        """Follow what has changed in the world. A change of nodes or queues loads the books anew."""
        touched: set[int] = set()
        reload = False
        for change in changes:
            match change:
                case JobSeen(job):
                    self._forget(job.id, touched)
                    self.jobs[job.id] = job
                    self._enter(job, touched)
                case JobGone(id):
                    self._forget(id, touched)
                    self.jobs.pop(id, None)
                case TimePassed(now_ms):
                    self._pass_time(now_ms)
                case UsageSet(usage):
                    self.usage = usage
                    self.queues.set_usage(usage)
                case _:
                    reload = self._note(change) or reload
        if reload:
            self._load()
        else:
            self.nodes.load(touched)

    def total(self) -> Amounts:
        """What the cluster has to give: open nodes, and what is still held on the others."""
        return plus(self._open_total, self._held_on_closed) if any(self._held_on_closed) else self._open_total

    @property
    def never_started(self) -> list[Waiting]:
        """Jobs that cannot even be tried: no such queue, or fewer tasks than their gang needs."""
        return [Waiting(self.jobs[id].queue, (id,), (reason,)) for id, reason in sorted(self._stranded.items())]

    def facts(self) -> tuple[object, ...]:
        """Everything that is booked, as one comparable value."""
        stranded = tuple(sorted((id, reason.token.value) for id, reason in self._stranded.items()))
        return self.nodes.facts(), self.queues.facts(), self.lines.facts(), stranded, self.total(), self.now_ms

    def _note(self, change: Change) -> bool:
        match change:
            case NodeSeen(node) if self._nodes.get(node.name) != node:
                self._nodes[node.name] = node
                return True
            case NodeGone(name):
                return self._nodes.pop(name, None) is not None
            case QueuesSet(queues) if queues != self._queues:
                self._queues = queues
                return True
        return False

    def _pass_time(self, now_ms: int) -> None:
        if now_ms < self.now_ms:
            raise LedgerError(f"time may not run backwards: {now_ms} after {self.now_ms}")
        self.now_ms = now_ms

    # Loading -------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Make all books from nodes, queues and jobs. One pass over the jobs: this is the floor of a large cycle."""
        resources = Resources(self._queues)
        self.nodes = NodeBook(self._nodes.values())
        self.queues = QueueBook(self._queues, resources)
        self.queues.set_usage(self.usage)
        self.shapes = Shapes(resources, _memory_ranges(self._nodes.values()))
        self.eligibility = Eligibility(self.nodes.frames)
        self.domains = Domains(self.topologies, self.nodes.frames)
        self.neighbours = Neighbours()
        self.lines = Lines()
        self._accounts: dict[str, Account] = {}
        self._stranded: dict[str, Reason] = {}
        self._held_on_closed = resources.zero
        self._plain = not resources.by_model
        self._open_total = resources.zero
        for node in self._nodes.values():
            if node.open:
                self._open_total = plus(self._open_total, resources.of_node(node))
        self._load_jobs()
        self.nodes.load(range(len(self.nodes.frames)))

    def _load_jobs(self) -> None:
        waiters: list[Waiter] = []
        touched: set[int] = set()
        for job in self.jobs.values():
            waiter = self._open_account(job, touched)
            if waiter is not None:
                waiters.append(waiter)
        self.lines.load(waiters)

    def _enter(self, job: Job, touched: set[int]) -> None:
        waiter = self._open_account(job, touched)
        if waiter is not None:
            self.lines.add(waiter)

    def _open_account(self, job: Job, touched: set[int]) -> Waiter | None:
        """Charge a job for what it holds, note where, and say what it waits for."""
        zero = self.shapes.resources.zero
        held = closed = zero
        nodes = self.nodes
        waits = False
        for task in job.tasks:
            state = task.state
            if state is TaskState.PENDING:
                waits = True
            if state not in PLACED or not task.node:
                continue
            position = nodes.at.get(task.node, -1)
            if position >= 0:
                nodes.tasks_on[position].append((task, job))
                touched.add(position)
            if state in ACTIVE:
                amounts = self._amounts(task, position)
                held = amounts if held is zero else plus(held, amounts)
                if position >= 0 and not nodes.frames[position].node.open:
                    closed = plus(closed, amounts)
        if job.labels or any(task.request.where.neighbours for task in job.tasks):
            self.neighbours.set(job, nodes.at)
        leaf = self.queues.leaf_at(job.queue)
        asked = asked_in_all(job, self.shapes, zero) if waits and leaf >= 0 else zero
        self._charge(job.id, Account(leaf, held, asked, closed, not job.preemptible), 1)
        return self._waiter(job, leaf) if waits else None

    def _amounts(self, task: Task, position: int) -> Amounts:
        request = task.request
        if self._plain and not request.gpu_memory_mib and (task.shares or not request.devices):
            return self.shapes.of(request).asked
        node = self.nodes.frames[position].node if position >= 0 else None
        if not task.shares:
            return self.shapes.of(request).asked
        return self.shapes.resources.of_task(request, task.shares, node)

    def _charge(self, id: str, account: Account, sign: int) -> None:
        if account.leaf >= 0:
            self.queues.charge(account.leaf, account.held, account.firm, sign)
            self.queues.ask(account.leaf, account.asked, sign)
        if any(account.closed):
            move = plus if sign > 0 else minus
            self._held_on_closed = move(self._held_on_closed, account.closed)
        if sign > 0:
            self._accounts[id] = account
        else:
            del self._accounts[id]

    def _waiter(self, job: Job, leaf: int) -> Waiter | None:
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
        self._charge(id, self._accounts[id], -1)
        self.lines.remove(id)
        self.neighbours.forget(id)
        self._stranded.pop(id, None)


def _memory_ranges(nodes: Iterable[Node]) -> dict[str, tuple[int, int]]:
    """The smallest and the largest GPU of each model, and of all under ''."""
    ranges: dict[str, tuple[int, int]] = {}
    for node in nodes:
        for device in node.devices:
            for model in (device.model, ""):
                low, high = ranges.get(model, (device.memory_mib, device.memory_mib))
                ranges[model] = (min(low, device.memory_mib), max(high, device.memory_mib))
    return ranges
