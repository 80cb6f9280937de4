"""The pool's values as objects of the REST API. Place in the flow: desk ─values─▶ **objects** ─JSON─▶ the client."""

from __future__ import annotations

from gpuyard.model.quantities import format_milli
from gpuyard.service.moments import moment
from gpuyard.vdk.model import (
    Budget,
    Cost,
    CreateJob,
    DeleteJob,
    JobAction,
    JobUniqueIdentifier,
    JobView,
    Machine,
    MoveJob,
    Place,
    Plan,
    Quote,
    Step,
    WayOut,
)
from gpuyard.wire import pool as wire


def place_object(place: Place | None) -> wire.PoolPlace | None:
    if place is None:
        return None
    shares = tuple(wire.PoolShare(share.device, format_milli(share.amount_milli)) for share in place.shares)
    return wire.PoolPlace(place.machine, shares)


def _id_object(id: JobUniqueIdentifier) -> wire.PoolJobId:
    return wire.PoolJobId(id.job, id.team)


def action_name(action: JobAction) -> str:
    """As the seed calls them."""
    match action:
        case CreateJob():
            return "CreateJob"
        case MoveJob():
            return "MoveJob"
        case DeleteJob():
            return "DeleteJob"


def _action_object(step: Step) -> wire.PoolAction:
    action = step.action
    return wire.PoolAction(
        action=action_name(action),
        number=action.number,
        name=action.job.job,
        team=action.job.team,
        machine=action.machine,
        device=action.device,
        amount=format_milli(action.amount_milli),
        place=place_object(action.place),
        source=place_object(action.source) if isinstance(action, MoveJob) else None,
        state=step.state,
        note=step.note,
    )


def plan_object(plan: Plan) -> wire.PoolPlan:
    request = plan.request
    return wire.PoolPlan(
        plan=plan.id,
        name=request.id.job,
        team=request.id.team,
        state=plan.state,
        actions=tuple(map(_action_object, plan.steps)),
        alternatives=tuple(
            wire.PoolAlternative(format_milli(one.amount_milli), one.device_type) for one in request.alternatives
        ),
        priority=request.priority,
        checkpointable=request.checkpointable,
        made_at=moment(plan.made_at_ms),
        expires_at=moment(plan.expires_at_ms),
    )


def _cost_object(cost: Cost) -> wire.PoolCost:
    return wire.PoolCost(tuple(map(_id_object, cost.deleted)), tuple(map(_id_object, cost.moved)))


def amount_or_nothing(amount_milli: int) -> str:
    return format_milli(amount_milli) if amount_milli else ""


def _way_object(way: WayOut) -> wire.PoolWayOut:
    return wire.PoolWayOut(
        what=way.what,
        ends=tuple(map(_id_object, way.ends)),
        amount=amount_or_nothing(way.amount_milli),
        budget=amount_or_nothing(way.budget_milli),
        cost=_cost_object(way.cost),
    )


def quote_object(quote: Quote) -> wire.PoolQuote:
    return wire.PoolQuote(
        verdict=quote.verdict,
        why=quote.why,
        place=place_object(quote.place),
        cost=_cost_object(quote.cost),
        when=quote.when,
        ways_out=tuple(map(_way_object, quote.ways_out)),
    )


def job_object(view: JobView) -> wire.PoolJob:
    return wire.PoolJob(
        name=view.id.job,
        team=view.id.team,
        amount=format_milli(view.amount_milli),
        device_type=view.device_type,
        priority=view.priority,
        checkpointable=view.checkpointable,
        place=place_object(view.place),
        next_place=place_object(view.next_place),
        since=moment(view.since_ms),
    )


def machine_object(machine: Machine) -> wire.PoolMachine:
    return wire.PoolMachine(machine.name, machine.devices, machine.device_type)


def budget_object(budget: Budget) -> wire.PoolBudget:
    return wire.PoolBudget(budget.team, format_milli(budget.amount_milli), budget.device_type)
