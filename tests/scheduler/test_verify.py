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
from gpuyard.model.plan import Bind
from gpuyard.model.queues import Queue, QueueShare
from gpuyard.model.reasons import Token
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import Policy, Step
from gpuyard.scheduler.cycle import schedule
from gpuyard.scheduler.verify import verify

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
