"""Processes of this machine: who lives, also where numbers are used again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from gpuyard.platform.clock import monotonic_ms, wall_ms, wall_text
from gpuyard.platform.processes import Child, find_process, is_alive, resident_bytes, start_in_background
from tests.fakegpu.daemons import eventually

NOBODY = 4_194_305
"""Above the highest number the kernel gives."""


def test_a_process_is_found_with_its_name() -> None:
    found = find_process(os.getpid())
    assert found is not None
    assert (found.pid, is_alive(found)) == (os.getpid(), True)
    assert Path(found.name).name.startswith("python")
    assert find_process(NOBODY) is None


def test_another_process_with_the_same_number_is_another_one() -> None:
    found = find_process(os.getpid())
    assert found is not None
    assert not is_alive(msgspec.structs.replace(found, started=found.started + 1))


def test_one_that_ended_has_ended_also_before_it_is_waited_for() -> None:
    process = subprocess.Popen(["sleep", "60"])
    found = find_process(process.pid)
    assert found is not None
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(found)
    process.wait()


def test_a_background_process_has_its_own_session_and_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = "import os; print(os.getsid(0) == os.getpid()); raise SystemExit(3)"
    background = start_in_background([sys.executable, "-c", script], log)
    assert eventually(lambda: background.exit_code() is not None, within_s=20)
    assert log.read_text() == "True\n"


def test_the_clocks_run() -> None:
    assert wall_ms() > 1_700_000_000_000
    assert monotonic_ms() <= monotonic_ms()
    assert wall_text().endswith("Z")


def test_one_in_the_background_has_the_variables_it_is_given_and_no_others(tmp_path: Path) -> None:
    log = tmp_path / "log"
    started = start_in_background(["/bin/sh", "-c", 'echo "$WORD-$HOME"'], log, {"WORD": "hello"})
    assert eventually(lambda: started.exit_code() == 0, 10)
    assert log.read_text() == "hello-\n"


def test_what_a_process_holds_in_memory_can_be_asked() -> None:
    assert resident_bytes(os.getpid()) > 1 << 20
    assert resident_bytes(NOBODY) == 0


def test_a_child_hears_no_ctrl_c_of_ours_and_ends_when_we_say_so(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log", os.environ)
    assert os.getsid(child.pid) == child.pid
    assert child.exit_code() is None
    child.end(within_s=10)
    assert child.exit_code() == -signal.SIGTERM


def test_a_child_that_does_not_want_to_end_is_killed(tmp_path: Path) -> None:
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    log = tmp_path / "log"
    child = Child([sys.executable, "-c", script], log, os.environ)
    eventually(lambda: log.read_text() == "up\n")
    child.end(within_s=0.1)
    assert child.exit_code() == -signal.SIGKILL
