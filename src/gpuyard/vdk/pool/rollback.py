"""What is undone with a plan, and what becomes of a job that was stopped on its way.

Place in the flow: pool (a failed step, an overdue plan, a job that was given priority) ─▶ **rollback** ─events─▶ log.
The other open plans are tried again on what is then left, oldest first; one that no longer fits is undone, too, and
one that was to delete a job of a team which is over its budget only by what is undone.
Invariant: what stays open can be carried out in the order it was planned.
"""

from __future__ import annotations

from gpuyard.vdk.model import (
    CreateJob,
    DeleteJob,
    JobAction,
    JobUniqueIdentifier,
    MoveJob,
    Place,
    Plan,
    StepState,
)
from gpuyard.vdk.pool.books import Books, Holding
from gpuyard.vdk.pool.events import Planned, PlansRolledBack, Undone
from gpuyard.vdk.pool.room import find_room, place_of
from gpuyard.vdk.pool.state import State, can_carry_out, carry_out, pending, request_of


def roll_back(state: State, undone: Undone) -> PlansRolledBack:
    """This plan, and all that do not fit without it."""
    books = state.now.copy()
    gone = []
    smaller: set[str] = set()
    for plan in state.plans.values():
        if plan.id == undone.plan:
            gone.append(undone)
        elif not _still_fits(books, state, plan, smaller):
            gone.append(Undone(plan.id, f"it was built on plan {undone.plan}, which was rolled back"))
        else:
            continue
        smaller |= {action.job.team for action in pending(plan) if isinstance(action, CreateJob)}
    return PlansRolledBack(tuple(gone))


def _still_fits(books: Books, state: State, plan: Plan, smaller: set[str]) -> bool:
    """Carries the plan out on the books; where a step cannot be done, those before it are taken back."""
    before: dict[JobUniqueIdentifier, Holding | None] = {}
    for action in pending(plan):
        if not can_carry_out(books, action) or _is_unjust(books, state, action, smaller):
            _restore(books, before)
            return False
        before.setdefault(action.job, books.jobs.get(action.job))
        carry_out(books, action, plan, state.device_types[plan.id])
    return True


def _is_unjust(books: Books, state: State, action: JobAction, smaller: set[str]) -> bool:
    """Whether it deletes a job of a team that is within its budget, because something of it is undone."""
    if not isinstance(action, DeleteJob) or action.job.team not in smaller:
        return False
    team, device_type = action.job.team, books.jobs[action.job].device_type
    return books.used_milli(team, device_type) <= state.budget_milli(team, device_type)


def _restore(books: Books, before: dict[JobUniqueIdentifier, Holding | None]) -> None:
    for id in before:
        if id in books.jobs:
            books.take(id)
    for holding in before.values():
        if holding is not None:
            books.put(holding)


def plans_against(state: State, job: JobUniqueIdentifier) -> list[str]:
    """Open plans that are to delete this job."""
    return [action.plan for action in state.agenda.of_job(job) if isinstance(action, DeleteJob)]


def rescue(state: State, expires_at_ms: int) -> Planned | None:
    """A plan for the first parked job that nobody is going to start, if there is room for it now."""
    for id in sorted(state.later.parked):
        holding = state.later.parked[id]
        place = _place_for(state, holding)
        if place is not None:
            plan = str(state.last_plan + 1)
            step = MoveJob(plan, 1, id, holding.amount_milli, None, place)
            return Planned(plan, request_of(holding), holding.device_type, (step,), expires_at_ms)
    return None


def _place_for(state: State, holding: Holding) -> Place | None:
    """Where it was, where it was going, or anywhere."""
    for place in _places_of_old(state, holding.id):
        if state.later.holds(place):
            return place
    grid = state.later.grids.get(holding.device_type)
    spot = None if grid is None else find_room(grid.free, holding.amount_milli)
    return None if grid is None or spot is None else place_of(grid, spot)


def _places_of_old(state: State, job: JobUniqueIdentifier) -> list[Place]:
    """From the newest plan that has stopped it: its source, then its target."""
    for plan in reversed(state.closed.values()):
        moves = [step for step in plan.steps if isinstance(step.action, MoveJob) and step.action.job == job]
        if any(step.state is StepState.CONFIRMED for step in moves):
            actions = [step.action for step in moves if isinstance(step.action, MoveJob)]
            sources = [action.source for action in actions if action.source is not None]
            return sources + [action.place for action in actions if action.place is not None]
    return []
