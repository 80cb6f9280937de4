"""The GPUs of this machine, seen through NVML and nothing else.

Place in the flow: NVML (the driver's library, or the fake one) ─▶ **library** ─Gpu─▶ agent, node part. Every question
may be unanswered, as drivers and products differ; then there is a default.
Invariant: a GPU that was seen once keeps its place, also when it falls off the bus: shares name devices by place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec
import pynvml  # type: ignore[import-untyped]

from gpuyard.errors import NvmlError
from gpuyard.fakegpu.faults import APPLICATION_XIDS
from gpuyard.nvml.gpus import SWITCH, Gpu, MigInstance, model_name
from gpuyard.platform.clock import wall_ms

MIB: Final = 1 << 20
MAX_NVLINKS: Final = 18
MAX_EVENTS: Final = 64
"""At one look; what is left is seen at the next."""
SAMPLES_MS: Final = 4_000
"""Older samples of what a process does are no longer news."""


class Nvml(Protocol):
    """What is asked of GPUs."""

    driver: str

    def gpus(self) -> tuple[Gpu, ...]: ...

    def used_percent(self, uuid: str) -> int | None: ...

    def used_by_process(self, uuid: str) -> dict[int, int] | None: ...


class RealNvml:
    """The library that is loaded under NVML's name, which may be the fake one."""

    def __init__(self) -> None:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlError(
                f"NVML cannot be used: {error}", fix="install the driver, or let it use fake GPUs"
            ) from None
        self.driver = str(_answer(pynvml.nvmlSystemGetDriverVersion, default=""))
        self._seen: list[Gpu] = []

    def close(self) -> None:
        _answer(pynvml.nvmlShutdown)

    def gpus(self) -> tuple[Gpu, ...]:
        """All that were ever there, with their health of now. Takes milliseconds a GPU; call it in a thread."""
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
        self._found(handle, uuid)

    def _found(self, handle: Any, uuid: str) -> None:  # noqa: ANN401 - NVML has no types
        """For those who want more of a GPU that is there."""

    def _with_health(self, gpu: Gpu) -> Gpu:
        handle = _answer(pynvml.nvmlDeviceGetHandleByUUID, gpu.uuid)
        lost = handle is None or _answer(pynvml.nvmlDeviceGetMemoryInfo, handle) is None
        return msgspec.structs.replace(gpu, healthy=not lost and not _has_bad_memory(handle))

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


class ListeningNvml(RealNvml):
    """Hears as well what GPUs report: one that has had a serious error is ill until this process ends."""

    def __init__(self) -> None:
        super().__init__()
        self._xids: set[str] = set()
        """GPUs that have reported one."""
        self._events = _answer(pynvml.nvmlEventSetCreate)
        self._registered: set[str] = set()

    def gpus(self) -> tuple[Gpu, ...]:
        self._hear_events()
        return super().gpus()

    def _found(self, handle: Any, uuid: str) -> None:  # noqa: ANN401
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
        seen = super()._with_health(gpu)
        return msgspec.structs.replace(seen, healthy=False) if gpu.uuid in self._xids else seen


class NoNvml:
    """A machine without GPUs, real or fake."""

    driver = ""

    def gpus(self) -> tuple[Gpu, ...]:
        return ()

    def used_percent(self, uuid: str) -> int | None:
        return None

    def used_by_process(self, uuid: str) -> dict[int, int] | None:
        return None


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
    name = str(_answer(pynvml.nvmlDeviceGetName, handle, default=""))
    return Gpu(
        uuid=uuid,
        model=model_name(name),
        memory_mib=memory.total // MIB if memory is not None else 0,
        bus_id=_bus_id(bus) if bus is not None else "",
        numa=max(_answer(pynvml.nvmlDeviceGetNumaNodeId, handle, default=0), 0),
        is_cut=bool(mode[0]),
        mig=_instances(handle) if mode[0] else (),
        links=_links(handle),
        name=name,
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
