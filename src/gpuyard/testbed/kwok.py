"""Nodes that KWOK pretends: for scale. Their pods run without running.

Place in the flow: up ─▶ **kwok** ─▶ the API server, where KWOK finds nodes with its annotation and keeps them Ready.
"""

from __future__ import annotations

from typing import Any, Final

from gpuyard.testbed.api import Api
from gpuyard.testbed.control_plane import CONTROLLER_MANAGER, Component, added_program
from gpuyard.testbed.machine import say_more, wait_for_component
from gpuyard.testbed.record import CONTROL, Extras, Record

NAME: Final = "kwok"
MARK: Final = "kwok.x-k8s.io/node"
MAX_NODES: Final = 5_000
POD_ADDRESSES: Final = "240.0.0.0/8"
"""Nobody can be reached there, and nobody else has it: the range is reserved."""
READY_MS: Final = 300_000
GPU: Final = "nvidia.com/gpu"
LEASE_S: Final = 40
"""Every node tells four times in this time that it lives."""
GONE_AFTER_S: Final = 40
"""Until a silent node is NotReady, once there are pretended ones: a thousand that had to be heard every few seconds
would keep the API server busy with nothing else, and each that is late would cost it a dozen changes."""


def component(record: Record) -> Component:
    command = (
        str(added_program(record, NAME)),
        f"--kubeconfig={record.kubeconfig}",
        "--manage-all-nodes=false",
        # Only those: the others have a kubelet.
        f"--manage-nodes-with-annotation-selector={MARK}=fake",
        f"--node-ip={record.addresses.control}",
        f"--cidr={POD_ADDRESSES}",
        f"--node-lease-duration-seconds={LEASE_S}",
    )
    return Component(NAME, command)


def be_patient(record: Record) -> bool:
    """Have the controllers wait as long as KWOK's nodes may be silent; whether they must be started anew for it."""
    return say_more(record, CONTROL, CONTROLLER_MANAGER, f"--node-monitor-grace-period={GONE_AFTER_S}s")


def make_nodes(api: Api, record: Record, extras: Extras) -> None:
    """Those that are not there yet, and wait until KWOK has made them Ready."""
    wanted = [f"kwok-{number}" for number in range(1, extras.kwok + 1)]
    there = {one["metadata"]["name"] for one in api.get("/api/v1/nodes?labelSelector=type=kwok")["items"]}
    for name in wanted:
        if name not in there:
            api.create("/api/v1/nodes", node(name, gpus=extras.kwok_gpus))
    wait_for_component(record, NAME, lambda: ready_nodes(api) >= len(wanted), READY_MS)


def ready_nodes(api: Api) -> int:
    from gpuyard.testbed.bed import node_is_ready

    return sum(map(node_is_ready, api.get("/api/v1/nodes?labelSelector=type=kwok")["items"]))


def node(name: str, *, gpus: int = 0) -> dict[str, Any]:
    """A machine of ordinary size. Pods that do not tolerate its taint stay on nodes that run them."""
    size = {"cpu": "64", "memory": "512Gi", "pods": "110", **({GPU: str(gpus)} if gpus else {})}
    labels = {
        "type": "kwok",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {MARK: "fake"}},
        "spec": {"taints": [{"key": MARK, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"capacity": size, "allocatable": size},
    }
