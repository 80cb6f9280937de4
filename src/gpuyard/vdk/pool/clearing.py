"""Which jobs have to leave one machine so that a certain amount fits there.

Place in the flow: search ─machine, amount─▶ **clearing** ─sets of jobs, cheapest first─▶ search. Jobs on one device
only are looked at device by device; of those on several, every subset is tried, which are few: each takes two devices.
`refresh` keeps, for every machine, how many jobs must leave before so many of its devices are empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from typing import Final

import msgspec

from gpuyard.vdk.model import JobUniqueIdentifier
from gpuyard.vdk.pool.books import WHOLE, Grid, Holding

IMPOSSIBLE: Final = 1_000_000
"""More jobs than any machine has: it cannot be cleared."""
MAX_SPANNING: Final = 8
"""Jobs on several devices of which every subset is tried; the others stay."""

Price = Callable[[Holding], int | None]
"""What it costs to have a job leave; None: it has to stay."""


class Clearing(msgspec.Struct, frozen=True, gc=False):
    """A set of jobs whose leaving makes room on the machine of that row."""

    price: int
    amount_milli: int
    """What leaves."""
    row: int
    leaving: tuple[Holding, ...]

    @property
    def rank(self) -> tuple[int, int, int]:
        """The better, the smaller; among equals the one that was found first."""
        return self.price, self.amount_milli, self.row


def refresh(grid: Grid) -> None:
    """Look again at the machines that have changed."""
    for row in sorted(grid.changed):
        every, singles = _counts(grid, row)
        for table, counts in ((grid.cleared, every), (grid.cleared_of_singles, singles)):
            table[row, :] = IMPOSSIBLE
            table[row, : len(counts)] = counts
    grid.changed.clear()


def _counts(grid: Grid, row: int) -> tuple[list[int], list[int]]:
    """How many jobs must leave for 0, 1, 2 ... empty devices; and if only those on one device may leave."""
    devices = grid.machines[row].devices
    free = grid.free[row].tolist()[:devices]
    layout = Layout(free, grid.jobs[row].values(), lambda one: 1 if one.is_movable else None)
    best = [0] + [IMPOSSIBLE] * devices
    singles: list[int] = []
    for leaving in layout.spanning_subsets():
        total = len(leaving)
        for count, device in enumerate(layout.emptiable(leaving), 1):
            total += len(layout.singles[device])
            best[count] = min(best[count], total)
        singles = singles or best.copy()
    return best, singles


class Layout:
    """The jobs of one machine, by device."""

    def __init__(self, free: list[int], jobs: Iterable[Holding], price: Price) -> None:
        self.free = free
        self.prices: dict[JobUniqueIdentifier, int] = {}
        """Of those that may leave."""
        self.singles: list[list[Holding]] = [[] for _ in free]
        """On one device only, and free to leave."""
        self.spanning: list[Holding] = []
        """On several devices, and free to leave."""
        self.freeable = list(free)
        """What is free or held by these jobs; a device where it is less than all cannot be emptied."""
        for holding in jobs:
            cost = price(holding)
            if cost is not None:
                self._enter(holding, cost)
        self.spanning.sort(key=lambda one: (-one.amount_milli, one.id))
        for holding in self.spanning[MAX_SPANNING:]:
            for share in holding.shares:
                self.freeable[share.device] -= share.amount_milli
        del self.spanning[MAX_SPANNING:]
        self.costs = [sum(self.prices[one.id] for one in singles) for singles in self.singles]

    def _enter(self, holding: Holding, cost: int) -> None:
        shares = holding.shares
        self.prices[holding.id] = cost
        for share in shares:
            self.freeable[share.device] += share.amount_milli
        if len(shares) == 1:
            self.singles[shares[0].device].append(holding)
        else:
            self.spanning.append(holding)

    def spanning_subsets(self) -> Iterator[tuple[Holding, ...]]:
        for count in range(len(self.spanning) + 1):
            yield from combinations(self.spanning, count)

    def emptiable(self, leaving: tuple[Holding, ...]) -> list[int]:
        """The devices that can be emptied when only these of the spanning jobs leave, cheapest first."""
        staying = {share.device for one in self.spanning if one not in leaving for share in one.shares}
        devices = [at for at, milli in enumerate(self.freeable) if milli == WHOLE and at not in staying]
        return sorted(devices, key=self.costs.__getitem__)


def clearings(row: int, layout: Layout, amount_milli: int) -> list[Clearing]:
    """Ways to make room on this machine, cheapest first; for every set of spanning jobs the best that goes with it."""
    wholes, rest_milli = divmod(amount_milli, WHOLE)
    found: dict[frozenset[JobUniqueIdentifier], Clearing] = {}
    for leaving in layout.spanning_subsets():
        for also in _on_single_devices(layout, leaving, wholes, rest_milli):
            going = (*leaving, *also)
            price = sum(layout.prices[one.id] for one in going)
            clearing = Clearing(price, sum(one.amount_milli for one in going), row, going)
            found.setdefault(frozenset(one.id for one in going), clearing)
    return sorted(found.values(), key=lambda one: one.rank)


def _on_single_devices(
    layout: Layout, leaving: tuple[Holding, ...], wholes: int, rest_milli: int
) -> Iterator[list[Holding]]:
    """What else must go when these spanning jobs leave."""
    emptiable = layout.emptiable(leaving)
    if not rest_milli:
        if len(emptiable) >= wholes:
            yield [one for device in emptiable[:wholes] for one in layout.singles[device]]
        return
    freed = _freed(layout, leaving)
    for device in range(len(layout.free)):
        others = [one for one in emptiable if one != device][:wholes]
        part = _for_part(layout, device, rest_milli - freed[device])
        if part is not None and len(others) == wholes:
            yield part + [one for other in others for one in layout.singles[other]]


def _freed(layout: Layout, leaving: tuple[Holding, ...]) -> list[int]:
    freed = list(layout.free)
    for holding in leaving:
        for share in holding.shares:
            freed[share.device] += share.amount_milli
    return freed


def _for_part(layout: Layout, device: int, missing_milli: int) -> list[Holding] | None:
    """Cheap jobs of one device that free so much of it: the largest first, last the smallest that will do.

    A dear one that is enough by itself makes cheap ones before it needless.
    """
    going: list[Holding] = []
    left = sorted(layout.singles[device], key=lambda one: (layout.prices[one.id], -one.amount_milli, one.id))
    while missing_milli > 0 and left:
        cheap = layout.prices[left[0].id]
        enough = [one for one in left if one.amount_milli >= missing_milli and layout.prices[one.id] == cheap]
        one = enough[-1] if enough else left[0]
        left.remove(one)
        going.append(one)
        missing_milli -= one.amount_milli
    for one in list(going):
        if missing_milli + one.amount_milli <= 0:
            going.remove(one)
            missing_milli += one.amount_milli
    return going if missing_milli <= 0 else None
