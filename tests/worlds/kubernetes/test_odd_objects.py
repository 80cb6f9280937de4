"""Objects that nobody would write on purpose: they neither stop the scheduler for others nor are counted wrongly."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.kubernetes.small_cluster import GPU, SmallCluster

ABSURD = "9223372036854775807"
"""The largest quantity the API server takes."""


def change_pod(cluster: SmallCluster, name: str, **spec: Any) -> None:
    cluster.pods[name]["spec"] |= spec
    cluster._tell("pods", cluster.pods[name])


def asking(**amounts: str) -> list[dict[str, Any]]:
    return [{"name": "c", "resources": {"limits": amounts, "requests": amounts}}]


# ------------------------------------------------------------------------------------------------------------- amounts


@pytest.mark.parametrize("resource", [GPU, "amd.com/gpu", "nvidia.com/mig-1g.5gb", "cpu", "memory", "example.com/fpga"])
def test_absurd_amounts_keep_nobody_else_from_their_place(resource: str) -> None:
    cluster = SmallCluster(nodes=2, gpus=2)
    cluster.add_group("gang", 12)
    for at in range(12):
        cluster.add_pod(f"absurd-{at}", group="gang")
        change_pod(cluster, f"absurd-{at}", containers=asking(**{resource: ABSURD}))
    cluster.add_pod("sane")
    cluster.settle()
    assert list(cluster.places()) == ["sane"]
    for at in range(12):
        # Whoever makes a pod may also say where it is, whatever there is room for.
        change_pod(cluster, f"absurd-{at}", nodeName="n2")
    cluster.add_pod("another")
    cluster.settle()
    assert cluster.node_of("another") == "n1"


def test_a_node_that_has_lost_gpus_its_pods_hold_has_none_to_give() -> None:
    cluster = SmallCluster(nodes=1, gpus=8)
    cluster.add_pod("a", 4)
    cluster.add_pod("b", 4)
    cluster.settle()
    offered = cluster.nodes["n1"]["status"]["allocatable"]
    offered[GPU] = "7"
    cluster._tell("nodes", cluster.nodes["n1"])
    cluster.add_pod("c", 1)
    assert cluster.settle() == []
    offered[GPU] = "9"
    cluster._tell("nodes", cluster.nodes["n1"])
    assert cluster.settle() == ["bind c n1"]


def test_a_running_pod_with_more_rules_than_are_looked_at_is_still_counted() -> None:
    terms = [
        {"matchExpressions": [{"key": f"a{at}", "operator": "Exists"}, {"key": f"b{at}", "operator": "Exists"}]}
        for at in range(300)
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    cluster = SmallCluster(nodes=1, gpus=4)
    cluster.add_pod("others", 4)
    change_pod(cluster, "others", schedulerName="default", nodeName="n1", affinity={"nodeAffinity": required})
    cluster.add_pod("ours", 1)
    assert cluster.settle() == []


# --------------------------------------------------------------------------------------------------------- mirror pods


def test_what_a_kubelet_runs_from_a_file_is_counted_and_never_told_to_go() -> None:
    cluster = SmallCluster(nodes=1, gpus=2)
    cluster.add_pod("static", 2)
    cluster._news.pop()
    pod = cluster.pods["static"]
    pod["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "1234"}
    pod["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "x", "controller": True}
    ]
    change_pod(cluster, "static", nodeName="n1")
    cluster.add_pod("important", 1, priority="inference")
    assert cluster.settle() == []
