"""What is measured of a shape, and whether it did what the shape is about.

A subject is run many times; what happens `between` two runs is not measured.
"""

from __future__ import annotations

import importlib
from collections import Counter
from typing import Any, Final, Protocol

from benchmarks.shapes import ONE_GPU, TEAMS, Counts, Expected, Shape, Subject, node
from gpuyard.model.jobs import Job, Task
from gpuyard.model.plan import Bind, Evict, Move, Plan, Promise
from gpuyard.model.snapshot import JobGone, JobSeen, NodeGone, NodeSeen, Snapshot
from gpuyard.policies.policy import Policy
from gpuyard.scheduler.cycle import plan
from gpuyard.scheduler.ledger import Ledger

URGENT: Final = 100
NEW_JOB: Final = "new"


class WrongBenchmarkError(Exception):
    """What ran is not what the row is about, so its time means nothing."""


class Measured(Protocol):
    """One thing whose time is taken."""

    def run(self) -> object: ...

    def between(self) -> None: ...

    def complaint(self, result: object) -> str:
        """Why the result is not that of the benchmark meant; empty if it is."""


def subject(shape: Shape, nodes: int, jobs: int) -> Measured:
    snapshot, policy = shape.build(nodes, jobs), shape.policy(jobs)
    match shape.subject:
        case Subject.CYCLE:
            return Cycle(snapshot, policy, shape.expect(nodes, jobs))
        case Subject.ARRIVAL:
            return Arrival(snapshot, policy, shape.expect(nodes, jobs))
        case Subject.EXPLANATION:
            return Explanation(snapshot, policy)


def control(shape: Shape, nodes: int, jobs: int) -> Measured:
    assert shape.control
    build, expect = shape.control
    return Cycle(build(nodes, jobs), shape.policy(jobs), expect(nodes, jobs))


class Cycle:
    """A whole cycle from a snapshot."""

    def __init__(self, snapshot: Snapshot, policy: Policy, expected: Expected) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.expected = expected

    def run(self) -> Plan:
        return plan(Ledger.of(self.snapshot), self.policy)

    def between(self) -> None:
        pass

    def complaint(self, result: object) -> str:
        return plan_complaint(result, self.expected)


class Arrival:
    """One new job on a kept ledger. Where others wait already, a node with one GPU has just come for it."""

    def __init__(self, snapshot: Snapshot, policy: Policy, expected: Expected) -> None:
        self.ledger = Ledger.of(snapshot)
        self.policy = policy
        self.expected = expected
        self.count = len(snapshot.nodes)
        self.full = any(task.node == "" for job in snapshot.jobs for task in job.tasks)
        self.arrived = False
        task = Task(f"{NEW_JOB}-0", ONE_GPU)
        self.job = Job(NEW_JOB, TEAMS[0], (task,), priority=URGENT, submitted_at_ms=1_000_000)
        plan(self.ledger, self.policy)

    def run(self) -> Plan:
        self.ledger.apply((JobSeen(self.job),))
        self.arrived = True
        return plan(self.ledger, self.policy)

    def between(self) -> None:
        """Take the job back, let the ledger settle, and make room again."""
        if self.arrived:
            self.ledger.apply((JobGone(NEW_JOB),))
        if self.full:
            self.ledger.apply((NodeGone(node(self.count).name),))
            plan(self.ledger, self.policy)
            self.ledger.apply((NodeSeen(node(self.count, gpus=1)),))

    def complaint(self, result: object) -> str:
        return plan_complaint(result, self.expected)


class Explanation:
    """Why the last of the waiting jobs waits, asked of a kept ledger."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self.explain_on = explainer()
        self.ledger = Ledger.of(snapshot)
        self.policy = policy
        self.job = max(job.id for job in snapshot.jobs if job.tasks[0].node == "")
        plan(self.ledger, policy)

    def run(self) -> object:
        return self.explain_on(self.ledger, self.job, self.policy)

    def between(self) -> None:
        pass

    def complaint(self, result: object) -> str:
        explained, blockers = getattr(result, "job", None), getattr(result, "blockers", ())
        if explained != self.job:
            return f"the explanation is of {explained}, not of {self.job}"
        return "" if blockers else f"nothing is said to be in the way of {self.job}"


def explainer() -> Any:
    """Imported when asked for, so that the other rows run on a core that cannot explain yet."""
    try:
        return importlib.import_module("gpuyard.scheduler.explain").explain_on
    except ModuleNotFoundError as missing:
        raise WrongBenchmarkError(str(missing)) from missing


# ------------------------------------------------------------------------------------------------------- checking


def plan_complaint(result: object, expected: Expected) -> str:
    assert isinstance(result, Plan)
    seen = counts(result)
    if expected.met_by(seen):
        return ""
    waiting = sum(len(group.jobs) for group in result.waiting)
    return f"{seen} with {waiting} jobs waiting, expected {expected.text()}"


def counts(made: Plan) -> Counts:
    kinds = Counter(type(action) for action in made.actions)
    return Counts(kinds[Bind], kinds[Promise], kinds[Evict], kinds[Move])
