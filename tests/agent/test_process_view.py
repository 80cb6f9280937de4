"""A task in a PID namespace of its own: it sees itself only, and is still signalled, counted and ended from outside."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpuyard.agent import process_view
from gpuyard.agent.cgroups import Cgroups
from gpuyard.agent.home import prepare
from gpuyard.agent.process_runtime import ProcessRuntime
from gpuyard.agent.supervisor import view
from gpuyard.platform.clock import boot_ms
from gpuyard.platform.processes import ProcessIdentity, command_line, marked_processes, process_parents
from gpuyard.wire.agents import AttemptId, Ending, Isolation, Phase, ProcessView, RunAs, Stop
from tests.agent.certificates import Authority
from tests.agent.machines import LEAKS, Machine, a_script, an_id, pause, shared_machine
from tests.agent.manager import Manager, eventually
from tests.agent.runtimes import NoDevices, has_ended
from tests.yard import open_folder

ADA = RunAs(uid=2_100_900_001)
TABLE = rb"""
22 27 0:21 / /proc rw,relatime - proc proc rw
23 27 0:22 / /sys rw,relatime - sysfs sysfs rw
51 27 0:21 / /srv/other\040root/proc rw shared:7 - proc none rw
52 27 0:21 /sys /srv/settings ro - proc proc rw
"""


def test_every_whole_proc_of_the_machine_is_found() -> None:
    assert view.proc_mounts(TABLE) == ["/proc", "/srv/other root/proc"]


def test_a_machine_without_a_table_of_mounts_has_its_proc_covered() -> None:
    assert view.proc_mounts(b"") == ["/proc"]


@pytest.mark.parametrize(
    ("uid", "isolation", "words"),
    [(1_000, Isolation.NONE, "does not run as root"), (0, Isolation.NONE, "--isolation none")],
)
def test_why_tasks_see_each_other_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, isolation: Isolation, words: str
) -> None:
    home = prepare(tmp_path / "home", isolation)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    found = process_view.find(home, isolation)
    assert found.view is ProcessView.SHARED
    assert words in found.note


def refusal() -> str:
    """Why there are no PID namespaces here; empty: there are."""
    if os.geteuid() != 0:
        return "needs root"
    done = subprocess.run(["unshare", "-p", "-m", "-f", "--mount-proc", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else f"the kernel refuses PID namespaces: {done.stderr.decode().strip()}"


REFUSED = refusal()
pytestmark = pytest.mark.slow
isolated = pytest.mark.skipif(bool(REFUSED), reason=REFUSED)


@pytest.fixture(scope="module")
def manager(authority: Authority) -> Iterator[Manager]:
    with Manager(authority) as made:
        yield made


@pytest.fixture(scope="module")
def running_machine(authority: Authority, manager: Manager) -> Iterator[Machine]:
    with open_folder() as folder, shared_machine(folder / "home", authority, manager) as made:
        yield made.start("--fake-gpus", "0")


@pytest.fixture
def machine(running_machine: Machine, manager: Manager) -> Iterator[Machine]:
    assert manager.facts.process_view is ProcessView.ISOLATED
    yield running_machine
    manager.drop_everything()


def run(manager: Manager, script: str, **fields: object) -> tuple[str, AttemptId]:
    """What the script says until it ends."""
    task = a_script(script, run_as=ADA, **fields)
    manager.want(task)
    manager.wait_for(task.id, Phase.ENDED)
    return manager.whole_log(task.id).decode(), task.id


def start(manager: Manager, script: str, **fields: object) -> AttemptId:
    """A script that has said something, so its traps are set."""
    id = an_id()
    task = a_script(script, run_as=ADA, id=id, env={"TAG": id.job}, **fields)
    manager.want(task)
    manager.wait_for(id, Phase.RUNNING)
    assert manager.read_log(id, wait_ms=10_000).data
    return id


def outside(id: AttemptId) -> list[ProcessIdentity]:
    """The task's processes, by the machine's numbers."""
    return marked_processes(f"TAG={id.job}")


@isolated
class TestIsolated:
    def test_a_task_sees_its_init_and_itself(self, machine: Machine, manager: Manager) -> None:
        said, _ = run(manager, "cd /proc && echo [0-9]*; echo $$; cat /proc/self/cmdline | tr '\\0' ' '")
        numbers, own, words = said.splitlines()
        assert numbers == f"1 {own}"
        assert words == "cat /proc/self/cmdline "

    def test_the_proc_of_the_machine_is_as_before(self, machine: Machine, manager: Manager) -> None:
        before = Path("/proc/self/mountinfo").read_bytes()
        id = start(manager, "echo up; sleep 60")
        assert Path("/proc/self/mountinfo").read_bytes() == before
        assert os.getpid() in process_parents()
        assert manager.reports[id].pid in {process.pid for process in outside(id)}
        assert command_line(manager.reports[id].pid)[0] == "sh"

    def test_another_proc_of_the_machine_shows_no_more(self, machine: Machine, manager: Manager) -> None:
        with open_folder() as folder:
            subprocess.run(["mount", "-t", "proc", "proc", folder], check=True)
            try:
                said, _ = run(manager, f"cd '{folder}' && echo [0-9]*; echo $$")
            finally:
                subprocess.run(["umount", folder], check=True)
        numbers, own = said.splitlines()
        assert numbers == f"1 {own}"

    @pytest.mark.parametrize(
        ("script", "code"),
        [("exit 3", 3), ("kill -KILL $$", 137), ("kill -TERM $$", 143), ("kill -SEGV $$", 139), ("true", 0)],
    )
    def test_exit_codes_are_the_commands_own(self, machine: Machine, manager: Manager, script: str, code: int) -> None:
        _, id = run(manager, script)
        assert (manager.reports[id].ending, manager.reports[id].exit_code) == (Ending.EXITED, code)

    def test_a_command_that_is_not_there_is_named(self, machine: Machine, manager: Manager) -> None:
        task = a_script("", run_as=ADA)
        task = type(task)(task.id, "test", "vision", "ada", ("no-such-program",), run_as=ADA)
        manager.want(task)
        ended = manager.wait_for(task.id, Phase.ENDED)
        assert (ended.ending, ended.message) == (Ending.NOT_STARTED, "no-such-program: no such program")

    def test_what_loses_its_parent_is_reaped(self, machine: Machine, manager: Manager) -> None:
        script = "for i in 1 2 3 4 5; do (sh -c 'exit 0' &) ; done; sleep 0.5; cat /proc/[0-9]*/stat"
        said, _ = run(manager, script)
        assert not [line for line in said.splitlines() if line.split(") ")[-1].startswith("Z")], said

    @pytest.mark.parametrize("how", sorted(LEAKS))
    def test_nothing_outlives_its_task(self, machine: Machine, manager: Manager, how: str) -> None:
        script = LEAKS[how].format(pids="left").replace("sleep 300", f"sleep 300.{os.getpid()}")
        _, id = run(manager, script)
        left = [pid for pid in process_parents() if f"300.{os.getpid()}" in command_line(pid)]
        assert left == []
        assert manager.reports[id].exit_code == 0

    def test_notice_and_hook_reach_the_command_by_its_number(self, machine: Machine, manager: Manager) -> None:
        """The hook signals the command by the number that it has written down: both are in one namespace."""
        traps = "trap 'echo noticed' USR2; trap 'echo saved; exit 7' USR1"
        waits = f"{traps}; echo $$ > pid; echo up; while :; do sleep 0.05; done"
        hook = ("sh", "-c", "sleep 0.3; kill -USR1 $(cat pid)")
        id = start(manager, waits, checkpoint=hook, notice_signal="USR2", grace_ms=20_000)
        manager.stop(id, Stop("enough", "Reclaimed", 20_000))
        ended = manager.wait_for(id, Phase.ENDED)
        assert (ended.ending, ended.exit_code) == (Ending.STOPPED, 7)
        said = manager.whole_log(id).decode().split()
        assert [word for word in said if word in ("up", "noticed", "saved")] == ["up", "noticed", "saved"]
        assert ended.checkpoint_at_ms > 0

    def test_a_task_that_does_not_listen_is_killed_after_its_grace(self, machine: Machine, manager: Manager) -> None:
        id = start(manager, "trap '' TERM; echo up; while :; do sleep 0.05; done")
        manager.stop(id, Stop("enough", "Reclaimed", 200))
        assert manager.wait_for(id, Phase.ENDED).exit_code == 137
        assert outside(id) == []

    def test_a_killed_supervisor_takes_its_task_along(self, machine: Machine, manager: Manager) -> None:
        id = start(manager, "setsid sleep 300 & echo up; sleep 300")
        os.kill(machine.supervisor(id), signal.SIGKILL)
        assert manager.wait_for(id, Phase.ENDED).ending is Ending.LOST
        assert outside(id) == []

    def test_an_init_that_is_killed_takes_its_task_along(self, machine: Machine, manager: Manager) -> None:
        id = start(manager, "setsid sleep 300 & echo up; sleep 300")
        parents = process_parents()
        command = manager.reports[id].pid
        inits = [pid for pid, parent in parents.items() if parent == parents[command] and pid != command]
        assert len(inits) == 1
        os.kill(inits[0], signal.SIGKILL)
        ended = manager.wait_for(id, Phase.ENDED)
        assert (ended.ending, ended.exit_code) == (Ending.EXITED, 137)
        assert outside(id) == []

    def test_a_task_cannot_end_its_init(self, machine: Machine, manager: Manager) -> None:
        said, id = run(manager, "for s in TERM INT HUP KILL USR1; do kill -$s 1 && echo KILLED; done; echo alive")
        assert "KILLED" not in said
        assert said.splitlines()[-1] == "alive"
        assert manager.reports[id].exit_code == 0

    def test_the_next_agent_finds_the_task_and_can_stop_it(self, machine: Machine, manager: Manager) -> None:
        id = start(manager, "echo up; sleep 300")
        pid = manager.reports[id].pid
        machine.kill()
        machine.start()
        assert manager.wait_for(id, Phase.RUNNING).pid == pid
        manager.stop(id, Stop("enough", "Cancelled", 200))
        assert manager.wait_for(id, Phase.ENDED).ending is Ending.STOPPED

    def test_memory_is_that_of_the_task_without_its_init(self, machine: Machine, manager: Manager) -> None:
        id = start(manager, "echo up; exec sleep 300", memory_bytes=64 << 20)
        pause(1.5)
        eventually(lambda: manager.reports[id].memory_bytes > 0)
        assert manager.reports[id].memory_bytes < 6 << 20

    def test_a_task_with_too_much_memory_is_ended(self, machine: Machine, manager: Manager) -> None:
        script = "echo up; head -c 200000000 /dev/zero | tail -c 200000000 | sleep 300"
        task = a_script(script, run_as=ADA, memory_bytes=32 << 20)
        manager.want(task)
        assert manager.wait_for(task.id, Phase.ENDED).ending is Ending.OUT_OF_MEMORY


@isolated
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv is not installed")
def test_a_task_that_gets_no_namespace_where_others_did_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    task = a_script("echo up", run_as=ADA)
    with open_folder() as folder:
        python = folder / "python"
        python.write_text(f'#!/bin/sh\nexec setpriv --bounding-set -sys_admin {sys.executable} "$@"\n')
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        home = prepare(folder / "home", Isolation.USERS)
        runtime = ProcessRuntime(home, NoDevices(), Isolation.USERS, Cgroups(()), ProcessView.ISOLATED)
        with closing(runtime):
            runtime.renew(boot_ms() + 60_000, 60_000)
            runtime.start(task)
            eventually(lambda: has_ended(runtime, task.id))
            (report,) = runtime.attempts()
    assert report.ending is Ending.NOT_STARTED
    assert report.message == "a PID namespace of its own: Operation not permitted"


@isolated
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv is not installed")
def test_a_root_that_may_make_no_namespaces_still_runs_jobs_and_says_so(authority: Authority) -> None:
    with Manager(authority) as manager, open_folder() as at, shared_machine(at / "home", authority, manager) as machine:
        machine.prefix = ["setpriv", "--bounding-set", "-sys_admin"]
        machine.start("--fake-gpus", "0")
        facts = manager.hellos[-1].facts
        assert facts.process_view is ProcessView.SHARED
        assert "Operation not permitted" in facts.process_note
        said, id = run(manager, "id -u; ls /proc | grep -c '^[0-9]'")
        assert manager.reports[id].exit_code == 0
        assert said.split()[0] == str(ADA.uid)
        assert int(said.split()[1]) > 2
