"""The commands, called as click calls them: what they print, and how they end."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from gpuyard import __version__
from gpuyard.cli import main as entry
from gpuyard.cli.commands import COMMANDS
from gpuyard.cli.exit_codes import BUG, USAGE
from gpuyard.cli.main import cli
from gpuyard.cli.schema import KINDS as CLI_KINDS
from gpuyard.cli.show import free_gpus
from gpuyard.fakegpu.format import fleet_schema
from gpuyard.files.cluster import read_cluster
from gpuyard.files.schema import KINDS, json_schema

FILES = Path(__file__).parents[1] / "files"
EXAMPLE = Path(entry.__file__).parents[1] / "examples" / "cluster.yaml"

CLUSTER = """
nodes: 2
queues: {vision: 8, speech: 8}
running: [{job: old, team: vision, gpus: 4, on: node-1}]
pending: [{job: next, team: speech, gpus: 2, gang: 3}, {job: huge, team: vision, gpus: 9}]
"""


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="gpuyard")


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER, encoding="utf-8")
    return path


def job_file(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# ----------------------------------------------------------------------------------------------------------- general


def test_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.output) == (0, f"gpuyard {__version__}\n")


def all_commands() -> list[list[str]]:
    found: list[list[str]] = [[]]
    for name in COMMANDS:
        found.append([name])
        command = cli.get_command(click.Context(cli), name)
        if isinstance(command, click.Group):
            found += [[name, below] for below in command.commands]
    return found


@pytest.mark.parametrize("command", all_commands(), ids=" ".join)
def test_every_help_teaches_with_an_example(command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert f"  gpuyard {' '.join(command)}".rstrip() in result.output


@pytest.mark.parametrize("arguments", [["plam"], ["plan"], ["schema", "queue"], ["scenario", "check"], ["plan", "--x"]])
def test_wrong_usage_is_told_and_ends_with_two(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == USAGE
    assert "Error:" in result.output


def test_what_a_person_did_wrong_is_told_without_a_trace() -> None:
    result = run("plan", "--cluster", "no-such-file.yaml")
    assert result.exit_code == USAGE
    assert result.stderr.startswith("error: no-such-file.yaml: no such file")
    assert result.stdout == ""


def test_what_we_did_wrong_is_called_a_bug(monkeypatch: pytest.MonkeyPatch, cluster: Path) -> None:
    break_the_scheduler(monkeypatch)
    result = run("plan", "--cluster", cluster)
    assert result.exit_code == BUG
    assert result.stderr.startswith(f"error: this is a bug in gpuyard {__version__} (ZeroDivisionError: oops)")
    assert "Traceback" not in result.stderr


def test_the_trace_is_there_for_those_who_ask(monkeypatch: pytest.MonkeyPatch, cluster: Path) -> None:
    break_the_scheduler(monkeypatch)
    monkeypatch.setenv("GPUYARD_DEBUG", "1")
    assert "Traceback" in run("plan", "--cluster", cluster).stderr


def break_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(snapshot: object, policy: object) -> None:
        raise ZeroDivisionError("oops\nmore")

    monkeypatch.setattr("gpuyard.scheduler.cycle.schedule", broken)


def test_ctrl_c_ends_quietly(monkeypatch: pytest.MonkeyPatch, cluster: Path) -> None:
    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpuyard.files.cluster.read_cluster", interrupted)
    result = run("plan", "--cluster", cluster)
    assert (result.exit_code, result.stderr.strip()) == (130, "stopped")


def test_a_file_cannot_steer_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text('queues: {"\\e[2J": 4}\n', encoding="utf-8")
    assert "\x1b" not in run("plan", "--cluster", path).output


# -------------------------------------------------------------------------------------------------------------- plan


def test_a_plan_says_what_starts_what_waits_and_why(cluster: Path) -> None:
    result = run("plan", "--cluster", cluster)
    assert result.exit_code == 0
    assert "start" in result.output
    assert "needs 9 GPUs in one place, the largest has 8" in result.output
    assert result.output.splitlines()[-1] == "1 job starts, 1 job waits."
    assert "\x1b" not in result.output


def test_a_plan_as_json_is_stable(cluster: Path) -> None:
    first, second = (run("plan", "--cluster", cluster, "-o", "json").stdout for _ in range(2))
    assert first == second
    decided = json.loads(first)
    assert list(decided) == ["actions", "waiting"]
    assert {action["type"] for action in decided["actions"]} == {"bind"}
    assert [action["task"] for action in decided["actions"]] == ["next/1", "next/2", "next/3"]
    assert decided["waiting"][0]["jobs"] == ["huge"]
    assert decided["waiting"][0]["reasons"][0]["token"] == "TooLarge"


def test_a_plan_for_a_job_is_about_that_job(cluster: Path, tmp_path: Path) -> None:
    job = job_file(tmp_path, "{job: mine, team: speech, gpus: 1}")
    decided = json.loads(run("plan", "--cluster", cluster, job, "-o", "json").stdout)
    assert [action["job"] for action in decided["actions"]] == ["mine"]
    assert decided["waiting"] == []


def test_a_plan_for_a_job_that_waits_says_why(cluster: Path, tmp_path: Path) -> None:
    job = job_file(tmp_path, "{job: mine, team: vision, gpus: 1, model: B200}")
    result = run("plan", "--cluster", cluster, job)
    assert result.exit_code == 0
    assert "no node matches what it asks for (model B200)" in result.output
    assert "huge" not in result.output


def test_a_cluster_without_jobs_has_nothing_to_do(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("nodes: 1\n", encoding="utf-8")
    assert run("plan", "--cluster", path).output == "Nothing to do: no job waits.\n"


def test_a_job_that_wants_to_grow_is_told_apart_from_one_that_waits(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("cluster: {gpus: 2}\npending: [{job: e, tasks: 3, gang: 1}, {job: w}]\n", encoding="utf-8")
    output = run("plan", "--cluster", path).output
    assert "e (more tasks)" in output
    assert output.splitlines()[-1] == "2 jobs start, 1 job waits for more tasks."


def test_labels_cannot_steer_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text('nodes: 1\npending: [{job: a, selector: {zone: "\\e[2J"}}]\n', encoding="utf-8")
    output = run("plan", "--cluster", path).output
    assert "no node matches" in output
    assert "\x1b" not in output


def test_a_broken_gpu_is_not_free(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("nodes: {n1: {gpus: 4, unhealthy: [3]}}\nrunning: [{job: a, gpus: 0.5}]\n", encoding="utf-8")
    assert free_gpus(read_cluster(path).snapshot) == (2, 4)


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("nodes: 1\npending: [{job: '[bold]x[/bold]:smile:'}]\n", encoding="utf-8")
    assert "[bold]x[/bold]:smile:" in run("plan", "--cluster", path).output


# ---------------------------------------------------------------------------------------------------------- scenario


def test_a_new_scenario_passes_the_check(tmp_path: Path) -> None:
    path = tmp_path / "my-rule.yaml"
    assert run("scenario", "new", path).exit_code == 0
    result = run("scenario", "check", path, "-v")
    assert (result.exit_code, result.output) == (0, f"ok   {path}\n1 passed, 0 failed\n")


def test_a_new_scenario_does_not_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("precious", encoding="utf-8")
    result = run("scenario", "new", path)
    assert result.exit_code == USAGE
    assert "exists already" in result.stderr
    assert path.read_text(encoding="utf-8") == "precious"
    assert run("scenario", "new", path, "--force").exit_code == 0
    assert path.read_text(encoding="utf-8") != "precious"


def test_a_new_scenario_in_a_missing_folder(tmp_path: Path) -> None:
    result = run("scenario", "new", tmp_path / "nowhere" / "x.yaml")
    assert result.exit_code == USAGE
    assert "cannot be written: No such file or directory" in result.stderr


def test_a_new_scenario_on_the_terminal() -> None:
    assert run("scenario", "new", "-").stdout.startswith("# A golden scenario")


def test_a_file_that_may_not_be_looked_at_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(path: Path, *arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refused)
    monkeypatch.setattr(Path, "open", refused)
    path = tmp_path / "a.yaml"
    result = run("scenario", "check", path)
    assert (result.exit_code, result.stderr) == (USAGE, f"error: {path}: cannot be read: Permission denied\n")


FAILING = "rule: Wrong.\nnodes: 1\npending: [{job: a}]\nexpect: {waiting: {a: NotEnough}}\n"


def test_a_failed_scenario_is_told_and_ends_with_one(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    run("scenario", "new", tmp_path / "a.yaml")
    (tmp_path / "deep" / "b.yaml").write_text(FAILING, encoding="utf-8")
    (tmp_path / "deep" / "notes.txt").write_text("not a scenario", encoding="utf-8")
    result = run("scenario", "check", tmp_path)
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        f"FAIL {tmp_path / 'deep' / 'b.yaml'}",
        "  a: expected to wait, but it starts on node-1",
        "1 passed, 1 failed",
    ]


def test_verdicts_as_json_are_one_object_per_line(tmp_path: Path) -> None:
    run("scenario", "new", tmp_path / "a.yaml")
    (tmp_path / "b.yaml").write_text(FAILING, encoding="utf-8")
    (tmp_path / "c.yaml").write_text("rule: 1\n", encoding="utf-8")
    result = run("scenario", "check", "--json", tmp_path)
    verdicts = [json.loads(line) for line in result.stdout.splitlines()]
    assert [list(verdict) for verdict in verdicts] == [["id", "passed", "outcome_mismatches", "node_mismatches"]] * 3
    assert [verdict["passed"] for verdict in verdicts] == [True, False, False]
    assert result.stderr == "1 passed, 2 failed\n"
    assert result.exit_code == 1


def test_conformance_files_are_judged_too(tmp_path: Path) -> None:
    path = tmp_path / "fairshare.json"
    path.write_text('{"format": 1, "vectors": []}', encoding="utf-8")
    assert run("scenario", "check", path).output.splitlines()[-1] == "0 passed, 0 failed"


def test_a_missing_scenario_ends_with_two(tmp_path: Path) -> None:
    assert run("scenario", "check", tmp_path / "none.yaml").exit_code == USAGE
    result = run("scenario", "check", tmp_path)
    assert result.exit_code == USAGE
    assert "no scenario file in this folder" in result.stderr


# ----------------------------------------------------------------------------------------------------- schema and demo


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_is_printed(kind: str) -> None:
    assert json.loads(run("schema", kind).output) == json_schema(kind)


def test_the_kinds_of_schema_are_those_of_the_readers() -> None:
    assert (*KINDS, "fleet", "openapi") == CLI_KINDS


def test_the_schema_of_a_fleet_is_printed() -> None:
    assert json.loads(run("schema", "fleet").output) == fleet_schema()


def test_the_description_of_the_rest_api_is_printed() -> None:
    described = json.loads(run("schema", "openapi").output)
    assert (described["openapi"], described["info"]["version"]) == ("3.1.0", __version__)


def test_the_demo_shows_cluster_queues_decisions_and_what_to_try() -> None:
    result = run("demo")
    assert result.exit_code == 0
    for part in ("The cluster: 4 nodes", "GPU 7", "BORROWED", "WHY", "Try next", "resnet", "nb-ana+1", "·"):
        assert part in result.output
    assert "\x1b" not in result.output


def test_the_demo_gives_its_cluster_away() -> None:
    assert run("demo", "--yaml").stdout == EXAMPLE.read_text(encoding="utf-8")
