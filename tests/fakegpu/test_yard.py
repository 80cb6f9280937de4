"""The living fleet: steps, hot changes, processes that end, and what the commands may ask."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard.errors import GpuyardError
from gpuyard.fakegpu.config import fleet_of
from gpuyard.fakegpu.control import Break, DaemonStatus, Heal, Labels, Show, Start, Status, Stop, Use
from gpuyard.fakegpu.fleet import a_fleet
from gpuyard.fakegpu.profile import steady
from gpuyard.fakegpu.publish import Publisher
from gpuyard.fakegpu.reading import DeviceReading, Health, Holder
from gpuyard.fakegpu.yard import MAX_SHOWN, Yard

GIB = 1 << 30
NOW = 1_700_000_000_000


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = yard_of(tmp_path, 2)
    yield made
    made.close()


def yard_of(folder: Path, machines: int) -> Yard:
    fleet = a_fleet("A100", 2, [f"node-{number}" for number in range(1, machines + 1)])
    return Yard(fleet, Publisher(folder / "machines"), NOW)


def device(yard: Yard, node: str = "node-1", gpu: int = 0) -> DeviceReading:
    return yard.readings(node)[0].devices[gpu]


def status(yard: Yard, **asked: Any) -> DaemonStatus:
    found = yard.answer(Status(**asked))
    assert isinstance(found, DaemonStatus)
    return found


def states(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("machines/*/state"))


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(["sleep", "60"])
    yield started
    started.kill()
    started.wait()


def test_a_step_publishes_every_machine(yard: Yard, tmp_path: Path) -> None:
    yard.step(NOW + 250)
    assert states(tmp_path) == ["node-1", "node-2"]


def test_in_a_large_fleet_only_machines_asked_for_are_published(tmp_path: Path) -> None:
    yard = yard_of(tmp_path, MAX_SHOWN + 1)
    yard.step(NOW)
    assert states(tmp_path) == ["node-1"]
    assert yard.answer(Show("node-9")) == str(tmp_path / "machines" / "node-9")
    yard.step(NOW + 250)
    assert states(tmp_path) == ["node-1", "node-9"]
    assert [machine.state is None for machine in status(yard, limit=9).machines] == [False, *[True] * 7, False]
    yard.close()
    assert states(tmp_path) == []


def test_use_behind_our_back_ends_with_its_process(yard: Yard, process: subprocess.Popen[bytes]) -> None:
    yard.answer(Use("node-1", 0, process.pid, 4 * GIB, 30))
    used = device(yard)
    assert (used.memory_used_bytes, used.gpu_percent) == (4 * GIB, 30)
    assert [(seen.pid, seen.name) for seen in used.processes] == [(process.pid, "sleep")]
    process.kill()
    process.wait()
    yard.step(NOW + 250)
    assert (device(yard).memory_used_bytes, device(yard).processes) == (0, ())


def test_a_process_may_use_several_gpus_but_each_once(yard: Yard, process: subprocess.Popen[bytes]) -> None:
    yard.answer(Use("node-1", 0, process.pid, GIB))
    yard.answer(Use("node-1", 1, process.pid, GIB))
    with pytest.raises(GpuyardError, match=f"process {process.pid} uses GPU 0 of node-1 already"):
        yard.answer(Use("node-1", 0, process.pid, GIB))
    process.kill()
    process.wait()
    yard.step(NOW + 250)
    assert [device(yard, gpu=gpu).memory_used_bytes for gpu in (0, 1)] == [0, 0]


def test_who_uses_a_gpu_that_is_cut_names_the_instance(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    fleet = fleet_of("pools: {cut: {nodes: 1, gpus: 1, product: A100, mig: {3g.40gb: 2}}}", "fleet.yaml")
    yard = Yard(fleet, Publisher(tmp_path / "machines"), NOW)
    with pytest.raises(GpuyardError, match=r"say on which instance .*\n.*name it \(--mig\): 0 to 1"):
        yard.answer(Use("cut-1", 0, process.pid, GIB))
    yard.answer(Use("cut-1", 0, process.pid, GIB, mig=1))
    yard.answer(Start("cut-1", 0, "train", mig=0, memory_bytes=2 * GIB))
    assert [instance.memory_used_bytes for instance in device(yard, "cut-1").mig] == [2 * GIB, GIB]
    yard.close()


def test_a_process_that_ended_but_was_not_awaited_has_ended(yard: Yard, process: subprocess.Popen[bytes]) -> None:
    yard.answer(Use("node-1", 0, process.pid, GIB))
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yard.step(NOW + 250)
    assert device(yard).memory_used_bytes == 0


def test_a_process_that_is_not_there_uses_nothing(yard: Yard) -> None:
    with pytest.raises(GpuyardError, match="no process has the number 4194305"):
        yard.answer(Use("node-1", 0, 4_194_305, GIB))


def test_a_task_runs_until_it_is_stopped(yard: Yard, process: subprocess.Popen[bytes]) -> None:
    holder = Holder("team-a", "train-0", "main")
    yard.answer(Start("node-2", 1, "train", steady(70), process.pid, "python", 10 * GIB, holder))
    busy = device(yard, "node-2", 1)
    assert (busy.gpu_percent, busy.memory_used_bytes, busy.holder) == (70, 10 * GIB, holder)
    yard.answer(Stop("node-2", "train"))
    assert device(yard, "node-2", 1).gpu_percent == 0


def test_a_fault_shows_and_goes(yard: Yard) -> None:
    yard.answer(Break("node-1", 1, "xid:79", 5000))
    assert device(yard, gpu=1).health is Health.OFF_THE_BUS
    (fault,) = status(yard, node="node-1").machines[0].faults
    assert (fault.gpu, fault.fault, fault.left_ms) == (1, "xid:79", 5000)
    yard.step(NOW + 6000)
    assert device(yard, gpu=1).health is Health.OK


def test_a_fault_without_an_end_is_healed_by_hand(yard: Yard) -> None:
    yard.answer(Break("node-1", 1, "unhealthy"))
    yard.step(NOW + 10**9)
    assert device(yard, gpu=1).health is Health.UNHEALTHY
    yard.answer(Heal("node-1", 1))
    assert device(yard, gpu=1).health is Health.OK


def test_a_hot_change_adds_and_removes_machines(yard: Yard, tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    yard.step(NOW)
    yard.answer(Use("node-1", 0, process.pid, GIB))
    yard.answer(Use("node-2", 0, process.pid, GIB))
    yard.change(a_fleet("A100", 2, ["node-2", "node-3"]))
    assert states(tmp_path) == ["node-2", "node-3"]
    assert device(yard, "node-2").memory_used_bytes == GIB
    process.kill()
    process.wait()
    yard.step(NOW + 250)
    assert device(yard, "node-2").memory_used_bytes == 0


def test_the_status_counts_everything_and_shows_what_was_asked(yard: Yard) -> None:
    yard.step(NOW + 1500)
    found = status(yard, limit=1)
    assert (found.machine_count, found.gpu_count, found.up_ms) == (2, 4, 1500)
    assert [machine.reading.machine for machine in found.machines] == ["node-1"]
    assert [machine.reading.machine for machine in status(yard, node="node-2").machines] == ["node-2"]


def test_labels_of_a_machine(yard: Yard) -> None:
    found = yard.answer(Labels("node-1", seed_only=True))
    assert isinstance(found, dict)
    assert found["nvidia.com/gpu.count"] == "2"


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        (Labels("node-9"), 'no machine is called "node-9"; did you mean "node-'),
        (Show("x"), 'no machine is called "x"'),
        (Break("node-1", 7, "xid:79"), "node-1 has no GPU 7"),
        (Break("node-1", 0, "xid"), "xid"),
        (Stop("node-1", "nothing"), "nothing"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_told(yard: Yard, request_: Any, what: str) -> None:
    with pytest.raises(GpuyardError, match=what):
        yard.answer(request_)


def test_time_never_runs_backwards(yard: Yard) -> None:
    yard.step(NOW + 1000)
    yard.step(NOW + 500)
    assert yard.engine.now_ms == NOW + 1000
