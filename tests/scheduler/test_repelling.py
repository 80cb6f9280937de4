"""No rule of a job holds a place against jobs of other queues that are within their quota; and it settles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hypothesis import event, given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.model.jobs import Job, LabelRule, Neighbour, Operator, Request, Task, TaskGroup, TaskState, Where
from gpuyard.model.nodes import Device, Node
from gpuyard.model.plan import Bind, Evict, Move, Plan, Promise
from gpuyard.model.quantities import GPU
from gpuyard.model.queues import AffinityScope, Queue, QueueShare
from gpuyard.model.reasons import RULE, Reason
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import DEFAULT, Step
from gpuyard.scheduler.cycle import schedule
from gpuyard.scheduler.verify import verify
from tests.replay import View
from tests.scheduler.test_properties import thorough
from tests.simulate import Simulation
from tests.strategies import find_place, record, some

TEAMS: Final = ("red", "green", "blue")
LEVELS: Final = ("hostname", "hostname", "rack")
LABELS: Final = ((), (("app", "web"),), (("app", "db"),), (("tier", "1"),))
SELECTORS: Final = (
    LabelRule("zzz", Operator.NOT_IN, ("q",)),
    LabelRule("zzz", Operator.MISSING),
    LabelRule("app", Operator.EXISTS),
    LabelRule("app", Operator.NOT_IN, ("web",)),
    LabelRule("app", Operator.IN, ("web", "db")),
)
SIZES: Final = (Request(), Request(devices=1, gpu_milli=1), Request(devices=1, gpu_milli=300), Request(devices=1))
MAX_CYCLES: Final = 60
WITHOUT_MOVES: Final = replace(DEFAULT, steps=(Step.ALLOCATE, Step.RECLAIM), reclaim_moves=False)


@st.composite
def rules(draw: st.DrawFn) -> tuple[Neighbour, ...]:
    many = draw(some(0, 1, 1, 2))
    return tuple(Neighbour((), draw(some(*LEVELS)), True, (draw(some(*SELECTORS)),)) for _ in range(many))


@st.composite
def carriers(draw: st.DrawFn, id: str) -> Job:
    """Mostly small; one task, a gang, or an elastic job."""
    where = Where(neighbours=draw(rules()))
    count = draw(some(1, 1, 1, 2, 3))
    tasks = tuple(Task(f"{id}-{n}", replace(draw(some(*SIZES)), where=where)) for n in range(count))
    return Job(
        id,
        draw(some(*TEAMS)),
        tasks,
        TaskGroup(min_tasks=draw(some(1, count))),
        priority=draw(some(50, 50, 90)),
        preemptible=draw(some(True, True, True, False)),
        labels=draw(some(*LABELS)),
        movable=draw(some(True, True, False)),
    )


@st.composite
def hostile_clusters(draw: st.DrawFn) -> Snapshot:
    machines = tuple(
        Node(f"n{n}", (Device(),) * draw(some(1, 2, 4)), labels={"rack": draw(some("r1", "r2"))})
        for n in range(draw(st.integers(1, 4)))
    )
    queues = tuple(
        Queue(name, shares=(QueueShare(GPU, quota=draw(some(0, 1000, 2000, 4000))),), order=order)
        for order, name in enumerate(TEAMS)
    )
    now: View = {}
    later: View = {}
    jobs = []
    for number in range(draw(st.integers(1, 6))):
        job = draw(carriers(f"j{number}"))
        jobs.append(
            in_place(job, machines, draw(st.integers(0, 3)), now, later) if draw(some(True, True, False)) else job
        )
    return Snapshot(machines, queues, tuple(jobs), now_ms=60_000, affinity_scope=AffinityScope.CLUSTER)


def in_place(job: Job, machines: tuple[Node, ...], first: int, now: View, later: View) -> Job:
    first %= len(machines)
    tasks = []
    for task in job.tasks:
        place = find_place(task.request, (*machines[first:], *machines[:first]), (now, later))
        if place is not None:
            task = replace(task, state=TaskState.RUNNING, node=place.node, shares=place.shares, started_at_ms=1)
            record(job.id, task, now, later)
        tasks.append(task)
    return replace(job, tasks=tuple(tasks))


def is_placed(plan: Plan, job: str) -> bool:
    return any(isinstance(action, Bind | Promise) and action.job == job for action in plan.actions)


def without_rules(job: Job) -> Job:
    tasks = (replace(task, request=replace(task.request, where=Where())) for task in job.tasks)
    return replace(job, tasks=tuple(tasks))


@thorough
@given(hostile_clusters(), some(*SIZES), some(*LABELS))
def test_rules_of_other_queues_keep_no_job_within_its_quota_waiting(
    cluster: Snapshot, request: Request, labels: tuple[tuple[str, str], ...]
) -> None:
    """What it would get if nobody else had a rule, and nobody had to move for it, it gets all the same."""
    running = tuple(job for job in cluster.jobs if all(task.state is TaskState.RUNNING for task in job.tasks))
    queues = (*cluster.queues, Queue("grey", shares=(QueueShare(GPU, quota=4000),), order=9))
    urgent = Job("urgent", "grey", (Task("urgent-0", request),), labels=labels)
    hostile = replace(cluster, queues=queues, jobs=(*running, urgent))
    peaceful = replace(hostile, jobs=(*map(without_rules, running), urgent))
    plan = schedule(hostile)
    wanted = is_placed(schedule(peaceful, WITHOUT_MOVES), "urgent")
    event(f"placed: {wanted}, for rules: {len(list(for_rules(plan)))}")
    gone = {one.job for one in for_rules(plan)}
    whole = [task for job in running if job.id in gone for task in job.tasks if task.request.whole]
    assert is_placed(plan, "urgent") or not wanted
    assert wanted or not is_placed(plan, "urgent") or len(gone) > len(whole), "in-quota GPUs were taken for a rule"
    assert [verdict.why for verdict in verify(plan, hostile) if not verdict.holds] == []


def for_rules(plan: Plan) -> Iterator[Evict | Move]:
    for action in plan.actions:
        if isinstance(action, Evict | Move) and action.reason.resource == RULE:
            yield action


class Remembering(Simulation):
    """Notes why a job was stopped, as every world does."""

    def _carry_out(self, plan: Plan) -> None:
        super()._carry_out(plan)
        why: dict[str, Reason] = {one.job: one.reason for one in plan.actions if isinstance(one, Evict)}
        now = self.snapshot.now_ms
        self.snapshot = replace(
            self.snapshot,
            jobs=tuple(
                replace(job, last_eviction=why[job.id], last_evicted_at_ms=now) if job.id in why else job
                for job in self.snapshot.jobs
            ),
        )


@thorough
@given(hostile_clusters())
def test_jobs_that_keep_each_other_away_come_to_rest(cluster: Snapshot) -> None:
    run = Remembering(cluster)
    stops = 0
    for cycle, (_, plan) in enumerate(run.run(until_ms=cluster.now_ms + MAX_CYCLES)):
        stops += len({one.job for one in for_rules(plan) if isinstance(one, Evict)})
        assert cycle < MAX_CYCLES
    event(f"{stops} stopped")
    assert stops <= 2 * len(cluster.jobs)
