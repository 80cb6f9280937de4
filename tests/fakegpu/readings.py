"""Readings for the tests of the faces: `a_device(uuid=..., gpu_percent=50)`, `a_machine(a_device(), ...)`."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuyard.fakegpu.reading import (
    Clocks,
    DeviceReading,
    Ecc,
    Health,
    MachineReading,
    MigInstance,
    ProcessReading,
)

GIB = 1 << 30
MIB = 1 << 20

DEVICE = DeviceReading(
    index=0,
    minor=0,
    uuid="GPU-00000000-0000-0000-0000-000000000000",
    serial="1320000000001",
    product="NVIDIA A100-SXM4-80GB",
    pci_bus_id="00000000:07:00.0",
    health=Health.OK,
    holder=None,
    memory_total_bytes=81920 * MIB,
    memory_reserved_bytes=767 * MIB,
    memory_used_bytes=4096 * MIB,
    gpu_percent=37,
    memory_percent=21,
    encoder_percent=3,
    decoder_percent=4,
    temperature_c=55,
    memory_temperature_c=61,
    fan_percent=None,
    power_mw=215_340,
    power_limit_mw=400_000,
    energy_mj=987_654_321,
    performance_state=0,
    clocks=Clocks(1410, 1410, 1593, 1290),
    throttle_reasons=0,
    ecc=Ecc(2, 0, 5, 1),
    last_xid=0,
    xid_count=0,
    pcie_replays=7,
    pcie_tx_bytes_per_s=3 * MIB,
    pcie_rx_bytes_per_s=5 * MIB,
    nvlink_bytes=10_001,
    remapped_rows_corrected=1,
    remapped_rows_uncorrected=2,
    mig_enabled=False,
    mig=(),
    processes=(),
)


def a_device(index: int = 0, **changes: Any) -> DeviceReading:
    """A busy A100; its UUID, serial and bus follow from its index."""
    own = {
        "index": index,
        "minor": index,
        "uuid": f"GPU-{index:08x}-1111-2222-3333-444444444444",
        "serial": str(1320000000001 + index),
        "pci_bus_id": f"00000000:{7 + index:02X}:00.0",
    }
    return msgspec.structs.replace(DEVICE, **{**own, **changes})


def a_machine(*devices: DeviceReading, **changes: Any) -> MachineReading:
    made = MachineReading(
        machine="node-a",
        taken_at_ms=1_700_000_000_000,
        driver_version="570.195.03",
        cuda_version="12.8",
        mig_strategy="mixed",
        devices=devices,
    )
    return msgspec.structs.replace(made, **changes)


def a_process(pid: int, **changes: Any) -> ProcessReading:
    made = ProcessReading(pid, "python3", "C", 2 * GIB, 30, 20, 1_699_999_990_000)
    return msgspec.structs.replace(made, **changes)


def an_instance(index: int, **changes: Any) -> MigInstance:
    """One of the seven smallest instances of an A100 with 80 GB."""
    made = MigInstance(
        index=index,
        gpu_instance=7 + index,
        compute_instance=0,
        uuid=f"MIG-{index:08x}-aaaa-bbbb-cccc-dddddddddddd",
        profile="1g.10gb",
        slices=1,
        multiprocessors=14,
        memory_total_bytes=9728 * MIB,
        memory_used_bytes=12 * MIB,
        holder=None,
    )
    return msgspec.structs.replace(made, **changes)
