"""Named limits of the model, and the one check of each value that a world reports.

Place in the flow: agents, files, REST bodies and Kubernetes objects ─▶ **limits** ─▶ state ─▶ scheduler. Every boundary
asks here, so a value is in range everywhere or nowhere. Invariant: sums over a whole cluster of accepted values fit a
signed 64-bit integer, which the scheduler's columns are made of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from gpuyard.model.nodes import MAX_DEVICES_PER_NODE, Device, Node, Taint, mig_slice_milli
from gpuyard.model.quantities import MILLI, format_bytes
from gpuyard.model.queues import Queue

MAX_NODE_CPU_MILLI: Final = 10**9
"""A million cores on one node."""
MAX_NODE_MEMORY_BYTES: Final = 1 << 47
"""128 TiB on one node: 50 000 such nodes still fit a signed 64-bit sum."""
MAX_DEVICE_MEMORY_MIB: Final = 1 << 24
"""16 TiB on one device."""
MAX_NUMBER: Final = 1 << 31
"""Of what only tells things apart: NUMA nodes, NVLink domains, numbers of tasks."""
MAX_NAME_CHARS: Final = 253
"""Of names and models, as in Kubernetes."""
MAX_LABEL_CHARS: Final = 317
"""Of label keys and values, taints and names of resources; in Kubernetes a prefix of 253, a slash and a name of 63."""
MAX_NODE_LABELS: Final = 256
"""That a world reports, or an operator sets."""
MAX_LABELS_IN_ALL: Final = 1_024
"""Of one node as it is planned on: those of its agent and of operators together."""
MAX_PROFILES_PER_DEVICE: Final = 64
"""Kinds of MIG slices on one device."""
MAX_SLICES_PER_PROFILE: Final = 1_000
"""Of one device: some worlds know only how many a whole node has."""
MAX_NODE_TAINTS: Final = 256
MAX_NODE_RESOURCES: Final = 256
"""Further named resources of one node."""
MAX_OTHER_AMOUNT: Final = 1 << 47
"""Of one named resource on one node, in its own unit: bytes of local storage are the largest of them."""

MAX_AMOUNT: Final = 10**18
"""Of one resource in one queue, in accounting units: a signed 64-bit integer holds nine times as much."""
MAX_SHARES_PER_QUEUE: Final = 1_024
"""Resources and GPU models that one queue rations."""
MAX_PRIORITY: Final = 1 << 31
"""Of queues and jobs, above and below zero; Kubernetes ends at two billion, too."""

MAX_DURATION_MS: Final = 3650 * 86_400_000
"""Ten years: longer is a typing error."""
MAX_TIME_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, after which no calendar date can be written."""


def node_problem(node: Node) -> str:
    """Return why the scheduler cannot count with this node; an empty text where it can."""
    return (
        node_facts_problem(node.devices, node.cpu_milli, node.memory_bytes, {})
        or labels_problem(node.labels.items(), MAX_LABELS_IN_ALL)
        or _slots_problem(node.max_tasks)
        or _resources_problem(node.other)
        or _taints_problem(node.taints)
    )


def _slots_problem(max_tasks: int) -> str:
    if 0 <= max_tasks <= MAX_NUMBER:
        return ""
    return f"it takes {max_tasks} tasks at once; the range is 0 to {MAX_NUMBER}"


def _resources_problem(other: tuple[tuple[str, int], ...]) -> str:
    if len(other) > MAX_NODE_RESOURCES:
        return f"it reports {len(other)} named resources, and a node has at most {MAX_NODE_RESOURCES}"
    for name, amount in other:
        if len(name) > MAX_LABEL_CHARS or not 0 <= amount <= MAX_OTHER_AMOUNT:
            return f'it reports {amount} of "{name[:40]}"; the range is 0 to {MAX_OTHER_AMOUNT}'
    return ""


def _taints_problem(taints: tuple[Taint, ...]) -> str:
    if len(taints) > MAX_NODE_TAINTS:
        return f"it has {len(taints)} taints, and a node has at most {MAX_NODE_TAINTS}"
    if any(max(len(one.key), len(one.value), len(one.effect)) > MAX_LABEL_CHARS for one in taints):
        return f"it has a taint of more than {MAX_LABEL_CHARS} characters"
    return ""


def node_facts_problem(devices: tuple[Device, ...], cpu_milli: int, memory_bytes: int, labels: dict[str, str]) -> str:
    """Return which of these facts is out of range, with the limit; an empty text where none is."""
    if len(devices) > MAX_DEVICES_PER_NODE:
        return f"it reports {len(devices)} GPUs, and a node has at most {MAX_DEVICES_PER_NODE}"
    if not 0 <= cpu_milli <= MAX_NODE_CPU_MILLI:
        return f"it reports {cpu_milli} thousandths of a core; the range is 0 to {MAX_NODE_CPU_MILLI}"
    if not 0 <= memory_bytes <= MAX_NODE_MEMORY_BYTES:
        return f"it reports {memory_bytes} bytes of memory; the range is 0 to {format_bytes(MAX_NODE_MEMORY_BYTES)}"
    if problem := labels_problem(labels.items()):
        return problem
    return next((problem for device in devices if (problem := device_problem(device))), "")


def labels_problem(labels: Collection[tuple[str, str]], most: int = MAX_NODE_LABELS) -> str:
    """Return whether a node, job or task has too many labels, or one that is too long."""
    if not labels:
        return ""
    if len(labels) > most:
        return f"it has {len(labels)} labels; it may have {most}"
    if any(len(text) > MAX_LABEL_CHARS for pair in labels for text in pair):
        return f"it has a label of more than {MAX_LABEL_CHARS} characters"
    return ""


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


def queue_problem(queue: Queue) -> str:
    """Return which value of a queue the scheduler cannot count with; an empty text where there is none."""
    if max(len(queue.name), len(queue.parent or "")) > MAX_NAME_CHARS:
        return f"a queue's name has more than {MAX_NAME_CHARS} characters"
    if abs(queue.priority) > MAX_PRIORITY or abs(queue.order) > MAX_TIME_MS:
        return f'the priority of queue "{queue.name}" is {queue.priority}; the range is up to {MAX_PRIORITY}'
    if len(queue.shares) > MAX_SHARES_PER_QUEUE:
        return f'queue "{queue.name}" rations {len(queue.shares)} resources; it may ration {MAX_SHARES_PER_QUEUE}'
    for share in queue.shares:
        amounts = (share.quota, share.limit, share.weight_milli)
        if any(amount is not None and not 0 <= amount <= MAX_AMOUNT for amount in amounts):
            return f'queue "{queue.name}" has an amount of "{share.resource[:40]}" outside 0 to {MAX_AMOUNT}'
        if len(share.resource) > 2 * MAX_NAME_CHARS or abs(share.priority or 0) > MAX_PRIORITY:
            return f'queue "{queue.name}" has a priority or name of "{share.resource[:40]}" that is out of range'
    durations = (queue.reclaim_min_runtime_ms, queue.preempt_min_runtime_ms)
    return durations_problem(durations) or number_problem("its disruption budget", queue.disruption_budget)


def number_problem(what: str, number: int | None, most: int = MAX_NUMBER, least: int = 0) -> str:
    """Return that a number is out of range, as a sentence; an empty text where it is in range or not given."""
    if number is None or least <= number <= most:
        return ""
    return f"{what} is {number}; the range is {least} to {most}"


def durations_problem(durations: Iterable[int | None]) -> str:
    """Return which duration is out of range; None stands for one that is not given."""
    for duration in durations:
        if duration is not None and not 0 <= duration <= MAX_DURATION_MS:
            return f"a duration is {duration} ms; the range is 0 to {MAX_DURATION_MS}, ten years"
    return ""


def times_problem(times: Iterable[int | None]) -> str:
    """Return which time no calendar can show; None stands for one that is not given."""
    for time_ms in times:
        if time_ms is not None and not 0 <= time_ms <= MAX_TIME_MS:
            return f"a time is {time_ms} ms; the range is 0 to {MAX_TIME_MS}, the end of the year 9999"
    return ""
