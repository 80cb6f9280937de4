"""How long an NVML call takes, with one reader and with many, while the state is being written.

    python -m benchmarks.nvml_latency [--readers 1 64]

Each reader is a process of its own that times single calls of the library, through ctypes, so a part is Python's own.
All readers begin together and share the machine's cores, so the longest times are those of the kernel's scheduling.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path

import msgspec

from gpuyard.fakegpu import build
from gpuyard.fakegpu.fleet import MIB
from gpuyard.fakegpu.publish import Publisher
from gpuyard.fakegpu.reading import MachineReading
from tests.fakegpu.readings import a_device, a_machine, a_process

CALLS_PER_READER = 3000
GPUS = 8
PROCESSES = 4
WRITE_EVERY_S = 0.1
LIMIT_US = 20.0
CALLS = ("utilization", "memory", "temperature", "processes")


class Latency(msgspec.Struct, frozen=True):
    """What one call took, over all readers, in microseconds."""

    call: str
    readers: int
    median_us: float
    p99_us: float


def measure(readers: int, calls: int = CALLS_PER_READER) -> list[Latency]:
    """Time the calls with that many readers at once, while a writer publishes ten readings a second."""
    build.library()
    with tempfile.TemporaryDirectory() as root, Publisher(Path(root)) as publisher:
        publisher.write(reading(0))
        os.environ["GPUYARD_FAKE_STATE"] = str(publisher.directory("node-a"))
        context = multiprocessing.get_context("fork")
        with context.Pool(readers, initializer=prepare, initargs=(context.Barrier(readers),)) as pool:
            timed = pool.map_async(time_calls, [calls] * readers, chunksize=1)
            step = 0
            while not timed.ready():
                step += 1
                publisher.write(reading(step))
                timed.wait(WRITE_EVERY_S)
            samples = timed.get()
    return [summary(call, readers, [one[call] for one in samples]) for call in CALLS]


def reading(step: int) -> MachineReading:
    running = tuple(a_process(pid, memory_bytes=step * MIB) for pid in range(1, 1 + PROCESSES))
    return a_machine(*(a_device(index, gpu_percent=step % 100, processes=running) for index in range(GPUS)))


_all_ready: Barrier | None = None


def prepare(all_ready: Barrier) -> None:
    global _all_ready
    _all_ready = all_ready


def time_calls(turns: int) -> dict[str, list[int]]:
    """The nanoseconds of each call, of every kind in turn."""
    library = ctypes.CDLL(str(build.library()))
    device = ctypes.c_void_p()
    room = (ctypes.c_ubyte * 4096)()
    count = ctypes.c_uint()
    assert library.nvmlInit_v2() == 0
    assert library.nvmlDeviceGetHandleByIndex_v2(GPUS - 1, ctypes.byref(device)) == 0
    calls: dict[str, Callable[[], int]] = {
        "utilization": lambda: library.nvmlDeviceGetUtilizationRates(device, room),
        "memory": lambda: library.nvmlDeviceGetMemoryInfo(device, room),
        "temperature": lambda: library.nvmlDeviceGetTemperature(device, 0, room),
        "processes": lambda: library.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), room),
    }
    assert _all_ready is not None
    _all_ready.wait()
    taken: dict[str, list[int]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            count.value = 64
            begun = time.perf_counter_ns()
            code = call()
            taken[name].append(time.perf_counter_ns() - begun)
            assert code == 0
    return taken


def summary(call: str, readers: int, samples: list[list[int]]) -> Latency:
    times = sorted(time_ns for one in samples for time_ns in one)
    return Latency(call, readers, statistics.median(times) / 1000, times[len(times) * 99 // 100] / 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time NVML calls of the fake library.")
    parser.add_argument("--readers", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--calls", type=int, default=CALLS_PER_READER, help="of each kind, by each reader")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args()
    if options.json:
        print(
            msgspec.json.encode(
                [row for readers in options.readers for row in measure(readers, options.calls)]
            ).decode()
        )
        return
    print(f"{'call':<14}{'readers':>8}{'median us':>12}{'p99 us':>10}   limit {LIMIT_US:g} us in the median")
    for readers in options.readers:
        for row in measure(readers, options.calls):
            print(f"{row.call:<14}{row.readers:>8}{row.median_us:>12.2f}{row.p99_us:>10.2f}")


if __name__ == "__main__":
    main()
