"""What is created for the contestants, as Kubernetes objects. Pure.

Every contestant gets the same pods but for the name of the scheduler in them. The shapes are those of KAI's own scale
test: 500 nodes of 8 GPUs; single-GPU pods that fill them; a gang of 512 pods with 2 GPUs each; a gang of 10 whole nodes
that is owed 80 GPUs while 79 can be had.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

Object = dict[str, Any]

NAMESPACE: Final = "bench"
GPU: Final = "nvidia.com/gpu"
GPUS_PER_NODE: Final = 8
QUEUE_LABEL: Final = "kai.scheduler/queue"
GROUP_ANNOTATION: Final = "pod-group-name"
PROBE_LABEL: Final = "gpuyard.io/bench"
"""Of pods that are looked at closely: the benchmark watches these whole, and of all others only where they are."""
PROBE: Final = "probe"
ROOT: Final = "bench-root"
LENDERS: Final = "bench-lenders"
"""The queue that asks for what it is owed."""
BORROWERS: Final = "bench-borrowers"
"""The queue that fills the cluster."""
UNLIMITED: Final = -1
REFUSED_PODS: Final = 10
REFUSED_GPUS: Final = REFUSED_PODS * GPUS_PER_NODE
PRIORITY_CLASSES: Final = {"train": 50, "build-preemptible": 75, "build": 100, "inference": 125}
"""KAI's own, which it expects to be there."""
QUEUES_PATH: Final = "/apis/scheduling.run.ai/v2/queues"
PODS_PATH: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
GROUPS_PATH: Final = f"/apis/scheduling.run.ai/v2alpha2/namespaces/{NAMESPACE}/podgroups"
BINDS_PATH: Final = f"/apis/scheduling.run.ai/v1alpha2/namespaces/{NAMESPACE}/bindrequests"
EVENTS_PATH: Final = f"/api/v1/namespaces/{NAMESPACE}/events"


class PodShape(msgspec.Struct, frozen=True):
    """What is the same in many pods."""

    scheduler: str
    queue: str = BORROWERS
    gpus: int = 1
    group: str = ""
    probe: bool = False
    node: str = ""
    """Where it runs already; empty: a scheduler is to say."""


def pod(name: str, shape: PodShape) -> Object:
    labels = {QUEUE_LABEL: shape.queue, **({PROBE_LABEL: PROBE} if shape.probe else {})}
    amounts = {"cpu": "1", "memory": "1Gi", **({GPU: str(shape.gpus)} if shape.gpus else {})}
    spec = {
        "schedulerName": shape.scheduler,
        "containers": [{"name": "main", "image": "none", "resources": {"requests": amounts, "limits": amounts}}],
        "tolerations": [{"operator": "Exists"}],
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **({"nodeName": shape.node} if shape.node else {}),
    }
    annotations = {"annotations": {GROUP_ANNOTATION: shape.group}} if shape.group else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels, **annotations},
        "spec": spec,
    }


def pod_group(name: str, queue: str, members: int) -> Object:
    return {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {QUEUE_LABEL: queue}},
        "spec": {"minMember": members, "queue": queue, "priorityClassName": "train"},
    }


def queues(gpus: int) -> list[Object]:
    """Two that share a cluster: what both are owed exceeds it by one GPU, so that only a search can tell."""
    owed = {ROOT: UNLIMITED, BORROWERS: gpus - REFUSED_GPUS + 1, LENDERS: REFUSED_GPUS}
    return [queue(name, quota) for name, quota in owed.items()]


def queue(name: str, gpus: int) -> Object:
    unlimited = {"quota": UNLIMITED, "limit": UNLIMITED, "overQuotaWeight": 1}
    parent = {} if name == ROOT else {"parentQueue": ROOT}
    return {
        "apiVersion": "scheduling.run.ai/v2",
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {**parent, "resources": {"gpu": {**unlimited, "quota": gpus}, "cpu": unlimited, "memory": unlimited}},
    }


def priority_class(name: str, value: int) -> Object:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
    }


def namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
