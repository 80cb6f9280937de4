"""The objects of /v1/pool, as a client sends and receives them: the GpuResourceManager over REST.

Place in the flow: a platform ─JSON─▶ service ─▶ vdk/serving ─**objects**─▶ sdk ─▶ cli. As in rest.py, amounts are
decimal text; a client may also send them as numbers, which are read by their shortest decimal form. Fields are only
ever added.
"""

from __future__ import annotations

import msgspec

from gpuyard.wire.moment import Moment

Decimal = str | int | float
"""An amount as a client may write it: "0.5", 0.5, 2."""


class PoolJobId(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job is known by its name and its team together. A job that is not for the caller to see has no name."""

    name: str
    team: str


class PoolShare(msgspec.Struct, frozen=True):
    """What a job holds of one device."""

    device: int
    amount: str


class PoolPlace(msgspec.Struct, frozen=True):
    """One machine, and a job's devices there."""

    machine: str
    shares: tuple[PoolShare, ...]


class PoolAlternative(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way to serve a request: so much of this type; without a type, of any there is."""

    amount: Decimal
    device_type: str = ""


class PoolRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A job that wants a place: an amount of any device, or alternatives in the order of preference."""

    name: str
    team: str
    amount: Decimal | None = None
    alternatives: tuple[PoolAlternative, ...] = ()
    priority: bool = False
    """Never deleted for another job."""
    checkpointable: bool = False
    """May be moved although it has priority."""


class PoolAction(msgspec.Struct, frozen=True, kw_only=True):
    """What the platform has to do: `CreateJob`, `MoveJob` or `DeleteJob`."""

    action: str
    number: int
    """Steps count from 1 and are carried out in this order."""
    name: str
    team: str
    machine: str | None
    """Where it starts; of a DeleteJob where it lies; null: a MoveJob that only stops it, for a later step to start."""
    device: int | None
    """The first of its devices there."""
    amount: str
    place: PoolPlace | None
    source: PoolPlace | None
    """Of a MoveJob: where it lies; null: an earlier step has stopped it."""
    state: str
    """waiting, ready, confirmed, failed, void, rolled-back"""
    note: str = ""
    """Why it failed or was rolled back; what it waits for."""


class PoolPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided for one request, and how far it has come."""

    plan: str
    name: str
    team: str
    state: str
    """open, done, rolled-back"""
    actions: tuple[PoolAction, ...]
    alternatives: tuple[PoolAlternative, ...]
    """What was asked for."""
    priority: bool
    checkpointable: bool
    made_at: Moment
    expires_at: Moment
    """When what is still unconfirmed is rolled back; put off by every confirmation."""


class PoolCost(msgspec.Struct, frozen=True):
    """Whom a plan would cost."""

    deleted: tuple[PoolJobId, ...] = ()
    moved: tuple[PoolJobId, ...] = ()


class PoolWayOut(msgspec.Struct, frozen=True, kw_only=True):
    """One change that would let it run, tried on a copy of the books."""

    what: str
    ends: tuple[PoolJobId, ...] = ()
    """Jobs whose end would be enough."""
    amount: str = ""
    """A smaller amount that would be placed at once; empty: not this way."""
    budget: str = ""
    """A budget that would be enough; empty: not this way."""
    cost: PoolCost = PoolCost()


class PoolQuote(msgspec.Struct, frozen=True, kw_only=True):
    """What would come of a request, and what would make it run."""

    verdict: str
    """now, reshuffle, no-budget, no-arrangement, never"""
    why: str
    place: PoolPlace | None
    cost: PoolCost
    when: str
    ways_out: tuple[PoolWayOut, ...]


class PoolJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that holds a place or is getting one."""

    name: str
    team: str
    amount: str
    device_type: str
    priority: bool
    checkpointable: bool
    place: PoolPlace | None
    """Where it is now, as confirmed; null: not started, or stopped on its way."""
    next_place: PoolPlace | None
    """Where it will be once all open plans are carried out; null: it is being deleted."""
    since: Moment


class PoolMachine(msgspec.Struct, frozen=True):
    """A machine of the platform."""

    name: str
    devices: int
    device_type: str


class PoolMachineChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a machine has."""

    devices: int
    device_type: str = ""
    """Empty: gpu."""


class PoolBudget(msgspec.Struct, frozen=True):
    """What a team is owed of one device type."""

    team: str
    amount: str
    device_type: str


class PoolBudgetChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a team shall be owed of one device type."""

    amount: Decimal
    device_type: str = ""
    """Empty: gpu."""


class PoolPriority(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job, and whether it is never to be deleted for others."""

    name: str
    team: str
    priority: bool


class PoolFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a step could not be carried out."""

    why: str = ""
