"""The metrics page of a DCGM exporter, for any number of machines.

Place in the flow: readings ─**exporter**─▶ text ─web─▶ Prometheus. Pure: readings in, chunks of text out.
Invariant: every number is one of the reading, in the exporter's unit, and HELP and TYPE stand once above the lines of
each metric. The text of 40 000 GPUs is made piece by piece, so that it is never held whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from itertools import compress
from operator import attrgetter
from typing import Final

import msgspec

from gpuyard.fakegpu.products import Product, product_named
from gpuyard.fakegpu.reading import DeviceReading, Health, Holder, MachineReading, MigInstance
from gpuyard.fakegpu.xids import xid_text

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
HOSTNAME_LABELS: Final = ("Hostname", "hostname")
"""The exporter's releases spell this label with a capital; its newest source does not."""
LINES_PER_PIECE: Final = 2000
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


# --------------------------------------------------------------------------------------------------------- metrics


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
_ALSO_OF_LOST: Final = (XID_ERRORS, HEALTH_STATUS)
"""What is still known of a device that has fallen off the bus; every other field of it is blank and left out."""


# ---------------------------------------------------------------------------------------------------------- labels


class Subjects(msgspec.Struct, frozen=True):
    """Everything that has lines of its own, beside its labels, which are written once for all metrics."""

    labels: list[str]
    devices: list[DeviceReading]
    instance_labels: list[str]
    instances: list[tuple[DeviceReading, MigInstance]]


_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def escaped(text: str) -> str:
    return text.translate(_ESCAPES) if '"' in text or "\\" in text or "\n" in text else text


def _before_mig(device: DeviceReading) -> str:
    return (
        f'gpu="{device.index}",UUID="{escaped(device.uuid)}",pci_bus_id="{device.pci_bus_id}",'
        f'device="nvidia{device.minor}",modelName="{escaped(device.product)}"'
    )


def _holder(holder: Holder | None) -> str:
    if holder is None:
        return 'container="",namespace="",pod=""'
    names = escaped(holder.container), escaped(holder.namespace), escaped(holder.pod)
    return 'container="{}",namespace="{}",pod="{}"'.format(*names)


def _of_instance(instance: MigInstance) -> str:
    return f'GPU_I_PROFILE="{instance.profile}",GPU_I_ID="{instance.gpu_instance}"'


def subjects_of(machines: Iterable[MachineReading], hostname_label: str) -> Subjects:
    """A device cut into instances is shown through them; without any it is shown itself."""
    found = Subjects([], [], [], [])
    for machine in machines:
        host = f'{hostname_label}="{escaped(machine.machine)}",DCGM_FI_DRIVER_VERSION="{machine.driver_version}"'
        for device in machine.devices:
            first = _before_mig(device)
            if not device.mig:
                found.labels.append(f"{first},{host},{_holder(device.holder)}")
                found.devices.append(device)
            for instance in device.mig:
                labels = f"{first},{_of_instance(instance)},{host},{_holder(instance.holder)}"
                found.instance_labels.append(labels)
                found.instances.append((device, instance))
    return found


def _only(subjects: Subjects, wanted: Callable[[DeviceReading], bool]) -> Subjects:
    """Without the devices that are not wanted, and their instances."""
    here = [wanted(device) for device in subjects.devices]
    instances_here = [wanted(device) for device, _ in subjects.instances]
    if all(here) and all(instances_here):
        return subjects
    return Subjects(
        list(compress(subjects.labels, here)),
        list(compress(subjects.devices, here)),
        list(compress(subjects.instance_labels, instances_here)),
        list(compress(subjects.instances, instances_here)),
    )


def _answers(device: DeviceReading) -> bool:
    return device.health is not Health.OFF_THE_BUS


def _meets(needs: Needs) -> Callable[[DeviceReading], bool]:
    """Each product is looked at once: there are thousands of devices, and few products."""
    known: dict[str, bool] = {}

    def meets(device: DeviceReading) -> bool:
        name = device.product
        if name not in known:
            known[name] = _has(product_named(name), needs)
        return known[name]

    return meets


def _has(product: Product, needs: Needs) -> bool:
    match needs:
        case Needs.NOTHING:
            return True
        case Needs.PROFILING:
            return product.compute_capability >= OLDEST_PROFILED
        case Needs.REMAPPING:
            return product.compute_capability >= OLDEST_REMAPPING
        case Needs.NVLINK:
            return product.nvlinks > 0


# ----------------------------------------------------------------------------------------------------------- lines


def exposition(machines: Iterable[MachineReading], hostname_label: str = HOSTNAME_LABELS[0]) -> Iterator[str]:
    """The whole page, in pieces of some hundred kilobytes."""
    everything = subjects_of(machines, hostname_label)
    answering = _only(everything, _answers)
    able = {needs: _only(answering, _meets(needs)) for needs in Needs}
    for metric in ALL_METRICS:
        head = metric.head
        for piece in _pieces(metric, everything if metric in _ALSO_OF_LOST else able[metric.needs]):
            if piece:
                yield head + piece
                head = ""


def _pieces(metric: Metric, subjects: Subjects) -> Iterator[str]:
    for start in range(0, len(subjects.devices), LINES_PER_PIECE):
        chosen = slice(start, start + LINES_PER_PIECE)
        yield _lines(metric, subjects.labels[chosen], subjects.devices[chosen])
    if metric.of_instance is None:
        return
    for start in range(0, len(subjects.instances), LINES_PER_PIECE):
        chosen = slice(start, start + LINES_PER_PIECE)
        yield _instance_lines(metric, subjects.instance_labels[chosen], subjects.instances[chosen])


def _lines(metric: Metric, labels: list[str], devices: list[DeviceReading]) -> str:
    if metric is XID_ERRORS:
        labels = _with_xids(labels, devices)
    return _joined(metric.name, labels, list(map(metric.of_device, devices)))


def _instance_lines(metric: Metric, labels: list[str], instances: list[tuple[DeviceReading, MigInstance]]) -> str:
    read = metric.of_instance
    assert read is not None
    if metric is XID_ERRORS:
        labels = _with_xids(labels, [device for device, _ in instances])
    return _joined(metric.name, labels, [read(*pair) for pair in instances])


def _joined(name: str, labels: list[str], values: list[Value]) -> str:
    """Joined from its parts in one go: making each of a million lines first would take twice as long."""
    if None in values:
        known = [value is not None for value in values]
        labels, values = list(compress(labels, known)), list(compress(values, known))
    parts = [name + "{", "", "} ", "", "\n"] * len(values)
    parts[1::5] = labels
    parts[3::5] = map(str, values)
    return "".join(parts)


def _with_xids(labels: list[str], devices: list[DeviceReading]) -> list[str]:
    codes = [device.last_xid for device in devices]
    return [f'{label},err_code="{code}",err_msg="{xid_text(code)}"' for label, code in zip(labels, codes, strict=True)]
