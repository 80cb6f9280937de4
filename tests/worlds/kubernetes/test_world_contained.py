"""Objects of a cluster that are out of range, or that the scheduler stumbles over: they wait, all others go on."""

from __future__ import annotations

from typing import Any

import pytest

from gpuyard.loop.containment import Trouble
from gpuyard.model.plan import Bind
from gpuyard.model.reasons import Token
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.placement import Placer
from gpuyard.worlds.kubernetes import objects
from gpuyard.worlds.kubernetes import world as world_module
from gpuyard.worlds.kubernetes.jobs import JobReader
from gpuyard.worlds.kubernetes.nodes import node_of
from gpuyard.worlds.kubernetes.world import Kubernetes
from tests.worlds.kubernetes.small_cluster import GPU, SmallCluster

HUGE = ("9223372036854775807", "18446744073709551615", "1e40", "9" * 400, "1Ei", "15E")


class PoisonedError(Exception):
    """Raised on purpose."""


def surviving(cluster: SmallCluster) -> list[Trouble]:
    """Lets the scheduler survive exceptions, and gives what it reports."""
    troubles: list[Trouble] = []
    cluster.contained = troubles.append
    return troubles


def out(cluster: SmallCluster) -> list[str]:
    assert cluster.loop is not None
    return [str(one.subject) for one in cluster.loop.containment.left]


def bound(cluster: SmallCluster) -> dict[str, str]:
    return {line.split()[1]: line.split()[2] for line in cluster.said if line.startswith("bind ")}


@pytest.mark.parametrize("amount", HUGE)
@pytest.mark.parametrize("resource", ["cpu", "memory", "pods", GPU, "nvidia.com/mig-1g.10gb", "x.io/other"])
def test_a_node_that_offers_more_than_any_node_has_is_no_reason_to_stop(resource: str, amount: str) -> None:
    cluster = SmallCluster(nodes=1, gpus=2)
    cluster.add_node("n2", 2, **{resource: amount})
    for name in ("a", "b", "c"):
        cluster.add_pod(name)
    cluster.settle()
    assert cluster.loop is not None
    assert cluster.loop.containment.failures == 0
    assert "n1" in bound(cluster).values()
    if resource in ("memory", "x.io/other"):
        assert out(cluster) == ["node n2"] or list(cluster.world.broken) == ["node n2"]
        assert sorted(bound(cluster).values()) == ["n1", "n1"]


@pytest.mark.parametrize("amount", HUGE)
@pytest.mark.parametrize("resource", ["cpu", "memory", GPU, "x.io/other"])
def test_a_pod_that_asks_for_more_than_any_node_has_waits_alone(resource: str, amount: str) -> None:
    cluster = SmallCluster(nodes=1, gpus=2)
    cluster.add_pod("greedy", requests={resource: amount})
    cluster.add_pod("modest")
    cluster.settle()
    assert bound(cluster) == {"modest": "n1"}
    assert cluster.loop is not None
    assert cluster.loop.containment.failures == 0


def test_a_job_that_planning_fails_with_waits_and_all_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Placer.place

    def poisoned(self: Placer, waiter: Waiter) -> bool:
        if "bad" in waiter.job.id:
            raise PoisonedError("bad")
        return place(self, waiter)

    monkeypatch.setattr(Placer, "place", poisoned)
    cluster = SmallCluster(nodes=1, gpus=8)
    troubles = surviving(cluster)
    for name in ("good", "bad", "better"):
        cluster.add_pod(name)
    cluster.settle()
    assert sorted(bound(cluster)) == ["better", "good"]
    assert len(troubles) == 1
    (job,) = (subject.removeprefix("job ") for subject in out(cluster))
    assert cluster.loop is not None
    assert cluster.loop.why_waiting[job][0].token is Token.PLANNING_FAILED


def test_a_pod_that_cannot_be_read_stays_as_it_was_read_last(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SmallCluster(nodes=1, gpus=2)
    cluster.add_pod("runs")
    cluster.settle()
    read = JobReader.job

    def fails(self: JobReader, id: str, *rest: Any) -> object:
        if "runs" in id or "new" in id:
            raise PoisonedError(id)
        return read(self, id, *rest)

    monkeypatch.setattr(JobReader, "job", fails)
    for name in ("new", "other", "late"):
        cluster.add_pod(name)
    cluster.settle()
    assert set(bound(cluster)) == {"runs", "other"} or set(bound(cluster)) == {"runs", "late"}
    assert [item.split("/")[-1] for item in cluster.world.broken] != []
    monkeypatch.undo()
    cluster.end("runs")
    cluster.picture.mark(next(id for id in cluster.picture.groups if "new" in id))
    cluster.settle()
    assert cluster.world.broken == {}


def test_a_node_that_cannot_be_read_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:

    def fails(node: objects.Node, devices: object) -> object:
        if node.metadata.name == "n1":
            raise PoisonedError("n1")
        return node_of(node, devices)  # type: ignore[arg-type]

    monkeypatch.setattr(world_module, "node_of", fails)
    cluster = SmallCluster(nodes=2, gpus=1)
    for name in ("a", "b"):
        cluster.add_pod(name)
    cluster.settle()
    assert list(bound(cluster).values()) == ["n2"]
    assert list(cluster.world.broken) == ["node n1"]


def test_an_action_that_cannot_be_noted_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    bind = Kubernetes._bind

    def fails(self: Kubernetes, action: Bind, now_ms: int) -> object:
        if "bad" in action.job:
            raise PoisonedError("bad")
        return bind(self, action, now_ms)

    monkeypatch.setattr(Kubernetes, "_bind", fails)
    cluster = SmallCluster(nodes=1, gpus=8)
    surviving(cluster)
    for name in ("good", "bad", "better"):
        cluster.add_pod(name)
    cluster.settle()
    assert sorted(bound(cluster)) == ["better", "good"]
    assert [subject.split("/")[-1] for subject in out(cluster)] != []
