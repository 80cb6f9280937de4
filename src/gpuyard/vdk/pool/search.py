"""The cheapest way to make room, looked for machine by machine.

Place in the flow: planner ─problem─▶ **search** ─arrangement, lower bound─▶ solver (small clusters), planner.
Candidates are machines and sets of jobs that would have to leave them, cheapest first. Each job that leaves goes where
there is room; else it has others make room for it, one level down; else it is deleted, if it may be. The work is
counted in tries, never in time: the same books give the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np

from gpuyard.vdk.model import JobUniqueIdentifier
from gpuyard.vdk.pool.arrangement import Arrangement, Move, Problem, deleted_by_team, may_lose
from gpuyard.vdk.pool.books import WHOLE, Holding
from gpuyard.vdk.pool.clearing import IMPOSSIBLE, Clearing, Layout, Price, clearings
from gpuyard.vdk.pool.room import Spot, find_room, find_room_on, place_of
from gpuyard.vdk.pool.steps import parkings


class Effort(msgspec.Struct, frozen=True):
    """How far a search goes, by level: 0 without others making room, 1 with, 2 with others for those, and so on."""

    tries: tuple[int, ...]
    """Sets of leaving jobs that are tried for one request."""
    rows: tuple[int, ...]
    """Machines that are looked at, of each kind: easily emptied, roomy, with much that may be deleted."""
    sets: tuple[int, ...]
    """Sets of leaving jobs that are tried for one machine."""


FEW_DEVICES: Final = 64
"""Where there are no more, every machine can be looked at, and deeper."""
EFFORT_FOR_FEW: Final = Effort((64, 300, 300, 300), (16, 8, 8, 8), (8, 4, 3, 2))
EFFORT: Final = Effort((64, 40, 24), (16, 5, 3), (4, 2, 1))

Rank = tuple[int, int, int]
"""Cost, shortfall (milli), jobs that need parking: what is compared, in this order."""


class Found:
    """What a search has come to."""

    def __init__(self, arrangement: Arrangement | None, rank: Rank | None, least_cost: int) -> None:
        self.arrangement = arrangement
        self.rank = rank
        self.least_cost = least_cost
        """No arrangement costs less."""

    @property
    def is_best(self) -> bool:
        """Nothing can be better."""
        return self.rank is not None and self.rank <= (self.least_cost, 0, 0)


class Draft:
    """An arrangement in the making."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.free = problem.grid.free.copy(order="K")
        self.gone: dict[JobUniqueIdentifier, Holding] = {}
        self.moves: dict[JobUniqueIdentifier, Spot] = {}
        self.deleted: list[Holding] = []
        self.cost = 0

    def copy(self) -> Draft:
        twin = Draft.__new__(Draft)
        twin.problem, twin.cost = self.problem, self.cost
        twin.free = self.free.copy(order="K")
        twin.gone, twin.moves, twin.deleted = self.gone.copy(), self.moves.copy(), self.deleted.copy()
        return twin

    def leave(self, leaving: Iterable[Holding]) -> None:
        for holding in leaving:
            assert holding.place is not None
            self.gone[holding.id] = holding
            row = self.problem.grid.rows[holding.place.machine]
            for share in holding.shares:
                self.free[row, share.device] += share.amount_milli

    def fill(self, spot: Spot) -> None:
        row, shares = spot
        for share in shares:
            self.free[row, share.device] -= share.amount_milli

    def move(self, holding: Holding, spot: Spot) -> None:
        self.fill(spot)
        if place_of(self.problem.grid, spot) == holding.place:
            del self.gone[holding.id]
            return
        self.moves[holding.id] = spot
        self.cost += self.problem.prices.move

    def delete(self, holding: Holding) -> None:
        self.deleted.append(holding)
        self.cost += self.problem.prices.delete

    def may_delete(self, holding: Holding) -> bool:
        if not self.problem.is_deletable(holding):
            return False
        team = holding.id.team
        total, largest = deleted_by_team([*self.deleted, holding])[team]
        return may_lose(self.problem.over_milli[team], total, largest)

    def finish(self, spot: Spot) -> Arrangement:
        grid = self.problem.grid
        moved = tuple(Move(self.gone[id], place_of(grid, to)) for id, to in sorted(self.moves.items()))
        return Arrangement(place_of(grid, spot), in_legal_order(self.deleted), moved)


def in_legal_order(deleted: Iterable[Holding]) -> tuple[Holding, ...]:
    """Team by team, the largest last: every team is over its budget before each of its jobs goes."""
    return tuple(sorted(deleted, key=lambda one: (one.id.team, one.amount_milli, one.id.job)))


def search(problem: Problem) -> Found:
    return Search(problem).run()


class Search:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.grid = problem.grid
        self.effort = EFFORT_FOR_FEW if problem.grid.free.size <= FEW_DEVICES else EFFORT
        self.levels = 0
        self.tries_left = 0
        self._has_room: dict[int, bool] = {}
        self._deletable_milli = problem.deletable_milli()
        self._least_deleted = self._count_least_deleted()
        # Where somebody has to be deleted in the end, it is not cheaper to have others move for it.
        self._price_without_room = problem.prices.move + (
            problem.prices.delete if self._least_deleted else min(problem.prices.delete, 2 * problem.prices.move)
        )

    def run(self) -> Found:
        """First only with what there is room for, or may be deleted; then also with others making room for it."""
        best = Found(None, None, self.least_cost())
        if best.least_cost >= IMPOSSIBLE:
            return best
        draft, amount_milli = Draft(self.problem), self.problem.amount_milli
        candidates = self.candidates(draft, amount_milli, 0, self.price)
        for levels, tries in enumerate(self.effort.tries, 1):
            self.levels, self.tries_left = levels, tries
            best = self._round(draft, candidates, best)
            if best.is_best:
                break
            if levels == 1:
                candidates = self.candidates(draft, amount_milli, 0, self.hopeful_price)
        return best

    def _round(self, draft: Draft, candidates: list[Clearing], best: Found) -> Found:
        for clearing in candidates:
            limit = IMPOSSIBLE if best.rank is None else best.rank[0] + (self.levels == 1)
            if best.is_best or not self.tries_left or clearing.price >= limit:
                break
            tried = self.attempt(draft, clearing, self.problem.amount_milli, limit, 0)
            if tried is not None:
                best = self._better(best, tried[0].finish(tried[1]))
        return best

    def _better(self, best: Found, arrangement: Arrangement) -> Found:
        problem = self.problem
        cost, shortfall = problem.cost(arrangement), problem.shortfall_milli(arrangement)
        if best.rank is not None and best.rank < (cost, shortfall, 0):
            return best
        rank = (cost, shortfall, parkings(problem, arrangement))
        return best if best.rank is not None and best.rank <= rank else Found(arrangement, rank, best.least_cost)

    # ---------------------------------------------------------------------------------------------------------- one try

    def attempt(
        self, draft: Draft, clearing: Clearing, amount_milli: int, limit: int, level: int
    ) -> tuple[Draft, Spot] | None:
        """Let these jobs leave, put the amount in their place, and find places for them; None: costs too much."""
        self.tries_left = max(0, self.tries_left - 1)
        trial = draft.copy()
        trial.leave(clearing.leaving)
        spot = find_room_on(trial.free, clearing.row, amount_milli)
        if spot is None:
            return None
        trial.fill(spot)
        done = self.rehouse(trial, clearing.leaving, limit, level)
        return None if done is None else (done, spot)

    def rehouse(self, draft: Draft, leaving: tuple[Holding, ...], limit: int, level: int) -> Draft | None:
        # Who may not be deleted has the first choice of what room there is.
        for holding in sorted(leaving, key=lambda one: (self.problem.is_deletable(one), -one.amount_milli, one.id)):
            spot = find_room(draft.free, holding.amount_milli) if holding.is_movable else None
            if spot is not None:
                draft.move(holding, spot)
            else:
                following = self.without_room(draft, holding, limit, level)
                if following is None:
                    return None
                draft = following
            if draft.cost >= limit:
                return None
        return draft

    def without_room(self, draft: Draft, holding: Holding, limit: int, level: int) -> Draft | None:
        """Others make room for it, if that costs less than to delete it."""
        prices = self.problem.prices
        may_delete = draft.may_delete(holding)
        if may_delete:
            limit = min(limit, draft.cost + prices.delete)
        if holding.is_movable and level + 1 < self.levels:
            cheaper = self.make_room(draft, holding, limit, level + 1)
            if cheaper is not None:
                return cheaper
        if not may_delete:
            return None
        draft.delete(holding)
        return draft

    def make_room(self, draft: Draft, holding: Holding, limit: int, level: int) -> Draft | None:
        best: Draft | None = None
        for clearing in self.candidates(draft, holding.amount_milli, level, self.hopeful_price):
            if not self.tries_left or draft.cost + self.problem.prices.move * (1 + len(clearing.leaving)) >= limit:
                break
            tried = self.attempt(draft, clearing, holding.amount_milli, limit - self.problem.prices.move, level)
            if tried is not None:
                best, spot = tried
                best.move(holding, spot)
                limit = best.cost
        return best

    # ------------------------------------------------------------------------------------------------------- candidates

    def candidates(self, draft: Draft, amount_milli: int, level: int, price: Price) -> list[Clearing]:
        found: list[Clearing] = []
        for row in self.rows(draft, amount_milli, level):
            here = self.grid.jobs[row]
            jobs = [here[id] for id in sorted(here) if id not in draft.gone]
            free = draft.free[row].tolist()[: self.grid.machines[row].devices]
            layout = Layout(free, jobs, price)
            found += clearings(row, layout, amount_milli)[: self.effort.sets[level]]
        return sorted(found, key=lambda one: one.rank)

    def rows(self, draft: Draft, amount_milli: int, level: int) -> list[int]:
        """Machines that are easily emptied, that have room, and where much may be deleted."""
        wholes, count = amount_milli // WHOLE, self.effort.rows[level]
        free = draft.free.sum(axis=1)
        room = draft.free.max(axis=1) if not wholes else free
        singles, every = self.grid.cleared_of_singles[:, wholes], self.grid.cleared[:, wholes]
        soft = self._deletable_milli + free
        orders = (
            np.lexsort((-room, singles))[:count],
            np.lexsort((-room, every))[:count],
            np.lexsort((every, -np.minimum(soft, amount_milli)))[:count] if self.problem.over_milli else (),
        )
        rows = dict.fromkeys(int(row) for order in orders for row in order)
        return [row for row in rows if every[row] < IMPOSSIBLE]

    def price(self, holding: Holding) -> int | None:
        """What its leaving costs where nobody makes room for it."""
        prices = self.problem.prices
        if holding.is_movable and self.has_room(holding.amount_milli):
            return prices.move
        return prices.delete if self.problem.is_deletable(holding) else None

    def hopeful_price(self, holding: Holding) -> int | None:
        """What it will about cost where others may make room for it."""
        price = self.price(holding)
        return self._price_without_room if price is None and holding.is_movable else price

    def has_room(self, amount_milli: int) -> bool:
        if amount_milli not in self._has_room:
            self._has_room[amount_milli] = find_room(self.grid.free, amount_milli) is not None
        return self._has_room[amount_milli]

    # -------------------------------------------------------------------------------------------------- the lower bound

    def least_cost(self) -> int:
        """What every arrangement costs at least; IMPOSSIBLE where there can be none."""
        leaving = max(1, int(self.grid.cleared[:, self.problem.amount_milli // WHOLE].min()))
        deleted = self._least_deleted
        if leaving >= IMPOSSIBLE or deleted >= IMPOSSIBLE:
            return IMPOSSIBLE
        prices = self.problem.prices
        return prices.delete * deleted + prices.move * max(0, leaving - deleted)

    def _count_least_deleted(self) -> int:
        """How many jobs must go because there is less free altogether than is asked for."""
        missing_milli = self.problem.amount_milli - self.grid.free_milli
        if missing_milli <= 0:
            return 0
        amounts = sorted(
            (one.amount_milli for one in self.problem.jobs() if self.problem.is_deletable(one)), reverse=True
        )
        for count, amount_milli in enumerate(amounts, 1):
            missing_milli -= amount_milli
            if missing_milli <= 0:
                return count
        return IMPOSSIBLE
