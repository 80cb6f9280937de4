"""The cheapest blocks that make room for a chunk: node by node, each node priced by what must go there.

Blocks that lie on several nodes are paid for once: after one of them goes, the other nodes it lies on are priced
anew. Greedy by marginal cost, exact on a single node. Ties follow the order in which blocks must give way.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import combinations
from typing import Final

from gpuyard.scheduler.blocks import Block
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.fit import NO_FIT
from gpuyard.scheduler.headroom import blockers
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.nodestate import NodeState
from gpuyard.scheduler.shapes import Shape

EXACT_BLOCKS: Final = 8
"""On a node with no more blocks than this every set of them is looked at, where there are few nodes."""
EXACT_NODES: Final = 64

Price = tuple[int, tuple[int, ...], tuple[Block, ...]]
"""Cost, the blocks' places in the order, the blocks."""


def cheapest_cover(draft: Draft, waiter: Waiter, candidates: Sequence[Block]) -> list[Block] | None:
    """A cheap set of blocks that makes room for the waiter; None where this way of looking finds none."""
    if not _plain(draft, waiter):
        return None
    mark = draft.mark()
    found = _Cover(draft, waiter, candidates).run()
    draft.rollback(mark)
    return found


def _plain(draft: Draft, waiter: Waiter) -> bool:
    """Whether each task may go to any node it fits on, whatever the others do."""
    if waiter.chunk.children or waiter.chunk.group.topology is not None or waiter.job.spread:
        return False
    if draft.ledger.neighbours.any_rules or draft.queues.resources.by_model:
        return False
    return not blockers(draft.queues, waiter.leaf, waiter.at_least, waiter.firm)


class _Cover:
    """One run, on a draft that is rolled back afterwards."""

    def __init__(self, draft: Draft, waiter: Waiter, candidates: Sequence[Block]) -> None:
        self.draft = draft
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
        tasks = sorted(zip(self.waiter.chunk.tasks, self.waiter.shapes, strict=True), key=lambda e: e[1].asked)
        while tasks:
            shape = tasks[-1][1]
            alike = [task for task, other in tasks if other is shape]
            tasks = [entry for entry in tasks if entry[1] is not shape]
            if not self._cover(shape, len(alike)):
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
            touched = self._clear(position, self.prices[position][2])
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
        self.draft.put(self.waiter, self.waiter.chunk.tasks[0], shape, position, waits=True)
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
            for some in combinations(blocks, size):
                cost = sum(block.cost for block in some)
                order = tuple(sorted((block.index for block in some), reverse=True))
                if best is not None and (cost, order) >= best[:2]:
                    continue
                self.draft.search_steps_left -= 1
                if self.draft.fit_later.fits_in(shape, position, self._without(state, position, some)):
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
        cost = sum(block.cost for block in chosen)
        return cost, (sum(block.index for block in chosen),), tuple(chosen)

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
