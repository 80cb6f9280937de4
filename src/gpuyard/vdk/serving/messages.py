"""The pool's values as messages of proto/gpuyard/pool/v1, and back.

Place in the flow: gRPC ─bytes─▶ **messages** ─values─▶ desk ─values─▶ **messages** ─bytes─▶ gRPC.
"""

from __future__ import annotations

from typing import Final

from gpuyard.errors import RefusedError
from gpuyard.model.quantities import format_milli
from gpuyard.service.limits import MAX_KEY_LENGTH
from gpuyard.service.problems import ProblemReason
from gpuyard.vdk.model import (
    DEFAULT_DEVICE_TYPE,
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
    PlanState,
    Quote,
    Step,
    StepState,
    Verdict,
    WayOut,
)
from gpuyard.vdk.serving import gpu_resource_manager_pb2 as pb
from gpuyard.vdk.serving.desk import Asked, Wish, check_wishes
from gpuyard.vdk.serving.objects import amount_or_nothing

STEP_STATES: Final = {
    StepState.WAITING: pb.STEP_STATE_WAITING,
    StepState.READY: pb.STEP_STATE_READY,
    StepState.CONFIRMED: pb.STEP_STATE_CONFIRMED,
    StepState.FAILED: pb.STEP_STATE_FAILED,
    StepState.VOID: pb.STEP_STATE_VOID,
    StepState.ROLLED_BACK: pb.STEP_STATE_ROLLED_BACK,
}
PLAN_STATES: Final = {
    PlanState.OPEN: pb.PLAN_STATE_OPEN,
    PlanState.DONE: pb.PLAN_STATE_DONE,
    PlanState.ROLLED_BACK: pb.PLAN_STATE_ROLLED_BACK,
}
VERDICTS: Final = {
    Verdict.NOW: pb.VERDICT_NOW,
    Verdict.RESHUFFLE: pb.VERDICT_RESHUFFLE,
    Verdict.NO_BUDGET: pb.VERDICT_NO_BUDGET,
    Verdict.NO_ARRANGEMENT: pb.VERDICT_NO_ARRANGEMENT,
    Verdict.NEVER: pb.VERDICT_NEVER,
}


# ------------------------------------------------------------------------------------------------------------- reading


def id_of(message: pb.JobUniqueIdentifier) -> JobUniqueIdentifier:
    return JobUniqueIdentifier(job=message.job, team=message.team)


def asked_of(message: pb.ProvisionRequest) -> Asked:
    if len(message.idempotency_key) > MAX_KEY_LENGTH:
        what = f"the idempotency_key has more than {MAX_KEY_LENGTH} characters"
        raise RefusedError(ProblemReason.BAD_FIELD, what, fix="use a UUID", field="idempotency_key")
    return Asked(
        job=id_of(message.job),
        wishes=check_wishes(tuple(Wish(one.amount, one.device_type) for one in message.alternatives)),
        priority=message.priority,
        checkpointable=message.checkpointable,
        key=message.idempotency_key,
    )


def machine_of(message: pb.Machine) -> Machine:
    return Machine(message.name, message.devices, message.device_type or DEFAULT_DEVICE_TYPE)


def wish_of(message: pb.Budget) -> Wish:
    return Wish(message.amount, message.device_type or DEFAULT_DEVICE_TYPE)


# ------------------------------------------------------------------------------------------------------------- writing


def id_message(id: JobUniqueIdentifier) -> pb.JobUniqueIdentifier:
    return pb.JobUniqueIdentifier(job=id.job, team=id.team)


def place_message(place: Place | None) -> pb.Place | None:
    if place is None:
        return None
    shares = [pb.DeviceShare(device=share.device, amount=format_milli(share.amount_milli)) for share in place.shares]
    return pb.Place(machine=place.machine, shares=shares)


def action_message(action: JobAction) -> pb.JobAction:
    message = pb.JobAction(number=action.number, job=id_message(action.job), amount=format_milli(action.amount_milli))
    place = place_message(action.place)
    match action:
        case CreateJob():
            message.create.CopyFrom(pb.CreateJob(place=place))
        case MoveJob():
            message.move.CopyFrom(pb.MoveJob(source=place_message(action.source), place=place))
        case DeleteJob():
            message.delete.CopyFrom(pb.DeleteJob(place=place))
    return message


def step_message(step: Step) -> pb.Step:
    return pb.Step(action=action_message(step.action), state=STEP_STATES[step.state], note=step.note)


def plan_message(plan: Plan) -> pb.Plan:
    request = plan.request
    alternatives = [
        pb.DeviceRequirements(amount=format_milli(one.amount_milli), device_type=one.device_type)
        for one in request.alternatives
    ]
    return pb.Plan(
        id=plan.id,
        request=pb.ProvisionRequest(
            job=id_message(request.id),
            alternatives=alternatives,
            priority=request.priority,
            checkpointable=request.checkpointable,
        ),
        steps=list(map(step_message, plan.steps)),
        state=PLAN_STATES[plan.state],
        made_at_ms=plan.made_at_ms,
        expires_at_ms=plan.expires_at_ms,
    )


def cost_message(cost: Cost) -> pb.Cost:
    return pb.Cost(deleted=list(map(id_message, cost.deleted)), moved=list(map(id_message, cost.moved)))


def way_message(way: WayOut) -> pb.WayOut:
    return pb.WayOut(
        what=way.what,
        ends=list(map(id_message, way.ends)),
        amount=amount_or_nothing(way.amount_milli),
        budget=amount_or_nothing(way.budget_milli),
        cost=cost_message(way.cost),
    )


def quote_message(quote: Quote) -> pb.QuoteResponse:
    return pb.QuoteResponse(
        verdict=VERDICTS[quote.verdict],
        why=quote.why,
        place=place_message(quote.place),
        cost=cost_message(quote.cost),
        when=quote.when,
        ways_out=list(map(way_message, quote.ways_out)),
    )


def machine_message(machine: Machine) -> pb.Machine:
    return pb.Machine(name=machine.name, devices=machine.devices, device_type=machine.device_type)


def budget_message(budget: Budget) -> pb.Budget:
    return pb.Budget(team=budget.team, amount=format_milli(budget.amount_milli), device_type=budget.device_type)


def job_message(view: JobView) -> pb.Job:
    return pb.Job(
        id=id_message(view.id),
        amount=format_milli(view.amount_milli),
        device_type=view.device_type,
        priority=view.priority,
        checkpointable=view.checkpointable,
        place=place_message(view.place),
        next_place=place_message(view.next_place),
        since_ms=view.since_ms,
    )
