"""Who gives way for one job: the one search behind reclaim, preempt and consolidate.

Place in the flow: a step hands over a waiting job and the rules that say whose blocks may go, in which order. Blocks
are counted off in that order until the ordinary placement finds room; among those (and whoever ranks with the last of
them) the cheapest that make enough room are kept; the rest stays. Bounds come before any trial, effort is counted in
steps, never in time. Invariant: a set is accepted only if the ordinary placement then places the job; a search that
fails leaves the draft as it was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple, Protocol

from gpuyard.model.reasons import Reason
from gpuyard.scheduler.blocks import Block, FallingShort, Judge, by_index, closure
from gpuyard.scheduler.cover import can_be_covered, cheapest_cover
from gpuyard.scheduler.draft import Draft, Everyone, Evicted, Placed
from gpuyard.scheduler.headroom import blockers
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.moves import in_feasible_order
from gpuyard.scheduler.placement import Placer
from gpuyard.scheduler.resources import GPU_AT
from gpuyard.scheduler.slots import SlotBound
from gpuyard.scheduler.small_sets import FEW_BLOCKS, legal_sets
from gpuyard.scheduler.trial import Trial, note_moves

CLOSE_LOOKS: Final = 32
"""So many trials are made block by block; after that each looks an eighth further than the one before."""

MAX_TWICE: Final = 64
"""Larger sets of scattered gangs are priced once, all of their rank together."""

OTHER_COVERS: Final = 4
"""Where the best set takes a queue below what it is owed, so many sets on other nodes are tried against it."""

MAX_PRUNED: Final = 32
"""Larger sets are not looked at block by block."""

MAX_LOOKED_OVER: Final = 8
"""The same, for sets that were priced node by node: they seldom hold anyone who is not needed."""

MAX_TRIALS: Final = 4
"""How often a set is tried again without those who turned out not to be needed."""

MAX_ALTERNATIVES: Final = 20_000
"""Blocks that rank with the last one needed and are priced against each other."""


class Rules(Protocol):
    """Whose blocks may go for a job, who first, and why."""

    may_move: bool
    """Whether those who give way may get another place."""
    must_move: bool
    """Whether they must."""
    ranked: bool
    """Whether there is an order in which blocks must give way; if not, only the price counts."""
    job_first: bool
    """Whether the job is served before those who give way, whatever the order says."""

    def blocks(self) -> Iterator[Block]:
        """Blocks in the order they must give way. Not all of them may be allowed to go together."""
        ...

    def closes(self, block: Block) -> Collection[int]:
        """Nodes that are closed to the job while a block is there, besides those it lies on."""
        ...

    def alternatives(self, last: Block) -> Iterator[Block]:
        """Further blocks that rank with the last one."""
        ...

    def judge(self, counted: Sequence[Block]) -> Judge:
        """Who says which sets are allowed, where the order has counted off these."""
        ...

    def in_order(self, chosen: Sequence[Block]) -> list[Block]:
        """The order in which a set is judged and told."""
        ...

    def allows(self, chosen: Sequence[Block], moved: set[int]) -> bool:
        """The last word on a whole set, of which some (by identity) are only moved."""
        ...

    def reason(self, block: Block, moved: bool) -> Reason:
        """Asked once for each block that goes, in order."""
        ...


class Search:
    """Makes room for one waiter on a draft."""

    def __init__(self, draft: Draft, waiter: Waiter, rules: Rules, everyone: Everyone) -> None:
        self.draft = draft
        self.waiter = waiter
        self.rules = rules
        self.everyone = everyone
        """Who waits, this job among them."""
        self.placer = Placer(draft)
        self.taken: list[Block] = []
        self.mark = draft.mark()
        # Covers are priced on nodes alone; where starts that are kept bind the job, only the ordinary placement knows.
        bound = draft.reserved is not None and draft.reserved.binding(waiter.job) > 0
        self.simple = not bound and can_be_covered(draft, waiter)

    def run(self) -> bool:
        """Place the waiter by making others give way; False leaves the draft as it was."""
        self.draft.search_stops_at = self.draft.search_steps_left // 2
        bound = SlotBound(self.draft, self.waiter)
        return self._in_order(bound) if self.rules.ranked else self._all_at_once(bound)

    def _in_order(self, bound: SlotBound) -> bool:
        """Count blocks off, and look ever again whether those so far are enough."""
        pace = _Pace()
        for block in self.rules.blocks():
            block.index = len(self.taken)
            self.taken.append(block)
            bound.free(block.holdings)
            if not bound.enough():
                pace.too_few = len(self.taken)
            elif pace.looks_at(len(self.taken)):
                if self.draft.out_of_steps:
                    return False
                if self._settle(pace):
                    return True
                pace.saw(len(self.taken))
        if not bound.enough():
            return False
        return (pace.seen < len(self.taken) and self._settle(pace)) or self.try_every_set(self.taken)

    def _all_at_once(self, bound: SlotBound) -> bool:
        """Nobody must give way before anybody else: one look at all of them."""
        for index, block in enumerate(self.rules.blocks()):
            block.index = index
            self.taken.append(block)
        bound.free(chain.from_iterable(block.holdings for block in self.taken))
        if not self.taken or not bound.enough():
            return False
        return self._settle(_Pace()) or self.try_every_set(self.taken)

    def try_every_set(self, blocks: Sequence[Block]) -> bool:
        """Where there are few blocks, and all of them together make room, whatever set of them does."""
        if len(blocks) > FEW_BLOCKS or not self._fits_without(list(blocks)):
            return False
        sets = legal_sets(blocks, lambda: self.rules.judge(blocks))
        return any(self._fits_without(chosen) and self._commit(chosen) for chosen in sets)

    # How many must give way --------------------------------------------------------------------------------------

    def _settle(self, pace: _Pace) -> bool:
        """Find the best among the blocks so far, and do it; False leaves the draft as it was."""
        if self.simple:
            return any(self._commit(self._looked_over(chosen)) for chosen in self._cheapest(self.taken))
        if not pace.fitted:
            if not self._fits_without(self.taken):
                return False
            pace.fitted = True
            return self._settle_among(self.taken[: self._fewest(max(pace.seen, pace.too_few))])
        return self._settle_among(self.taken)

    def _settle_among(self, taken: list[Block]) -> bool:
        used = self._used(taken)
        return used is not None and self._commit(self._pruned(used))

    def _evict(self, blocks: Iterable[Block]) -> None:
        evicted = [one for block in blocks for one in block.evicted()]
        self.draft.evict(evicted)
        self.draft.search_steps_left -= len(evicted)

    def _place(self) -> bool:
        """The ordinary way for a job to get its places."""
        waiter = self.waiter
        self.draft.search_steps_left -= len(waiter.shapes)
        if blockers(self.draft.queues, waiter.leaf, waiter.at_least, waiter.firm):
            return False
        return self.placer.place(waiter)

    def _fits_without(self, blocks: list[Block]) -> bool:
        """Whether the job fits once these are gone."""
        self._evict(blocks)
        placed = self._place()
        self.draft.rollback(self.mark)
        return placed

    def _fewest(self, too_few: int) -> int:
        """The smallest number of blocks with which the job fits, given a number that is too small."""
        enough = len(self.taken)
        while enough - too_few > 1 and not self.draft.out_of_steps:
            middle = (too_few + enough) // 2
            if self._fits_without(self.taken[:middle]):
                enough = middle
            else:
                too_few = middle
        return enough

    # Which of them go --------------------------------------------------------------------------------------------

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

    def _looked_over(self, blocks: list[Block]) -> list[Block]:
        """A few blocks that were priced task by task, without those that later ones made needless."""
        several = len(self.waiter.shapes) > 1 and 1 < len(blocks) <= MAX_LOOKED_OVER
        return self._pruned(blocks) if several else blocks

    def _cheapest(self, taken: list[Block]) -> Iterator[list[Block]]:
        """The cheapest sets that make room, the best first."""
        if not self.rules.ranked:
            yield from (cover.blocks for cover in self._covers(taken, taken))
            return
        if self._cannot_be_cheaper(taken) and self.rules.judge(taken).allows(taken):
            yield taken
        found: list[_Cover] = []
        if len(taken) <= MAX_TWICE or len(taken[0].holdings) == 1:
            found = self._covers(taken, taken)
        if found and not found[-1].short and self._cannot_be_cheaper(found[-1].blocks):
            yield found[-1].blocks
            return
        alternatives = list(islice(self.rules.alternatives(taken[-1]), MAX_ALTERNATIVES))
        for position, block in enumerate(alternatives, start=len(taken)):
            block.index = position
        found += self._covers(taken, [*taken, *alternatives]) if alternatives else []
        found = found or self._covers(taken, taken)
        if found and len(taken) <= MAX_TWICE and min(cover.short for cover in found):
            found = self._with_real_shortfall(found, taken, [*taken, *alternatives])
        yield from (cover.blocks for cover in sorted(found, key=lambda cover: (cover.short, cover.cost)))

    def _covers(self, taken: list[Block], candidates: list[Block]) -> list[_Cover]:
        """Cheap sets among the candidates: every next one takes queues less far below what they are owed."""
        found: list[_Cover] = []
        judge = self.rules.judge(taken)
        if self.draft.reserved is not None:
            self.draft.reserved.serve(self.waiter)
        for _ in range(MAX_TRIALS):
            blocks = cheapest_cover(self.draft, self.waiter, candidates, judge)
            if not blocks:
                break
            found.append(_Cover(judge.shortfall(), sum(block.cost for block in blocks), blocks))
            if not found[-1].short:
                break
            judge = FallingShort(self.rules.judge(taken), most=found[-1].short - 1)
        return found

    def _with_real_shortfall(self, found: list[_Cover], taken: list[Block], candidates: list[Block]) -> list[_Cover]:
        """Sets on other nodes as well, all by how far they really take queues below what they are owed: a set whose
        members find other places takes nothing away."""
        known = found.copy()
        for _ in range(OTHER_COVERS):
            used = {holding.position for cover in known for block in cover.blocks for holding in block.holdings}
            others = [block for block in candidates if used.isdisjoint(h.position for h in block.holdings)]
            more = self._covers(taken, others) if others else []
            if not more:
                break
            known += more
        return [cover._replace(short=self._real_shortfall(cover)) for cover in known]

    def _real_shortfall(self, cover: _Cover) -> int:
        chosen = self.rules.in_order(closure(cover.blocks))
        self._evict(chosen)
        trial = self._trial(chosen)
        placed = trial.run()
        self.draft.rollback(self.mark)
        stopped = [block for block in chosen if not trial.has_returned(block)]
        return self.rules.judge(chosen).shortfall(stopped) if placed else cover.short

    def _cannot_be_cheaper(self, blocks: list[Block]) -> bool:
        """Whether a set frees no more than is missing, all of it at the lowest price there is, and in as few blocks as
        the largest job there is allows."""
        columns = self.draft.nodes.later_columns()
        columns.sync()
        missing_milli = self.waiter.at_least[GPU_AT] - int(columns.gpu_milli.clip(0).sum())
        lowest = min(block.lost_ms for block in self.taken)
        largest_milli = max(yielders.largest_milli for yielders in self.draft.ledger.yielders)
        if len(blocks) > 1 and len(blocks) * largest_milli >= missing_milli + largest_milli:
            return False
        return sum(block.amounts[GPU_AT] * block.lost_ms for block in blocks) <= missing_milli * lowest

    def _used(self, taken: list[Block]) -> list[Block] | None:
        """Those on whose nodes the job would go if all of them went; all, where others hold back its queue."""
        self._evict(taken)
        before = len(self.draft.placed)
        placed = self._place()
        nodes = {entry.position for entry in self.draft.placed[before:]}
        self.draft.rollback(self.mark)
        if not placed:
            return None
        used = [block for block in taken if self._is_in_the_way(block, nodes)]
        return used if len(used) == len(taken) or self._fits_without(used) else taken

    def _is_in_the_way(self, block: Block, nodes: set[int]) -> bool:
        if any(holding.position in nodes for holding in block.holdings):
            return True
        return not nodes.isdisjoint(self.rules.closes(block))

    # Doing it ----------------------------------------------------------------------------------------------------

    def _commit(self, chosen: list[Block]) -> bool:
        """Let these go, and serve the job; those who then find their old places free were not needed."""
        chosen = self.rules.in_order(closure(chosen))
        for _ in range(MAX_TRIALS):
            mark = self.draft.mark()
            self._evict(chosen)
            trial = self._trial(chosen)
            if not trial.run():
                # Whoever is served before the job took their places back; they may find others as good.
                self.draft.rollback(mark)
                if not self.rules.may_move:
                    return False
                self._evict(chosen)
                trial = self._trial(chosen)
                trial.first_come_anywhere = True
                if not trial.run():
                    self.draft.rollback(mark)
                    return False
            staying = trial.staying()
            if not staying:
                return self._finish(mark, trial)
            needed = _without(chosen, staying)
            dropped = [block for block in chosen if block not in needed and block not in staying]
            if dropped and all(map(trial.has_returned, dropped)):
                # What a job gives up last has moved, and what it gives up first is back: nobody loses anything.
                return self._finish(mark, trial)
            self.draft.rollback(mark)
            chosen = needed
            if not chosen:
                return False
        return False

    def _trial(self, chosen: list[Block]) -> Trial:
        trial = Trial(self.draft, self.waiter, chosen, self.everyone)
        trial.may_move, trial.job_first = self.rules.may_move, self.rules.job_first
        return trial

    def _finish(self, mark: int, trial: Trial) -> bool:
        """Accept what a trial has done, if the rules do."""
        chosen = trial.blocks
        moved = {id(block) for block in chosen if trial.has_returned(block)} if trial.returned else set()
        allowed = self.rules.allows(chosen, moved) and (not self.rules.must_move or len(moved) == len(chosen))
        note_moves(self.draft, mark, trial.returned)
        allowed = allowed and self._in_good_company(mark)
        if not allowed or not in_feasible_order(self.draft, mark):
            self.draft.rollback(mark)
            return False
        by_task = {(entry.job.id, entry.holding.task.id): entry for entry in self.draft.evicted_since(mark)}
        for block in chosen:
            entries = [by_task[block.job.id, holding.task.id] for holding in block.holdings]
            reason = self.rules.reason(block, moved=id(block) in moved)
            for entry in entries:
                entry.reason = reason
                if entry.holding.placed is not None:
                    self._settle_unstarted(entry, entry.holding.placed)
            self.draft.disturbed.add(block.job.id)
        self.draft.beneficiaries.add(self.waiter.job.id)
        return True

    def _in_good_company(self, mark: int) -> bool:
        """Whether those who moved for the job have not come where its rules would not have them."""
        company = self.draft.company
        if company is None or not self.waiter.ruled:
            return True
        mine = [placed for placed in self.draft.placed_since(mark) if placed.waiter is self.waiter]
        return all(company.is_right_for(placed.waiter.job, placed.task, placed.position) for placed in mine)

    def _settle_unstarted(self, entry: Evicted, placed: Placed) -> None:
        """What this cycle had only just placed is not told as stopped or moved: it starts elsewhere, or waits."""
        if entry.moved_to is None:
            self.draft.withdraw(placed)
        else:
            placed.withdrawn = True
            entry.moved_to.moves = False


class _Cover(NamedTuple):
    """A set of blocks that makes room."""

    short: int
    cost: int
    blocks: list[Block]


def _without(blocks: Sequence[Block], staying: Sequence[Block]) -> list[Block]:
    """What still has to go, if some stay; with a job's first block that stays, so do those after it."""
    kept = {id(block) for block in staying}
    return [block for block in blocks if id(block) not in kept and not any(id(one) in kept for one in block.before)]


class _Pace:
    """How often to look as blocks are counted off: closely at first, then ever more rarely."""

    def __init__(self) -> None:
        self.seen = 0
        """How many there were at the last look, which failed."""
        self.too_few = 0
        """How many there were when it was last clear, without a look, that they are too few."""
        self.fitted = False
        """Whether the job has once fitted, though who would have to go could not."""
        self._looks = 0

    def looks_at(self, count: int) -> bool:
        return self._looks < CLOSE_LOOKS or count >= self.seen + self.seen // 8

    def saw(self, count: int) -> None:
        self.seen = count
        self._looks += 1
