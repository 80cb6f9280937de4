"""What is left in an agent's home when the agent ends, and how that is ended too."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpuyard.agent.daemon import FAILED
from gpuyard.agent.ending import end_what_is_left
from gpuyard.errors import AgentError
from gpuyard.fakegpu.control import DaemonStatus, NotUpError, Status, ask
from gpuyard.model.jobs import DeviceShare
from gpuyard.wire.agents import Phase
from tests.agent.machines import Machine, a_script, all_gone, is_running
from tests.agent.manager import Manager

STUBBORN = 'trap "" TERM; echo up; while true; do sleep 0.1; done'


def fake_pid(machine: Machine) -> int:
    return ask(machine.home / "open" / "fake", Status(limit=0), DaemonStatus).pid


@pytest.mark.slow
def test_an_agent_that_ends_takes_its_fake_gpus_down(idle_machine: Machine) -> None:
    machine = idle_machine.start("--fake-gpus", "2", "--isolation", "none")
    pid = fake_pid(machine)
    assert machine.terminate() == 0
    assert not is_running(pid)
    assert machine.log().endswith("down; nothing runs\n")


@pytest.mark.slow
def test_fake_gpus_stay_while_a_task_may_use_them(idle_machine: Machine, manager: Manager) -> None:
    machine = idle_machine.start("--fake-gpus", "2", "--isolation", "none")
    task = a_script("sleep 300", shares=(DeviceShare(0),))
    manager.want(task)
    manager.wait_for(task.id, Phase.RUNNING)
    pid = fake_pid(machine)
    assert machine.terminate() == 0
    assert is_running(pid)
    assert "1 task runs on; it ends within" in " ".join(end_what_is_left(machine.home, with_tasks=False))
    assert is_running(pid)
    told = list(end_what_is_left(machine.home, with_tasks=True))
    assert [line.split()[0] for line in told] == ["tasks", "tasks", "fake"]
    with pytest.raises(NotUpError):
        fake_pid(machine)


@pytest.mark.slow
def test_a_task_that_does_not_listen_is_gone_after_its_grace(machine: Machine, manager: Manager) -> None:
    task = a_script(STUBBORN, grace_ms=1_000)
    manager.want(task)
    command = manager.wait_for(task.id, Phase.RUNNING).pid
    machine.terminate()
    told = list(end_what_is_left(machine.home, with_tasks=True))
    assert told[0] == "tasks      1 told to end; they have up to 1 s"
    assert not is_running(command)


@pytest.mark.slow
def test_nothing_is_ended_under_an_agent_that_runs(machine: Machine) -> None:
    with pytest.raises(AgentError, match="an agent runs in"):
        list(end_what_is_left(machine.home, with_tasks=True))


def test_where_no_agent_ever_was_there_is_nothing_to_end(tmp_path: Path) -> None:
    assert list(end_what_is_left(tmp_path / "none", with_tasks=True)) == []


@pytest.mark.slow
def test_an_agent_whose_home_is_gone_ends_with_everything(idle_machine: Machine, manager: Manager) -> None:
    machine = idle_machine.start("--fake-gpus", "2", "--isolation", "none")
    task = a_script("sleep 300")
    manager.want(task)
    command = manager.wait_for(task.id, Phase.RUNNING).pid
    left = [command, machine.supervisor(task.id), fake_pid(machine)]
    with (machine.home / "agent.log").open() as log:
        remove_under_its_hands(machine.home)
        assert machine.wait_for_exit() == FAILED
        all_gone(left, 15)
        assert f"error: its home {machine.home} is gone" in log.read()


def remove_under_its_hands(home: Path) -> None:
    """Whoever still lives there may write a file between two looks at a folder."""
    while home.exists():
        shutil.rmtree(home, ignore_errors=True)
