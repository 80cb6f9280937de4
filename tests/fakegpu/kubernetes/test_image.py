"""deploy/fakegpu as users have it: the image its Containerfile builds, its manifests word for word, four kubelets."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gpuyard.testbed.bed import Bed
from tests.fakegpu.kubernetes.deployed import (
    MANIFESTS,
    NAMESPACE,
    Deployed,
    applied,
    asking,
    gpu_pod,
    must,
    samples,
)
from tests.fakegpu.kubernetes.image import FAKE_GPUS, built_archive
from tests.kube import a_namespace, eventually

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster(testbed: Bed) -> Iterator[Deployed]:
    testbed.import_archive(built_archive(FAKE_GPUS))
    nodes = testbed.record.node_names()
    with testbed.api() as api, applied(Deployed(testbed, api, nodes, ("gpuyard",)), MANIFESTS) as cluster:
        must(testbed, "label", "node", *nodes, "gpuyard.io/gpu-pool=default")
        cluster.wait_ready()
        for node in nodes:
            eventually(lambda node=node: cluster.gpus(node) == ("8", "8"), f"eight GPUs on {node}")
        yield cluster


@pytest.fixture
def pods(cluster: Deployed) -> Iterator[str]:
    """On every node a pod with three containers, of which two hold three GPUs."""
    with a_namespace(cluster.api, "image") as path:
        for node in cluster.nodes:
            cluster.api.create(path, gpu_pod(f"on-{node}", node, asking("a", 1), asking("b", 2), asking("c", 0)))
        for node in cluster.nodes:
            pod = f"{path}/on-{node}"
            eventually(lambda pod=pod: cluster.api.get(pod)["status"]["phase"] == "Running", f"the pod on {node}")
        yield path
        cluster.api.delete(path, gracePeriodSeconds="0")
        eventually(lambda: not cluster.api.get(path)["items"], "the end of all pods")


def seen(cluster: Deployed, node: str, container: str) -> list[str]:
    """The GPUs nvidia-smi lists in a container."""
    words = ("exec", "-n", "image", f"on-{node}", "-c", container, "--", "nvidia-smi", "-L")
    listed = cluster.bed.kubectl(*words).output
    return sorted(line.split("UUID: ")[1].rstrip(")") for line in listed.splitlines() if "UUID" in line)


def held(cluster: Deployed, node: str) -> dict[str, list[str]]:
    """The GPUs of each container, as the exporter of the node tells."""
    found: dict[str, list[str]] = {}
    for uuid, (who, _) in cluster.shown(cluster.exporter("node", node), node).items():
        found.setdefault(who, []).append(uuid)
    return {who.rpartition("/")[2]: sorted(uuids) for who, uuids in found.items() if who}


def test_every_container_has_its_gpus_on_every_face_and_through_restarts(cluster: Deployed, pods: str) -> None:
    def agrees(node: str) -> bool:
        a, b = seen(cluster, node, "a"), seen(cluster, node, "b")
        written = {uuid for uuid, (who, _) in cluster.written(node).items() if who}
        return (len(a), len(b)) == (1, 2) and held(cluster, node) == {"a": a, "b": b} and written == {*a, *b}

    for node in cluster.nodes:
        eventually(lambda node=node: agrees(node), f"agreement about {node}")
        assert "nvidia.com/gpu     3" in must(cluster.bed, "describe", "node", node)
    before = {node: held(cluster, node) for node in cluster.nodes}
    for node in cluster.nodes:
        cluster.bed.restart("kubelet", node)
    cluster.bed.wait_ready()
    for node in cluster.nodes:
        eventually(lambda node=node: cluster.gpus(node) == ("8", "8"), f"eight GPUs on {node} again")
        eventually(lambda node=node: agrees(node) and held(cluster, node) == before[node], f"the same on {node}")
    assert restarts(cluster) == {"node": 0, "updater": 0}


def restarts(cluster: Deployed) -> dict[str, int]:
    """How often each part had to be started again."""
    found = json.loads(must(cluster.bed, "get", "pods", "-n", NAMESPACE, "-o", "json"))["items"]
    statuses = [one for pod in found for one in pod["status"]["containerStatuses"]]
    names = {one["name"] for one in statuses}
    return {name: max(one["restartCount"] for one in statuses if one["name"] == name) for name in names}


def test_a_fault_told_in_the_pod_of_a_node_is_seen_by_kubelet_exporter_and_nvml(cluster: Deployed, pods: str) -> None:
    node = cluster.nodes[-1]
    (lost,) = seen(cluster, node, "a")
    inside = ("exec", "-n", NAMESPACE, cluster.pod("node", node)["metadata"]["name"], "--", "gpuyard", "fake")
    must(cluster.bed, *inside, "fault", node, lost, "xid:79")
    eventually(lambda: cluster.gpus(node) == ("8", "7"), "one GPU less to be had")
    eventually(lambda: seen(cluster, node, "a") == [], "the GPU gone from NVML")
    exporter = cluster.exporter("node", node)
    errors = {found["UUID"]: value for found, value in samples(exporter, "DCGM_FI_DEV_XID_ERRORS")}
    assert errors[lost] == 79
    assert len(seen(cluster, node, "b")) == 2
    must(cluster.bed, *inside, "heal", node, "all")
    eventually(lambda: cluster.gpus(node) == ("8", "8"), "all back")
    eventually(lambda: seen(cluster, node, "a") == [lost], "and in NVML")
