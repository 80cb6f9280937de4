"""What a node offers its kubelet: which devices, under which resources, and what is wrong with the plugin itself.

Place in the flow: MachineStatus ─**plugin_offer**─▶ Offer ─▶ endpoints ─▶ kubelet. Pure.
Invariant: a device's id is the id the model gave the GPU or MIG instance, and its health is that of the reading, so
that the kubelet, NVML and the exporter speak of the same thing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from gpuyard.fakegpu.control import FaultStatus, MachineStatus
from gpuyard.fakegpu.faults import FaultKind, PluginFailure, read_fault
from gpuyard.fakegpu.format import MigStrategy
from gpuyard.fakegpu.labels import PREFIX, resource_name
from gpuyard.fakegpu.links import Seat
from gpuyard.fakegpu.products import product_named
from gpuyard.fakegpu.reading import DeviceReading, Health, MachineReading, MigInstance

GPU: Final = PREFIX + "gpu"


class PluginDevice(msgspec.Struct, frozen=True, gc=False):
    """One device as the kubelet hands it out: a GPU, or an instance of one."""

    id: str
    healthy: bool
    gpu: str
    """The GPU it is, or is part of."""
    product: str
    nvlinks: int
    seat: Seat


Devices = tuple[PluginDevice, ...]


class Failures(msgspec.Struct, frozen=True):
    """What the plugin itself is to get wrong now."""

    crashed: bool = False
    hanging: bool = False
    unregistrable: bool = False
    refused_gpus: frozenset[str] = frozenset()

    def __str__(self) -> str:
        """As a log has it."""
        parts = {
            "is gone, as after a crash": self.crashed,
            "hangs": self.hanging,
            "registers in vain": self.unregistrable,
            f"refuses {', '.join(sorted(self.refused_gpus))}": bool(self.refused_gpus),
        }
        return " and ".join(text for text, holds in parts.items() if holds) or "fails no longer"


class Offer(msgspec.Struct, frozen=True):
    """All a plugin has to know about its node at one instant."""

    node: str
    resources: dict[str, Devices]
    failures: Failures = Failures()
    state: str | None = None
    """The machine's state directory."""
    problem: str = ""
    """Why nothing, or less, is offered."""


def offer_of(status: MachineStatus) -> Offer:
    reading = status.reading.staying
    resources, problem = _resources(reading)
    return Offer(reading.machine, resources, _failures(status.faults, reading), status.state, problem)


def change(before: Devices, after: Devices) -> str:
    """What a log says of it: how many there are, and which have come, gone, or are unhealthy."""
    old, new = {device.id for device in before}, {device.id for device in after}
    parts = {
        "new": [device.id for device in after if device.id not in old] if before else [],
        "no longer offered": [device.id for device in before if device.id not in new],
        "unhealthy": [device.id for device in after if not device.healthy],
    }
    told = (f"; {what}: {', '.join(ids)}" for what, ids in parts.items() if ids)
    return f"{len(after)} devices" + "".join(told)


def _resources(reading: MachineReading) -> tuple[dict[str, Devices], str]:
    """By the machine's MIG strategy, as NVIDIA's plugin does it."""
    match reading.mig_strategy:
        case MigStrategy.SINGLE if any(device.mig_enabled for device in reading.devices):
            return _single(reading.devices)
        case MigStrategy.MIXED:
            return _mixed(reading.devices), ""
    return {GPU: tuple(_whole(device) for device in reading.devices)}, ""


def _single(devices: tuple[DeviceReading, ...]) -> tuple[dict[str, Devices], str]:
    """Instances under the name of GPUs: only where every GPU is cut, and all instances are alike."""
    profiles = {instance.profile for device in devices for instance in device.mig}
    if len(profiles) != 1 or not all(device.mig for device in devices):
        return {GPU: ()}, "mig-strategy single needs every GPU to be cut into instances of one profile"
    return {GPU: tuple(_slice(device, instance) for device in devices for instance in device.mig)}, ""


def _mixed(devices: tuple[DeviceReading, ...]) -> dict[str, Devices]:
    """Each profile under its own name, beside the GPUs that are not cut."""
    found: dict[str, list[PluginDevice]] = {}
    for device in devices:
        if not device.mig_enabled:
            found.setdefault(GPU, []).append(_whole(device))
        for instance in device.mig:
            name = f"{PREFIX}mig-{resource_name(instance.profile)}"
            found.setdefault(name, []).append(_slice(device, instance))
    return {name: tuple(listed) for name, listed in found.items()}


def _whole(device: DeviceReading) -> PluginDevice:
    return PluginDevice(
        id=device.uuid,
        healthy=device.health is Health.OK,
        gpu=device.uuid,
        product=device.product,
        nvlinks=product_named(device.product).nvlinks,
        seat=Seat(device.numa_node, device.pcie_switch),
    )


def _slice(device: DeviceReading, instance: MigInstance) -> PluginDevice:
    return msgspec.structs.replace(_whole(device), id=instance.uuid)


def _failures(faults: Iterable[FaultStatus], reading: MachineReading) -> Failures:
    """A refusal is about one GPU; whatever else goes wrong with the plugin goes wrong with all of it."""
    ids = {device.index: device.uuid for device in reading.devices}
    told = [(read_fault(status.fault), ids.get(status.gpu, "")) for status in faults]
    mine = [(fault.plugin, gpu) for fault, gpu in told if fault.kind is FaultKind.PLUGIN]
    kinds = {failure for failure, _ in mine}
    return Failures(
        crashed=PluginFailure.CRASH in kinds,
        hanging=PluginFailure.HANG in kinds,
        unregistrable=PluginFailure.FAIL_REGISTRATION in kinds,
        refused_gpus=frozenset(gpu for failure, gpu in mine if failure is PluginFailure.FAIL_ALLOCATION),
    )
