"""Nodes and pods as the fake GPUs see them: who is there, what each asks for, and what of it runs.

Place in the flow: objects ─**observed**─▶ assign, holdings, node patches. Pure. Invariant: what changes without meaning
anything here (heartbeats, conditions) makes no difference between two facts, so that nothing is done about it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from gpuyard.fakegpu.kubernetes.objects import Container, ContainerStatus, Node, Pod

POOL_LABELS: Final = ("gpuyard.io/gpu-pool", "run.ai/simulated-gpu-node-pool")
"""A node says with one of these to which pool of the configuration it belongs; the first counts."""
PROFILE: Final = "gpuyard.io/gpu-profile"
"""What the containers of a pod do with their GPUs; with `.NAME` behind it, what one of them does."""
UTILIZATION: Final = "run.ai/simulated-gpu-utilization"
KWOK_NODE: Final = "kwok.x-k8s.io/node"
KUBELET_VERSION: Final = re.compile(r"v[0-9]+\.[0-9]+.*")
RESOURCE: Final = re.compile(r"nvidia\.com/(gpu|mig-[0-9a-z.]+)")
OUR_LABELS: Final = ("nvidia.com/", "gpuyard.io/")
PODS: Final = "pods"
FINISHED: Final = frozenset({"Succeeded", "Failed"})
MAX_COUNT: Final = 10_000
"""GPUs a container can ask for and be taken seriously."""

PodKey = tuple[str, str]
"""Namespace and name."""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One node of the cluster."""

    name: str
    uid: str = ""
    pool: str = ""
    is_fake: bool = False
    """No kubelet reports for it, so its capacity and its pods' GPUs are ours to tell."""
    is_complete: bool = False
    """Somebody has said how many pods it takes; what we add before that would be taken for all it has."""
    labels: tuple[tuple[str, str], ...] = ()
    capacity: tuple[tuple[str, str], ...] = ()
    allocatable: tuple[tuple[str, str], ...] = ()


def node_facts(node: Node) -> NodeFacts:
    labels = node.metadata.labels or {}
    status = node.status
    capacity = (status and status.capacity) or {}
    return NodeFacts(
        name=node.metadata.name,
        uid=node.metadata.uid,
        pool=next((labels[name] for name in POOL_LABELS if labels.get(name)), ""),
        is_fake=_is_fake(node),
        is_complete=PODS in capacity,
        labels=_sorted(labels, lambda name: name.startswith(OUR_LABELS)),
        capacity=_sorted(capacity, is_gpu_resource),
        allocatable=_sorted((status and status.allocatable) or {}, is_gpu_resource),
    )


def _is_fake(node: Node) -> bool:
    """A kubelet tells its version when it makes its node; KWOK tells another, and a node made by hand has none."""
    if KWOK_NODE in (node.metadata.annotations or {}):
        return True
    info = node.status.node_info if node.status else None
    return info is None or not KUBELET_VERSION.fullmatch(info.kubelet_version)


def is_gpu_resource(name: str) -> bool:
    return RESOURCE.fullmatch(name) is not None


def _sorted(values: Mapping[str, str], wanted: Callable[[str], bool]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in values.items() if wanted(name)))


# -------------------------------------------------------------------------------------------------------------- pods


class Kind(StrEnum):
    """When a container of a pod runs: first and to its end, beside all others, or as what the pod is for."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


class ContainerFacts(msgspec.Struct, frozen=True):
    """A container that asks for GPUs, or runs."""

    name: str
    kind: Kind
    asks: tuple[tuple[str, int], ...] = ()
    """Resources and how many of each."""
    running_since_ms: int | None = None
    """None while it does not run."""


class PodFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A pod on a node that asks for GPUs."""

    namespace: str
    name: str
    uid: str
    node: str
    created: str = ""
    containers: tuple[ContainerFacts, ...] = ()
    """In the order in which a kubelet gives devices to them: those that begin first as written, then the others."""
    annotations: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> PodKey:
        return self.namespace, self.name

    @property
    def order(self) -> tuple[str, str, str]:
        """Who came first; names decide what the clock cannot."""
        return self.created, self.namespace, self.name

    def container(self, name: str) -> ContainerFacts | None:
        return next((each for each in self.containers if each.name == name), None)


def pod_facts(pod: Pod) -> PodFacts | None:
    """None for a pod that has no node yet, is over, or asks for no GPU."""
    spec, status = pod.spec, pod.status
    if spec is None or not spec.node_name or (status is not None and status.phase in FINISHED):
        return None
    statuses = [*(status.init_container_statuses or ()), *(status.container_statuses or ())] if status else []
    since = {each.name: _since_ms(each) for each in statuses}
    containers = (
        *(_container(each, _init_kind(each), since) for each in spec.init_containers or ()),
        *(_container(each, Kind.MAIN, since) for each in spec.containers or ()),
    )
    if not any(each.asks for each in containers):
        return None
    return PodFacts(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        node=spec.node_name,
        created=pod.metadata.creation_timestamp or "",
        containers=containers,
        annotations=_sorted(pod.metadata.annotations or {}, lambda name: name.startswith((PROFILE, UTILIZATION))),
    )


def _container(container: Container, kind: Kind, since: Mapping[str, int | None]) -> ContainerFacts:
    return ContainerFacts(container.name, kind, _asks(container), since.get(container.name))


def _init_kind(container: Container) -> Kind:
    return Kind.SIDECAR if container.restart_policy == "Always" else Kind.INIT


def _asks(container: Container) -> tuple[tuple[str, int], ...]:
    """Of extended resources limits are requests; the API server has seen to it that they are whole numbers."""
    limits = (container.resources and container.resources.limits) or {}
    found = ((name, _count(text)) for name, text in limits.items() if is_gpu_resource(name))
    return tuple(sorted((name, count) for name, count in found if count))


def _count(text: str) -> int:
    """A whole number; the API server writes one with a suffix where it is large, which no count of GPUs is."""
    return min(int(text), MAX_COUNT) if text.isascii() and text.isdigit() else 0


def _since_ms(status: ContainerStatus) -> int | None:
    running = status.state.running if status.state else None
    return None if running is None else timestamp_ms(running.started_at)


def timestamp_ms(text: str | None) -> int:
    """A time as the API server writes it, in milliseconds since 1970; 0 where there is none."""
    if not text:
        return 0
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return 0


def members(nodes: Iterable[NodeFacts]) -> dict[str, tuple[str, ...]]:
    """The nodes of each pool, in the order of their names."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        if node.pool:
            found.setdefault(node.pool, []).append(node.name)
    return {pool: tuple(sorted(names)) for pool, names in found.items()}
