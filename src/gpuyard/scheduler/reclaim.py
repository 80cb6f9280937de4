"""Queues get back what they are owed from those who borrowed it.

Place in the flow: after allocate and consolidate. Who must give comes first: the queue most above what it is owed, its
numbers reckoned anew after every block; what it costs comes second. Invariant: a block is taken only while its queue,
and every queue above it up to where the two families part, holds more than it is owed before that block goes.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from operator import sub as minus
from typing import NamedTuple

from gpuyard.model.reasons import Reason, Token
from gpuyard.scheduler.blocks import Block, Blocks, InTurn, Judge, in_yielding_order, same_rank
from gpuyard.scheduler.draft import Draft, Everyone
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.ordering import QueueKey, over_fair_share, terms_of
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
    may_be_shuffled: bool
    """Whether its jobs may be moved, though not stopped, while it holds just what it is owed: the job's own queue
    stays within its quota."""


class Reclaim:
    """One run of the step."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.blocks = Blocks(draft)
        self.terms = terms_of(draft)

    def attempt(self, waiter: Waiter, everyone: Everyone) -> bool:
        """Place a job by taking back what its queue is owed."""
        # A job that asks for nothing is owed nothing of what others hold, also where it finds no place.
        if not any(waiter.asked) or not self.within_fair_share(waiter):
            return False
        rules = ReclaimRules(self, waiter)
        return rules.could_be_enough() and Search(self.draft, waiter, rules, everyone).run()

    def within_fair_share(self, waiter: Waiter) -> bool:
        """Whether its queue would hold no more than its fair share with it: else nobody gives anything back."""
        held, fair = self.draft.queues.held[waiter.leaf], self.draft.shares[waiter.leaf]
        return all(held[at] + amount <= fair[at] for at, amount in enumerate(waiter.asked) if amount)


class ReclaimRules:
    """Whose blocks may go for one job of another queue."""

    ranked = True
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
        models = set(self.draft.queues.resources.by_model.values()) if self.asked[:1] == [GPU_AT] else set()
        self._told_of = [at for at in self.asked if at == self.asked[0] or at in models]
        """What a reason may be about: the first thing the job asks for, or single models of it."""
        self._told: dict[int, Amounts] = {}
        """Per queue: what it has left after the blocks told so far. One that moves takes nothing away."""

    # Who may have to give ----------------------------------------------------------------------------------------

    def _givers(self) -> Iterator[Giver]:
        for frame in self.draft.queues.frames:
            if frame.leaf and frame.at != self.waiter.leaf and self.step.blocks.any_in(frame.at):
                giver = self._giver(frame.at)
                over = all(self.holds_more(level, self.held[level.at]) for level in giver.levels)
                if over or (self.may_move and self.may_shuffle(giver, self.held)):
                    yield giver

    def _giver(self, leaf: int) -> Giver:
        frames = self.draft.queues.frames
        mine = frames[self.waiter.leaf].path
        theirs = [at for at in frames[leaf].path if at not in mine]
        top = theirs[-1]
        taker = next(at for at in reversed(mine) if frames[at].parent == frames[top].parent)
        levels = [Level(at, self._bounds(frames[at].quota)) for at in theirs]
        within_quota = self._stays_within_quota(taker)
        if not within_quota:
            levels[-1] = Level(top, self._bounds(self.step.terms[top].allowance))
        # From where the two families part upwards.
        min_runtime_ms = self.draft.queues.nearest(top, attrgetter("reclaim_min_runtime_ms"))
        return Giver(leaf, tuple(levels), min_runtime_ms, within_quota)

    def _bounds(self, amounts: Sequence[int | None]) -> tuple[tuple[int, int], ...]:
        return tuple([(at, bound) for at in self.asked if (bound := amounts[at]) is not None])

    def _stays_within_quota(self, at: int) -> bool:
        quota = self.draft.queues.frames[at].quota
        return all(
            bound is None or self.held[at][position] + self.waiter.asked[position] <= bound
            for position, bound in enumerate(quota)
        )

    def holds_more(self, level: Level, amounts: Sequence[int]) -> bool:
        return any(amounts[position] > bound for position, bound in level.bounds)

    def may_shuffle(self, giver: Giver, left: Mapping[int, Sequence[int]] | Sequence[Sequence[int]]) -> bool:
        """Whether nobody on the giver's side holds less than it is owed: an over-fed queue moves no under-fed one."""
        return giver.may_be_shuffled and all(
            left[level.at][position] >= bound for level in giver.levels for position, bound in level.bounds
        )

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
        most = self.held[giver.leaf][GPU_AT]
        largest = self.draft.ledger.yielders[giver.leaf].largest_milli
        if self.step.blocks.any_unstarted_in(giver.leaf):
            largest = most
        for level in giver.levels:
            if [position for position, _ in level.bounds] == [GPU_AT]:
                over = self.held[level.at][GPU_AT] - level.bounds[0][1]
                most = min(most, over + largest - 1 if over > 0 else 0)
        return most

    # Who first ---------------------------------------------------------------------------------------------------

    def blocks(self) -> Iterator[Block]:
        """Queue by queue as each is most above what it should have, once those before are gone."""
        taken = Taken(self)
        heads = {leaf: self.blocks_of(giver) for leaf, giver in self.givers.items()}
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

    def blocks_of(self, giver: Giver) -> Iterator[Block]:
        """What one queue gives, in its order."""
        return in_yielding_order(self.draft, self.step.blocks, giver.leaf, giver.min_runtime_ms)

    def _next_leaf(self, ready: dict[int, Block], taken: Taken) -> int:
        """Down the tree, at every level the child most above what it should have; of equals the one that loses less."""
        frames = self.draft.queues.frames
        lost_ms: dict[int, int] = {}
        for leaf, block in ready.items():
            for at in frames[leaf].path:
                lost_ms[at] = min(block.lost_ms, lost_ms.get(at, block.lost_ms))

        def rank(at: int) -> tuple[QueueKey, int, object]:
            *above, tie = taken.key(at)
            return tuple(above), -lost_ms[at], tie

        here = max((at for at in lost_ms if frames[at].parent < 0), key=rank)
        while not frames[here].leaf:
            here = max((at for at in frames[here].children if at in lost_ms), key=rank)
        return here

    def alternatives(self, last: Block) -> Iterator[Block]:
        return same_rank(self.blocks_of(self.givers[last.leaf]), last)

    # What is allowed ---------------------------------------------------------------------------------------------

    def judge(self, counted: Sequence[Block]) -> Judge:
        return InTurn(Taken(self), counted)

    def in_order(self, chosen: Sequence[Block]) -> list[Block]:
        """Small before large: what exceeds what a queue is owed by little goes in little pieces while it can."""
        return sorted(chosen, key=_smallest_first)

    def allows(self, chosen: Sequence[Block], moved: set[int]) -> bool:
        taken = Taken(self)
        if not taken.loses(chosen):
            return bool(moved) and self._allows_moves(chosen, moved)
        taken.take([block for block in chosen if id(block) not in moved] if moved else chosen)
        return self._fair_to_siblings(taken)

    def _allows_moves(self, chosen: Sequence[Block], moved: set[int]) -> bool:
        """Whether those that are stopped may be lost, and the others be moved once these are gone."""
        taken = Taken(self)
        stopped = [block for block in chosen if id(block) not in moved]
        if stopped and not taken.loses(stopped):
            return False
        taken.take(stopped)
        return self._fair_to_siblings(taken) and all(taken.allows((block,)) for block in chosen if id(block) in moved)

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
        frame, job = self.draft.queues.frames[block.leaf], self.waiter.job.id
        before = self._told.get(block.leaf, self.held[block.leaf])
        position = self._exceeded(frame.quota, before)
        name = self.draft.queues.resources.names[position]
        if moved:
            return Reason(Token.MOVED, name, subject=frame.name, beneficiary=job)
        after = self._told[block.leaf] = tuple(map(minus, before, block.amounts))
        first = self.asked[0]
        owed, owed_first = frame.quota[position] or 0, frame.quota[first] or 0
        short = max(0, owed_first - after[first]) - max(0, owed_first - before[first])
        return Reason(Token.RECLAIMED, name, before[position], owed, frame.name, beneficiary=job, shortfall=short)

    def _exceeded(self, quota: Sequence[int | None], held: Amounts) -> int:
        """Of what a queue holds more than it is owed: GPUs, or else one model of them."""
        for at in self._told_of:
            owed = quota[at]
            if owed is not None and held[at] > owed:
                return at
        return self.asked[0]


class Taken:
    """What blocks counted off so far leave every queue."""

    def __init__(self, rules: ReclaimRules) -> None:
        self.rules = rules
        self.amounts: dict[int, Sequence[int]] = {}
        """Per queue that gives something: what it still has."""
        self._held: dict[int, Sequence[int]] = dict(enumerate(rules.held))
        self._keys: dict[int, QueueKey] = {}

    def left(self, at: int) -> Sequence[int]:
        return self.amounts.get(at) or self.rules.held[at]

    def take(self, blocks: Sequence[Block]) -> None:
        by_leaf: dict[int, list[Amounts]] = {}
        for block in blocks:
            by_leaf.setdefault(block.leaf, []).append(block.amounts)
        for leaf, amounts in by_leaf.items():
            total = amounts[0] if len(amounts) == 1 else list(map(sum, zip(*amounts, strict=True)))
            for at in self.rules.draft.queues.frames[leaf].path:
                self.amounts[at] = list(map(minus, self.left(at), total))
                self._keys.pop(at, None)

    def loses(self, blocks: Sequence[Block]) -> bool:
        """Whether each may be lost once those before it are gone, the small ones first."""
        return self._plenty(blocks) or self._one_by_one(blocks, shuffled=False)

    def allows(self, blocks: Sequence[Block]) -> bool:
        """The same, where those that may not be lost may yet be moved: whether they are turns out later."""
        return self._plenty(blocks) or self._one_by_one(blocks, shuffled=self.rules.may_move)

    def _one_by_one(self, blocks: Sequence[Block], shuffled: bool) -> bool:
        left = ChainMap[int, Sequence[int]]({}, self.amounts, self._held)
        for block in sorted(blocks, key=_smallest_first):
            giver = self.rules.givers[block.leaf]
            if self._may_give(giver, left):
                for level in giver.levels:
                    left[level.at] = list(map(minus, left[level.at], block.amounts))
            elif not shuffled or not block.job.movable or not self.rules.may_shuffle(giver, left):
                return False
        return True

    def _plenty(self, blocks: Sequence[Block]) -> bool:
        """Whether blocks of one queue leave it and those above it with what they are owed: then any order will do."""
        leaf = blocks[0].leaf
        if any(block.leaf != leaf for block in blocks):
            return False
        for at, bounds in self.rules.givers[leaf].levels:
            left = self.left(at)
            for position, bound in bounds:
                amounts = [block.amounts[position] for block in blocks]
                if left[position] - sum(amounts) >= bound and min(amounts) > 0:
                    break
            else:
                return False
        return True

    def _may_give(self, giver: Giver, left: Mapping[int, Sequence[int]]) -> bool:
        return all(self.rules.holds_more(level, left[level.at]) for level in giver.levels)

    def shortfall(self, more: Sequence[Block] = ()) -> int:
        position, further = self.rules.asked[0], Counter[int]()
        for block in more:
            further[block.leaf] += block.amounts[position]
        leaves = {at for at in self.amounts if self.rules.draft.queues.frames[at].leaf} | further.keys()
        return sum(self.shortfall_of(at, further[at]) for at in leaves)

    def shortfall_of(self, leaf: int, further: int = 0) -> int:
        """How far below what it is owed a queue is, of the first thing the job asks for, if it gives so much more."""
        position = self.rules.asked[0]
        quota = self.rules.draft.queues.frames[leaf].quota[position]
        return max(0, (quota or 0) - max(0, self.left(leaf)[position] - further))

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
