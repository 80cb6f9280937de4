"""Plans on newer snapshots: what no longer holds is named, with its numbers, and takes its gang with it."""

from __future__ import annotations

import msgspec

from gpuyard.model.jobs import (
    DeviceShare,
    Job,
    Neighbour,
    Request,
    Task,
    TaskGroup,
    TaskState,
    TopologyRule,
    Where,
)
from gpuyard.model.nodes import Device, Node, Topology
from gpuyard.model.plan import Bind, Evict, Move, Promise
from gpuyard.model.queues import Queue, QueueShare
from gpuyard.model.reasons import Token
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import Policy, Step
from gpuyard.scheduler.cycle import schedule
from gpuyard.scheduler.verify import Verdict, verify
from tests.builders import ClusterBuilder, a_cluster, a_job

ALLOCATE = Policy(steps=(Step.ALLOCATE,))
ONE = Request(devices=1)


def a_node(name: str, gpus: int, **labels: str) -> Node:
    return Node(name, (Device("A", 100),) * gpus, cpu_milli=8_000, memory_bytes=1 << 30, labels=labels)


def running(id: str, node: str, device: int, labels: tuple[tuple[str, str], ...] = ()) -> Job:
    share = DeviceShare(device, 1000, 100)
    task = Task(f"{id}-0", ONE, state=TaskState.RUNNING, node=node, shares=(share,))
    return Job(id, "q", (task,), labels=labels)


def a_gang(id: str, tasks: int, rule: TopologyRule | None = None) -> Job:
    return Job(id, "q", tuple(Task(f"{id}-{n}", ONE) for n in range(tasks)), TaskGroup(min_tasks=tasks, topology=rule))


def cluster(*jobs: Job, nodes: tuple[Node, ...] = (a_node("n1", 2),)) -> Snapshot:
    return Snapshot(nodes, (Queue("q"),), jobs, topologies=(Topology("default", ("rack",)),))


def test_a_plan_holds_on_the_snapshot_it_was_made_from() -> None:
    snapshot = cluster(a_gang("g", 2))
    assert all(verdict.holds for verdict in verify(schedule(snapshot, ALLOCATE), snapshot))


def test_a_taken_gpu_is_named_and_its_gang_goes_whole() -> None:
    plan = schedule(cluster(a_gang("g", 2)), ALLOCATE)
    verdicts = verify(plan, cluster(a_gang("g", 2), running("r", "n1", 0)))
    first, second = (verdict.why for verdict in verdicts)
    assert first is not None
    assert second is not None
    assert (first.token, first.resource, first.have, first.need) == (Token.NOT_ENOUGH, "gpu", 0, 1000)
    assert (second.token, second.have, second.need) == (Token.GANG_INCOMPLETE, 1, 2)


def test_a_neighbour_that_came_meanwhile_is_respected() -> None:
    rule = Neighbour((("app", "x"),), "hostname", apart=True)
    shy = Job("shy", "q", (Task("shy-0", msgspec.structs.replace(ONE, where=Where(neighbours=(rule,)))),))
    plan = schedule(cluster(shy), ALLOCATE)
    (verdict,) = verify(plan, cluster(shy, running("r", "n1", 1, (("app", "x"),))))
    assert verdict.why is not None
    assert verdict.why.token is Token.NO_MATCHING_NODE


def test_a_required_domain_that_fell_apart_is_noticed() -> None:
    gang = a_gang("g", 2, TopologyRule("default", required="rack"))
    together = (a_node("n1", 1, rack="r1"), a_node("n2", 1, rack="r1"))
    apart = (a_node("n1", 1, rack="r1"), a_node("n2", 1, rack="r2"))
    plan = schedule(cluster(gang, nodes=together), ALLOCATE)
    assert all(isinstance(action, Bind) for action in plan.actions)
    tokens = {verdict.why.token for verdict in verify(plan, cluster(gang, nodes=apart)) if verdict.why}
    assert tokens == {Token.NO_DOMAIN}


def test_a_lowered_limit_stops_what_was_planned() -> None:
    snapshot = cluster(a_gang("g", 2))
    limited = msgspec.structs.replace(snapshot, queues=(Queue("q", shares=(QueueShare("gpu", limit=1000),)),))
    assert not any(verdict.holds for verdict in verify(schedule(snapshot, ALLOCATE), limited))


def test_a_gang_whose_minimum_was_promised_does_not_start_its_rest() -> None:
    promised = Task("g-0", ONE, state=TaskState.PROMISED, node="n1", shares=(DeviceShare(0, 1000, 100),))
    gang = Job("g", "q", (promised, Task("g-1", ONE)), TaskGroup(min_tasks=2))
    assert not [action for action in schedule(cluster(gang), ALLOCATE).actions if isinstance(action, Bind)]


# ---------------------------------------------------------------------------------------------- who gives way


def giving_way(gpus: int = 1) -> ClusterBuilder:
    """Job `late` of a team that is owed all gets the place of job `big`, which is owed nothing."""
    owing = a_cluster().nodes(1, gpus=gpus).queue("owed", quota=gpus).queue("lent", quota=0)
    return owing.jobs(a_job("big").team("lent").gpus(gpus).on("node-1", *range(gpus)))


def tokens(verdicts: tuple[Verdict, ...]) -> list[Token | None]:
    return [verdict.why.token if verdict.why else None for verdict in verdicts]


def test_an_eviction_frees_its_place_for_what_was_promised() -> None:
    snapshot = giving_way().jobs(a_job("late").team("owed")).snapshot()
    plan = schedule(snapshot)
    assert [type(action) for action in plan.actions] == [Evict, Promise]
    assert tokens(verify(plan, snapshot)) == [None, None]


def test_a_promise_is_refused_with_the_eviction_it_waits_for() -> None:
    plan = schedule(giving_way().jobs(a_job("late").team("owed")).snapshot())
    ended = a_cluster().nodes(1, gpus=1).queue("owed", quota=1).jobs(a_job("late").team("owed")).snapshot()
    assert tokens(verify(plan, ended)) == [Token.GANG_INCOMPLETE, Token.GANG_INCOMPLETE]


def test_nobody_is_evicted_for_a_job_that_does_not_wait_any_more() -> None:
    plan = schedule(giving_way().jobs(a_job("late").team("owed")).snapshot())
    assert not any(verdict.holds for verdict in verify(plan, giving_way().snapshot()))


def test_a_job_that_may_not_be_preempted_any_more_is_not_evicted() -> None:
    snapshot = giving_way().jobs(a_job("late").team("owed")).snapshot()
    big, late = snapshot.jobs
    firm = msgspec.structs.replace(snapshot, jobs=(msgspec.structs.replace(big, preemptible=False), late))
    assert not any(verdict.holds for verdict in verify(schedule(snapshot), firm))


def test_a_move_is_tried_where_it_goes() -> None:
    moving = a_cluster().nodes(2, gpus=2).jobs(a_job("a").on("node-1", 0), a_job("b").on("node-2", 0))
    wide = a_job("wide").gpus(2)
    plan = schedule(moving.jobs(wide).snapshot())
    (to,) = (action.node for action in plan.actions if isinstance(action, Move))
    taken = moving.jobs(wide, a_job("new").on(to, 1)).snapshot()
    assert tokens(verify(plan, taken)) == [Token.NOT_ENOUGH, Token.NOT_ENOUGH]


def test_what_has_become_a_gangs_minimum_is_not_evicted_from_it() -> None:
    elastic = a_job("e").team("lent").tasks(2, gang=1).on("node-1", 0).on("node-1", 1)
    owing = a_cluster().nodes(1, gpus=2).queue("owed", quota=2).queue("lent", quota=0)
    snapshot = owing.jobs(elastic, a_job("late").team("owed")).snapshot()
    job, late = snapshot.jobs
    gang = msgspec.structs.replace(job, group=TaskGroup(min_tasks=2))
    plan = schedule(snapshot)
    assert not any(verdict.holds for verdict in verify(plan, msgspec.structs.replace(snapshot, jobs=(gang, late))))
