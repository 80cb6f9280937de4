"""The command line against the product itself: `gpuyard up`, then what a person does.

One server for all; each test brings its own jobs.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from gpuyard.sdk.bodies import JobRequest
from tests.yard import Yard as RunningYard
from tests.yard import open_folder, running_yard, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("yard")]


class Yard:
    """A running server, and the command line of a person beside it."""

    def __init__(self, running: RunningYard) -> None:
        self.running = running
        self.home = running.home
        kept = {name: value for name, value in running.environment.items() if not name.startswith("GPUYARD_")}
        self.environment = {**kept, "GPUYARD_HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home / "settings")}

    def run(self, *words: str, check: int | None = 0, input: str | None = None) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            [sys.executable, "-m", "gpuyard", *words],
            capture_output=True,
            text=True,
            input=input,
            timeout=60,
            env=self.environment,
            check=False,
        )
        assert check is None or result.returncode == check, (words, result)
        return result

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "gpuyard", *words]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment
        )

    def submit(self, *words: str) -> str:
        return self.run("submit", *words).stdout.strip()

    def until(self, job: str, state: str) -> None:
        wait_for(lambda: json.loads(self.run("get", job, "-o", "json").stdout)["state"] == state)


@pytest.fixture(scope="module")
def yard() -> Iterator[Yard]:
    with open_folder() as folder, running_yard(folder, "--fake-gpus", "4") as running:
        running.ready().close()
        yield Yard(running)


def test_a_first_job_runs_and_its_code_is_ours(yard: Yard) -> None:
    result = yard.run("run", "--gpus", "1", "--", "sh", "-c", "echo hello; echo $CUDA_VISIBLE_DEVICES; exit 3", check=3)
    assert result.stdout.splitlines()[0] == "hello"
    assert "failed with exit code 3" in result.stderr


def test_an_array_waits_its_turn_and_can_be_cancelled_as_one(yard: Yard) -> None:
    ids = yard.submit("--gpus", "0.25", "--array", "0-3%1", "--", "sleep", "60").splitlines()
    assert len(ids) == 4
    array = ids[0].partition("_")[0]
    assert yard.run("cancel", array, "-o", "name").stdout.splitlines() == ids
    yard.run("wait", *ids, check=103)


def test_a_submission_is_tried_and_nothing_is_submitted(yard: Yard) -> None:
    before = yard.run("ls", "-a", "-o", "name").stdout
    said = yard.run("submit", "--dry-run", "--gpus", "1", "--name", "tried", "--", "true").stdout.splitlines()
    assert said[0] == "would submit a job (tried) for team default: 1 GPU, priority 50"
    assert " starts 1 task on " in said[1]
    many = yard.run("submit", "--dry-run", "--gpus", "0", "--array", "0-2", "--", "true").stdout
    assert many.startswith("would submit 3 jobs for team default: 0 GPUs")
    assert yard.run("ls", "-a", "-o", "name").stdout == before


def test_an_array_is_waited_for_by_its_number_also_when_it_is_over(yard: Yard) -> None:
    ids = yard.submit("--gpus", "0", "--array", "0-2", "--", "sh", "-c", "exit $GPUYARD_ARRAY_INDEX").splitlines()
    array = ids[0].partition("_")[0]
    for _ in range(2):
        told = yard.run("wait", array, check=1).stderr
        assert f"job {ids[2]} failed with exit code 2" in told
    told = yard.run("get", array, check=3).stderr
    assert f"{array} is an array of 3 jobs" in told


def test_an_elastic_job_grows_where_it_runs_and_shrinks_by_the_way_that_is_told(yard: Yard) -> None:
    job = yard.submit("--gpus", "0", "--elastic", "1-2", "--grace", "1s", "--", "sleep", "60")

    def running_tasks() -> int:
        return int(json.loads(yard.run("get", job, "-o", "json").stdout)["running_tasks"])

    wait_for(lambda: running_tasks() == 2)
    yard.run("scale", job, "3")
    wait_for(lambda: running_tasks() == 3)
    refused = yard.run("scale", job, "1", check=5).stderr
    assert "suspend the job, scale it, and resume it" in refused
    yard.run("suspend", job)
    yard.until(job, "suspended")
    yard.run("scale", job, "1")
    yard.run("resume", job)
    wait_for(lambda: running_tasks() == 1)
    yard.run("cancel", job)


def test_logs_are_shown_from_a_moment_on(yard: Yard) -> None:
    go = yard.home.parent / "go"
    job = yard.submit("--gpus", "0", "--", "sh", "-c", f"echo early; until [ -e {go} ]; do sleep 0.1; done; echo late")
    wait_for(lambda: yard.run("logs", job, check=None).stdout == "early\n")
    # What was said within the second before is shown, too.
    time.sleep(2.5)
    since = datetime.now(UTC).isoformat()
    go.touch()
    yard.until(job, "succeeded")
    assert yard.run("logs", job).stdout == "early\nlate\n"
    assert yard.run("logs", job, "--since", since).stdout == "late\n"
    assert yard.run("logs", job, "--since", "1h", "--tail", "1").stdout == "late\n"
    assert yard.run("logs", "-f", job, "--since", since).stdout == "late\n"
    assert "since" in yard.run("logs", job, "--since", "soon", check=2).stderr


def test_a_waiting_job_is_explained_and_a_hopeless_one_refused(yard: Yard) -> None:
    first = yard.submit("--gpus", "4", "--", "sleep", "60")
    second = yard.submit("--gpus", "4", "--name", "late", "--", "true")
    yard.until(first, "running")
    result = yard.run("explain", "late", check=10)
    assert "What stands in its way" in result.stdout
    assert yard.run("ls", "-s", "waiting", "-o", "name").stdout.split() == [second]
    refused = yard.run("submit", "--gpus", "5", "--", "true", check=7)
    assert "--allow-never" in refused.stderr
    yard.run("plan", "--gpus", "1", "--", "true")
    yard.run("cancel", first, second)


def test_a_job_file_with_a_mistake_is_told_with_line_and_column(yard: Yard) -> None:
    path = yard.home / "job.yaml"
    path.write_text("command: date\ngpu: 2\n", encoding="utf-8")
    result = yard.run("submit", str(path), check=2)
    assert result.stderr.startswith(f"error: {path}:2:1: ")
    assert '"gpu"' in result.stderr
    result = yard.run("submit", "--team", "nobody", "--", "date", check=2)
    assert result.stderr.startswith("error: --team: job")


def test_ctrl_c_lets_go_of_a_job_and_does_not_end_it(yard: Yard) -> None:
    following = yard.start("run", "--gpus", "1", "--", "sh", "-c", "echo up; sleep 600; echo down")
    try:
        assert following.stdout is not None
        assert following.stdout.readline() == "up\n"
        following.send_signal(signal.SIGINT)
        _, talk = following.communicate(timeout=60)
    finally:
        following.kill()
    assert following.returncode == 130
    job = talk.partition("logs -f ")[2].split()[0]
    assert f"detached; job {job} goes on" in talk
    assert json.loads(yard.run("get", job, "-o", "json").stdout)["state"] == "running"
    yard.run("cancel", job)


def test_logs_are_followed_until_time_is_up(yard: Yard) -> None:
    job = yard.submit("--gpus", "1", "--", "sh", "-c", "echo one; sleep 600")
    wait_for(lambda: yard.run("logs", job).stdout)
    result = yard.run("logs", "-f", job, "--timeout", "5s", check=124)
    assert result.stdout == "one\n"
    assert yard.run("logs", job, "--tail", "1").stdout == "one\n"
    yard.run("cancel", job)


def test_a_followed_job_is_followed_through_a_crash_of_the_manager(yard: Yard) -> None:
    count = "for i in $(seq 60); do echo $i; sleep 0.1; done"
    following = yard.start("run", "--gpus", "0", "--", "sh", "-c", count)
    revision = str(json.loads(yard.run("status", "-o", "json").stdout)["revision"])
    watching = yard.start("events", "-w", "-o", "jsonl", "--kind", "attempt-ended", "--after", revision)
    waiting = yard.start("wait", yard.submit("--gpus", "0", "--", "sleep", "8"))
    try:
        assert following.stdout is not None
        assert watching.stdout is not None
        assert waiting.stderr is not None
        first = following.stdout.readline()
        # All have found the server before it goes: the first says so by what the job writes, this one by its phase.
        assert waiting.stderr.readline().startswith("job ")
        yard.running.kill_manager()
        yard.running.start()
        assert (first + following.stdout.read()).split() == [str(number) for number in range(1, 61)]
        assert following.wait(timeout=60) == 0
        assert json.loads(watching.stdout.readline())["kind"] == "attempt-ended"
        waiting.communicate(timeout=60)
        assert waiting.returncode == 0
    finally:
        for process in (following, watching, waiting):
            process.kill()
            process.communicate()


def test_events_are_watched_as_json_lines(yard: Yard) -> None:
    revision = str(json.loads(yard.run("status", "-o", "json").stdout)["revision"])
    job = yard.submit("--gpus", "0", "--", "true")
    watching = yard.start("events", "-w", "-o", "jsonl", "--object", f"job/{job}", "--after", revision)
    try:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["kind"] == "job-submitted"
    finally:
        watching.kill()
        watching.communicate()


def test_a_watched_list_streams_what_changes(yard: Yard) -> None:
    watching = yard.start("ls", "--watch", "--name", "watched", "-o", "jsonl")
    try:
        assert watching.stdout is not None
        # What was submitted before the list is read is in it; what comes after is told as it happens.
        job = yard.submit("--gpus", "0", "--name", "watched", "--", "sleep", "60")
        assert json.loads(watching.stdout.readline())["id"] == job
        yard.run("cancel", job)
        states = iter(lambda: json.loads(watching.stdout.readline())["state"], "cancelled")  # type: ignore[union-attr]
        assert set(states) <= {"waiting", "starting", "running", "stopping"}
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=20)
    finally:
        watching.kill()
        watching.communicate()
    assert watching.returncode == 130


def on_a_terminal(yard: Yard, keys: bytes, *words: str) -> tuple[int, str]:
    """Run a command on a terminal of its own, and press keys once it has said something."""
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {**yard.environment, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
        os.execve(sys.executable, [sys.executable, "-m", "gpuyard", *words], environment)
    said = b""
    try:
        while True:
            try:
                piece = os.read(terminal, 4096)
            except OSError:
                break
            if not piece:
                break
            if not said:
                os.write(terminal, keys)
            said += piece
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(terminal)
    return os.waitstatus_to_exitcode(status), said.decode(errors="replace")


def test_the_live_view_ends_with_q(yard: Yard) -> None:
    code, said = on_a_terminal(yard, b"q", "top")
    assert code == 0
    assert "GPUs free (FAKE)" in said


def test_a_person_who_gets_an_empty_list_is_told_how_to_see_more(yard: Yard) -> None:
    code, said = on_a_terminal(yard, b"", "ls", "--name", "nobody")
    assert (code, "gpuyard ls -a" in said) == (0, True)


def test_many_are_touched_only_after_asking_on_a_terminal(yard: Yard) -> None:
    yard.submit("--gpus", "0", "--array", "0-1", "--label", "asked=1", "--", "sleep", "60")
    code, said = on_a_terminal(yard, b"n\n", "cancel", "-l", "asked=1")
    assert (code, "nothing was done" in said) == (1, True)
    assert len(yard.run("ls", "-l", "asked=1", "-o", "name").stdout.split()) == 2
    code, said = on_a_terminal(yard, b"y\n", "cancel", "-l", "asked=1")
    assert code == 0
    code, said = on_a_terminal(yard, b"", "run", "--gpus", "0", "--", "echo", "hello")
    assert code == 0
    assert "hello" in said


def test_jobs_are_held_released_suspended_resumed_and_requeued(yard: Yard) -> None:
    job = yard.submit("--gpus", "1", "--hold", "--grace", "1s", "--", "sleep", "60")
    yard.until(job, "held")
    yard.run("release", job)
    yard.until(job, "running")
    yard.run("suspend", job)
    yard.until(job, "suspended")
    yard.run("resume", job)
    yard.until(job, "running")
    yard.run("requeue", job)
    yard.run("suspend", job, "--if-revision", "1", check=5)
    yard.run("cancel", job)
    yard.run("wait", job, check=103)


def test_an_elastic_job_is_scaled(yard: Yard) -> None:
    job = yard.submit("--gpus", "1", "--elastic", "1-2", "--", "sleep", "60")
    yard.run("scale", job, "1-3")
    assert json.loads(yard.run("get", job, "-o", "json").stdout)["tasks"] == 3
    yard.run("cancel", job)


def test_somebody_else_signs_in_and_sees_only_their_own(yard: Yard) -> None:
    secret_job = yard.submit("--gpus", "0", "--name", "secret", "--", "sleep", "60")
    yard.run("user", "set", "eve", "--grant", "viewer@default")
    token = yard.run("token", "create", "--user", "eve", "--expires", "1h").stdout.strip()
    yard.run("login", yard.running.url, "--context", "eve", input=token)
    yard.run("whoami", "--context", "eve")
    yard.run("cancel", secret_job, "--context", "eve", check=4)
    yard.run("logs", secret_job, "--context", "eve", check=None)
    yard.run("team", "set", "default", "--quota", "1", "--yes", "--context", "eve", check=4)
    yard.run("logout", "eve", "--revoke")
    # The context is in use and has no token any more; the server of this machine is not asked in its place.
    yard.run("ls", check=4)
    (yard.home / "settings" / "gpuyard" / "config.toml").unlink()
    yard.run("cancel", secret_job)


def test_every_list_can_be_had(yard: Yard) -> None:
    for form in ("table", "wide", "json", "yaml", "jsonl", "name", "csv"):
        yard.run("ls", "-a", "-o", form)
    for noun in (["team", "ls"], ["node", "ls"], ["gpu", "ls"], ["usage"], ["events"], ["audit"], ["user", "ls"]):
        yard.run(*noun, "-o", "wide")
    for command in (["token", "ls"], ["team", "tree"], ["top", "--once"], ["doctor"]):
        yard.run(*command)


def test_machines_are_drained_and_resumed(yard: Yard) -> None:
    node = yard.run("node", "ls", "-o", "name").stdout.strip()
    yard.run("node", "drain", node, "--yes")
    yard.run("node", "resume", node)
    yard.run("node", "label", node, "rack=r1")
    assert json.loads(yard.run("node", "describe", node, "-o", "json").stdout)["labels"]["rack"] == "r1"
    assert "gpuyard agent --join" in yard.run("node", "token").stdout


def test_the_python_client_does_the_same(yard: Yard) -> None:
    with yard.running.client() as client:
        job = client.submit_job(JobRequest(command="echo from python", gpus=0)).jobs[0]
        assert b"".join(client.logs(job.id, follow=True)) == b"from python\n"
        assert client.get_job(job.id).state == "succeeded"
        assert client.status().nodes == 1
