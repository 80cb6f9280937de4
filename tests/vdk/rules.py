"""The rules of the GpuResourceManager as the issue states them, in plain Python: a second opinion on every answer.

`Rules` keeps what is confirmed (`real`) and the open plans; what will be is the one with the others carried out. It is
told what was asked and what came back, and fails where the answer breaks a rule. It knows plain values only, and
nothing of how the manager decides: where a plan is refused, the exact solver has the last word.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.vdk.exact import Act, Ground, Job, Name, Question, Spot, cheapest, walk

Wish = tuple[int, str]
"""So much of this type; "" is any."""


class Held(NamedTuple):
    """A job as it lies; `spot` None: stopped on its way."""

    amount: int
    type: str
    priority: bool
    checkpointable: bool
    spot: Spot | None


class Asked(NamedTuple):
    name: Name
    wishes: tuple[Wish, ...]
    priority: bool = False
    checkpointable: bool = False


class Open(NamedTuple):
    """A plan with steps that are neither done nor void; by their numbers."""

    asked: Asked
    type: str
    steps: dict[int, Act]


Jobs = dict[Name, Held]


class Rules:
    def __init__(self) -> None:
        self.machines: dict[str, tuple[int, str]] = {}
        self.budgets: dict[tuple[str, str], int] = {}
        self.real: Jobs = {}
        self.plans: dict[int, Open] = {}
        self.lengths: dict[int, int] = {}
        """How many steps each plan ever had."""
        self.void: set[tuple[int, int]] = set()
        self.ended: set[Name] = set()

    # --------------------------------------------------------------------------------------------------- what will be

    def planned(self) -> Jobs:
        """All open plans carried out, in order; none books a device beyond what it has."""
        jobs = dict(self.real)
        for plan in self.plans.values():
            for act in plan.steps.values():
                assert self.can(jobs, act), f"{act} cannot be carried out"
                self.do(jobs, act, plan)
        return jobs

    def can(self, jobs: Jobs, act: Act) -> bool:
        """A move stops before it starts, so its own place counts as free."""
        held = jobs.get(act.name)
        if act.kind == "create":
            return held is None and self.fits(jobs, act.name, act.to)
        return held is not None and held.spot == act.of and self.fits(jobs, act.name, act.to)

    def fits(self, jobs: Jobs, name: Name, spot: Spot | None) -> bool:
        if spot is None:
            return True
        free = self.ground({other: held for other, held in jobs.items() if other != name}).free
        return all(free.get((spot[0], device), 0) >= milli for device, milli in spot[1])

    def ground(self, jobs: Jobs, type: str | None = None) -> Ground:
        machines = {name: devices for name, (devices, of) in self.machines.items() if type in (None, of)}
        ground = Ground(machines)
        for held in jobs.values():
            if held.spot is not None and held.spot[0] in machines:
                ground.put(held.spot)
        return ground

    def do(self, jobs: Jobs, act: Act, plan: Open) -> None:
        if act.kind == "delete":
            del jobs[act.name]
        elif act.kind == "move":
            jobs[act.name] = jobs[act.name]._replace(spot=act.to)
        else:
            jobs[act.name] = Held(act.amount, plan.type, plan.asked.priority, plan.asked.checkpointable, act.to)

    def used(self, jobs: Jobs, team: str, type: str) -> int:
        return sum(held.amount for name, held in jobs.items() if (name[0], held.type) == (team, type) and held.spot)

    def teams(self) -> set[str]:
        return {team for team, _ in self.budgets}

    # -------------------------------------------------------------------------------------------------- a new request

    def wishes(self, asked: Asked) -> list[Wish]:
        """In the order of preference; of any type means: by name, those that machines have or the team is owed."""
        there = {type for _, type in self.machines.values()}
        owed = {type for team, type in self.budgets if team == asked.name[0]}
        return [(amount, one) for amount, type in asked.wishes for one in ([type] if type else sorted(there | owed))]

    def question(self, jobs: Jobs, wish: Wish) -> Question:
        amount, type = wish
        machines = {name: devices for name, (devices, of) in self.machines.items() if of == type}
        here = [
            Job(name, held.amount, held.priority, held.checkpointable, held.spot)
            for name, held in jobs.items()
            if held.type == type and held.spot is not None
        ]
        teams = self.teams() | {name[0] for name in jobs}
        over = {team: self.used(jobs, team, type) - self.budgets.get((team, type), 0) for team in teams}
        return Question(machines, here, over, amount)

    def verdict(self, asked: Asked) -> tuple[str, list[Wish]]:
        """What must come of it: room, no-budget, or perhaps a reshuffle; and which wishes that is about."""
        jobs = self.planned()
        wishes = self.wishes(asked)
        roomy = [(amount, type) for amount, type in wishes if self.ground(jobs, type).has_room(amount)]
        if roomy:
            return "room", roomy[:1]
        affordable = [one for one in wishes if self.has_budget(jobs, asked.name[0], one)]
        return ("reshuffle", affordable) if affordable else ("no-budget", wishes)

    def has_budget(self, jobs: Jobs, team: str, wish: Wish) -> bool:
        amount, type = wish
        return self.used(jobs, team, type) + amount <= self.budgets.get((team, type), 0)

    def refused(self, asked: Asked, word: str) -> None:
        """Rightly so, and by the right word."""
        if asked.name[0] not in self.teams():
            assert word == "TeamUnknown"
        elif asked.name in self.planned():
            assert word == "JobKnown"
        else:
            verdict, wishes = self.verdict(asked)
            if verdict == "no-budget":
                assert word == "NoAvailableBudget"
            else:
                assert (verdict, word) in (("reshuffle", "NoArrangement"), ("reshuffle", "NeverFits"))
                self.impossible(wishes)

    def impossible(self, wishes: list[Wish]) -> None:
        jobs = self.planned()
        for wish in wishes:
            assert cheapest(self.question(jobs, wish)) is None, f"there is an arrangement for {wish}"

    def provisioned(self, asked: Asked, id: int, plan: list[Act]) -> None:
        """The plan keeps the rules; it is open from now on."""
        assert id == max(self.lengths, default=0) + 1
        jobs = self.planned()
        assert asked.name not in jobs
        assert asked.name[0] in self.teams()
        create = plan[-1]
        assert (create.kind, create.name) == ("create", asked.name)
        assert create.to is not None
        wish = (create.amount, self.machines[create.to[0]][1])
        verdict, wishes = self.verdict(asked)
        assert verdict != "no-budget", "nothing is moved or deleted for a team without budget"
        assert wish in wishes
        if verdict == "room":
            assert len(plan) == 1
        self.impossible(wishes[: wishes.index(wish)])
        walk(self.question(jobs, wish), plan)
        self.opened(id, Open(asked, wish[1], dict(enumerate(plan, 1))))

    def opened(self, id: int, plan: Open) -> None:
        self.plans[id], self.lengths[id] = plan, len(plan.steps)
        self.planned()

    # ------------------------------------------------------------------------------------------------------ its steps

    def step_word(self, id: int, number: int) -> str:
        """Why nothing can be said about a step; "" if something can."""
        if id not in self.lengths:
            return "PlanUnknown"
        if not 0 < number <= self.lengths[id]:
            return "StepUnknown"
        is_open = id in self.plans and number in self.plans[id].steps
        return "" if is_open or (id, number) in self.void else "StepOver"

    def is_ready(self, id: int, number: int) -> bool:
        """As far as this plan and the devices go."""
        steps = self.plans[id].steps
        return min(steps) == number and self.can(self.real, steps[number])

    def confirmed(self, id: int, number: int) -> None:
        assert self.step_word(id, number) == ""
        if (id, number) in self.void:
            return
        assert self.is_ready(id, number)
        plan = self.plans[id]
        act = plan.steps[number]
        self.do(self.real, act, plan)
        self.settle(id, number)
        if act.kind == "delete":
            self.ended.add(act.name)
        self.ground(self.real)

    def settle(self, id: int, number: int) -> None:
        del self.plans[id].steps[number]
        if not self.plans[id].steps:
            del self.plans[id]

    def not_confirmed(self, id: int, number: int, word: str) -> None:
        if self.step_word(id, number):
            assert word == self.step_word(id, number)
            return
        assert word == "StepNotReady"
        if self.is_ready(id, number):
            # An older plan comes first, at the same job or at the same devices.
            act = self.plans[id].steps[number]
            older = [one for other, plan in self.plans.items() if other < id for one in plan.steps.values()]
            assert any(one.name == act.name or meet(one.to, act.to) for one in older)
        assert id != min(self.plans) or number != min(self.plans[id].steps), "the oldest step can always go on"

    # -------------------------------------------------------------------------------------------------- what is undone

    def rolled_back(self, first: set[int], left: list[int], rescues: dict[int, Open]) -> None:
        """Of the open plans `left` stay, the `first` and what was built on them is gone; who is stopped is started."""
        assert not first & set(left)
        jobs, smaller = dict(self.real), set[str]()
        for id, plan in list(self.plans.items()):
            if id not in first:
                assert self.stands(dict(jobs), plan, smaller) == (id in left), f"plan {id}"
            if id in left:
                for act in plan.steps.values():
                    self.do(jobs, act, plan)
            else:
                smaller |= {act.name[0] for act in plan.steps.values() if act.kind == "create"}
                del self.plans[id]
        self.planned()
        self.rescued(rescues)

    def stands(self, jobs: Jobs, plan: Open, smaller: set[str]) -> bool:
        """Whether it can be carried out, and deletes nobody whose team is over its budget only by what is undone."""
        for act in plan.steps.values():
            if not self.can(jobs, act):
                return False
            if act.kind == "delete" and act.name[0] in smaller:
                type = jobs[act.name].type
                if self.used(jobs, act.name[0], type) <= self.budgets.get((act.name[0], type), 0):
                    return False
            self.do(jobs, act, plan)
        return True

    def rescued(self, rescues: dict[int, Open]) -> None:
        """Plans for jobs that were stopped for nothing; whoever is left stopped has no room anywhere."""
        for id, plan in rescues.items():
            (act,) = plan.steps.values()
            assert (act.kind, act.of) == ("move", None)
            assert self.planned()[act.name].spot is None
            self.opened(id, plan)
        jobs = self.planned()
        for held in jobs.values():
            assert held.spot is not None or not self.ground(jobs, held.type).has_room(held.amount)

    # --------------------------------------------------------------------------------------------- an end, a priority

    def unknown_word(self, name: Name) -> str:
        """Why nothing can be done to a job; "" if something can."""
        if name in self.planned() or name in self.real or any(self.steps_of(name)):
            return ""
        if name in self.ended:
            return "JobEnded"
        return "JobUnknown" if name[0] in self.teams() else "TeamUnknown"

    def over(self, name: Name, rescues: dict[int, Open]) -> None:
        assert self.unknown_word(name) == ""
        self.real.pop(name, None)
        for id, number in list(self.steps_of(name)):
            self.void.add((id, number))
            self.settle(id, number)
        self.ended.add(name)
        self.planned()
        self.rescued(rescues)

    def steps_of(self, name: Name) -> Iterator[tuple[int, int]]:
        for id, plan in self.plans.items():
            for number, act in plan.steps.items():
                if act.name == name:
                    yield id, number

    def marked(self, name: Name, priority: bool, left: list[int], rescues: dict[int, Open]) -> None:
        assert self.unknown_word(name) == ""
        if name in self.real:
            self.real[name] = self.real[name]._replace(priority=priority)
        for id, plan in self.plans.items():
            if any(act.kind == "create" and act.name == name for act in plan.steps.values()):
                self.plans[id] = plan._replace(asked=plan.asked._replace(priority=priority))
        steps = [(id, self.plans[id].steps[number]) for id, number in self.steps_of(name)]
        against = {id for id, act in steps if priority and act.kind == "delete"}
        # Undoing one of them may undo the others.
        self.rolled_back({id for id in against if id not in left}, left, rescues)
        assert not against & set(self.plans)

    # ------------------------------------------------------------------------------------------------------- machines

    def is_busy(self, machine: str) -> bool:
        spots = [held.spot for held in self.real.values()]
        spots += [spot for plan in self.plans.values() for act in plan.steps.values() for spot in (act.of, act.to)]
        return any(spot is not None and spot[0] == machine for spot in spots)


def meet(one: Spot | None, other: Spot | None) -> bool:
    """Whether both want a share of the same device."""
    if one is None or other is None or one[0] != other[0]:
        return False
    return bool({device for device, _ in one[1]} & {device for device, _ in other[1]})
