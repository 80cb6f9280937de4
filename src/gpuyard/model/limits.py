"""Named limits of the model, and the one check of each value that a world reports.

Place in the flow: agents, files, REST bodies and Kubernetes objects ─▶ **limits** ─▶ state ─▶ scheduler. Every boundary
asks here, so a value is in range everywhere or nowhere. Invariant: sums over a whole cluster of accepted values fit a
signed 64-bit integer, which the scheduler's columns are made of.
"""

from __future__ import annotations

from typing import Final

from gpuyard.model.nodes import MAX_DEVICES_PER_NODE, Device, Node, mig_slice_milli
from gpuyard.model.quantities import MILLI, format_bytes

MAX_NODE_CPU_MILLI: Final = 10**9
"""A million cores on one node."""
MAX_NODE_MEMORY_BYTES: Final = 1 << 47
"""128 TiB on one node: 50 000 such nodes still fit a signed 64-bit sum."""
MAX_DEVICE_MEMORY_MIB: Final = 1 << 24
"""16 TiB on one device."""
MAX_NUMBER: Final = 1 << 31
"""Of what only tells things apart: NUMA nodes, NVLink domains, numbers of tasks."""
MAX_NAME_CHARS: Final = 253
"""Of names, models, label keys and label values, as in Kubernetes."""
MAX_NODE_LABELS: Final = 256
MAX_PROFILES_PER_DEVICE: Final = 64
"""Kinds of MIG slices on one device."""
MAX_SLICES_PER_PROFILE: Final = 1_000
"""Of one device: some worlds know only how many a whole node has."""


def node_problem(node: Node) -> str:
    """Return why the scheduler cannot count with this node; an empty text where it can."""
    return node_facts_problem(node.devices, node.cpu_milli, node.memory_bytes, node.labels)


def node_facts_problem(devices: tuple[Device, ...], cpu_milli: int, memory_bytes: int, labels: dict[str, str]) -> str:
    """Return which of these facts is out of range, with the limit; an empty text where none is."""
    if len(devices) > MAX_DEVICES_PER_NODE:
        return f"it reports {len(devices)} GPUs, and a node has at most {MAX_DEVICES_PER_NODE}"
    if not 0 <= cpu_milli <= MAX_NODE_CPU_MILLI:
        return f"it reports {cpu_milli} thousandths of a core; the range is 0 to {MAX_NODE_CPU_MILLI}"
    if not 0 <= memory_bytes <= MAX_NODE_MEMORY_BYTES:
        return f"it reports {memory_bytes} bytes of memory; the range is 0 to {format_bytes(MAX_NODE_MEMORY_BYTES)}"
    if len(labels) > MAX_NODE_LABELS:
        return f"it reports {len(labels)} labels, and a node has at most {MAX_NODE_LABELS}"
    if any(len(text) > MAX_NAME_CHARS for pair in labels.items() for text in pair):
        return f"it reports a label of more than {MAX_NAME_CHARS} characters"
    return next((problem for device in devices if (problem := device_problem(device))), "")


def device_problem(device: Device) -> str:
    """Return which value of a device is out of range; an empty text where none is."""
    if not 0 <= device.memory_mib <= MAX_DEVICE_MEMORY_MIB:
        return f"it reports a GPU with {device.memory_mib} MiB; the range is 0 to {MAX_DEVICE_MEMORY_MIB}"
    if max(len(device.model), len(device.id)) > MAX_NAME_CHARS:
        return f"it reports a GPU whose model or id has more than {MAX_NAME_CHARS} characters"
    if not (0 <= device.nvlink <= MAX_NUMBER and -1 <= device.numa <= MAX_NUMBER):
        return f"it reports a GPU with an NVLink domain or NUMA node outside 0 to {MAX_NUMBER}"
    if len(device.mig) > MAX_PROFILES_PER_DEVICE:
        return f"it reports a GPU with {len(device.mig)} MIG profiles; a GPU has at most {MAX_PROFILES_PER_DEVICE}"
    for slices in device.mig:
        milli = mig_slice_milli(slices.profile) if slices.gpu_milli is None else slices.gpu_milli
        if len(slices.profile) > MAX_NAME_CHARS or not 0 <= slices.count <= MAX_SLICES_PER_PROFILE:
            return _slices_problem(slices.profile)
        if not 0 <= milli <= MILLI:
            return _slices_problem(slices.profile)
    return ""


def _slices_problem(profile: str) -> str:
    return f'it reports MIG slices "{profile[:20]}" whose name, count or share of a GPU is out of range'
