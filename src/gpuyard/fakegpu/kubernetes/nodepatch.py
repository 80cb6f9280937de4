"""What a node should say about its fake GPUs, and the difference to what it says.

Place in the flow: MachineSpec and NodeFacts ─**nodepatch**─▶ bodies of server-side apply ─▶ node writer. Pure.
Invariants: only what is ours is named, so nothing of anybody else's is touched; a node that says what it should gets no
patch. Capacity is told of nodes without a kubelet only: a kubelet hears of devices from its plugin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from gpuyard.fakegpu.control import MachineStatus
from gpuyard.fakegpu.engine import Engine
from gpuyard.fakegpu.fleet import Fleet, GpuSpec, MachineSpec
from gpuyard.fakegpu.kubernetes.observed import NodeFacts
from gpuyard.fakegpu.kubernetes.plugin_offer import offer_of
from gpuyard.fakegpu.labels import PREFIX, labels_of, seed_labels_of
from gpuyard.fakegpu.reading import MachineReading

MANAGER: Final = "gpuyard-fake-gpus"
"""Who we are to server-side apply."""
MARK: Final = "gpuyard.io/fake-gpus"
"""The label by which a node of ours is known; its value stands for all others, so that what is missing is noticed."""
PRESENT: Final = PREFIX + "gpu.present"
TIMESTAMP: Final = PREFIX + "gfd.timestamp"
MAX_KINDS: Final = 4096

Labels = dict[str, str]
Counts = dict[str, str]


class Resources(msgspec.Struct, frozen=True):
    """Of each resource the devices, and how many of them are well."""

    devices: tuple[tuple[str, tuple[str, ...]], ...]
    allocatable: tuple[tuple[str, int], ...]


def resources_of(reading: MachineReading) -> Resources:
    """As a device plugin would offer them."""
    offered = offer_of(MachineStatus(None, reading)).resources
    return Resources(
        tuple((name, tuple(device.id for device in devices)) for name, devices in offered.items()),
        tuple((name, sum(device.healthy for device in devices)) for name, devices in offered.items()),
    )


# ---------------------------------------------------------------------------------------------------------- labels


def wanted_labels(machine: MachineSpec | None) -> Labels:
    """All of ours but the time; none for a node that is not in the fleet."""
    if machine is None:
        return {}
    labels = dict(_labels_of_kind(_kind(machine)))
    return {**labels, MARK: hashlib.blake2b(repr(labels).encode(), digest_size=8).hexdigest()}


def _kind(machine: MachineSpec) -> MachineSpec:
    """The machine without what tells it from others of its kind: thousands of nodes have few kinds."""
    nameless = tuple(msgspec.structs.replace(gpu, uuid=str(at), given=None) for at, gpu in enumerate(_staying(machine)))
    return msgspec.structs.replace(machine, name="kind", gpus=nameless, pool="")


def _staying(machine: MachineSpec) -> tuple[GpuSpec, ...]:
    return tuple(gpu for gpu in machine.gpus if not gpu.leaving)


@lru_cache(maxsize=MAX_KINDS)
def _labels_of_kind(machine: MachineSpec) -> tuple[tuple[str, str], ...]:
    reading = Engine(Fleet((machine,))).reading(machine.name)
    labels = {**labels_of(reading), **seed_labels_of(reading), PRESENT: "true"}
    labels.pop(TIMESTAMP, None)
    return tuple(sorted(labels.items()))


def label_patch(node: NodeFacts, machine: MachineSpec | None, now_s: int) -> dict[str, Any] | None:
    """What to apply so that a node has our labels, or is rid of them; None if it is so already."""
    wanted = wanted_labels(machine)
    there = dict(node.labels)
    if not wanted and MARK not in there:
        return None
    if wanted and TIMESTAMP in there and all(there.get(name) == value for name, value in wanted.items()):
        return None
    stamped = {**wanted, TIMESTAMP: str(now_s)} if wanted else {}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {**_exactly(node), "labels": stamped}}


# -------------------------------------------------------------------------------------------------------- capacity


def capacity_patch(node: NodeFacts, resources: Resources | None, *, was_ours: bool) -> dict[str, Any] | None:
    """What to apply so that a node without a kubelet has its GPUs; None if it is so already, or not ours to say."""
    if not node.is_fake or not node.is_complete or (resources is None and not was_ours):
        return None
    capacity = _counts({name: len(devices) for name, devices in resources.devices}) if resources else {}
    allocatable = _counts(dict(resources.allocatable)) if resources else {}
    if dict(node.capacity) == capacity and dict(node.allocatable) == allocatable:
        return None
    status = {"capacity": capacity, "allocatable": allocatable}
    return {"apiVersion": "v1", "kind": "Node", "metadata": _exactly(node), "status": status}


def _exactly(node: NodeFacts) -> dict[str, str]:
    """This node and no other of its name: to apply something to one that was deleted would make it anew."""
    return {"name": node.name, "uid": node.uid}


def _counts(counts: Mapping[str, int]) -> Counts:
    return {name: str(count) for name, count in counts.items()}
