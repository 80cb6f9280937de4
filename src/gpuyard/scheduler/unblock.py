"""A rule of a job holds no place against jobs of other queues that are within their quota: its carrier gives way.

Place in the flow: after reclaim, for a job that fits nowhere even where all that was borrowed is taken back. Jobs whose
rules keep it away go first, then what others borrowed. How little a carrier holds, how young it is and what its own
queue is owed does not matter: what counts is its rule, and it starts again wherever that keeps nobody away. The whole
GPUs it held are not what the job gets, unless they were borrowed: without the rule, too, they were not to be had.
Invariants: only rules of the carrier stand between the two, never those of the job; and no job that was itself last
stopped for its rule makes others go in this way, so that jobs that keep each other away in a ring come to rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from gpuyard.model.jobs import Job, TaskState
from gpuyard.model.reasons import RULE, Reason, Token
from gpuyard.scheduler.blocks import Anyone, Block, Judge
from gpuyard.scheduler.draft import Draft, Everyone, Holding
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.reclaim import Reclaim, ReclaimRules
from gpuyard.scheduler.repelling import Repelling, has_yielded, is_within_quota, lacking_milli
from gpuyard.scheduler.search import Search

NODES_LOOKED_AT: Final = 128
"""Of the nodes that rules of others close, those that lack least, so many are considered; and one more per task."""


def anybody_is_kept_away(draft: Draft) -> bool:
    """Whether rules are about anybody who still waits: mostly there are none at all."""
    return draft.company is not None and any(any(left.waiter.kin) for left in draft.left)


class Unblock:
    """One run of the step."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self._reclaim = Reclaim(draft)

    def attempt(self, waiter: Waiter, everyone: Everyone) -> bool:
        """Place a job by stopping those whose rules keep it away."""
        if not any(waiter.kin) or has_yielded(waiter.job):
            return False
        repelling = Repelling(self.draft, waiter)
        if not repelling:
            return False
        for borrowers_as_such in (False, True):
            rules = UnblockRules(self._reclaim, waiter, repelling, borrowers_as_such)
            if rules.any_carrier() and Search(self.draft, waiter, rules, everyone).run():
                return True
        return False


class UnblockRules(ReclaimRules):
    """Carriers first, then the blocks of those who borrowed."""

    # The job is served first: else a carrier whose turn comes before it would take its place back, and keep it away.
    job_first = True

    def __init__(self, step: Reclaim, waiter: Waiter, repelling: Repelling, borrowers_as_such: bool) -> None:
        super().__init__(step, waiter)
        if not step.may_take(waiter):
            self.givers = {}
        self._repelling = repelling
        borrowers = frozenset(leaf for leaf, giver in self.givers.items() if self.has_borrowed(giver))
        self._by_the_order = borrowers if borrowers_as_such else frozenset()
        """Queues that leave whole GPUs of carriers to the job, as far as they have borrowed them."""
        self._known: dict[str, tuple[Block, ...]] = {}
        self._carriers: dict[int, Block] = {}
        """By identity."""
        for position in self._nodes():
            self._carriers |= {id(block): block for block in self._closing(position)}
        self._apart = {block.job.id for block in self._carriers.values() if block.leaf not in self._by_the_order}
        """Jobs that go for their rules alone."""

    def any_carrier(self) -> bool:
        """Whether any could go."""
        return bool(self._carriers)

    # Who ---------------------------------------------------------------------------------------------------------

    def _nodes(self) -> list[int]:
        """Closed nodes that the job could use otherwise: those that lack least first, of equals the least closed."""
        closed, lacking = self._repelling.closed(), lacking_milli(self.draft, self.waiter)
        usable = np.logical_or.reduce([self.draft.eligibility.nodes(s.request.where) for s in self.waiter.shapes])
        positions = np.flatnonzero(closed & usable)
        nearest = positions[np.argsort(lacking[positions], kind="stable")].tolist()
        nearest = nearest[: NODES_LOOKED_AT + len(self.waiter.shapes)]
        return sorted(nearest, key=lambda at: (int(lacking[at]), len(self._repelling.closing(at)), at))

    def _closing(self, position: int) -> list[Block]:
        """What must go for a node to be open; nothing where one of those cannot go."""
        found: dict[int, Block] = {}
        for job, task in self._repelling.closing(position):
            leaf = self.draft.queues.leaf_at(job.queue)
            if leaf < 0 or not job.may_stop or not is_within_quota(self.draft, self.waiter, leaf):
                return []
            blocks = self._all_of(job, leaf)
            last = next((at for at, block in enumerate(blocks) if _holds(block, task.id)), -1)
            if last < 0:
                return []
            found |= {id(block): block for block in blocks[: last + 1]}
        return [block for block in found.values() if not self._goes_in_order(block)]

    def _goes_in_order(self, block: Block) -> bool:
        return block.leaf in self._by_the_order and any(one.task.request.whole for one in block.holdings)

    def _all_of(self, job: Job, leaf: int) -> tuple[Block, ...]:
        """All blocks of a carrier, in the order they go."""
        if job.id not in self._known:
            made = self.step.blocks
            if any(task.state is TaskState.RUNNING for task in job.tasks) or job.id in made.unstarted:
                blocks = made.of(made.as_placed(job.id) if job.id in made.unstarted else job, leaf)
            else:
                blocks = () if job.id in self.draft.disturbed else promised_block(self.draft, job, leaf)
            self._known[job.id] = blocks if leaf in self._by_the_order else _keeping_room(blocks)
        return self._known[job.id]

    def blocks(self) -> Iterator[Block]:
        yield from self._carriers.values()
        for block in super().blocks():
            if id(block) not in self._carriers and block.job.id not in self._apart:
                yield block

    def closes(self, block: Block) -> Collection[int]:
        if id(block) not in self._carriers:
            return ()
        return self._repelling.nodes_of(block.job.id, {holding.task.id for holding in block.holdings})

    def alternatives(self, last: Block) -> Iterator[Block]:
        return iter(())

    # What is allowed ---------------------------------------------------------------------------------------------

    def judge(self, counted: Sequence[Block]) -> Judge:
        if not self.givers:
            return Anyone()
        return _ButCarriers(super().judge(self._others(counted)), self._others)

    def _others(self, blocks: Iterable[Block]) -> list[Block]:
        return [block for block in blocks if id(block) not in self._carriers]

    def in_order(self, chosen: Sequence[Block]) -> list[Block]:
        carriers = [block for block in chosen if id(block) in self._carriers]
        return [*carriers, *super().in_order(self._others(chosen))]

    def allows(self, chosen: Sequence[Block], moved: set[int]) -> bool:
        others = self._others(chosen)
        return not others or super().allows(others, moved)

    def reason(self, block: Block, moved: bool) -> Reason:
        if id(block) not in self._carriers:
            return super().reason(block, moved)
        name = self.draft.queues.frames[block.leaf].name
        return Reason(Token.MOVED if moved else Token.RECLAIMED, RULE, subject=name, beneficiary=self.waiter.job.id)


class _ButCarriers:
    """A judge that leaves carriers out of account: they may always go."""

    def __init__(self, judge: Judge, others: Callable[[Iterable[Block]], list[Block]]) -> None:
        self._judge = judge
        self._others = others

    def allows(self, blocks: Sequence[Block]) -> bool:
        others = self._others(blocks)
        return not others or self._judge.allows(others)

    def take(self, blocks: Sequence[Block]) -> None:
        self._judge.take(self._others(blocks))

    def shortfall(self, more: Sequence[Block] = ()) -> int:
        return self._judge.shortfall(self._others(more))


def promised_block(draft: Draft, job: Job, leaf: int) -> tuple[Block, ...]:
    """What a job was promised in earlier cycles and has not started, as one block: it loses no work."""
    holdings: list[Holding] = []
    if any(kept.job == job.id for kept in draft.kept):
        # It starts in this very cycle, and can be stopped in the next.
        return ()
    for task in job.tasks:
        if task.state is not TaskState.PROMISED:
            continue
        if draft.nodes.is_broken(job, task):
            return ()
        position = draft.nodes.at[task.node]
        amounts = draft.ledger.amounts(task, draft.shapes.of(task.request), position)
        holdings.append(Holding(task, position, draft.nodes.held(job, task), amounts))
    return (Block(job, leaf, tuple(holdings), 0, surplus=False),) if holdings else ()


def _keeping_room(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """The same blocks, whose whole GPUs nobody gets."""
    copies: dict[int, Block] = {}
    for block in blocks:
        before = tuple([copies[id(one)] for one in block.before])
        copies[id(block)] = replace(block, before=before, keeps_room=True)
    return tuple(copies.values())


def _holds(block: Block, task: str) -> bool:
    return any(holding.task.id == task for holding in block.holdings)
