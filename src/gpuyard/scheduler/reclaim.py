"""Queues get back what they are owed from those who borrowed it.

Place in the flow: after allocate and consolidate. Who must give comes first: the queue most above what it is owed, its
numbers reckoned anew after every block; what it costs comes second. Invariant: a block is taken only while its queue,
and every queue above it up to where the two families part, holds more than it is owed before that block goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import sub
from typing import NamedTuple

from gpuyard.model.reasons import Reason, Token
from gpuyard.scheduler.blocks import Block, Blocks, in_yielding_order, same_rank
from gpuyard.scheduler.draft import Draft, Left
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.ordering import QueueKey, Terms, over_fair_share
from gpuyard.scheduler.resources import GPU_AT, Amounts
from gpuyard.scheduler.search import Search


class Level(NamedTuple):
    """One queue that must hold more than a bound, of something the job asks for, before it gives a block."""

    at: int
    bounds: tuple[tuple[int, int], ...]


class Giver(NamedTuple):
    """A leaf queue that may have to give: what must hold of it and its ancestors, and how long its jobs are safe."""

    leaf: int
    levels: tuple[Level, ...]
    min_runtime_ms: int


class Reclaim:
    """One run of the step."""

    by_right = True

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.blocks = Blocks(draft)
        frames = draft.queues.frames
        self.terms = [Terms(frame, draft.shares[frame.at], draft.total) for frame in frames]

    def attempt(self, waiter: Waiter, others: list[Left]) -> bool:
        """Place a job by taking back what its queue is owed."""
        if not self._within_fair_share(waiter):
            return False
        rules = ReclaimRules(self, waiter)
        return rules.could_be_enough() and Search(self.draft, waiter, rules, others).run()

    def _within_fair_share(self, waiter: Waiter) -> bool:
        held, fair = self.draft.queues.held[waiter.leaf], self.draft.shares[waiter.leaf]
        return all(held[at] + amount <= fair[at] for at, amount in enumerate(waiter.asked) if amount)


class ReclaimRules:
    """Whose blocks may go for one job of another queue."""

    must_move = False
    job_first = False

    def __init__(self, step: Reclaim, waiter: Waiter) -> None:
        self.step = step
        self.draft = step.draft
        self.waiter = waiter
        self.may_move = step.draft.policy.reclaim_moves
        self.asked = [at for at, amount in enumerate(waiter.asked) if amount]
        self.held = [tuple(amounts) for amounts in self.draft.queues.held]
        """As things stood before anyone gave way."""
        self.givers = {giver.leaf: giver for giver in self._givers()}
        self._told = Taken(self)

    # Who may have to give ----------------------------------------------------------------------------------------

    def _givers(self) -> Iterator[Giver]:
        for frame in self.draft.queues.frames:
            if frame.leaf and frame.at != self.waiter.leaf and self.draft.ledger.yielders[frame.at].jobs:
                giver = self._giver(frame.at)
                if all(self.holds_more(level, self.held[level.at]) for level in giver.levels):
                    yield giver

    def _giver(self, leaf: int) -> Giver:
        frames = self.draft.queues.frames
        mine = frames[self.waiter.leaf].path
        theirs = [at for at in frames[leaf].path if at not in mine]
        top = theirs[-1]
        taker = next(at for at in reversed(mine) if frames[at].parent == frames[top].parent)
        levels = [Level(at, self._bounds(frames[at].quota)) for at in theirs]
        if not self._stays_within_quota(taker):
            levels[-1] = Level(top, self._bounds(self.step.terms[top].allowance))
        return Giver(leaf, tuple(levels), self._min_runtime_ms(top))

    def _bounds(self, amounts: Sequence[int | None]) -> tuple[tuple[int, int], ...]:
        return tuple([(at, bound) for at in self.asked if (bound := amounts[at]) is not None])

    def _stays_within_quota(self, at: int) -> bool:
        quota = self.draft.queues.frames[at].quota
        return all(
            bound is None or self.held[at][position] + self.waiter.asked[position] <= bound
            for position, bound in enumerate(quota)
        )

    def _min_runtime_ms(self, at: int) -> int:
        """The nearest value from where the two families part upwards."""
        frames = self.draft.queues.frames
        while at >= 0:
            value = frames[at].queue.reclaim_min_runtime_ms
            if value is not None:
                return value
            at = frames[at].parent
        return 0

    def holds_more(self, level: Level, amounts: Sequence[int]) -> bool:
        return any(amounts[position] > bound for position, bound in level.bounds)

    def could_be_enough(self) -> bool:
        """Whether all that may be taken, at the very most, adds up to the GPUs that are missing."""
        need = self.waiter.at_least[GPU_AT]
        if not self.givers:
            return False
        if not need or any(shape.request.mig for shape in self.waiter.shapes):
            return True
        columns = self.draft.nodes.later_columns()
        columns.sync()
        free = int(columns.gpu_milli.clip(0).sum())
        return free + sum(map(self._most_milli, self.givers.values())) >= need

    def _most_milli(self, giver: Giver) -> int:
        """The most GPU milli a queue can come to lose: the last block goes while a little more than owed is left."""
        largest = self.draft.ledger.yielders[giver.leaf].largest_milli
        most = self.held[giver.leaf][GPU_AT]
        for level in giver.levels:
            if [position for position, _ in level.bounds] == [GPU_AT]:
                most = min(most, self.held[level.at][GPU_AT] - level.bounds[0][1] + largest - 1)
        return most

    # Who first ---------------------------------------------------------------------------------------------------

    def blocks(self) -> Iterator[Block]:
        """Queue by queue as each is most above what it should have, once those before are gone."""
        taken = Taken(self)
        heads = {leaf: self._blocks_of(giver) for leaf, giver in self.givers.items()}
        ready = {leaf: block for leaf, blocks in heads.items() if (block := next(blocks, None)) is not None}
        while len(ready) > 1:
            leaf = self._next_leaf(ready, taken)
            block = ready[leaf]
            following = next(heads[leaf], None)
            if following is None:
                del ready[leaf]
            else:
                ready[leaf] = following
            taken.take((block,))
            yield block
        for leaf, block in ready.items():
            yield block
            yield from heads[leaf]

    def _blocks_of(self, giver: Giver) -> Iterator[Block]:
        return in_yielding_order(self.draft, self.step.blocks, giver.leaf, giver.min_runtime_ms)

    def _next_leaf(self, ready: dict[int, Block], taken: Taken) -> int:
        """Down the tree, at every level the child most above what it should have."""
        frames = self.draft.queues.frames
        open_at = {at for leaf in ready for at in frames[leaf].path}
        here = max((at for at in open_at if frames[at].parent < 0), key=taken.key)
        while not frames[here].leaf:
            here = max((at for at in frames[here].children if at in open_at), key=taken.key)
        return here

    def alternatives(self, last: Block) -> Iterator[Block]:
        return same_rank(self._blocks_of(self.givers[last.leaf]), last)

    # What is allowed ---------------------------------------------------------------------------------------------

    def judge(self) -> Taken:
        return Taken(self)

    def in_order(self, chosen: Sequence[Block]) -> list[Block]:
        """Small before large: what exceeds what a queue is owed by little goes in little pieces while it can."""
        return sorted(chosen, key=_smallest_first)

    def allows(self, chosen: Sequence[Block]) -> bool:
        taken = Taken(self)
        if not taken.allows(chosen):
            return False
        taken.take(chosen)
        return self._fair_to_siblings(taken)

    def _fair_to_siblings(self, taken: Taken) -> bool:
        """Nobody climbs above the fair share at the cost of a sibling that is less above its own."""
        frames, fair = self.draft.queues.frames, self.draft.shares
        for at in frames[self.waiter.leaf].path:
            for position in self.asked:
                mine = taken.left(at)[position] + self.waiter.asked[position]
                if mine <= fair[at][position]:
                    continue
                for other in taken.amounts:
                    sibling = other != at and frames[other].parent == frames[at].parent
                    theirs = fair[other][position]
                    if sibling and theirs and mine * theirs >= taken.left(other)[position] * fair[at][position]:
                        return False
        return True

    def reason(self, block: Block, moved: bool) -> Reason:
        frame = self.draft.queues.frames[block.leaf]
        position = self.asked[0]
        before = self._told.left(block.leaf)[position]
        short = self._told.shortfall_of(block.leaf)
        self._told.take((block,))
        job, name = self.waiter.job.id, self.draft.queues.resources.names[position]
        if moved:
            return Reason(Token.MOVED, name, subject=frame.name, beneficiary=job)
        short = self._told.shortfall_of(block.leaf) - short
        owed = frame.quota[position] or 0
        return Reason(Token.RECLAIMED, name, before, owed, frame.name, beneficiary=job, shortfall=short)


class Taken:
    """What blocks counted off so far leave every queue."""

    def __init__(self, rules: ReclaimRules) -> None:
        self.rules = rules
        self.amounts: dict[int, list[int]] = {}
        """Per queue that gives something: what it still has."""
        self._keys: dict[int, QueueKey] = {}

    def left(self, at: int) -> Sequence[int]:
        return self.amounts.get(at) or self.rules.held[at]

    def take(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            for at in self.rules.draft.queues.frames[block.leaf].path:
                left = self.amounts.get(at)
                if left is None:
                    left = self.amounts[at] = list(self.rules.held[at])
                left[:] = map(sub, left, block.amounts)
                self._keys.pop(at, None)

    def allows(self, blocks: Sequence[Block]) -> bool:
        """Whether each may go once those before it are gone, the small ones first."""
        if len(blocks) == 1:
            return self._may_give(blocks[0], self.amounts)
        trial = {at: list(left) for at, left in self.amounts.items()}
        for block in sorted(blocks, key=_smallest_first):
            if not self._may_give(block, trial):
                return False
            for level in self.rules.givers[block.leaf].levels:
                trial[level.at] = list(map(sub, trial.get(level.at) or self.rules.held[level.at], block.amounts))
        return True

    def _may_give(self, block: Block, left: dict[int, list[int]]) -> bool:
        held = self.rules.held
        for at, bounds in self.rules.givers[block.leaf].levels:
            amounts = left.get(at) or held[at]
            for position, bound in bounds:
                if amounts[position] > bound:
                    break
            else:
                return False
        return True

    def shortfall(self) -> int:
        return sum(self.shortfall_of(at) for at in self.amounts if self.rules.draft.queues.frames[at].leaf)

    def shortfall_of(self, leaf: int) -> int:
        """How far below what it is owed a queue is, of the first thing the job asks for."""
        position = self.rules.asked[0]
        quota = self.rules.draft.queues.frames[leaf].quota[position]
        return max(0, (quota or 0) - max(0, self.left(leaf)[position]))

    def key(self, at: int) -> QueueKey:
        """Higher gives first: the reverse of the order in which queues are served."""
        known = self._keys.get(at)
        if known is None:
            known = self._keys[at] = self._key(at)
        return known

    def _key(self, at: int) -> QueueKey:
        held, terms = self.rules.held[at], self.rules.step.terms[at]
        owed = [*terms.owed, *(bound for _, _, bound in terms.further)]
        allowed = [*terms.allowed, *(bound for _, bound, _ in terms.further)]
        borrows = any(amount > bound for amount, bound in zip(held, owed, strict=True))
        uses_forbidden = any(held[position] for position in terms.forbidden)
        after = max(amount / bound for amount, bound in zip(self.left(at), allowed, strict=True))
        now = max(amount / bound for amount, bound in zip(held, allowed, strict=True))
        over = over_fair_share(list(held), self.rules.draft.shares[at])
        return over, borrows, terms.priority, uses_forbidden, after, now, terms.tie


def _smallest_first(block: Block) -> tuple[Amounts, int]:
    return block.amounts, block.index
