"""A new user's first hour, with the real commands: submit, watch, explain, quota, borrowing, reclaim, logs, cancel.

Everything runs on SQLite and on PostgreSQL, against `gpuyard up` as a person would start it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator

import pytest

from gpuyard.sdk.bodies import JobRequest
from gpuyard.sdk.client import Client
from gpuyard.wire.access import Grant, Role
from gpuyard.wire.rest import TokenRequest, UserChange
from tests.yard import Yard, open_folder, running_yard, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("yard")]

TEAMS = """
queues:
  vision: {quota: 4}
  speech: {quota: 4}
"""


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def yard(request: pytest.FixtureRequest) -> Iterator[Yard]:
    options = ["--fake-gpus", "8", "--accept-shared-user"]
    if request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
        options += ["--database", server.url(server.make_database())]
    with open_folder() as folder, running_yard(folder, *options) as running:
        running.ready().close()
        teams = folder / "teams.yaml"
        teams.write_text(TEAMS)
        running.gpuyard("team", "set", str(teams), "--replace", "--yes")
        yield running


def state_of(yard: Yard, job: str) -> str:
    with yard.client() as client:
        return client.get_job(job).state


def restarts_of(yard: Yard, job: str) -> int:
    with yard.client() as client:
        return client.get_job(job).restarts


def submit(yard: Yard, *words: str) -> str:
    return yard.gpuyard("submit", *words).stdout.split()[0]


def cancel_all(yard: Yard) -> None:
    with yard.client() as client:
        for job in list(client.jobs(state="active")):
            client.cancel_job(job.id)
        wait_for(lambda: not list(client.jobs(state="active")), 60)


def test_run_shows_what_a_job_writes_and_ends_with_its_code(yard: Yard) -> None:
    words = ("--gpus", "1", "--", "sh", "-c", "nvidia-smi -L; exit 3")
    done = yard.gpuyard("run", "--team", "vision", *words, check=False)
    assert "A100" in done.stdout
    assert done.stdout.count("GPU ") == 1
    assert done.returncode == 3


def test_a_job_that_waits_says_why_and_starts_when_there_is_room(yard: Yard) -> None:
    first = submit(yard, "--team", "vision", "--gpus", "8", "--", "sleep", "60")
    wait_for(lambda: state_of(yard, first) == "running")
    second = submit(yard, "--team", "vision", "--gpus", "1", "--", "true")
    explained = yard.gpuyard("explain", second, check=False)
    assert explained.returncode == 10
    assert "GPU" in explained.stdout
    yard.gpuyard("cancel", first, "--yes")
    wait_for(lambda: state_of(yard, second) == "succeeded")
    assert state_of(yard, first) == "cancelled"


def test_what_was_borrowed_is_taken_back_with_notice_and_the_job_runs_again(yard: Yard) -> None:
    polite = "trap 'cat $GPUYARD_PREEMPT_NOTICE_FILE; exit 0' TERM; echo try $GPUYARD_RESTART_COUNT; sleep 60 & wait"
    borrower = submit(yard, "--team", "vision", "--gpus", "8", "--", "sh", "-c", polite)
    wait_for(lambda: state_of(yard, borrower) == "running")
    owner = submit(yard, "--team", "speech", "--gpus", "4", "--", "sleep", "1")
    wait_for(lambda: state_of(yard, owner) in ("running", "succeeded"))
    wait_for(lambda: state_of(yard, owner) == "succeeded")
    wait_for(lambda: state_of(yard, borrower) == "running")
    story = yard.gpuyard("describe", borrower).stdout
    assert "Reclaimed" in story or "gives way" in story
    wait_for(lambda: "try 1" in yard.gpuyard("logs", borrower).stdout)
    cancel_all(yard)
    check_use(yard)


def check_use(yard: Yard) -> None:
    """Use is counted by team, and waste names its cause."""
    rows = json.loads(yard.gpuyard("usage", "--by", "team", "-o", "json").stdout)
    by_team = {row["team"]: row for row in rows}
    assert float(by_team["vision"]["borrowed"]) > 0
    assert float(by_team["speech"]["lent"]) > 0
    assert float(by_team["vision"]["wasted"]) > 0
    assert any(cause["token"] == "Reclaimed" for cause in by_team["vision"]["causes"])


def test_a_job_beyond_a_limit_waits_with_the_numbers(yard: Yard) -> None:
    with yard.client() as client:
        before = {team.name: team.limit for team in client.teams()}
    change = yard.home.parent / "limit.yaml"
    change.write_text("queues: {speech: {quota: 4, limit: 4}, vision: {quota: 4}}")
    shown = yard.gpuyard("team", "set", str(change), "--replace", "--dry-run")
    with yard.client() as client:
        assert {team.name: team.limit for team in client.teams()} == before, shown.stdout
    yard.gpuyard("team", "set", str(change), "--replace", "--yes")
    first = submit(yard, "--team", "speech", "--gpus", "4", "--", "sleep", "60")
    second = submit(yard, "--team", "speech", "--gpus", "1", "--", "true")
    wait_for(lambda: state_of(yard, first) == "running")
    explained = yard.gpuyard("explain", second, check=False).stdout
    assert "limit" in explained
    assert "4" in explained
    cancel_all(yard)


def test_a_job_that_can_never_run_is_refused_at_submission(yard: Yard) -> None:
    done = yard.gpuyard("submit", "--team", "vision", "--gpus", "16", "--", "true", check=False)
    assert done.returncode == 7
    assert "16" in done.stderr
    yard.gpuyard("submit", "--team", "vision", "--gpus", "16", "--allow-never", "--hold", "--", "true")
    cancel_all(yard)


def test_an_array_runs_so_many_at_once_and_what_depends_on_it_runs_after(yard: Yard) -> None:
    array = submit(yard, "--team", "vision", "--gpus", "1", "--array", "0-4%2", "--", "sh", "-c", "sleep 0.2")
    number = array.split("_")[0]
    after = submit(yard, "--team", "vision", "--gpus", "1", "--afterok", number, "--", "true")
    wait_for(lambda: state_of(yard, after) == "succeeded", 60)
    with yard.client() as client:
        assert {job.state for job in client.jobs(array=number)} == {"succeeded"}


def test_a_gang_meets_by_the_variables_it_is_given(yard: Yard) -> None:
    job = submit(yard, "--team", "vision", "--gpus", "2", "--tasks", "2", "--", "sh", "-c", "echo $RANK/$WORLD_SIZE")
    wait_for(lambda: state_of(yard, job) == "succeeded")
    ranks = {yard.gpuyard("logs", job, "--rank", str(rank)).stdout.strip() for rank in (0, 1)}
    assert ranks == {"0/2", "1/2"}


def test_hold_release_suspend_resume_and_requeue_do_what_they_say(yard: Yard) -> None:
    job = submit(yard, "--team", "vision", "--gpus", "1", "--hold", "--", "sh", "-c", "sleep 60")
    assert state_of(yard, job) == "held"
    yard.gpuyard("release", job)
    wait_for(lambda: state_of(yard, job) == "running")
    yard.gpuyard("suspend", job, "--yes")
    wait_for(lambda: state_of(yard, job) == "suspended")
    yard.gpuyard("resume", job)
    wait_for(lambda: state_of(yard, job) == "running")
    yard.gpuyard("requeue", job, "--yes")
    wait_for(lambda: restarts_of(yard, job) == 2)
    wait_for(lambda: state_of(yard, job) == "running")
    yard.gpuyard("cancel", job, "--yes")
    wait_for(lambda: state_of(yard, job) == "cancelled")


def test_running_jobs_are_found_again_after_a_restart(yard: Yard) -> None:
    gate = yard.home.parent / "gate"
    script = f"echo once; until [ -e {gate} ]; do sleep 0.1; done; echo end"
    job = submit(yard, "--team", "vision", "--gpus", "1", "--", "sh", "-c", script)
    wait_for(lambda: state_of(yard, job) == "running")
    yard.kill_manager()
    yard.kill_agent()
    yard.start()
    gate.touch()
    wait_for(lambda: state_of(yard, job) == "succeeded", 60)
    assert yard.gpuyard("logs", job).stdout.split() == ["once", "end"]
    assert restarts_of(yard, job) == 0


def test_state_and_logs_are_closed_to_others(yard: Yard) -> None:
    for path in (yard.home / "state", yard.home / "agent" / "attempts", yard.home / "agent" / "kept"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert (yard.home / "admin.token").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: jobs run as other users")
def test_jobs_of_two_users_cannot_read_each_others_folders(yard: Yard) -> None:
    first = submit(yard, "--team", "vision", "--gpus", "0", "--", "sh", "-c", "echo secret > mine; pwd; sleep 600")
    wait_for(lambda: yard.gpuyard("logs", first).stdout.strip())
    folder = yard.gpuyard("logs", first).stdout.strip()
    look = f"id -u; cat {folder}/mine; ls {folder}"
    with yard.client() as admin:
        admin.set_user("sam", UserChange((Grant(Role.MEMBER, "speech"),)))
        token = admin.create_token(TokenRequest("test", user="sam")).secret
    with Client(yard.url, token) as sam:
        second = sam.submit_job(JobRequest(team="speech", gpus=0, command=["sh", "-c", look])).jobs[0].id
    wait_for(lambda: state_of(yard, second) in ("succeeded", "failed"))
    said = yard.gpuyard("logs", second).stdout
    assert "secret" not in said
    assert "Permission denied" in said
    assert said.split()[0] not in ("0", str(os.getuid()))
    cancel_all(yard)


def test_a_machine_whose_agent_was_set_up_anew_is_taken_back(yard: Yard) -> None:
    yard.kill_manager()
    yard.kill_everyone()
    shutil.rmtree(yard.home / "agent")
    yard.start()
    yard.ready().close()
    job = submit(yard, "--team", "vision", "--gpus", "1", "--", "true")
    wait_for(lambda: state_of(yard, job) == "succeeded", 60)
