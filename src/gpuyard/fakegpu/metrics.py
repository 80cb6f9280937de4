"""The metrics of a DCGM exporter: the default counters, and what shows faults.

Place in the flow: exporter asks each **metric** for its number of each device. Names, types and units are the real
exporter's: MHz, degrees, watts, millijoules, per cent, MiB, shares of one.
Invariant: a number is one of the reading, brought to its unit and not rounded otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from operator import attrgetter
from typing import Final

import msgspec

from gpuyard.fakegpu.products import Product
from gpuyard.fakegpu.reading import DeviceReading, Health, MigInstance

OLDEST_PROFILED: Final = (7, 0)
OLDEST_REMAPPING: Final = (8, 0)

Value = int | str | None
OfDevice = Callable[[DeviceReading], Value]
OfInstance = Callable[[DeviceReading, MigInstance], Value]


class Needs(Enum):
    """What a product must have for a metric to be told of it."""

    NOTHING = "nothing"
    PROFILING = "counters of profiling and energy, which came with Volta"
    REMAPPING = "memory rows that can be remapped, which came with Ampere"
    NVLINK = "NVLinks"


def has(product: Product, needs: Needs) -> bool:
    match needs:
        case Needs.NOTHING:
            return True
        case Needs.PROFILING:
            return product.compute_capability >= OLDEST_PROFILED
        case Needs.REMAPPING:
            return product.compute_capability >= OLDEST_REMAPPING
        case Needs.NVLINK:
            return product.nvlinks > 0


class Metric(msgspec.Struct, frozen=True):
    """One metric: how it is read off a whole device and off a MIG instance. None as a value leaves the line out."""

    name: str
    kind: str
    help: str
    of_device: OfDevice
    of_instance: OfInstance | None
    needs: Needs = Needs.NOTHING

    @property
    def head(self) -> str:
        return f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.kind}\n"


def _watts(device: DeviceReading) -> str:
    return f"{device.power_mw // 1000}.{device.power_mw % 1000:03}000"


_RATIOS: Final = tuple(f"{percent // 100}.{percent % 100:02}0000" for percent in range(101))
"""What a percentage is as a share of one."""


def _ecc(field: str) -> OfDevice:
    """A counter of memory errors, which only products with ECC have."""
    return lambda device: None if device.ecc is None else getattr(device.ecc, field)


_HEALTH: Final = {Health.OK: 0, Health.UNHEALTHY: 20, Health.OFF_THE_BUS: 20}


def _whole_device(name: str, help_: str, read: OfDevice, kind: str = "gauge", needs: Needs = Needs.NOTHING) -> Metric:
    """Instances of a device show what the whole device does: they share its clock, heat and power."""
    return Metric(name, kind, help_, read, lambda device, _: read(device), needs)


def _never_on_mig(name: str, help_: str, read: OfDevice) -> Metric:
    return Metric(name, "gauge", help_, read, None)


def _own(
    name: str,
    help_: str,
    read: OfDevice,
    of_instance: Callable[[MigInstance], Value],
    needs: Needs = Needs.NOTHING,
) -> Metric:
    """An instance has its own number."""
    return Metric(name, "gauge", help_, read, lambda _, instance: of_instance(instance), needs)


XID_ERRORS: Final = _whole_device(
    "DCGM_FI_DEV_XID_ERRORS", "The newest Xid error of the device, 0 if there was none.", attrgetter("last_xid")
)

METRICS: Final = (
    _whole_device("DCGM_FI_DEV_SM_CLOCK", "Clock of the multiprocessors (in MHz).", attrgetter("clocks.sm_mhz")),
    _whole_device("DCGM_FI_DEV_MEM_CLOCK", "Clock of the memory (in MHz).", attrgetter("clocks.memory_mhz")),
    _whole_device("DCGM_FI_DEV_MEMORY_TEMP", "Temperature of the memory (in C).", attrgetter("memory_temperature_c")),
    _whole_device("DCGM_FI_DEV_GPU_TEMP", "Temperature of the GPU (in C).", attrgetter("temperature_c")),
    _whole_device("DCGM_FI_DEV_POWER_USAGE", "Power drawn (in W).", _watts),
    _whole_device(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "Energy drawn since the driver was loaded (in mJ).",
        attrgetter("energy_mj"),
        "counter",
        Needs.PROFILING,
    ),
    _whole_device(
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "Retries on the PCIe link.", attrgetter("pcie_replays"), "counter"
    ),
    _never_on_mig("DCGM_FI_DEV_GPU_UTIL", "Utilisation of the GPU (in %).", attrgetter("gpu_percent")),
    _never_on_mig("DCGM_FI_DEV_MEM_COPY_UTIL", "Utilisation of the memory (in %).", attrgetter("memory_percent")),
    _never_on_mig("DCGM_FI_DEV_ENC_UTIL", "Utilisation of the video encoder (in %).", attrgetter("encoder_percent")),
    _never_on_mig("DCGM_FI_DEV_DEC_UTIL", "Utilisation of the video decoder (in %).", attrgetter("decoder_percent")),
    XID_ERRORS,
    _own(
        "DCGM_FI_DEV_FB_FREE",
        "Frame buffer memory that is free (in MiB).",
        lambda device: device.memory_free_bytes >> 20,
        lambda instance: (instance.memory_total_bytes - instance.memory_used_bytes) >> 20,
    ),
    _own(
        "DCGM_FI_DEV_FB_USED",
        "Frame buffer memory in use (in MiB).",
        lambda device: device.memory_used_bytes >> 20,
        lambda instance: instance.memory_used_bytes >> 20,
    ),
    _own(
        "DCGM_FI_DEV_FB_RESERVED",
        "Frame buffer memory the driver keeps for itself (in MiB).",
        lambda device: device.memory_reserved_bytes >> 20,
        lambda _: 0,
    ),
    _whole_device(
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        "Data moved over all NVLinks (in MiB).",
        lambda device: device.nvlink_bytes >> 20,
        "counter",
        Needs.NVLINK,
    ),
    _whole_device("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "State of the vGPU licence.", lambda _: 0),
    _whole_device(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "Memory rows remapped for errors that could not be corrected.",
        attrgetter("remapped_rows_uncorrected"),
        "counter",
        Needs.REMAPPING,
    ),
    _whole_device(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "Memory rows remapped for errors that were corrected.",
        attrgetter("remapped_rows_corrected"),
        "counter",
        Needs.REMAPPING,
    ),
    _whole_device(
        "DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether remapping a row has failed.", lambda _: 0, needs=Needs.REMAPPING
    ),
    _own(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "Share of the time in which the graphics engine is active.",
        lambda device: _RATIOS[device.gpu_percent],
        lambda instance: _RATIOS[instance.gpu_percent],
        Needs.PROFILING,
    ),
    _own(
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "Share of the cycles in which the tensor pipe is active.",
        lambda device: _RATIOS[device.tensor_percent],
        lambda instance: _RATIOS[instance.tensor_percent],
        Needs.PROFILING,
    ),
    _own(
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "Share of the cycles in which the memory sends or receives.",
        lambda device: _RATIOS[device.memory_percent],
        lambda instance: _RATIOS[instance.memory_percent],
        Needs.PROFILING,
    ),
    _whole_device(
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        "Sent over PCIe (in bytes/s).",
        attrgetter("pcie_tx_bytes_per_s"),
        needs=Needs.PROFILING,
    ),
    _whole_device(
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        "Received over PCIe (in bytes/s).",
        attrgetter("pcie_rx_bytes_per_s"),
        needs=Needs.PROFILING,
    ),
    # Not in the exporter's default set, but without them a fault would not show here.
    _whole_device(
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        "Single-bit memory errors since the driver was loaded.",
        _ecc("volatile_corrected"),
        "counter",
    ),
    _whole_device(
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "Double-bit memory errors since the driver was loaded.",
        _ecc("volatile_uncorrected"),
        "counter",
    ),
    _whole_device(
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "Why the clocks are lowered (a bit mask).", attrgetter("throttle_reasons")
    ),
)

HEALTH_STATUS: Final = Metric(
    "DCGM_EXP_GPU_HEALTH_STATUS",
    "gauge",
    "Health of the device: 0 is good, 20 has failed.",
    lambda device: _HEALTH[device.health],
    lambda device, _: _HEALTH[device.health],
)

ALL_METRICS: Final = (*METRICS, HEALTH_STATUS)
ALSO_OF_LOST: Final = (XID_ERRORS, HEALTH_STATUS)
"""What is still known of a device that has fallen off the bus; every other field of it is blank and left out."""
