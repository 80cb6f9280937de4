"""Schedulers that die at the worst moment, and what is lost under their hands: whoever comes next makes it whole."""

from __future__ import annotations

from time import monotonic
from typing import Any

from msgspec.structs import replace

from gpuyard.policies.policy import DEFAULT
from gpuyard.testbed.kwok import node as kwok_node
from tests.kube import eventually
from tests.on_kube.faults.cluster import GPUS, KWOK_NODES, TEAM, Cluster, a_gpu_pod, kwok_names
from tests.on_kube.faults.faulty import hang, part, slow

BINDING = part("binding")
EVICTION = part("eviction")
SOON_S = 30.0


def names(count: int, word: str = "p") -> list[str]:
    return [f"{word}{number}" for number in range(count)]


# -------------------------------------------------------------------------------------------------- schedulers that die


def test_killed_between_plan_and_bind(cluster: Cluster) -> None:
    """A real process, really killed."""
    proxy = cluster.proxy()
    proxy.on(hang(BINDING, after=3))
    first = cluster.outside(proxy, "first", "--no-leader-elect")
    cluster.add(*names(10))
    proxy.saw(BINDING, 10)
    first.kill()
    cluster.outside(cluster.proxy(), "second", "--no-leader-elect")
    cluster.all_bound(10)


def test_killed_in_the_middle_of_a_gang_which_the_next_completes(cluster: Cluster) -> None:
    proxy = cluster.proxy()
    proxy.on(hang(BINDING, after=2))
    cluster.inside(proxy)
    cluster.gang("g", KWOK_NODES)
    proxy.saw(BINDING, KWOK_NODES)
    cluster.all_bound(2)
    cluster.cut_off(proxy)
    cluster.inside()
    cluster.all_bound(KWOK_NODES)


def test_half_a_gang_of_a_killed_scheduler_goes_after_its_grace(cluster: Cluster) -> None:
    proxy = cluster.proxy()
    proxy.on(hang(BINDING, after=2))
    cluster.inside(proxy)
    cluster.gang("g", KWOK_NODES)
    proxy.saw(BINDING, KWOK_NODES)
    cluster.all_bound(2)
    cluster.cut_off(proxy)
    free = sorted(set(kwok_names()) - set(cluster.places().values()))
    # Somebody else has taken a node meanwhile.
    cluster.api.create(cluster.pods, on_node(free[0]))
    began = monotonic()
    cluster.inside(policy=replace(DEFAULT, staleness_grace_ms=2_000))
    eventually(lambda: not any(name.startswith("g-") for name in cluster.places()), "the end of the half", SOON_S)
    assert monotonic() - began < 10
    eventually(lambda: len(cluster.events("Stale")) == 2, "an event for each")


def on_node(node: str, gpus: int = 1) -> dict[str, Any]:
    pod = a_gpu_pod(f"on-{node}", gpus=gpus, scheduler="somebody-else")
    pod["spec"]["nodeName"] = node
    return pod


def test_killed_between_note_and_eviction(cluster: Cluster) -> None:
    proxy = cluster.proxy()
    cluster.inside(proxy)
    cluster.add(*names(KWOK_NODES, "low"), gpus=GPUS)
    cluster.all_bound(KWOK_NODES)
    proxy.on(hang(EVICTION))
    cluster.add("high", gpus=GPUS, priority="inference")
    proxy.saw(EVICTION)
    assert cluster.nominated("high") in kwok_names()
    cluster.cut_off(proxy)
    second = cluster.inside()
    cluster.all_bound(["high"])
    assert len(second.lines("evict")) <= 2, "a place that is taken back, and one victim"
    assert sum(bool(cluster.pod(name)) for name in names(KWOK_NODES, "low")) == KWOK_NODES - 1


def test_killed_after_the_eviction_before_the_place_was_free(cluster: Cluster) -> None:
    proxy = cluster.proxy()
    cluster.inside(proxy)
    cluster.add("low1", "low2", gpus=GPUS, quiet=True)
    cluster.all_bound(["low1", "low2"])
    cluster.add("high", gpus=GPUS, quiet=True, priority="inference")
    eventually(lambda: leaving(cluster, "low1", "low2"), "an eviction")
    (victim,) = leaving(cluster, "low1", "low2")
    place = cluster.nominated("high")
    assert place == cluster.node_of(victim)
    cluster.cut_off(proxy)
    second = cluster.inside()
    cluster.add("thief", gpus=GPUS, quiet=True)
    eventually(lambda: cluster.condition("thief", "PodScheduled"), "why the thief waits")
    cluster.finish(victim)
    cluster.all_bound(["high"])
    assert cluster.node_of("high") == place
    assert cluster.node_of("thief") == ""
    assert second.lines("evict") == []


def leaving(cluster: Cluster, *pods: str) -> list[str]:
    return [name for name in pods if "deletionTimestamp" in cluster.pod(name).get("metadata", {})]


# ----------------------------------------------------------------------------------------------- what is lost meanwhile


def test_a_pod_is_deleted_and_another_of_its_name_is_made_while_it_is_bound(cluster: Cluster) -> None:
    proxy = cluster.proxy()
    late = proxy.on(slow(part("binding", "p"), 1.0, times=2))
    cluster.inside(proxy)
    cluster.add("p0", "p1")
    proxy.saw(BINDING, 2)
    cluster.finish("p0", "p1")
    cluster.add("p1")
    proxy.rules.remove(late)
    cluster.all_bound(["p1"])
    cluster.add("q")
    cluster.all_bound(["q"], 5)


def test_a_node_is_lost_in_the_middle_of_a_gang(cluster: Cluster) -> None:
    proxy = cluster.proxy()
    proxy.on(hang(BINDING, after=1))
    cluster.inside(proxy, policy=replace(DEFAULT, staleness_grace_ms=2_000))
    cluster.gang("g", 3)
    proxy.saw(BINDING, 3)
    cluster.all_bound(1)
    ((name, node),) = cluster.places().items()
    cluster.api.delete(f"/api/v1/nodes/{node}")
    try:
        # Its pods go with it, as the controllers see to a while later.
        cluster.finish(name)
        proxy.calm()
        eventually(lambda: not cluster.places(), "the end of what is left of the gang", SOON_S)
        cluster.add(name, gpus=GPUS, group="g")
        for lost in sorted({"g-0", "g-1", "g-2"} - set(all_pods(cluster))):
            cluster.add(lost, gpus=GPUS, group="g")
        cluster.all_bound(3)
        assert node not in cluster.places().values()
    finally:
        cluster.api.create("/api/v1/nodes", kwok_node(node, gpus=GPUS))


def all_pods(cluster: Cluster) -> list[str]:
    return [pod["metadata"]["name"] for pod in cluster.api.get(cluster.pods)["items"]]


def test_a_pod_group_is_deleted_while_its_pods_wait(cluster: Cluster) -> None:
    cluster.inside()
    cluster.add("waits", gpus=1, group="g")
    eventually(lambda: "does not exist" in cluster.why("waits"), "why it waits")
    groups = f"/apis/scheduling.run.ai/v2alpha2/namespaces/{cluster.namespace}/podgroups"
    group = {"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup", "metadata": {"name": "g"}}
    cluster.api.create(groups, {**group, "spec": {"minMember": 2, "queue": TEAM}})
    eventually(lambda: "GangIncomplete" in cluster.why("waits"), "its minimum")
    cluster.api.delete(f"{groups}/g")
    eventually(lambda: "does not exist" in cluster.why("waits"), "why it waits")
    cluster.api.create(groups, {**group, "spec": {"minMember": 1, "queue": TEAM}})
    cluster.all_bound(["waits"])
