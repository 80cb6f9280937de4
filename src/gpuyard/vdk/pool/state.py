"""The whole state of a pool: machines, budgets, both views of the books, open plans, and what is over.

Place in the flow: log ─events─▶ fold ─▶ **state** ─▶ planner, readiness, views. Only what cannot be derived is saved:
*later* is *now* with all open plans carried out, in the order they were made. Invariant: carried out in that order,
every step of every open plan finds its place free, so work can always go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import msgspec

from gpuyard.vdk.model import (
    Budget,
    CreateJob,
    DeleteJob,
    DeviceRequirements,
    JobAction,
    JobUniqueIdentifier,
    Machine,
    MoveJob,
    Place,
    Plan,
    Request,
    StepState,
)
from gpuyard.vdk.pool.books import Books, Holding

KEPT_PLANS: Final = 1_000
"""Plans that are over and can still be asked for."""
KEPT_ENDED: Final = 10_000
"""Jobs that are over and still known to be: an end told twice is then told apart from a job never heard of."""

PENDING: Final = StepState.WAITING
"""How an open step is kept; whether it is ready is reckoned when somebody asks."""

Key = TypeVar("Key")
Value = TypeVar("Value")

StepKey = tuple[int, int]
"""The number of a plan and the number of a step: the order in which everything was planned."""


def key_of(action: JobAction) -> StepKey:
    return int(action.plan), action.number


def target_of(action: JobAction) -> Place | None:
    return None if isinstance(action, DeleteJob) else action.place


def source_of(action: JobAction) -> Place | None:
    match action:
        case DeleteJob():
            return action.place
        case MoveJob():
            return action.source
    return None


def pending(plan: Plan) -> list[JobAction]:
    """Its actions that are neither confirmed nor void, in order."""
    return [step.action for step in plan.steps if step.state is PENDING]


class Agenda:
    """The open steps of all open plans, found by their job and by the devices they go to."""

    def __init__(self) -> None:
        self.about: dict[JobUniqueIdentifier, dict[StepKey, JobAction]] = {}
        self.going_to: dict[tuple[str, int], dict[StepKey, int]] = {}

    def add(self, actions: Iterable[JobAction]) -> None:
        for action in actions:
            self.about.setdefault(action.job, {})[key_of(action)] = action
            for device, amount_milli in _devices(action):
                self.going_to.setdefault(device, {})[key_of(action)] = amount_milli

    def drop(self, actions: Iterable[JobAction]) -> None:
        for action in actions:
            _discard(self.about, action.job, key_of(action))
            for device, _ in _devices(action):
                _discard(self.going_to, device, key_of(action))

    def of_job(self, job: JobUniqueIdentifier) -> list[JobAction]:
        return list(self.about.get(job, {}).values())


def _devices(action: JobAction) -> Iterator[tuple[tuple[str, int], int]]:
    target = target_of(action)
    if target is not None:
        for share in target.shares:
            yield (target.machine, share.device), share.amount_milli


def _discard(index: dict[Key, dict[StepKey, Value]], key: Key, step: StepKey) -> None:
    del index[key][step]
    if not index[key]:
        del index[key]


class Saved(msgspec.Struct):
    """A state as a snapshot keeps it."""

    machines: list[Machine]
    budgets: list[Budget]
    jobs: list[Holding]
    open_plans: list[tuple[Plan, str]]
    closed_plans: list[Plan]
    ended: list[tuple[JobUniqueIdentifier, int]]
    last_plan: int


class State:
    def __init__(self) -> None:
        self.machines: dict[str, Machine] = {}
        self.budgets: dict[tuple[str, str], int] = {}
        """Of a team, of a device type."""
        self.teams: set[str] = set()
        self.now = Books()
        self.later = Books()
        self.agenda = Agenda()
        self.plans: dict[str, Plan] = {}
        """Those that are open, oldest first."""
        self.device_types: dict[str, str] = {}
        """Open plan → the type of its job's devices."""
        self.closed: dict[str, Plan] = {}
        self.ended: dict[JobUniqueIdentifier, int] = {}
        self.last_plan = 0
        self.next_expiry_ms = 0
        """No open plan is overdue before this moment."""

    def budget_milli(self, team: str, device_type: str) -> int:
        return self.budgets.get((team, device_type), 0)

    def holding(self, job: JobUniqueIdentifier) -> Holding | None:
        return self.later.jobs.get(job) or self.now.jobs.get(job)

    def plan_of(self, job: JobUniqueIdentifier) -> str:
        """The open plan that creates this job; "" if there is none."""
        for action in self.agenda.of_job(job):
            if isinstance(action, CreateJob):
                return action.plan
        return ""


def planned_holding(plan: Plan, action: CreateJob, device_type: str) -> Holding:
    """The job of a request, at the place its plan gives it."""
    request = plan.request
    return Holding(
        action.job,
        action.amount_milli,
        device_type,
        request.priority,
        request.checkpointable,
        action.place,
        plan.made_at_ms,
    )


def carry_out(books: Books, action: JobAction, plan: Plan, device_type: str) -> None:
    """Do one step in one of the views."""
    match action:
        case DeleteJob():
            books.take(action.job)
        case MoveJob():
            books.replace(books.jobs[action.job].at(action.place))
        case CreateJob():
            books.put(planned_holding(plan, action, device_type))


def can_carry_out(books: Books, action: JobAction) -> bool:
    """Whether the job is where the step expects it, and its new place is free, its old one counted as free."""
    holding = books.jobs.get(action.job)
    if isinstance(action, CreateJob):
        return holding is None and books.holds(action.place)
    if holding is None or holding.place != source_of(action):
        return False
    target = target_of(action)
    if target is None:
        return True
    books.take(action.job)
    fits = books.holds(target)
    books.put(holding)
    return fits


def saved(state: State) -> Saved:
    return Saved(
        machines=list(state.machines.values()),
        budgets=[Budget(team, milli, type_) for (team, type_), milli in state.budgets.items()],
        jobs=list(state.now.jobs.values()),
        open_plans=[(plan, state.device_types[id]) for id, plan in state.plans.items()],
        closed_plans=list(state.closed.values()),
        ended=list(state.ended.items()),
        last_plan=state.last_plan,
    )


def restored(saved: Saved) -> State:
    state = State()
    state.machines = {machine.name: machine for machine in saved.machines}
    state.budgets = {(budget.team, budget.device_type): budget.amount_milli for budget in saved.budgets}
    state.teams = {budget.team for budget in saved.budgets}
    state.now.set_machines(saved.machines)
    for holding in saved.jobs:
        state.now.put(holding)
    for plan, device_type in saved.open_plans:
        state.plans[plan.id], state.device_types[plan.id] = plan, device_type
        state.agenda.add(pending(plan))
    state.closed = {plan.id: plan for plan in saved.closed_plans}
    state.ended = dict(saved.ended)
    state.last_plan = saved.last_plan
    rebuild_later(state)
    return state


def rebuild_later(state: State) -> None:
    """What will be, from what is confirmed and what is open."""
    before, state.later = state.later, state.now.copy()
    for plan in state.plans.values():
        for action in pending(plan):
            carry_out(state.later, action, plan, state.device_types[plan.id])
    for device_type, grid in state.later.grids.items():
        if device_type in before.grids:
            grid.remember(before.grids[device_type])


def request_of(holding: Holding) -> Request:
    """A request that asks for what the job has."""
    wanted = (DeviceRequirements(holding.amount_milli, holding.device_type),)
    return Request(holding.id, wanted, holding.priority, holding.checkpointable)
