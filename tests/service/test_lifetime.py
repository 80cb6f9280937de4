"""How a yard ends: what goes with it, what goes on, and what is said about it."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import pytest

from gpuyard.sdk.bodies import JobRequest
from gpuyard.sdk.client import Client
from tests.yard import Yard, open_folder, running_yard, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("yard")]

GONE_S = 60.0
POLITE = 'trap "echo saved > {file}; exit 0" TERM; echo up; while true; do sleep 0.1; done'


def until(gate: Path) -> str:
    """A command that goes on until that file is there: however long the test takes, it runs till then."""
    return f"until [ -e {gate} ]; do sleep 0.1; done"


def run_job(client: Client, command: str, *, state: str = "running") -> str:
    job = client.submit_job(JobRequest(command=command, gpus=1)).jobs[0].id
    wait_for(lambda: client.get_job(job).state == state, 60)
    return job


def nobody_is_left(yard: Yard) -> None:
    wait_for(lambda: not yard.everyone(), GONE_S, lambda: f"still there: {described(yard.everyone())}")


def described(pids: list[int]) -> list[str]:
    found = []
    for pid in pids:
        with suppress(OSError):
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def test_down_with_jobs_ends_them_politely_and_leaves_nobody() -> None:
    with open_folder() as folder, running_yard(folder, "--fake-gpus", "2") as yard:
        (folder / "out").mkdir()
        (folder / "out").chmod(0o777)
        saved = folder / "out" / "saved"
        with yard.ready() as client:
            job = run_job(client, POLITE.format(file=saved))
            wait_for(lambda: b"up" in b"".join(client.logs(job)))
        told = yard.gpuyard("down", "--with-jobs").stderr
        assert saved.read_text() == "saved\n"
        assert "1 told to end" in told
        assert "fake GPUs  ended" in told
        nobody_is_left(yard)
        assert yard.gpuyard("down", check=False).stderr.startswith(f"error: nothing runs in {yard.home}")


def test_down_leaves_jobs_and_their_gpus_until_they_end() -> None:
    with open_folder() as folder, running_yard(folder, "--fake-gpus", "2") as yard:
        with yard.ready() as client:
            run_job(client, until(folder / "gate"))
        told = yard.gpuyard("down").stderr
        assert "1 task runs on; it ends within" in told
        (folder / "gate").touch()
        wait_for(lambda: not any("supervisor-" in words for words in described(yard.everyone())), GONE_S)
        assert "fake GPUs  ended" in yard.gpuyard("down").stderr
        nobody_is_left(yard)


def end(yard: Yard, number: signal.Signals) -> str:
    """Signal `gpuyard up`, and what it said once it has ended."""
    assert yard.process is not None
    yard.process.send_signal(number)
    assert yard.process.wait(40) == 0
    return yard.said()


def test_ctrl_c_ends_everything_where_nothing_runs() -> None:
    with open_folder() as folder, running_yard(folder, "--fake-gpus", "2") as yard:
        with yard.ready() as client:
            run_job(client, "true", state="succeeded")
        said = end(yard, signal.SIGINT)
        assert "agent      ended" in said
        assert "on; " not in said
        nobody_is_left(yard)


def test_ctrl_c_before_the_machine_is_ready_leaves_nobody() -> None:
    with open_folder() as folder, running_yard(folder, "--fake-gpus", "2") as yard:
        end(yard, signal.SIGINT)
        nobody_is_left(yard)


def test_jobs_that_run_at_the_end_are_told_of_and_found_again() -> None:
    with open_folder() as folder, running_yard(folder, "--fake-gpus", "2") as yard:
        with yard.ready() as client:
            job = run_job(client, f"{until(folder / 'gate')}; echo through")
        assert "1 job runs on; it ends within 60 s unless gpuyard comes back" in end(yard, signal.SIGTERM)
        yard.start()
        with yard.ready() as client:
            (folder / "gate").touch()
            wait_for(lambda: client.get_job(job).state == "succeeded", 60)
            assert b"".join(client.logs(job)) == b"through\n"


def test_an_agent_from_before_ends_with_the_manager_that_found_it() -> None:
    with open_folder() as folder, running_yard(folder, "--fake-gpus", "2") as yard:
        yard.ready().close()
        agent = yard.agent_pid()
        yard.kill_manager()
        yard.start()
        yard.ready().close()
        assert yard.agent_pid() == agent
        end(yard, signal.SIGINT)
        nobody_is_left(yard)


def test_why_the_agent_cannot_start_is_said_once_and_shown_by_status_and_doctor() -> None:
    with open_folder() as folder:
        yard = Yard(folder / "home", "--fake-gpus", "1")
        yard.environment |= {"CC": str(folder / "no-compiler"), "XDG_CACHE_HOME": str(folder / "cache")}
        try:
            yard.start()
            with yard.client() as client:
                wait_for(lambda: client.status().warnings)
            first = (yard.home / "agent" / "agent.log").stat().st_mtime_ns
            wait_for(lambda: (yard.home / "agent" / "agent.log").stat().st_mtime_ns > first, why=yard.said)
            wait_for(lambda: yard.agent_pid() == 0)
            assert yard.said().count("agent      does not run on this machine: ") == 1
            assert "no-compiler" in yard.said()
            assert "the agent of the manager's own machine does not run: " in yard.gpuyard("status").stderr
            seen = yard.gpuyard("doctor", check=False)
            assert seen.returncode == 1
            assert "no-compiler" in seen.stdout
            end(yard, signal.SIGINT)
            nobody_is_left(yard)
        finally:
            yard.stop()


@pytest.mark.parametrize(
    ("count", "said"),
    [
        ("0", "gpus       none on this machine: only jobs without GPUs run here\n"),
        ("2", "gpus       2 x A100-40 (FAKE: "),
    ],
)
def test_what_gpus_there_are_is_said(count: str, said: str) -> None:
    with open_folder() as folder, running_yard(folder, "--fake-gpus", count) as yard:
        wait_for(lambda: said in yard.said(), 30, yard.said)


def test_an_agent_that_was_killed_is_started_again_and_told_of() -> None:
    with open_folder() as folder, running_yard(folder, "--fake-gpus", "0") as yard:
        yard.ready().close()
        yard.kill_agent()
        wait_for(lambda: "does not run on this machine: it was ended by signal 9" in yard.said(), 30, yard.said)
        yard.ready().close()


# ------------------------------------------------------------------------------------------------------------ the home


def test_a_home_keeps_its_database_its_machines_name_and_its_logs_to_itself() -> None:
    """Whatever is left out at the next start is as it was."""
    with open_folder() as folder:
        yard = Yard(folder / "home", "--fake-gpus", "0", "--node", "near", "--database", str(folder / "elsewhere.db"))
        try:
            yard.start()
            with yard.ready() as client:
                cluster = client.status().cluster
            end(yard, signal.SIGTERM)
            yard.options = ("--fake-gpus", "0")
            yard.start()
            with yard.ready() as client:
                assert client.status().cluster == cluster
                assert [(node.name, node.state) for node in client.nodes()] == [("near", "ready")]
            logs = (yard.home / "agent" / "agent.log", yard.home / "agent" / "nursery.log")
            assert [log.stat().st_mode & 0o777 for log in logs if log.exists()] == [0o600, 0o600]
            end(yard, signal.SIGTERM)
            doors = ("--listen", f"127.0.0.1:{yard.port}", "--agents-listen", f"127.0.0.1:{yard.agents_port}")
            done = yard.gpuyard("up", "--node", "far", *doors, check=False)
            assert done.returncode == 1
            assert f'this machine is known as "near" since it was first started in {yard.home}' in done.stderr
            assert yard.gpuyard("up", "--database", "", check=False).returncode == 2
        finally:
            yard.stop()


def test_a_backup_is_restored_into_a_home_that_is_new_and_its_owner_is_let_in() -> None:
    with open_folder() as folder:
        yard, anew = Yard(folder / "home", "--fake-gpus", "0"), Yard(folder / "anew", "--fake-gpus", "0")
        try:
            yard.start()
            with yard.ready() as client:
                job = client.submit_job(JobRequest(command="true", gpus=0)).jobs[0].id
                wait_for(lambda: client.get_job(job).state == "succeeded")
            yard.gpuyard("backup", str(folder / "yard.backup"))
            end(yard, signal.SIGTERM)
            anew.gpuyard("restore", str(folder / "yard.backup"))
            assert (anew.home / "state").stat().st_mode & 0o777 == 0o700
            anew.start()
            with anew.ready() as client:
                assert client.get_job(job).state == "succeeded"
                assert client.whoami().user == "admin"
        finally:
            yard.stop()
            anew.stop()


def test_after_a_restore_no_new_job_is_taken_for_one_that_the_backup_does_not_know() -> None:
    """The machine still has what the lost one left: its ending, its log, its folder."""
    with open_folder() as folder, running_yard(folder, "--fake-gpus", "0") as yard:
        yard.ready().close()
        yard.gpuyard("backup", str(folder / "yard.backup"))
        with yard.ready() as client:
            lost = client.submit_job(JobRequest(command="echo lost; exit 5", gpus=0)).jobs[0].id
            wait_for(lambda: client.get_job(lost).state == "failed")
        end(yard, signal.SIGTERM)
        yard.gpuyard("restore", "--force", str(folder / "yard.backup"))
        yard.start()
        with yard.ready() as client:
            job = client.submit_job(JobRequest(command="echo new", gpus=0)).jobs[0].id
            wait_for(lambda: client.get_job(job).ended_at is not None)
            assert (job, client.get_job(job).state, b"".join(client.logs(job))) == ("1000001", "succeeded", b"new\n")


def test_in_the_background_it_says_the_same_and_comes_back_once_the_machine_takes_work() -> None:
    with open_folder() as folder:
        yard = Yard(folder / "home")
        try:
            listen = ("--listen", f"127.0.0.1:{yard.port}", "--agents-listen", f"127.0.0.1:{yard.agents_port}")
            told = yard.gpuyard("up", "--detach", "--fake-gpus", "1", *listen).stdout
            with yard.client() as client:
                assert client.status().ready_nodes == 1
            assert f"address    http://127.0.0.1:{yard.port}\n" in told
            assert "gpus       1 x A100-40 (FAKE: " in told
            assert (yard.home / "admin.token").read_text() not in told
            yard.gpuyard("down")
        finally:
            yard.stop()
