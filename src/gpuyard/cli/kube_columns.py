"""How queues, GPUs and nodes of a Kubernetes cluster look in lists: as elsewhere, but for what only pods have."""

from __future__ import annotations

from typing import Any

from gpuyard.cli.device_columns import DEVICES
from gpuyard.cli.listing import Column, Kind
from gpuyard.cli.node_columns import NODES
from gpuyard.cli.team_columns import TEAMS
from gpuyard.kube.views import GpuObject, PodHolder, QueueObject
from gpuyard.wire.rest import NodeObject

_COLOURS = {"not ready": "red", "cordoned": "yellow"}


def _without(columns: Any, *names: str) -> tuple[Column[Any], ...]:  # noqa: ANN401 - columns of a kind with fewer fields
    return tuple(column for column in columns if column.name not in names)


def _open_to(queue: QueueObject) -> str:
    return "all" if queue.namespaces is None else ",".join(queue.namespaces)


def _pod(gpu: GpuObject, holder: PodHolder) -> str:
    """Marked where nobody has told that it is just this one."""
    return f"{'' if gpu.named else '≈'}{holder.pod}{f' ({holder.team})' if holder.team else ''}"


QUEUES: Kind[QueueObject] = Kind(
    QueueObject,
    (
        *_without(TEAMS.columns, "IDLE-LIMIT", "MEMBERS"),
        Column("NAME", lambda queue, at: queue.display_name, wide=True),
        Column("NAMESPACES", lambda queue, at: _open_to(queue), wide=True),
    ),
    lambda queue: queue.name,
)

GPUS: Kind[GpuObject] = Kind(
    GpuObject,
    (
        *_without(DEVICES.columns, "FREE-MEMORY", "HELD-BY"),
        Column(
            "MEMORY",
            lambda gpu, at: f"{gpu.memory_mib}Mi" if gpu.memory_mib else "",
            key=lambda gpu: gpu.memory_mib,
            wide=True,
        ),
        Column("HELD-BY", lambda gpu, at: ", ".join(_pod(gpu, holder) for holder in gpu.holders)),
    ),
    lambda gpu: gpu.id or f"{gpu.node}/{gpu.index}",
    lambda gpu: None if gpu.healthy else "red",
)

KUBE_NODES: Kind[NodeObject] = Kind(
    NodeObject,
    (
        *_without(NODES.columns, "TASKS", "SEEN", "ISOLATION", "VERSION", "ADDRESS", "TROUBLE"),
        Column("PODS", lambda node, at: str(node.tasks), key=lambda node: node.tasks),
        Column("TROUBLE", lambda node, at: "; ".join(node.trouble)),
    ),
    lambda node: node.name,
    lambda node: _COLOURS.get(node.state),
)
