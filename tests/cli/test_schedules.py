"""`gpuyard schedule` and `submit --cron`, against a running manager."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from gpuyard.cli.schedule_flags import MISSED, OVERLAPS
from gpuyard.model.recurrence import Missed, Overlap
from tests.cli.conftest import run
from tests.service.yard import Yard

pytestmark = pytest.mark.slow

As = Callable[..., Result]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with Yard(tmp_path_factory.mktemp("yard")) as running:
        yield running


@pytest.fixture
def signed_in(server: Yard, monkeypatch: pytest.MonkeyPatch) -> As:
    """Run a command as somebody."""

    def command(user: str, *arguments: str | Path) -> Result:
        monkeypatch.setenv("GPUYARD_URL", server.url)
        monkeypatch.setenv("GPUYARD_TOKEN", server.tokens[user])
        return run(*arguments)

    return command


@pytest.fixture
def gpuyard(signed_in: As) -> As:
    return lambda *arguments: signed_in("max", *arguments)


def made(gpuyard: As, name: str, *more: str) -> dict[str, Any]:
    result = gpuyard("schedule", "set", name, "--cron", "0 3 * * *", "--gpus", "0", "-o", "json", *more, "--", "true")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_words_of_the_flags_are_those_of_the_model() -> None:
    assert (tuple(Overlap), tuple(Missed)) == (OVERLAPS, MISSED)


def test_a_schedule_is_made_from_a_command(gpuyard: As) -> None:
    arguments = ("--cron", "0 3 * * *", "--time-zone", "Europe/Berlin", "--overlap", "queue", "--gpus", "0")
    result = gpuyard("schedule", "set", "nightly", *arguments, "-e", "DEPTH=3", "--", "python", "report.py", "-v")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith('vision/nightly is active: "0 3 * * *" in Europe/Berlin; next in ')
    found = json.loads(gpuyard("schedule", "describe", "nightly", "-o", "json").stdout)
    assert (found["overlap"], found["owner"]) == ("queue", "max")
    assert found["job"] == {"command": ["python", "report.py", "-v"], "env": {"DEPTH": "3"}, "gpus": "0"}


def test_what_is_not_given_stays_as_it_is(gpuyard: As) -> None:
    made(gpuyard, "changed", "--missed", "skip", "--missed-limit", "90m", "--retries", "2")
    result = gpuyard("schedule", "set", "changed", "--cron", "@hourly", "--gpus", "0.5", "-o", "json")
    found = json.loads(result.stdout)
    assert (found["cron"], found["missed"], found["missed_limit_ms"]) == ("@hourly", "skip", 5_400_000)
    assert found["job"] == {"command": ["true"], "gpus": "0.5", "retries": 2}
    again = json.loads(gpuyard("schedule", "set", "changed", "-o", "json", "--", "false").stdout)
    assert (again["cron"], again["job"]["command"]) == ("@hourly", ["false"])


def test_a_schedule_is_made_from_a_job_file_and_from_a_schedule_file(gpuyard: As, tmp_path: Path) -> None:
    job, schedule = tmp_path / "job.yaml", tmp_path / "schedule.yaml"
    job.write_text("command: [make, report]\ngpus: 0\n", encoding="utf-8")
    schedule.write_text('cron: "*/5 * * * *"\njob: {command: make, gpus: 0}\n', encoding="utf-8")
    assert gpuyard("schedule", "set", "of-job", "--cron", "@daily", job).exit_code == 0
    assert gpuyard("schedule", "set", "of-file", schedule).exit_code == 0
    assert gpuyard("schedule", "set", "of-both", schedule, "--cron", "@daily").exit_code == 0
    found = {one["name"]: one["cron"] for one in json.loads(gpuyard("schedule", "ls", "-o", "json").stdout)}
    assert [found[f"of-{kind}"] for kind in ("job", "file", "both")] == ["@daily", "*/5 * * * *", "@daily"]


def test_mistakes_in_a_schedule_file_are_told_with_its_line(gpuyard: As, tmp_path: Path) -> None:
    path = tmp_path / "schedule.yaml"
    path.write_text('cron: "61 * * * *"\njob: {command: make}\n', encoding="utf-8")
    result = gpuyard("schedule", "set", "wrong", path)
    assert result.exit_code == 2
    assert f'{path}:1:7: cron "61 * * * *": "61" is no minute' in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("set", "x", "--", "true"), 2, "Say when it runs"),
        (("set", "x", "--cron", "@daily"), 2, "Say what it runs"),
        (("set", "x", "--cron", "61 * * * *", "--", "true"), 2, '"61" is no minute'),
        (("set", "x", "--cron", "@daily", "--time-zone", "Mars/Base", "--", "true"), 2, "--time-zone: "),
        (("set", "x", "--cron", "@daily", "--gpus", "99", "--", "true"), 7, "--allow-never"),
        (("set", "x", "--cron", "@daily", "--priority", "urgent", "--", "true"), 4, "needs a lead"),
        (("set", "speech/x", "--cron", "@daily", "--", "true"), 4, "does not allow to submit to team speech"),
        (("set", "speech/x", "--team", "vision", "--cron", "@daily", "--", "true"), 2, "names no schedule"),
        (("describe", "vision/nothing"), 3, 'has no schedule "nothing"'),
        (("pause", "vision/nothing"), 3, "gpuyard schedule ls"),
        (("rm", "vision/nothing", "--dry-run"), 3, 'has no schedule "nothing"'),
    ],
)
def test_what_is_wrong_is_told_and_has_its_exit_code(
    gpuyard: As, arguments: tuple[str, ...], code: int, words: str
) -> None:
    result = gpuyard("schedule", *arguments)
    assert (result.exit_code, words in result.output) == (code, True), result.output


def test_a_dry_run_makes_nothing(gpuyard: As) -> None:
    result = gpuyard("schedule", "set", "dry", "--cron", "@daily", "--gpus", "0", "--dry-run", "--", "true")
    assert (result.exit_code, result.stdout.startswith("vision/dry would be active")) == (0, True)
    assert gpuyard("schedule", "describe", "vision/dry").exit_code == 3


def test_pause_resume_run_and_remove(gpuyard: As) -> None:
    made(gpuyard, "life")
    for verb, word in (("pause", "pause"), ("resume", "resume"), ("run", "run"), ("rm", "remove")):
        would = gpuyard("schedule", verb, "life", "--dry-run")
        assert would.stdout == f"would {word} vision/life, which is active\n"
    assert gpuyard("schedule", "pause", "life").stdout.startswith("vision/life is paused")
    job = gpuyard("schedule", "run", "life").stdout.strip()
    assert job.isdecimal()
    assert gpuyard("schedule", "run", "life").exit_code == 5
    assert gpuyard("schedule", "resume", "life").stdout.startswith("vision/life is active")
    shown = gpuyard("schedule", "describe", "life").stdout
    assert [line for line in shown.splitlines() if line.split()[2:3] == [job]]
    for words in ("asked for", "schedule vision/life is paused", f"runs on demand: job {job}", "0 3 * * * in UTC"):
        assert words in shown
    listed = gpuyard("ls", "-l", "gpuyard.io/schedule=life", "-o", "name").stdout.split()
    assert listed == [job]
    assert "vision/life, planned for" in gpuyard("get", job).stdout
    assert gpuyard("schedule", "rm", "life").stdout == "vision/life removed\n"
    assert gpuyard("schedule", "describe", "life").exit_code == 3


def test_the_list_says_why_one_stands_still(gpuyard: As) -> None:
    made(gpuyard, "listed", "--paused")
    rows = [line.split("\t") for line in gpuyard("schedule", "ls").stdout.splitlines()]
    row = dict(zip(rows[0], next(row for row in rows if row[0] == "listed"), strict=True))
    assert (row["TEAM"], row["OWNER"], row["STATE"], row["CRON"]) == ("vision", "max", "paused", "0 3 * * *")
    assert "resume it" in row["WHY"]


def test_a_name_that_several_teams_have_must_say_which(signed_in: As) -> None:
    for team in ("vision", "speech"):
        made(lambda *words: signed_in("root", *words), f"{team}/twice")
    result = signed_in("root", "schedule", "describe", "twice")
    assert (result.exit_code, "speech, vision" in result.output) == (2, True)


def test_submit_with_cron_makes_a_schedule_that_is_not_there_yet(gpuyard: As) -> None:
    words = ("submit", "--cron", "0 4 * * *", "--time-zone", "Europe/Berlin", "--gpus", "0")
    result = gpuyard(*words, "--name", "by-submit", "--", "true")
    assert (result.exit_code, "vision/by-submit is active" in result.stdout) == (0, True), result.output
    again = gpuyard(*words, "--name", "by-submit", "--", "true")
    assert (again.exit_code, 'there is a schedule "vision/by-submit" already' in again.output) == (5, True)
    assert "needs --cron and a --name" in gpuyard(*words, "--", "true").output
    assert gpuyard(*words, "--name", "x", "--follow", "--", "true").exit_code == 2
