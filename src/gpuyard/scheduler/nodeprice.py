"""What it costs to make room for one task on one node: the cheapest blocks whose going is enough.

Place in the flow: `cover` asks for every node it considers, and again whenever a node has changed. With few blocks all
sets are looked at; with many, blocks go by what they cost per GPU, and those that turn out not to be needed stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Final

import msgspec

from gpuyard.model.jobs import Request
from gpuyard.model.quantities import MILLI
from gpuyard.scheduler.blocks import Block, Judge, closure
from gpuyard.scheduler.draft import Draft, Holding
from gpuyard.scheduler.nodestate import Booked, NodeState
from gpuyard.scheduler.resources import GPU_AT
from gpuyard.scheduler.shapes import Shape

EXACT_BLOCKS: Final = 8
"""On a node with no more blocks than this every set of them is looked at, where there are few nodes."""

Price = tuple[int, tuple[int, ...], tuple[Block, ...]]
"""Cost, the blocks' places in the order, the blocks."""


class Stake(msgspec.Struct, gc=False, eq=False):
    """What one block holds on one node."""

    block: Block
    holding: Holding
    devices: int
    milli: int
    whole: bool
    """Whether it holds nothing but whole GPUs."""
    more: tuple[Holding, ...] = ()
    """Further tasks of the block on the same node."""

    def add(self, holding: Holding) -> None:
        self.more = (*self.more, holding)
        self.devices += len(holding.shares)
        self.milli += holding.amounts[GPU_AT]
        self.whole = self.whole and _only_whole(holding.task.request)

    @property
    def holdings(self) -> tuple[Holding, ...]:
        return (self.holding, *self.more) if self.more else (self.holding,)

    def unit_price(self) -> tuple[int, int]:
        return self.block.cost * MILLI // (self.milli or 1), self.block.index


class Pricing:
    """Prices of one shape on the nodes of a draft."""

    def __init__(self, draft: Draft, shape: Shape, judge: Judge, gone: set[int], exact: bool) -> None:
        self.draft = draft
        self.fit = draft.fit_later
        self.shape = shape
        self.judge = judge
        self.gone = gone
        """Blocks that go anyway, by identity."""
        self.exact = exact
        self._countable = shape.whole and not shape.extra and not shape.request.where.gpu_models

    def price(self, position: int, stakes: list[Stake]) -> Price | None:
        """The cheapest blocks whose going makes room for one task on a node; None where nothing does."""
        state = self.draft.nodes.later.get(position) or self.draft.nodes.now[position]
        if self.gone:
            if self.fit.fits_in(self.shape, position, state):
                return 0, (), ()
            stakes = [stake for stake in stakes if id(stake.block) not in self.gone]
        if self.exact and len(stakes) <= EXACT_BLOCKS:
            return self._exact(position, state, stakes)
        return self._greedy(position, state, stakes)

    def _exact(self, position: int, state: NodeState, stakes: list[Stake]) -> Price | None:
        best: Price | None = None
        for size in range(self._fewest(state, stakes), len(stakes) + 1):
            for some in combinations(stakes, size):
                if not self._enough_devices(state, some):
                    continue
                blocks = self._with_before([stake.block for stake in some])
                cost = sum([block.cost for block in blocks])
                order = tuple(sorted([block.index for block in blocks], reverse=True))
                if best is not None and (cost, order) >= best[:2]:
                    continue
                if self._makes_room(position, state, some) and self.judge.allows(blocks):
                    best = (cost, order, blocks)
        return best

    def _fewest(self, state: NodeState, stakes: list[Stake]) -> int:
        """No fewer blocks than this can be enough."""
        if not self._countable:
            return 1
        missing = self.shape.request.devices - state.free.bit_count()
        for count, devices in enumerate(sorted([stake.devices for stake in stakes], reverse=True), start=1):
            missing -= devices
            if missing <= 0:
                return count
        return len(stakes) + 1

    def _enough_devices(self, state: NodeState, stakes: Sequence[Stake]) -> bool:
        """A quick look at whole GPUs, where those are what is asked for."""
        if not self._countable:
            return True
        return state.free.bit_count() + sum([stake.devices for stake in stakes]) >= self.shape.request.devices

    def _greedy(self, position: int, state: NodeState, stakes: list[Stake]) -> Price | None:
        """Blocks by what they cost per GPU, as the stakes are sorted. Whether they may go is asked when they are to."""
        chosen: list[Stake] = []
        free = state.free.bit_count()
        for stake in stakes:
            chosen.append(stake)
            free += stake.devices
            if free >= self.shape.request.devices and self._makes_room(position, state, chosen):
                break
        else:
            return None
        if not self._countable or free - self.shape.request.devices >= min([stake.devices for stake in chosen]):
            chosen = self._pruned(position, state, chosen)
        blocks = self._with_before([stake.block for stake in chosen])
        return sum([block.cost for block in blocks]), (sum([block.index for block in blocks]),), blocks

    def _pruned(self, position: int, state: NodeState, chosen: list[Stake]) -> list[Stake]:
        """Without those that are not needed, the most expensive first."""
        for stake in sorted(chosen[:-1], key=lambda stake: -stake.block.cost):
            fewer = [other for other in chosen if other is not stake]
            if self._enough_devices(state, fewer) and self._makes_room(position, state, fewer):
                chosen = fewer
        return chosen

    def _makes_room(self, position: int, state: NodeState, stakes: Sequence[Stake]) -> bool:
        self.draft.search_steps_left -= 1
        if self._countable and all(stake.whole for stake in stakes):
            return self._enough_devices(state, stakes) and self._adds_up(position, state, stakes)
        tasks: list[Booked] = [(one.task.request, one.shares) for stake in stakes for one in stake.holdings]
        return self.fit.fits_in(self.shape, position, state.without(tasks, self.draft.nodes.frames[position]))

    def _adds_up(self, position: int, state: NodeState, stakes: Sequence[Stake]) -> bool:
        """Where the GPUs are enough: whether the rest is. No need to work the new state out."""
        request = self.shape.request
        cpu_milli, memory_bytes, slots = state.cpu_milli, state.memory_bytes, state.slots
        for stake in stakes:
            for one in stake.holdings:
                cpu_milli += one.task.request.cpu_milli
                memory_bytes += one.task.request.memory_bytes
                slots += 1
        if request.cpu_milli > max(cpu_milli, 0) or request.memory_bytes > max(memory_bytes, 0):
            return False
        return slots >= self.shape.copies and self.draft.eligibility.as_lists(request.where)[position]

    def _with_before(self, blocks: list[Block]) -> tuple[Block, ...]:
        """The blocks and what must go before them; what is gone already costs nothing more."""
        if not any(block.before for block in blocks):
            return tuple(blocks)
        return tuple([block for block in closure(blocks) if id(block) not in self.gone])


def _only_whole(request: Request) -> bool:
    return request.gpu_milli == MILLI and not request.mig and not request.gpu_memory_mib


def stakes_by_node(blocks: Iterable[Block]) -> dict[int, list[Stake]]:
    """What blocks hold on every node they lie on, the cheapest per GPU first."""
    found: dict[int, list[Stake]] = {}
    for block in blocks:
        for holding in block.holdings:
            stakes = found.setdefault(holding.position, [])
            if stakes and stakes[-1].block is block:
                stakes[-1].add(holding)
            else:
                whole = _only_whole(holding.task.request)
                stakes.append(Stake(block, holding, len(holding.shares), holding.amounts[GPU_AT], whole))
    for stakes in found.values():
        if len(stakes) > 1:
            stakes.sort(key=Stake.unit_price)
    return found
