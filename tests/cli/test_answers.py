"""`gpuyard explain` and `gpuyard what-if`: what they print, to the letter, and how they refuse.

Each case has its output in `golden/<name>.txt`. After a wanted change, write them anew with GPUYARD_WRITE_GOLDEN=1 and
read the difference.
"""

import json
import os
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from gpuyard.cli.exit_codes import USAGE
from gpuyard.cli.main import cli
from gpuyard.cli.show_answers import queue_bar
from gpuyard.model.explanation import QueueStanding

GOLDEN = Path(__file__).parent / "golden"
CLUSTER = GOLDEN / "cluster.yaml"
WRITE = os.environ.get("GPUYARD_WRITE_GOLDEN") == "1"

JOBS = ("resnet", "whisper", "leaving", "sweep", "llm", "giant", "firm", "chat")
CHANGES = ("drain", "several", "nothing")


def run(*arguments: str | Path, input: str | None = None) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="gpuyard", input=input)


def compare(name: str, output: str) -> None:
    path = GOLDEN / name
    # Tables fill their columns with blanks, which editors take away.
    shown = "\n".join(line.rstrip() for line in output.splitlines()) + "\n"
    if WRITE:
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("job", JOBS)
def test_an_explanation_reads_as_written_down(job: str) -> None:
    result = run("explain", job, "--cluster", CLUSTER)
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    compare(f"explain-{job}.txt", result.output)


@pytest.mark.parametrize("change", CHANGES)
def test_a_difference_reads_as_written_down(change: str) -> None:
    result = run("what-if", GOLDEN / f"{change}.yaml", "--cluster", CLUSTER)
    assert result.exit_code == 0
    compare(f"what-if-{change}.txt", result.output)


@pytest.mark.parametrize(
    ("arguments", "name"), [(["explain", "firm"], "explain"), (["what-if", GOLDEN / "drain.yaml"], "what-if")]
)
def test_programs_get_the_same_as_json_and_yaml(arguments: list[str | Path], name: str) -> None:
    as_json, as_yaml = (run(*arguments, "--cluster", CLUSTER, "-o", output).stdout for output in ("json", "yaml"))
    assert json.loads(as_json) == yaml.safe_load(as_yaml)
    compare(f"{name}.json", as_json)


def test_an_unknown_job_is_refused_with_what_was_meant() -> None:
    result = run("explain", "resnte", "--cluster", CLUSTER)
    assert result.exit_code == USAGE
    assert result.stderr == (
        f'error: {CLUSTER}: there is no job "resnte"; did you mean "resnet"?\n'
        "  jobs in it: resnet, whisper, ranker, leaving, sweep, llm, giant, firm, chat\n"
    )


def test_a_cluster_without_jobs_has_nothing_to_explain(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("nodes: 1\n", encoding="utf-8")
    assert "it lists no job, neither running nor pending" in run("explain", "a", "--cluster", path).stderr


def test_a_wrong_change_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "change.yaml"
    path.write_text("queues: {vison: 8}\n", encoding="utf-8")
    result = run("what-if", path, "--cluster", CLUSTER)
    assert result.exit_code == USAGE
    assert f'{path}:1:10: there is no queue "vison"; did you mean "vision"?' in result.stderr


def test_names_cannot_steer_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text('nodes: 1\npending: [{job: a, selector: {zone: "\\e[2J"}}]\n', encoding="utf-8")
    output = run("explain", "a", "--cluster", path).output
    assert "no node matches" in output
    assert "\x1b" not in output


@pytest.mark.parametrize(
    ("queue", "bar"),
    [
        (QueueStanding("q", 8000, 12_000, 10_000, 0, 0), "█" * 16 + "▒" * 4 + "·" * 4),
        (QueueStanding("q", 8000, None, 2000, 0, 0), "█" * 6 + "░" * 18),
        (QueueStanding("q", None, None, 2000, 0, 0), "█" * 24),
        (QueueStanding("q", 0, None, 0, 0, 0), ""),
    ],
)
def test_the_picture_of_a_queue_is_to_scale(queue: QueueStanding, bar: str) -> None:
    assert queue_bar(queue) == bar
