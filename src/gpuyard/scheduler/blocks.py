"""Blocks: what a running job gives up at a time, with what that frees and what it costs.

A block is one surplus task of an elastic job, else the whole gang. Its cost is the work lost since the last
checkpoint and by starting again; of equal costs the fewer jobs.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from heapq import merge
from itertools import chain, groupby
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from gpuyard.model.jobs import Job, Task, TaskState
from gpuyard.scheduler.draft import Draft, Evicted, Holding, Placed
from gpuyard.scheduler.gang import Yielding
from gpuyard.scheduler.resources import GPU_AT, Amounts, plus, times
from gpuyard.scheduler.yielding import StayKey, losing_since_ms, started_at_ms, stay_key

PER_JOB: Final = 1
WORK: Final = 1_000_000
"""Costs are work first and number of jobs second: one unit of work outweighs a million jobs."""


class Block(msgspec.Struct, gc=False, eq=False):
    """Something that can give way as a unit."""

    job: Job
    leaf: int
    holdings: tuple[Holding, ...]
    lost_ms: int
    """How long each of its tasks has worked for nothing if it goes."""
    surplus: bool
    """Above the minimum of its job, which runs on without it."""
    before: tuple[Block, ...] = ()
    """What its job gives up before it."""
    keeps_room: bool = False
    """Whether nobody is to have what its whole GPUs were."""
    index: int = -1
    """Its place in the order in which blocks must give way."""
    amounts: Amounts = ()
    cost: int = 0
    _stay: StayKey | None = None

    def __post_init__(self) -> None:
        holdings = self.holdings
        amounts = holdings[0].amounts
        if len(holdings) > 1:
            first = amounts
            if all(holding.amounts is first for holding in holdings):
                amounts = times(first, len(holdings))
            else:
                for holding in holdings[1:]:
                    amounts = plus(amounts, holding.amounts)
        self.amounts = amounts
        # Tasks without a GPU weigh a little, too: of two otherwise equal ones the one that has run for less goes.
        self.cost = (amounts[GPU_AT] + 1) * self.lost_ms * WORK + PER_JOB

    def evicted(self) -> list[Evicted]:
        return [
            Evicted(self.job, self.leaf, holding, keeps_room=self.keeps_room and holding.task.request.whole)
            for holding in self.holdings
        ]

    def stay(self) -> StayKey:
        """How long its job should stay."""
        if self._stay is None:
            self._stay = stay_key(self.job)
        return self._stay


class Blocks:
    """The blocks of running jobs, made when first asked for."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._made: dict[str, tuple[Block, ...]] = {}

    @cached_property
    def unstarted(self) -> dict[str, dict[str, Placed]]:
        """Per job that may be preempted: tasks this cycle has given places, and that nobody gave way for."""
        found: dict[str, dict[str, Placed]] = {}
        beneficiaries = self._draft.beneficiaries
        for placed in self._draft.placed:
            job = placed.waiter.job
            if job.may_stop and not placed.moves and not placed.withdrawn and job.id not in beneficiaries:
                found.setdefault(job.id, {})[placed.task.id] = placed
        return found

    @cached_property
    def _unstarted_in(self) -> set[str]:
        return {self._draft.ledger.jobs[id].queue for id in self.unstarted}

    def any_in(self, leaf: int) -> bool:
        """Whether anything of a queue could give way."""
        return bool(self._draft.ledger.yielders[leaf].jobs) or self.any_unstarted_in(leaf)

    def any_unstarted_in(self, leaf: int) -> bool:
        return self._draft.queues.frames[leaf].name in self._unstarted_in

    def as_placed(self, id: str) -> Job:
        """A job as if what this cycle has given it ran already."""
        job, placed = self._draft.ledger.jobs[id], self.unstarted[id]
        now_ms, frames = self._draft.ledger.now_ms, self._draft.nodes.frames
        tasks = [
            replace(task, state=TaskState.RUNNING, node=frames[one.position].node.name, started_at_ms=now_ms)
            if (one := placed.get(task.id))
            else task
            for task in job.tasks
        ]
        return replace(job, tasks=tuple(tasks))

    def of(self, job: Job, leaf: int) -> tuple[Block, ...]:
        """In the order they go. Nothing where the job was already disturbed in this cycle, or cannot free anything."""
        known = self._made.get(job.id)
        if known is None:
            whole = len(job.tasks) == 1 or (job.group.leaf and len(job.tasks) == job.group.min_tasks)
            whole = whole and job.id not in self.unstarted and all(map(_runs, job.tasks))
            known = self._made[job.id] = self._whole(job, leaf) if whole else tuple(self._make(job, leaf))
        return () if job.id in self._draft.disturbed else known

    def _whole(self, job: Job, leaf: int) -> tuple[Block, ...]:
        """A job that goes whole or not at all: most are."""
        holdings = self._holdings(job, job.tasks)
        return () if holdings is None else (Block(job, leaf, holdings, self._lost_ms(job), surplus=False),)

    def _make(self, job: Job, leaf: int) -> Iterator[Block]:
        before: tuple[Block, ...] = ()
        left = sum(task.state is TaskState.RUNNING for task in job.tasks)
        for tasks in Yielding(job).blocks():
            holdings = self._holdings(job, tasks)
            if holdings is None:
                return
            left -= len(tasks)
            unstarted = all(holding.placed for holding in holdings)
            block = Block(job, leaf, holdings, 0 if unstarted else self._lost_ms(job), surplus=left > 0)
            block.before = before
            before = (*before, block)
            yield block

    def _holdings(self, job: Job, tasks: Sequence[Task]) -> tuple[Holding, ...] | None:
        """What tasks hold; None where stopping one of them frees nothing that can be counted on."""
        nodes, ledger, shape_of = self._draft.nodes, self._draft.ledger, self._draft.shapes.of
        at, sound, unstarted = nodes.at, nodes.sound, self.unstarted.get(job.id, {})
        found: list[Holding] = []
        for task in tasks:
            placed = unstarted.get(task.id) if unstarted else None
            if placed is not None:
                found.append(Holding(placed.task, placed.position, placed.shares, placed.amounts, placed))
                continue
            position = at.get(task.node, -1)
            if position < 0 or not sound(position):
                return None
            amounts = ledger.amounts(task, shape_of(task.request), position)
            found.append(Holding(task, position, task.shares or nodes.held(job, task), amounts))
        return tuple(found)

    def _lost_ms(self, job: Job) -> int:
        return max(0, self._draft.ledger.now_ms - losing_since_ms(job))


def _runs(task: Task) -> bool:
    return task.state is TaskState.RUNNING


def in_yielding_order(draft: Draft, made: Blocks, leaf: int, min_runtime_ms: int) -> Iterator[Block]:
    """The blocks of a queue's jobs in the order they go: low priority first, what is above a minimum before the rest.

    A job that has run for less than the minimum run time gives only what it has above its minimum.
    """
    order, jobs = _with_unstarted(draft, made, leaf)
    safe_after_ms = draft.ledger.now_ms - min_runtime_ms
    for _, keys in groupby(reversed(order), key=lambda key: key[0]):
        entries = ((key, block) for key in keys for block in made.of(jobs[key[4]], leaf))
        for block in _surplus_first(entries):
            if block.surplus or not min_runtime_ms or started_at_ms(block.job) <= safe_after_ms:
                yield block


def _with_unstarted(draft: Draft, made: Blocks, leaf: int) -> tuple[Sequence[StayKey], Mapping[str, Job]]:
    """The order of a queue's jobs, with those that this cycle has only just given a place; they stay shortest."""
    yielders = draft.ledger.yielders[leaf]
    name = draft.queues.frames[leaf].name
    new = {id: made.as_placed(id) for id in made.unstarted if draft.ledger.jobs[id].queue == name}
    if not new:
        return yielders.order(), yielders.jobs
    started = [key for key in yielders.order() if key[4] not in new]
    return sorted([*started, *map(stay_key, new.values())]), ChainMap(new, yielders.jobs)


def _surplus_first(entries: Iterator[tuple[StayKey, Block]]) -> Iterator[Block]:
    """What is above a minimum as it comes; then the rest of those jobs, in their place among all others.

    Jobs that are above their minimum come before those that are not.
    """
    rests: list[tuple[StayKey, Block]] = []
    for key, block in entries:
        if not key[1]:
            entries = chain(((key, block),), entries)
            break
        if block.surplus:
            yield block
        else:
            rests.append((key, block))
    yield from (block for _, block in (merge(rests, entries, key=_age, reverse=True) if rests else entries))


def _age(entry: tuple[StayKey, Block]) -> tuple[int, int, str]:
    return entry[0][2:]


def same_rank(blocks: Iterator[Block], last: Block) -> Iterator[Block]:
    """The blocks after `last` that are of its queue and job priority."""
    reached = False
    for block in blocks:
        if reached:
            if block.leaf == last.leaf and block.job.priority != last.job.priority:
                return
            yield block
        reached = reached or block is last


def closure(blocks: Sequence[Block]) -> list[Block]:
    """The blocks and what their jobs give up before them, each once."""
    if not any(block.before for block in blocks):
        return list(blocks)
    found: dict[int, Block] = {}
    for block in blocks:
        for one in (*block.before, block):
            found[id(one)] = one
    return list(found.values())


def by_index(blocks: Sequence[Block]) -> list[Block]:
    """In the order in which they must give way."""
    return sorted(blocks, key=lambda block: block.index)


class Judge(Protocol):
    """Keeps count of a set of blocks as it grows."""

    def allows(self, blocks: Sequence[Block]) -> bool:
        """Whether these may go on top of those taken so far."""
        ...

    def take(self, blocks: Sequence[Block]) -> None: ...

    def shortfall(self, more: Sequence[Block] = ()) -> int:
        """How far those taken, and some more, bring queues below what they are owed."""
        ...


class Anyone:
    """The judge where every set of blocks is allowed."""

    def allows(self, blocks: Sequence[Block]) -> bool:
        return True

    def take(self, blocks: Sequence[Block]) -> None:
        pass

    def shortfall(self, more: Sequence[Block] = ()) -> int:
        return 0


class InTurn:
    """Lets no rank (a queue, a priority in it, surplus or not) give more than the order has counted off from it.

    A cheaper block may stand in for one of its own rank; it does not stand in for one who must give before it.
    """

    def __init__(self, judge: Judge, counted: Sequence[Block]) -> None:
        self._judge = judge
        self._left = _by_rank(counted)

    def allows(self, blocks: Sequence[Block]) -> bool:
        left = self._left
        for rank, size in _by_rank(blocks).items():
            if left.get(rank, 0) < size:
                return False
        return self._judge.allows(blocks)

    def take(self, blocks: Sequence[Block]) -> None:
        for rank, size in _by_rank(blocks).items():
            self._left[rank] -= size
        self._judge.take(blocks)

    def shortfall(self, more: Sequence[Block] = ()) -> int:
        return self._judge.shortfall(more)


def _by_rank(blocks: Sequence[Block]) -> dict[tuple[int, int, bool], int]:
    sizes: dict[tuple[int, int, bool], int] = {}
    for block in blocks:
        rank = (block.leaf, block.job.priority, block.surplus)
        sizes[rank] = sizes.get(rank, 0) + (block.amounts[GPU_AT] or 1)
    return sizes


class FallingShort:
    """Lets queues come below what they are owed by so much together, and no further."""

    def __init__(self, judge: Judge, most: int) -> None:
        self._judge = judge
        self._most = most

    def allows(self, blocks: Sequence[Block]) -> bool:
        return self._judge.allows(blocks) and self._judge.shortfall(blocks) <= self._most

    def take(self, blocks: Sequence[Block]) -> None:
        self._judge.take(blocks)

    def shortfall(self, more: Sequence[Block] = ()) -> int:
        return self._judge.shortfall(more)
