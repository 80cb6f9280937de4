"""Small pools for examples, and what they answer as words a person reads."""

from __future__ import annotations

from collections.abc import Iterable

from gpuyard.vdk import (
    Budget,
    CreateJob,
    DeleteJob,
    GpuResourceManager,
    JobAction,
    JobUniqueIdentifier,
    Machine,
    MoveJob,
    Place,
)
from gpuyard.vdk.log import Log
from gpuyard.vdk.model import StepState
from gpuyard.vdk.pool.amounts import read_amount
from gpuyard.vdk.pool.fold import story
from gpuyard.vdk.port import Amount
from gpuyard.worlds.standalone.store.memory import MemoryStore

MINUTE_MS = 60_000


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def a_pool(*devices: int, clock: Clock | None = None, **budgets: Amount) -> GpuResourceManager:
    """Machines m1, m2 ... with so many devices; teams with so much."""
    pool = GpuResourceManager(clock=clock or Clock(), expiry_ms=MINUTE_MS)
    for number, count in enumerate(devices, 1):
        pool.set_machine(Machine(f"m{number}", count))
    for team, amount in budgets.items():
        pool.set_budget(Budget(team, read_amount(amount)))
    return pool


def pool_on(store: MemoryStore, clock: Clock, snapshot_every: int) -> GpuResourceManager:
    """A pool whose state is in this store."""
    pool = GpuResourceManager(clock=clock, expiry_ms=MINUTE_MS)
    pool._log.close()
    pool._log = Log(store, story(), snapshot_every=snapshot_every)
    return pool


def job(name: str) -> JobUniqueIdentifier:
    """team/job"""
    team, _, own = name.partition("/")
    return JobUniqueIdentifier(job=own, team=team)


def ask(
    pool: GpuResourceManager, name: str, amount: Amount, *, priority: bool = False, checkpointable: bool = False
) -> list[JobAction]:
    return pool.try_provision_resources(job(name), amount, priority=priority, checkpointable=checkpointable)


def start(
    pool: GpuResourceManager, name: str, amount: Amount, *, priority: bool = False, checkpointable: bool = False
) -> list[JobAction]:
    """Ask for a place, and carry out what it takes."""
    actions = ask(pool, name, amount, priority=priority, checkpointable=checkpointable)
    confirm(pool, actions)
    return actions


def confirm(pool: GpuResourceManager, actions: Iterable[JobAction]) -> None:
    for action in actions:
        pool.confirm(action.plan, action.number)


def told(actions: Iterable[JobAction]) -> list[str]:
    """create b/new m1:0 · move a/x m1:0 > m2:1 · delete a/y"""
    return [_told(action) for action in actions]


def _told(action: JobAction) -> str:
    name = f"{action.job.team}/{action.job.job}"
    match action:
        case CreateJob():
            return f"create {name} {_where(action.place)}"
        case MoveJob():
            return f"move {name} {_where(action.source)} > {_where(action.place)}"
        case DeleteJob():
            return f"delete {name}"


def _where(place: Place | None) -> str:
    if place is None:
        return "stopped"
    return f"{place.machine}:{','.join(str(share.device) for share in place.shares)}"


def lying(pool: GpuResourceManager) -> dict[str, str]:
    """Where every job is, as confirmed."""
    return {f"{view.id.team}/{view.id.job}": _where(view.place) for view in pool.jobs()}


def states(pool: GpuResourceManager, plan: str) -> list[StepState]:
    return [step.state for step in pool.plan(plan).steps]
