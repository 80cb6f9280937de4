"""What a reshuffle is asked for, and what it answers.

Place in the flow: planner ─**problem**─▶ search, solver ─**arrangement**─▶ steps. A problem is one alternative of a
request on the machines of its type. Invariant of an arrangement: what it deletes may be deleted, what it moves may be
moved, and with all of it done no device is booked beyond what it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import numpy as np

from gpuyard.vdk.model import Place
from gpuyard.vdk.pool.books import Column, Grid, Holding

PRICE_SCALE: Final = 1000


class Prices(msgspec.Struct, frozen=True, gc=False):
    """What it costs to disturb a job; whole numbers without a common divisor."""

    delete: int
    move: int


class Move(msgspec.Struct, frozen=True, gc=False):
    holding: Holding
    to: Place


class Arrangement(msgspec.Struct, frozen=True, gc=False):
    """Where the new job goes, and who makes room for it."""

    place: Place
    deleted: tuple[Holding, ...] = ()
    moved: tuple[Move, ...] = ()


class Problem(msgspec.Struct, frozen=True):
    """Make room for `amount_milli` on these machines."""

    grid: Grid
    amount_milli: int
    prices: Prices
    over_milli: Mapping[str, int]
    """Team → how far it is above its budget; teams that are not are missing."""

    def is_deletable(self, holding: Holding) -> bool:
        return not holding.priority and holding.id.team in self.over_milli

    def deletable_milli(self) -> Column:
        """What may be deleted on each machine."""
        total: Column = np.zeros(len(self.grid.machines), dtype=np.int64)
        for team in self.over_milli:
            total += self.grid.soft.get(team, 0)
        return total

    def jobs(self) -> list[Holding]:
        """In the order of their machines and names, whatever has happened to them before."""
        return [holding for row in self.grid.jobs for holding in sorted(row.values(), key=lambda one: one.id)]

    def cost(self, found: Arrangement) -> int:
        return self.prices.delete * len(found.deleted) + self.prices.move * len(found.moved)

    def shortfall_milli(self, found: Arrangement) -> int:
        """How far below their budgets teams are taken."""
        sums = deleted_by_team(found.deleted)
        return sum(max(0, total - self.over_milli[team]) for team, (total, _) in sums.items())


def deleted_by_team(deleted: Iterable[Holding]) -> dict[str, tuple[int, int]]:
    """Team → what it loses altogether, and with its largest job."""
    sums: dict[str, tuple[int, int]] = {}
    for holding in deleted:
        total, largest = sums.get(holding.id.team, (0, 0))
        sums[holding.id.team] = (total + holding.amount_milli, max(largest, holding.amount_milli))
    return sums


def may_lose(over_milli: int, total_milli: int, largest_milli: int) -> bool:
    """Whether there is an order of deletions in which the team is over its budget before each of them.

    The largest goes last: all the others together must leave the team above its budget.
    """
    return total_milli - largest_milli < over_milli
