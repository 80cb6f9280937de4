"""The three calls, judged by exhaustion: every arrangement of a tiny cluster is looked at, one by one.

Plain Python on plain values: no solver, nothing of the manager, nothing of `rules` or `exact`. It is told what was
asked and what came back, says what had to come back, and keeps its own books.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

WHOLE = 1000
DELETE, MOVE = 10, 1

Name = tuple[str, str]
"""A team and its job."""
Place = tuple[str, tuple[tuple[int, int], ...]]
"""A machine, and thousandths of its devices."""
Price = tuple[int, int]
"""What it costs, and how far teams are taken below their budgets."""
DEAR: Price = (10**9, 0)


class Job(NamedTuple):
    amount: int
    priority: bool
    checkpointable: bool
    place: Place


class Step(NamedTuple):
    """create (to), delete (source), move (source, to); half a move has only one of both."""

    kind: str
    name: Name
    amount: int
    source: Place | None
    to: Place | None


class Yard:
    """Machines of one type, budgets, and what lies where once all that was answered is done."""

    def __init__(self, machines: dict[str, int], budgets: dict[str, int]) -> None:
        self.machines = machines
        self.budgets = budgets
        self.jobs: dict[Name, Job] = {}

    def used(self, team: str) -> int:
        return sum(job.amount for name, job in self.jobs.items() if name[0] == team)

    def over(self, team: str) -> int:
        return self.used(team) - self.budgets[team]

    def free(self) -> dict[tuple[str, int], int]:
        devices = {(machine, at): WHOLE for machine, count in self.machines.items() for at in range(count)}
        for job in self.jobs.values():
            take(devices, job.place)
        return devices

    def places(self, amount: int) -> Iterator[Place]:
        """All there are for it on empty machines: whole devices, and a rest on one more."""
        wholes, rest = divmod(amount, WHOLE)
        for machine, count in self.machines.items():
            for whole in combinations(range(count), wholes):
                alone = tuple((device, WHOLE) for device in whole)
                if not rest:
                    yield machine, alone
                    continue
                for device in range(count):
                    if device not in whole:
                        yield machine, (*alone, (device, rest))

    # -------------------------------------------------------------------------------------------- what must come back

    def verdict(self, name: Name, amount: int) -> str:
        """room, reshuffle, or the word of a refusal that needs no search."""
        if name[0] not in self.budgets:
            return "TeamUnknown"
        if name in self.jobs:
            return "JobKnown"
        free = self.free()
        if any(fits(free, place) for place in self.places(amount)):
            return "room"
        if self.used(name[0]) + amount > self.budgets[name[0]]:
            return "NoAvailableBudget"
        return "reshuffle" if any(True for _ in self.places(amount)) else "NeverFits"

    def cheapest(self, amount: int, below: Price = DEAR) -> Price | None:
        """The least price below this one for which everybody has a place; None: there is none."""
        return Exhaustion(self, amount, below).run()

    # ----------------------------------------------------------------------------------------------------- the answers

    def refused(self, name: Name, amount: int, word: str) -> None:
        verdict = self.verdict(name, amount)
        if verdict == "reshuffle":
            assert word == "NoArrangement"
            assert self.cheapest(amount) is None, "there is an arrangement"
        else:
            assert word == verdict

    def provisioned(self, name: Name, amount: int, flags: tuple[bool, bool], plan: list[Step]) -> None:
        """Nothing cheaper would have done, and nothing of the same cost that takes less from teams."""
        verdict = self.verdict(name, amount)
        assert verdict in ("room", "reshuffle"), f"it should be refused: {verdict}"
        create = plan[-1]
        assert (create.kind, create.name, create.amount) == ("create", name, amount)
        assert (len(plan) == 1) == (verdict == "room")
        over = {team: self.over(team) for team in self.budgets}
        search = Exhaustion(self, amount, DEAR)
        self.walk(plan)
        price = price_of(plan, over)
        search.best = price
        assert verdict == "room" or search.run() is None, f"{search.best} would have done instead of {price}"
        assert create.to is not None
        self.jobs[name] = Job(amount, *flags, create.to)

    def walk(self, plan: list[Step]) -> None:
        """Each step is possible once those before it are done, and allowed."""
        free = self.free()
        stopped: dict[Name, Job] = {}
        for step in plan:
            if step.source is not None:
                job = self.jobs.pop(step.name)
                assert (job.place, job.amount) == (step.source, step.amount)
                give(free, step.source)
                stopped[step.name] = job
            if step.kind == "delete":
                job = stopped.pop(step.name)
                assert not job.priority
                assert self.over(step.name[0]) + job.amount > 0, "its team was within its budget"
            elif step.to is not None:
                assert step.to in list(self.places(step.amount))
                assert fits(free, step.to)
                take(free, step.to)
                if step.kind == "move":
                    job = stopped.pop(step.name)
                    assert job.checkpointable or not job.priority
                    self.jobs[step.name] = job._replace(place=step.to)
        assert not stopped, "somebody was left stopped"

    def ended(self, name: Name, word: str) -> None:
        assert (word == "") == (name in self.jobs)
        self.jobs.pop(name, None)

    def marked(self, name: Name, priority: bool, word: str) -> None:
        assert (word == "") == (name in self.jobs)
        if name in self.jobs:
            self.jobs[name] = self.jobs[name]._replace(priority=priority)


class Exhaustion:
    """Everybody stays, goes anywhere or is deleted, in every combination, as long as it may still become the best."""

    def __init__(self, yard: Yard, amount: int, below: Price) -> None:
        self.best = below
        self.over = {team: yard.over(team) for team in yard.budgets}
        self.free = {(machine, at): WHOLE for machine, count in yard.machines.items() for at in range(count)}
        self.new = list(yard.places(amount))
        self.others: list[tuple[str, Job, list[Place], bool]] = []
        for (team, _), job in sorted(yard.jobs.items(), key=lambda one: -one[1].amount):
            elsewhere = [place for place in yard.places(job.amount) if place != job.place]
            if job.priority and not job.checkpointable:
                take(self.free, job.place)
            else:
                self.others.append((team, job, elsewhere, not job.priority and self.over[team] > 0))

    def run(self) -> Price | None:
        """The best price there is below the one to beat, which is then `best`."""
        found = False
        for place in self.new:
            if fits(self.free, place):
                take(self.free, place)
                found |= self.search(0, 0, {})
                give(self.free, place)
        return self.best if found else None

    def search(self, at: int, cost: int, lost: dict[str, list[int]]) -> bool:
        price = (cost, sum(max(0, sum(amounts) - self.over[team]) for team, amounts in lost.items()))
        # Both only grow with what is decided later.
        if price >= self.best:
            return False
        if at == len(self.others):
            self.best = price
            return True
        team, job, elsewhere, deletable = self.others[at]
        found = False
        for place in (job.place, *elsewhere):
            if fits(self.free, place):
                take(self.free, place)
                found |= self.search(at + 1, cost + (0 if place == job.place else MOVE), lost)
                give(self.free, place)
        losing = [*lost.get(team, ()), job.amount]
        if deletable and sum(losing) - max(losing) < self.over[team]:
            found |= self.search(at + 1, cost + DELETE, {**lost, team: losing})
        return found


def price_of(plan: list[Step], over: dict[str, int]) -> Price:
    moved = {step.name for step in plan if step.kind == "move"}
    deleted = [step for step in plan if step.kind == "delete"]
    lost = {team: sum(step.amount for step in deleted if step.name[0] == team) for team in over}
    return DELETE * len(deleted) + MOVE * len(moved), sum(max(0, lost[team] - max(0, over[team])) for team in over)


def fits(free: dict[tuple[str, int], int], place: Place) -> bool:
    return all(free[place[0], device] >= milli for device, milli in place[1])


def take(free: dict[tuple[str, int], int], place: Place) -> None:
    for device, milli in place[1]:
        free[place[0], device] -= milli
        assert free[place[0], device] >= 0, f"{place} is booked beyond what it has"


def give(free: dict[tuple[str, int], int], place: Place) -> None:
    for device, milli in place[1]:
        free[place[0], device] += milli
