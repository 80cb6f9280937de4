"""Of the objects of Kubernetes the few fields the fake GPUs need; everything else of the JSON is skipped.

Place in the flow: API server ─follow─▶ **objects** ─▶ facts. Invariant: a field that is missing reads as empty, so
that no object the API server accepts is refused here.
"""

from __future__ import annotations

import msgspec


class _Object(msgspec.Struct, frozen=True, rename="camel"):
    """What all of them have in common."""


class Metadata(_Object, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class ConfigMap(_Object, frozen=True):
    metadata: Metadata
    data: dict[str, str] | None = None


class NodeInfo(_Object, frozen=True):
    kubelet_version: str = ""


class NodeStatus(_Object, frozen=True):
    capacity: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None
    node_info: NodeInfo | None = None


class Node(_Object, frozen=True):
    metadata: Metadata
    status: NodeStatus | None = None


class Resources(_Object, frozen=True):
    limits: dict[str, str] | None = None
    requests: dict[str, str] | None = None


class Container(_Object, frozen=True):
    name: str = ""
    resources: Resources | None = None
    restart_policy: str = ""


class PodSpec(_Object, frozen=True):
    node_name: str = ""
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None


class Running(_Object, frozen=True):
    started_at: str | None = None


class ContainerState(_Object, frozen=True):
    running: Running | None = None


class ContainerStatus(_Object, frozen=True):
    name: str = ""
    state: ContainerState | None = None


class PodStatus(_Object, frozen=True):
    phase: str = ""
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class Pod(_Object, frozen=True):
    metadata: Metadata
    spec: PodSpec | None = None
    status: PodStatus | None = None
