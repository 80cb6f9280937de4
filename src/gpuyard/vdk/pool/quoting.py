"""What would come of a request, and what would make it run. Nothing is booked.

Place in the flow: pool ─books, request─▶ **quoting** ─planner, ways_out─▶ quote.
"""

from __future__ import annotations

from gpuyard.vdk.errors import NeverFitsError, NoAvailableBudgetException, ProvisionError
from gpuyard.vdk.model import Cost, Quote, Request, Verdict
from gpuyard.vdk.pool.books import Books
from gpuyard.vdk.pool.planner import Decision, Desk, attempt
from gpuyard.vdk.pool.refusals import job_text, names_text
from gpuyard.vdk.pool.ways_out import cost_of, ways_out


def quote(desk: Desk, request: Request, now: Books) -> Quote:
    """`now` is what is confirmed: a place may still have to be left by somebody."""
    found = attempt(desk, request)
    if isinstance(found, Decision):
        return _possible(found, now)
    ways = ways_out(desk, request, found)
    when = next((way.what for way in ways if way.ends), "")
    return Quote(_verdict(found), found.what, when=when, ways_out=ways)


def _possible(decision: Decision, now: Books) -> Quote:
    cost, place = cost_of(decision), decision.arrangement.place
    if cost != Cost():
        return Quote(Verdict.RESHUFFLE, _cost_text(cost), place, cost, "when these steps are done")
    when = "now" if now.holds(place) else "when the open plans are carried out"
    return Quote(Verdict.NOW, "there is room", place, when=when)


def _cost_text(cost: Cost) -> str:
    parts = [(cost.deleted, "deleted"), (cost.moved, "moved")]
    return "; ".join(f"{names_text(list(map(job_text, ids)))} would be {what}" for ids, what in parts if ids)


def _verdict(refusal: ProvisionError) -> Verdict:
    match refusal:
        case NoAvailableBudgetException():
            return Verdict.NO_BUDGET
        case NeverFitsError():
            return Verdict.NEVER
    return Verdict.NO_ARRANGEMENT
