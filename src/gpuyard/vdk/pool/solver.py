"""The exact answer where the cluster, or the part of it that matters, is small: a mixed-integer program.

Place in the flow: planner ─problem, what the search found─▶ **solver** ─a better arrangement, or the same─▶ planner.
Every job stays, is moved to a machine, or is deleted. Whole devices are counted by machine; a rest below one device is
put on a certain device. The deletion rule is exact. Only what is better than the search's arrangement is looked for,
so most often the answer is a quick no.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import msgspec
import numpy as np

from gpuyard.vdk.model import DeviceShare, Place
from gpuyard.vdk.pool.arrangement import Arrangement, Move, Problem
from gpuyard.vdk.pool.books import WHOLE, Holding
from gpuyard.vdk.pool.clearing import IMPOSSIBLE
from gpuyard.vdk.pool.integer import Limits, Model
from gpuyard.vdk.pool.search import Found, in_legal_order
from gpuyard.vdk.pool.steps import parkings

FOR_ANY: Final = Limits(nodes=200, smaller_programs=True)
"""Where the search has found nothing."""
FOR_CHEAPER: Final = Limits(nodes=20, smaller_programs=True)
"""Where something cheaper than what it has found is looked for."""
FOR_TIES: Final = Limits(nodes=20, smaller_programs=False)
"""Where, of what costs the same, something gentler or simpler is looked for."""
MAX_COLUMNS: Final = 2_500
"""Of a program of all machines."""
MAX_COLUMNS_OF_PART: Final = 1_000
"""Of a program of those machines that matter, where all of them would be too many."""
MAX_DETOURS: Final = 1
"""Other arrangements of the same cost that are asked for when one needs parking."""

Choice = tuple[int, int]
"""A row, and a device of it or WHOLES."""
WHOLES: Final = -1


def improve(problem: Problem, found: Found) -> Arrangement | None:
    """The cheapest arrangement, or what the search found where nothing better is known."""
    if found.is_best or found.least_cost >= IMPOSSIBLE:
        return found.arrangement
    all_rows = list(range(len(problem.grid.machines)))
    if _columns(problem, all_rows) <= MAX_COLUMNS:
        return _exactly(problem, all_rows, found)
    if found.arrangement is None:
        return Program(problem, rows_that_matter(problem)).cheapest(None, FOR_ANY)
    return found.arrangement


def _exactly(problem: Problem, rows: list[int], found: Found) -> Arrangement | None:
    best = found.arrangement
    if found.rank is None:
        best = Program(problem, rows).cheapest(None, FOR_ANY)
    elif found.rank[0] > found.least_cost:
        best = Program(problem, rows).cheapest(found.rank[0] - 1, FOR_CHEAPER) or best
    if best is None:
        return None
    return _without_parking(problem, rows, _gentlest(problem, rows, best))


def _gentlest(problem: Problem, rows: list[int], best: Arrangement) -> Arrangement:
    """Among those of equal cost the one that takes teams least far below their budgets."""
    shortfall_milli = problem.shortfall_milli(best)
    if not shortfall_milli:
        return best
    return Program(problem, rows).gentler(problem.cost(best), shortfall_milli) or best


def _without_parking(problem: Problem, rows: list[int], best: Arrangement) -> Arrangement:
    """Among those of equal cost and shortfall one that needs less parking, if it is found soon."""
    tried = [best]
    while parkings(problem, best) and len(tried) <= MAX_DETOURS:
        program = Program(problem, rows)
        for one in tried:
            program.exclude(one)
        other = program.cheapest(problem.cost(best), FOR_TIES)
        if other is None:
            break
        tried.append(other)
        best = min(best, other, key=lambda one: (problem.shortfall_milli(one), parkings(problem, one)))
    return best


def rows_that_matter(problem: Problem) -> list[int]:
    """As many as make a program of a bounded size: easily cleared, roomy, or with much to delete."""
    grid = problem.grid
    free = grid.free.sum(axis=1)
    counts = grid.cleared[:, problem.amount_milli // WHOLE]
    soft = problem.deletable_milli()
    orders = (np.lexsort((-free, counts)), np.argsort(-free, kind="stable"), np.argsort(-soft, kind="stable"))
    chosen: dict[int, None] = {}
    for row in (int(order[at]) for at in range(len(free)) for order in orders):
        if row not in chosen and _columns(problem, [*chosen, row]) > MAX_COLUMNS_OF_PART:
            break
        chosen[row] = None
    return sorted(chosen)


def _columns(problem: Problem, rows: list[int]) -> int:
    """About how many columns a program of these machines has."""
    jobs = 1 + sum(len(problem.grid.jobs[row]) for row in rows)
    return jobs * sum(problem.grid.machines[row].devices for row in rows)


class Item(msgspec.Struct, frozen=True):
    """A job that may leave, or the new one, which has no holding."""

    wholes: int
    rest_milli: int
    holding: Holding | None = None


class Program:
    def __init__(self, problem: Problem, rows: list[int]) -> None:
        self.problem = problem
        self.grid = problem.grid
        self.rows = rows
        self.model = Model()
        self.items = [Item(*divmod(problem.amount_milli, WHOLE))]
        for row in rows:
            for id in sorted(self.grid.jobs[row]):
                holding = self.grid.jobs[row][id]
                if holding.is_movable:
                    self.items.append(Item(*divmod(holding.amount_milli, WHOLE), holding))
        self.goes: list[dict[Choice, int]] = [self._choices(item) for item in self.items]
        """For each item its columns: the machine of its whole devices, the device of its rest."""
        self.stays = {at: self.model.binary() for at, item in enumerate(self.items) if item.holding is not None}
        self.deleted = {at: self.model.binary() for at, item in enumerate(self.items) if self._is_deletable(item)}
        self.taken = {device: self.model.binary() for device in self._devices() if self._can_be_emptied(device)}
        """Devices that an item which comes gets all of."""
        self.shortfalls: list[int] = []
        self._say_where_items_go()
        self._say_what_devices_hold()
        self._say_what_teams_may_lose()

    # ----------------------------------------------------------------------------------------------------- the columns

    def _choices(self, item: Item) -> dict[Choice, int]:
        choices: dict[Choice, int] = {}
        for row in self.rows:
            machine = self.grid.machines[row]
            if item.wholes + bool(item.rest_milli) > machine.devices:
                continue
            if item.wholes:
                choices[row, WHOLES] = self.model.binary()
            if item.rest_milli:
                for device in range(machine.devices):
                    if item.wholes or not self._is_at(item, row, device):
                        choices[row, device] = self.model.binary()
        return choices

    def _is_at(self, item: Item, row: int, device: int) -> bool:
        place = None if item.holding is None else item.holding.place
        return place is not None and self.grid.rows[place.machine] == row and place.device == device

    def _is_deletable(self, item: Item) -> bool:
        return item.holding is not None and self.problem.is_deletable(item.holding)

    def _devices(self) -> list[Choice]:
        return [(row, device) for row in self.rows for device in range(self.grid.machines[row].devices)]

    def _can_be_emptied(self, at: Choice) -> bool:
        row, device = at
        fixed = (one for one in self.grid.jobs[row].values() if not one.is_movable)
        return not any(share.device == device for one in fixed for share in one.shares)

    def leaves(self, at: int) -> list[int]:
        """Columns of which one is 1 when the item goes somewhere, or is deleted."""
        item, choices = self.items[at], self.goes[at]
        going = [column for (_, device), column in choices.items() if (device == WHOLES) == bool(item.wholes)]
        return going + ([self.deleted[at]] if at in self.deleted else [])

    # ------------------------------------------------------------------------------------------------- the constraints

    def _say_where_items_go(self) -> None:
        for at, item in enumerate(self.items):
            stays = [self.stays[at]] if at in self.stays else []
            self.model.equal([(column, 1) for column in [*stays, *self.leaves(at)]], 1)
            if item.wholes and item.rest_milli:
                for row in self.rows:
                    rest = [(column, 1) for (on, device), column in self.goes[at].items() if on == row and device >= 0]
                    if rest:
                        self.model.equal([*rest, (self.goes[at][row, WHOLES], -1)], 0)

    def _say_what_devices_hold(self) -> None:
        coming: dict[Choice, list[tuple[int, int]]] = defaultdict(list)
        for item, choices in zip(self.items, self.goes, strict=True):
            for choice, column in choices.items():
                coming[choice].append((column, item.wholes if choice[1] == WHOLES else item.rest_milli))
        for row in self.rows:
            taken = [(self.taken[at], -1) for at in self.taken if at[0] == row]
            self.model.equal(coming[row, WHOLES] + taken, 0)
        staying = self._staying()
        for at in self._devices():
            taken = [(self.taken[at], WHOLE)] if at in self.taken else []
            held_milli = sum(milli for _, milli in staying[at])
            self.model.at_most(coming[at] + staying[at] + taken, int(self.grid.free[at]) + held_milli)

    def _staying(self) -> dict[Choice, list[tuple[int, int]]]:
        """Device → what the items hold of it now that may leave it, by their columns."""
        staying: dict[Choice, list[tuple[int, int]]] = defaultdict(list)
        for at, column in self.stays.items():
            holding = self.items[at].holding
            assert holding is not None
            assert holding.place is not None
            row = self.grid.rows[holding.place.machine]
            for share in holding.shares:
                staying[row, share.device].append((column, share.amount_milli))
        return staying

    def _say_what_teams_may_lose(self) -> None:
        """All that a team loses but its largest job must leave it above its budget."""
        by_team: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for at, column in self.deleted.items():
            holding = self.items[at].holding
            assert holding is not None
            by_team[holding.id.team].append((column, holding.amount_milli))
        for team, losses in sorted(by_team.items()):
            over_milli = self.problem.over_milli[team]
            last = [(self.model.binary(), column, milli) for column, milli in losses]
            self.model.at_most([*losses, *((one, -milli) for one, _, milli in last)], over_milli - 1)
            self.model.at_most([(one, 1) for one, _, _ in last], 1)
            for one, column, _ in last:
                self.model.at_most([(one, 1), (column, -1)], 0)
            shortfall = self.model.number()
            self.model.at_most([*losses, (shortfall, -1)], over_milli)
            self.shortfalls.append(shortfall)

    def exclude(self, found: Arrangement) -> None:
        """Not these moves together once more."""
        targets = {move.holding.id: self.grid.rows[move.to.machine] for move in found.moved}
        columns: list[int] = []
        count = 0
        for item, choices in zip(self.items, self.goes, strict=True):
            row = None if item.holding is None else targets.get(item.holding.id)
            if row is not None:
                columns += [
                    column for (on, device), column in choices.items() if on == row and (device < 0 or not item.wholes)
                ]
                count += 1
        self.model.at_most([(column, 1) for column in columns], count - 1)

    # ------------------------------------------------------------------------------------------------------- the answer

    def _cost(self) -> list[tuple[int, int]]:
        prices = self.problem.prices
        deleted = set(self.deleted.values())
        columns = [column for at in range(1, len(self.items)) for column in self.leaves(at)]
        return [(column, prices.delete if column in deleted else prices.move) for column in columns]

    def cheapest(self, most_cost: int | None, limits: Limits) -> Arrangement | None:
        """The one of least cost, if one costs no more than this."""
        if most_cost is not None:
            self.model.at_most(self._cost(), most_cost)
        return self._read(self.model.minimise(self._cost(), limits))

    def gentler(self, most_cost: int, below_milli: int) -> Arrangement | None:
        """The one that takes teams least far below their budgets, if one does so less than this."""
        shortfalls = [(column, 1) for column in self.shortfalls]
        self.model.at_most(self._cost(), most_cost)
        self.model.at_most(shortfalls, below_milli - 1)
        return self._read(self.model.minimise(shortfalls, FOR_TIES))

    def _read(self, values: list[int] | None) -> Arrangement | None:
        if values is None:
            return None
        left = {
            row: [at[1] for at, column in self.taken.items() if at[0] == row and values[column]] for row in self.rows
        }
        moved, deleted, new = [], [], None
        for at, item in enumerate(self.items):
            place = self._place(item, [choice for choice, column in self.goes[at].items() if values[column]], left)
            if item.holding is None:
                new = place
            elif at in self.deleted and values[self.deleted[at]]:
                deleted.append(item.holding)
            elif place is not None and place != item.holding.place:
                moved.append(Move(item.holding, place))
        assert new is not None
        return Arrangement(new, in_legal_order(deleted), tuple(sorted(moved, key=lambda move: move.holding.id)))

    def _place(self, item: Item, chosen: list[Choice], left: dict[int, list[int]]) -> Place | None:
        """Whole devices of a machine are alike, so each item gets the next of them."""
        if not chosen:
            return None
        row = chosen[0][0]
        shares = [DeviceShare(device, WHOLE) for device in left[row][: item.wholes]]
        del left[row][: item.wholes]
        shares += [DeviceShare(device, item.rest_milli) for _, device in chosen if device != WHOLES]
        return Place(self.grid.machines[row].name, tuple(shares))
