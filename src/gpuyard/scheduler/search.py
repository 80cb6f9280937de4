"""Who gives way for one job: the one search behind reclaim, preempt and consolidate.

Place in the flow: a step hands over a waiting job and the rules that say whose blocks may go, in which order. Blocks
are counted off in that order until the ordinary placement finds room; among those (and whoever ranks with the last of
them) the cheapest that make enough room are kept; the rest stays. Bounds come before any trial, effort is counted in
steps, never in time. Invariant: a set is accepted only if the ordinary placement then places the job; a search that
fails leaves the draft as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from gpuyard.model.reasons import Reason
from gpuyard.scheduler.blocks import Block
from gpuyard.scheduler.cover import cheapest_cover
from gpuyard.scheduler.draft import Draft, Evicted
from gpuyard.scheduler.headroom import blockers
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.moves import fits_back, in_feasible_order, replace_victims
from gpuyard.scheduler.placement import Placer
from gpuyard.scheduler.slots import SlotBound

CLOSE_LOOKS: Final = 8
"""So many trials are made block by block; after that each looks an eighth further than the one before."""

MAX_ALTERNATIVES: Final = 20_000
"""Blocks that rank with the last one needed and are priced against each other."""


class Rules(Protocol):
    """Whose blocks may go for a job, who first, and why."""

    may_move: bool
    """Whether those who give way may get another place."""
    must_move: bool
    """Whether they must."""

    def blocks(self) -> Iterator[Block]:
        """Blocks in the order they must give way, each legal once those before it are gone."""
        ...

    def alternatives(self, last: Block) -> Iterator[Block]:
        """Further blocks that rank with the last one."""
        ...

    def shortfall(self, chosen: Sequence[Block]) -> int | None:
        """How far these would take queues below what they are owed; None where they may not go together."""
        ...

    def reason(self, block: Block, moved: bool) -> Reason:
        """Asked once for each block that goes, in order."""
        ...


class Search:
    """Makes room for one waiter on a draft."""

    def __init__(self, draft: Draft, waiter: Waiter, rules: Rules) -> None:
        self.draft = draft
        self.waiter = waiter
        self.rules = rules
        self.placer = Placer(draft)
        self.taken: list[Block] = []

    def run(self) -> bool:
        """Place the waiter by making others give way; False leaves the draft as it was."""
        mark = self.draft.mark()
        enough = self._take_until_it_fits()
        self.draft.rollback(mark)
        if not enough:
            return False
        return any(self._commit(chosen) for chosen in self._choices(self.taken[:enough]))

    # How many must give way --------------------------------------------------------------------------------------

    def _take_until_it_fits(self) -> int:
        """Evict blocks in order until the job fits; how many that took, 0 where it never does."""
        bound = SlotBound(self.draft, self.waiter)
        looks = failed_at = 0
        for block in self.rules.blocks():
            self._take(block)
            bound.free(block)
            count = len(self.taken)
            if not bound.enough() or (looks >= CLOSE_LOOKS and count < failed_at + failed_at // 8):
                continue
            if self.draft.search_steps_left <= 0:
                return 0
            looks += 1
            if self._fits():
                return self._fewest(failed_at, count)
            failed_at = count
        count = len(self.taken)
        return self._fewest(failed_at, count) if count > failed_at and bound.enough() and self._fits() else 0

    def _take(self, block: Block) -> None:
        block.index = len(self.taken)
        self.taken.append(block)
        self._evict((block,))

    def _evict(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            for evicted in block.evicted():
                self.draft.evict(evicted)
                self.draft.search_steps_left -= 1

    def _place(self) -> bool:
        """The ordinary way for a job to get its places."""
        waiter = self.waiter
        self.draft.search_steps_left -= len(waiter.shapes)
        if blockers(self.draft.queues, waiter.leaf, waiter.at_least, waiter.firm):
            return False
        return self.placer.place(waiter)

    def _fits(self) -> bool:
        mark = self.draft.mark()
        placed = self._place()
        self.draft.rollback(mark)
        return placed

    def _fewest(self, too_few: int, enough: int) -> int:
        """The smallest number of blocks, between these two, with which the job fits."""
        while enough - too_few > 1 and self.draft.search_steps_left > 0:
            middle = (too_few + enough) // 2
            mark = self.draft.mark()
            self.draft.rollback(mark - sum(len(block.holdings) for block in self.taken[middle:]))
            if self._fits():
                enough = middle
                del self.taken[middle:]
            else:
                too_few = middle
                self._evict(self.taken[middle:])
        return enough

    # Which of them go --------------------------------------------------------------------------------------------

    def _choices(self, taken: list[Block]) -> Iterator[list[Block]]:
        """Sets that make room, the best first."""
        yield from self._cheaper(taken)
        used = self._used(taken)
        if used is not None:
            yield used
        yield taken

    def _cheaper(self, taken: list[Block]) -> Iterator[list[Block]]:
        alternatives: list[Block] = []
        for block in self.rules.alternatives(taken[-1]):
            block.index = len(taken) + len(alternatives)
            alternatives.append(block)
            if len(alternatives) >= MAX_ALTERNATIVES:
                break
        found: list[tuple[int, int, int, list[Block]]] = []
        for candidates in ([*taken, *alternatives], taken) if alternatives else (taken,):
            cover = cheapest_cover(self.draft, self.waiter, candidates)
            short = self.rules.shortfall(cover) if cover else None
            if cover and short is not None:
                found.append((short, sum(block.cost for block in cover), len(found), cover))
        yield from (cover for _, _, _, cover in sorted(found, key=lambda entry: entry[:3]))

    def _used(self, taken: list[Block]) -> list[Block] | None:
        """Those on whose nodes the job would go if all of them went."""
        mark = self.draft.mark()
        self._evict(taken)
        before = len(self.draft.placed)
        placed = self._place()
        nodes = {entry.position for entry in self.draft.placed[before:]}
        self.draft.rollback(mark)
        if not placed:
            return None
        return [block for block in taken if any(holding.position in nodes for holding in block.holdings)]

    # Doing it ----------------------------------------------------------------------------------------------------

    def _commit(self, chosen: list[Block]) -> bool:
        """Evict these, place the job, let stay who can stay, move who can be moved."""
        chosen = sorted(chosen, key=lambda block: block.index)
        mark = self.draft.mark()
        self._evict(chosen)
        if not self._place():
            self.draft.rollback(mark)
            return False
        staying = fits_back(self.draft, chosen)
        if staying:
            fewer = [block for block in chosen if block not in staying]
            self.draft.rollback(mark)
            return self._commit_exactly(fewer) or self._commit_exactly(chosen)
        return self._finish(mark, chosen)

    def _commit_exactly(self, chosen: list[Block]) -> bool:
        mark = self.draft.mark()
        self._evict(chosen)
        if self._place():
            return self._finish(mark, chosen)
        self.draft.rollback(mark)
        return False

    def _finish(self, mark: int, chosen: list[Block]) -> bool:
        if not self._allowed(chosen) or not self._moved(mark, chosen):
            self.draft.rollback(mark)
            return False
        by_task = {entry.holding.task.id: entry for entry in self.draft.log[mark:] if isinstance(entry, Evicted)}
        for block in chosen:
            entries = [by_task[holding.task.id] for holding in block.holdings]
            reason = self.rules.reason(block, moved=entries[0].moved_to is not None)
            for entry in entries:
                entry.reason = reason
            self.draft.disturbed.add(block.job.id)
        return True

    def _allowed(self, chosen: list[Block]) -> bool:
        return self.rules.shortfall(chosen) is not None

    def _moved(self, mark: int, chosen: list[Block]) -> bool:
        """Give those who gave way other places; False where one that must have one gets none."""
        if not self.rules.may_move:
            return True
        after = self.draft.mark()
        all_moved = replace_victims(self.draft, self.placer, chosen, mark)
        if self.rules.must_move and not all_moved:
            return False
        if in_feasible_order(self.draft, mark):
            return True
        self.draft.rollback(after)
        for entry in self.draft.log[mark:]:
            if isinstance(entry, Evicted):
                entry.moved_to = None
        return not self.rules.must_move
