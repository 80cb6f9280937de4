"""Tight clusters in which there is no room for what is asked, though the team has budget for it: drawn by a seed.

They differ in the sizes of machines and jobs, in types, in who has priority, and in who is over the budget.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import NamedTuple

from gpuyard.vdk import (
    Budget,
    CreateJob,
    DeleteJob,
    DeviceRequirements,
    DeviceShare,
    GpuResourceManager,
    JobAction,
    JobUniqueIdentifier,
    Machine,
    MoveJob,
    Place,
)
from gpuyard.vdk.model import Request
from gpuyard.vdk.pool.events import Planned, StepConfirmed
from tests.vdk.exact import WHOLE, Act, Ground, Job, Name, Question, Spot

PARTS = (100, 200, 250, 300, 400, 500, 500, 600, 700, 800, 900)
WHOLES = (1000, 1000, 1000, 2000, 2000, 3000, 4000)
MIXED = (1200, 1500, 1500, 2300, 2500)
ODD = (1, 333, 334, 501, 999, 1001, 1999)
REQUESTS = (100, 500, 700, 900, 1000, 1500, 2000, 2500, 3000, 4000, 5000, 6000, 8000)
MAX_JOBS = 40
"""In the clusters that are compared with the exact solver."""
ASKING = "asking"
TEAMS = ("a", "a", "b", "c", ASKING)


class Kind(NamedTuple):
    """What one family of clusters is like."""

    sizes: tuple[int, ...] = (4, 8, 8)
    """Devices of its machines; drawn once, or anew for each machine where `uneven`."""
    uneven: bool = False
    machines: tuple[int, int] = (2, 6)
    amounts: tuple[int, ...] = (*PARTS, *WHOLES, *MIXED)
    full: tuple[float, float] = (0.72, 1.0)
    priority: float = 0.2
    checkpointable: float = 0.4
    budgets: tuple[float, ...] = (0.3, 0.7, 0.9, 1.0, 1.3)
    """Of what a team uses."""
    types: tuple[str, ...] = ("gpu",)
    jobs: int = MAX_JOBS


KINDS = (
    Kind(),
    Kind(amounts=PARTS, sizes=(2, 4, 4)),
    Kind(amounts=WHOLES),
    Kind(sizes=(1, 2, 3, 4, 5, 6, 7, 8), uneven=True, machines=(1, 6)),
    Kind(priority=0.6, checkpointable=0.5),
    Kind(budgets=(0.8, 0.9, 0.95), full=(0.9, 1.0)),
    Kind(budgets=(1.0, 1.5), full=(0.6, 0.95)),
    Kind(types=("a100", "t4"), machines=(3, 6)),
    Kind(amounts=(*PARTS, *MIXED, *ODD), sizes=(3, 4)),
)
LARGE = (
    Kind(machines=(30, 60), full=(0.97, 1.0), budgets=(0.9, 1.0), jobs=600),
    Kind(machines=(30, 60), full=(0.9, 0.97), amounts=WHOLES, jobs=600),
    Kind(machines=(30, 60), full=(0.97, 1.0), amounts=PARTS, priority=0.7, jobs=900),
)
"""More than can be looked at one by one."""


class Tight(NamedTuple):
    machines: list[Machine]
    jobs: list[Job]
    types: dict[str, str]
    """Machine → type."""
    budgets: dict[tuple[str, str], int]
    wanted: list[DeviceRequirements]

    def question(self, wanted: DeviceRequirements) -> Question:
        sizes = {one.name: one.devices for one in self.machines if one.device_type == wanted.device_type}
        jobs = [job for job in self.jobs if job.spot[0] in sizes]
        over = {team: -self.budgets[team, wanted.device_type] for team in TEAMS}
        for job in jobs:
            over[job.name[0]] += job.amount
        return Question(sizes, jobs, over, wanted.amount_milli)

    def has_budget(self, wanted: DeviceRequirements) -> bool:
        return self.question(wanted).over[ASKING] + wanted.amount_milli <= 0


# ------------------------------------------------------------------------------------------------------------- drawing


def tight(seed: int, kinds: tuple[Kind, ...] = KINDS) -> Tight:
    chance = random.Random(seed)
    kind = kinds[seed % len(kinds)]
    while True:
        drawn = _draw(chance, kind)
        if drawn is not None:
            return drawn


def _draw(chance: random.Random, kind: Kind) -> Tight | None:
    machines = _machines(chance, kind)
    types = {machine.name: machine.device_type for machine in machines}
    ground = Ground({machine.name: machine.devices for machine in machines})
    jobs = _fill(chance, kind, machines, ground)
    wanted = [one for type_ in kind.types for one in _wishes(chance, type_, machines, jobs)]
    if not wanted:
        return None
    chance.shuffle(wanted)
    wanted = wanted[: chance.randint(1, 2)]
    budgets = _budgets(chance, kind, types, jobs)
    for one in wanted:
        used = sum(job.amount for job in jobs if job.name[0] == ASKING and types[job.spot[0]] == one.device_type)
        least = used + one.amount_milli
        budgets[ASKING, one.device_type] = max(budgets[ASKING, one.device_type], least)
    return Tight(machines, jobs, types, budgets, wanted)


def _machines(chance: random.Random, kind: Kind) -> list[Machine]:
    size = chance.choice(kind.sizes)
    return [
        Machine(f"m{at}", chance.choice(kind.sizes) if kind.uneven else size, chance.choice(kind.types))
        for at in range(chance.randint(*kind.machines))
    ]


def _fill(chance: random.Random, kind: Kind, machines: list[Machine], ground: Ground) -> list[Job]:
    jobs: list[Job] = []
    amounts = [one for one in kind.amounts if one < 2500 or chance.random() < 0.5]
    enough = sum(ground.free.values()) * (1 - chance.uniform(*kind.full))
    for number in range(10 * kind.jobs):
        if len(jobs) == kind.jobs or sum(ground.free.values()) <= enough:
            break
        amount = chance.choice(amounts)
        spot = _somewhere(chance, ground, chance.choice(machines), amount)
        if spot is not None:
            ground.put(spot)
            name = (chance.choice(TEAMS), f"j{number}")
            priority = chance.random() < kind.priority
            jobs.append(Job(name, amount, priority, chance.random() < kind.checkpointable, spot))
    return jobs


def _somewhere(chance: random.Random, ground: Ground, machine: Machine, amount: int) -> Spot | None:
    """Any place, not the best: so the clusters are torn."""
    wholes, rest = divmod(amount, WHOLE)
    free = [ground.free[machine.name, device] for device in range(machine.devices)]
    empty = [device for device, milli in enumerate(free) if milli == WHOLE]
    if len(empty) < wholes:
        return None
    chosen = sorted(chance.sample(empty, wholes))
    shares = [(device, WHOLE) for device in chosen]
    if rest:
        fitting = [device for device, milli in enumerate(free) if milli >= rest and device not in chosen]
        if not fitting:
            return None
        shares.append((chance.choice(fitting), rest))
    return machine.name, tuple(shares)


def _wishes(chance: random.Random, type_: str, machines: list[Machine], jobs: list[Job]) -> list[DeviceRequirements]:
    """One amount for which there is no room on machines of this type, though one is large enough."""
    sizes = {machine.name: machine.devices for machine in machines if machine.device_type == type_}
    ground = Ground(sizes)
    for job in jobs:
        if job.spot[0] in sizes:
            ground.put(job.spot)
    largest = WHOLE * max(sizes.values(), default=0)
    amounts = [one for one in REQUESTS if one <= largest and not ground.has_room(one)]
    return [DeviceRequirements(chance.choice(amounts), type_)] if amounts else []


def _budgets(chance: random.Random, kind: Kind, types: dict[str, str], jobs: list[Job]) -> dict[tuple[str, str], int]:
    used: dict[tuple[str, str], int] = defaultdict(int)
    for job in jobs:
        used[job.name[0], types[job.spot[0]]] += job.amount
    return {
        (team, type_): int(used[team, type_] * chance.choice(kind.budgets)) // 100 * 100
        for team in sorted(set(TEAMS))
        for type_ in kind.types
    }


# -------------------------------------------------------------------------------------------------------------- asking


def manager_of(drawn: Tight) -> GpuResourceManager:
    """A manager whose jobs lie where they were drawn, which it would not have chosen itself."""
    manager = GpuResourceManager(clock=lambda: 0)
    for machine in drawn.machines:
        manager.set_machine(machine)
    for (team, type_), milli in drawn.budgets.items():
        manager.set_budget(Budget(team, milli, type_))
    with manager._log.change():
        for number, job in enumerate(drawn.jobs, 1):
            id, type_ = id_of(job.name), drawn.types[job.spot[0]]
            request = Request(id, (DeviceRequirements(job.amount, type_),), job.priority, job.checkpointable)
            create = CreateJob(str(number), 1, id, job.amount, place_of(job.spot))
            manager._log.enter(Planned(str(number), request, type_, (create,), 1), 0)
            manager._log.enter(StepConfirmed(str(number), 1, 1), 0)
    return manager


def id_of(name: Name) -> JobUniqueIdentifier:
    return JobUniqueIdentifier(job=name[1], team=name[0])


def place_of(spot: Spot) -> Place:
    return Place(spot[0], tuple(DeviceShare(device, milli) for device, milli in spot[1]))


def spot_of(place: Place | None) -> Spot | None:
    if place is None:
        return None
    return place.machine, tuple((share.device, share.amount_milli) for share in place.shares)


def act_of(action: JobAction) -> Act:
    """An action of ours as plain values."""
    name = (action.job.team, action.job.job)
    match action:
        case CreateJob():
            return Act("create", name, action.amount_milli, None, spot_of(action.place))
        case MoveJob():
            return Act("move", name, action.amount_milli, spot_of(action.source), spot_of(action.place))
        case DeleteJob():
            return Act("delete", name, action.amount_milli, spot_of(action.place), None)
