"""How GPUs look in lists."""

from __future__ import annotations

from gpuyard.cli.listing import Column, Kind
from gpuyard.model.quantities import format_milli
from gpuyard.wire.rest import DeviceObject, HolderObject


def _holder(holder: HolderObject) -> str:
    who = f"job {holder.job} ({holder.team})" if holder.job else f"team {holder.team}"
    return f"{who} {format_milli(holder.gpu_milli)}"


DEVICES: Kind[DeviceObject] = Kind(
    DeviceObject,
    (
        Column("NODE", lambda device, at: device.node),
        Column("GPU", lambda device, at: str(device.index), key=lambda device: (device.node, device.index)),
        Column("MODEL", lambda device, at: device.model + (" (fake)" if device.fake else "")),
        Column("HEALTH", lambda device, at: "ok" if device.healthy else "broken"),
        Column("FREE", lambda device, at: format_milli(device.free_milli), key=lambda device: device.free_milli),
        Column(
            "FREE-MEMORY",
            lambda device, at: f"{device.free_memory_mib}/{device.memory_mib}Mi",
            key=lambda device: device.free_memory_mib,
        ),
        Column("ID", lambda device, at: device.id, wide=True),
        Column("HELD-BY", lambda device, at: ", ".join(map(_holder, device.holders))),
    ),
    lambda device: device.id,
    lambda device: None if device.healthy else "red",
)
