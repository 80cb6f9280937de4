"""The rules: is there room; has the team budget; who makes room.

Place in the flow: pool ─request─▶ **planner** ─arrangement─▶ pool, which records it as a plan. Pure: the books, the
budgets and the request decide, so the same state gives the same plan.

1. Room somewhere, in the order of the alternatives: there, without a look at the budget.
2. Else no budget for any alternative: NoAvailableBudgetException.
3. Else, for each alternative with budget: the cheapest reshuffle.
4. Else NoArrangementError.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gpuyard.vdk.errors import ProvisionError
from gpuyard.vdk.model import ANY_DEVICE_TYPE, DeviceRequirements, Request
from gpuyard.vdk.pool.arrangement import Arrangement, Prices, Problem
from gpuyard.vdk.pool.books import WHOLE, Books, Grid
from gpuyard.vdk.pool.clearing import refresh
from gpuyard.vdk.pool.refusals import Refusals
from gpuyard.vdk.pool.room import find_room, place_of
from gpuyard.vdk.pool.search import search
from gpuyard.vdk.pool.solver import improve

Budgets = Mapping[tuple[str, str], int]
"""Of a team, of a device type, in thousandths."""


class Desk(msgspec.Struct, frozen=True):
    """All that a decision depends on."""

    books: Books
    budgets: Budgets
    prices: Prices

    def budget_milli(self, team: str, device_type: str) -> int:
        return self.budgets.get((team, device_type), 0)

    def has_budget(self, team: str, wanted: DeviceRequirements) -> bool:
        used_milli = self.books.used_milli(team, wanted.device_type)
        return used_milli + wanted.amount_milli <= self.budget_milli(team, wanted.device_type)


class Decision(msgspec.Struct, frozen=True):
    """A way to serve a request; `problem` is the alternative it serves."""

    device_type: str
    problem: Problem
    arrangement: Arrangement


def decide(desk: Desk, request: Request) -> Decision:
    """How to serve the request, or one of the errors that say why not."""
    decision = attempt(desk, request)
    if isinstance(decision, ProvisionError):
        raise decision
    return decision


def attempt(desk: Desk, request: Request) -> Decision | ProvisionError:
    wanted = alternatives(desk, request)
    refusals = Refusals(desk.books, desk.budgets, request, wanted)
    possible = [one for one in wanted if could_ever_hold(desk.books.grids.get(one.device_type), one.amount_milli)]
    for one in possible:
        refresh(desk.books.grids[one.device_type])
        decision = _with_room(desk, one)
        if decision is not None:
            return decision
    affordable = [one for one in wanted if desk.has_budget(request.id.team, one)]
    if not affordable:
        return refusals.no_budget()
    for one in possible:
        decision = _reshuffled(desk, one) if one in affordable else None
        if decision is not None:
            return decision
    return refusals.no_arrangement(affordable) if possible else refusals.never_fits()


def alternatives(desk: Desk, request: Request) -> list[DeviceRequirements]:
    """An amount without a type may be of any type there is or the team is owed, in the order of their names."""
    wanted: list[DeviceRequirements] = []
    for one in request.alternatives:
        types = {one.device_type}
        if one.device_type == ANY_DEVICE_TYPE:
            types = desk.books.grids.keys() | {type_ for team, type_ in desk.budgets if team == request.id.team}
        wanted += [DeviceRequirements(one.amount_milli, device_type) for device_type in sorted(types)]
    return list(dict.fromkeys(wanted))


def could_ever_hold(grid: Grid | None, amount_milli: int) -> bool:
    return grid is not None and amount_milli <= grid.width * WHOLE


def problem_of(desk: Desk, wanted: DeviceRequirements) -> Problem:
    over_milli = {}
    for team, used_milli in sorted(desk.books.teams_using(wanted.device_type)):
        above_milli = used_milli - desk.budget_milli(team, wanted.device_type)
        if above_milli > 0:
            over_milli[team] = above_milli
    return Problem(desk.books.grids[wanted.device_type], wanted.amount_milli, desk.prices, over_milli)


def _with_room(desk: Desk, wanted: DeviceRequirements) -> Decision | None:
    grid = desk.books.grids[wanted.device_type]
    spot = find_room(grid.free, wanted.amount_milli)
    if spot is None:
        return None
    problem = Problem(grid, wanted.amount_milli, desk.prices, {})
    return Decision(wanted.device_type, problem, Arrangement(place_of(grid, spot)))


def _reshuffled(desk: Desk, wanted: DeviceRequirements) -> Decision | None:
    problem = problem_of(desk, wanted)
    arrangement = improve(problem, search(problem))
    return None if arrangement is None else Decision(wanted.device_type, problem, arrangement)
