"""An exact answer to a reshuffle, written apart from ours: every job, every device, and the rules as they read.

`cheapest` is a mixed-integer program without a limit; `walk` carries a plan out step by step, as a platform would, and
fails where it breaks a rule. Both know plain values only; nothing here knows how ours works.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import highspy

DELETE, MOVE = 10, 1
WHOLE = 1000
"""A device, in thousandths."""

Spot = tuple[str, tuple[tuple[int, int], ...]]
"""A machine, and what is held of which of its devices."""
Name = tuple[str, str]
"""A team and its job."""


class Job(NamedTuple):
    name: Name
    amount: int
    priority: bool
    checkpointable: bool
    spot: Spot

    @property
    def movable(self) -> bool:
        return self.checkpointable or not self.priority


class Question(NamedTuple):
    """Make room for an amount on these machines, all of one type."""

    machines: dict[str, int]
    jobs: list[Job]
    over: dict[str, int]
    """How far each team is above its budget; zero or less: it is not."""
    amount: int

    def may_be_deleted(self, job: Job) -> bool:
        return not job.priority and self.over[job.name[0]] > 0


class Act(NamedTuple):
    """One step of a plan: create (to), delete (of), move (of, to); half a move has only one of both."""

    kind: str
    name: Name
    amount: int
    of: Spot | None
    to: Spot | None


# ------------------------------------------------------------------------------------------------------------- solving


class Program:
    """Each job stays, goes to a machine or is deleted; each device is shared, or goes to one of those who come."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        for option, value in (("output_flag", False), ("threads", 1), ("mip_abs_gap", 0.99), ("mip_rel_gap", 0.0)):
            self.solver.setOptionValue(option, value)
        self.load: dict[tuple[str, int], list[Any]] = defaultdict(list)
        self.wholes: dict[str, list[Any]] = defaultdict(list)
        self.cost: list[Any] = []
        self.lost: dict[str, list[tuple[Any, int]]] = defaultdict(list)
        self.one_of(self.ways_to_come(question.amount))
        for job in question.jobs:
            self.one_of(self.ways_of(job))
        self.within_capacity()
        for team, losses in self.lost.items():
            self.one_was_the_last(question.over[team], losses)

    def one_of(self, ways: list[Any]) -> None:
        self.solver.addConstr(self.solver.qsum(ways) == 1)

    def ways_of(self, job: Job) -> list[Any]:
        stays = self.solver.addBinary()
        machine, shares = job.spot
        for device, milli in shares:
            self.load[machine, device].append(milli * stays)
        ways = [stays]
        if self.question.may_be_deleted(job):
            ways.append(self.solver.addBinary())
            self.lost[job.name[0]].append((ways[-1], job.amount))
            self.cost.append(DELETE * ways[-1])
        if job.movable:
            moves = self.ways_to_come(job.amount)
            self.cost += [MOVE * one for one in moves]
            ways += moves
        return ways

    def ways_to_come(self, amount: int) -> list[Any]:
        """A machine for all of it; there, a certain device for the part that is less than one."""
        wholes, rest = divmod(amount, WHOLE)
        ways = []
        for machine, devices in self.question.machines.items():
            goes = self.solver.addBinary()
            ways.append(goes)
            self.wholes[machine].append(wholes * goes)
            if rest:
                here = [self.solver.addBinary() for _ in range(devices)]
                for device, on in enumerate(here):
                    self.load[machine, device].append(rest * on)
                self.solver.addConstr(self.solver.qsum(here) == goes)
        return ways

    def within_capacity(self) -> None:
        for machine, devices in self.question.machines.items():
            given = [self.solver.addBinary() for _ in range(devices)]
            self.solver.addConstr(self.solver.qsum(self.wholes[machine]) == self.solver.qsum(given))
            for device, whole in enumerate(given):
                self.solver.addConstr(self.solver.qsum([*self.load[machine, device], WHOLE * whole]) <= WHOLE)

    def one_was_the_last(self, over: int, losses: list[tuple[Any, int]]) -> None:
        """If a team loses anything, one job was the last: the others together left it above its budget."""
        total = sum(amount for _, amount in losses)
        lasts = []
        for deleted, _ in losses:
            last = self.solver.addBinary()
            others = [amount * other for other, amount in losses if other is not deleted]
            self.solver.addConstr(last <= deleted)
            if others:
                self.solver.addConstr(self.solver.qsum(others) + total * last <= over - 1 + total)
            lasts.append(last)
        for deleted, _ in losses:
            self.solver.addConstr(deleted <= self.solver.qsum(lasts))

    def minimise(self, below: int | None) -> int | None:
        if below is not None:
            if not self.cost:
                return 0 if below > 0 and self.minimise(None) == 0 else None
            self.solver.addConstr(self.solver.qsum(self.cost) <= below - 1)
        self.solver.minimize(self.solver.qsum(self.cost) if self.cost else None)
        status = self.solver.getModelStatus()
        if status == highspy.HighsModelStatus.kSolveError:
            # A fault of its presolve: without it the program is solved.
            self.solver.clearSolver()
            self.solver.setOptionValue("presolve", "off")
            self.solver.run()
            status = self.solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return None
        assert status == highspy.HighsModelStatus.kOptimal, status
        return round(self.solver.getObjectiveValue()) if self.cost else 0


def cheapest(question: Question, below: int | None = None) -> int | None:
    """The least cost there is, of those below this; None: there is none."""
    return Program(question).minimise(below) if question.machines else None


# ------------------------------------------------------------------------------------------------------------- walking


class Ground:
    """What lies on the devices, at every step."""

    def __init__(self, machines: dict[str, int]) -> None:
        self.free = {(machine, device): WHOLE for machine, count in machines.items() for device in range(count)}

    def put(self, spot: Spot) -> None:
        for device, milli in spot[1]:
            self.free[spot[0], device] -= milli
            assert self.free[spot[0], device] >= 0, f"{spot} is booked beyond what it has"

    def take(self, spot: Spot) -> None:
        for device, milli in spot[1]:
            self.free[spot[0], device] += milli
            assert self.free[spot[0], device] <= WHOLE

    def has_room(self, amount: int) -> bool:
        """On one machine: whole devices alone on theirs, and the rest on one more."""
        wholes, rest = divmod(amount, WHOLE)
        for machine in {machine for machine, _ in self.free}:
            spare = sorted((milli for (on, _), milli in self.free.items() if on == machine), reverse=True)
            needed = [WHOLE] * wholes + [rest] * bool(rest)
            if len(spare) >= len(needed) and all(map(int.__ge__, spare, needed)):
                return True
        return False


def walk(question: Question, plan: Iterable[Act]) -> int:
    """The cost of a plan that keeps the rules."""
    plan = list(plan)
    ground, over = Ground(question.machines), dict(question.over)
    jobs = {job.name: job for job in question.jobs}
    at: dict[Name, Spot | None] = {job.name: job.spot for job in question.jobs}
    for job in question.jobs:
        ground.put(job.spot)
    kinds = [act.kind for act in plan]
    assert kinds == sorted(kinds, key=["delete", "move", "create"].index)
    assert kinds.count("create") == 1
    for act in plan:
        if act.kind == "create":
            assert (act.name not in at, act.of, act.amount) == (True, None, question.amount)
        else:
            assert (at[act.name], jobs[act.name].amount) == (act.of, act.amount)
        if act.of is not None:
            ground.take(act.of)
        if act.to is not None:
            _has_the_shape_of(act.amount, act.to)
            ground.put(act.to)
        at[act.name] = act.to
        if act.kind == "delete":
            assert question.may_be_deleted(jobs[act.name])
            assert over[act.name[0]] > 0, "its team was within its budget before"
            over[act.name[0]] -= act.amount
            del at[act.name]
        if act.kind == "move":
            assert jobs[act.name].movable
    assert None not in at.values(), "somebody was left stopped"
    moved = {act.name for act in plan if act.kind == "move"}
    assert all(at[name] != jobs[name].spot for name in moved)
    return DELETE * kinds.count("delete") + MOVE * len(moved)


def _has_the_shape_of(amount: int, spot: Spot) -> None:
    wholes, rest = divmod(amount, WHOLE)
    assert sorted(milli for _, milli in spot[1]) == sorted([WHOLE] * wholes + [rest] * bool(rest))
    assert len({device for device, _ in spot[1]}) == len(spot[1])
