"""The state directory: one writer, whole readings, files that are replaced when a machine outgrows them."""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpuyard.errors import FakeGpuError
from gpuyard.fakegpu import build
from gpuyard.fakegpu.publish import Publisher
from tests.fakegpu.readings import a_device, a_machine, a_process

Show = Callable[..., Any]


def test_a_root_has_one_writer(tmp_path: Path) -> None:
    with Publisher(tmp_path), pytest.raises(FakeGpuError) as error:
        Publisher(tmp_path)
    assert str(error.value) == (
        f"{tmp_path} is written by another process\n  stop that one, or choose another state directory"
    )
    Publisher(tmp_path).close()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FakeGpuError) as error:
        Publisher(tmp_path / "file" / "root")
    assert str(error.value) == (
        f"{tmp_path}/file/root cannot be written: not a directory\n  choose another state directory"
    )
    (tmp_path / "node-a").touch()
    with Publisher(tmp_path) as publisher, pytest.raises(FakeGpuError, match="node-a/state cannot be written: "):
        publisher.write(a_machine(a_device()))


def test_a_directory_that_somebody_removed_is_made_again(nvml: Show, publisher: Publisher) -> None:
    pynvml = nvml(a_machine(a_device()))
    shutil.rmtree(publisher.directory("node-a"))
    nvml(a_machine(a_device(gpu_percent=64)))
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetUtilizationRates(pynvml.nvmlDeviceGetHandleByIndex(0)).gpu == 64


def test_a_machine_is_one_directory_with_one_file(tmp_path: Path) -> None:
    with Publisher(tmp_path) as publisher:
        for step in range(3):
            publisher.write(a_machine(a_device(), taken_at_ms=step))
        assert sorted(path.name for path in publisher.directory("node-a").iterdir()) == ["state"]


def test_a_reader_follows_a_machine_that_outgrows_its_file(nvml: Show) -> None:
    pynvml = nvml(a_machine(a_device(0)))
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    nvml(a_machine(*(a_device(index) for index in range(16))))
    assert pynvml.nvmlDeviceGetCount() == 16
    assert pynvml.nvmlDeviceGetUtilizationRates(device).gpu == 37


def test_a_reader_follows_a_writer_that_was_started_again(nvml: Show, publisher: Publisher, tmp_path: Path) -> None:
    pynvml = nvml(a_machine(a_device(0)))
    publisher.close()
    with Publisher(tmp_path) as second:
        second.write(a_machine(a_device(0, gpu_percent=99)))
        assert pynvml.nvmlDeviceGetUtilizationRates(pynvml.nvmlDeviceGetHandleByIndex(0)).gpu == 99


def test_a_removed_machine_has_no_driver(nvml: Show, publisher: Publisher) -> None:
    pynvml = nvml(a_machine(a_device(0)))
    publisher.remove("node-a")
    assert not publisher.directory("node-a").exists()
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        pynvml.nvmlDeviceGetCount()
    publisher.remove("node-a")


def test_threads_read_while_the_machine_grows(nvml: Show) -> None:
    pynvml = nvml(a_machine(a_device(0)))
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    done = threading.Event()

    def read(_: int) -> set[int]:
        seen = set()
        while not done.is_set():
            seen.add(pynvml.nvmlDeviceGetTemperature(device, 0))
        return seen

    with ThreadPoolExecutor(4) as pool:
        readers = pool.map(read, range(4))
        for count in range(1, 60):
            nvml(a_machine(*(a_device(index, temperature_c=40 + count) for index in range(count))))
        done.set()
        seen = set.union(*readers)
    assert seen <= {55, *range(41, 100)}


@pytest.mark.slow
def test_no_reader_ever_sees_half_a_step(publisher: Publisher, library: Path, pynvml: Any) -> None:
    """Every process of a reading uses the same memory, so a torn copy would show two numbers."""
    publisher.write(crowd(1))
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        watched = pool.map_async(watch, [300] * 2)
        step = 1
        while not watched.ready():
            step += 1
            publisher.write(crowd(step))
        sizes = [seen for seen, _ in watched.get()]
        torn = [bad for _, bad in watched.get()]
    assert torn == [0, 0]
    assert min(sizes) > 1, "the readers saw no change, so nothing was tried"


def crowd(memory_bytes: int) -> Any:
    return a_machine(a_device(processes=tuple(a_process(pid, memory_bytes=memory_bytes) for pid in range(1, 60))))


def watch(times: int) -> tuple[int, int]:
    """How many different steps were seen, and how many copies were torn."""
    ctypes.CDLL(str(build.library()), mode=ctypes.RTLD_GLOBAL)
    pynvml: Any = importlib.import_module("pynvml")
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    steps: set[int] = set()
    torn = 0
    for _ in range(times):
        sizes = {process.usedGpuMemory for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device)}
        torn += len(sizes) != 1
        steps |= sizes
    return len(steps), torn
