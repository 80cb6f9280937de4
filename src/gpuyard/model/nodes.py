"""Machines and what they hold: devices, links, labels, taints, topology.

Values only. A node is a fact reported by a world; who holds what on it is in the jobs' tasks.
"""

from __future__ import annotations

from typing import Final

import msgspec

MAX_DEVICES_PER_NODE: Final = 62
"""Whole GPUs on one node: one bit each in a signed 64-bit mask. MIG slices are counted apart and not limited by it."""

MIG_SLICES_PER_GPU: Final = 7
"""Compute slices of one GPU: a `1g` slice counts a seventh of a GPU against a quota, rounded up."""
MAX_DIGITS: Final = 9
"""Of the compute slices in the name of a MIG profile: a longer number is none."""

OWN_LABEL: Final = "gpuyard:"
"""How the labels and taints begin that a world itself gives to nodes and tasks, for rules of its own. People never see
them."""


class MigSlices(msgspec.Struct, frozen=True, gc=False):
    """Allocatable slices of one profile on one device, e.g. four of `1g.10gb`."""

    profile: str
    count: int
    gpu_milli: int | None = None
    """What one slice counts against a quota; None: by its compute slices, in sevenths of a GPU."""


class Device(msgspec.Struct, frozen=True, gc=False):
    """One GPU. A device with MIG slices is handed out by the slice, never whole or by fraction."""

    model: str = "gpu"
    memory_mib: int = 0
    id: str = ""
    healthy: bool = True
    nvlink: int = 0
    """Devices of a node with the same number reach each other directly."""
    numa: int = 0
    mig: tuple[MigSlices, ...] = ()
    shareable: bool = True
    """False where several tasks may not share this GPU (e.g. a node in MIG mode without slices of its own)."""


class Taint(msgspec.Struct, frozen=True, gc=False):
    """A mark that keeps tasks away unless they tolerate it."""

    key: str
    value: str = ""
    effect: str = ""
    """A word tolerations may name."""
    soft: bool = False
    """Keeps nobody away: nodes without it are preferred."""


class Node(msgspec.Struct, frozen=True, gc=False):
    """One machine. What is not `ready` or is `cordoned` takes no new task; what runs there stays."""

    name: str
    devices: tuple[Device, ...] = ()
    cpu_milli: int = 0
    memory_bytes: int = 0
    max_tasks: int = 110
    other: tuple[tuple[str, int], ...] = ()
    """Any further named resource, in whole units, sorted by name."""
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    ready: bool = True

    @property
    def open(self) -> bool:
        return self.ready and not self.cordoned


class Topology(msgspec.Struct, frozen=True, gc=False):
    """A named hierarchy of places, as node labels from the widest level to the narrowest."""

    name: str
    levels: tuple[str, ...]


def shown_labels(labels: dict[str, str]) -> dict[str, str]:
    """The labels people have given, without those a world has."""
    return {key: value for key, value in labels.items() if not key.startswith(OWN_LABEL)}


def mig_slice_milli(profile: str) -> int:
    """What one slice of a profile counts against a quota: its compute slices, in thousandths of a GPU, rounded up."""
    compute = profile.split("g", 1)[0]
    # Not more digits than Python turns into a number, and no digits of other scripts.
    slices = int(compute) if compute.isascii() and compute.isdigit() and len(compute) <= MAX_DIGITS else 1
    return -(-1000 * slices // MIG_SLICES_PER_GPU)
