"""Nodes and pods as the fake GPUs see them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuyard.fakegpu.kubernetes.objects import Node, Pod
from gpuyard.fakegpu.kubernetes.observed import Kind, members, node_facts, pod_facts, timestamp_ms
from tests.fakegpu.kubernetes.sights import GPU, a_node_object, a_pod_object


@pytest.mark.parametrize(
    ("fields", "is_fake"),
    [
        ({"nodeInfo": {"kubeletVersion": "v1.34.2"}}, False),
        ({"nodeInfo": {"kubeletVersion": "v1.36.0-eks-1"}}, False),
        ({"nodeInfo": {"kubeletVersion": "kwok-v0.7.0"}}, True),
        ({"nodeInfo": {"kubeletVersion": "fake"}}, True),
        ({"nodeInfo": {"kubeletVersion": ""}}, True),
        ({}, True),
        ({"nodeInfo": {"kubeletVersion": "v1.34.2"}, "annotations": {"kwok.x-k8s.io/node": "fake"}}, True),
    ],
)
def test_a_node_is_fake_if_no_kubelet_reports_for_it(fields: dict[str, Any], is_fake: bool) -> None:
    assert node_facts(a_node_object(**fields)).is_fake is is_fake


def test_a_heartbeat_is_no_change() -> None:
    def node(beat: str) -> Node:
        text = {"metadata": {"name": "n"}, "status": {"conditions": [{"lastHeartbeatTime": beat}], "images": [1, 2]}}
        return msgspec.json.decode(msgspec.json.encode(text), type=Node)

    assert node_facts(node("1")) == node_facts(node("2"))


def test_of_labels_and_capacity_only_ours_count() -> None:
    found = node_facts(
        a_node_object(
            labels={"zone": "a", "nvidia.com/gpu.count": "8", "gpuyard.io/gpu-pool": "big"},
            capacity={"cpu": "4", "pods": "110", GPU: "8", "nvidia.com/mig-1g.10gb": "2", "nvidia.com/other": "1"},
        )
    )
    assert found.pool == "big"
    assert found.is_complete
    assert dict(found.labels).keys() == {"nvidia.com/gpu.count", "gpuyard.io/gpu-pool"}
    assert dict(found.capacity) == {GPU: "8", "nvidia.com/mig-1g.10gb": "2"}


def test_pools_are_named_by_our_label_or_the_older_one() -> None:
    nodes = [
        node_facts(a_node_object("b", labels={"run.ai/simulated-gpu-node-pool": "x"})),
        node_facts(a_node_object("a", labels={"run.ai/simulated-gpu-node-pool": "y", "gpuyard.io/gpu-pool": "x"})),
        node_facts(a_node_object("c")),
    ]
    assert members(nodes) == {"x": ("a", "b")}


def test_a_pod_that_has_no_node_is_over_or_asks_for_nothing_is_none_of_ours() -> None:
    assert pod_facts(a_pod_object(spec={"nodeName": ""})) is None
    assert pod_facts(a_pod_object(phase="Succeeded")) is None
    assert pod_facts(a_pod_object(phase="Failed")) is None
    assert pod_facts(a_pod_object(spec={"containers": [{"name": "main"}]})) is None
    assert pod_facts(a_pod_object(phase="Pending")) is not None


def test_containers_of_all_kinds_with_what_they_ask_for_and_since_when_they_run() -> None:
    def asking(name: str, count: str, **fields: str) -> dict[str, Any]:
        return {"name": name, "resources": {"limits": {GPU: count, "cpu": "1"}}, **fields}

    pod = a_pod_object(
        spec={
            "initContainers": [asking("init", "1"), asking("side", "2", restartPolicy="Always")],
            "containers": [asking("main", "3"), {"name": "idle"}],
        },
        initContainerStatuses=[{"name": "side", "state": {"running": {"startedAt": "2026-11-17T02:00:00Z"}}}],
        containerStatuses=[{"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}],
    )
    found = pod_facts(pod)
    assert found is not None
    assert [(each.name, each.kind, each.asks) for each in found.containers] == [
        ("init", Kind.INIT, ((GPU, 1),)),
        ("side", Kind.SIDECAR, ((GPU, 2),)),
        ("main", Kind.MAIN, ((GPU, 3),)),
        ("idle", Kind.MAIN, ()),
    ]
    assert [each.running_since_ms for each in found.containers] == [None, 1794880800000, None, None]


def test_whatever_the_api_server_may_leave_out_is_read_as_empty() -> None:
    bare: Pod = msgspec.json.decode(b'{"metadata": {"name": "p"}}', type=Pod)
    assert pod_facts(bare) is None
    nulls = b'{"metadata": {"name": "n", "labels": null}, "status": {"capacity": null, "nodeInfo": null}}'
    assert node_facts(msgspec.json.decode(nulls, type=Node)).capacity == ()
    assert timestamp_ms("nonsense") == timestamp_ms(None) == 0
