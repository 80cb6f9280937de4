"""A manager driven at random, every answer judged by the rules: the three calls, and all that can come between.

Time is a number the driver sets. With a twin (the same calls on another manager, which may be closed and opened at any
moment) both must always answer alike: the same state gives the same plan.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from gpuyard.vdk import (
    Budget,
    DeviceRequirements,
    GpuResourceManager,
    JobAction,
    Machine,
    Plan,
    ProvisionError,
    Quote,
    Verdict,
)
from gpuyard.vdk.model import PlanState, StepState
from tests.vdk.exact import Name
from tests.vdk.rules import Asked, Open, Rules, Wish
from tests.vdk.tight import act_of, id_of, spot_of

EXPIRY_MS = 1_000
PARTS = (100, 200, 250, 300, 333, 400, 500, 500, 600, 700, 900, 999)
WHOLES = (1000, 1000, 1000, 1000, 2000, 2000, 3000)
AMOUNTS = (PARTS, WHOLES, (*PARTS, *WHOLES, 1500, 1500, 2500), (500, 600, 1000, 1000, 1500, 2000))
TEAMS = ("a", "b", "c")
NOBODY = "nobody"
OPEN_STATES = (StepState.READY, StepState.WAITING)

Answer = TypeVar("Answer")


class Refused(NamedTuple):
    word: str


class Driver:
    """One manager, or two that must not differ."""

    def __init__(self, seed: int, *managers: GpuResourceManager, clock: list[int]) -> None:
        self.chance = random.Random(seed)
        self.managers = list(managers)
        self.clock = clock
        self.rules = Rules()
        self.numbers = 0
        self.names: list[Name] = []
        self.types = self.chance.choice((("gpu",), ("gpu",), ("a100", "t4")))
        self.amounts = self.chance.choice(AMOUNTS)
        self.turns = self.a_mix()
        self.set_up()

    def a_mix(self) -> list[Callable[[], None]]:
        """How often what happens: some platforms confirm at once, some seldom; jobs are long or short."""
        draw = self.chance.randint
        weights = {
            self.provision: draw(8, 16),
            self.confirm: draw(2, 16),
            self.end: draw(1, 5),
            self.mark: draw(1, 3),
            self.fail: draw(0, 2),
            self.wait: draw(0, 2),
            self.quote: 1,
            self.change_budget: draw(0, 1),
            self.change_machine: draw(0, 1),
        }
        return [turn for turn, weight in weights.items() for _ in range(weight)]

    # ---------------------------------------------------------------------------------------------------- the managers

    def ask(self, call: Callable[[GpuResourceManager], Answer]) -> Answer | Refused:
        """Both answer alike; what is refused has changed nothing."""
        answers = [self.asked(manager, call) for manager in self.managers]
        assert all(answer == answers[0] for answer in answers)
        return answers[0]

    def asked(self, manager: GpuResourceManager, call: Callable[[GpuResourceManager], Answer]) -> Answer | Refused:
        before = everything(manager)
        try:
            return call(manager)
        except ProvisionError as error:
            assert everything(manager) == before
            return Refused(error.reason)

    def check(self) -> None:
        """All that can be seen is what the rules say."""
        planned = self.rules.planned()
        for manager in self.managers:
            seen = {(view.id.team, view.id.job): view for view in manager.jobs()}
            assert seen.keys() == planned.keys() | self.rules.real.keys()
            for name, view in seen.items():
                now, later = self.rules.real.get(name), planned.get(name)
                assert spot_of(view.place) == (now.spot if now else None)
                assert spot_of(view.next_place) == (later.spot if later else None)
                held = later or now
                assert held is not None
                assert held[:4] == (view.amount_milli, view.device_type, view.priority, view.checkpointable)
            plans = {int(plan.id): pending(plan) for plan in manager.plans()}
            assert plans == {id: list(plan.steps.items()) for id, plan in self.rules.plans.items()}

    def left(self) -> tuple[list[int], dict[int, Open]]:
        """Which of the plans are still open; and those that nobody asked for."""
        known = max(self.rules.lengths, default=0)
        plans = {int(plan.id): plan for plan in self.managers[0].plans(open_only=False)}
        for id, plan in plans.items():
            self.rules.lengths.setdefault(id, len(plan.steps))
        still = {id: plan for id, plan in plans.items() if plan.state is PlanState.OPEN}
        rescues = {id: rescue_of(plan) for id, plan in still.items() if id > known}
        return [id for id in still if id <= known], rescues

    # -------------------------------------------------------------------------------------------------------- the yard

    def set_up(self) -> None:
        for at in range(self.chance.randint(2, 4)):
            self.set_machine(f"m{at}", self.chance.randint(1, 4), self.chance.choice(self.types))
        for team in TEAMS:
            for _ in self.types:
                self.set_budget(team)

    def set_machine(self, name: str, devices: int, type: str) -> None:
        assert self.ask(lambda manager: manager.set_machine(Machine(name, devices, type))) is None
        self.rules.machines[name] = (devices, type)
        self.rules.rescued(self.left()[1])

    def set_budget(self, team: str) -> None:
        type = self.chance.choice(self.types)
        capacity = sum(devices for devices, of in self.rules.machines.values() if of == type)
        milli = 500 * self.chance.randint(0, capacity + 1)
        assert self.ask(lambda manager: manager.set_budget(Budget(team, milli, type))) is None
        self.rules.budgets[team, type] = milli

    # --------------------------------------------------------------------------------------------------------- one turn

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.turn()
            self.check()

    def turn(self) -> None:
        self.chance.choice(self.turns)()

    def a_name(self) -> Name:
        """New, known, over, or of nobody."""
        if self.names and self.chance.random() < 0.1:
            return self.chance.choice(self.names)
        self.numbers += 1
        team = NOBODY if self.chance.random() < 0.02 else self.chance.choice((*TEAMS, *(self.owed_most(),) * 3))
        self.names.append((team, f"j{self.numbers}"))
        return self.names[-1]

    def owed_most(self) -> str:
        jobs, rules = self.rules.planned(), self.rules
        spare = {key: milli - rules.used(jobs, *key) for key, milli in rules.budgets.items()}
        return max(sorted(spare), key=spare.__getitem__)[0]

    def a_wish(self) -> Wish:
        type = "absent" if self.chance.random() < 0.02 else self.chance.choice((*self.types, ""))
        return self.chance.choice(self.amounts), type

    def a_request(self) -> Asked:
        wishes = tuple(self.a_wish() for _ in range(self.chance.choice((1, 1, 1, 2))))
        return Asked(self.a_name(), wishes, self.chance.random() < 0.15, self.chance.random() < 0.4)

    def provision(self) -> None:
        asked = self.a_request()
        answer = self.ask(lambda manager: provisioned(manager, asked))
        if isinstance(answer, Refused):
            self.rules.refused(asked, answer.word)
            return
        assert [action.number for action in answer] == list(range(1, len(answer) + 1))
        self.rules.provisioned(asked, int(answer[0].plan), list(map(act_of, answer)))

    def quote(self) -> None:
        asked = self.a_request()
        before = everything(self.managers[0])
        answer = self.ask(
            lambda manager: manager.quote(
                id_of(asked.name), wanted(asked), priority=asked.priority, checkpointable=asked.checkpointable
            )
        )
        assert everything(self.managers[0]) == before
        if isinstance(answer, Refused):
            assert answer.word in ("TeamUnknown", "JobKnown")
            self.rules.refused(asked, answer.word)
        else:
            assert answer.verdict in self.verdicts(asked)
            self.try_ways_out(asked, answer)

    def verdicts(self, asked: Asked) -> tuple[Verdict, ...]:
        match self.rules.verdict(asked)[0]:
            case "room":
                return (Verdict.NOW,)
            case "no-budget":
                return (Verdict.NO_BUDGET,)
        return (Verdict.RESHUFFLE, Verdict.NO_ARRANGEMENT, Verdict.NEVER)

    def try_ways_out(self, asked: Asked, quote: Quote) -> None:
        """What a quote offers must be enough."""
        jobs = self.rules.planned()
        for way in quote.ways_out:
            ends = {(id.team, id.job) for id in way.ends}
            if way.amount_milli:
                wishes = self.rules.wishes(asked)
                assert any(self.rules.ground(jobs, type).has_room(way.amount_milli) for _, type in wishes)
            elif ends and not way.cost.deleted and not way.cost.moved:
                rest = {name: held for name, held in jobs.items() if name not in ends}
                assert any(self.rules.ground(rest, type).has_room(amount) for amount, type in self.rules.wishes(asked))

    def a_step(self) -> tuple[int, int]:
        """Most often one that can be done."""
        first = [(id, min(plan.steps)) for id, plan in self.rules.plans.items()]
        if first and self.chance.random() < 0.9:
            return self.chance.choice(first)
        return self.chance.randint(0, len(self.rules.lengths) + 1), self.chance.randint(0, 3)

    def confirm(self) -> None:
        id, number = self.a_step()
        answer = self.ask(lambda manager: manager.confirm(str(id), number))
        if isinstance(answer, Refused):
            self.rules.not_confirmed(id, number, answer.word)
        else:
            self.rules.confirmed(id, number)

    def fail(self) -> None:
        id, number = self.a_step()
        is_void = (id, number) in self.rules.void
        answer = self.ask(lambda manager: manager.fail(str(id), number, "it broke"))
        if isinstance(answer, Refused):
            assert answer.word == self.rules.step_word(id, number) != ""
        elif not is_void:
            assert answer.state is PlanState.ROLLED_BACK
            assert answer.steps[number - 1].state is StepState.FAILED
            self.rules.rolled_back({id}, *self.left())

    def wait(self) -> None:
        """What is overdue then is rolled back, unless it waits for another plan."""
        until_ms = self.clock[0] + self.chance.choice((EXPIRY_MS // 3, EXPIRY_MS))
        due = {int(plan.id) for plan in self.managers[0].plans() if plan.expires_at_ms <= until_ms}
        ready = {id for id in due if self.is_ready(id)}
        self.clock[0] = until_ms
        gone, *others = [{int(plan.id) for plan in manager.expire()} for manager in self.managers]
        assert all(other == gone for other in others)
        assert ready <= gone
        left, rescues = self.left()
        assert self.rules.plans.keys() & gone == self.rules.plans.keys() - set(left)
        self.rules.rolled_back(gone & due, left, rescues)

    def is_ready(self, id: int) -> bool:
        (first, *_) = [step for step in self.managers[0].plan(str(id)).steps if step.state in OPEN_STATES]
        return first.state is StepState.READY

    def end(self) -> None:
        name = self.a_known_name()
        answer = self.ask(lambda manager: manager.job_ended(id_of(name)))
        if isinstance(answer, Refused):
            assert answer.word == self.rules.unknown_word(name) != ""
        else:
            self.rules.over(name, self.left()[1])

    def mark(self) -> None:
        name, priority = self.a_known_name(), self.chance.random() < 0.4
        answer = self.ask(lambda manager: manager.mark_job_priority(id_of(name), priority))
        if isinstance(answer, Refused):
            assert answer.word == self.rules.unknown_word(name) != ""
        else:
            self.rules.marked(name, priority, *self.left())

    def a_known_name(self) -> Name:
        """Most often of a job that is there."""
        there = sorted(self.rules.planned().keys() | self.rules.real.keys())
        if there and self.chance.random() < 0.9:
            return self.chance.choice(there)
        return self.chance.choice(self.names) if self.names else (TEAMS[0], "never")

    def change_budget(self) -> None:
        self.set_budget(self.chance.choice(TEAMS))

    def change_machine(self) -> None:
        name = f"m{self.chance.randint(0, 4)}"
        if name not in self.rules.machines:
            self.set_machine(name, self.chance.randint(1, 4), self.chance.choice(self.types))
            return
        answer = self.ask(lambda manager: manager.remove_machine(name))
        assert (answer == Refused("MachineBusy")) == self.rules.is_busy(name)
        if answer is None:
            del self.rules.machines[name]


def provisioned(manager: GpuResourceManager, asked: Asked) -> list[JobAction]:
    return manager.try_provision_resources(
        id_of(asked.name), wanted(asked), priority=asked.priority, checkpointable=asked.checkpointable
    )


def wanted(asked: Asked) -> list[DeviceRequirements]:
    return [DeviceRequirements(amount, type) for amount, type in asked.wishes]


def pending(plan: Plan) -> list[tuple[int, object]]:
    return [(step.action.number, act_of(step.action)) for step in plan.steps if step.state in OPEN_STATES]


def rescue_of(plan: Plan) -> Open:
    request = plan.request
    (wanted,) = request.alternatives
    asked = Asked(
        (request.id.team, request.id.job),
        ((wanted.amount_milli, wanted.device_type),),
        request.priority,
        request.checkpointable,
    )
    return Open(asked, wanted.device_type, {step.action.number: act_of(step.action) for step in plan.steps})


def everything(manager: GpuResourceManager) -> object:
    """All that can be seen."""
    return manager.machines(), manager.budgets(), manager.jobs(), manager.plans(open_only=False)
