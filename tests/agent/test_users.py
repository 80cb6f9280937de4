"""Where the agent is root, each job is a user of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from gpuyard.agent.cgroups import Cgroups
from gpuyard.agent.home import Home, prepare
from gpuyard.agent.logs import read_part
from gpuyard.agent.process_runtime import ProcessRuntime
from gpuyard.agent.users import account
from gpuyard.errors import AgentError
from gpuyard.model.jobs import DeviceShare
from gpuyard.platform.clock import boot_ms
from gpuyard.wire.agents import Ending, Isolation, Phase, RunAs, Stop
from tests.agent.certificates import Authority
from tests.agent.machines import Machine, a_script, a_task, shared_machine
from tests.agent.manager import Manager, eventually
from tests.agent.runtimes import NoDevices, has_ended
from tests.yard import open_folder

ADA, BOB = RunAs(uid=61_001), RunAs(uid=61_002)
AS_ROOT = os.geteuid() == 0


@pytest.mark.parametrize(
    ("run_as", "message"),
    [
        (None, "no user was named"),
        (RunAs(), "may not run as root"),
        (RunAs("root"), "may not run as root"),
        (RunAs("no-such-user"), 'no user "no-such-user"'),
        (RunAs(uid=-1), "-1 is not the number of a user"),
    ],
)
def test_a_user_that_will_not_do_is_refused(run_as: RunAs | None, message: str) -> None:
    with pytest.raises(AgentError, match=message):
        account(run_as)


def test_a_number_without_a_user_has_a_group_of_its_own() -> None:
    found = account(ADA)
    assert (found.uid, found.gid, found.groups) == (61_001, 61_001, (61_001,))


@pytest.fixture(scope="module")
def manager(authority: Authority) -> Iterator[Manager]:
    with Manager(authority) as made:
        yield made


@pytest.fixture(scope="module")
def running_machine(authority: Authority, manager: Manager) -> Iterator[Machine]:
    """In a folder that other users may pass, which those of pytest are not."""
    with open_folder() as folder, shared_machine(folder / "home", authority, manager) as made:
        yield made.start("--fake-gpus", "2")


@pytest.fixture
def machine(running_machine: Machine, manager: Manager) -> Iterator[Machine]:
    """One serves all of these tests."""
    yield running_machine
    manager.drop_everything()


@pytest.mark.slow
@pytest.mark.skipif(not AS_ROOT, reason="only root can change users")
class TestAsRoot:
    def test_a_job_runs_as_its_user_and_can_become_nobody_else(self, machine: Machine, manager: Manager) -> None:
        assert manager.facts.isolation is Isolation.USERS
        task = a_script("id -u; id -G; grep NoNewPrivs /proc/self/status; ulimit -c", run_as=ADA)
        manager.want(task)
        manager.wait_for(task.id, Phase.ENDED)
        assert manager.whole_log(task.id).split() == [b"61001", b"61001", b"NoNewPrivs:", b"1", b"0"]

    def test_a_job_without_a_user_is_not_started(self, machine: Machine, manager: Manager) -> None:
        task = a_script("id -u")
        manager.want(task)
        ended = manager.wait_for(task.id, Phase.ENDED)
        assert ended.ending is Ending.NOT_STARTED
        assert "no user was named" in ended.message

    def test_jobs_cannot_look_into_each_other_or_the_agent(self, machine: Machine, manager: Manager) -> None:
        mine = a_script("pwd; echo secret > saved; sleep 60", run_as=ADA)
        manager.want(mine)
        manager.wait_for(mine.id, Phase.RUNNING)
        place = manager.read_log(mine.id, wait_ms=10_000).data.decode().strip()
        assert place.startswith(str(machine.home))
        home = machine.home
        tries = [f"cat {place}/saved", f"ls {place}", f"ls {home}/attempts", f"cat {home}/key.pem", f"ls {home}"]
        tries += [f"ls {home}/open/notices/{mine.id}", f"echo x > {home}/lease", f"echo x > {home}/wake"]
        script = "; ".join(f"({attempt}) && echo LEAK" for attempt in tries)
        theirs = a_script(f"sleep 0.2; {script}; exit 0", run_as=BOB)
        manager.want(theirs)
        manager.wait_for(theirs.id, Phase.ENDED)
        assert b"LEAK" not in manager.whole_log(theirs.id)

    def test_a_notice_can_be_read_by_its_job_and_written_by_nobody(self, machine: Machine, manager: Manager) -> None:
        file = "$GPUYARD_PREEMPT_NOTICE_FILE"
        on_notice = f'cat "{file}"; rm -f "{file}" && echo REMOVED; echo x > "{file}" && echo WRITTEN; exit 0'
        planted = f'ln -s /etc/passwd "{file}" && echo PLANTED'
        script = f"trap '{on_notice}' TERM; {planted}; echo up; while :; do sleep 0.05; done"
        task = a_script(script, run_as=ADA)
        manager.want(task)
        manager.wait_for(task.id, Phase.RUNNING)
        assert manager.read_log(task.id, wait_ms=10_000).data
        manager.stop(task.id, Stop("enough", "Reclaimed"))
        manager.wait_for(task.id, Phase.ENDED)
        said = manager.whole_log(task.id)
        assert b'"reason": "Reclaimed"' in said
        assert not any(word in said for word in (b"REMOVED\n", b"WRITTEN\n", b"PLANTED\n"))

    @pytest.mark.skipif(os.uname().machine != "x86_64", reason="the system call has another number")
    def test_jobs_do_not_share_the_keyring_that_the_agent_was_started_with(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As in a login session: whoever has inherited it may read and write it, whatever user that is."""
        begin = "import ctypes, os, sys; call = ctypes.CDLL(None).syscall; "
        wrapper = (
            f"#!/bin/sh\nexec /usr/bin/python3 -c '{begin}call(250, 1, None); os.execv(sys.argv[1], sys.argv[1:])'"
        )
        add = f'{begin}print("ADDED", call(248, b"user", b"canary", b"secret", 6, -3) > 0)'
        find = f'{begin}print("FOUND", call(250, 10, -3, b"user", b"canary", 0) > 0)'
        said = []
        with open_folder() as folder:
            python = folder / "python"
            python.write_text(f'{wrapper} {sys.executable} "$@"\n')
            python.chmod(0o755)
            monkeypatch.setattr(sys, "executable", str(python))
            with closing(runtime_in(prepare(folder / "home", Isolation.USERS))) as runtime:
                for who, script in ((ADA, add), (BOB, find)):
                    task = a_task("/usr/bin/python3", "-c", script, run_as=who)
                    runtime.start(task)
                    eventually(lambda id=task.id: has_ended(runtime, id))  # type: ignore[misc]
                    log = runtime.log_folder(task.id)
                    assert log is not None
                    said.append(read_part(log, 0, 1_000).data)
        assert said == [b"ADDED True\n", b"FOUND False\n"]

    def test_a_user_of_a_job_sees_its_fake_gpus(self, machine: Machine, manager: Manager) -> None:
        task = a_script("nvidia-smi -L", run_as=ADA, shares=(DeviceShare(1),))
        manager.want(task)
        assert manager.wait_for(task.id, Phase.ENDED).exit_code == 0
        assert manager.whole_log(task.id).count(b"GPU-") == 1

    def test_another_user_cannot_take_over_the_private_directory_of_a_job(
        self, machine: Machine, manager: Manager
    ) -> None:
        first = a_script("echo secret > saved", run_as=ADA)
        manager.want(first)
        manager.wait_for(first.id, Phase.ENDED)
        manager.record(first.id)
        second = a_script("cat saved", run_as=BOB, id=type(first.id)(first.id.job, 0, 2))
        manager.want(second)
        ended = manager.wait_for(second.id, Phase.ENDED)
        assert ended.ending is Ending.NOT_STARTED
        assert "belongs to another user" in ended.message

    def test_an_agent_killed_while_it_makes_a_private_directory_costs_the_job_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task = a_script("touch mine", run_as=ADA)
        with open_folder() as folder:
            home = prepare(folder / "home", Isolation.USERS)
            with monkeypatch.context() as patch, closing(runtime_in(home)) as first:
                patch.setattr(os, "chown", killed)
                with pytest.raises(KilledError):
                    first.start(task)
            with closing(runtime_in(home)) as second:
                second.start(task)
                eventually(lambda: has_ended(second, task.id))
                (report,) = second.attempts()
        assert (report.ending, report.exit_code, report.message) == (Ending.EXITED, 0, "")


class KilledError(BaseException):
    """Nothing more is done, as after kill -9."""


def killed(*_: object) -> None:
    raise KilledError


def runtime_in(home: Home) -> ProcessRuntime:
    runtime = ProcessRuntime(home, NoDevices(), Isolation.USERS, Cgroups(()))
    runtime.renew(boot_ms() + 60_000, 60_000)
    return runtime
