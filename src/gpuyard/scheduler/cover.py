"""The cheapest blocks that make room for a chunk: node by node, each node priced by what must go there.

Place in the flow: asked by a search, on the nodes of its draft, which are put back afterwards. Blocks that lie on
several nodes are paid for once: after one of them goes, the other nodes it lies on are priced anew. Greedy by marginal
cost; ties follow the order in which blocks must give way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Final

from gpuyard.scheduler.blocks import Block, Judge
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.fit import NO_FIT
from gpuyard.scheduler.headroom import blockers
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.nodebook import Undo
from gpuyard.scheduler.nodeprice import EXACT_BLOCKS, Price, Pricing, Stake, stakes_by_node
from gpuyard.scheduler.nodestate import Booked
from gpuyard.scheduler.placement import has_rule
from gpuyard.scheduler.shapes import Shape

EXACT_NODES: Final = 64
"""With more nodes than this, prices are worked out the quick way."""


def can_be_covered(draft: Draft, waiter: Waiter) -> bool:
    """Whether each task may go to any node it fits on, whatever the others do."""
    if waiter.job.spread or has_rule(waiter.chunk.group):
        return False
    if waiter.ruled or draft.queues.resources.by_model:
        return False
    return not blockers(draft.queues, waiter.leaf, waiter.at_least, waiter.firm)


def cheapest_cover(draft: Draft, waiter: Waiter, candidates: Sequence[Block], judge: Judge) -> list[Block] | None:
    """A cheap set of blocks that makes room for the waiter; None where this way of looking finds none."""
    cover = _Cover(draft, candidates, judge)
    counts = Counter(waiter.shapes)
    shapes = sorted(counts, key=lambda shape: shape.asked, reverse=True)
    found = all(cover.make_room(shape, counts[shape]) for shape in shapes)
    cover.undo()
    return cover.chosen if found else None


class _Cover:
    """One run, on the nodes of a draft."""

    def __init__(self, draft: Draft, candidates: Sequence[Block], judge: Judge) -> None:
        self.draft = draft
        self.nodes = draft.nodes
        self.judge = judge
        self.stakes = stakes_by_node(candidates)
        self.gone: set[int] = set()
        self.chosen: list[Block] = []
        self.undos: list[Undo] = []
        self.leaving: dict[int, list[Booked]] = {}
        """Per node: who has gone but is still on the books."""

    def undo(self) -> None:
        for undo in reversed(self.undos):
            self.nodes.undo(undo)

    def make_room(self, shape: Shape, count: int) -> bool:
        """Places for so many tasks of one shape, one after the other where the next is cheapest."""
        for position in list(self.leaving):
            self._let_go(position)
        count -= self._already_free(shape, count)
        if not count:
            return True
        offers = _Offers(self._pricing(shape), self.stakes, self._let_go)
        while count:
            position, blocks = offers.cheapest()
            if position < 0 or self.draft.out_of_steps:
                return False
            if blocks and not self.judge.allows(blocks):
                # What was allowed when it was priced is not any more: others have gone since.
                offers.refuse(position)
                continue
            self.judge.take(blocks)
            touched = self._clear(position, blocks)
            count -= self._fill(shape, position, count)
            for other in touched if count else ():
                if other == position:
                    offers.renew(other)
                else:
                    offers.lower(other)
        return True

    def _pricing(self, shape: Shape) -> Pricing:
        return Pricing(self.draft, shape, self.judge, self.gone, exact=len(self.stakes) <= EXACT_NODES)

    def _already_free(self, shape: Shape, count: int) -> int:
        """Put tasks where nobody has to go."""
        placed = 0
        while placed < count and (position := self.draft.fit_later.best(shape, self.draft.among)) >= 0:
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
        shares = self.draft.fit_later.shares(shape, position, self.draft.policy.device_placement)
        self.undos.append(self.nodes.promise(position, shape.request, shares))
        self.draft.search_steps_left -= 1

    def _clear(self, position: int, blocks: tuple[Block, ...]) -> set[int]:
        """Let the blocks go; all nodes that have changed by it."""
        touched: dict[int, list[Booked]] = {}
        for block in blocks:
            self.gone.add(id(block))
            self.chosen.append(block)
            for one in block.holdings:
                touched.setdefault(one.position, []).append((one.task.request, one.shares))
        for at, tasks in touched.items():
            self.leaving.setdefault(at, []).extend(tasks)
            self.draft.search_steps_left -= len(tasks)
        self._let_go(position)
        return {position, *touched}

    def _let_go(self, position: int) -> None:
        """Take those off a node who have gone: done when the node is looked at, as most are not looked at again."""
        tasks = self.leaving.pop(position, None)
        if tasks:
            self.undos.append(self.nodes.evict(position, tasks))


class _Offers:
    """Nodes by price. Old offers are left lying in the heap and skipped."""

    def __init__(self, pricing: Pricing, stakes: dict[int, list[Stake]], let_go: Callable[[int], None]) -> None:
        self._pricing = pricing
        self._let_go = let_go
        self._stakes = stakes
        self._prices: dict[int, Price] = {}
        self._heap: list[tuple[int, tuple[int, ...], int]] = []
        self._all_needed: set[int] = set()
        """Nodes whose price is for all there is on them."""
        for position in stakes:
            self.renew(position)

    def cheapest(self) -> tuple[int, tuple[Block, ...]]:
        """The node that can be had for least, and whose going that takes; -1 where there is none."""
        while self._heap:
            cost, order, position = heappop(self._heap)
            price = self._prices.get(position)
            if price is not None and price[:2] == (cost, order):
                return position, price[2]
        return -1, ()

    def refuse(self, position: int) -> None:
        """The blocks of a price may not go; others on the node may, where all sets are looked at."""
        left = len(self._stakes[position]) - self._count_gone(position)
        if self._pricing.exact and left <= EXACT_BLOCKS:
            self.renew(position)
        else:
            self._prices.pop(position, None)

    def lower(self, position: int) -> None:
        """Some blocks of a node have gone for another's sake: what is left of its price makes the same room."""
        price, gone = self._prices.get(position), self._pricing.gone
        if price is None:
            self.renew(position)
            return
        cost, order, blocks = price
        if self._pricing.exact or position not in self._all_needed:
            # Somebody may have gone who was not to be paid for: then less may do now.
            self.renew(position)
            return
        left: list[Block] = []
        index = order[0]
        for block in blocks:
            if id(block) in gone:
                cost -= block.cost
                index -= block.index
            else:
                left.append(block)
        self._offer(position, (cost, (index,), tuple(left)))

    def renew(self, position: int) -> None:
        self._let_go(position)
        price = self._pricing.price(position, self._stakes[position]) if position in self._stakes else None
        if price is None:
            self._prices.pop(position, None)
            return
        if len(price[2]) == len(self._stakes[position]) - self._count_gone(position):
            self._all_needed.add(position)
        else:
            self._all_needed.discard(position)
        self._offer(position, price)

    def _count_gone(self, position: int) -> int:
        gone = self._pricing.gone
        return sum([id(stake.block) in gone for stake in self._stakes[position]]) if gone else 0

    def _offer(self, position: int, price: Price) -> None:
        self._prices[position] = price
        heappush(self._heap, (price[0], price[1], position))
