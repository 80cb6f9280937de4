"""What a task finds, how it ends and how it is stopped, told by a real agent. One machine serves all of these tests."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuyard.agent.supervisor.task import execute
from gpuyard.wire.agents import Ending, Phase, Stop
from tests.agent.certificates import Authority
from tests.agent.machines import (
    LEAKS,
    Machine,
    a_script,
    a_task,
    counted,
    is_running,
    pause,
    pids_in,
    shared_machine,
    wait_for_output,
)
from tests.agent.manager import Manager, eventually

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def manager(authority: Authority) -> Iterator[Manager]:
    with Manager(authority) as made:
        yield made


@pytest.fixture(scope="module")
def running_machine(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority, manager: Manager
) -> Iterator[Machine]:
    with shared_machine(tmp_path_factory.mktemp("shared") / "home", authority, manager) as made:
        yield made.start()


@pytest.fixture
def machine(running_machine: Machine, manager: Manager) -> Iterator[Machine]:
    yield running_machine
    manager.drop_everything()


# ---------------------------------------------------------------------------------------------------------- endings


def test_a_command_runs_and_its_exit_code_is_reported(machine: Machine, manager: Manager) -> None:
    task = a_script("echo hello; exit 3")
    manager.want(task)
    ended = manager.wait_for(task.id, Phase.ENDED)
    assert (ended.ending, ended.exit_code) == (Ending.EXITED, 3)
    assert 0 < ended.started_at_ms <= ended.ended_at_ms
    assert manager.whole_log(task.id) == b"hello\n"


def test_a_signal_is_an_exit_code_above_128(machine: Machine, manager: Manager) -> None:
    task = a_script("kill -SEGV $$")
    manager.want(task)
    assert manager.wait_for(task.id, Phase.ENDED).exit_code == 128 + 11


def test_a_folder_of_path_that_may_not_be_looked_into_hides_no_other_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen by a user whose PATH names a folder of root's."""

    def forbidden(path: str, *_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "execve", forbidden)
    with pytest.raises(FileNotFoundError, match="no such program"):
        execute(["missing"], {"PATH": str(tmp_path)})
    (tmp_path / "there").touch()
    with pytest.raises(PermissionError):
        execute(["there"], {"PATH": str(tmp_path)})
    with pytest.raises(PermissionError):
        execute(["/closed/missing"], {})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"command": ("no-such-program",)}, "no-such-program: no such program"),
        ({"command": ("/",)}, "/: Permission denied"),
        ({"command": ()}, "there is no command to run"),
        ({"command": ("true",), "workdir": "/no/such"}, "working directory /no/such: No such file or directory"),
        ({"command": ("a\0b",)}, "arg holds a zero byte"),
        ({"command": ("true",), "env": {"": "x"}}, "cannot be the name of a variable"),
        ({"command": ("true",), "notice_signal": "BARK"}, 'there is no signal "BARK"'),
    ],
)
def test_what_cannot_be_started_says_why(
    machine: Machine, manager: Manager, fields: dict[str, object], message: str
) -> None:
    task = msgspec.structs.replace(a_task("true"), **fields)
    manager.want(task)
    ended = manager.wait_for(task.id, Phase.ENDED)
    assert ended.ending is Ending.NOT_STARTED
    assert message in ended.message


def test_a_run_limit_is_kept_by_the_machine(machine: Machine, manager: Manager) -> None:
    task = a_script("trap 'exit 9' TERM; while :; do sleep 0.05; done", run_limit_ms=2_500)
    manager.want(task)
    ended = manager.wait_for(task.id, Phase.ENDED)
    assert (ended.ending, ended.exit_code) == (Ending.RUN_LIMIT, 9)
    assert "2.5 s" in ended.message


def test_a_task_that_holds_more_memory_than_it_asked_for_ends(machine: Machine, manager: Manager) -> None:
    task = a_task("python3", "-c", "import time; held = b'x' * (200 << 20); time.sleep(60)", memory_bytes=64 << 20)
    manager.want(task)
    ended = manager.wait_for(task.id, Phase.ENDED)
    assert ended.ending is Ending.OUT_OF_MEMORY
    assert "asked for 64 MiB" in ended.message


def test_memory_that_processes_share_is_counted_once(machine: Machine, manager: Manager) -> None:
    script = "import os, time; held = b'x' * (60 << 20); [os.fork() for _ in range(2)]; time.sleep(2.5)"
    task = a_task("python3", "-c", script, memory_bytes=120 << 20)
    manager.want(task)
    assert manager.wait_for(task.id, Phase.ENDED).ending is Ending.EXITED


# --------------------------------------------------------------------------------------------------------- stopping


def test_a_stop_is_polite_first(machine: Machine, manager: Manager, tmp_path: Path) -> None:
    script = (
        f"trap 'cat $GPUYARD_PREEMPT_NOTICE_FILE > {tmp_path}/seen; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    )
    task = a_script(script)
    manager.want(task)
    wait_for_output(manager, task.id)
    manager.stop(task.id, Stop("job 17 of team speech is owed it", "Reclaimed", 5_000))
    ended = manager.wait_for(task.id, Phase.ENDED)
    assert (ended.ending, ended.exit_code) == (Ending.STOPPED, 0)
    notice = json.loads((tmp_path / "seen").read_text())
    assert notice["reason"] == "Reclaimed"
    assert notice["why"] == "job 17 of team speech is owed it"
    assert notice["grace_ms"] == 5_000
    assert notice["deadline"].endswith("Z")
    assert Phase.STOPPING in manager.phases[task.id]


def test_the_signal_of_the_notice_can_be_chosen(machine: Machine, manager: Manager) -> None:
    task = a_script("trap 'exit 5' USR1; echo up; while :; do sleep 0.05; done", notice_signal="USR1")
    manager.want(task)
    wait_for_output(manager, task.id)
    manager.stop(task.id, Stop("enough"))
    assert manager.wait_for(task.id, Phase.ENDED).exit_code == 5


def test_after_its_grace_a_task_ends_for_good(machine: Machine, manager: Manager) -> None:
    task = a_script("trap '' TERM; echo up; while :; do sleep 0.05; done")
    manager.want(task)
    wait_for_output(manager, task.id)
    manager.stop(task.id, Stop("enough", grace_ms=300))
    ended = manager.wait_for(task.id, Phase.ENDED, within_s=30)
    assert (ended.ending, ended.exit_code) == (Ending.STOPPED, 128 + 9)


def test_a_second_word_may_shorten_the_grace(machine: Machine, manager: Manager) -> None:
    task = a_script("trap '' TERM; echo up; while :; do sleep 0.05; done")
    manager.want(task)
    wait_for_output(manager, task.id)
    manager.stop(task.id, Stop("enough", grace_ms=600_000))
    manager.wait_for(task.id, Phase.STOPPING)
    manager.stop(task.id, Stop("at once", grace_ms=0))
    assert manager.wait_for(task.id, Phase.ENDED, within_s=30).ending is Ending.STOPPED


def test_the_checkpoint_hook_runs_at_notice_with_the_same_variables(
    machine: Machine, manager: Manager, tmp_path: Path
) -> None:
    hook = ("sh", "-c", f"echo $WHO > {tmp_path}/saved")
    waits = f"trap '' TERM; echo up; until [ -s {tmp_path}/saved ]; do sleep 0.05; done"
    task = a_script(waits, env={"WHO": "ada"}, checkpoint=hook)
    manager.want(task)
    wait_for_output(manager, task.id)
    manager.stop(task.id, Stop("enough", grace_ms=60_000))
    ended = manager.wait_for(task.id, Phase.ENDED)
    assert (tmp_path / "saved").read_text() == "ada\n"
    assert ended.checkpoint_at_ms >= ended.started_at_ms


def test_the_time_of_the_checkpoint_file_is_reported(machine: Machine, manager: Manager) -> None:
    task = a_script('echo saved > "$GPUYARD_CHECKPOINT_FILE"; sleep 60')
    manager.want(task)
    eventually(lambda: task.id in manager.reports and manager.reports[task.id].checkpoint_at_ms > 0)


def test_what_the_manager_no_longer_names_is_stopped(machine: Machine, manager: Manager) -> None:
    task = a_script("echo up; sleep 60")
    manager.want(task)
    wait_for_output(manager, task.id)
    manager.drop(task.id)
    assert manager.wait_for(task.id, Phase.ENDED).ending is Ending.STOPPED


def test_a_stop_before_the_start_ends_it_without_one(machine: Machine, manager: Manager, tmp_path: Path) -> None:
    starts, leave = counted(tmp_path)
    task = a_script(leave, stop=Stop("too late"))
    manager.want(task)
    assert manager.wait_for(task.id, Phase.ENDED).ending is Ending.STOPPED
    manager.want(msgspec.structs.replace(task, stop=None))
    pause(0.5)
    assert not starts.exists()


@pytest.mark.parametrize("how", sorted(LEAKS))
def test_nothing_outlives_its_task(machine: Machine, manager: Manager, tmp_path: Path, how: str) -> None:
    task = a_script(LEAKS[how].format(pids=tmp_path / "pids"))
    manager.want(task)
    manager.wait_for(task.id, Phase.ENDED)
    (pid,) = pids_in(tmp_path / "pids", 1)
    assert not is_running(pid)
