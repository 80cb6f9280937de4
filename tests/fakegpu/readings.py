"""Readings for tests: one device as a machine at rest shows it, and thousands of them."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuyard.fakegpu.reading import Clocks, DeviceReading, Ecc, Health, Holder, MachineReading, MigInstance

MIB = 1 << 20
A100_MIB = 81920
HOLDER = Holder("team-a", "train-0", "main")


def a_device(index: int = 0, **changes: Any) -> DeviceReading:
    """An idle A100 80GB; name whatever is to be different."""
    device = DeviceReading(
        index=index,
        minor=index,
        uuid=f"GPU-00000000-0000-0000-0000-{index:012}",
        serial=f"{1650000000000 + index}",
        product="NVIDIA A100-SXM4-80GB",
        pci_bus_id=f"00000000:{index + 1:02X}:00.0",
        health=Health.OK,
        holder=None,
        memory_total_bytes=A100_MIB * MIB,
        memory_reserved_bytes=0,
        memory_used_bytes=0,
        gpu_percent=0,
        memory_percent=0,
        encoder_percent=0,
        decoder_percent=0,
        temperature_c=30,
        memory_temperature_c=32,
        fan_percent=None,
        power_mw=62_500,
        power_limit_mw=400_000,
        energy_mj=123_456_789,
        performance_state=0,
        clocks=Clocks(graphics_mhz=210, sm_mhz=210, memory_mhz=1593, video_mhz=585),
        throttle_reasons=1,
        ecc=Ecc(0, 0, 0, 0),
        last_xid=0,
        xid_count=0,
        pcie_replays=0,
        pcie_tx_bytes_per_s=0,
        pcie_rx_bytes_per_s=0,
        nvlink_bytes=0,
        remapped_rows_corrected=0,
        remapped_rows_uncorrected=0,
        mig_enabled=False,
        mig=(),
        processes=(),
    )
    return msgspec.structs.replace(device, **changes)


def an_instance(index: int = 0, **changes: Any) -> MigInstance:
    """A small idle slice of that device."""
    instance = MigInstance(
        index=index,
        gpu_instance=7 + index,
        compute_instance=0,
        uuid=f"MIG-00000000-0000-0000-0000-{index:012}",
        profile="1g.10gb",
        slices=1,
        multiprocessors=14,
        memory_total_bytes=9728 * MIB,
        memory_used_bytes=0,
        holder=None,
    )
    return msgspec.structs.replace(instance, **changes)


def a_machine(*devices: DeviceReading, name: str = "node-a", **changes: Any) -> MachineReading:
    machine = MachineReading(
        machine=name,
        taken_at_ms=1_700_000_000_000,
        driver_version="550.54.15",
        cuda_version="12.4",
        mig_strategy="none",
        devices=devices or (a_device(),),
    )
    return msgspec.structs.replace(machine, **changes)
