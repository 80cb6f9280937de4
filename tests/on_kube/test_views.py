"""Lists of a cluster: queues, nodes, GPUs, and what a difference of plans does not say."""

from __future__ import annotations

import json
from typing import Any

from gpuyard.files.change import changes_in
from gpuyard.files.cluster import ClusterFile
from gpuyard.files.place import Place
from gpuyard.files.tree import parse
from gpuyard.kube.ask import Cluster
from gpuyard.kube.views import GpuObject, gpu_objects, lost_work, node_objects, queue_objects
from gpuyard.model.difference import Difference
from gpuyard.model.nodes import OWN_LABEL
from gpuyard.scheduler.what_if import what_if_on
from gpuyard.worlds.kubernetes.devices import (
    KEY,
    Held,
    NodeDevices,
    PublishedDevice,
    document_of,
    map_name,
)
from tests.on_kube.shelves import Object, a_job, a_namespace, a_node, a_pod, a_queue, a_team, read


def test_queues_say_what_they_are_owed_hold_borrow_and_lend() -> None:
    lists = {"gpuyard.io/namespaces": "default,vision"}
    queues = [a_queue("all", quota=16), a_queue("a", 8, 12, "all"), a_queue("b", 8, parent="all", annotations=lists)]
    pods = [a_pod("one", 8, "a", node="node-1"), a_pod("two", 2, "a", node="node-2"), a_pod("late", 4, "a")]
    cluster = read(a_namespace(), *queues, a_node(), a_node("node-2"), *pods)
    found = {queue.name: queue for queue in queue_objects(cluster)}
    a, b, all_ = found["a"], found["b"], found["all"]
    assert (a.quota, a.limit, a.held, a.borrowed, a.lent, a.waiting) == ("8", "12", "10", "2", "0", "4")
    assert (b.quota, b.limit, b.held, b.lent, b.namespaces) == ("8", None, "0", "2", ("default", "vision"))
    assert (all_.held, all_.running_jobs, all_.waiting_jobs, all_.leaf, a.leaf) == ("10", 2, 1, False, True)
    assert a.namespaces is None
    assert a.fair_share == "12"


# ---------------------------------------------------------------------------------------------------------------- GPUs


def published(node: str, holdings: dict[str, list[int]], broken: tuple[int, ...] = (), count: int = 8) -> Object:
    devices = tuple(PublishedDevice(f"GPU-{n}", n not in broken, "H100", 81920) for n in range(count))
    held = tuple(Held("default", pod, "main", tuple(f"GPU-{n}" for n in indices)) for pod, indices in holdings.items())
    text = document_of(NodeDevices(node, devices, held))
    labels = {"gpuyard.io/devices": "true"}
    return {"kind": "ConfigMap", "metadata": {"name": map_name(node), "labels": labels}, "data": {KEY: text}}


def gpus_of(cluster: Cluster) -> dict[tuple[str, int], GpuObject]:
    return {(gpu.node, gpu.index): gpu for gpu in gpu_objects(cluster)}


def holders(gpu: GpuObject) -> list[str]:
    return [holder.pod for holder in gpu.holders]


def test_where_a_node_tells_every_gpu_is_shown_with_the_pod_that_has_it() -> None:
    pods = [a_pod("a", 2, node="node-1"), a_pod("b", 1, node="node-1", scheduler="default-scheduler", queue="")]
    told = published("node-1", {"a": [3, 5], "b": [0]}, broken=(7,))
    found = gpus_of(read(*a_team(), a_node(gpus=7), told, *pods))
    assert {index: holders(gpu) for (_, index), gpu in found.items() if gpu.holders} == {
        0: ["default/b"],
        3: ["default/a"],
        5: ["default/a"],
    }
    assert all(gpu.named for gpu in found.values())
    assert (found["node-1", 3].model, found["node-1", 3].id, found["node-1", 3].free_milli) == ("H100", "GPU-3", 0)
    assert (found["node-1", 7].healthy, found["node-1", 1].free_milli) == (False, 1000)
    assert (found["node-1", 0].holders[0].team, found["node-1", 3].holders[0].team) == ("", "team")


def test_where_nobody_tells_the_lowest_free_ones_are_assumed_and_marked() -> None:
    pods = [a_pod("a", 2, node="node-1"), a_pod("b", 1, node="node-1")]
    found = gpus_of(read(*a_team(), a_node(gpus=4), *pods))
    assert [holders(found["node-1", n]) for n in range(4)] == [["default/a"], ["default/a"], ["default/b"], []]
    assert not any(gpu.named for gpu in found.values())


def test_whoever_is_known_to_have_one_keeps_others_from_being_assumed_there() -> None:
    """A pod that has just come is told of a moment later."""
    pods = [a_pod("new", 1, node="node-1"), a_pod("old", 1, node="node-1")]
    found = gpus_of(read(*a_team(), a_node(gpus=2), published("node-1", {"old": [0]}, count=2), *pods))
    assert [holders(found["node-1", n]) for n in range(2)] == [["default/old"], ["default/new"]]


def test_slices_are_shown_on_the_gpus_they_lie_on() -> None:
    node = a_node(gpus=0)
    for amounts in (node["status"]["capacity"], node["status"]["allocatable"]):
        amounts["nvidia.com/mig-3g.40gb"] = "2"
    pod = a_pod("slice", 0, node="node-1")
    pod["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/mig-3g.40gb": "1"}
    (gpu,) = gpus_of(read(*a_team(), node, pod)).values()
    assert (holders(gpu), gpu.free_milli) == (["default/slice"], 1000 - 429)
    (gpu,) = gpus_of(read(*a_team(), node, pod, published("node-1", {}, count=0))).values()
    assert not gpu.named, "which slice a pod has is not followed, whoever tells of devices"


def test_pods_that_are_over_or_wait_hold_nothing() -> None:
    pods = [a_pod("over", 4, node="node-1", phase="Succeeded"), a_pod("waits", 4)]
    cluster = read(*a_team(), a_node(), *pods)
    assert not any(gpu.holders for gpu in gpu_objects(cluster))
    assert [node.tasks for node in node_objects(cluster)] == [0]


def test_only_the_gpus_of_a_node_where_one_is_named_and_in_the_order_people_count() -> None:
    cluster = read(*a_team(), a_node("node-10"), a_node("node-2"))
    assert [node.name for node in node_objects(cluster)] == ["node-2", "node-10"]
    assert {gpu.node for gpu in gpu_objects(cluster, "node-10")} == {"node-10"}


def test_nodes_say_what_keeps_pods_away() -> None:
    taint = {"key": "gpu", "value": "only", "effect": "NoSchedule"}
    nodes = [a_node("a", taints=[taint]), a_node("b", unschedulable=True), a_node("c", ready=False)]
    found = node_objects(read(*a_team(), *nodes, a_pod("p", 2, node="a")))
    assert [(node.state, node.free_gpus, node.tasks) for node in found] == [
        ("ready", "6", 1),
        ("cordoned", "8", 0),
        ("not ready", "8", 0),
    ]
    assert found[0].trouble == ("taints gpu=only:NoSchedule",)


def test_labels_of_our_own_are_not_shown() -> None:
    (node,) = node_objects(read(*a_team(), a_node("a")))
    assert not [key for key in node.labels if key.startswith(OWN_LABEL)]


# ------------------------------------------------------------------------------------------------------------- what if


def what_if(cluster: Cluster, change: Any) -> Difference:
    changes = changes_in(Place("change", parse(json.dumps(change), "change")), ClusterFile(cluster.snapshot))
    return what_if_on(cluster.ledger, changes, cluster.policy)


def test_a_raised_limit_starts_who_waited_for_it() -> None:
    cluster = read(*a_team(limit=4), a_node(), a_pod("a", 4, node="node-1"), a_pod("b", 2))
    difference = what_if(cluster, {"queues": {"team": {"limit": 6}}})
    assert [entry.job for entry in difference.started] == ["default/pod/b"]


def test_a_drained_node_sends_our_pods_away_and_leaves_those_of_others_alone() -> None:
    job = a_job("train", 1)
    ours, bare = a_pod("train-0", 2, node="node-1", owner=job), a_pod("bare", 2, node="node-1")
    theirs = a_pod("agent", 0, node="node-1", scheduler="default-scheduler", queue="")
    cluster = read(*a_team(), a_node(), a_node("node-2"), job, ours, bare, theirs)
    difference = what_if(cluster, {"nodes": {"drain": ["node-1"]}})
    assert {entry.job for entry in difference.moved} == {"default/job/train", "default/pod/bare"}
    assert not difference.stopped
    assert not difference.waiting
    assert list(lost_work(cluster, difference)) == [
        "nobody makes default/pod/bare anew: once stopped, its work is lost"
    ]


def test_a_new_job_is_planned_beside_the_pods_that_are_there() -> None:
    cluster = read(*a_team(), a_node(), a_pod("a", 6, node="node-1"))
    difference = what_if(cluster, {"jobs": [{"job": "new", "team": "team", "gpus": 2}]})
    assert [(entry.job, entry.nodes) for entry in difference.started] == [("new", ("node-1",))]
    assert list(lost_work(cluster, difference)) == []
