"""What can happen to a pool. The books are the fold of these; each says all that its fold needs.

Place in the flow: pool decides ─**events**─▶ log ─▶ store, and fold ─▶ state.
"""

from __future__ import annotations

import msgspec

from gpuyard.vdk.model import Budget, JobAction, JobUniqueIdentifier, Machine, Request


class MachineSet(msgspec.Struct, frozen=True, tag="machine-set"):
    machine: Machine


class MachineRemoved(msgspec.Struct, frozen=True, tag="machine-removed"):
    name: str


class BudgetSet(msgspec.Struct, frozen=True, tag="budget-set"):
    budget: Budget


class TeamRemoved(msgspec.Struct, frozen=True, tag="team-removed"):
    team: str


class Planned(msgspec.Struct, frozen=True, tag="planned"):
    """A request, or a parked job, was given a place; `actions` lead there."""

    plan: str
    request: Request
    device_type: str
    actions: tuple[JobAction, ...]
    expires_at_ms: int


class StepConfirmed(msgspec.Struct, frozen=True, tag="step-confirmed"):
    plan: str
    number: int
    expires_at_ms: int


class PlanPutOff(msgspec.Struct, frozen=True, tag="plan-put-off"):
    """It was overdue, but only because it waits for another plan."""

    plan: str
    expires_at_ms: int


class Undone(msgspec.Struct, frozen=True):
    """What is not confirmed of a plan is not going to happen."""

    plan: str
    note: str
    failed: int = 0
    """The step that could not be done; 0: none."""


class PlansRolledBack(msgspec.Struct, frozen=True, tag="plans-rolled-back"):
    """A plan, and all that no longer fit without it."""

    plans: tuple[Undone, ...]


class JobOver(msgspec.Struct, frozen=True, tag="job-ended"):
    job: JobUniqueIdentifier


class PriorityMarked(msgspec.Struct, frozen=True, tag="priority-marked"):
    job: JobUniqueIdentifier
    priority: bool


Event = (
    MachineSet
    | MachineRemoved
    | BudgetSet
    | TeamRemoved
    | Planned
    | StepConfirmed
    | PlanPutOff
    | PlansRolledBack
    | JobOver
    | PriorityMarked
)
