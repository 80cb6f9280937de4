"""Readings out of the columns: the one place where the model's numbers get the units faces show.

Place in the flow: devices + tasks ─**render**─▶ MachineReading. Invariant: what is on a GPU adds up (processes use no
more memory than the GPU shows as used, instances no more than they have).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np

from gpuyard.fakegpu.devices import HEALTHS, OFF_THE_BUS, Devices
from gpuyard.fakegpu.fleet import GpuSpec, MachineSpec, mig_uuid
from gpuyard.fakegpu.links import Seat
from gpuyard.fakegpu.load import Load
from gpuyard.fakegpu.physics import (
    MEMORY_LOAD_PERCENT,
    NVLINK_USE_PERCENT,
    OLDEST_WITH_TENSOR_CORES,
    PCIE_USE_PERCENT,
    TENSOR_LOAD_PERCENT,
    temperature,
)
from gpuyard.fakegpu.products import MaxClocks, Product
from gpuyard.fakegpu.reading import Clocks, DeviceReading, Ecc, Holder, MachineReading, MigInstance, ProcessReading

MEMORY_WARMER_C: Final = 9
FAN_FROM_C: Final = 30
FAN_FULL_C: Final = 85
PCIE_LANE_MB_PER_S: Final = {1: 250, 2: 500, 3: 985, 4: 1969, 5: 3938}
"""Megabytes a lane carries each way in a second, by generation."""
FIRST_INSTANCE_ID: Final = {7: 0, 4: 1, 3: 1, 2: 3, 1: 7}
"""The lowest GPU instance id the driver gives to an instance of so many slices."""


class Task(msgspec.Struct, frozen=True):
    """Something on one GPU. Without a pid it loads the GPU but is no process anybody can see."""

    task: str
    gpu: int
    pid: int | None
    name: str
    kind: str
    holder: Holder | None
    mig: int | None
    started_at_ms: int


class Identity(msgspec.Struct, frozen=True, gc=False):
    """What a device is called; made once."""

    uuid: str
    serial: str
    product: str
    pci_bus_id: str
    instances: tuple[MigInstance, ...]
    seat: Seat


def identity(spec: GpuSpec, index: int, seat: Seat) -> Identity:
    serial = f"132{zlib.crc32(spec.uuid.encode()):010d}"
    bus_id = f"00000000:{3 + 4 * index:02X}:00.0"
    return Identity(spec.uuid, serial, spec.product.name, bus_id, _instances(spec), seat)


def _instances(spec: GpuSpec) -> tuple[MigInstance, ...]:
    taken: set[int] = set()
    instances = []
    for index, profile in enumerate(spec.mig):
        number = FIRST_INSTANCE_ID[profile.slices]
        while number in taken:
            number += 1
        taken.add(number)
        instances.append(
            MigInstance(
                index=index,
                gpu_instance=number,
                compute_instance=0,
                uuid=mig_uuid(spec.uuid, index),
                profile=profile.name,
                slices=profile.slices,
                multiprocessors=profile.multiprocessors,
                memory_total_bytes=profile.memory_mib << 20,
                memory_used_bytes=0,
                holder=None,
            )
        )
    return tuple(instances)


class Numbers(msgspec.Struct, frozen=True):
    """Columns of some GPUs at one instant, as plain Python numbers."""

    health: list[int]
    total: list[int]
    used: list[int]
    percent: list[int]
    active: list[bool]
    celsius: list[int]
    power: list[int]
    energy: list[int]
    sm_mhz: list[int]
    reasons: list[int]
    last_xid: list[int]
    xid_count: list[int]
    volatile: list[list[int]]
    aggregate: list[list[int]]
    percent_ms: list[int]


def numbers(devices: Devices, gpus: slice, at_ms: int) -> Numbers:
    """What adds up and drifts is told for the instant."""
    chosen = np.arange(len(devices))[gpus]
    elapsed = at_ms - devices.since_ms[gpus]
    energy = (devices.energy_uj[gpus] + devices.power_mw[gpus] * elapsed) // 1000
    celsius = temperature(devices.celsius[gpus], devices.target_c[gpus], elapsed)
    return Numbers(
        health=devices.health[gpus].tolist(),
        total=devices.total_bytes(chosen).tolist(),
        used=devices.used_bytes[gpus].tolist(),
        percent=devices.load_percent[gpus].tolist(),
        active=devices.active[gpus].tolist(),
        celsius=np.rint(celsius).astype(np.int64).tolist(),
        power=devices.power_mw[gpus].tolist(),
        energy=energy.tolist(),
        sm_mhz=devices.sm_mhz[gpus].tolist(),
        reasons=devices.reasons[gpus].tolist(),
        last_xid=devices.last_xid[gpus].tolist(),
        xid_count=devices.xid_count[gpus].tolist(),
        volatile=devices.ecc_volatile[gpus].tolist(),
        aggregate=devices.ecc_aggregate[gpus].tolist(),
        percent_ms=(devices.percent_ms[gpus] + devices.load_percent[gpus] * elapsed).tolist(),
    )


class OnGpu(msgspec.Struct, frozen=True):
    """The tasks on one GPU, oldest first, each with its row in the load."""

    tasks: list[Task]
    rows: list[int]


NOTHING: Final = OnGpu([], [])


def device_reading(
    index: int, at: int, spec: GpuSpec, named: Identity, shown: Numbers, on: OnGpu, load: Load
) -> DeviceReading:
    """One device; `index` is its number in the machine, `at` its place in the columns."""
    product = spec.product
    percent = shown.percent[at]
    absent = shown.health[at] == OFF_THE_BUS
    visible = NOTHING if absent else on
    memory = _memory(visible, load, shown.used[at])
    _, uncorrected = shown.aggregate[at]
    moved = percent * PCIE_LANE_MB_PER_S[product.pcie.generation] * product.pcie.width * 1_000_000 * PCIE_USE_PERCENT
    return DeviceReading(
        index=index,
        minor=index,
        uuid=named.uuid,
        serial=named.serial,
        product=named.product,
        pci_bus_id=named.pci_bus_id,
        health=HEALTHS[shown.health[at]],
        holder=next((task.holder for task in on.tasks if task.holder is not None and task.mig is None), None),
        memory_total_bytes=shown.total[at],
        memory_reserved_bytes=spec.reserved_bytes,
        memory_used_bytes=shown.used[at],
        gpu_percent=percent,
        memory_percent=percent * MEMORY_LOAD_PERCENT // 100,
        encoder_percent=0,
        decoder_percent=0,
        temperature_c=shown.celsius[at],
        memory_temperature_c=shown.celsius[at] + percent * MEMORY_WARMER_C // 100 if product.memory_sensor else None,
        fan_percent=_fan(shown.celsius[at]) if product.fan else None,
        power_mw=shown.power[at],
        power_limit_mw=spec.power_limit_mw,
        energy_mj=shown.energy[at],
        performance_state=0 if shown.active[at] else product.idle_state,
        clocks=_clocks(product, shown.sm_mhz[at], shown.active[at]),
        throttle_reasons=shown.reasons[at],
        ecc=Ecc(*shown.volatile[at], *shown.aggregate[at]) if product.ecc else None,
        last_xid=shown.last_xid[at],
        xid_count=shown.xid_count[at],
        pcie_replays=0,
        pcie_tx_bytes_per_s=moved // 20_000,
        pcie_rx_bytes_per_s=moved // 10_000,
        nvlink_bytes=shown.percent_ms[at] * product.nvlink_gb_per_s * 10_000 * NVLINK_USE_PERCENT // 100,
        remapped_rows_corrected=0,
        remapped_rows_uncorrected=uncorrected,
        mig_enabled=spec.mig_enabled,
        mig=_with_tasks(named.instances, visible, load, memory),
        processes=_processes(visible, load, memory),
        tensor_percent=percent * _tensor_load(product) // 100,
        numa_node=named.seat.numa_node,
        pcie_switch=named.seat.pcie_switch,
        leaving=spec.leaving,
    )


def _tensor_load(product: Product) -> int:
    return TENSOR_LOAD_PERCENT if product.compute_capability >= OLDEST_WITH_TENSOR_CORES else 0


def _memory(on: OnGpu, load: Load, used: int) -> list[int]:
    """Bytes of each task: who came first gets what it asks, the last one what is left of its instance and GPU."""
    left: dict[int | None, int] = {}
    amounts = []
    for task, row in zip(on.tasks, on.rows, strict=True):
        room = left.setdefault(task.mig, int(load.room[row]))
        amount = min(int(load.memory[row]), room, used)
        left[task.mig] -= amount
        used -= amount
        amounts.append(amount)
    return amounts


def _processes(on: OnGpu, load: Load, memory: list[int]) -> tuple[ProcessReading, ...]:
    if not any(task.pid for task in on.tasks):
        return ()
    percents = [int(load.percent[row]) for row in on.rows]
    # The tasks of a whole GPU share one hundred per cent, and so do those of each MIG instance.
    asked: dict[int | None, int] = {}
    for percent, task in zip(percents, on.tasks, strict=True):
        asked[task.mig] = asked.get(task.mig, 0) + percent
    shown = []
    for task, percent, amount in zip(on.tasks, percents, memory, strict=True):
        if task.pid is None:
            continue
        own = percent * 100 // max(100, asked[task.mig])
        shown.append(
            ProcessReading(
                pid=task.pid,
                name=task.name,
                kind=task.kind,
                memory_bytes=amount,
                sm_percent=own,
                memory_percent=own * MEMORY_LOAD_PERCENT // 100,
                started_at_ms=task.started_at_ms,
                mig_instance=task.mig,
            )
        )
    return tuple(shown)


def _with_tasks(
    instances: tuple[MigInstance, ...], on: OnGpu, load: Load, memory: list[int]
) -> tuple[MigInstance, ...]:
    """Instances with what runs on them. All products that can be cut have tensor cores."""
    if not instances or not on.tasks:
        return instances
    used = [0] * len(instances)
    percent = [0] * len(instances)
    holders: list[Holder | None] = [None] * len(instances)
    for task, row, amount in zip(on.tasks, on.rows, memory, strict=True):
        if task.mig is not None:
            used[task.mig] += amount
            percent[task.mig] = min(100, percent[task.mig] + int(load.percent[row]))
            holders[task.mig] = holders[task.mig] or task.holder
    return tuple(
        msgspec.structs.replace(
            instance,
            memory_used_bytes=min(used[at], instance.memory_total_bytes),
            holder=holders[at],
            gpu_percent=percent[at],
            memory_percent=percent[at] * MEMORY_LOAD_PERCENT // 100,
            tensor_percent=percent[at] * TENSOR_LOAD_PERCENT // 100,
        )
        for at, instance in enumerate(instances)
    )


def _clocks(product: Product, sm_mhz: int, active: bool) -> Clocks:
    other: MaxClocks = product.max_clocks if active else product.idle_clocks
    return Clocks(sm_mhz, sm_mhz, other.memory_mhz, other.video_mhz)


def _fan(celsius: int) -> int:
    return min(100, max(0, (celsius - FAN_FROM_C) * 100 // (FAN_FULL_C - FAN_FROM_C)))


def machine_reading(machine: MachineSpec, at_ms: int, devices: Iterator[DeviceReading]) -> MachineReading:
    return MachineReading(
        machine.name,
        at_ms,
        machine.driver_version,
        machine.cuda_version,
        str(machine.mig_strategy),
        tuple(devices),
    )
