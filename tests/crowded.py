"""Random clusters in which somebody has to give way: full, with queues that borrowed, and jobs that want it back.

Made of few and usual parts, so that a search for victims has something to find: `tests.strategies` has the odd corners
of single nodes and requests. Every snapshot is legal: what runs was put where `tests.replay` found room.
"""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.model.jobs import Job, LabelRule, Operator, Request, Sharing, Task, TaskGroup, TaskState, Where
from gpuyard.model.nodes import Device, MigSlices, Node
from gpuyard.model.quantities import CPU, GPU, MILLI
from gpuyard.model.queues import Queue, QueueShare
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import DEFAULT, Consolidation, NodePlacement, Policy
from tests.replay import View
from tests.strategies import FABRIC, GIB, MODELS, find_place, leaf_names, rarely, record, rules, some

NOW_MS: Final = 10_000
TREES: Final = ("two", "two", "three", "departments", "departments", "deep")
SLICED: Final = Device("A100", MODELS["A100"], mig=(MigSlices("1g.10gb", 4), MigSlices("3g.40gb", 1)))
LITTLE: Final = (0, 0, 500, 1000, 1000, 2000, None)
MUCH: Final = (1000, 2000, 2000, 3000, 4000, 0, None)
"""Quotas, in GPU milli."""
MAX_RUNNING: Final = 8
MAX_WAITING: Final = 4


# --------------------------------------------------------------------------------------------------------- nodes


@st.composite
def small_nodes(draw: st.DrawFn, name: str) -> Node:
    model = draw(some("H100", "H100", "H100", "A100"))
    devices = (Device(model, MODELS[model]),) * draw(some(1, 2, 2, 3, 4))
    if draw(some(False, False, True)):
        devices = (*devices, SLICED)
    return Node(
        name,
        devices,
        cpu_milli=draw(some(64_000, 64_000, 64_000, 4_000)),
        memory_bytes=512 * GIB,
        max_tasks=draw(some(*[110] * 9, 3)),
        labels={"zone": draw(some("z1", "z2")), "rack": draw(some("r1", "r2"))},
        cordoned=draw(rarely()),
    )


# -------------------------------------------------------------------------------------------------------- queues


@st.composite
def owing_queues(draw: st.DrawFn) -> tuple[Queue, ...]:
    """A tree of queues of which the last leaf is owed little: much of what it runs is borrowed."""
    match draw(some(*TREES)):
        case "two":
            parents: dict[str, str | None] = {"a": None, "b": None}
        case "three":
            parents = {"a": None, "b": None, "c": None}
        case "departments":
            parents = {"left": None, "right": None, "a": "left", "b": "left", "c": "right"}
        case _:
            parents = {"top": None, "left": "top", "right": "top", "a": "left", "b": "left", "c": "right", "d": None}
    greedy = list(parents)[-1]
    return tuple(
        draw(owing_queue(name, parent, order, LITTLE if name == greedy else MUCH))
        for order, (name, parent) in enumerate(parents.items())
    )


@st.composite
def owing_queue(draw: st.DrawFn, name: str, parent: str | None, order: int, quotas: tuple[int | None, ...]) -> Queue:
    quota = draw(some(*quotas))
    limit = (quota or 0) + draw(some(0, 1000, 2000, 6000)) if draw(rarely()) else None
    shares = [QueueShare(GPU, quota, limit, draw(some(1000, 1000, 1000, 0, 3000)))]
    if draw(rarely()):
        shares.append(QueueShare(CPU, draw(some(None, 0, 4_000))))
    return Queue(
        name,
        parent,
        tuple(shares),
        draw(some(100, 100, 100, 50, 200)),
        order,
        reclaim_min_runtime_ms=draw(some(*[None] * 6, 0, 3_000)),
        preempt_min_runtime_ms=draw(some(*[None] * 6, 0, 3_000)),
        disruption_budget=draw(some(*[None] * 6, 0, 1, 2)),
        overcommit=True,
    )


# ---------------------------------------------------------------------------------------------------------- jobs


@st.composite
def usual_requests(draw: st.DrawFn) -> Request:
    match draw(some(*["whole"] * 5, *["fraction"] * 2, *["memory"] * 2, *["slice"] * 2)):
        case "whole":
            request = Request(devices=draw(some(1, 1, 1, 2, 2, 3, 4)))
        case "fraction":
            milli = draw(some(250, 500, 500, 600, 750))
            request = Request(devices=draw(some(1, 1, 1, 2)), gpu_milli=milli, sharing=Sharing.TIME_SLICED)
        case "memory":
            request = Request(
                devices=1, gpu_milli=0, gpu_memory_mib=draw(some(10_000, 20_000, 40_960)), sharing=Sharing.TIME_SLICED
            )
        case _:
            request = Request(mig=draw(some((("1g.10gb", 1),), (("1g.10gb", 2),), (("3g.40gb", 1),))))
    where = Where(any_of=((LabelRule("zone", Operator.IN, ("z1",)),),)) if draw(rarely()) else Where()
    return replace(request, cpu_milli=draw(some(0, 0, 0, 1000)), where=where)


@st.composite
def usual_trees(draw: st.DrawFn, request: Request) -> tuple[TaskGroup, list[tuple[str, Request]]]:
    match draw(some(*["one"] * 5, *["gang"] * 2, *["elastic"] * 3, "roles")):
        case "gang":
            count = draw(st.integers(2, 3))
            return TaskGroup(min_tasks=count, topology=draw(rules())), [("", request)] * count
        case "elastic":
            count = draw(st.integers(2, 4))
            return TaskGroup(min_tasks=draw(st.integers(1, count - 1))), [("", request)] * count
        case "roles":
            counts = draw(st.integers(1, 2)), draw(st.integers(1, 2))
            least = draw(st.integers(1, counts[0])), draw(st.integers(1, counts[1]))
            children = (TaskGroup("a", min_tasks=least[0]), TaskGroup("b", min_tasks=least[1]))
            tree = TaskGroup(children=children, min_groups=draw(some(None, None, 1)))
            return tree, [("a", request)] * counts[0] + [("b", Request(devices=1))] * counts[1]
    return TaskGroup(), [("", request)]


@st.composite
def usual_jobs(draw: st.DrawFn, id: str, queue: str) -> Job:
    """A job nobody has started yet."""
    tree, asked = draw(usual_trees(draw(usual_requests())))
    return Job(
        id,
        queue,
        tuple(Task(f"{id}-{index}", request, group) for index, (group, request) in enumerate(asked)),
        tree,
        priority=draw(some(50, 50, 50, 25, 75)),
        preemptible=draw(some(*[True] * 7, False)),
        submitted_at_ms=draw(st.integers(0, 5)),
        restart_ms=draw(some(0, 0, 500)),
        movable=draw(rarely(False)),
        checkpointable=draw(rarely()),
        disruption_budget=draw(some(*[None] * 9, 1)),
        spread=draw(rarely()),
    )


@st.composite
def in_place(draw: st.DrawFn, job: Job, machines: tuple[Node, ...], now: View, later: View) -> Job:
    """The job with as many tasks as there is room for, if that is at least its minimum; else as it was."""
    first = draw(st.integers(0, len(machines) - 1))
    state = draw(some(*[TaskState.RUNNING] * 12, TaskState.FREEING))
    started_at_ms = draw(some(0, 2_000, 5_000, 8_000, 9_000))
    ahead, to_come = dict(now), dict(later)
    tasks = []
    for task in job.tasks:
        place = find_place(task.request, (*machines[first:], *machines[:first]), (ahead, to_come))
        if place is not None:
            task = replace(task, state=state, node=place.node, shares=place.shares, started_at_ms=started_at_ms)
            record(job.id, task, ahead, to_come)
        tasks.append(task)
    if not has_minimum(job.group, tasks):
        return job
    now.update(ahead)
    later.update(to_come)
    checkpoint_at_ms = draw(some(None, None, started_at_ms + 500, started_at_ms - 500))
    return replace(job, tasks=tuple(tasks), checkpoint_at_ms=checkpoint_at_ms)


def has_minimum(group: TaskGroup, tasks: list[Task]) -> bool:
    """Whether every leaf has as many tasks in place as it needs, and nothing stands half started."""
    parts = group.children or (group,)
    return all(sum(task.group == leaf.name and task.node != "" for task in tasks) >= leaf.min_tasks for leaf in parts)


# ----------------------------------------------------------------------------------------------------- snapshots


@st.composite
def crowded_clusters(draw: st.DrawFn) -> Snapshot:
    """A cluster where most is in use, much of it by one greedy queue, and a few jobs wait."""
    machines = tuple(draw(small_nodes(f"n{number}")) for number in range(1, draw(some(1, 2, 2, 3, 4)) + 1))
    queues = draw(owing_queues())
    leaves = leaf_names(queues)
    greedy = leaves[-1]
    now: View = {}
    later: View = {}
    jobs: list[Job] = []
    for number in range(draw(st.integers(1, MAX_RUNNING))):
        job = draw(usual_jobs(f"r{number}", draw(some(greedy, greedy, *leaves))))
        jobs.append(draw(in_place(job, machines, now, later)))
    if draw(some(True, True, False)):
        jobs += draw(fillers(greedy, machines, now, later))
    for number in range(draw(st.integers(1, MAX_WAITING))):
        job = draw(usual_jobs(f"w{number}", draw(some(*leaves))))
        delay_ms = draw(some(*[0] * 9, 20_000))
        jobs.append(
            replace(
                job, priority=draw(some(50, 50, 75, 100)), submitted_at_ms=100 + number, preemption_delay_ms=delay_ms
            )
        )
    moves_last_hour = draw(some(0, 0, 0, 3))
    return Snapshot(machines, queues, tuple(jobs), (FABRIC,), now_ms=NOW_MS, moves_last_hour=moves_last_hour)


@st.composite
def fillers(draw: st.DrawFn, queue: str, machines: tuple[Node, ...], now: View, later: View) -> list[Job]:
    """Small jobs on whatever is still free."""
    filled: list[Job] = []
    request = Request(devices=1)
    while (place := find_place(request, machines, (now, later))) is not None:
        id = f"f{len(filled)}"
        started_at_ms = draw(some(1_000, 4_000, 7_000))
        task = Task(f"{id}-0", request, "", TaskState.RUNNING, place.node, place.shares, 0, started_at_ms)
        record(id, task, now, later)
        filled.append(Job(id, queue, (task,), priority=draw(some(50, 50, 25))))
    gaps = draw(st.sets(st.integers(0, len(filled)), max_size=3))
    return [job for number, job in enumerate(filled) if number not in gaps]


@st.composite
def scattered_clusters(draw: st.DrawFn) -> Snapshot:
    """Enough is free in all, but little of it on any one node; nobody borrows anything."""
    machines = tuple(
        Node(f"n{number}", (Device("H100", MODELS["H100"]),) * draw(some(2, 2, 3, 4)), 64_000, 512 * GIB)
        for number in range(1, draw(some(2, 3, 3, 4)) + 1)
    )
    now: View = {}
    later: View = {}
    jobs: list[Job] = []
    budget = draw(some(*[None] * 4, 1, 2))
    for number in range(draw(st.integers(2, 8))):
        job = draw(scattered_jobs(f"r{number}"))
        jobs.append(draw(in_place(job, machines, now, later)))
    for number in range(draw(st.integers(1, 2))):
        job = draw(scattered_jobs(f"w{number}"))
        size = draw(some(2, 2, 3, 4))
        tasks = tuple(replace(task, request=Request(devices=size)) for task in job.tasks)
        jobs.append(replace(job, tasks=tasks, submitted_at_ms=100 + number))
    return Snapshot(machines, (Queue("a", disruption_budget=budget),), tuple(jobs), (FABRIC,), now_ms=NOW_MS)


@st.composite
def scattered_jobs(draw: st.DrawFn, id: str) -> Job:
    milli = draw(some(1000, 1000, 500, 250, 600))
    sharing = Sharing.EXCLUSIVE if milli == MILLI else Sharing.TIME_SLICED
    request = Request(devices=1, gpu_milli=milli, sharing=sharing)
    count, gang = draw(some((1, 1), (1, 1), (1, 1), (1, 1), (2, 2), (3, 1)))
    return Job(
        id,
        "a",
        tuple(Task(f"{id}-{index}", request) for index in range(count)),
        TaskGroup(min_tasks=gang),
        preemptible=draw(rarely(False)),
        movable=draw(rarely(False)),
        checkpointable=draw(rarely()),
        disruption_budget=draw(some(*[None] * 9, 1)),
        restart_ms=draw(some(0, 500)),
    )


policies: Final[st.SearchStrategy[Policy]] = st.builds(
    lambda moves, budget, placement, grace_ms: replace(
        DEFAULT,
        reclaim_moves=moves,
        consolidation=budget,
        node_placement=placement,
        staleness_grace_ms=grace_ms,
    ),
    some(True, True, False),
    some(
        Consolidation(),
        Consolidation(),
        Consolidation(max_moves_per_cycle=1),
        Consolidation(max_moves_per_hour=4),
        Consolidation(min_runtime_ms=3_000),
        Consolidation(max_price=4_000),
    ),
    some(*[NodePlacement.BIN_PACK] * 4, NodePlacement.SPREAD, NodePlacement.FRAGMENTATION_GRADIENT),
    some(60_000, 60_000, 0),
)
