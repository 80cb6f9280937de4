"""What a job would only rather have makes nobody give way for it."""

from __future__ import annotations

from typing import Final

from hypothesis import event, given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.model.jobs import (
    DeviceShare,
    Job,
    LabelRule,
    Operator,
    Preference,
    Request,
    SoftNeighbour,
    SoftSpread,
    Task,
    TaskGroup,
    TaskState,
    TopologyRule,
    Where,
)
from gpuyard.model.nodes import Device, Node, Taint, Topology
from gpuyard.model.plan import Bind, Evict, Move, Plan
from gpuyard.model.quantities import GPU
from gpuyard.model.queues import Queue, QueueShare
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import DEFAULT, NodePlacement
from gpuyard.scheduler.cycle import schedule
from tests.scheduler.test_properties import thorough
from tests.strategies import some

ZONES: Final = ("z1", "z2")
IN_ZONE: Final = tuple(LabelRule("zone", Operator.IN, (zone,)) for zone in ZONES)
IS_WEB: Final = (LabelRule("app", Operator.IN, ("web",)),)
PREFERENCES: Final = ((), *((Preference(50, (rule,)),) for rule in IN_ZONE))
NEAR: Final = (
    (),
    (),
    *((SoftNeighbour(weight, level, IS_WEB),) for weight in (3, -3) for level in ("zone", "hostname")),
)
EVEN: Final = ((), (), (), (SoftSpread(1, "hostname", IS_WEB),))
DOMAINS: Final = (None, None, TopologyRule("fabric", preferred="zone"), TopologyRule("fabric", "zone", "rack"))
QUEUES: Final = tuple(
    Queue(name, shares=(QueueShare(GPU, quota=quota),), order=order)
    for order, (name, quota) in enumerate((("lent", 0), ("owed", 9_000)))
)


@st.composite
def wheres(draw: st.DrawFn) -> Where:
    return Where(
        preferences=draw(some(*PREFERENCES)), soft_neighbours=draw(some(*NEAR)), soft_spreads=draw(some(*EVEN))
    )


@st.composite
def roles(draw: st.DrawFn, free: list[int]) -> Job:
    """A gang of roles that takes just what is free, or a little less; each would rather have other nodes or company."""
    sizes = [size for gpus in free for size in draw(some((gpus,), (gpus,), (1,) * gpus, ()))] or [1]
    groups: list[TaskGroup] = []
    tasks: list[Task] = []
    for number, size in enumerate(draw(st.permutations(sizes))):
        name = f"role{number}"
        groups.append(TaskGroup(name, topology=draw(some(*DOMAINS))))
        tasks.append(Task(name, Request(devices=size, where=draw(wheres())), name))
    root = TaskGroup(children=tuple(groups), topology=draw(some(*DOMAINS)))
    return Job("choosy", "owed", tuple(tasks), root, priority=90, spread=draw(some(False, False, True)))


@st.composite
def lodgings(draw: st.DrawFn) -> Snapshot:
    """A few small nodes on which others have borrowed here and there, and one job that waits."""
    nodes = tuple(
        Node(
            f"n{number}",
            (Device(), Device()),
            labels={"zone": draw(some(*ZONES)), "rack": draw(some("r1", "r2"))},
            taints=draw(some((), (), (Taint("busy", effect="PreferNoSchedule", soft=True),))),
        )
        for number in range(draw(st.integers(2, 4)))
    )
    taken = [draw(some(0, 1, 1, 2)) for _ in nodes]
    lodgers = tuple(
        _lodger(f"{node.name}-{device}", node.name, device, draw(some((), (("app", "web"),))))
        for node, count in zip(nodes, taken, strict=True)
        for device in range(count)
    )
    job = draw(roles([2 - count for count in taken if count < 2]))
    return Snapshot(nodes, QUEUES, (*lodgers, job), (Topology("fabric", ("zone", "rack")),), now_ms=60_000)


def _lodger(id: str, node: str, device: int, labels: tuple[tuple[str, str], ...]) -> Job:
    shares = (DeviceShare(device),)
    task = Task(id, Request(devices=1), state=TaskState.RUNNING, node=node, shares=shares, started_at_ms=1)
    return Job(id, "lent", (task,), priority=10, labels=labels)


def indifferent(job: Job) -> Job:
    """The job without anything it would only rather have."""

    def plain(task: Task) -> Task:
        return replace(task, request=replace(task.request, where=Where()))

    return replace(job, tasks=tuple(map(plain, job.tasks)), group=_binding(job.group), spread=False)


def _binding(group: TaskGroup) -> TaskGroup:
    rule = group.topology
    kept = None if rule is None or rule.required is None else replace(rule, preferred=None)
    return replace(group, topology=kept, children=tuple(map(_binding, group.children)))


def without_soft_taints(cluster: Snapshot) -> Snapshot:
    return replace(cluster, nodes=tuple(replace(node, taints=()) for node in cluster.nodes))


@thorough
@given(lodgings(), st.sampled_from(NodePlacement))
def test_nobody_gives_way_for_what_a_job_would_only_rather_have(cluster: Snapshot, placement: NodePlacement) -> None:
    policy = replace(DEFAULT, node_placement=placement)
    *others, job = cluster.jobs
    plain = schedule(without_soft_taints(replace(cluster, jobs=(*others, indifferent(job)))), policy)
    starts = is_started(plain, job) and not disturbed_for(plain, job)
    plan = schedule(cluster, policy)
    event(f"starts without preferences: {starts}, at the cost of others: {bool(disturbed_for(plan, job))}")
    if starts:
        assert is_started(plan, job)
        assert disturbed_for(plan, job) == set()


def is_started(plan: Plan, job: Job) -> bool:
    return any(isinstance(action, Bind) and action.job == job.id for action in plan.actions)


def disturbed_for(plan: Plan, job: Job) -> set[str]:
    return {one.job for one in plan.actions if isinstance(one, Evict | Move) and one.reason.beneficiary == job.id}
