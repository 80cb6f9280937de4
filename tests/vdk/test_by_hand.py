"""Thousands of random sequences of the three calls on tiny clusters, every answer judged by exhaustion (`by_hand`).

The platform confirms at once, later or never: what was answered counts in any case.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

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
    ProvisionError,
)
from tests.vdk.by_hand import Name, Step, Yard
from tests.vdk.by_hand import Place as Plain

pytestmark = pytest.mark.slow

GROUPS = 60 if os.environ.get("GPUYARD_LONG") == "1" else 6
SEQUENCES = 50
"""In one group."""
TURNS = 40
TEAMS = ("a", "b", "c")
MAX_JOBS = 7
"""All arrangements of more would take too long."""
AMOUNTS = (
    (100, 300, 500, 600, 700, 1000),
    (500, 500, 1000, 1000, 2000),
    (250, 333, 400, 600, 999, 1000, 1500),
    (1000, 1000, 2000, 3000),
)


class Sequence:
    """One manager, and the yard that judges it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        machines = {f"m{at}": self.chance.choice((1, 2, 2)) for at in range(self.chance.randint(1, 3))}
        capacity = sum(machines.values())
        least = self.chance.choice((0, 0, capacity))
        budgets = {team: 500 * self.chance.randint(least, 2 * capacity) for team in TEAMS}
        self.yard = Yard(machines, budgets)
        self.manager = GpuResourceManager(expiry_ms=None)
        for machine, devices in machines.items():
            self.manager.set_machine(Machine(machine, devices))
        for team, milli in budgets.items():
            self.manager.set_budget(Budget(team, milli))
        self.amounts = self.chance.choice(AMOUNTS)
        self.confirms = self.chance.choice((0.0, 0.3, 1.0, 1.0))
        self.names: list[Name] = []
        self.open: list[JobAction] = []

    def run(self) -> None:
        with self.manager:
            for _ in range(TURNS):
                calls = [self.end, self.end, self.mark] + [self.provision] * (len(self.yard.jobs) < MAX_JOBS) * 5
                self.chance.choice(calls)()
                self.check()

    def check(self) -> None:
        """Everybody is, or is going to be, where the yard has them."""
        views = {(view.id.team, view.id.job): view for view in self.manager.jobs() if view.next_place is not None}
        assert {name: plain(view.next_place) for name, view in views.items()} == {
            name: job.place for name, job in self.yard.jobs.items()
        }
        assert all(views[name].priority == job.priority for name, job in self.yard.jobs.items())

    def provision(self) -> None:
        team = "nobody" if self.chance.random() < 0.02 else self.chance.choice(TEAMS)
        name = self.chance.choice(self.names) if self.names and self.chance.random() < 0.1 else (team, self.a_new_job())
        amount = self.chance.choice(self.amounts)
        flags = self.chance.random() < 0.25, self.chance.random() < 0.5
        try:
            actions = self.manager.try_provision_resources(
                id_of(name), f"{amount / 1000}", priority=flags[0], checkpointable=flags[1]
            )
        except ProvisionError as error:
            self.yard.refused(name, amount, error.reason)
            return
        self.names.append(name)
        self.yard.provisioned(name, amount, flags, list(map(step_of, actions)))
        self.open += actions
        if self.chance.random() < self.confirms:
            self.confirm()

    def a_new_job(self) -> str:
        return f"j{len(self.names)}-{self.chance.randrange(10**6)}"

    def confirm(self) -> None:
        """All that is open, in the order it was planned."""
        for action in self.open:
            self.manager.confirm(action.plan, action.number)
        self.open.clear()

    def a_name(self) -> Name:
        there = sorted(self.yard.jobs)
        return self.chance.choice(there) if there and self.chance.random() < 0.95 else ("a", "never")

    def end(self) -> None:
        name = self.a_name()
        self.yard.ended(name, refusal(lambda: self.manager.job_ended(id_of(name))))

    def mark(self) -> None:
        name, priority = self.a_name(), self.chance.random() < 0.3
        if any(isinstance(action, DeleteJob) and id_of(name) == action.job for action in self.open):
            # An older job of that name is still to be deleted, and would be kept after all.
            return
        self.yard.marked(name, priority, refusal(lambda: self.manager.mark_job_priority(id_of(name), priority)))


def refusal(call: Callable[[], None]) -> str:
    try:
        call()
    except ProvisionError as error:
        return error.reason
    return ""


def id_of(name: Name) -> JobUniqueIdentifier:
    return JobUniqueIdentifier(team=name[0], job=name[1])


def plain(place: Place | None) -> Plain | None:
    """Whole devices first, each kind in order."""
    if place is None:
        return None
    shares = [(share.device, share.amount_milli) for share in place.shares]
    return place.machine, tuple(sorted(shares, key=lambda share: (-share[1], share[0])))


def step_of(action: JobAction) -> Step:
    name = (action.job.team, action.job.job)
    match action:
        case CreateJob():
            return Step("create", name, action.amount_milli, None, plain(action.place))
        case DeleteJob():
            return Step("delete", name, action.amount_milli, plain(action.place), None)
        case MoveJob():
            return Step("move", name, action.amount_milli, plain(action.source), plain(action.place))


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_answer_to_the_three_calls_is_the_best_there_is(group: int) -> None:
    for seed in range(group * SEQUENCES, (group + 1) * SEQUENCES):
        Sequence(seed).run()
