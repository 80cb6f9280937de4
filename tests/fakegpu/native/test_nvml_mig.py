"""MIG as NVML shows it: handles of instances, their parents, memory, attributes, profiles, views."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from gpuyard.fakegpu.reading import DeviceReading
from tests.fakegpu.readings import MIB, a_device, a_machine, a_process, an_instance

Show = Callable[..., Any]


def cut(index: int = 0, count: int = 3) -> DeviceReading:
    """A GPU cut into instances, with one process on the second."""
    return a_device(
        index,
        mig_enabled=True,
        mig=tuple(an_instance(one) for one in range(count)),
        processes=(a_process(77, mig_instance=1),),
    )


def same(one: Any, other: Any) -> bool:
    return ctypes.cast(one, ctypes.c_void_p).value == ctypes.cast(other, ctypes.c_void_p).value


def test_instances_of_a_device(nvml: Show) -> None:
    pynvml = nvml(a_machine(cut()))
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetMigMode(device) == [1, 1]
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(device) == 7
    instances = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index) for index in range(3)]
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, 3)
    assert [pynvml.nvmlDeviceGetGpuInstanceId(one) for one in instances] == [7, 8, 9]
    assert [pynvml.nvmlDeviceIsMigDeviceHandle(one).value for one in (device, *instances)] == [0, 1, 1, 1]
    assert same(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instances[2]), device)
    assert pynvml.nvmlDeviceGetName(instances[0]) == "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
    assert same(pynvml.nvmlDeviceGetHandleByUUID("MIG-00000002-aaaa-bbbb-cccc-dddddddddddd"), instances[2])


def test_what_an_instance_has(nvml: Show) -> None:
    pynvml = nvml(a_machine(cut()))
    instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(pynvml.nvmlDeviceGetHandleByIndex(0), 1)
    memory = pynvml.nvmlDeviceGetMemoryInfo(instance)
    assert (memory.total, memory.used) == (9728 * MIB, 12 * MIB)
    attributes = pynvml.nvmlDeviceGetAttributes(instance)
    assert (attributes.multiprocessorCount, attributes.memorySizeMB, attributes.gpuInstanceSliceCount) == (14, 9728, 1)
    (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(instance)
    assert (process.pid, process.gpuInstanceId, process.computeInstanceId) == (77, 8, 0)
    first = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(pynvml.nvmlDeviceGetHandleByIndex(0), 0)
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(first) == []
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetUtilizationRates(instance)


def test_a_device_in_mig_mode_has_no_utilisation_of_its_own(nvml: Show) -> None:
    pynvml = nvml(a_machine(cut()))
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetUtilizationRates(pynvml.nvmlDeviceGetHandleByIndex(0))


def test_profiles(nvml: Show) -> None:
    pynvml = nvml(a_machine(cut()))
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    smallest = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE)
    assert (smallest.id, smallest.sliceCount, smallest.instanceCount, smallest.memorySizeMB) == (19, 1, 7, 9728)
    largest = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE, version=2)
    assert (largest.sliceCount, largest.instanceCount, largest.name) == (7, 1, "MIG 7g.80gb")
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, smallest.id) == 4
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, pynvml.NVML_GPU_INSTANCE_PROFILE_8_SLICE)


def test_gpu_instances_and_compute_instances(nvml: Show) -> None:
    pynvml = nvml(a_machine(cut()))
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    instance = pynvml.nvmlDeviceGetGpuInstanceById(device, 8)
    info = pynvml.nvmlGpuInstanceGetInfo(instance)
    assert (info.id, info.profileId) == (8, 19)
    assert same(info.device, device)
    compute = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
    assert pynvml.nvmlComputeInstanceGetInfo(compute).id == 0
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetGpuInstanceById(device, 1)


def test_an_instance_that_was_destroyed_is_not_found(nvml: Show) -> None:
    pynvml = nvml(a_machine(cut()))
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    last = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, 2)
    nvml(a_machine(cut(count=2)))
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMemoryInfo(last)


def test_a_product_without_mig(nvml: Show) -> None:
    pynvml = nvml(a_machine(a_device(product="Tesla T4")))
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(device) == 0
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, 0)


@pytest.mark.parametrize("visible", ["1:2", "MIG-00000002-aaaa-bbbb-cccc-dddddddddddd"])
def test_a_container_sees_the_instance_it_was_given(nvml: Show, monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", visible)
    pynvml = nvml(a_machine(a_device(0), cut(1)))
    assert pynvml.nvmlDeviceGetCount() == 1
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetMinorNumber(device) == 1
    assert pynvml.nvmlDeviceGetGpuInstanceId(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, 0)) == 9
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, 1)
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(device) == []
