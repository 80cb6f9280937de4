"""Who holds which GPU of a cluster, for people: what the ConfigMaps say, all together.

Place in the flow: ConfigMaps, nodes ─**overview**─▶ `gpuyard fake kube status`. Invariant: it only reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import yaml

from gpuyard.errors import InputError
from gpuyard.fakegpu.config import fleet_of_cluster
from gpuyard.fakegpu.kubernetes.configuration import FLEET_KEY, STATUS_KEY, fleet_text
from gpuyard.fakegpu.kubernetes.names import Scope
from gpuyard.fakegpu.kubernetes.objects import ConfigMap, Node
from gpuyard.fakegpu.kubernetes.observed import members, node_facts
from gpuyard.kubeapi.client import KubeClient
from gpuyard.kubeapi.follow import listed
from gpuyard.kubeapi.paths import path_of

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class GpuView(msgspec.Struct, frozen=True):
    """One GPU, or an instance of one."""

    id: str
    product: str
    memory_mib: int
    utilization_percent: int
    memory_used_mib: int
    holder: str = ""
    """Namespace, pod and container."""


class NodeView(msgspec.Struct, frozen=True):
    name: str
    gpus: tuple[GpuView, ...]


class ClusterView(msgspec.Struct, frozen=True):
    nodes: tuple[NodeView, ...]
    config_error: str | None = None
    """Why the newest configuration is not in force; None if it is."""


async def overview(client: KubeClient, scope: Scope) -> ClusterView:
    maps = await listed(client, path_of("configmaps", namespace=scope.namespace), ConfigMap)
    nodes = await listed(client, path_of("nodes"), Node)
    data = {each.metadata.name: each.data or {} for each in maps}
    texts = [text for each in data.values() if (text := each.get(STATUS_KEY))]
    pools = members(node_facts(node) for node in nodes)
    return ClusterView(views_of(texts), _mistake(scope, data.get(scope.config_map), pools))


def _mistake(scope: Scope, data: Mapping[str, str] | None, pools: Mapping[str, tuple[str, ...]]) -> str | None:
    if data is None:
        return f"there is no ConfigMap {scope.config_map} in the namespace {scope.namespace}"
    text = fleet_text(data)
    if text is None:
        return f'the ConfigMap {scope.config_map} has no "{FLEET_KEY}"'
    try:
        fleet_of_cluster(text, f"{scope.config_map}/{FLEET_KEY}", pools)
    except InputError as error:
        return str(error)
    return None


def views_of(texts: Iterable[str]) -> tuple[NodeView, ...]:
    """All nodes of some documents, by name; of a node that is in several the last counts."""
    found: dict[str, NodeView] = {}
    for text in texts:
        document = yaml.load(text, Loader=_LOADER) or {}
        for name, node in (document.get("nodes") or {}).items():
            found[name] = NodeView(str(name), tuple(_gpus(node)))
    return tuple(found[name] for name in sorted(found))


def _gpus(node: Mapping[str, Any]) -> Iterator[GpuView]:
    for gpu in node.get("gpus") or ():
        product = gpu.get("gpu-product") or node.get("gpu-product", "")
        memory = gpu.get("gpu-memory") or node.get("gpu-memory", 0)
        yield _view(gpu, product, memory)
        for part in gpu.get("mig-devices") or ():
            yield _view(part, f"MIG {part.get('profile', '')}", 0)


def _view(device: Mapping[str, Any], product: str, memory_mib: int) -> GpuView:
    metrics = device.get("metrics") or {}
    said = metrics.get("metadata") or {}
    holder = "/".join(str(said[name]) for name in ("namespace", "pod", "container") if name in said)
    return GpuView(
        str(device["id"]), product, memory_mib, metrics.get("utilization", 0), metrics.get("fb-used", 0), holder
    )
