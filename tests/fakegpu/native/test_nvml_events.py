"""Events: what happens to a device reaches those who registered for it, once and in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from gpuyard.fakegpu.reading import Ecc, Health
from tests.fakegpu.readings import a_device, a_machine

Show = Callable[..., Any]


def listening(nvml: Show, types: int | None = None) -> tuple[Any, Any, Any]:
    pynvml = nvml(a_machine(a_device(0), a_device(1)))
    events = pynvml.nvmlEventSetCreate()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceRegisterEvents(device, types or pynvml.nvmlEventTypeXidCriticalError, events)
    return pynvml, events, device


def xid(index: int, code: int, count: int = 1, **changes: Any) -> Any:
    return a_device(index, last_xid=code, xid_count=count, **changes)


def test_an_xid_reaches_who_registered_for_it(nvml: Show) -> None:
    pynvml, events, device = listening(nvml)
    nvml(a_machine(xid(0, 31), a_device(1)))
    event = pynvml.nvmlEventSetWait_v2(events, 1000)
    assert (event.eventType, event.eventData) == (pynvml.nvmlEventTypeXidCriticalError, 31)
    assert pynvml.nvmlDeviceGetUUID(event.device) == pynvml.nvmlDeviceGetUUID(device)
    assert event.gpuInstanceId == 0xFFFFFFFF
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 1)
    pynvml.nvmlEventSetFree(events)


def test_other_devices_other_types_and_the_past_are_left_out(nvml: Show) -> None:
    pynvml, events, _ = listening(nvml)
    nvml(a_machine(a_device(0, performance_state=8, ecc=Ecc(3, 0, 6, 1)), xid(1, 13)))
    later = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(pynvml.nvmlDeviceGetHandleByIndex(1), pynvml.nvmlEventTypeXidCriticalError, later)
    for one in (events, later):
        with pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlEventSetWait_v2(one, 1)


def test_errors_and_states_are_events_too(nvml: Show) -> None:
    pynvml, events, _ = listening(nvml, 0x1 | 0x2 | 0x4)
    nvml(a_machine(a_device(0, performance_state=8, ecc=Ecc(3, 1, 6, 2)), a_device(1)))
    seen = [pynvml.nvmlEventSetWait_v2(events, 100) for _ in range(3)]
    assert [(event.eventType, event.eventData) for event in seen] == [(0x1, 0), (0x2, 0), (0x4, 8)]


def test_several_at_once_keep_their_number(nvml: Show) -> None:
    pynvml, events, _ = listening(nvml)
    nvml(a_machine(xid(0, 31, 2), a_device(1)), a_machine(xid(0, 43, 3), a_device(1)))
    assert [pynvml.nvmlEventSetWait_v2(events, 100).eventData for _ in range(3)] == [31, 31, 43]


def test_waiting_ends_when_it_happens(nvml: Show) -> None:
    pynvml, events, _ = listening(nvml)
    later = threading.Timer(0.1, nvml, [a_machine(xid(0, 48), a_device(1))])
    later.start()
    begun = time.monotonic()
    event = pynvml.nvmlEventSetWait_v2(events, 5000)
    later.join()
    assert event.eventData == 48
    assert time.monotonic() - begun < 4  # Less than it was ready to wait.


def test_waiting_times_out_when_nothing_happens(nvml: Show) -> None:
    pynvml, events, _ = listening(nvml)
    begun = time.monotonic()
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 120)
    assert time.monotonic() - begun > 0.1


def test_a_lost_device_ends_the_waiting_after_its_last_event(nvml: Show) -> None:
    pynvml, events, _ = listening(nvml)
    nvml(a_machine(xid(0, 79, health=Health.OFF_THE_BUS), a_device(1)))
    assert pynvml.nvmlEventSetWait_v2(events, 100).eventData == 79
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlEventSetWait_v2(events, 100)


def test_a_device_tells_what_it_can_report(nvml: Show) -> None:
    pynvml = nvml(a_machine(a_device(0), a_device(1, ecc=None)))
    first, second = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 1))
    assert pynvml.nvmlDeviceGetSupportedEventTypes(first) == 0xF
    assert pynvml.nvmlDeviceGetSupportedEventTypes(second) == 0xC
    events = pynvml.nvmlEventSetCreate()
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceRegisterEvents(second, pynvml.nvmlEventTypeDoubleBitEccError, events)


def test_a_set_that_was_freed_is_no_set(nvml: Show) -> None:
    pynvml, events, _ = listening(nvml)
    pynvml.nvmlEventSetFree(events)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlEventSetWait_v2(events, 1)


def test_more_events_than_are_kept_lose_the_oldest(nvml: Show) -> None:
    pynvml, events, _ = listening(nvml)
    for count in range(1, 101):
        nvml(a_machine(xid(0, count, count), a_device(1)))
    assert pynvml.nvmlEventSetWait_v2(events, 100).eventData == 37
