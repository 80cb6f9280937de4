"""A Node of Kubernetes, with what is known of its GPUs, as a node of the model.

Place in the flow: objects.Node, published devices ─**nodes**─▶ picture. Pure. Invariant: never more healthy devices
than the kubelet says it can give out.

Where nobody has published the devices of a node there is one for every GPU the kubelet offers, described by the labels
that GPU feature discovery sets. MIG slices are offered by profile; where nobody says on which GPU they lie they are
laid on as few GPUs as can hold them. With MIG strategy `single` slices are offered as whole GPUs: plain devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from gpuyard.errors import InputError
from gpuyard.model.nodes import MAX_DEVICES_PER_NODE, MIG_SLICES_PER_GPU, Device, MigSlices, Node, Taint
from gpuyard.worlds.kubernetes import objects
from gpuyard.worlds.kubernetes.devices import PublishedDevice
from gpuyard.worlds.kubernetes.quantities import milli_down, units_down
from gpuyard.worlds.kubernetes.requests import AMD, CPU, GPUS, LARGEST, MEMORY, MIG, is_other
from gpuyard.worlds.kubernetes.selectors import CLUSTER, GPU, NAME

HOSTNAME: Final = "kubernetes.io/hostname"
PODS: Final = "pods"
ALL: Final = "all"
HARD: Final = ("NoSchedule", "NoExecute")
SOFT: Final = "PreferNoSchedule"
PRODUCT: Final = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")
NVIDIA_MEMORY: Final = "nvidia.com/gpu.memory"
"""Of each GPU, in MiB."""
AMD_MEMORY: Final = "amd.com/gpu.vram"
"""Of each GPU, as a quantity."""
MIB: Final = 1 << 20
CUT_FIX: Final = "where several of them are one GPU shared in time, have the device plugin make fewer of each"
"""What to do about a node with more GPUs than there is room for."""
MAX_SLICES: Final = MAX_DEVICES_PER_NODE * MIG_SLICES_PER_GPU
"""Of one profile on one node."""


def node_of(node: objects.Node, devices: Sequence[PublishedDevice] | None) -> Node:
    """What the scheduler sees of a node; `devices` in the order of their index, where they were published."""
    allocatable = node.status.allocatable or {}
    return Node(
        name=node.metadata.name,
        devices=_devices(node, devices or ()),
        cpu_milli=min(milli_down(allocatable.get(CPU, "0")), LARGEST),
        memory_bytes=min(units_down(allocatable.get(MEMORY, "0")), LARGEST),
        max_tasks=min(units_down(allocatable.get(PODS, "0")), LARGEST),
        other=_other(allocatable),
        labels=_labels(node),
        taints=_taints(node),
        cordoned=node.spec.unschedulable,
        ready=_is_ready(node),
    )


def cut_devices(node: objects.Node) -> int:
    """How many of its GPUs are left out, because a node of the model has no more room."""
    return max(0, _offered_gpus(node) - MAX_DEVICES_PER_NODE)


def cut_text(left_out: int) -> str:
    """What is told of such a node."""
    most = MAX_DEVICES_PER_NODE
    return (
        f"offers {left_out + most} GPUs, of which {left_out} stay unused: no more than {most} of a node are scheduled"
    )


def _labels(node: objects.Node) -> dict[str, str]:
    name = node.metadata.name
    labels = {HOSTNAME: name, **(node.metadata.labels or {}), NAME: name, CLUSTER: ALL}
    return {**labels, GPU: AMD} if _offers_amd(node) else labels


def _offers_amd(node: objects.Node) -> bool:
    return units_down((node.status.allocatable or {}).get(AMD, "0")) > 0


def _taints(node: objects.Node) -> tuple[Taint, ...]:
    known = [taint for taint in node.spec.taints or () if taint.effect in HARD or taint.effect == SOFT]
    taints = tuple(Taint(taint.key, taint.value, taint.effect, soft=taint.effect == SOFT) for taint in known)
    return (*taints, Taint(GPU, AMD)) if _offers_amd(node) else taints


def _is_ready(node: objects.Node) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or ())


def _other(allocatable: objects.Quantities) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((name, min(units_down(text), LARGEST)) for name, text in allocatable.items() if is_other(name)))


# -------------------------------------------------------------------------------------------------------------- devices


def _devices(node: objects.Node, published: Sequence[PublishedDevice]) -> tuple[Device, ...]:
    described = _described(node.metadata.labels or {})
    whole = _whole(published, described, min(_offered_gpus(node), MAX_DEVICES_PER_NODE))
    slices = _offered_slices(node.status.allocatable or {})
    return (*whole, *_sliced(published, described, slices))[:MAX_DEVICES_PER_NODE] if slices else whole


def _described(labels: dict[str, str]) -> Device:
    """A GPU as the labels of its node describe them all."""
    return Device(next((labels[name] for name in PRODUCT if labels.get(name)), Device().model), _memory_mib(labels))


def _memory_mib(labels: dict[str, str]) -> int:
    try:
        return units_down(labels.get(NVIDIA_MEMORY) or "0") or units_down(labels.get(AMD_MEMORY) or "0") // MIB
    except InputError:
        # Labels are anybody's to write. What is not known stays 0.
        return 0


def _offered_gpus(node: objects.Node) -> int:
    allocatable = node.status.allocatable or {}
    return sum(units_down(allocatable.get(name, "0")) for name in GPUS)


def _whole(published: Sequence[PublishedDevice], described: Device, offered: int) -> tuple[Device, ...]:
    """The published GPUs, no more of them healthy than the kubelet offers; what it has beyond them is nameless."""
    devices: list[Device] = []
    healthy = 0
    for one in [one for one in published if one.resource in GPUS][:MAX_DEVICES_PER_NODE]:
        is_healthy = one.healthy and healthy < offered
        healthy += is_healthy
        model, memory_mib = one.model or described.model, one.memory_mib or described.memory_mib
        devices.append(Device(model, memory_mib, one.id, is_healthy, one.nvlink, one.numa))
    return (*devices, *(described,) * (offered - len(devices)))


# ----------------------------------------------------------------------------------------------------------- MIG slices


def _offered_slices(allocatable: objects.Quantities) -> dict[str, int]:
    """How many of each profile, and no more than a node of the model can have."""
    offered = {name.removeprefix(MIG): units_down(text) for name, text in allocatable.items() if name.startswith(MIG)}
    return {profile: min(count, MAX_SLICES) for profile, count in offered.items() if count > 0}


def _sliced(published: Sequence[PublishedDevice], described: Device, offered: dict[str, int]) -> tuple[Device, ...]:
    """GPUs with the slices the kubelet offers: those published on the GPU they are of, the rest wherever they fit."""
    left = dict(offered)
    gpus: dict[str, dict[str, int]] = {}
    for one in published:
        profile = one.resource.removeprefix(MIG)
        if one.healthy and one.gpu and left.get(profile, 0) > 0:
            left[profile] -= 1
            slices = gpus.setdefault(one.gpu, {})
            slices[profile] = slices.get(profile, 0) + 1
    named = [_with_slices(replace(described, id=id), slices) for id, slices in gpus.items()]
    return (*named, *(_with_slices(described, slices) for slices in _laid_out(left)))


def _with_slices(gpu: Device, slices: dict[str, int]) -> Device:
    return replace(gpu, mig=tuple(MigSlices(profile, count) for profile, count in sorted(slices.items())))


def _laid_out(slices: dict[str, int]) -> list[dict[str, int]]:
    """Slices on as few GPUs as can hold them, the largest first."""
    gpus: list[dict[str, int]] = []
    room: list[int] = []
    for profile in sorted(slices, key=lambda one: (-_size(one), one)):
        for _ in range(slices[profile]):
            at = next((at for at, free in enumerate(room) if free >= _size(profile)), len(room))
            if at == len(room):
                gpus.append({})
                room.append(MIG_SLICES_PER_GPU)
            gpus[at][profile] = gpus[at].get(profile, 0) + 1
            room[at] -= _size(profile)
    return gpus


def _size(profile: str) -> int:
    """Compute slices of a profile: 3 of `3g.40gb`."""
    digits = profile.split("g", 1)[0]
    return min(max(1, int(digits)), MIG_SLICES_PER_GPU) if digits.isdecimal() else 1
