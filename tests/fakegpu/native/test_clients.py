"""Programs people use, unmodified, on the fake library: gpustat and nvitop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from gpuyard.fakegpu.publish import Publisher
from gpuyard.fakegpu.reading import Health
from tests.fakegpu.readings import a_device, a_machine, a_process, an_instance

pytestmark = pytest.mark.slow


def run(library: Path, *words: str) -> str:
    """What `python -m <words>` prints with the library on its path."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(library.parent), "COLUMNS": "120", "LINES": "40", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, env=env, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def publish_ten(publisher: Publisher) -> None:
    """Ten GPUs: the first with this very process on it, the last in MIG mode."""
    mine = (a_process(os.getpid(), sm_percent=30, memory_percent=20),)
    instances = tuple(an_instance(index) for index in range(2))
    devices = [a_device(index, processes=mine if index == 0 else ()) for index in range(9)]
    last = a_device(9, mig_enabled=True, mig=instances)
    publisher.write(a_machine(*devices, last, taken_at_ms=time.time_ns() // 1_000_000))


@pytest.mark.skipif(not find_spec("gpustat"), reason="gpustat is not installed")
def test_gpustat(library: Path, publisher: Publisher) -> None:
    publish_ten(publisher)
    told = json.loads(run(library, "gpustat", "--json"))
    assert told["driver_version"] == "570.195.03"
    assert len(told["gpus"]) == 10
    first = told["gpus"][0]
    assert first["name"] == "NVIDIA A100-SXM4-80GB"
    assert (first["utilization.gpu"], first["temperature.gpu"], first["power.draw"]) == (37, 55, 215)
    assert (first["memory.used"], first["memory.total"]) == (4096, 81920)
    (process,) = first["processes"]
    assert (process["pid"], process["gpu_memory_usage"]) == (os.getpid(), 2048)


@pytest.mark.skipif(not find_spec("gpustat"), reason="gpustat is not installed")
def test_gpustat_goes_on_when_a_gpu_is_lost(library: Path, publisher: Publisher) -> None:
    publisher.write(a_machine(a_device(0), a_device(1, health=Health.OFF_THE_BUS)))
    lines = run(library, "gpustat", "--no-color").splitlines()
    assert "NVIDIA A100-SXM4-80GB" in lines[1]
    assert "GPU is lost" in lines[2]


@pytest.mark.skipif(not find_spec("nvitop"), reason="nvitop is not installed")
def test_nvitop(library: Path, publisher: Publisher) -> None:
    publish_ten(publisher)
    screen = run(library, "nvitop", "-1", "--ascii")
    assert "Driver Version: 570.195.03" in screen
    assert "CUDA Driver Version: 12.8" in screen
    assert screen.count("A100-SXM4-80GB") == 10
    assert screen.count("4096MiB / 80.00GiB") == 10
    assert screen.count("1g.10gb") == 2
    (row,) = [line for line in screen.splitlines() if f" {os.getpid()} C " in line]
    assert "2048MiB  30    20" in row
