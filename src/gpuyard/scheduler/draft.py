"""A plan in the making: a forked ledger, what has been placed and evicted on it so far, and how to take it back.

Place in the flow: `cycle.plan` makes one, each step adds to it, `finish` turns it into a `Plan`.
Invariant: after every `put`, `evict` and `rollback` no device is booked beyond its capacity and every queue is
charged for exactly what its jobs hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gpuyard.model.jobs import DeviceShare, Job, Task, TaskState
from gpuyard.model.plan import Action, Bind, Evict, Move, Plan, Promise, Waiting
from gpuyard.model.reasons import Reason, Token
from gpuyard.policies.fragmentation import Gradient, typical_tasks
from gpuyard.policies.policy import DevicePlacement, NodePlacement, Policy
from gpuyard.scheduler.company import Company
from gpuyard.scheduler.fit import BesideFit, BesideLaterFit, FitTable, KeptStates, LaterFit
from gpuyard.scheduler.nodebook import NodeBook, Undo
from gpuyard.scheduler.nodestate import Booked
from gpuyard.scheduler.presence import Presence
from gpuyard.scheduler.queuebook import QueueBook
from gpuyard.scheduler.resources import Amounts
from gpuyard.scheduler.shapes import Shape
from gpuyard.scheduler.wishes import Wishes

if TYPE_CHECKING:
    from gpuyard.scheduler.columns import Bools
    from gpuyard.scheduler.gang import Gang
    from gpuyard.scheduler.jobbook import Waiter
    from gpuyard.scheduler.ledger import Ledger
    from gpuyard.scheduler.ordering import Terms
    from gpuyard.scheduler.reserve import Reserve


class Placed(msgspec.Struct, gc=False, eq=False):
    """One task that this cycle has given a place."""

    waiter: Waiter
    task: Task
    shape: Shape
    position: int
    waits: bool
    """True where the place is still being freed."""
    stays: bool = False
    """True where it is the very place the task had, and never leaves."""
    moves: bool = False
    """True where it is the new place of a task that this cycle takes off its old one."""
    withdrawn: bool = False
    """True where it was given and, before the cycle ended, taken back for somebody else."""
    shares: tuple[DeviceShare, ...] = ()
    amounts: Amounts = ()
    undo: Undo | None = None
    """How to take it off the books again."""


class Holding(msgspec.Struct, frozen=True, gc=False):
    """What one running task holds: where, which devices, and what that counts at its queue."""

    task: Task
    position: int
    shares: tuple[DeviceShare, ...]
    amounts: Amounts
    placed: Placed | None = None
    """Set where the task has not started yet: this same cycle gave it the place."""


class Evicted(msgspec.Struct, gc=False, eq=False):
    """One task that this cycle takes off its place."""

    job: Job
    leaf: int
    holding: Holding
    reason: Reason | None = None
    """Set when it is settled that it goes."""
    moved_to: Placed | None = None
    """Its new place, where it has one."""
    keeps_room: bool = False
    """Whether what it held is given to nobody else in this cycle: it goes for its rule, not for its GPUs."""

    @property
    def stays(self) -> bool:
        """Whether it got its old place back, while others of its job moved."""
        to = self.moved_to
        return to is not None and (to.position, to.shares) == (self.holding.position, self.holding.shares)


class Eviction:
    """Tasks that were taken off their places together, and how to take that back."""

    __slots__ = ("charges", "evicted", "undos")

    def __init__(self, evicted: list[Evicted]) -> None:
        self.evicted = evicted
        """In the order they are told."""
        self.undos: list[Undo] = []
        self.charges: dict[tuple[int, Amounts, bool], int] = {}
        """How often which queue is discharged of which amounts, of jobs that may not be preempted or may."""


class Kept(NamedTuple):
    """A task that was promised a place before and starts there now."""

    job: str
    task: str
    node: str
    shares: tuple[DeviceShare, ...]


class Left(NamedTuple):
    """Jobs of one line that found no place, and the first of them as it was tried."""

    waiter: Waiter
    line: Sequence[tuple[int, str]]
    """The line as it is kept elsewhere: age and id of each job. Those before `start` have been served."""
    start: int = 0

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple([id for _, id in self.line[self.start :]])


Everyone = Callable[[], list[Left]]
"""Who waits, worked out only where somebody asks."""


class Draft:
    """The working copy of one cycle."""

    def __init__(self, ledger: Ledger, policy: Policy) -> None:
        self.ledger = ledger
        self.policy = policy
        self.nodes = ledger.nodes.fork()
        self.queues = ledger.queues.fork()
        self.shapes = ledger.shapes
        self.domains = ledger.domains
        self.eligibility = ledger.eligibility
        self._gradient = _gradient(ledger, policy)
        self.fit = FitTable(self.nodes, self.eligibility, policy, self._gradient)
        self.company = Company(ledger.neighbours, ledger.levels, ledger.eligibility) if ledger.neighbours else None
        """Who is where, for rules between tasks; None where nobody has any."""
        self.wishes = Wishes(ledger.wished, ledger.levels, ledger.eligibility) if ledger.wished else None
        """The same for company that is only wished for."""
        self.total = ledger.total()
        self.shares = self.queues.shares(self.total, policy.usage_weight_milli)
        self.among: Bools | None = None
        """Where set, only these nodes are used, for as long as it is set."""
        self.terms: list[Terms] = []
        """How each queue is ranked: filled by the first step that asks."""
        self.gangs: dict[str, Gang] = {}
        """Where jobs stand that this cycle has served in part; the ledger's own view is not touched."""
        self.taken_back: list[Evict] = []
        """Promises of earlier cycles that cannot be kept."""
        self.withheld: dict[str, Reason] = {}
        """Jobs that had promises taken back, and why: what else they want is planned with that, in the next cycle."""
        self.kept: list[Kept] = []
        self.placed: list[Placed] = []
        self.log: list[Placed | Eviction] = []
        """Everything done, in order."""
        self.disturbed: set[str] = set()
        """Jobs that this cycle has evicted or moved something of, or that grew where others made room: it leaves them
        alone from then on."""
        self.beneficiaries: set[str] = set()
        """Jobs for whose sake others gave way."""
        self.left: list[Left] = []
        """Who still waits."""
        self.evictions: list[Evict] = []
        self.waiting: list[Waiting] = list(ledger.never_started)
        self.rearrange_steps_left = policy.rearrange_steps
        self.search_steps_left = policy.search_steps
        self.search_stops_at = 0
        """A search stops when no more steps than this are left: one job does not use up what others need."""
        self._plain = not self.queues.resources.by_model
        self._reasons: dict[tuple[Token, str], Reason] = {}
        self.reserved: Reserve | None = None
        """Starts that are kept for jobs that wait; None while nothing is kept."""

    def at_another_time(self, nodes: NodeBook, queues: QueueBook) -> Draft:
        """The same cluster with other things free: for asking what would fit, not for planning."""
        other = copy(self)
        other.__dict__.pop("fit_later", None)
        other.nodes, other.queues = nodes, queues
        other.placed, other.log, other.reserved = self.placed.copy(), [], None
        other.fit = FitTable(nodes, self.eligibility, self.policy, self._gradient)
        other.company, other.wishes = self.company and self.company.fork(), self.wishes and self.wishes.fork()
        return other

    def fits_beside(self, kept: KeptStates) -> tuple[FitTable, LaterFit]:
        """Where a shape fits beside what is kept: now, and once everything that is ending has ended."""
        of = self.nodes, self.eligibility, self.policy, self._gradient, kept
        return BesideFit(*of), BesideLaterFit(*of)

    @cached_property
    def fit_later(self) -> LaterFit:
        """Where a shape fits once everything that is ending has ended."""
        return LaterFit(self.nodes, self.eligibility, self.policy, self._gradient)

    def put(
        self,
        waiter: Waiter,
        task: Task,
        shape: Shape,
        position: int,
        waits: bool,
        way: DevicePlacement | None = None,
    ) -> Placed:
        """Give a task a place it fits on, and charge its queue. `way` may overrule how its devices are chosen."""
        placed = Placed(waiter, task, shape, position, waits)
        fit = self.fit_later if waits else self.fit
        placed.shares = fit.shares(shape, position, way or self.policy.device_placement)
        self.book(placed)
        return placed

    def book(self, placed: Placed) -> None:
        """Book a place whose devices are chosen."""
        request, position = placed.shape.request, placed.position
        take = self.nodes.promise if placed.waits else self.nodes.bind
        placed.undo = take(position, request, placed.shares)
        placed.amounts = self._amounts(placed)
        self.queues.charge(placed.waiter.leaf, placed.amounts, placed.waiter.firm)
        if placed.waiter.ruled and self.company is not None:
            self.company.come(placed.waiter.job, placed.task, position)
        if self.wishes is not None:
            self.wishes.come(placed.waiter.job, placed.task, position)
        self.placed.append(placed)
        self.log.append(placed)
        if self.reserved is not None:
            self.reserved.follow(placed)

    def evict(self, evicted: list[Evicted]) -> None:
        """Count on the places of running tasks being free later, and discharge their queues."""
        entry = Eviction(evicted)
        by_node: dict[int, list[Booked]] = {}
        for one in evicted:
            holding = one.holding
            by_node.setdefault(holding.position, []).append((holding.task.request, holding.shares))
            key = (one.leaf, holding.amounts, not one.job.preemptible)
            entry.charges[key] = entry.charges.get(key, 0) + 1
        entry.undos = [self.nodes.evict(position, tasks) for position, tasks in by_node.items()]
        for one in evicted:
            if one.keeps_room:
                holding = one.holding
                entry.undos.append(self.nodes.promise(holding.position, holding.task.request, holding.shares))
            placed = one.holding.placed
            if placed is not None and not placed.waits:
                # It had not started: its place is free at once.
                entry.undos.append(self.nodes.unbind(placed.position, placed.task.request, placed.shares))
        for (leaf, amounts, firm), times in entry.charges.items():
            self.queues.charge(leaf, amounts, firm, times=-times)
        self._part_with(evicted, 1)
        self.log.append(entry)
        if self.reserved is not None:
            self.reserved.follow(entry)

    def _part_with(self, evicted: list[Evicted], times: int) -> None:
        """Whoever runs is there until it has gone; what was only given or promised a place never came."""
        for presence in self._presences():
            for one in evicted:
                if one.holding.placed is None and one.holding.task.state is TaskState.RUNNING:
                    presence.leave(one.job, one.holding.task, one.holding.position, times)
                else:
                    presence.come(one.job, one.holding.task, one.holding.position, -times)

    def withdraw_promise(self, job: Job, task: Task) -> None:
        """Whoever was promised a place in an earlier cycle will not come."""
        if task.node in self.nodes.at:
            for presence in self._presences():
                presence.come(job, task, self.nodes.at[task.node], -1)

    def _presences(self) -> list[Presence]:
        """What is told of everyone who leaves."""
        return [presence for presence in (self.company, self.wishes) if presence is not None]

    @property
    def out_of_steps(self) -> bool:
        return self.search_steps_left <= self.search_stops_at

    def mark(self) -> int:
        return len(self.log)

    def rollback(self, mark: int) -> list[Placed]:
        """Take back everything done since the mark, and say what had been placed."""
        undone: list[Placed] = []
        log = self.log
        while len(log) > mark:
            entry = log.pop()
            if self.reserved is not None:
                self.reserved.undo()
            if isinstance(entry, Placed):
                assert entry.undo is not None
                self.nodes.undo(entry.undo)
                undone.append(self.placed.pop())
                if entry.waiter.ruled and self.company is not None:
                    self.company.come(entry.waiter.job, entry.task, entry.position, -1)
                if self.wishes is not None:
                    self.wishes.come(entry.waiter.job, entry.task, entry.position, -1)
                self.queues.charge(entry.waiter.leaf, entry.amounts, entry.waiter.firm, times=-1)
            else:
                self._undo_eviction(entry)
        undone.reverse()
        return undone

    def _undo_eviction(self, entry: Eviction) -> None:
        for undo in reversed(entry.undos):
            self.nodes.undo(undo)
        for (leaf, amounts, firm), times in entry.charges.items():
            self.queues.charge(leaf, amounts, firm, times=times)
        self._part_with(entry.evicted, -1)

    def evicted_since(self, mark: int) -> list[Evicted]:
        return [one for entry in self.log[mark:] if isinstance(entry, Eviction) for one in entry.evicted]

    def placed_since(self, mark: int) -> list[Placed]:
        return [entry for entry in self.log[mark:] if isinstance(entry, Placed)]

    def postpone(self, mark: int) -> None:
        """Turn everything placed since the mark into promises: a gang that cannot start now starts nothing now."""
        if all(placed.waits for placed in self.placed_since(mark)):
            return
        for placed in self.rollback(mark):
            placed.waits = True
            self.book(placed)

    def given(self, waiter: Waiter) -> dict[str, tuple[str, bool]]:
        """For each task of a waiter just placed: its node, and whether it waits for its place."""
        given: dict[str, tuple[str, bool]] = {}
        for placed in reversed(self.placed):
            if placed.waiter is waiter:
                given[placed.task.id] = (self.nodes.frames[placed.position].node.name, placed.waits)
                if len(given) == len(waiter.shapes):
                    break
        return given

    def tasks_given(self, job: str) -> frozenset[str]:
        """The tasks of a job that this cycle has given a place."""
        given = (placed for placed in self.placed if not placed.withdrawn)
        return frozenset(placed.task.id for placed in given if placed.waiter.job.id == job)

    def withdraw(self, placed: Placed) -> None:
        """A place this cycle gave goes to somebody else after all; its job waits again."""
        placed.withdrawn = True
        waiter = placed.waiter
        known = next((at for at, left in enumerate(self.left) if left.waiter.job.id == waiter.job.id), len(self.left))
        # What is above a minimum goes first; once the minimum goes, that is what the job waits for.
        if known == len(self.left) or waiter.rank < self.left[known].waiter.rank:
            self.left[known : known + 1] = [Left(waiter, (waiter.rank[2:],))]

    def leave_waiting(self, queue: str, jobs: Iterable[str], reasons: tuple[Reason, ...]) -> None:
        self.waiting.append(Waiting(queue, tuple(jobs), reasons))

    def finish(self) -> Plan:
        actions: list[Action] = [*self.taken_back]
        actions += [Bind(*kept, Reason(Token.PLACED, subject=kept.node)) for kept in self.kept]
        for entry in self.log:
            if isinstance(entry, Eviction):
                actions += [self._stop(one) for one in entry.evicted if one.holding.placed is None and not one.stays]
            elif not entry.moves and not entry.withdrawn:
                actions.append(self._start(entry))
        actions += self.evictions
        return Plan(tuple(actions), tuple(sorted(self.waiting, key=_place)))

    def _amounts(self, placed: Placed) -> Amounts:
        request = placed.shape.request
        if self._plain and not request.gpu_memory_mib:
            return placed.shape.asked
        return self.queues.resources.of_task(request, placed.shares, self.nodes.frames[placed.position].node)

    def _stop(self, evicted: Evicted) -> Action:
        job, task, source = evicted.job.id, evicted.holding.task.id, evicted.holding.task.node
        to = evicted.moved_to
        assert evicted.reason is not None
        if to is None:
            return Evict(job, task, source, evicted.reason)
        return Move(job, task, source, self.nodes.frames[to.position].node.name, to.shares, evicted.reason)

    def _start(self, placed: Placed) -> Action:
        node = self.nodes.frames[placed.position].node.name
        action, token = (Promise, Token.PLACE_FREEING) if placed.waits else (Bind, Token.PLACED)
        if not placed.waits and placed.waiter.rank[1]:
            token = Token.GREW
        reason = self._reasons.get((token, node))
        if reason is None:
            reason = self._reasons[token, node] = Reason(token, subject=node)
        return action(placed.waiter.job.id, placed.task.id, node, placed.shares, reason)


def _place(waiting: Waiting) -> tuple[str, str]:
    return waiting.queue, waiting.jobs[0] if waiting.jobs else ""


def _gradient(ledger: Ledger, policy: Policy) -> Gradient | None:
    if policy.node_placement is not NodePlacement.FRAGMENTATION_GRADIENT:
        return None
    return Gradient(policy.typical_tasks or typical_tasks(ledger.jobs.values()))
