"""Builders for what the fake GPUs see of a cluster."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuyard.fakegpu.kubernetes.objects import ConfigMap, Node, Pod
from gpuyard.fakegpu.kubernetes.observed import ContainerFacts, Kind, PodFacts

GPU = "nvidia.com/gpu"


def a_container(name: str = "main", gpus: int = 1, kind: Kind = Kind.MAIN, since_ms: int | None = 0) -> ContainerFacts:
    return ContainerFacts(name, kind, ((GPU, gpus),) if gpus else (), since_ms)


def a_pod(name: str = "p", *containers: ContainerFacts, created: str = "", **fields: Any) -> PodFacts:
    return PodFacts(
        namespace="default",
        name=name,
        uid=f"uid-{name}",
        node="n",
        created=created,
        containers=containers or (a_container(),),
        **fields,
    )


def by_uid(*pods: PodFacts) -> dict[str, PodFacts]:
    return {pod.uid: pod for pod in pods}


def a_node_object(name: str = "n", **fields: Any) -> Node:
    metadata = {"name": name, "labels": fields.pop("labels", None), "annotations": fields.pop("annotations", None)}
    return msgspec.convert({"metadata": metadata, "status": fields}, Node)


def a_pod_object(name: str = "p", uid: str = "", **fields: Any) -> Pod:
    container = {"name": "main", "resources": {"limits": {GPU: "1"}}}
    spec = {"nodeName": "n", "containers": [container], **fields.pop("spec", {})}
    metadata = {"name": name, "namespace": "default", "uid": uid or f"uid-{name}", **fields.pop("metadata", {})}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": fields}, Pod)


def a_map(name: str, **data: str) -> ConfigMap:
    return msgspec.convert({"metadata": {"name": name, "uid": f"uid-{name}"}, "data": data}, ConfigMap)
