"""Values of the GpuResourceManager: whose job, how much of which device, and what a platform has to do about it.

Place in the flow: a platform (VDK, a script, a JVM service) ─request─▶ manager ─**plan of steps**─▶ the platform, which
carries them out and confirms each. Amounts are thousandths of a device, exact; decimal text is read at the edge.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

DEFAULT_DEVICE_TYPE: Final = "gpu"
"""The type of a machine, and of a budget, that names none."""
ANY_DEVICE_TYPE: Final = ""
"""In a request: every type the machines have, in the order of their names."""

DEFAULT_PORTABILITY: Final = "0.9"
"""How much of a job is kept when it is moved; deleting one then costs as much as ten moves."""
DEFAULT_EXPIRY_MS: Final = 15 * 60_000
"""How long a step that is ready may stay unconfirmed."""


class JobUniqueIdentifier(msgspec.Struct, frozen=True, kw_only=True, order=True, gc=False):
    """A job is known by its name and its team together."""

    job: str
    team: str

    @property
    def unique_id(self) -> str:
        return f"{self.team}____{self.job}"


class DeviceShare(msgspec.Struct, frozen=True, gc=False):
    """What a job holds of one device of its machine: `amount_milli` 1000 is all of it."""

    device: int
    amount_milli: int


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a job lies: one machine, and its devices there."""

    machine: str
    shares: tuple[DeviceShare, ...]

    @property
    def device(self) -> int:
        """The first of its devices; the only one of a job that takes no more than one."""
        return self.shares[0].device


class DeviceRequirements(msgspec.Struct, frozen=True, gc=False):
    """One way to serve a request: so much of this type. 2.5 is two devices and half of a third, on one machine."""

    amount_milli: int
    device_type: str = ANY_DEVICE_TYPE


class Request(msgspec.Struct, frozen=True, gc=False):
    """A job that wants a place. `alternatives` are in the order of preference."""

    id: JobUniqueIdentifier
    alternatives: tuple[DeviceRequirements, ...]
    priority: bool = False
    """Never deleted for another job."""
    checkpointable: bool = False
    """May be moved although it has priority."""
    key: str = ""
    """Whatever the caller knows the request by, so that one that is sent twice is known again; empty: nothing."""


class CreateJob(msgspec.Struct, frozen=True, tag="create", tag_field="action", gc=False):
    """Start the job that was asked for."""

    plan: str
    number: int
    """Steps count from 1 and are carried out in this order."""
    job: JobUniqueIdentifier
    amount_milli: int
    place: Place

    @property
    def machine(self) -> str:
        return self.place.machine

    @property
    def device(self) -> int:
        return self.place.device


class MoveJob(msgspec.Struct, frozen=True, tag="move", tag_field="action", gc=False):
    """Stop the job where it is, then start it at its new place.

    Where jobs swap places, one of them is moved in two steps: the first stops it (`place` is None), a later one of the
    same plan (`source` is None) starts it.
    """

    plan: str
    number: int
    job: JobUniqueIdentifier
    amount_milli: int
    source: Place | None
    place: Place | None

    @property
    def machine(self) -> str | None:
        return None if self.place is None else self.place.machine

    @property
    def device(self) -> int | None:
        return None if self.place is None else self.place.device


class DeleteJob(msgspec.Struct, frozen=True, tag="delete", tag_field="action", gc=False):
    """Stop the job for good: its team is over its budget."""

    plan: str
    number: int
    job: JobUniqueIdentifier
    amount_milli: int
    place: Place

    @property
    def machine(self) -> str:
        return self.place.machine

    @property
    def device(self) -> int:
        return self.place.device


JobAction = CreateJob | MoveJob | DeleteJob


class StepState(enum.StrEnum):
    """Where a step of a plan stands."""

    WAITING = "waiting"
    """For a step before it, or for a place that another plan frees."""
    READY = "ready"
    CONFIRMED = "confirmed"
    FAILED = "failed"
    VOID = "void"
    """Nothing is left to do: its job has ended meanwhile."""
    ROLLED_BACK = "rolled-back"


class Step(msgspec.Struct, frozen=True, gc=False):
    action: JobAction
    state: StepState
    note: str = ""
    """Why it failed or was rolled back; what it waits for."""


class PlanState(enum.StrEnum):
    OPEN = "open"
    DONE = "done"
    ROLLED_BACK = "rolled-back"


class Plan(msgspec.Struct, frozen=True):
    """What was decided for one request, and how far it has come."""

    id: str
    request: Request
    steps: tuple[Step, ...]
    state: PlanState
    made_at_ms: int
    expires_at_ms: int
    """When what is still unconfirmed is rolled back; put off by every confirmation."""

    @property
    def actions(self) -> list[JobAction]:
        return [step.action for step in self.steps]


class Machine(msgspec.Struct, frozen=True, gc=False):
    name: str
    devices: int
    device_type: str = DEFAULT_DEVICE_TYPE


class Budget(msgspec.Struct, frozen=True, gc=False):
    """What a team is owed of one device type."""

    team: str
    amount_milli: int
    device_type: str = DEFAULT_DEVICE_TYPE


class JobView(msgspec.Struct, frozen=True, gc=False):
    """A job that holds a place or is getting one."""

    id: JobUniqueIdentifier
    amount_milli: int
    device_type: str
    priority: bool
    checkpointable: bool
    place: Place | None
    """Where it is now, as confirmed; None: not started, or stopped on its way."""
    next_place: Place | None
    """Where it will be once all open plans are carried out; None: it is being deleted."""
    since_ms: int


class Cost(msgspec.Struct, frozen=True, gc=False):
    """Whom a plan would cost."""

    deleted: tuple[JobUniqueIdentifier, ...] = ()
    moved: tuple[JobUniqueIdentifier, ...] = ()


class Verdict(enum.StrEnum):
    """How a quote answers."""

    NOW = "now"
    """There is room."""
    RESHUFFLE = "reshuffle"
    """Others are moved or deleted for it; `cost` says who."""
    NO_BUDGET = "no-budget"
    NO_ARRANGEMENT = "no-arrangement"
    NEVER = "never"
    """No machine is that large, or has that type."""


class WayOut(msgspec.Struct, frozen=True, gc=False):
    """One change that would let it run, tried on a copy of the books."""

    what: str
    """In words: once job x of team a has ended; with at most 3 devices; with a budget of 12."""
    ends: tuple[JobUniqueIdentifier, ...] = ()
    """Jobs whose end would be enough."""
    amount_milli: int = 0
    """A smaller amount that would be placed at once; 0: not this way."""
    budget_milli: int = 0
    """A budget that would be enough; 0: not this way."""
    cost: Cost = Cost()


class Quote(msgspec.Struct, frozen=True, gc=False):
    """What would come of a request, and what would make it run. Nothing is booked."""

    verdict: Verdict
    why: str
    place: Place | None = None
    cost: Cost = Cost()
    when: str = ""
    """When, as far as it is known: now, when which plans are carried out, or once which jobs have ended."""
    ways_out: tuple[WayOut, ...] = ()
