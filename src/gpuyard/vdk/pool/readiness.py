"""Which steps may be carried out now, and what the others wait for.

A step is ready when the steps before it in its plan are confirmed or void, its job is where the step expects it, and
its target is free *now*. What older plans are still to put there, or to do with the same job, goes first: so the
oldest open step is always ready, and plans never wait for each other in a circle.
"""

from __future__ import annotations

from gpuyard.vdk.model import CreateJob, DeleteJob, JobAction, MoveJob, Place, Plan, PlanState, Step, StepState
from gpuyard.vdk.pool.books import Holding
from gpuyard.vdk.pool.refusals import job_text
from gpuyard.vdk.pool.state import PENDING, State, StepKey, key_of, pending, source_of, target_of


def shown(state: State, plan: Plan) -> Plan:
    """The plan as a caller sees it: open steps are ready, or wait for something that has a name."""
    if plan.state is not PlanState.OPEN:
        return plan
    steps = tuple(_shown_step(state, plan, step) for step in plan.steps)
    return Plan(plan.id, plan.request, steps, plan.state, plan.made_at_ms, plan.expires_at_ms)


def _shown_step(state: State, plan: Plan, step: Step) -> Step:
    if step.state is not PENDING:
        return step
    waits = waits_for(state, plan, step.action)
    return Step(step.action, StepState.WAITING, f"waits for {waits}") if waits else Step(step.action, StepState.READY)


def has_ready_step(state: State, plan: Plan) -> bool:
    first = pending(plan)[0]
    return not waits_for(state, plan, first)


def waits_for(state: State, plan: Plan, action: JobAction) -> str:
    """What has to happen first; "" if the step is ready."""
    first = pending(plan)[0]
    if first.number < action.number:
        return step_text(first)
    for other in state.agenda.of_job(action.job):
        if key_of(other) < key_of(action):
            return step_text(other)
    holding = state.now.jobs.get(action.job)
    if source_of(action) != (None if holding is None else holding.place):
        return f"{job_text(action.job)} to be at its place"
    target = target_of(action)
    return "" if target is None else _target_waits(state, action, target, holding)


def _target_waits(state: State, action: JobAction, target: Place, holding: Holding | None) -> str:
    own_milli = _shares_at(holding, target.machine)
    for share in target.shares:
        coming = state.agenda.going_to.get((target.machine, share.device), {})
        older_milli = sum(milli for key, milli in coming.items() if key < key_of(action))
        free_milli = state.now.free_milli(target.machine, share.device) + own_milli.get(share.device, 0)
        if free_milli - older_milli < share.amount_milli:
            return _who_is_there(state, key_of(action), target.machine, share.device)
    return ""


def _shares_at(holding: Holding | None, machine: str) -> dict[int, int]:
    if holding is None or holding.place is None or holding.place.machine != machine:
        return {}
    return {share.device: share.amount_milli for share in holding.place.shares}


def _who_is_there(state: State, before: StepKey, machine: str, device: int) -> str:
    """The first open step that leaves the device, or is to go there first."""
    steps = [action for plan in state.plans.values() for action in pending(plan) if key_of(action) < before]
    for action in steps:
        source = source_of(action)
        if source and source.machine == machine and any(share.device == device for share in source.shares):
            return step_text(action)
    for action in steps:
        target = target_of(action)
        if target and target.machine == machine and any(share.device == device for share in target.shares):
            return step_text(action)
    return f"device {device} of {machine} to be free"


def step_text(action: JobAction) -> str:
    match action:
        case DeleteJob():
            what = "delete"
        case MoveJob():
            what = "move"
        case CreateJob():
            what = "create"
    return f"step {action.number} of plan {action.plan} ({what} {job_text(action.job)})"
