"""How machines look in lists."""

from __future__ import annotations

from gpuyard.cli.listing import Column, Kind
from gpuyard.cli.times import exact, since, size
from gpuyard.model.quantities import format_milli
from gpuyard.wire.rest import NodeObject

_COLOURS = {
    "unhealthy": "red",
    "silent": "red",
    "lost": "red",
    "draining": "yellow",
    "drained": "yellow",
    "new": "cyan",
}

NODES: Kind[NodeObject] = Kind(
    NodeObject,
    (
        Column("NODE", lambda node, at: node.name),
        Column("STATE", lambda node, at: node.state),
        Column("GPUS", lambda node, at: str(node.gpus), key=lambda node: node.gpus),
        Column("FREE", lambda node, at: node.free_gpus, key=lambda node: float(node.free_gpus)),
        Column("MODEL", lambda node, at: ",".join(node.models) + (" (fake)" if node.fake else "")),
        Column("TASKS", lambda node, at: str(node.tasks), key=lambda node: node.tasks),
        Column("CPU", lambda node, at: format_milli(node.cpu_milli), key=lambda node: node.cpu_milli),
        Column("MEMORY", lambda node, at: size(node.memory_bytes), key=lambda node: node.memory_bytes),
        Column("SEEN", lambda node, at: since(node.last_seen_at, at), lambda node: exact(node.last_seen_at)),
        Column("ISOLATION", lambda node, at: node.isolation, wide=True),
        Column("VERSION", lambda node, at: node.version, wide=True),
        Column("ADDRESS", lambda node, at: node.address, wide=True),
        Column("LABELS", lambda node, at: ",".join(f"{key}={value}" for key, value in node.labels.items()), wide=True),
        Column("TROUBLE", lambda node, at: "; ".join(filter(None, (node.unhealthy, *node.trouble)))),
    ),
    lambda node: node.name,
    lambda node: _COLOURS.get(node.state),
)
