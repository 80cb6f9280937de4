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
from gpuyard.scheduler.blocks import Block, by_index, closure
from gpuyard.scheduler.cover import cheapest_cover
from gpuyard.scheduler.draft import Draft, Evicted, Left
from gpuyard.scheduler.headroom import blockers
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.moves import in_feasible_order
from gpuyard.scheduler.placement import Placer
from gpuyard.scheduler.slots import SlotBound
from gpuyard.scheduler.trial import Trial, note_moves

CLOSE_LOOKS: Final = 32
"""So many trials are made block by block; after that each looks an eighth further than the one before."""

MAX_PRUNED: Final = 32
"""Larger sets are not looked at block by block."""

MAX_TRIALS: Final = 4
"""How often a set is tried again without those who turned out not to be needed."""

MAX_ALTERNATIVES: Final = 20_000
"""Blocks that rank with the last one needed and are priced against each other."""


class Judge(Protocol):
    """Keeps count of a set of blocks as it grows."""

    def allows(self, blocks: Sequence[Block]) -> bool:
        """Whether these may go on top of those taken so far."""
        ...

    def take(self, blocks: Sequence[Block]) -> None: ...

    def shortfall(self) -> int:
        """How far those taken bring queues below what they are owed."""
        ...


class Rules(Protocol):
    """Whose blocks may go for a job, who first, and why."""

    may_move: bool
    """Whether those who give way may get another place."""
    must_move: bool
    """Whether they must."""
    job_first: bool
    """Whether the job is served before those who give way, whatever the order says."""

    def blocks(self) -> Iterator[Block]:
        """Blocks in the order they must give way. Not all of them may be allowed to go together."""
        ...

    def alternatives(self, last: Block) -> Iterator[Block]:
        """Further blocks that rank with the last one."""
        ...

    def judge(self) -> Judge: ...

    def in_order(self, chosen: Sequence[Block]) -> list[Block]:
        """The order in which a set is judged and told."""
        ...

    def allows(self, chosen: Sequence[Block]) -> bool:
        """The last word on a whole set."""
        ...

    def reason(self, block: Block, moved: bool) -> Reason:
        """Asked once for each block that goes, in order."""
        ...


class Search:
    """Makes room for one waiter on a draft."""

    def __init__(self, draft: Draft, waiter: Waiter, rules: Rules, others: Sequence[Left]) -> None:
        self.draft = draft
        self.waiter = waiter
        self.rules = rules
        self.others = others
        """Everyone who waits, this job among them."""
        self.placer = Placer(draft)
        self.taken: list[Block] = []
        self.mark = draft.mark()

    def run(self) -> bool:
        """Place the waiter by making others give way; False leaves the draft as it was."""
        bound = SlotBound(self.draft, self.waiter)
        pace = _Pace()
        fitted = False
        for block in self.rules.blocks():
            self._take(block)
            bound.free(block)
            if not bound.enough() or not pace.looks_at(len(self.taken)):
                continue
            if self.draft.search_steps_left <= 0:
                break
            if fitted or self._fits():
                fewest = len(self.taken) if fitted else self._fewest(pace.seen)
                fitted = True
                if self._settle(fewest):
                    return True
            pace.saw(len(self.taken))
        unseen = bound.enough() and pace.seen < len(self.taken) and self.draft.search_steps_left > 0
        if unseen and (fitted or self._fits()) and self._settle(len(self.taken)):
            return True
        self.draft.rollback(self.mark)
        return False

    # How many must give way --------------------------------------------------------------------------------------

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

    def _fewest(self, too_few: int) -> int:
        """The smallest number of blocks with which the job fits, given a number that is too small."""
        enough = len(self.taken)
        while enough - too_few > 1 and self.draft.search_steps_left > 0:
            middle = (too_few + enough) // 2
            self.draft.rollback(self.mark)
            self._evict(self.taken[:middle])
            if self._fits():
                enough = middle
            else:
                too_few = middle
        return enough

    # Which of them go --------------------------------------------------------------------------------------------

    def _settle(self, count: int) -> bool:
        """Find the best among the first blocks, and do it; False leaves all of them evicted."""
        self.draft.rollback(self.mark)
        if any(self._commit(chosen) for chosen in self._choices(self.taken[:count])):
            return True
        self._evict(self.taken)
        return False

    def _choices(self, taken: list[Block]) -> Iterator[list[Block]]:
        """Sets that make room, the best first."""
        yield from self._cheapest(taken)
        used = self._used(taken)
        if used is not None:
            yield self._pruned(used)

    def _pruned(self, blocks: list[Block]) -> list[Block]:
        """Without those that are not needed, looked at one by one: whoever should stay longest first."""
        if len(blocks) > MAX_PRUNED:
            return blocks
        needed = blocks
        for block in reversed(by_index(blocks)):
            fewer = closure([other for other in needed if other is not block])
            if block not in fewer and self._fits_without(fewer):
                needed = fewer
        return needed

    def _fits_without(self, blocks: list[Block]) -> bool:
        self._evict(blocks)
        fits = self._fits()
        self.draft.rollback(self.mark)
        return fits

    def _cheapest(self, taken: list[Block]) -> Iterator[list[Block]]:
        alternatives: list[Block] = []
        for block in self.rules.alternatives(taken[-1]):
            block.index = len(taken) + len(alternatives)
            alternatives.append(block)
            if len(alternatives) >= MAX_ALTERNATIVES:
                break
        found: list[tuple[int, int, int, list[Block]]] = []
        for candidates in ([*taken, *alternatives], taken) if alternatives else (taken,):
            judge = self.rules.judge()
            cover = cheapest_cover(self.draft, self.waiter, candidates, judge)
            if cover:
                found.append((judge.shortfall(), sum(block.cost for block in cover), len(found), cover))
        yield from (cover for _, _, _, cover in sorted(found, key=lambda entry: entry[:3]))

    def _used(self, taken: list[Block]) -> list[Block] | None:
        """Those on whose nodes the job would go if all of them went."""
        self._evict(taken)
        before = len(self.draft.placed)
        placed = self._place()
        nodes = {entry.position for entry in self.draft.placed[before:]}
        self.draft.rollback(self.mark)
        if not placed:
            return None
        return [block for block in taken if any(holding.position in nodes for holding in block.holdings)]

    # Doing it ----------------------------------------------------------------------------------------------------

    def _commit(self, chosen: list[Block]) -> bool:
        """Let these go, and serve the job; those who then find their old places free were not needed."""
        chosen = self.rules.in_order(closure(chosen))
        for _ in range(MAX_TRIALS):
            mark = self.draft.mark()
            self._evict(chosen)
            trial = Trial(self.draft, self.waiter, chosen, self.others)
            staying = trial.staying() if trial.run(self.rules.may_move, self.rules.job_first) else chosen
            if not staying:
                return self._finish(mark, trial)
            self.draft.rollback(mark)
            chosen = _without(chosen, staying)
            if not chosen:
                return False
        return False

    def _finish(self, mark: int, trial: Trial) -> bool:
        """Accept what a trial has done, if the rules do."""
        chosen = trial.blocks
        allowed = self.rules.allows(chosen) and (not self.rules.must_move or trial.all_returned())
        note_moves(self.draft, mark, trial.returned)
        if not allowed or not in_feasible_order(self.draft, mark):
            self.draft.rollback(mark)
            return False
        by_task = {entry.holding.task.id: entry for entry in self.draft.log[mark:] if isinstance(entry, Evicted)}
        for block in chosen:
            entries = [by_task[holding.task.id] for holding in block.holdings]
            reason = self.rules.reason(block, moved=all(entry.moved_to is not None for entry in entries))
            for entry in entries:
                entry.reason = reason
            self.draft.disturbed.add(block.job.id)
        return True


def _without(blocks: Sequence[Block], staying: Sequence[Block]) -> list[Block]:
    """What still has to go, if some stay; with a job's first block that stays, so do those after it."""
    kept = {id(block) for block in staying}
    return [block for block in blocks if id(block) not in kept and not any(id(one) in kept for one in block.before)]


class _Pace:
    """How often to look as blocks are counted off: closely at first, then ever more rarely."""

    def __init__(self) -> None:
        self.seen = 0
        self._looks = 0

    def looks_at(self, count: int) -> bool:
        return self._looks < CLOSE_LOOKS or count >= self.seen + self.seen // 8

    def saw(self, count: int) -> None:
        self.seen = count
        self._looks += 1
