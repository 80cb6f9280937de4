"""What each face says about the GPUs of a machine, in one common form, so that faces can be compared.

A number is text in the coarsest unit any of the compared faces shows; a device that is lost says nothing but its id.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from gpuyard.fakegpu import build
from gpuyard.fakegpu.exporter import exposition
from gpuyard.fakegpu.reading import MachineReading

MIB = 1 << 20
LOST = 15
NOT_SUPPORTED = 3
NOTHING = "none"
"""What a device does not have, or does not tell while it is cut into instances."""


class DeviceSaid(msgspec.Struct, frozen=True):
    """What a face says about a device that answers."""

    gpu_percent: str
    memory_percent: str
    used_mib: str
    free_mib: str
    celsius: str
    centiwatts: str
    sm_mhz: str
    memory_mhz: str
    corrected: str
    uncorrected: str


class InstanceSaid(msgspec.Struct, frozen=True):
    gpu_instance: str
    used_mib: str
    free_mib: str


class Said(msgspec.Struct, frozen=True):
    """What a face says about a machine. A device cut into instances has no line of its own in the exporter."""

    devices: dict[str, DeviceSaid]
    lost: frozenset[str]
    instances: dict[str, list[InstanceSaid]]


class Programs(msgspec.Struct, frozen=True):
    """What only some of the faces tell: processes with their MiB, and energy in millijoules."""

    processes: frozenset[tuple[str, str, str]]
    energies: dict[str, str]


# ------------------------------------------------------------------------------------------------------------- NVML


class MemoryV2(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class ProcessInfo(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class LostError(Exception):
    pass


class Nvml:
    """The library, asked as programs ask it."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(build.library()))

    @contextmanager
    def machine(self, state: Path) -> Iterator[None]:
        before = os.environ.get("GPUYARD_FAKE_STATE")
        os.environ["GPUYARD_FAKE_STATE"] = str(state)
        assert self._library.nvmlInitWithFlags(0) == 0
        try:
            yield
        finally:
            self._library.nvmlShutdown()
            os.environ.pop("GPUYARD_FAKE_STATE")
            if before is not None:
                os.environ["GPUYARD_FAKE_STATE"] = before

    def number(self, name: str, *arguments: Any, kind: Any = ctypes.c_uint) -> str:
        """The last argument of nearly all calls is where the answer goes."""
        into = kind()
        code = getattr(self._library, name)(*arguments, ctypes.byref(into))
        if code == LOST:
            raise LostError
        if code == NOT_SUPPORTED:
            return NOTHING
        assert code == 0, (name, code)
        return str(into.value)

    def handle(self, index: int) -> ctypes.c_void_p:
        found = ctypes.c_void_p()
        code = self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(found))
        if code == LOST:
            raise LostError
        assert code == 0
        return found

    def text(self, name: str, device: ctypes.c_void_p) -> str:
        into = ctypes.create_string_buffer(96)
        code = getattr(self._library, name)(device, into, 96)
        if code == LOST:
            raise LostError
        assert code == 0, (name, code)
        return into.value.decode()

    def memory(self, device: ctypes.c_void_p) -> tuple[str, str]:
        into = MemoryV2(version=ctypes.sizeof(MemoryV2) | 2 << 24)
        assert self._library.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(into)) == 0
        return str(into.used // MIB), str(into.free // MIB)

    def rates(self, device: ctypes.c_void_p) -> tuple[str, str]:
        into = (ctypes.c_uint * 2)()
        code = self._library.nvmlDeviceGetUtilizationRates(device, into)
        return (NOTHING, NOTHING) if code == NOT_SUPPORTED else (str(into[0]), str(into[1]))

    def instances(self, device: ctypes.c_void_p) -> list[InstanceSaid]:
        found = []
        most = self.number("nvmlDeviceGetMaxMigDeviceCount", device)
        for index in range(0 if most == NOTHING else int(most)):
            handle = ctypes.c_void_p()
            if self._library.nvmlDeviceGetMigDeviceHandleByIndex(device, index, ctypes.byref(handle)) == 0:
                number = self.number("nvmlDeviceGetGpuInstanceId", handle)
                found.append(InstanceSaid(number, *self.memory(handle)))
        return found

    def device(self, device: ctypes.c_void_p) -> DeviceSaid:
        milliwatts = int(self.number("nvmlDeviceGetPowerUsage", device))
        errors = [
            self.number("nvmlDeviceGetTotalEccErrors", device, kind, 0, kind=ctypes.c_ulonglong) for kind in (0, 1)
        ]
        return DeviceSaid(
            *self.rates(device),
            *self.memory(device),
            self.number("nvmlDeviceGetTemperature", device, 0),
            f"{milliwatts / 1000:.2f}",
            self.number("nvmlDeviceGetClockInfo", device, 1),
            self.number("nvmlDeviceGetClockInfo", device, 2),
            *errors,
        )

    def programs(self, state: Path, uuids: list[str]) -> Programs:
        processes, energies = set(), {}
        with self.machine(state):
            for index, uuid in enumerate(uuids):
                try:
                    handle = self.handle(index)
                    energy = self.number("nvmlDeviceGetTotalEnergyConsumption", handle, kind=ctypes.c_ulonglong)
                except LostError:
                    continue
                if energy != NOTHING:
                    energies[uuid] = energy
                processes |= {(uuid, pid, mib) for pid, mib in self._processes(handle)}
        return Programs(frozenset(processes), energies)

    def _processes(self, device: ctypes.c_void_p) -> list[tuple[str, str]]:
        count, room = ctypes.c_uint(64), (ProcessInfo * 64)()
        assert self._library.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), room) == 0
        return [(str(one.pid), str(one.used // MIB)) for one in room[: count.value]]

    def said(self, state: Path, uuids: list[str]) -> Said:
        """A lost device does not even tell its id; it is known by its place."""
        devices, lost, instances = {}, set(), {}
        with self.machine(state):
            assert self.number("nvmlDeviceGetCount_v2") == str(len(uuids))
            for index, uuid in enumerate(uuids):
                try:
                    handle = self.handle(index)
                    assert self.text("nvmlDeviceGetUUID", handle) == uuid
                    devices[uuid] = self.device(handle)
                    instances[uuid] = self.instances(handle)
                except LostError:
                    lost.add(uuid)
        return Said(devices, frozenset(lost), instances)


# ------------------------------------------------------------------------------------------------------- nvidia-smi

FIELDS = (
    "uuid",
    "utilization.gpu",
    "utilization.memory",
    "memory.used",
    "memory.free",
    "temperature.gpu",
    "power.draw",
    "clocks.sm",
    "clocks.mem",
    "ecc.errors.corrected.volatile.total",
    "ecc.errors.uncorrected.volatile.total",
)


def smi_lines(state: Path, query: str) -> list[list[str]]:
    """The lines about devices that answer; of the others it complains."""
    command = [str(build.nvidia_smi()), query, "--format=csv,noheader,nounits"]
    environment = {**os.environ, "GPUYARD_FAKE_STATE": str(state)}
    told = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30)
    return [line.split(", ") for line in told.stdout.splitlines() if line.startswith("GPU-")]


def smi_processes(state: Path) -> frozenset[tuple[str, ...]]:
    return frozenset(map(tuple, smi_lines(state, "--query-compute-apps=gpu_uuid,pid,used_memory")))


def smi_said(state: Path) -> dict[str, DeviceSaid]:
    lines = smi_lines(state, f"--query-gpu={','.join(FIELDS)}")
    return {uuid: DeviceSaid(*(NOTHING if value == "[N/A]" else value for value in rest)) for uuid, *rest in lines}


# --------------------------------------------------------------------------------------------------------- exporter

SAMPLE = re.compile(r"^(\w+)\{(.*)\} (\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def samples(machine: MachineReading) -> list[tuple[str, dict[str, str], str]]:
    found = []
    for line in "".join(exposition([machine])).splitlines():
        if not line.startswith("#"):
            match = SAMPLE.match(line)
            assert match, line
            found.append((match[1], dict(LABEL.findall(match[2])), match[3]))
    return found


def exporter_said(machine: MachineReading) -> Said:
    """As a Prometheus would read it."""
    of_device: dict[str, dict[str, str]] = {}
    of_instance: dict[str, dict[str, dict[str, str]]] = {}
    for name, labels, value in samples(machine):
        short = name.removeprefix("DCGM_FI_DEV_")
        if "GPU_I_ID" in labels:
            of_instance.setdefault(labels["UUID"], {}).setdefault(labels["GPU_I_ID"], {})[short] = value
        else:
            of_device.setdefault(labels["UUID"], {})[short] = value
    lost = {uuid for uuid, values in of_device.items() if "FB_USED" not in values}
    lost |= {uuid for uuid, each in of_instance.items() if not any("FB_USED" in values for values in each.values())}
    devices = {uuid: _device(values) for uuid, values in of_device.items() if uuid not in lost}
    instances = {
        uuid: [InstanceSaid(number, values["FB_USED"], values["FB_FREE"]) for number, values in each.items()]
        for uuid, each in of_instance.items()
        if uuid not in lost
    }
    return Said(devices, frozenset(lost), instances)


def _device(values: dict[str, str]) -> DeviceSaid:
    return DeviceSaid(
        values["GPU_UTIL"],
        values["MEM_COPY_UTIL"],
        values["FB_USED"],
        values["FB_FREE"],
        values["GPU_TEMP"],
        f"{float(values['POWER_USAGE']):.2f}",
        values["SM_CLOCK"],
        values["MEM_CLOCK"],
        values.get("ECC_SBE_VOL_TOTAL", NOTHING),
        values.get("ECC_DBE_VOL_TOTAL", NOTHING),
    )


def exporter_energies(machine: MachineReading) -> dict[str, str]:
    """Every instance of a device tells the energy of the whole."""
    name = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    return {labels["UUID"]: value for metric, labels, value in samples(machine) if metric == name}
