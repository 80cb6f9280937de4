"""The metrics page of a DCGM exporter, for any number of machines.

Place in the flow: readings ─**exporter**─▶ text ─web─▶ Prometheus. Pure: readings in, chunks of text out.
Invariant: every number is one of the reading, in the exporter's unit, and HELP and TYPE stand once above the lines of
each metric. The text of 40 000 GPUs is made piece by piece, so that it is never held whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import compress
from typing import Final

import msgspec

from gpuyard.fakegpu.metrics import ALL_METRICS, ALSO_OF_LOST, XID_ERRORS, Metric, Needs, Value, has
from gpuyard.fakegpu.products import product_named
from gpuyard.fakegpu.reading import DeviceReading, Health, Holder, MachineReading, MigInstance
from gpuyard.fakegpu.xids import xid_text

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
HOSTNAME_LABELS: Final = ("Hostname", "hostname")
"""The exporter's releases spell this label with a capital; its newest source does not."""
LINES_PER_PIECE: Final = 2000


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
            known[name] = has(product_named(name), needs)
        return known[name]

    return meets


# ----------------------------------------------------------------------------------------------------------- lines


def exposition(machines: Iterable[MachineReading], hostname_label: str = HOSTNAME_LABELS[0]) -> Iterator[str]:
    """The whole page, in pieces of some hundred kilobytes."""
    everything = subjects_of(machines, hostname_label)
    answering = _only(everything, _answers)
    able = {needs: _only(answering, _meets(needs)) for needs in Needs}
    for metric in ALL_METRICS:
        head = metric.head
        for piece in _pieces(metric, everything if metric in ALSO_OF_LOST else able[metric.needs]):
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
