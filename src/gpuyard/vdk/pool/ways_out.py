"""What would let a refused request run: jobs that end, a smaller amount, a larger budget.

Place in the flow: quoting ─desk, request─▶ **ways_out** ─planner on copies─▶ quote. Each way is tried: what is offered
here would be planned at once, at the cost it names, if nothing else changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import numpy as np

from gpuyard.vdk.errors import NoAvailableBudgetException, ProvisionError
from gpuyard.vdk.model import Cost, DeviceRequirements, JobUniqueIdentifier, Request, WayOut
from gpuyard.vdk.pool.books import Books, Grid, Holding
from gpuyard.vdk.pool.clearing import Clearing, Layout, clearings
from gpuyard.vdk.pool.planner import Decision, Desk, alternatives, attempt, could_ever_hold
from gpuyard.vdk.pool.refusals import amount_text, job_text, names_text
from gpuyard.vdk.pool.room import largest_room

MAX_ROWS: Final = 32
"""Machines that are looked at for jobs whose end would make room: with most room, and with fewest jobs."""

replace = msgspec.structs.replace


def cost_of(decision: Decision) -> Cost:
    found = decision.arrangement
    return Cost(tuple(one.id for one in found.deleted), tuple(one.holding.id for one in found.moved))


def ways_out(desk: Desk, request: Request, refusal: ProvisionError) -> tuple[WayOut, ...]:
    """In the order in which a person would try them."""
    wanted = alternatives(desk, request)
    possible = [one for one in wanted if could_ever_hold(desk.books.grids.get(one.device_type), one.amount_milli)]
    found = list(_after_ends(desk, request, possible))
    if isinstance(refusal, NoAvailableBudgetException):
        found += _after_own_ends(desk, request, possible)
        found += _with_budget(desk, request, possible)
    return (*dict.fromkeys(found), *_with_less(desk, wanted))


def _tried(desk: Desk, request: Request) -> Cost | None:
    """What it would cost; None: it would still be refused."""
    found = attempt(desk, request)
    return cost_of(found) if isinstance(found, Decision) else None


# ---------------------------------------------------------------------------------------------------------------- ends


def _after_ends(desk: Desk, request: Request, possible: Iterable[DeviceRequirements]) -> Iterator[WayOut]:
    """The fewest jobs of one machine whose end leaves room there."""
    found = [clearing for one in possible if (clearing := _fewest(desk.books.grids[one.device_type], one)) is not None]
    if found:
        yield from _ended(desk, request, min(found, key=lambda one: one.rank).leaving)


def _fewest(grid: Grid, wanted: DeviceRequirements) -> Clearing | None:
    found: list[Clearing] = []
    for row in _rows(grid):
        free = grid.free[row].tolist()[: grid.machines[row].devices]
        jobs = sorted(grid.jobs[row].values(), key=lambda one: one.id)
        found += clearings(row, Layout(free, jobs, lambda _: 1), wanted.amount_milli)[:1]
    return min(found, key=lambda one: one.rank, default=None)


def _rows(grid: Grid) -> list[int]:
    roomy = np.argsort(-grid.free.sum(axis=1), kind="stable")
    quiet = np.argsort([len(jobs) for jobs in grid.jobs], kind="stable")
    return list(dict.fromkeys(int(row) for order in (roomy, quiet) for row in order[:MAX_ROWS]))


def _after_own_ends(desk: Desk, request: Request, possible: Iterable[DeviceRequirements]) -> Iterator[WayOut]:
    """Jobs of the team itself: it then has budget again."""
    for one in possible:
        ending = _making_budget(desk, request.id.team, one)
        ways = list(_ended(desk, request, ending)) if ending else []
        if ways:
            yield ways[0]
            return


def _making_budget(desk: Desk, team: str, wanted: DeviceRequirements) -> list[Holding]:
    """The largest first, last the smallest that is enough; none if all of them are not."""
    used_milli = desk.books.used_milli(team, wanted.device_type)
    missing_milli = used_milli + wanted.amount_milli - desk.budget_milli(team, wanted.device_type)
    own = [job for job in desk.books.jobs.values() if job.id.team == team and job.device_type == wanted.device_type]
    own.sort(key=lambda job: (-job.amount_milli, job.id))
    ending: list[Holding] = []
    while own and missing_milli > 0:
        enough = [job for job in own if job.amount_milli >= missing_milli]
        ending.append(enough[-1] if enough else own[0])
        own.remove(ending[-1])
        missing_milli -= ending[-1].amount_milli
    return ending if missing_milli <= 0 else []


def _ended(desk: Desk, request: Request, ending: Iterable[Holding]) -> Iterator[WayOut]:
    ids = tuple(job.id for job in ending)
    cost = _tried(replace(desk, books=_without(desk.books, ids)), request)
    if cost is not None:
        what = f"{job_text(ids[0])} has" if len(ids) == 1 else f"{names_text([job_text(id) for id in ids])} have"
        yield WayOut(f"once {what} ended", ends=ids, cost=cost)


def _without(books: Books, ids: Iterable[JobUniqueIdentifier]) -> Books:
    twin = books.copy()
    for id in ids:
        twin.take(id)
    return twin


# ------------------------------------------------------------------------------------------------------ budget and less


def _with_budget(desk: Desk, request: Request, possible: Iterable[DeviceRequirements]) -> Iterator[WayOut]:
    """The least budget that is enough, and whom it would cost then."""
    team = request.id.team
    for one in possible:
        budget_milli = desk.books.used_milli(team, one.device_type) + one.amount_milli
        budgets = {**desk.budgets, (team, one.device_type): budget_milli}
        cost = _tried(replace(desk, budgets=budgets), request)
        if cost is not None:
            what = f"with a budget of {amount_text(budget_milli, one.device_type)}"
            yield WayOut(what, budget_milli=budget_milli, cost=cost)
            return


def _with_less(desk: Desk, wanted: Iterable[DeviceRequirements]) -> Iterator[WayOut]:
    """The most that has room as things are."""
    rooms = [(largest_room(desk.books.grids[one.device_type].free), one) for one in wanted if _has_grid(desk, one)]
    for room_milli, one in sorted(rooms, key=lambda found: -found[0])[:1]:
        if room_milli:
            yield WayOut(f"with at most {amount_text(room_milli, one.device_type)}", amount_milli=room_milli)


def _has_grid(desk: Desk, wanted: DeviceRequirements) -> bool:
    return wanted.device_type in desk.books.grids
