"""Blocks: what a running job gives up at a time, with what that frees and what it costs.

A block is one surplus task of an elastic job, else the whole gang. Its cost is the work lost since the last
checkpoint and by starting again; of equal costs the fewer jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuyard.model.jobs import Job, Task, TaskState
from gpuyard.scheduler.draft import Draft, Evicted, Holding
from gpuyard.scheduler.gang import Yielding
from gpuyard.scheduler.resources import GPU_AT, Amounts, plus
from gpuyard.scheduler.yielding import losing_since_ms

PER_JOB: Final = 1
WORK: Final = 1_000_000
"""Costs are work first and number of jobs second: one unit of work outweighs a million jobs."""


class Block:
    """Something that can give way as a unit."""

    __slots__ = ("amounts", "cost", "holdings", "index", "job", "leaf", "surplus")

    def __init__(self, job: Job, leaf: int, holdings: tuple[Holding, ...], cost: int, surplus: bool) -> None:
        self.job = job
        self.leaf = leaf
        self.holdings = holdings
        self.cost = cost
        self.surplus = surplus
        """Above the minimum of its job, which runs on without it."""
        self.index = -1
        """Its place in the order in which blocks must give way."""
        amounts: Amounts = holdings[0].amounts
        for holding in holdings[1:]:
            amounts = plus(amounts, holding.amounts)
        self.amounts = amounts

    def evicted(self) -> Iterator[Evicted]:
        return (Evicted(self.job, self.leaf, holding) for holding in self.holdings)


class Blocks:
    """The blocks of running jobs, made when first asked for."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._made: dict[str, tuple[Block, ...]] = {}

    def of(self, job: Job, leaf: int) -> tuple[Block, ...]:
        """In the order they go. Nothing where the job was already disturbed in this cycle, or cannot free anything."""
        known = self._made.get(job.id)
        if known is None:
            known = self._made[job.id] = tuple(self._make(job, leaf))
        return () if job.id in self._draft.disturbed else known

    def _make(self, job: Job, leaf: int) -> Iterator[Block]:
        if len(job.tasks) == 1:
            holding = self._holding(job, job.tasks[0])
            if holding is not None:
                yield Block(job, leaf, (holding,), self._cost(job, (holding,)), surplus=False)
            return
        left = sum(task.state is TaskState.RUNNING for task in job.tasks)
        for tasks in Yielding(job).blocks():
            found = [self._holding(job, task) for task in tasks]
            holdings = tuple([holding for holding in found if holding is not None])
            if len(holdings) < len(tasks):
                return
            left -= len(tasks)
            yield Block(job, leaf, holdings, self._cost(job, holdings), surplus=left > 0)

    def _holding(self, job: Job, task: Task) -> Holding | None:
        """None where stopping the task frees nothing that can be counted on."""
        draft = self._draft
        position = draft.nodes.at.get(task.node, -1)
        if position < 0 or not draft.nodes.sound(position):
            return None
        amounts = draft.ledger.amounts(task, draft.shapes.of(task.request), position)
        return Holding(task, position, draft.nodes.held(job, task), amounts)

    def _cost(self, job: Job, holdings: tuple[Holding, ...]) -> int:
        lost_ms = max(0, self._draft.ledger.now_ms - losing_since_ms(job))
        # Tasks without a GPU weigh a little, too: of two otherwise equal ones the one that has run for less goes.
        weight = sum(holding.amounts[GPU_AT] for holding in holdings) + 1
        return weight * lost_ms * WORK + PER_JOB
