"""A plan in the making: a forked ledger, what has been placed on it so far, and how to take it back.

Place in the flow: `cycle.plan` makes one, each step adds to it, `finish` turns it into a `Plan`.
Invariant: after every `put` and every `rollback` no device is booked beyond its capacity and every queue is charged
for exactly what its jobs hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpuyard.model.jobs import DeviceShare, Task
from gpuyard.model.plan import Action, Bind, Evict, Plan, Promise, Waiting
from gpuyard.model.reasons import Reason, Token
from gpuyard.policies.fragmentation import Gradient, typical_tasks
from gpuyard.policies.policy import DevicePlacement, NodePlacement, Policy
from gpuyard.scheduler.fit import FitTable
from gpuyard.scheduler.nodebook import Undo
from gpuyard.scheduler.resources import Amounts
from gpuyard.scheduler.shapes import Shape

if TYPE_CHECKING:
    from gpuyard.scheduler.jobbook import Waiter
    from gpuyard.scheduler.ledger import Ledger


class Placed:
    """One task that this cycle has given a place."""

    __slots__ = ("amounts", "position", "shape", "shares", "task", "undo", "waiter", "waits")

    def __init__(self, waiter: Waiter, task: Task, shape: Shape, position: int, waits: bool) -> None:
        self.waiter = waiter
        self.task = task
        self.shape = shape
        self.position = position
        self.waits = waits
        """True where the place is still being freed."""
        self.shares: tuple[DeviceShare, ...] = ()
        self.amounts: Amounts = ()
        self.undo: Undo


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
        self.fit = FitTable(self.nodes, self.eligibility, policy, _gradient(ledger, policy))
        self.total = ledger.total()
        self.shares = self.queues.shares(self.total, policy.usage_weight_milli)
        self.placed: list[Placed] = []
        self.evictions: list[Evict] = []
        self.waiting: list[Waiting] = list(ledger.never_started)
        self.rearrange_steps_left = policy.rearrange_steps
        self._plain = not self.queues.resources.by_model
        self._reasons: dict[tuple[Token, str], Reason] = {}

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
        placed.shares = self.fit.shares(shape, position, waits, way or self.policy.device_placement)
        self.book(placed)
        return placed

    def book(self, placed: Placed) -> None:
        """Book a place whose devices are chosen."""
        request, position = placed.shape.request, placed.position
        take = self.nodes.promise if placed.waits else self.nodes.bind
        placed.undo = take(position, request, placed.shares)
        placed.amounts = self._amounts(placed)
        self.queues.charge(placed.waiter.leaf, placed.amounts, placed.waiter.firm)
        self.placed.append(placed)

    def mark(self) -> int:
        return len(self.placed)

    def rollback(self, mark: int) -> list[Placed]:
        """Take back everything placed since the mark, and say what it was."""
        undone = self.placed[mark:]
        while len(self.placed) > mark:
            placed = self.placed.pop()
            self.nodes.undo(placed.undo)
            self.queues.charge(placed.waiter.leaf, placed.amounts, placed.waiter.firm, times=-1)
        return undone

    def postpone(self, mark: int) -> None:
        """Turn everything placed since the mark into promises: a gang that cannot start now starts nothing now."""
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
        return frozenset(placed.task.id for placed in self.placed if placed.waiter.job.id == job)

    def leave_waiting(self, queue: str, jobs: Iterable[str], reasons: tuple[Reason, ...]) -> None:
        self.waiting.append(Waiting(queue, tuple(jobs), reasons))

    def finish(self) -> Plan:
        actions = (*[self._action(placed) for placed in self.placed], *self.evictions)
        return Plan(actions, tuple(sorted(self.waiting, key=_place)))

    def _amounts(self, placed: Placed) -> Amounts:
        request = placed.shape.request
        if self._plain and not request.gpu_memory_mib:
            return placed.shape.asked
        return self.queues.resources.of_task(request, placed.shares, self.nodes.frames[placed.position].node)

    def _action(self, placed: Placed) -> Action:
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
