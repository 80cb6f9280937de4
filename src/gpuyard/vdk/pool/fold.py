"""The fold: what each event does to the state.

Place in the flow: log ─event─▶ **fold** ─▶ state. Nothing is decided here; an event that cannot be entered is a bug.
"""

from __future__ import annotations

import msgspec

from gpuyard.vdk.log import Story
from gpuyard.vdk.model import CreateJob, DeleteJob, JobAction, JobUniqueIdentifier, Plan, PlanState, Step, StepState
from gpuyard.vdk.pool.events import (
    BudgetSet,
    Event,
    JobOver,
    MachineRemoved,
    MachineSet,
    Planned,
    PlanPutOff,
    PlansRolledBack,
    PriorityMarked,
    StepConfirmed,
    TeamRemoved,
    Undone,
)
from gpuyard.vdk.pool.state import (
    KEPT_ENDED,
    KEPT_PLANS,
    PENDING,
    Saved,
    State,
    carry_out,
    pending,
    rebuild_later,
    restored,
    saved,
)

replace = msgspec.structs.replace

_DECODER = msgspec.msgpack.Decoder(Saved)


def story() -> Story[State, Event]:
    return Story(
        events=Event,
        empty=State,
        fold=fold,
        save=lambda state: msgspec.msgpack.encode(saved(state)),
        load=lambda body: restored(_DECODER.decode(body)),
    )


def fold(state: State, event: Event, at_ms: int) -> None:
    match event:
        case MachineSet():
            state.machines[event.machine.name] = event.machine
            _set_machines(state)
        case MachineRemoved():
            del state.machines[event.name]
            _set_machines(state)
        case BudgetSet():
            state.budgets[event.budget.team, event.budget.device_type] = event.budget.amount_milli
            state.teams.add(event.budget.team)
        case TeamRemoved():
            state.budgets = {key: milli for key, milli in state.budgets.items() if key[0] != event.team}
            state.teams.discard(event.team)
        case Planned():
            _planned(state, event, at_ms)
        case StepConfirmed():
            _confirmed(state, event, at_ms)
        case PlanPutOff():
            state.plans[event.plan] = replace(state.plans[event.plan], expires_at_ms=event.expires_at_ms)
        case PlansRolledBack():
            for undone in event.plans:
                _undo(state, undone)
            rebuild_later(state)
        case JobOver():
            _job_over(state, event.job, at_ms)
        case PriorityMarked():
            _marked(state, event)


def _set_machines(state: State) -> None:
    machines = list(state.machines.values())
    state.now.set_machines(machines)
    state.later.set_machines(machines)


def _planned(state: State, event: Planned, at_ms: int) -> None:
    steps = tuple(Step(action, PENDING) for action in event.actions)
    plan = Plan(event.plan, event.request, steps, PlanState.OPEN, at_ms, event.expires_at_ms)
    state.plans[plan.id], state.device_types[plan.id] = plan, event.device_type
    state.last_plan = int(plan.id)
    state.agenda.add(event.actions)
    state.next_expiry_ms = min(state.next_expiry_ms, event.expires_at_ms)
    for action in event.actions:
        carry_out(state.later, action, plan, event.device_type)


def _confirmed(state: State, event: StepConfirmed, at_ms: int) -> None:
    plan = replace(state.plans[event.plan], expires_at_ms=event.expires_at_ms)
    action = plan.steps[event.number - 1].action
    carry_out(state.now, action, plan, state.device_types[plan.id])
    if isinstance(action, DeleteJob):
        _remember_end(state, action.job, at_ms)
    _settle(state, plan, action, StepState.CONFIRMED, "")


def _settle(state: State, plan: Plan, action: JobAction, to: StepState, note: str) -> None:
    """One step is over; the plan with it if it was the last."""
    state.agenda.drop([action])
    steps = tuple(Step(action, to, note) if one.action is action else one for one in plan.steps)
    plan = replace(plan, steps=steps)
    if any(step.state is PENDING for step in steps):
        state.plans[plan.id] = plan
    else:
        _close(state, replace(plan, state=PlanState.DONE))


def _undo(state: State, undone: Undone) -> None:
    plan = state.plans[undone.plan]
    state.agenda.drop(pending(plan))
    steps = tuple(_undone_step(step, undone) for step in plan.steps)
    _close(state, replace(plan, steps=steps, state=PlanState.ROLLED_BACK))


def _undone_step(step: Step, undone: Undone) -> Step:
    if step.state is not PENDING:
        return step
    to = StepState.FAILED if step.action.number == undone.failed else StepState.ROLLED_BACK
    return replace(step, state=to, note=undone.note)


def _close(state: State, plan: Plan) -> None:
    del state.plans[plan.id], state.device_types[plan.id]
    state.closed[plan.id] = plan
    while len(state.closed) > KEPT_PLANS:
        del state.closed[next(iter(state.closed))]


def _job_over(state: State, job: JobUniqueIdentifier, at_ms: int) -> None:
    for books in (state.now, state.later):
        if job in books.jobs:
            books.take(job)
    for action in state.agenda.of_job(job):
        _settle(state, state.plans[action.plan], action, StepState.VOID, "its job has ended")
    _remember_end(state, job, at_ms)


def _remember_end(state: State, job: JobUniqueIdentifier, at_ms: int) -> None:
    # A job that ends a second time is remembered as new.
    state.ended.pop(job, None)
    state.ended[job] = at_ms
    while len(state.ended) > KEPT_ENDED:
        del state.ended[next(iter(state.ended))]


def _marked(state: State, event: PriorityMarked) -> None:
    for books in (state.now, state.later):
        if event.job in books.jobs:
            books.replace(replace(books.jobs[event.job], priority=event.priority))
    for action in state.agenda.of_job(event.job):
        if isinstance(action, CreateJob):
            plan = state.plans[action.plan]
            state.plans[plan.id] = replace(plan, request=replace(plan.request, priority=event.priority))
