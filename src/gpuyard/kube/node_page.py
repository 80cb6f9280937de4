"""The pages of the part on a node: whether it lives, and its numbers.

Place in the flow: node ─Figures─▶ **node_page** ─▶ probes and Prometheus. Pure. Invariant: what is not ours to mend, as
a kubelet or an API server that is away, does not make us ill: to be started anew would help nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from gpuyard.platform.web import Page
from gpuyard.worlds.kubernetes.devices import NodeDevices

STUCK_MS: Final = 30_000
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Figures(msgspec.Struct, frozen=True):
    """What is told of ourselves."""

    devices: NodeDevices
    """As they are now, published or not."""
    idle_ms: int = 0
    """How long ago the last look was."""
    kubelet_answers: bool = False
    is_published: bool = False
    """Whether the API server has what we know."""
    writes: int = 0


def page(path: str, figures: Figures) -> Page:
    match path:
        case "/healthz":
            stuck = figures.idle_ms > STUCK_MS
            return Page([f"the last look was {figures.idle_ms} ms ago\n"], 503) if stuck else Page(["OK\n"])
        case "/metrics":
            return Page(_metrics(figures), content_type=CONTENT_TYPE)
    return Page(["there are /healthz and /metrics\n"], 404)


def _metrics(figures: Figures) -> Iterator[str]:
    devices, held = figures.devices.devices, {id for each in figures.devices.held for id in each.devices}
    states = Counter((device.resource, device.healthy) for device in devices)
    yield _head("gpuyard_kube_node_devices", "gauge", "Devices of this node, by resource and health.")
    for resource in sorted({device.resource for device in devices}):
        for healthy in (True, False):
            labels = f'resource="{resource}",healthy="{str(healthy).lower()}"'
            yield f"gpuyard_kube_node_devices{{{labels}}} {states[resource, healthy]}\n"
    yield _head("gpuyard_kube_node_held_devices", "gauge", "Devices that containers of this node have.")
    yield f"gpuyard_kube_node_held_devices {len(held)}\n"
    yield _head("gpuyard_kube_node_kubelet_up", "gauge", "Whether the kubelet answers.")
    yield f"gpuyard_kube_node_kubelet_up {int(figures.kubelet_answers)}\n"
    yield _head("gpuyard_kube_node_published", "gauge", "Whether the ConfigMap says what is known here.")
    yield f"gpuyard_kube_node_published {int(figures.is_published)}\n"
    yield _head("gpuyard_kube_node_writes_total", "counter", "How often the ConfigMap was written.")
    yield f"gpuyard_kube_node_writes_total {figures.writes}\n"


def _head(name: str, kind: str, help: str) -> str:
    return f"# HELP {name} {help}\n# TYPE {name} {kind}\n"
