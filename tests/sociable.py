"""Random clusters in which tasks have rules about each other: near, apart, evenly spread, or rather so.

Few and plain requests on few nodes, so that rules are what decides. Every snapshot is legal as far as devices go; what
runs may lie against rules, as it does in a world where labels and rules change while tasks run.
"""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.model.jobs import (
    DESPITE_CORDON,
    NOBODY,
    Job,
    LabelRule,
    Neighbour,
    Operator,
    Request,
    SoftNeighbour,
    SoftSpread,
    Spread,
    Task,
    TaskGroup,
    TaskState,
    Toleration,
    Where,
)
from gpuyard.model.nodes import Device, Node, Taint
from gpuyard.model.queues import AffinityScope, Queue
from gpuyard.model.snapshot import Snapshot
from tests.replay import View
from tests.strategies import FABRIC, find_place, rarely, record, some

LABELS: Final = (
    (),
    (("app", "web"),),
    (("app", "web"),),
    (("app", "db"),),
    (("app", "web"), ("port", "80")),
    (("tier", "2"),),
)
PLACES: Final = (
    *((("zone", zone),) for zone in ("z1", "z1", "z2", "z2", "z3")),
    (("zone", "z1"), ("rack", "r1")),
    (("rack", "r1"),),
)
LEVELS: Final = ("zone", "hostname", "kubernetes.io/hostname", "rack")
STATES: Final = (*[TaskState.RUNNING] * 4, TaskState.FREEING, TaskState.FREEING, TaskState.PROMISED, TaskState.STUCK)
CONDITIONS: Final = (
    (LabelRule("app", Operator.IN, ("web",)),),
    (LabelRule("app", Operator.IN, ("web", "db")),),
    (LabelRule("app", Operator.NOT_IN, ("web",)),),
    (LabelRule("port", Operator.EXISTS),),
    (LabelRule("port", Operator.IN, ("80",)), LabelRule("app", Operator.EXISTS)),
    (LabelRule("tier", Operator.GREATER, ("1",)),),
    (),
)
NEIGHBOURS: Final = (
    *(Neighbour((("app", "web"),), level, apart=apart) for level in LEVELS for apart in (True, True, False)),
    *(Neighbour((), level, apart, rules) for rules in CONDITIONS for level in LEVELS for apart in (True, False)),
    Neighbour((("app", "web"),), "zone", True, (LabelRule("port", Operator.EXISTS),)),
)
SPREADS: Final = tuple(
    Spread(level, skew, rules, min_domains, honour_labels, honour_taints)
    for level in ("zone", "zone", "hostname", "rack")
    for rules in CONDITIONS
    for skew, min_domains, honour_labels, honour_taints in (
        (1, 1, True, False),
        (1, 3, False, True),
        (2, 2, True, True),
    )
)
SOFT_NEIGHBOURS: Final = tuple(
    SoftNeighbour(weight, level, rules) for rules in CONDITIONS for level in LEVELS for weight in (1, 3, -1, -2)
)
SOFT_SPREADS: Final = tuple(
    SoftSpread(weight, level, rules, honour_labels, honour_taints)
    for level in ("zone", "zone", "hostname", "rack")
    for rules in CONDITIONS
    for weight, honour_labels, honour_taints in ((1, True, False), (2, False, True))
)


@st.composite
def soft_rules(draw: st.DrawFn) -> tuple[tuple[SoftNeighbour, ...], tuple[SoftSpread, ...]]:
    """Mostly none."""
    neighbours: tuple[SoftNeighbour, ...] = ()
    spreads: tuple[SoftSpread, ...] = ()
    for kind in draw(some("", "", "near", "even", "near near", "near even", "even even")).split():
        if kind == "near":
            neighbours = (*neighbours, draw(some(*SOFT_NEIGHBOURS)))
        else:
            spreads = (*spreads, draw(some(*SOFT_SPREADS)))
    return neighbours, spreads


@st.composite
def wheres(draw: st.DrawFn) -> Where:
    """Mostly one rule; now and then two, which must both hold."""
    neighbours: tuple[Neighbour, ...] = ()
    spreads: tuple[Spread, ...] = ()
    for kind in draw(some("", "near", "near", "even", "near near", "near even", "even even")).split():
        if kind == "near":
            neighbours = (*neighbours, draw(some(*NEIGHBOURS)))
        else:
            spreads = (*spreads, draw(some(*SPREADS)))
    soft_neighbours, soft_spreads = draw(soft_rules())
    return Where(
        any_of=draw(some((), (), ((LabelRule("zone", Operator.IN, ("z1", "z2")),),))),
        tolerations=draw(some((), (Toleration("dedicated"),), (DESPITE_CORDON,))),
        neighbours=neighbours,
        spreads=spreads,
        soft_neighbours=soft_neighbours,
        soft_spreads=soft_spreads,
    )


@st.composite
def machines(draw: st.DrawFn) -> tuple[Node, ...]:
    return tuple(draw(machine(f"n{number}")) for number in range(1, draw(st.integers(2, 5)) + 1))


@st.composite
def machine(draw: st.DrawFn, name: str) -> Node:
    return Node(
        name,
        (Device(),) * draw(some(1, 2, 2, 4)),
        cpu_milli=8_000,
        labels=dict(draw(some(*PLACES))),
        taints=draw(some((), (), (), (Taint("dedicated"),), (Taint("busy", soft=True),))),
        cordoned=draw(rarely()),
    )


@st.composite
def jobs(draw: st.DrawFn, id: str) -> Job:
    """One task, or a few that start together or one by one."""
    request = Request(devices=draw(some(0, 1, 1, 1, 2)), cpu_milli=500, where=draw(wheres()))
    count = draw(some(1, 1, 1, 1, 2, 3))
    tasks = tuple(Task(f"{id}-{index}", request, labels=draw(some(*LABELS))) for index in range(count))
    group = TaskGroup(min_tasks=draw(some(1, count)))
    queue, labels = draw(some("q0", "q0", "q0", "q1", NOBODY)), draw(some((), (), *LABELS[1:]))
    return Job(id, queue, tasks, group, labels=labels, preemptible=draw(some(True, True, True, False)))


@st.composite
def trees(draw: st.DrawFn) -> tuple[Queue, ...]:
    """Two teams, mostly of one department; how far their rules reach is said anywhere or nowhere."""
    scopes = some(None, None, *AffinityScope)
    parent = draw(some("d", "d", None))
    teams = [Queue(name, parent, order=order, affinity_scope=draw(scopes)) for order, name in enumerate(("q0", "q1"))]
    return (*teams, Queue("d", order=2, affinity_scope=draw(scopes))) if parent else tuple(teams)


@st.composite
def sociable_clusters(draw: st.DrawFn, max_jobs: int = 8) -> Snapshot:
    hardware = draw(machines())
    now: View = {}
    later: View = {}
    drawn: list[Job] = []
    for number in range(draw(st.integers(1, max_jobs))):
        job = draw(jobs(f"j{number}"))
        drawn.append(draw(started(job, hardware, now, later)) if draw(some(True, False)) else job)
    scope = draw(some(AffinityScope.QUEUE, AffinityScope.CLUSTER))
    return Snapshot(hardware, draw(trees()), tuple(drawn), (FABRIC,), now_ms=60_000, affinity_scope=scope)


@st.composite
def started(draw: st.DrawFn, job: Job, hardware: tuple[Node, ...], now: View, later: View) -> Job:
    """Its tasks where there is room, whatever the rules say: they may be newer than the tasks."""
    state = draw(some(*STATES))
    views = (later,) if state is TaskState.PROMISED else (now, later)
    tasks = []
    for task in job.tasks:
        first = draw(st.integers(0, len(hardware) - 1))
        place = find_place(task.request, (*hardware[first:], *hardware[:first]), views)
        if place is not None:
            task = replace(task, state=state, node=place.node, shares=place.shares, started_at_ms=1)
            record(job.id, task, now, later)
        tasks.append(task)
    return replace(job, tasks=tuple(tasks))
