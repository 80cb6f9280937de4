"""How GPUs are wired, and that NVML and nvidia-smi wire them the same way."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.fakegpu import build
from gpuyard.fakegpu.config import fleet_of
from gpuyard.fakegpu.engine import Engine
from gpuyard.fakegpu.links import GPUS_PER_SWITCH, Level, Seat, closeness, level, seats
from gpuyard.fakegpu.publish import Publisher
from gpuyard.fakegpu.reading import MachineReading


def test_eight_gpus_of_two_processors_hang_on_four_switches() -> None:
    assert seats(8, 2) == (
        *(Seat(0, 0), Seat(0, 0), Seat(0, 1), Seat(0, 1)),
        *(Seat(1, 2), Seat(1, 2), Seat(1, 3), Seat(1, 3)),
    )


@given(gpus=st.integers(0, 62), numa_nodes=st.integers(1, 8))
def test_every_gpu_has_a_seat_and_no_switch_spans_processors(gpus: int, numa_nodes: int) -> None:
    found = seats(gpus, numa_nodes)
    assert len(found) == gpus
    of_processor = [sum(seat.numa_node == node for seat in found) for node in range(numa_nodes)]
    assert max(of_processor) - min(of_processor) <= 1
    for switch in {seat.pcie_switch for seat in found}:
        own = [seat for seat in found if seat.pcie_switch == switch]
        assert len({seat.numa_node for seat in own}) == 1
        assert len(own) <= GPUS_PER_SWITCH


def test_the_closer_the_better_and_nvlink_is_best() -> None:
    ways = [closeness(way, 0) for way in (Level.SAME_GPU, Level.ONE_SWITCH, Level.ONE_PROCESSOR, Level.MACHINE)]
    assert ways == sorted(ways, reverse=True)
    assert closeness(Level.MACHINE, 1) > closeness(Level.SAME_GPU, 0)


def reading_of(file: str) -> MachineReading:
    return next(Engine(fleet_of(file)).readings())


MIXED = """
nodes:
  node-a:
    gpu-product: T4
    gpus: [{}, {}, {gpu-product: A100}, {gpu-product: A100}, {gpu-product: L40S}, {}, {}]
"""


def test_the_file_says_how_many_processors_there_are() -> None:
    one = reading_of("pools: {a: {nodes: 1, gpus: 8, product: T4, numa-nodes: 1}}")
    usual = reading_of("pools: {a: {nodes: 1, gpus: 8, product: T4}}")
    assert {device.numa_node for device in one.devices} == {0}
    assert [device.numa_node for device in usual.devices] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_nvml_wires_the_machine_as_the_model_does(nvml: Callable[..., Any]) -> None:
    machine = reading_of(MIXED)
    pynvml = nvml(machine)
    handles = [pynvml.nvmlDeviceGetHandleByIndex(device.index) for device in machine.devices]
    for one, device in zip(handles, machine.devices, strict=True):
        near = pynvml.nvmlDeviceGetMemoryAffinity(one, 1, pynvml.NVML_AFFINITY_SCOPE_NODE)
        assert list(near) == [1 << device.numa_node]
        for other, second in zip(handles, machine.devices, strict=True):
            if device is not second:
                way = level(Seat(device.numa_node, device.pcie_switch), Seat(second.numa_node, second.pcie_switch))
                assert pynvml.nvmlDeviceGetTopologyCommonAncestor(one, other) == way
    nearest = pynvml.nvmlDeviceGetTopologyNearestGpus(handles[0], Level.ONE_SWITCH)
    assert [pynvml.nvmlDeviceGetUUID(handle) for handle in nearest] == [machine.devices[1].uuid]


def test_nvlinks_join_gpus_of_one_product_and_end_at_switches(nvml: Callable[..., Any]) -> None:
    machine = reading_of(MIXED)
    pynvml = nvml(machine)
    first, second, third = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in (2, 3, 4))
    by_nvlink = pynvml.NVML_P2P_CAPS_INDEX_NVLINK
    assert pynvml.nvmlDeviceGetP2PStatus(first, second, by_nvlink) == pynvml.NVML_P2P_STATUS_OK
    assert pynvml.nvmlDeviceGetP2PStatus(first, third, by_nvlink) == pynvml.NVML_P2P_STATUS_NOT_SUPPORTED
    assert pynvml.nvmlDeviceGetNvLinkRemotePciInfo(first, 7).busId == "00000000:F9:00.0"
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetNvLinkRemotePciInfo(third, 0)


def test_nvidia_smi_shows_the_same_matrix(publisher: Publisher) -> None:
    publisher.write(reading_of(MIXED))
    state = str(publisher.directory("node-a"))
    shown = subprocess.run(
        [build.nvidia_smi(), "topo", "-m"],
        env={**os.environ, "GPUYARD_FAKE_STATE": state},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rows = [line.split() for line in shown.splitlines() if line.startswith("GPU")]
    assert rows[0] == ["GPU0", "X", "PIX", "NODE", "SYS", "SYS", "SYS", "SYS", "0", "N/A"]
    assert rows[2] == ["GPU2", "NODE", "NODE", "X", "NV12", "SYS", "SYS", "SYS", "0", "N/A"]


@pytest.mark.parametrize("asked", ["0", "9", "two"])
def test_a_wrong_number_of_processors_is_told_with_its_place(asked: str, tmp_path: Path) -> None:
    from gpuyard.errors import InputError

    with pytest.raises(InputError, match=r"fleet\.yaml:1:"):
        fleet_of(f"pools: {{a: {{nodes: 1, product: T4, numa-nodes: {asked}}}}}")
