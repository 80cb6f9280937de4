"""Jobs of so many nodes with so many tasks on each: in just this shape or not at all, whatever happens to them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.model.explanation import Field, WayKind
from gpuyard.model.jobs import DeviceShare, Job, Request, Task, TaskState, on_nodes
from gpuyard.model.nodes import Device, Node
from gpuyard.model.plan import Bind, Evict, Plan
from gpuyard.model.queues import Queue
from gpuyard.model.reasons import NODES, Reason, Token
from gpuyard.model.snapshot import Snapshot
from gpuyard.model.text import reason_text, way_text
from gpuyard.policies.policy import Policy, Step
from gpuyard.scheduler.cycle import schedule
from gpuyard.scheduler.explain import explain
from gpuyard.scheduler.verify import verify
from tests.replay import COUNTED, replay
from tests.scheduler.judge import changed_jobs
from tests.scheduler.test_properties import thorough
from tests.strategies import clusters

ALLOCATE = Policy(steps=(Step.ALLOCATE,))
GPUS_PER_NODE = 4


def a_job(nodes: int, tasks: int, gpus: int = 1, least: int | None = None, id: str = "wide") -> Job:
    group = on_nodes(nodes, tasks, nodes if least is None else least)
    names = [child.name for child in group.children for _ in range(tasks)]
    request = Request(devices=gpus)
    return Job(id, "q", tuple(Task(f"{id}-{n}", request, name) for n, name in enumerate(names)), group)


def a_cluster(free: list[int], *jobs: Job) -> Snapshot:
    """Nodes of four GPUs, of which so many are free."""
    nodes = tuple(Node(f"n{n}", (Device("A", 100),) * GPUS_PER_NODE) for n in range(len(free)))
    holders = [holder(f"h{n}", f"n{n}", GPUS_PER_NODE - left) for n, left in enumerate(free) if left < GPUS_PER_NODE]
    return Snapshot(nodes, (Queue("q"),), (*holders, *jobs))


def holder(id: str, node: str, gpus: int) -> Job:
    shares = tuple(DeviceShare(device, 1000, 100) for device in range(gpus))
    return Job(id, "q", (Task(f"{id}-0", Request(devices=gpus), state=TaskState.RUNNING, node=node, shares=shares),))


def is_in_shape(job: Job) -> bool:
    """Every part whole and on one node, no node with two parts."""
    parts = Counter((task.group, task.node) for task in job.tasks if task.state in COUNTED)
    nodes = {node for _, node in parts}
    sizes = {child.name: child.min_tasks for child in job.group.children}
    return len(nodes) == len(parts) and all(count == sizes[name] for (name, _), count in parts.items())


# ------------------------------------------------------------------------------------------------------------ the plan


@given(
    st.lists(st.integers(0, GPUS_PER_NODE), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 2),
)
def test_it_lies_on_exactly_so_many_nodes_with_so_many_tasks_on_each_or_nowhere(
    free: list[int], nodes: int, tasks: int, gpus: int
) -> None:
    plan = schedule(a_cluster(free, a_job(nodes, tasks, gpus)), ALLOCATE)
    found = Counter(action.node for action in plan.actions if isinstance(action, Bind))
    could = sum(left >= tasks * gpus for left in free) >= nodes
    assert sorted(found.values()) == ([tasks] * nodes if could else [])


@thorough
@given(clusters())
def test_whatever_a_whole_cycle_does_such_jobs_keep_their_shape(cluster: Snapshot) -> None:
    """Those that a world reports in another shape are not made worse, and grow no further."""
    for before, after in changed_jobs(cluster, replay(schedule(cluster), cluster)):
        if after.group.node_each and (is_in_shape(before) or not any(t.state in COUNTED for t in before.tasks)):
            assert is_in_shape(after)


@given(clusters())
def test_a_plan_of_a_whole_cycle_for_such_jobs_is_verified(cluster: Snapshot) -> None:
    shaped = replace(cluster, jobs=tuple(job for job in cluster.jobs if job.group.node_each))
    verdicts = verify(schedule(shaped), shaped)
    assert [verdict.why for verdict in verdicts if not verdict.holds] == []


def test_an_elastic_one_grows_and_yields_by_whole_nodes() -> None:
    cluster = a_cluster([4, 4, 2], a_job(3, 3, least=1))
    plan = schedule(cluster, ALLOCATE)
    assert Counter(action.node for action in plan.actions if isinstance(action, Bind)) == {"n0": 3, "n1": 3}
    grown = replay(plan, cluster)
    urgent = replace(a_job(1, 4, id="urgent"), priority=100)
    later = replace(grown.snapshot(), jobs=(*grown.snapshot().jobs, urgent))
    evicted = {action.task for action in schedule(later).actions if isinstance(action, Evict)}
    assert evicted == {"wide-3", "wide-4", "wide-5"}


def test_a_part_that_lost_a_task_gets_it_back_on_its_own_node() -> None:
    grown = replay(schedule(cluster := a_cluster([4, 4], a_job(2, 2)), ALLOCATE), cluster).snapshot()
    (job,) = grown.jobs
    lost = replace(job.tasks[0], state=TaskState.PENDING, node="", shares=())
    (bind,) = schedule(replace(grown, jobs=(replace(job, tasks=(lost, *job.tasks[1:])),)), ALLOCATE).actions
    assert isinstance(bind, Bind)
    assert (bind.task, bind.node) == (lost.id, job.tasks[1].node)


# -------------------------------------------------------------------------------------------------------- verification


@pytest.mark.parametrize("nodes", [["n0", "n0", "n0", "n1"], ["n0"] * 4, ["n0", "n1", "n0", "n1"]])
def test_a_plan_for_another_shape_does_not_hold(nodes: list[str]) -> None:
    cluster = a_cluster([4, 4], a_job(2, 2))
    used: Counter[str] = Counter()
    binds = []
    for number, node in enumerate(nodes):
        shares = (DeviceShare(used[node], 1000, 100),)
        binds.append(Bind("wide", f"wide-{number}", node, shares, Reason(Token.PLACED)))
        used[node] += 1
    why = [verdict.why for verdict in verify(Plan(tuple(binds)), cluster)]
    assert why == [Reason(Token.NO_DOMAIN, subject="hostname")] * 4


def test_a_plan_whose_node_was_taken_meanwhile_starts_nothing_of_the_job() -> None:
    plan = schedule(a_cluster([4, 4], a_job(2, 3)), ALLOCATE)
    assert not any(verdict.holds for verdict in verify(plan, a_cluster([4, 2], a_job(2, 3))))


# --------------------------------------------------------------------------------------------------------- explanation


@pytest.mark.parametrize(
    ("nodes", "tasks", "gpus", "why"),
    [
        (3, 1, 1, Reason(Token.TOO_LARGE, NODES, 2, 3, "1 task", never=True)),
        (2, 5, 1, Reason(Token.TOO_LARGE, "gpu", 8000, 10000, "cluster", never=True)),
        (1, 5, 1, Reason(Token.TOO_LARGE, "gpu", 4000, 5000, never=True)),
        (3, 2, 1, Reason(Token.TOO_LARGE, NODES, 2, 3, "2 tasks", never=True)),
    ],
)
def test_what_never_fits_says_so_exactly(nodes: int, tasks: int, gpus: int, why: Reason) -> None:
    (waiting,) = schedule(a_cluster([4, 4], a_job(nodes, tasks, gpus))).waiting
    assert waiting.reasons == (why,)


def test_what_waits_says_how_many_nodes_have_room_and_what_would_do() -> None:
    cluster = a_cluster([4, 3, 3], a_job(2, 2, gpus=2))
    found = explain(cluster, "wide", ALLOCATE)
    (reason,) = found.blockers
    assert reason_text(reason) == ("needs 2 nodes with room for 2 tasks each, 1 can be had: wait, or use smaller tasks")
    fewer = next(way for way in found.ways_out if way.kind is WayKind.FEWER_TASKS)
    assert [(edit.field, edit.before, edit.after) for edit in fewer.edits] == [(Field.NODES, 2, 1)]
    assert "run it on 1 node instead of 2" in way_text(fewer)
    smaller = next(way for way in found.ways_out if way.kind is WayKind.SMALLER)
    assert [(edit.field, edit.group, edit.after) for edit in smaller.edits] == [(Field.ASKS, "", 1000)]
