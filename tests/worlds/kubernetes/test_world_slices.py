"""MIG slices, and GPUs that fall ill while somebody has them: never more is given out than the kubelet has free."""

from __future__ import annotations

import pytest

from gpuyard.worlds.kubernetes.devices import NodeDevices, PublishedDevice
from tests.worlds.kubernetes.small_cluster import SmallCluster

SMALL = "nvidia.com/mig-1g.10gb"
LARGE = "nvidia.com/mig-3g.40gb"


def sliced(**offered: int) -> SmallCluster:
    cluster = SmallCluster(nodes=0)
    cluster.add_node("n1", 0, **_names(offered))
    return cluster


def _names(counts: dict[str, int]) -> dict[str, str]:
    return {{"small": SMALL, "large": LARGE}[name]: str(count) for name, count in counts.items()}


def add(cluster: SmallCluster, name: str, gpus: int = 0, **slices: int) -> None:
    cluster.add_pod(name, gpus)
    resources = cluster.pods[name]["spec"]["containers"][0]["resources"]
    for kind in ("limits", "requests"):
        resources[kind] = {**resources.get(kind, {}), **_names(slices)}
    cluster._tell("pods", cluster.pods[name])


def test_slices_that_pods_hold_are_given_to_nobody_else_in_a_later_cycle() -> None:
    cluster = sliced(small=2)
    for name in ("a", "b", "c"):
        add(cluster, name, small=1)
        cluster.settle()
    assert cluster.places() == {"a": "n1", "b": "n1"}
    cluster.end("a")
    assert "bind c n1" in cluster.settle()


def test_nor_by_a_scheduler_that_was_started_anew() -> None:
    cluster = sliced(small=2)
    add(cluster, "a", small=2)
    cluster.settle()
    cluster.start()
    add(cluster, "b", small=1)
    cluster.settle()
    assert cluster.places() == {"a": "n1"}


def test_each_profile_is_counted_for_itself() -> None:
    cluster = sliced(small=1, large=1)
    add(cluster, "a", small=1)
    add(cluster, "b", large=1)
    cluster.settle()
    add(cluster, "c", large=1)
    cluster.settle()
    assert cluster.places() == {"a": "n1", "b": "n1"}


def test_a_pod_with_gpus_and_slices_holds_both() -> None:
    cluster = SmallCluster(nodes=0)
    cluster.add_node("n1", 2, **_names({"small": 1}))
    add(cluster, "both", 1, small=1)
    cluster.settle()
    add(cluster, "slice", small=1)
    add(cluster, "gpu", 1)
    cluster.settle()
    assert cluster.places() == {"both": "n1", "gpu": "n1"}


def test_slices_that_are_published_are_counted_just_so() -> None:
    """On two GPUs, though one could hold them all."""
    cluster = sliced(small=4)
    devices = tuple(PublishedDevice(f"MIG-{at}", resource=SMALL, gpu=f"GPU-{at % 2}") for at in range(4))
    cluster.picture.devices["n1"] = NodeDevices("n1", devices)
    add(cluster, "three", small=3)
    cluster.settle()
    add(cluster, "two", small=2)
    add(cluster, "one", small=1)
    cluster.settle()
    assert cluster.places() == {"three": "n1", "one": "n1"}
    (node,) = cluster.world.snapshot().nodes
    assert [device.id for device in node.devices] == ["GPU-0", "GPU-1"]


@pytest.mark.parametrize("held", [8, 7])
def test_a_gpu_that_falls_ill_under_a_pod_makes_none_of_its_others_free(held: int) -> None:
    """Where nobody publishes which devices it has: the kubelet offers one less, and the pod still holds its own."""
    cluster = SmallCluster(nodes=1, gpus=8)
    cluster.add_pod("big", held)
    cluster.settle()
    cluster.add_node("n1", 7)
    cluster.add_pod("one", 1)
    cluster.settle()
    assert cluster.places() == {"big": "n1"}


def test_nor_does_a_slice() -> None:
    cluster = sliced(small=3)
    add(cluster, "big", small=3)
    cluster.settle()
    cluster.add_node("n1", 0, **_names({"small": 2}))
    add(cluster, "one", small=1)
    cluster.settle()
    assert cluster.places() == {"big": "n1"}
