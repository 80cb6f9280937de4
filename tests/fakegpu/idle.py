"""Readings of a machine at rest, so that a test of a face names only what it is about."""

from __future__ import annotations

from typing import Any

from gpuyard.fakegpu.reading import Clocks, DeviceReading, Ecc, Holder, MachineReading, MigInstance
from tests.fakegpu import readings
from tests.fakegpu.readings import MIB

__all__ = ["HOLDER", "MIB", "a_device", "a_machine", "an_instance"]

HOLDER = Holder("team-a", "train-0", "main")

AT_REST: dict[str, Any] = {
    "memory_reserved_bytes": 0,
    "memory_used_bytes": 0,
    "gpu_percent": 0,
    "memory_percent": 0,
    "encoder_percent": 0,
    "decoder_percent": 0,
    "clocks": Clocks(210, 210, 1593, 585),
    "ecc": Ecc(0, 0, 0, 0),
    "nvlink_bytes": 0,
}


def a_device(index: int = 0, **changes: Any) -> DeviceReading:
    own = {"uuid": f"GPU-00000000-0000-0000-0000-{index:012}", "pci_bus_id": f"00000000:{index + 1:02X}:00.0"}
    return readings.a_device(index, **{**AT_REST, **own, **changes})


def an_instance(index: int = 0, **changes: Any) -> MigInstance:
    return readings.an_instance(index, **{"memory_used_bytes": 0, **changes})


def a_machine(*devices: DeviceReading, name: str = "node-a", **changes: Any) -> MachineReading:
    own = {"machine": name, "driver_version": "550.54.15", "cuda_version": "12.4", "mig_strategy": "none"}
    return readings.a_machine(*(devices or (a_device(),)), **{**own, **changes})
