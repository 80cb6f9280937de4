"""Answers of the pool without what their reader may not know: jobs of other teams keep their team and place, no name.

Place in the flow: pool ─▶ **veil** ─▶ REST, gRPC. Sentences of the planner name whoever is in the way; a caller who
does not see all teams gets plainer ones, with the same verdict. Invariant: of a job of a team the caller does not see,
the name occurs nowhere in what comes out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from msgspec.structs import replace

from gpuyard.vdk.errors import NoArrangementError, ProvisionError, StepNotReadyError, StepOverError
from gpuyard.vdk.model import Cost, JobUniqueIdentifier, Plan, Quote, Step, StepState, Verdict, WayOut
from gpuyard.wire.access import Caller, Permission

NO_ARRANGEMENT: Final = "the team has budget for it, but no arrangement of the jobs makes room"
_WHY: Final[dict[Verdict, str]] = {
    Verdict.RESHUFFLE: "others are moved or deleted for it",
    Verdict.NO_ARRANGEMENT: NO_ARRANGEMENT,
}
_NOTES: Final[dict[StepState, str]] = {
    StepState.WAITING: "waits for a step before it, or for a place that another plan frees",
    StepState.VOID: "its job has ended",
    StepState.ROLLED_BACK: "rolled back",
}
_PLAINER: Final[dict[type[ProvisionError], tuple[str, str]]] = {
    NoArrangementError: (NO_ARRANGEMENT, "ask for less, end a job of the team, or ask for a quote"),
    StepNotReadyError: ("the step waits for another one, or for its place", "confirm the steps before it first"),
    StepOverError: ("the step was confirmed, failed or rolled back before", "look at the plan"),
}


class PoolVeil:
    """What one caller sees of the pool."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.lifted = caller.may(Permission.SEE_POOL)
        """Nothing is hidden from this caller."""

    def sees(self, id: JobUniqueIdentifier) -> bool:
        return self.lifted or self._caller.may(Permission.SEE_POOL, team=id.team)

    def id(self, id: JobUniqueIdentifier) -> JobUniqueIdentifier:
        return id if self.sees(id) else replace(id, job="")

    def plan(self, plan: Plan) -> Plan:
        return plan if self.lifted else replace(plan, steps=tuple(map(self._step, plan.steps)))

    def _step(self, step: Step) -> Step:
        action = replace(step.action, job=self.id(step.action.job))
        return Step(action, step.state, _NOTES.get(step.state, step.note) if step.note else "")

    def quote(self, quote: Quote) -> Quote:
        if self.lifted:
            return quote
        ways = tuple(map(self._way, quote.ways_out))
        return replace(
            quote,
            why=_WHY.get(quote.verdict, quote.why),
            cost=self._cost(quote.cost),
            when=quote.when if quote.verdict in (Verdict.NOW, Verdict.RESHUFFLE) else "",
            ways_out=ways,
        )

    def _way(self, way: WayOut) -> WayOut:
        named = (*way.ends, *way.cost.deleted, *way.cost.moved)
        if all(map(self.sees, named)):
            return way
        what = f"once {len(way.ends)} of the jobs have ended" if way.ends else "at the cost of other teams' jobs"
        return replace(way, what=what, ends=tuple(map(self.id, way.ends)), cost=self._cost(way.cost))

    def _cost(self, cost: Cost) -> Cost:
        return Cost(tuple(map(self.id, cost.deleted)), tuple(map(self.id, cost.moved)))

    @contextmanager
    def over_refusals(self) -> Iterator[None]:
        """Refusals whose sentences name jobs are told in plainer ones."""
        try:
            yield
        except ProvisionError as error:
            if self.lifted or type(error) not in _PLAINER:
                raise
            what, fix = _PLAINER[type(error)]
            raise type(error)(what, fix=fix, field=error.field) from None
