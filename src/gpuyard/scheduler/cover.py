"""The cheapest blocks that make room for a chunk: node by node, each node priced by what must go there.

Blocks that lie on several nodes are paid for once: after one of them goes, the other nodes it lies on are priced
anew. Greedy by marginal cost, exact on a single node. Ties follow the order in which blocks must give way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import combinations
from typing import Final, Protocol

from gpuyard.scheduler.blocks import Block, closure
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.fit import NO_FIT
from gpuyard.scheduler.headroom import blockers
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.nodestate import NodeState
from gpuyard.scheduler.placement import has_rule
from gpuyard.scheduler.shapes import Shape

EXACT_BLOCKS: Final = 8
"""On a node with no more blocks than this every set of them is looked at, where there are few nodes."""
EXACT_NODES: Final = 64

Price = tuple[int, tuple[int, ...], tuple[Block, ...]]
"""Cost, the blocks' places in the order, the blocks."""


class Judge(Protocol):
    """Says whether blocks may go, on top of those taken so far."""

    def allows(self, blocks: Sequence[Block]) -> bool: ...

    def take(self, blocks: Sequence[Block]) -> None: ...


def cheapest_cover(draft: Draft, waiter: Waiter, candidates: Sequence[Block], judge: Judge) -> list[Block] | None:
    """A cheap set of blocks that makes room for the waiter; None where this way of looking finds none."""
    if not _plain(draft, waiter):
        return None
    mark = draft.mark()
    found = _Cover(draft, waiter, candidates, judge).run()
    draft.rollback(mark)
    return found


def _plain(draft: Draft, waiter: Waiter) -> bool:
    """Whether each task may go to any node it fits on, whatever the others do."""
    if waiter.job.spread or has_rule(waiter.chunk.group):
        return False
    if draft.ledger.neighbours.any_rules or draft.queues.resources.by_model:
        return False
    return not blockers(draft.queues, waiter.leaf, waiter.at_least, waiter.firm)


class _Cover:
    """One run, on a draft that is rolled back afterwards."""

    def __init__(self, draft: Draft, waiter: Waiter, candidates: Sequence[Block], judge: Judge) -> None:
        self.draft = draft
        self.judge = judge
        self.waiter = waiter
        self.on_node: dict[int, list[Block]] = {}
        for block in candidates:
            for position in {holding.position for holding in block.holdings}:
                self.on_node.setdefault(position, []).append(block)
        self.gone: set[int] = set()
        self.chosen: list[Block] = []
        self.prices: dict[int, Price] = {}
        self.heap: list[tuple[int, tuple[int, ...], int]] = []
        self.exact = len(self.on_node) <= EXACT_NODES

    def run(self) -> list[Block] | None:
        counts = Counter(self.waiter.shapes)
        for shape in sorted(counts, key=lambda shape: shape.asked, reverse=True):
            if not self._cover(shape, counts[shape]):
                return None
        return self.chosen

    def _cover(self, shape: Shape, count: int) -> bool:
        """Places for so many tasks of one shape, one after the other where the next is cheapest."""
        count -= self._already_free(shape, count)
        self.heap = []
        for position in self.on_node if count else ():
            self._offer(shape, position)
        heapify(self.heap)
        while count:
            position = self._cheapest()
            if position < 0:
                return False
            blocks = self.prices[position][2]
            if blocks and not self.judge.allows(blocks):
                # What was allowed when it was priced is not any more: others have gone since.
                self._offer(shape, position)
                continue
            self.judge.take(blocks)
            touched = self._clear(position, blocks)
            count -= self._fill(shape, position, count)
            for other in touched if count else ():
                self._offer(shape, other)
        return True

    def _cheapest(self) -> int:
        """The node that can be had for least; -1 where there is none. Old offers are left lying and skipped."""
        while self.heap:
            cost, order, position = heappop(self.heap)
            price = self.prices.get(position)
            if price is not None and price[:2] == (cost, order):
                return position
        return -1

    def _offer(self, shape: Shape, position: int) -> None:
        price = self._price(shape, position)
        if price is None:
            self.prices.pop(position, None)
        else:
            self.prices[position] = price
            heappush(self.heap, (price[0], price[1], position))

    def _already_free(self, shape: Shape, count: int) -> int:
        """Put tasks where nobody has to go."""
        fit = self.draft.fit_later
        placed = 0
        while placed < count and (position := fit.best(shape, None)) >= 0:
            self._put(shape, position)
            placed += 1
        return placed

    def _fill(self, shape: Shape, position: int, most: int) -> int:
        placed = 0
        while placed < most and self.draft.fit_later.at(shape, position) < NO_FIT:
            self._put(shape, position)
            placed += 1
        return placed

    def _put(self, shape: Shape, position: int) -> None:
        self.draft.put(self.waiter, self.waiter.job.tasks[0], shape, position, waits=True)
        self.draft.search_steps_left -= 1

    def _clear(self, position: int, blocks: tuple[Block, ...]) -> set[int]:
        """Let the blocks go; all nodes that have changed by it."""
        touched = {position}
        for block in blocks:
            self.gone.add(id(block))
            self.chosen.append(block)
            for evicted in block.evicted():
                self.draft.evict(evicted)
                touched.add(evicted.holding.position)
                self.draft.search_steps_left -= 1
        return touched

    # Prices --------------------------------------------------------------------------------------------------

    def _price(self, shape: Shape, position: int) -> Price | None:
        """The cheapest blocks whose going makes room for one task on a node; None where nothing does."""
        state = self.draft.nodes.later.get(position) or self.draft.nodes.now[position]
        if self.gone and self.draft.fit_later.fits_in(shape, position, state):
            return 0, (), ()
        blocks = [block for block in self.on_node[position] if id(block) not in self.gone]
        if not blocks:
            return None
        if self.exact and len(blocks) <= EXACT_BLOCKS:
            return self._exact_price(shape, position, state, blocks)
        return self._greedy_price(shape, position, state, blocks)

    def _exact_price(self, shape: Shape, position: int, state: NodeState, blocks: list[Block]) -> Price | None:
        best: Price | None = None
        for size in range(1, len(blocks) + 1):
            for combination in combinations(blocks, size):
                some = self._with_before(combination)
                cost = sum(block.cost for block in some)
                order = tuple(sorted((block.index for block in some), reverse=True))
                if best is not None and (cost, order) >= best[:2]:
                    continue
                self.draft.search_steps_left -= 1
                room = self.draft.fit_later.fits_in(shape, position, self._without(state, position, some))
                if room and self.judge.allows(some):
                    best = (cost, order, some)
        return best

    def _greedy_price(self, shape: Shape, position: int, state: NodeState, blocks: list[Block]) -> Price | None:
        blocks = sorted(blocks, key=lambda block: (block.cost * 1000 // self._milli_on(block, position), block.index))
        need = shape.request.devices - state.free.bit_count() if shape.whole else 1
        chosen: list[Block] = []
        for block in blocks:
            chosen.append(block)
            need -= self._milli_on(block, position) // 1000
            if (need <= 0 or not shape.whole) and self._fits_without(shape, position, state, chosen):
                break
        else:
            return None
        for block in sorted(chosen[:-1], key=lambda block: -block.cost):
            fewer = [other for other in chosen if other is not block]
            if need <= -(self._milli_on(block, position) // 1000) and self._fits_without(shape, position, state, fewer):
                chosen = fewer
                need += self._milli_on(block, position) // 1000
        all_chosen = self._with_before(chosen)
        if not self.judge.allows(all_chosen):
            return None
        cost = sum(block.cost for block in all_chosen)
        return cost, (sum(block.index for block in all_chosen),), all_chosen

    def _with_before(self, blocks: Sequence[Block]) -> tuple[Block, ...]:
        """The blocks and what must go before them; what is gone already costs nothing more."""
        if not any(block.before for block in blocks):
            return tuple(blocks)
        return tuple([block for block in closure(blocks) if id(block) not in self.gone])

    def _milli_on(self, block: Block, position: int) -> int:
        if len(block.holdings) == 1:
            return block.amounts[0] or 1
        return sum(holding.amounts[0] for holding in block.holdings if holding.position == position) or 1

    def _fits_without(self, shape: Shape, position: int, state: NodeState, blocks: Sequence[Block]) -> bool:
        self.draft.search_steps_left -= 1
        return self.draft.fit_later.fits_in(shape, position, self._without(state, position, blocks))

    def _without(self, state: NodeState, position: int, blocks: Sequence[Block]) -> NodeState:
        frame = self.draft.nodes.frames[position]
        for block in blocks:
            for holding in block.holdings:
                if holding.position == position:
                    state = state.plus(holding.task.request, holding.shares, frame)
        return state
