"""All GPUs of a fleet as columns: how each is built, what it does now, and what has added up so far.

Place in the flow: engine ─**devices**─▶ render ─▶ MachineReading. A GPU's numbers hold from `since_ms` on; what adds up
(energy, use) and what drifts (temperature) is told for any later instant from there.
Invariant: energy is the integral of power to the microjoule, and `used` is never above what the GPU has.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

import numpy as np

from gpuyard.fakegpu.fleet import Fleet, GpuSpec
from gpuyard.fakegpu.load import NEVER, WHOLE_SHARE, Load
from gpuyard.fakegpu.physics import Bools, Build, Drive, Ints, answer, temperature
from gpuyard.fakegpu.products import MIG_COMPUTE_SLICES
from gpuyard.fakegpu.reading import Health

AMBIENT_C: Final = 26.0
AMBIENT_SPREAD_C: Final = 6
"""Machines stand in warmer and cooler places."""

_CARRIED: Final = (
    "since_ms", "energy_uj", "percent_ms", "load_percent", "power_mw", "target_c", "celsius",
    "health", "throttled", "lost_bytes", "last_xid", "xid_count", "ecc_volatile", "ecc_aggregate",
)  # fmt: skip
"""Columns that outlive a change of the fleet; the others follow from them and from the tasks."""

HEALTHS: Final = tuple(Health)
UNITS: Final = 1 + MIG_COMPUTE_SLICES
"""A GPU as a whole, and the instances it can be cut into."""
OFF_THE_BUS: Final = HEALTHS.index(Health.OFF_THE_BUS)


class Devices:
    """Columns over all GPUs, machine by machine in the order of the fleet."""

    def __init__(self, fleet: Fleet, at_ms: int) -> None:
        specs = [gpu for machine in fleet.machines for gpu in machine.gpus]
        self.specs: list[GpuSpec] = specs
        self.build: Final = _build(specs)
        self.installed_bytes: Final = _column(gpu.memory_bytes for gpu in specs)
        self.reserved_bytes: Final = _column(gpu.reserved_bytes for gpu in specs)
        size = len(specs)
        self.since_ms = np.full(size, at_ms, np.int64)
        self.next_ms = np.full(size, NEVER, np.int64)
        self.energy_uj = np.zeros(size, np.int64)
        self.percent_ms = np.zeros(size, np.int64)
        self.load_percent = np.zeros(size, np.int64)
        self.active = np.zeros(size, np.bool_)
        self.used_bytes = np.zeros(size, np.int64)
        self.power_mw = np.zeros(size, np.int64)
        self.sm_mhz = np.zeros(size, np.int64)
        self.reasons = np.zeros(size, np.int64)
        self.health = np.zeros(size, np.int64)
        self.throttled = np.zeros(size, np.bool_)
        self.lost_bytes = np.zeros(size, np.int64)
        self.last_xid = np.zeros(size, np.int64)
        self.xid_count = np.zeros(size, np.int64)
        self.ecc_volatile = np.zeros((size, 2), np.int64)
        self.ecc_aggregate = np.zeros((size, 2), np.int64)
        self.target_c = np.zeros(size, np.float64)
        self.celsius = np.zeros(size, np.float64)
        everyone = np.arange(size)
        self._answer(everyone)
        self.warm_up(everyone)

    def warm_up(self, gpus: Ints) -> None:
        """Let GPUs be as warm as what they do makes them in the end."""
        self.celsius[gpus] = self.target_c[gpus]

    def carry(self, old: Devices, old_gpus: Ints, gpus: Ints) -> None:
        """Take over what some GPUs of an older fleet did and have counted."""
        for name in _CARRIED:
            getattr(self, name)[gpus] = getattr(old, name)[old_gpus]

    def __len__(self) -> int:
        return len(self.specs)

    def settle(self, gpus: Ints, at_ms: Ints, load: Load, rows: Ints) -> None:
        """Close what held so far at an instant, each GPU at its own, and begin anew; `rows` are the tasks on them."""
        elapsed = at_ms - self.since_ms[gpus]
        self.energy_uj[gpus] += self.power_mw[gpus] * elapsed
        self.percent_ms[gpus] += self.load_percent[gpus] * elapsed
        self.celsius[gpus] = temperature(self.celsius[gpus], self.target_c[gpus], elapsed)
        self.since_ms[gpus] = at_ms
        self._take_load(gpus, load, rows)
        self._answer(gpus)

    def _take_load(self, gpus: Ints, load: Load, rows: Ints) -> None:
        """Sums over the tasks of each GPU; `gpus` ascend, so a task's GPU is found among them by bisection."""
        on = np.searchsorted(gpus, load.gpu[rows])
        size = len(gpus)
        present = self.present(gpus)
        percent, memory = _taken(on, size, load, rows)
        self.load_percent[gpus] = np.where(present, percent, 0)
        self.used_bytes[gpus] = np.where(present, np.minimum(memory, self.room_bytes(gpus)), 0)
        self.active[gpus] = present & (np.bincount(on, minlength=size) > 0)
        next_ms = np.full(size, NEVER, np.int64)
        np.minimum.at(next_ms, on, load.next_ms[rows])
        self.next_ms[gpus] = next_ms

    def _answer(self, gpus: Ints) -> None:
        drive = Drive(self.load_percent[gpus], self.active[gpus], self.throttled[gpus], self.present(gpus))
        given = answer(drive, self.build.of(gpus))
        self.power_mw[gpus] = given.power_mw
        self.sm_mhz[gpus] = given.sm_mhz
        self.reasons[gpus] = given.reasons
        self.target_c[gpus] = given.target_c

    def present(self, gpus: Ints) -> Bools:
        found: Bools = self.health[gpus] != OFF_THE_BUS
        return found

    def total_bytes(self, gpus: Ints) -> Ints:
        total: Ints = np.maximum(self.installed_bytes[gpus] - self.lost_bytes[gpus], self.reserved_bytes[gpus])
        return total

    def room_bytes(self, gpus: Ints) -> Ints:
        """What programs can use of the memory."""
        return self.total_bytes(gpus) - self.reserved_bytes[gpus]


def _build(specs: list[GpuSpec]) -> Build:
    return Build(
        idle_mw=_column(gpu.product.idle_watts * 1000 for gpu in specs),
        default_mw=_column(gpu.product.power_watts.default_watts * 1000 for gpu in specs),
        limit_mw=_column(gpu.power_limit_mw for gpu in specs),
        idle_sm_mhz=_column(gpu.product.idle_clocks.sm_mhz for gpu in specs),
        max_sm_mhz=_column(gpu.product.max_clocks.sm_mhz for gpu in specs),
        ambient_c=np.array([AMBIENT_C + zlib.crc32(gpu.uuid.encode()) % AMBIENT_SPREAD_C for gpu in specs], np.float64),
        busy_c=np.array([gpu.product.busy_celsius for gpu in specs], np.float64),
        slowdown_c=np.array([gpu.product.slowdown_celsius for gpu in specs], np.float64),
    )


def _column(values: Iterable[int]) -> Ints:
    return np.fromiter(values, np.int64)


def _taken(on: Ints, size: int, load: Load, rows: Ints) -> tuple[Ints, Ints]:
    """Per GPU: load in per cent and bytes of memory. Tasks on one instance share it, as those on a whole GPU do."""
    units = load.unit[rows]
    width = UNITS if units.any() else 1
    at = on * width + units if width > 1 else on
    share = np.zeros(size * width, np.int64)
    share[at] = load.share[rows]
    room = np.zeros(size * width, np.int64)
    room[at] = load.room[rows]
    percent = np.minimum(_summed(at, load.percent[rows], size * width), 100) * share
    memory = np.minimum(_summed(at, load.memory[rows], size * width), room)
    if width > 1:
        percent, memory = percent.reshape(size, width).sum(axis=1), memory.reshape(size, width).sum(axis=1)
    return percent // WHOLE_SHARE, memory


def _summed(where: Ints, amounts: Ints, size: int) -> Ints:
    """Sums; floats hold whole numbers below 2^53 exactly, and no GPU has so many bytes."""
    return np.bincount(where, weights=amounts, minlength=size).astype(np.int64)
