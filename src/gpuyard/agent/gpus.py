"""The GPUs of this machine, seen through NVML and nothing else.

Place in the flow: NVML (the driver's library, or the fake one) ─▶ **gpus** ─Gpu─▶ facts for the manager, names for
tasks, use for reports. Every question may be unanswered, as drivers and products differ; then there is a default.
Invariant: a GPU that was seen once keeps its place, also when it falls off the bus: shares name devices by place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec
import pynvml  # type: ignore[import-untyped]

from gpuyard.errors import AgentError, InputError
from gpuyard.fakegpu.faults import APPLICATION_XIDS
from gpuyard.fakegpu.products import product_named
from gpuyard.model.jobs import DeviceShare
from gpuyard.model.nodes import Device, MigSlices
from gpuyard.platform.clock import wall_ms

MIB: Final = 1 << 20
MAX_NVLINKS: Final = 18
MAX_EVENTS: Final = 64
"""At one look; what is left is seen at the next."""
SAMPLES_MS: Final = 4_000
"""Older samples of what a process does are no longer news."""
SWITCH: Final = "switch"


class MigInstance(msgspec.Struct, frozen=True):
    """One slice of a GPU that a task can be given."""

    profile: str
    uuid: str


class Gpu(msgspec.Struct, frozen=True):
    """One GPU. `links` names whom it reaches directly: bus ids of other GPUs, or a switch."""

    uuid: str
    model: str
    memory_mib: int
    bus_id: str = ""
    numa: int = 0
    healthy: bool = True
    is_cut: bool = False
    mig: tuple[MigInstance, ...] = ()
    links: frozenset[str] = frozenset()


class Nvml(Protocol):
    """What the agent asks its GPUs."""

    driver: str

    def gpus(self) -> tuple[Gpu, ...]: ...

    def used_percent(self, uuid: str) -> int | None: ...

    def used_by_process(self, uuid: str) -> dict[int, int] | None: ...


# ---------------------------------------------------------------------------------------------------- pure arithmetic


def devices(gpus: tuple[Gpu, ...]) -> tuple[Device, ...]:
    """As the scheduler counts them."""
    groups = link_groups(gpus)
    return tuple(
        Device(
            model=gpu.model,
            memory_mib=gpu.memory_mib,
            id=gpu.uuid,
            healthy=gpu.healthy,
            nvlink=groups[gpu.bus_id] if gpu.bus_id else 0,
            numa=gpu.numa,
            mig=_slices(gpu),
            shareable=not gpu.is_cut,
        )
        for gpu in gpus
    )


def _slices(gpu: Gpu) -> tuple[MigSlices, ...]:
    profiles = [instance.profile for instance in gpu.mig]
    return tuple(MigSlices(profile, profiles.count(profile)) for profile in sorted(set(profiles)))


def link_groups(gpus: tuple[Gpu, ...]) -> dict[str, int]:
    """A number for each bus id: those who reach each other, directly or through a switch, have the same; 0 is alone."""
    groups: dict[str, int] = {}
    for number, gpu in enumerate(gpus, start=1):
        reached = {gpu.bus_id, *gpu.links}
        known = {groups[name] for name in reached if name in groups}
        joined = min(known, default=number if gpu.links else 0)
        groups.update((name, joined) for name, group in tuple(groups.items()) if group in known and group)
        groups.update((name, joined) for name in reached)
    return groups


def choose(gpus: tuple[Gpu, ...], shares: tuple[DeviceShare, ...], taken: frozenset[str]) -> tuple[str, ...]:
    """The ids of what these shares name; a slice is any of its kind that nobody has."""
    found: list[str] = []
    for share in shares:
        if not 0 <= share.device < len(gpus):
            raise AgentError(f"this machine has no GPU {share.device}; it has {len(gpus)}, counted from 0")
        gpu = gpus[share.device]
        if not share.mig:
            found.append(gpu.uuid)
            continue
        free = (one.uuid for one in gpu.mig if one.profile == share.mig and one.uuid not in {*taken, *found})
        chosen = next(free, None)
        if chosen is None:
            raise AgentError(f"no slice {share.mig} of GPU {share.device} is free")
        found.append(chosen)
    return tuple(found)


def model_name(name: str) -> str:
    """The short name of a product we know, else NVML's own in one word."""
    try:
        return product_named(name).key
    except InputError:
        return name.removeprefix("NVIDIA ").replace(" ", "-") or "gpu"


# --------------------------------------------------------------------------------------------------------------- NVML


class RealNvml:
    """The library that is loaded under NVML's name, which may be the fake one."""

    def __init__(self) -> None:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise AgentError(
                f"NVML cannot be used: {error}", fix="install the driver, or let it use fake GPUs"
            ) from None
        self.driver = str(_answer(pynvml.nvmlSystemGetDriverVersion, default=""))
        self._seen: list[Gpu] = []
        self._xids: set[str] = set()
        """GPUs that have reported a serious error since this agent started."""
        self._events = _answer(pynvml.nvmlEventSetCreate)
        self._registered: set[str] = set()

    def gpus(self) -> tuple[Gpu, ...]:
        """All that were ever there, with their health of now. Takes milliseconds a GPU; call it in a thread."""
        self._hear_events()
        for place in range(_answer(pynvml.nvmlDeviceGetCount, default=0)):
            self._look(place)
        self._seen = [self._with_health(gpu) for gpu in self._seen]
        return tuple(self._seen)

    def _look(self, place: int) -> None:
        handle = _answer(pynvml.nvmlDeviceGetHandleByIndex, place)
        uuid = _answer(pynvml.nvmlDeviceGetUUID, handle) if handle else None
        if uuid is None:
            return
        found = _gpu(handle, uuid)
        places = [at for at, gpu in enumerate(self._seen) if gpu.uuid == uuid]
        if places:
            self._seen[places[0]] = found
        else:
            self._seen.append(found)
        if self._events and uuid not in self._registered:
            self._registered.add(uuid)
            _answer(pynvml.nvmlDeviceRegisterEvents, handle, pynvml.nvmlEventTypeXidCriticalError, self._events)

    def _hear_events(self) -> None:
        for _ in range(MAX_EVENTS if self._events else 0):
            event = _answer(pynvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:
                return
            uuid = _answer(pynvml.nvmlDeviceGetUUID, event.device)
            if uuid is not None and event.eventData not in APPLICATION_XIDS:
                self._xids.add(uuid)

    def _with_health(self, gpu: Gpu) -> Gpu:
        handle = _answer(pynvml.nvmlDeviceGetHandleByUUID, gpu.uuid)
        lost = handle is None or _answer(pynvml.nvmlDeviceGetMemoryInfo, handle) is None
        healthy = not lost and gpu.uuid not in self._xids and not _has_bad_memory(handle)
        return msgspec.structs.replace(gpu, healthy=healthy)

    def used_percent(self, uuid: str) -> int | None:
        """How busy it is; of a slice nobody can tell."""
        handle = _answer(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        rates = _answer(pynvml.nvmlDeviceGetUtilizationRates, handle) if handle else None
        return None if rates is None else int(rates.gpu)

    def used_by_process(self, uuid: str) -> dict[int, int] | None:
        """How busy each process has kept it lately; None where the driver cannot tell them apart."""
        handle = _answer(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        if handle is None:
            return None
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, (wall_ms() - SAMPLES_MS) * 1000)
        except pynvml.NVMLError_NotFound:
            return {}
        except pynvml.NVMLError:
            return None
        newest = sorted(samples, key=lambda sample: int(sample.timeStamp))
        return {int(sample.pid): int(sample.smUtil) for sample in newest}


def _answer(function: Callable[..., Any], *arguments: Any, default: Any = None) -> Any:  # noqa: ANN401 - NVML has no types
    """What NVML says; the default where it does not know, does not support it, or the GPU is lost."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return default


def _gpu(handle: Any, uuid: str) -> Gpu:  # noqa: ANN401
    memory = _answer(pynvml.nvmlDeviceGetMemoryInfo, handle)
    mode = _answer(pynvml.nvmlDeviceGetMigMode, handle, default=(0, 0))
    bus = _answer(pynvml.nvmlDeviceGetPciInfo, handle)
    return Gpu(
        uuid=uuid,
        model=model_name(str(_answer(pynvml.nvmlDeviceGetName, handle, default=""))),
        memory_mib=memory.total // MIB if memory is not None else 0,
        bus_id=_bus_id(bus) if bus is not None else "",
        numa=max(_answer(pynvml.nvmlDeviceGetNumaNodeId, handle, default=0), 0),
        is_cut=bool(mode[0]),
        mig=_instances(handle) if mode[0] else (),
        links=_links(handle),
    )


def _bus_id(bus: Any) -> str:  # noqa: ANN401
    text = bus.busId.decode() if isinstance(bus.busId, bytes) else str(bus.busId)
    return text.lower()


def _instances(handle: Any) -> tuple[MigInstance, ...]:  # noqa: ANN401
    found = []
    for number in range(_answer(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle, default=0)):
        instance = _answer(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        uuid = _answer(pynvml.nvmlDeviceGetUUID, instance) if instance else None
        name = str(_answer(pynvml.nvmlDeviceGetName, instance, default="")) if instance else ""
        if uuid is not None and "MIG " in name:
            found.append(MigInstance(name.rpartition("MIG ")[2], uuid))
    return tuple(found)


def _links(handle: Any) -> frozenset[str]:  # noqa: ANN401
    found = set()
    for link in range(MAX_NVLINKS):
        state = _answer(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            break
        if state == pynvml.NVML_FEATURE_ENABLED:
            kind = _answer(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link, default=0)
            other = _answer(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            is_switch = kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
            found.add(SWITCH if is_switch or other is None else _bus_id(other))
    return frozenset(found)


def _has_bad_memory(handle: Any) -> bool:  # noqa: ANN401
    """Errors that could not be corrected since the last reset, or rows that could not be replaced."""
    uncorrected = _answer(
        pynvml.nvmlDeviceGetTotalEccErrors,
        handle,
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        pynvml.NVML_VOLATILE_ECC,
        default=0,
    )
    rows = _answer(pynvml.nvmlDeviceGetRemappedRows, handle, default=(0, 0, 0, 0))
    return bool(uncorrected or rows[3])


class NoNvml:
    """A machine without GPUs, real or fake."""

    driver = ""

    def gpus(self) -> tuple[Gpu, ...]:
        return ()

    def used_percent(self, uuid: str) -> int | None:
        return None

    def used_by_process(self, uuid: str) -> dict[int, int] | None:
        return None


class Yard:
    """The GPUs as the runtime needs them: names for shares, and how tasks see fake ones."""

    def __init__(self, nvml: Nvml, variables: Mapping[str, str]) -> None:
        self.nvml = nvml
        self.gpus = nvml.gpus()
        self._variables = variables

    def choose(self, shares: tuple[DeviceShare, ...], taken: frozenset[str]) -> tuple[str, ...]:
        return choose(self.gpus, shares, taken)

    def variables(self) -> Mapping[str, str]:
        return self._variables
