"""libnvidia-ml.so.1 as the unmodified nvidia-ml-py sees it: values, errors, views, handles."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuyard.fakegpu.publish import Publisher
from gpuyard.fakegpu.reading import Health
from tests.fakegpu.readings import MIB, a_device, a_machine, a_process

Show = Callable[..., Any]


def only(pynvml: Any) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(0)


# ------------------------------------------------------------------------------------------------------- coverage


def test_every_function_nvidia_ml_py_knows_is_there(pynvml: Any, library: Path) -> None:
    source = Path(pynvml.__file__).read_text()
    names = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"', source))
    loaded = ctypes.CDLL(str(library))
    assert len(names) > 300
    assert [name for name in sorted(names) if not hasattr(loaded, name)] == []


# --------------------------------------------------------------------------------------------------------- values


def test_the_machine(nvml: Show) -> None:
    pynvml = nvml(a_machine(a_device()))
    assert pynvml.nvmlSystemGetDriverVersion() == "570.195.03"
    assert pynvml.nvmlSystemGetCudaDriverVersion() == 12080
    assert pynvml.nvmlSystemGetNVMLVersion() == "12.570.195.03"


def test_who_a_device_is(nvml: Show) -> None:
    pynvml = nvml(a_machine(a_device(0), a_device(1)))
    device = pynvml.nvmlDeviceGetHandleByIndex(1)
    assert pynvml.nvmlDeviceGetName(device) == "NVIDIA A100-SXM4-80GB"
    assert pynvml.nvmlDeviceGetUUID(device) == "GPU-00000001-1111-2222-3333-444444444444"
    assert pynvml.nvmlDeviceGetSerial(device) == "1320000000002"
    assert pynvml.nvmlDeviceGetMinorNumber(device) == 1
    assert pynvml.nvmlDeviceGetIndex(device) == 1
    assert pynvml.nvmlDeviceGetCudaComputeCapability(device) == (8, 0)
    assert pynvml.nvmlDeviceGetArchitecture(device) == pynvml.NVML_DEVICE_ARCH_AMPERE
    assert pynvml.nvmlDeviceGetNumGpuCores(device) == 6912
    pci = pynvml.nvmlDeviceGetPciInfo(device)
    assert (pci.busId, pci.busIdLegacy, pci.bus, pci.pciDeviceId) == ("00000000:08:00.0", "0000:08:00.0", 8, 0x20B210DE)


def test_a_device_is_found_by_all_its_names(nvml: Show) -> None:
    pynvml = nvml(a_machine(a_device(0), a_device(1)))
    device = pynvml.nvmlDeviceGetHandleByIndex(1)
    found = [
        pynvml.nvmlDeviceGetHandleByUUID("GPU-00000001-1111-2222-3333-444444444444"),
        pynvml.nvmlDeviceGetHandleBySerial("1320000000002"),
        *(pynvml.nvmlDeviceGetHandleByPciBusId(name) for name in ("00000000:08:00.0", "0000:08:00.0", "08:00.0")),
    ]
    address = ctypes.cast(device, ctypes.c_void_p).value
    assert [ctypes.cast(one, ctypes.c_void_p).value for one in found] == [address] * 5


def test_memory_in_both_versions(nvml: Show) -> None:
    pynvml = nvml(a_machine(a_device()))
    old = pynvml.nvmlDeviceGetMemoryInfo(only(pynvml))
    new = pynvml.nvmlDeviceGetMemoryInfo(only(pynvml), version=pynvml.nvmlMemory_v2)
    assert (old.total, old.used, old.free) == (81920 * MIB, (4096 + 767) * MIB, (81920 - 4096 - 767) * MIB)
    assert (new.total, new.used, new.reserved, new.free) == (81920 * MIB, 4096 * MIB, 767 * MIB, old.free)


def test_use_power_temperature_and_clocks(nvml: Show) -> None:
    pynvml = nvml(a_machine(a_device()))
    device = only(pynvml)
    rates = pynvml.nvmlDeviceGetUtilizationRates(device)
    assert (rates.gpu, rates.memory) == (37, 21)
    assert pynvml.nvmlDeviceGetEncoderUtilization(device)[0] == 3
    assert pynvml.nvmlDeviceGetDecoderUtilization(device)[0] == 4
    assert pynvml.nvmlDeviceGetPowerUsage(device) == 215_340
    assert pynvml.nvmlDeviceGetEnforcedPowerLimit(device) == 400_000
    assert pynvml.nvmlDeviceGetPowerManagementLimitConstraints(device) == [100_000, 400_000]
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(device) == 987_654_321
    assert pynvml.nvmlDeviceGetTemperature(device, pynvml.NVML_TEMPERATURE_GPU) == 55
    assert pynvml.nvmlDeviceGetTemperatureV(device, pynvml.NVML_TEMPERATURE_GPU) == 55
    assert pynvml.nvmlDeviceGetTemperatureThreshold(device, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN) == 89
    assert pynvml.nvmlDeviceGetPerformanceState(device) == 0
    assert pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_MEM) == 1593
    assert pynvml.nvmlDeviceGetMaxClockInfo(device, pynvml.NVML_CLOCK_SM) == 1410
    assert pynvml.nvmlDeviceGetPcieThroughput(device, pynvml.NVML_PCIE_UTIL_TX_BYTES) == 3 * 1024
    assert pynvml.nvmlDeviceGetCurrPcieLinkGeneration(device) == 4


def test_errors_that_were_counted(nvml: Show) -> None:
    pynvml = nvml(a_machine(a_device()))
    device = only(pynvml)
    corrected, uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    now, ever = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC
    totals = [
        pynvml.nvmlDeviceGetTotalEccErrors(device, kind, when)
        for when in (now, ever)
        for kind in (corrected, uncorrected)
    ]
    assert totals == [2, 0, 5, 1]
    assert pynvml.nvmlDeviceGetRemappedRows(device) == (1, 2, 0, 0)
    assert pynvml.nvmlDeviceGetPcieReplayCounter(device) == 7


def test_field_values(nvml: Show) -> None:
    pynvml = nvml(a_machine(a_device()))
    ids = [
        pynvml.NVML_FI_DEV_MEMORY_TEMP,
        pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
        pynvml.NVML_FI_DEV_POWER_INSTANT,
        pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL,
        pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT,
        pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES,
        pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES,
    ]
    values = pynvml.nvmlDeviceGetFieldValues(only(pynvml), ids)
    assert [(value.nvmlReturn, value.value.ullVal) for value in values] == [
        (0, number) for number in (61, 987_654_321, 215_340, 5, 12, 5000, 5001)
    ]


def test_a_product_nobody_knows_has_its_name_and_what_is_read_off_it(nvml: Show) -> None:
    pynvml = nvml(a_machine(a_device(product="Home-made 9000")))
    device = only(pynvml)
    assert pynvml.nvmlDeviceGetName(device) == "Home-made 9000"
    assert pynvml.nvmlDeviceGetUtilizationRates(device).gpu == 37
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetMaxClockInfo(device, pynvml.NVML_CLOCK_SM)


# ------------------------------------------------------------------------------------------------------ processes


def test_processes_by_kind(nvml: Show) -> None:
    running = (
        a_process(11),
        a_process(12, kind="G", memory_bytes=7 * MIB),
        a_process(13, kind="M", memory_bytes=9 * MIB, name="/usr/bin/trainer"),
    )
    pynvml = nvml(a_machine(a_device(processes=running)))
    device = only(pynvml)
    compute = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
    assert [(one.pid, one.usedGpuMemory) for one in compute] == [(11, 2048 * MIB), (13, 9 * MIB)]
    assert {one.gpuInstanceId for one in compute} == {0xFFFFFFFF}
    assert [one.pid for one in pynvml.nvmlDeviceGetGraphicsRunningProcesses(device)] == [12]
    assert [one.pid for one in pynvml.nvmlDeviceGetMPSComputeRunningProcesses(device)] == [13]
    assert pynvml.nvmlSystemGetProcessName(13) == "/usr/bin/trainer"


def test_what_each_process_uses(nvml: Show) -> None:
    pynvml = nvml(a_machine(a_device(processes=(a_process(11, sm_percent=30, memory_percent=20),))))
    (sample,) = pynvml.nvmlDeviceGetProcessUtilization(only(pynvml), 0)
    assert (sample.pid, sample.smUtil, sample.memUtil, sample.timeStamp) == (11, 30, 20, 1_700_000_000_000_000)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetProcessUtilization(only(pynvml), sample.timeStamp)


# --------------------------------------------------------------------------------------------------------- errors


def test_nothing_works_before_init(pynvml: Any, publisher: Publisher) -> None:
    publisher.write(a_machine(a_device()))
    count = ctypes.c_uint()
    loaded = ctypes.CDLL("libnvidia-ml.so.1")
    assert loaded.nvmlDeviceGetCount_v2(ctypes.byref(count)) == pynvml.NVML_ERROR_UNINITIALIZED
    assert loaded.nvmlShutdown() == pynvml.NVML_ERROR_UNINITIALIZED
    assert loaded.nvmlDeviceGetVgpuMetadata(None, None, None) == pynvml.NVML_ERROR_UNINITIALIZED


def test_init_counts(nvml: Show) -> None:
    pynvml = nvml(a_machine(a_device()))
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() == 1


def test_arguments_that_are_wrong(nvml: Show) -> None:
    pynvml = nvml(a_machine(a_device()))
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetHandleByIndex(1)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID("GPU-nobody")
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetClockInfo(only(pynvml), 99)
    loaded = ctypes.CDLL("libnvidia-ml.so.1")
    number = ctypes.c_uint()
    assert loaded.nvmlDeviceGetPowerUsage(ctypes.c_void_p(0x1234), ctypes.byref(number)) == 2
    assert loaded.nvmlDeviceGetPowerUsage(only(pynvml), None) == 2


def test_too_little_room(nvml: Show) -> None:
    pynvml = nvml(a_machine(a_device(processes=(a_process(1), a_process(2)))))
    loaded = ctypes.CDLL("libnvidia-ml.so.1")
    assert loaded.nvmlDeviceGetName(only(pynvml), ctypes.create_string_buffer(4), 4) == 7
    count = ctypes.c_uint(1)
    room = (ctypes.c_ubyte * 24)()
    assert loaded.nvmlDeviceGetComputeRunningProcesses_v3(only(pynvml), ctypes.byref(count), room) == 7
    assert count.value == 2


def test_a_structure_of_another_version(nvml: Show) -> None:
    pynvml = nvml(a_machine(a_device()))
    memory = pynvml.c_nvmlMemory_v2_t()
    memory.version = 0x05000028
    loaded = ctypes.CDLL("libnvidia-ml.so.1")
    code = loaded.nvmlDeviceGetMemoryInfo_v2(only(pynvml), ctypes.byref(memory))
    assert code == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_what_a_product_lacks(nvml: Show) -> None:
    pynvml = nvml(a_machine(a_device(product="Tesla T4", ecc=None, memory_temperature_c=None)))
    device = only(pynvml)
    for call in (pynvml.nvmlDeviceGetFanSpeed, pynvml.nvmlDeviceGetEccMode, pynvml.nvmlDeviceGetMigMode):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call(device)
    (value,) = pynvml.nvmlDeviceGetFieldValues(device, [pynvml.NVML_FI_DEV_MEMORY_TEMP])
    assert value.nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_a_device_off_the_bus_is_lost_and_comes_back(nvml: Show) -> None:
    pynvml = nvml(a_machine(a_device(0), a_device(1)))
    device = pynvml.nvmlDeviceGetHandleByIndex(1)
    nvml(a_machine(a_device(0), a_device(1, health=Health.OFF_THE_BUS)))
    assert pynvml.nvmlDeviceGetCount() == 2
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetHandleByIndex(1)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetTemperature(device, 0)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetComputeRunningProcesses(device)
    assert pynvml.nvmlDeviceGetUUID(device).startswith("GPU-00000001")
    nvml(a_machine(a_device(0), a_device(1)))
    assert pynvml.nvmlDeviceGetTemperature(device, 0) == 55


def test_a_handle_keeps_meaning_its_device_when_the_machine_changes(nvml: Show) -> None:
    pynvml = nvml(a_machine(a_device(0), a_device(1, temperature_c=71)))
    device = pynvml.nvmlDeviceGetHandleByIndex(1)
    nvml(a_machine(a_device(1, temperature_c=72)))
    assert pynvml.nvmlDeviceGetTemperature(device, 0) == 72
    nvml(a_machine(a_device(0)))
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetTemperature(device, 0)


def test_no_state_is_no_driver(pynvml: Any, publisher: Publisher) -> None:
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        pynvml.nvmlInit()


def test_a_file_of_another_version_says_so(pynvml: Any, publisher: Publisher) -> None:
    publisher.write(a_machine(a_device()))
    state = publisher.directory("node-a") / "state"
    bytes_ = bytearray(state.read_bytes())
    bytes_[8] = 200
    state.write_bytes(bytes_)
    with pytest.raises(pynvml.NVMLError_LibRmVersionMismatch):
        pynvml.nvmlInit()


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 8192])
def test_a_file_that_is_no_state_is_an_error_and_no_crash(pynvml: Any, publisher: Publisher, content: bytes) -> None:
    publisher.write(a_machine(a_device()))
    (publisher.directory("node-a") / "state").write_bytes(content)
    with pytest.raises(pynvml.NVMLError_Unknown):
        pynvml.nvmlInit()


# ----------------------------------------------------------------------------------------------------------- views


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        ("all", [0, 1, 2, 3]),
        ("2", [2]),
        ("3,1", [1, 3]),
        ("GPU-00000002-1111-2222-3333-444444444444", [2]),
        ("0,GPU-00000003-1111-2222-3333-444444444444", [0, 3]),
        ("none", []),
        ("17", []),
    ],
)
def test_a_container_sees_what_it_was_given(
    nvml: Show, monkeypatch: pytest.MonkeyPatch, visible: str, seen: list[int]
) -> None:
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", visible)
    pynvml = nvml(a_machine(*(a_device(index) for index in range(4))))
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    assert [pynvml.nvmlDeviceGetMinorNumber(handle) for handle in handles] == seen
    assert [pynvml.nvmlDeviceGetIndex(handle) for handle in handles] == list(range(len(seen)))


@pytest.mark.parametrize("visible", ["void", ""])
def test_a_container_without_gpus_has_no_driver(
    pynvml: Any, publisher: Publisher, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    publisher.write(a_machine(a_device()))
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", visible)
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        pynvml.nvmlInit()


def test_cuda_visible_devices_changes_nothing(nvml: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert nvml(a_machine(a_device(0), a_device(1))).nvmlDeviceGetCount() == 2


def test_more_than_eight_gpus(nvml: Show) -> None:
    pynvml = nvml(a_machine(*(a_device(index, temperature_c=30 + index) for index in range(32))))
    temperatures = [
        pynvml.nvmlDeviceGetTemperature(pynvml.nvmlDeviceGetHandleByIndex(index), 0)
        for index in range(pynvml.nvmlDeviceGetCount())
    ]
    assert temperatures == list(range(30, 62))


def test_machines_on_one_host_each_have_their_view(
    pynvml: Any, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, count in (("node-a", 1), ("node-b", 3)):
        publisher.write(a_machine(*(a_device(index) for index in range(count)), machine=name))
        monkeypatch.setenv("GPUYARD_FAKE_STATE", str(publisher.directory(name)))
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == count
        pynvml.nvmlShutdown()
