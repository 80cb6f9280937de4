"""A real agent against a manager: what runs, how it ends, and what both survive."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest

from gpuyard.wire.agents import AttemptId, Ending, Phase, Refused
from tests.agent.machines import (
    LEAKS,
    Machine,
    a_script,
    all_gone,
    an_id,
    counted,
    is_running,
    pause,
    pids_in,
    wait_for_output,
)
from tests.agent.manager import Manager, eventually

pytestmark = pytest.mark.slow

SHORT_LEASE_MS = 6_000
"""A tenth of it is left for killing, which must be enough on a machine that is very busy."""


# ---------------------------------------------------------------------------------------------------------- guards


def test_nothing_outlives_its_supervisor(machine: Machine, manager: Manager, tmp_path: Path) -> None:
    """Killed outright, with the agent killed before it: only the guard is left to clear up."""
    scripts = [leak.replace("exit 0", "sleep 300") for leak in LEAKS.values()]
    tasks = [a_script(script.format(pids=tmp_path / str(number))) for number, script in enumerate(scripts)]
    manager.want(*tasks)
    commands = [manager.wait_for(task.id, Phase.RUNNING).pid for task in tasks]
    leaked = [pid for number in range(len(tasks)) for pid in pids_in(tmp_path / str(number), 1)]
    supervisors = [machine.supervisor(task.id) for task in tasks]
    machine.kill()
    for supervisor in supervisors:
        os.kill(supervisor, signal.SIGKILL)
    all_gone([*commands, *leaked])


def test_a_guard_that_was_killed_takes_nothing_with_it(machine: Machine, manager: Manager) -> None:
    task = a_script("sleep 300")
    manager.want(task)
    command = manager.wait_for(task.id, Phase.RUNNING).pid
    supervisor = machine.supervisor(task.id)
    os.kill(parent_of(supervisor), signal.SIGKILL)
    pause(0.5)
    assert is_running(command)
    os.kill(supervisor, signal.SIGKILL)
    assert manager.wait_for(task.id, Phase.ENDED).ending is Ending.LOST
    assert not is_running(command)


def test_a_supervisor_that_stands_still_does_not_keep_its_task_beyond_the_lease(
    idle_machine: Machine, manager: Manager
) -> None:
    manager.lease_ms = SHORT_LEASE_MS
    idle_machine.start()
    task = a_script("sleep 300")
    manager.want(task)
    command = manager.wait_for(task.id, Phase.RUNNING).pid
    supervisor = idle_machine.supervisor(task.id)
    os.kill(supervisor, signal.SIGSTOP)
    manager.silent = True
    all_gone([command], within_s=SHORT_LEASE_MS / 1000 + 8)
    with suppress(ProcessLookupError):  # Its guard may have ended it, too.
        os.kill(supervisor, signal.SIGCONT)


def test_a_supervisor_that_is_told_to_end_ends_its_task_politely(machine: Machine, manager: Manager) -> None:
    task = a_script("trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done")
    manager.want(task)
    wait_for_output(manager, task.id)
    os.kill(machine.supervisor(task.id), signal.SIGTERM)
    ended = manager.wait_for(task.id, Phase.ENDED)
    assert (ended.ending, ended.exit_code) == (Ending.STOPPED, 5)


def test_without_its_nursery_an_agent_starts_another_one(machine: Machine, manager: Manager) -> None:
    running = a_script("sleep 300")
    manager.want(running)
    command = manager.wait_for(running.id, Phase.RUNNING).pid
    nursery = parent_of(parent_of(machine.supervisor(running.id)))
    os.kill(nursery, signal.SIGKILL)
    eventually(lambda: not is_running(nursery))
    task = a_script("exit 3")
    manager.want(task)
    assert manager.wait_for(task.id, Phase.ENDED).exit_code == 3
    assert is_running(command)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# ---------------------------------------------------------------------------------------------- crashes and restarts


def test_an_agent_that_was_killed_finds_its_tasks_again(machine: Machine, manager: Manager, tmp_path: Path) -> None:
    starts, leave = counted(tmp_path)
    task = a_script(f"{leave}; sleep 2; exit 4")
    manager.want(task)
    before = manager.wait_for(task.id, Phase.RUNNING)
    machine.kill()
    machine.start()
    assert manager.hellos[0].incarnation == manager.hellos[-1].incarnation
    eventually(lambda: manager.now_reported == () or manager.now_reported[0].pid == before.pid)
    ended = manager.wait_for(task.id, Phase.ENDED)
    assert (ended.ending, ended.exit_code, ended.pid) == (Ending.EXITED, 4, before.pid)
    assert len(starts.read_text().split()) == 1


def test_what_ended_while_the_agent_was_away_is_reported(machine: Machine, manager: Manager) -> None:
    task = a_script("sleep 0.5; exit 6")
    manager.want(task)
    manager.wait_for(task.id, Phase.RUNNING)
    machine.kill()
    pause(1.0)
    machine.start()
    assert manager.wait_for(task.id, Phase.ENDED).exit_code == 6


def test_ending_the_agent_politely_leaves_tasks_running(machine: Machine, manager: Manager) -> None:
    task = a_script("sleep 300")
    manager.want(task)
    command = manager.wait_for(task.id, Phase.RUNNING).pid
    assert machine.terminate() == 0
    assert is_running(command)
    assert not (machine.home / "agent.pid").exists()


def test_a_killed_supervisor_ends_its_task_and_is_told_as_lost(machine: Machine, manager: Manager) -> None:
    task = a_script("sleep 300")
    manager.want(task)
    command = manager.wait_for(task.id, Phase.RUNNING).pid
    os.kill(machine.supervisor(task.id), signal.SIGKILL)
    ended = manager.wait_for(task.id, Phase.ENDED)
    assert (ended.ending, ended.exit_code) == (Ending.LOST, None)
    assert not is_running(command)


def test_a_manager_that_was_away_finds_everything_as_it_was(machine: Machine, manager: Manager) -> None:
    task = a_script("sleep 300")
    manager.want(task)
    command = manager.wait_for(task.id, Phase.RUNNING).pid
    manager.close()
    manager.reports.clear()
    manager.open()
    assert manager.wait_for(task.id, Phase.RUNNING).pid == command


def test_without_renewal_a_task_is_told_and_gone_before_its_lease_is_over(
    idle_machine: Machine, manager: Manager, tmp_path: Path
) -> None:
    manager.lease_ms = SHORT_LEASE_MS
    idle_machine.start()
    task = a_script(f"trap 'date +%s%3N > {tmp_path}/told' TERM; echo up; while :; do sleep 0.05; done")
    manager.want(task)
    wait_for_output(manager, task.id)
    command = manager.reports[task.id].pid
    manager.silent = True
    began = monotonic()
    all_gone([command], within_s=SHORT_LEASE_MS / 1000 + 0.1)
    assert monotonic() - began > SHORT_LEASE_MS / 1000 / 2
    assert (tmp_path / "told").exists()
    manager.silent = False
    assert manager.wait_for(task.id, Phase.ENDED).ending is Ending.LEASE_EXPIRED


def test_a_lease_ends_tasks_also_when_the_agent_is_gone(idle_machine: Machine, manager: Manager) -> None:
    manager.lease_ms = SHORT_LEASE_MS
    idle_machine.start()
    task = a_script("sleep 300")
    manager.want(task)
    command = manager.wait_for(task.id, Phase.RUNNING).pid
    idle_machine.kill()
    all_gone([command], within_s=SHORT_LEASE_MS / 1000 + 0.1)


def test_renewed_in_time_a_task_outlives_many_leases(idle_machine: Machine, manager: Manager) -> None:
    manager.lease_ms = 3_000
    idle_machine.start()
    task = a_script("sleep 8; exit 2")
    manager.want(task)
    assert manager.wait_for(task.id, Phase.ENDED).exit_code == 2


# --------------------------------------------------------------------------------------------------- never twice


def test_what_is_said_twice_starts_nothing_twice(machine: Machine, manager: Manager, tmp_path: Path) -> None:
    starts, leave = counted(tmp_path)
    manager.say_twice = True
    tasks = [a_script(leave) for _ in range(5)]
    manager.want(*tasks)
    for task in tasks:
        manager.wait_for(task.id, Phase.ENDED)
    assert len(starts.read_text().split()) == len(tasks)


def test_an_attempt_that_was_forgotten_is_shown_again_but_not_started_again(
    machine: Machine, manager: Manager, tmp_path: Path
) -> None:
    starts, leave = counted(tmp_path)
    task = a_script(f"{leave}; exit 8")
    manager.want(task)
    manager.wait_for(task.id, Phase.ENDED)
    manager.record(task.id)
    eventually(lambda: manager.now_reported == ())
    assert leave not in "".join(path.read_text() for path in machine.home.glob("kept/*/spec")), "commands hold secrets"
    manager.recorded.clear()
    manager.reports.clear()
    manager.want(task)
    assert manager.wait_for(task.id, Phase.ENDED).exit_code == 8
    assert len(starts.read_text().split()) == 1


def test_killed_at_any_moment_of_starting_an_agent_starts_nothing_twice(
    machine: Machine, manager: Manager, tmp_path: Path
) -> None:
    starts, leave = counted(tmp_path)
    tasks = []
    for round_number in range(8):
        task = a_script(leave)
        tasks.append(task)
        manager.want(task)
        pause(0.004 * round_number)
        machine.kill()
        machine.start()
    for task in tasks:
        assert manager.wait_for(task.id, Phase.ENDED).ending in (Ending.EXITED, Ending.LOST)
    pids = starts.read_text().split()
    assert len(pids) <= len(tasks)
    assert len(pids) == sum(manager.reports[task.id].ending is Ending.EXITED for task in tasks)


def test_a_retry_is_another_attempt_in_the_same_private_directory(machine: Machine, manager: Manager) -> None:
    first = a_script("echo one > saved; exit 1")
    manager.want(first)
    manager.wait_for(first.id, Phase.ENDED)
    manager.record(first.id)
    second = a_script("cat saved", id=AttemptId(first.id.job, 0, 2))
    manager.want(second)
    manager.wait_for(second.id, Phase.ENDED)
    assert manager.whole_log(second.id) == b"one\n"


# ----------------------------------------------------------------------------------------------------- the session


def test_a_second_agent_in_the_same_home_is_refused(machine: Machine, manager: Manager, tmp_path: Path) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-m", "gpuyard.agent", "--home", str(machine.home), "--manager", "127.0.0.1:1"]
    second = subprocess.run([*command, "--fake-gpus", "0"], capture_output=True, text=True, check=False)
    assert second.returncode == 2
    assert "an agent runs in" in second.stderr


def test_an_agent_that_is_refused_for_good_ends_with_the_reason(idle_machine: Machine, manager: Manager) -> None:
    manager.refusal = Refused("node-a was removed", again=False)
    idle_machine.start()
    assert idle_machine.wait_for_exit() == 2
    assert "node-a was removed" in idle_machine.log()


def test_names_of_jobs_cannot_leave_the_home(machine: Machine, manager: Manager) -> None:
    ids = [AttemptId(job, 0, 1) for job in ("../../evil", "..", "a/b", "x" * 400, "")]
    manager.want(*(a_script("exit 0", id=id) for id in ids))
    for id in ids:
        assert manager.wait_for(id, Phase.ENDED).exit_code == 0
    inside = {path.parent.name for path in machine.home.rglob("spec")}
    assert len(inside) == len(ids)


def test_ids_of_tests_differ() -> None:
    assert an_id() != an_id()
