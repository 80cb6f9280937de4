"""Up and down again and again, also with the tool killed on the way: nothing is left, and nobody else is disturbed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from time import monotonic, sleep

import pytest

from gpuyard.platform.processes import marked_processes
from gpuyard.testbed.bed import Bed
from gpuyard.testbed.down import take_down
from gpuyard.testbed.record import Record, find_record
from gpuyard.testbed.status import status_of
from tests.conftest import LONG
from tests.kube import wait_until_well
from tests.testbed.traces import left_of, namespaces_of

ROUNDS = 10 if LONG else 1
PATIENCE_S = 300.0

Moment = Callable[[Record], bool]


def name_of(suffix: str) -> str:
    return f"test-{os.getpid()}-{suffix}"


def tool(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gpuyard", "kube", "testbed", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(*words: str) -> str:
    process = tool(*words)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    return said


def killed_at(name: str, moment: Moment) -> Record:
    """The record of a testbed whose `up` was killed at that moment."""
    process, record = caught_at(name, moment)
    process.kill()
    process.communicate()
    return record


def caught_at(name: str, moment: Moment) -> tuple[subprocess.Popen[str], Record]:
    process = tool("up", "--name", name, "--nodes", "1")
    until = monotonic() + PATIENCE_S
    while (record := find_record(name)) is None or not moment(record):
        if process.poll() is not None or monotonic() > until:
            process.kill()
            pytest.fail(process.communicate()[0])
        sleep(0.005)
    return process, record


def as_soon_as_it_is_written_down(record: Record) -> bool:
    return True


def as_soon_as_a_machine_is_on(record: Record) -> bool:
    return bool(marked_processes(record.marked()))


def while_a_kubelet_starts(record: Record) -> bool:
    return any("kubelet" in process.name for process in marked_processes(record.marked("node-1")))


MOMENTS: list[Moment] = [as_soon_as_it_is_written_down, as_soon_as_a_machine_is_on]
if LONG:
    MOMENTS.append(while_a_kubelet_starts)


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_a_second_testbed_comes_and_goes_and_the_first_does_not_notice(testbed: Bed, turn: int) -> None:
    name, before = name_of("second"), components(testbed)
    # A name that was killed on its way up is cleaned by the next one who wants it.
    broken = killed_at(name, while_a_kubelet_starts)
    said = finished("up", "--name", name, "--nodes", "1")
    assert f'cleaning up what was left of testbed "{name}"' in said
    second = Bed.named(name)
    assert second.record.slot != testbed.record.slot
    wait_until_well(second)
    namespaces = namespaces_of(second.record)
    assert len(namespaces) >= 2 * 4
    finished("down", "--name", name)
    assert left_of(second.record, namespaces) == {}
    assert left_of(broken, set()) == {}
    assert components(testbed) == before
    wait_until_well(testbed)


def components(bed: Bed) -> dict[tuple[str, str], int | None]:
    """Every component that runs, by the number of its process."""
    machines = status_of(bed.record).machines
    return {(one.name, component.name): component.pid for one in machines for component in one.components}


@pytest.mark.parametrize("turn", range(ROUNDS))
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_tool_that_is_killed_on_the_way_up_leaves_what_down_removes(testbed: Bed, moment: Moment, turn: int) -> None:
    record = killed_at(name_of("killed"), moment)
    namespaces = namespaces_of(record)
    take_down(record.name)
    assert left_of(record, namespaces) == {}


def test_a_tool_that_is_interrupted_cleans_up_behind_itself(testbed: Bed) -> None:
    process, record = caught_at(name_of("ctrl-c"), as_soon_as_a_machine_is_on)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    assert "taking it down again" in said
    assert left_of(record, set()) == {}
