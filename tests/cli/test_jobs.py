"""Commands about jobs that are there: lists, one job, logs, steering, explanations."""

import csv
import io
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from gpuyard.cli.ls import STATES
from gpuyard.cli.times import now
from gpuyard.errors import UnreachableError
from gpuyard.model.difference import Difference, Started
from gpuyard.model.explanation import Explanation, Standing
from gpuyard.model.plan import Bind, Plan
from gpuyard.model.reasons import Reason, Token
from gpuyard.sdk.calls import Call
from gpuyard.sdk.client import Client
from gpuyard.wire import rest
from gpuyard.worlds.standalone.lifecycle import JobState
from tests.cli.conftest import Run
from tests.sdk.yard import NOW, Yard, a_job, an_event

pytestmark = pytest.mark.slow


@pytest.fixture
def jobs(yard: Yard) -> Yard:
    why = (rest.Why("NotEnough", "needs 2 GPUs, none is free"),)
    soon = now() + timedelta(minutes=12, seconds=30)
    yard.add(a_job("17"))
    yard.add(a_job("18", "eval", "waiting", why=why, starts_at=soon, labels={"sweep": "7"}, team="speech"))
    yard.add(a_job("19", "old", "failed", exit_code=3))
    yard.add(a_job("20_0", "sweep", "running", array="20", array_index=0))
    yard.add(a_job("20_1", "sweep", "waiting", array="20", array_index=1))
    return yard


def test_no_time_is_counted_while_a_job_waits_for_its_turn_again(gpuyard: Run, yard: Yard) -> None:
    before = now() - timedelta(hours=1)
    yard.add(a_job("1", state="waiting", started_at=before, run_started_at=before))
    yard.add(a_job("2", started_at=before, run_started_at=now() - timedelta(seconds=90)))
    told = dict(rows(gpuyard("ls", "--columns", "id,time", "--no-headers").stdout))
    assert told["1"] == ""
    assert told["2"].startswith("1m3")


def rows(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()]


# --------------------------------------------------------------------------------------------------------------- lists


def test_the_states_are_those_of_the_life_of_a_job() -> None:
    assert ("active", *JobState) == STATES


@pytest.mark.usefixtures("jobs")
def test_a_piped_list_is_tab_separated_and_whole(gpuyard: Run) -> None:
    listed = rows(gpuyard("ls").stdout)
    assert listed[0][:5] == ["ID", "NAME", "TEAM", "USER", "STATE"]
    assert [row[0] for row in listed[1:]] == ["20_1", "20_0", "18", "17"]
    waiting = dict(zip(listed[0], listed[3], strict=True))
    assert waiting["WHY"] == "needs 2 GPUs, none is free"
    assert waiting["START≈"].startswith("in 12m")


@pytest.mark.parametrize("name", ["ls", "ps", "queue"])
def test_lists_have_the_names_fingers_know(gpuyard: Run, jobs: Yard, name: str) -> None:
    assert gpuyard(name, "-o", "name").stdout == "20_1\n20_0\n18\n17\n"


def test_filters_are_the_servers(gpuyard: Run, jobs: Yard) -> None:
    assert gpuyard("ls", "-a", "-s", "failed,cancelled", "-o", "name").stdout == "19\n"
    assert gpuyard("ls", "-l", "sweep=7", "-t", "speech", "-u", "ann", "--name", "eval", "-o", "name").stdout == "18\n"
    assert gpuyard("ls", "--mine", "--limit", "1", "-o", "name").stdout == "20_1\n"
    assert gpuyard("ls", "--array", "20", "-o", "name").stdout == "20_1\n20_0\n"
    assert [asked.query.get("user") for asked in jobs.asked if asked.name == "list_jobs"] == [None, "ann", "ann", None]


def test_json_is_the_object_of_the_api(gpuyard: Run, jobs: Yard) -> None:
    listed = json.loads(gpuyard("ls", "-o", "json").stdout)
    assert listed[3]["id"] == "17"
    assert set(listed[0]) == set(rest.JobObject.__struct_fields__)
    assert yaml.safe_load(gpuyard("ls", "-o", "yaml").stdout)[3]["id"] == "17"
    assert json.loads(gpuyard("ls", "-o", "jsonl").stdout.splitlines()[3])["id"] == "17"


def test_csv_and_wide_have_exact_times(gpuyard: Run, jobs: Yard) -> None:
    read = list(csv.DictReader(io.StringIO(gpuyard("ls", "-o", "csv").stdout)))
    assert (read[3]["ID"], read[3]["AGE"]) == ("17", "2026-11-16T09:55:00Z")
    assert "2026-11-16T09:55:00Z" in gpuyard("ls", "-o", "wide").stdout


def test_columns_headers_and_order_can_be_chosen(gpuyard: Run, jobs: Yard) -> None:
    result = gpuyard("ls", "--columns", "id,START", "--no-headers", "--sort", "id")
    assert [row[0] for row in rows(result.stdout)] == ["17", "18", "20_0", "20_1"]
    assert gpuyard("ls", "--sort", "-id", "-o", "name").stdout == "20_1\n20_0\n18\n17\n"


@pytest.mark.parametrize("flag", ["--columns", "--sort"])
def test_an_unknown_column_is_told(gpuyard: Run, jobs: Yard, flag: str) -> None:
    result = gpuyard("ls", flag, "stat")
    assert result.exit_code == 2
    assert 'there is no column "stat"; did you mean "state"?' in " ".join(result.stderr.split())
    assert jobs.asked == []


def test_an_unknown_state_is_told(gpuyard: Run) -> None:
    assert '"runing" is no state' in gpuyard("ls", "-s", "runing").stderr


def test_a_terminal_gets_a_table_that_fits(gpuyard: Run, jobs: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.cli.terminal.on_terminal", lambda stream=None: True)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    lines = gpuyard("ls").stdout.splitlines()
    assert lines[0].startswith("ID    NAME")
    assert "\t" not in lines[1]
    assert "\x1b" not in "".join(lines)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[32m" in gpuyard("ls").stdout


def test_the_form_of_the_environment_is_used(gpuyard: Run, jobs: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUYARD_OUTPUT", "name")
    assert gpuyard("ls", "-s", "failed", "-a").stdout == "19\n"
    monkeypatch.setenv("GPUYARD_OUTPUT", "csv")
    assert gpuyard("get", "17").stdout.startswith("Job:")
    monkeypatch.setenv("GPUYARD_OUTPUT", "pdf")
    result = gpuyard("ls")
    assert (result.exit_code, 'no form "pdf" (GPUYARD_OUTPUT says so)' in result.stderr) == (2, True)


def test_names_of_others_cannot_steer_the_terminal_or_break_lines(gpuyard: Run, yard: Yard) -> None:
    yard.add(a_job("17", name="a\x1b[2Jb\tc\nd"))
    assert rows(gpuyard("ls", "--no-headers").stdout)[0][1] == "a\\x1b[2Jb c d"


# ------------------------------------------------------------------------------------------------------------- one job


def test_one_job_by_id_or_name(gpuyard: Run, jobs: Yard) -> None:
    for word in ("17", "job/17", "train"):
        assert gpuyard("get", word).stdout.startswith("Job:")
    assert json.loads(gpuyard("get", "17", "-o", "json").stdout)["command"] == ["python", "train.py"]
    assert gpuyard("get", "old", "-o", "name").stdout == "19\n"


def test_a_name_of_several_is_asked_back(gpuyard: Run, jobs: Yard) -> None:
    result = gpuyard("get", "sweep")
    assert (result.exit_code, "name one by its id: 20_1, 20_0" in result.stderr) == (2, True)


@pytest.mark.parametrize("command", ["get", "describe", "logs", "explain", "cancel", "hold"])
def test_what_is_not_there_ends_with_three(gpuyard: Run, jobs: Yard, command: str) -> None:
    assert gpuyard(command, "99").exit_code == 3
    result = gpuyard(command, "trian")
    assert (result.exit_code, 'did you mean "train"?' in result.stderr) == (3, True)


def test_a_description_has_tasks_and_events_oldest_first(gpuyard: Run, jobs: Yard) -> None:
    jobs.events = [an_event(1, text="submitted by ann"), an_event(2, text="started"), an_event(3, "18")]
    output = gpuyard("describe", "17").stdout
    assert output.index("TASK") < output.index("submitted by ann") < output.index("started")
    assert "python train.py" in output
    told = json.loads(gpuyard("describe", "17", "-o", "json").stdout)
    assert set(told["job"]) == set(rest.JobDetail.__struct_fields__)
    assert [event["text"] for event in told["events"]] == ["submitted by ann", "started"]
    assert yaml.safe_load(gpuyard("describe", "17", "-o", "yaml").stdout)["job"]["id"] == "17"


def test_logs_are_byte_for_byte(gpuyard: Run, jobs: Yard) -> None:
    jobs.logs[("17", 0, 1)] = [b"a\xff\n", b"b\n", b"c\n"]
    assert gpuyard("logs", "17").stdout_bytes == b"a\xff\nb\nc\n"
    assert gpuyard("logs", "17", "--tail", "2").stdout_bytes == b"b\nc\n"
    assert gpuyard("logs", "17", "--tail", "0").stdout_bytes == b""
    jobs.logs[("17", 0, 1)] = [b"x" * 1000 + b"\n"] * 3
    assert gpuyard("logs", "17", "--tail", "1").stdout_bytes == b"x" * 1000 + b"\n"
    assert gpuyard("logs", "-f", "--attempt", "1", "17").exit_code == 2


def test_logs_begin_where_they_are_asked_to(gpuyard: Run, jobs: Yard) -> None:
    jobs.logs[("17", 0, 1)] = [b"1\n", b"2\n", b"3\n"]
    assert gpuyard("logs", "17", "--since", "10m").stdout == "1\n2\n3\n"
    assert gpuyard("logs", "17", "--since", "10m", "--tail", "1").stdout == "3\n"
    assert [asked.query["since"] for asked in jobs.asked if asked.name == "read_logs"] == ["10m", "10m"]
    jobs.after_log = lambda id: jobs.jobs.update({id: a_job(id, state="succeeded")})
    jobs.asked.clear()
    assert gpuyard("logs", "-f", "17", "--tail", "2").stdout == "2\n3\n"
    assert gpuyard("logs", "-f", "17", "--since", "10m").stdout == "1\n2\n3\n"
    places = [(asked.query.get("since"), asked.query["offset"]) for asked in jobs.asked if asked.name == "read_logs"]
    # Once the server has said where in the log it began, one goes on by that: the beginning of the log may be gone.
    assert places[:2] == [(None, "-400"), (None, "6")]
    assert ("10m", "0") in places


# ------------------------------------------------------------------------------------------------------------ steering


@pytest.mark.parametrize(
    ("verb", "state"),
    [
        ("cancel", "cancelled"),
        ("hold", "held"),
        ("suspend", "suspended"),
        ("resume", "waiting"),
        ("requeue", "waiting"),
    ],
)
def test_a_job_is_steered(gpuyard: Run, jobs: Yard, verb: str, state: str) -> None:
    result = gpuyard(verb, "17")
    assert (result.exit_code, result.stdout) == (0, f"17 (train) {state}\n")
    assert jobs.asked[-1].name == f"{verb}_job"
    assert jobs.asked[-1].headers["idempotency-key"]


def test_several_at_once_by_range_name_label_and_array(gpuyard: Run, jobs: Yard) -> None:
    assert gpuyard("cancel", "17-18", "-o", "name").stdout == "17\n18\n"
    assert gpuyard("hold", "20", "-o", "name").stdout == "20_0\n20_1\n"
    assert gpuyard("release", "sweep", "--yes", "-o", "jsonl").stdout.count('"state":"waiting"') == 2
    assert gpuyard("cancel", "-l", "sweep=7", "--dry-run").stdout == "would cancel 18, which is cancelled\n"
    nobody = gpuyard("cancel", "-l", "sweep=8")
    assert nobody.exit_code == 3
    assert "there is no such job" in nobody.stderr


def test_an_array_is_tried_and_steered_element_by_element(gpuyard: Run, jobs: Yard) -> None:
    assert gpuyard("cancel", "20", "--dry-run").stdout == (
        "would cancel 20_0, which is running\nwould cancel 20_1, which is waiting\n"
    )
    assert json.loads(gpuyard("cancel", "17", "--dry-run", "-o", "json").stdout)["state"] == "running"
    jobs.add(replace(jobs.jobs["20_1"], state="held"))
    result = gpuyard("release", "20", "-o", "name")
    assert (result.exit_code, result.stdout) == (5, "20_1\n")
    assert "job 20_0 is not held" in result.stderr


def test_what_was_done_is_told_where_the_server_goes_away(
    gpuyard: Run, jobs: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Client.send

    def gone_for_18(client: Client, call: Call[Any]) -> Any:
        if call.path.endswith("/18/cancel"):
            raise UnreachableError("the server does not answer")
        return send(client, call)

    monkeypatch.setattr(Client, "send", gone_for_18)
    result = gpuyard("cancel", "17", "18", "-o", "name")
    assert (result.exit_code, result.stdout) == (6, "17\n")


def test_a_name_of_a_job_that_is_over_does_not_stop_the_rest(gpuyard: Run, jobs: Yard) -> None:
    result = gpuyard("release", "old", "20_1")
    assert result.exit_code == 5
    assert "job 19 is not held" in result.stderr
    assert [asked.path["id"] for asked in jobs.asked if asked.name == "release_job"] == ["19", "20_1"]


def test_what_fails_does_not_stop_the_rest(gpuyard: Run, jobs: Yard) -> None:
    result = gpuyard("cancel", "17", "99", "18", "-o", "name")
    assert (result.exit_code, result.stdout) == (3, "17\n18\n")
    assert "error: job 99: there is no job 99" in result.stderr


def test_a_state_that_forbids_it_ends_with_five(gpuyard: Run, jobs: Yard) -> None:
    assert gpuyard("release", "17").exit_code == 5
    assert gpuyard("cancel", "17", "--if-revision", "4").exit_code == 5
    assert gpuyard("cancel", "17", "--if-revision", "5").exit_code == 0


@pytest.mark.parametrize(
    "arguments", [["cancel"], ["cancel", "20-17"], ["cancel", "17", "18", "--if-revision", "1"], ["cancel", "-l", "x"]]
)
def test_wrong_choices_of_jobs_are_told(gpuyard: Run, jobs: Yard, arguments: list[str]) -> None:
    assert gpuyard(*arguments).exit_code == 2


def test_a_job_is_scaled(gpuyard: Run, jobs: Yard) -> None:
    assert gpuyard("scale", "17", "8").exit_code == 0
    assert jobs.asked[-1].json == {"tasks": 8, "min_tasks": None}
    assert gpuyard("scale", "train", "2-16").exit_code == 0
    assert jobs.asked[-1].json == {"tasks": 16, "min_tasks": 2}
    assert gpuyard("scale", "17", "many").exit_code == 2
    assert gpuyard("scale", "17", "4", "--dry-run").stdout == "would scale to 4 tasks 17, which is running\n"


# ----------------------------------------------------------------------------------------------------------------- why


def test_an_explanation_ends_with_ten_while_waiting_and_eleven_for_never(gpuyard: Run, jobs: Yard) -> None:
    result = gpuyard("explain", "18")
    assert result.exit_code == 10
    assert "needs 2 GPUs" in result.stdout
    reason = Reason(Token.TOO_LARGE, "gpu", 8000, 9000, never=True)
    never = Explanation("17", "vision", Standing.NEVER, blockers=(reason,))
    jobs.explained["17"] = rest.ExplanationObject(never, (), 11, NOW)
    assert gpuyard("explain", "train").exit_code == 11
    as_json = gpuyard("explain", "18", "-o", "json")
    assert (as_json.exit_code, json.loads(as_json.stdout)["exit_code"]) == (10, 10)


def test_a_plan_is_asked_of_the_server(gpuyard: Run, yard: Yard, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("command: date\n", encoding="utf-8")
    assert gpuyard("plan", path).stdout == "it would start on node-1 GPU 0-1\n"
    assert gpuyard("plan", path, "--detailed-exitcode").exit_code == 0
    bind = Bind("x", "x/0", "node-1", (), Reason(Token.PLACED))
    yard.plan = replace(yard.plan, plan=Plan((bind,)))
    assert gpuyard("plan", "--gpus", "2", "--detailed-exitcode", "--", "date").exit_code == 2
    assert json.loads(gpuyard("plan", path, "-o", "json").stdout)["plan"]["actions"][0]["type"] == "bind"
    assert [asked.name for asked in yard.asked] == ["plan_job"] * 4


def test_what_if_is_asked_of_the_server(gpuyard: Run, yard: Yard, tmp_path: Path) -> None:
    path = tmp_path / "change.yaml"
    path.write_text("queues: {vison: 8}\n", encoding="utf-8")
    result = gpuyard("what-if", path)
    assert (result.exit_code, f'{path}:1:10: there is no queue "vison"' in result.stderr) == (2, True)
    path.write_text("queues: {vision: 8}\n", encoding="utf-8")
    yard.difference = Difference(started=(Started("18", "speech", 1, ("node-1",)),))
    assert "1 job starts" in gpuyard("what-if", "-f", path).stdout
    assert gpuyard("what-if").exit_code == 2
