"""`gpuyard execute` against a real manager: the flags of VDK's command, and what they print."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuyard.cli.exit_codes import CONFLICT, NOT_FOUND, REJECTED, USAGE
from gpuyard.cli.main import cli
from tests.service.yard import Yard
from tests.vdk.control.jobs import DataJobs

SETTINGS = ("TOKEN_FILE", "TEAM", "CONTEXT", "CONFIG", "OUTPUT")


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with Yard(tmp_path_factory.mktemp("yard")) as running:
        yield running


@pytest.fixture
def jobs(yard: Yard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[DataJobs]:
    for name in SETTINGS:
        monkeypatch.delenv(f"GPUYARD_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("GPUYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GPUYARD_URL", yard.url)
    monkeypatch.setenv("GPUYARD_TOKEN", yard.tokens["max"])
    made = DataJobs(yard, "max")
    yield made
    made.clear()


def execute(*words: str) -> Result:
    return CliRunner().invoke(cli, ["execute", *words], prog_name="gpuyard")


def test_a_job_is_started_looked_at_and_cancelled_by_its_newest_execution(yard: Yard, jobs: DataJobs) -> None:
    name = jobs.ready(gpus=1)
    started = execute("--start", "-j", name, "-t", "vision", "--arguments", '{"epochs": 3}')
    assert started.exit_code == 0, started.output
    (id,) = [word for word in started.stdout.split() if word.isdigit()][:1]
    yard.wait_for(id, "running")
    assert f"execution {id} of {name} started" in started.stdout
    shown = execute("--show", "-n", name, "-t", "vision")
    assert "status      running" in shown.stdout
    assert "started by  manual/gpuyard/max" in shown.stdout
    assert execute("--logs", "--name", name).stdout.startswith("/bin/sh -c")
    cancelled = execute("--cancel", "--job", name, "--team", "vision", "-o", "json")
    assert json.loads(cancelled.stdout)["id"] == id
    yard.wait_for(id, "cancelled")
    _, row = execute("--list", "-j", name).stdout.splitlines()
    assert row.split("\t")[:3] == [id, name, "cancelled"]
    assert [one["id"] for one in json.loads(execute("--list", "-j", name, "-o", "json").stdout)] == [id]


def test_the_only_team_of_mine_need_not_be_said(jobs: DataJobs) -> None:
    assert execute("--list", "-j", jobs.ready()).exit_code == 0


def test_who_has_several_teams_must_say_which(yard: Yard, jobs: DataJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUYARD_TOKEN", yard.tokens["root"])
    name = jobs.ready()
    refused = execute("--list", "-j", name)
    assert refused.exit_code == USAGE
    assert "-t TEAM; yours are product, speech, vision" in refused.stderr
    monkeypatch.setenv("GPUYARD_TEAM", "vision")
    assert execute("--list", "-j", name).exit_code == 0


def test_a_refusal_is_told_with_its_way_out(jobs: DataJobs) -> None:
    refused = execute("--start", "-j", jobs.ready(gpus=9))
    assert refused.exit_code == REJECTED
    assert 'team "vision" would be above its limit' in refused.stderr
    running = jobs.ready()
    jobs.start(running)
    assert execute("--start", "-j", running).exit_code == CONFLICT
    assert execute("--show", "-j", "no-such-job").exit_code == NOT_FOUND
    assert execute("--show", "-j", jobs.ready()).exit_code == NOT_FOUND


def test_waiting_ends_with_the_code_of_the_job(yard: Yard, jobs: DataJobs) -> None:
    name = jobs.ready()
    id = jobs.start(name)
    jobs.finish(id, 1)
    assert execute("--wait", "-j", name).exit_code == 1
    assert execute("--wait", "-j", name, "-i", id).exit_code == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "say what to do"),
        (("--start", "--list"), "one thing at a time: --start or --list"),
        (("--list", "--wait"), "--wait goes with --start"),
        (("--list", "--arguments", "{}"), "--arguments is for --start"),
        (("--start", "--arguments", "[1]"), "write an object"),
        (("--start", "--arguments", "{"), "write an object"),
    ],
)
def test_wrong_usage_is_told(jobs: DataJobs, words: tuple[str, ...], said: str) -> None:
    refused = execute(*words, "-j", "some-job")
    assert refused.exit_code == USAGE
    assert said in refused.stderr.replace("\n", " ")
