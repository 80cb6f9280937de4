"""The GpuResourceManager that keeps the books of somebody else's machines.

Place in the flow: a platform ─calls─▶ **pool** ─decides─▶ events ─▶ log. One lock makes every call whole: it looks at
what is overdue, decides on the newest state, has its events written, and only then answers. A call that is refused
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Self

from gpuyard.platform.clock import wall_ms
from gpuyard.vdk.errors import (
    JobEndedError,
    JobKnownError,
    JobUnknownError,
    MachineBusyError,
    MachineUnknownError,
    PlanUnknownError,
    StepNotReadyError,
    StepOverError,
    StepUnknownError,
    TeamBusyError,
    TeamUnknownError,
)
from gpuyard.vdk.log import Log, store_of
from gpuyard.vdk.model import (
    DEFAULT_EXPIRY_MS,
    DEFAULT_PORTABILITY,
    Budget,
    JobAction,
    JobUniqueIdentifier,
    JobView,
    Machine,
    Plan,
    Quote,
    Request,
    Step,
    StepState,
)
from gpuyard.vdk.pool.amounts import (
    MAX_BUDGET_DEVICES,
    Wanted,
    check_devices,
    check_flag,
    check_job,
    check_milli,
    check_name,
    read_alternatives,
    read_prices,
)
from gpuyard.vdk.pool.events import (
    BudgetSet,
    JobOver,
    MachineRemoved,
    MachineSet,
    Planned,
    PlanPutOff,
    PriorityMarked,
    StepConfirmed,
    TeamRemoved,
    Undone,
)
from gpuyard.vdk.pool.fold import story
from gpuyard.vdk.pool.planner import Desk, decide
from gpuyard.vdk.pool.quoting import quote
from gpuyard.vdk.pool.readiness import has_ready_step, shown, step_text, waits_for
from gpuyard.vdk.pool.refusals import job_text, names_text
from gpuyard.vdk.pool.rollback import plans_against, rescue, roll_back
from gpuyard.vdk.pool.state import PENDING, State, pending, source_of, target_of
from gpuyard.vdk.pool.steps import actions_of
from gpuyard.vdk.port import Amount

NEVER_MS = 2**62
"""When plans expire that never do."""

Clock = Callable[[], int]
"""The time in ms since 1970."""


class Pool:
    """Shares GPUs between teams, for a platform that starts, moves and stops the jobs. See `port`.

    Its state is at this address: sqlite:///PATH, postgresql://..., or None: in memory, gone with the process.
    `expiry_ms` None: what is not confirmed is never rolled back by itself.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        markers: Path | None = None,
        clock: Clock = wall_ms,
        job_portability: Amount = DEFAULT_PORTABILITY,
        expiry_ms: int | None = DEFAULT_EXPIRY_MS,
    ) -> None:
        self._prices = read_prices(job_portability)
        self._clock = clock
        self._expiry_ms = expiry_ms
        self._lock = RLock()
        self._log = Log(store_of(address, markers), story())

    def close(self) -> None:
        with self._lock:
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -------------------------------------------------------------------------------------------------- the three calls

    def try_provision_resources(
        self,
        job: JobUniqueIdentifier,
        amount: Wanted,
        *,
        priority: bool = False,
        checkpointable: bool = False,
        key: str = "",
    ) -> list[JobAction]:
        request = _request(job, amount, priority, checkpointable, key)
        with self._change() as (state, now_ms):
            self._check_new(state, job)
            decision = decide(self._desk(state), request)
            plan = str(state.last_plan + 1)
            actions = actions_of(decision.problem, decision.arrangement, plan, job)
            event = Planned(plan, request, decision.device_type, actions, self._expiry(now_ms))
            self._log.enter(event, now_ms)
            return list(actions)

    def job_ended(self, job: JobUniqueIdentifier) -> None:
        check_job(job)
        with self._change() as (state, now_ms):
            self._check_known(state, job)
            self._log.enter(JobOver(job), now_ms)
            self._start_parked(state, now_ms)

    def mark_job_priority(self, job: JobUniqueIdentifier, priority: bool) -> None:
        check_job(job)
        check_flag(priority, "priority")
        with self._change() as (state, now_ms):
            self._check_known(state, job)
            self._log.enter(PriorityMarked(job, priority), now_ms)
            for plan in plans_against(state, job) if priority else ():
                if plan in state.plans:
                    self._roll_back(state, Undone(plan, f"{job_text(job)} was given priority"), now_ms)

    # ------------------------------------------------------------------------------------------------ acknowledged work

    def confirm(self, plan: str, number: int) -> Plan:
        with self._change() as (state, now_ms):
            step = self._open_step(state, plan, number)
            if step.state is not StepState.VOID:
                waits = waits_for(state, state.plans[plan], step.action)
                if waits:
                    raise StepNotReadyError(
                        f"{step_text(step.action)} is not ready: it waits for {waits}",
                        fix="carry out and confirm that first",
                    )
                self._log.enter(StepConfirmed(plan, number, self._expiry(now_ms)), now_ms)
            return shown(state, self._find(state, plan))

    def fail(self, plan: str, number: int, why: str = "") -> Plan:
        with self._change() as (state, now_ms):
            step = self._open_step(state, plan, number)
            if step.state is not StepState.VOID:
                note = f"step {number} failed: {why}" if why else f"step {number} failed"
                self._roll_back(state, Undone(plan, note, number), now_ms)
            return shown(state, self._find(state, plan))

    def expire(self) -> list[Plan]:
        with self._lock:
            ids = self._expire()
            state = self._log.state
            return [shown(state, self._find(state, id)) for id in ids]

    def plan(self, id: str) -> Plan:
        with self._view() as state:
            return shown(state, self._find(state, id))

    def plans(self, *, open_only: bool = True) -> list[Plan]:
        with self._view() as state:
            closed = [] if open_only else list(state.closed.values())
            found = sorted([*closed, *state.plans.values()], key=lambda plan: int(plan.id))
            return [shown(state, plan) for plan in found]

    def quote(
        self, job: JobUniqueIdentifier, amount: Wanted, *, priority: bool = False, checkpointable: bool = False
    ) -> Quote:
        request = _request(job, amount, priority, checkpointable)
        with self._view() as state:
            self._check_new(state, job)
            return quote(self._desk(state), request, state.now)

    # --------------------------------------------------------------------------------------------- machines and budgets

    def set_machine(self, machine: Machine) -> None:
        check_name(machine.name, "machine")
        check_name(machine.device_type, "device type")
        check_devices(machine.devices)
        with self._change() as (state, now_ms):
            old = state.machines.get(machine.name)
            if old is not None:
                kept = machine.devices if machine.device_type == old.device_type else 0
                self._check_unused(state, machine.name, kept)
            self._log.enter(MachineSet(machine), now_ms)
            self._start_parked(state, now_ms)

    def remove_machine(self, name: str) -> None:
        with self._change() as (state, now_ms):
            if name not in state.machines:
                raise MachineUnknownError(f'there is no machine "{name}"', fix="see the list of machines")
            self._check_unused(state, name, 0)
            self._log.enter(MachineRemoved(name), now_ms)

    def machines(self) -> list[Machine]:
        with self._view() as state:
            return [state.machines[name] for name in sorted(state.machines)]

    def set_budget(self, budget: Budget) -> None:
        check_name(budget.team, "team")
        check_name(budget.device_type, "device type")
        check_milli(budget.amount_milli, "budget", MAX_BUDGET_DEVICES)
        with self._change() as (_, now_ms):
            self._log.enter(BudgetSet(budget), now_ms)

    def remove_team(self, team: str) -> None:
        with self._change() as (state, now_ms):
            if team not in state.teams:
                raise _team_unknown(team)
            known = sorted({id.job for books in (state.now, state.later) for id in books.jobs if id.team == team})
            if known:
                raise TeamBusyError(
                    f'team "{team}" has {len(known)} jobs: {names_text(known)}',
                    fix="let them end first, then remove it",
                )
            self._log.enter(TeamRemoved(team), now_ms)

    def budgets(self) -> list[Budget]:
        with self._view() as state:
            return [Budget(team, milli, type_) for (team, type_), milli in sorted(state.budgets.items())]

    def jobs(self, *, team: str | None = None) -> list[JobView]:
        with self._view() as state:
            ids = sorted(state.now.jobs.keys() | state.later.jobs.keys())
            return [_job_view(state, id) for id in ids if team is None or id.team == team]

    # ------------------------------------------------------------------------------------------------------- the inside

    @contextmanager
    def _change(self) -> Iterator[tuple[State, int]]:
        """The newest state, nothing overdue in it; what is entered meanwhile is written when it ends."""
        with self._lock:
            self._expire()
            with self._log.change() as state:
                yield state, self._clock()

    @contextmanager
    def _view(self) -> Iterator[State]:
        with self._lock:
            self._expire()
            yield self._log.state

    def _expire(self) -> list[str]:
        """Roll back what is overdue, as a change of its own; the plans it concerned."""
        now_ms = self._clock()
        if now_ms < self._log.state.next_expiry_ms:
            return []
        ids: list[str] = []
        with self._log.change() as state:
            for id in [plan.id for plan in state.plans.values() if plan.expires_at_ms <= now_ms]:
                if id in state.plans:
                    ids += self._overdue(state, state.plans[id], now_ms)
            state.next_expiry_ms = min((plan.expires_at_ms for plan in state.plans.values()), default=NEVER_MS)
        return ids

    def _overdue(self, state: State, plan: Plan, now_ms: int) -> list[str]:
        if has_ready_step(state, plan):
            return self._roll_back(state, Undone(plan.id, "nobody confirmed it in time"), now_ms)
        # It waits for another plan, whose caller has not done his part; its own could do nothing.
        self._log.enter(PlanPutOff(plan.id, self._expiry(now_ms)), now_ms)
        return []

    def _roll_back(self, state: State, undone: Undone, now_ms: int) -> list[str]:
        event = roll_back(state, undone)
        self._log.enter(event, now_ms)
        self._start_parked(state, now_ms)
        return [one.plan for one in event.plans]

    def _start_parked(self, state: State, now_ms: int) -> None:
        """Jobs that were stopped for a plan that is no more get plans of their own, as far as there is room."""
        while state.later.parked:
            event = rescue(state, self._expiry(now_ms))
            if event is None:
                return
            self._log.enter(event, now_ms)

    def _desk(self, state: State) -> Desk:
        return Desk(state.later, state.budgets, self._prices)

    def _expiry(self, now_ms: int) -> int:
        return NEVER_MS if self._expiry_ms is None else now_ms + self._expiry_ms

    # ----------------------------------------------------------------------------------------------------------- checks

    def _check_new(self, state: State, job: JobUniqueIdentifier) -> None:
        if job.team not in state.teams:
            raise _team_unknown(job.team)
        if job not in state.later.jobs:
            return
        plan = state.plan_of(job)
        if plan:
            raise JobKnownError(
                f"{job_text(job)} is being started by plan {plan}, which is open",
                fix=f"carry out plan {plan}; it still stands",
            )
        raise JobKnownError(
            f"{job_text(job)} has a place already", fix="end it first, or give the new one another name"
        )

    def _check_known(self, state: State, job: JobUniqueIdentifier) -> None:
        # One that is created and deleted by open plans is in neither of the books, and still somebody's.
        if state.holding(job) is not None or state.agenda.of_job(job):
            return
        if job in state.ended:
            raise JobEndedError(f"{job_text(job)} has ended before", fix="nothing is left to do")
        if job.team not in state.teams:
            raise _team_unknown(job.team)
        raise JobUnknownError(f"there is no {job_text(job)}", fix="see the list of jobs")

    def _check_unused(self, state: State, machine: str, devices: int) -> None:
        """No job is, or is going to be, on a device of this number or above."""
        places = [(one.id, one.place) for books in (state.now, state.later) for one in books.jobs.values()]
        open_steps = [action for plan in state.plans.values() for action in pending(plan)]
        places += [(action.job, place) for action in open_steps for place in (source_of(action), target_of(action))]
        busy = {
            id
            for id, place in places
            if place is not None and place.machine == machine and any(share.device >= devices for share in place.shares)
        }
        if busy:
            raise MachineBusyError(
                f'{len(busy)} jobs hold or get devices of machine "{machine}" that would go:'
                f" {names_text([job_text(id) for id in sorted(busy)])}",
                fix="let them end first",
            )

    def _find(self, state: State, plan: str) -> Plan:
        found = state.plans.get(plan) or state.closed.get(plan)
        if found is None:
            raise PlanUnknownError(f"there is no plan {plan}", fix="see the list of plans; old ones are forgotten")
        return found

    def _open_step(self, state: State, plan: str, number: int) -> Step:
        """The step, if something can still be said about it."""
        steps = self._find(state, plan).steps
        if number not in range(1, len(steps) + 1):
            raise StepUnknownError(f"plan {plan} has no step {number}", fix=f"its steps count from 1 to {len(steps)}")
        step = steps[number - 1]
        if step.state not in (PENDING, StepState.VOID):
            note = f": {step.note}" if step.note else ""
            raise StepOverError(f"{step_text(step.action)} is {step.state.value} already{note}")
        return step


def _request(job: JobUniqueIdentifier, amount: Wanted, priority: bool, checkpointable: bool, key: str = "") -> Request:
    check_job(job)
    check_flag(priority, "priority")
    check_flag(checkpointable, "checkpointable")
    return Request(job, read_alternatives(amount), priority, checkpointable, key)


def _team_unknown(team: str) -> TeamUnknownError:
    return TeamUnknownError(f'there is no team "{team}"', fix="give it a budget first, be it zero")


def _job_view(state: State, id: JobUniqueIdentifier) -> JobView:
    now, later = state.now.jobs.get(id), state.later.jobs.get(id)
    known = later or now
    assert known is not None
    return JobView(
        id,
        known.amount_milli,
        known.device_type,
        known.priority,
        known.checkpointable,
        None if now is None else now.place,
        None if later is None else later.place,
        known.since_ms,
    )
