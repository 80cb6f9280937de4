"""`gpuyard plan` where others give way: what it prints, to the letter.

After a wanted change, write the outputs anew with GPUYARD_WRITE_GOLDEN=1 and read the difference.
"""

import json
import os
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from gpuyard.cli.main import cli

GOLDEN = Path(__file__).parent / "golden"
BUSY = Path(__file__).parents[2] / "examples" / "busy-cluster.yaml"
WRITE = os.environ.get("GPUYARD_WRITE_GOLDEN") == "1"

STALE = """
nodes: 2
running:
  - {job: pair, gpus: 8, gang: 2, on: [node-1], stale_for: 5m}
  - {job: other, gpus: 8, on: node-2}
"""

WIDE = """
cluster: {nodes: 3, gpus: 4}
queues: {vision: {quota: 4}, speech: {quota: 8}}
running: [{job: wide, team: vision, gpus: 4, gang: 3, on: [node-1, node-2, node-3]}]
pending: [{job: late, team: speech, gpus: 4, gang: 2}]
"""

ELASTIC = """
cluster: {nodes: 1, gpus: 4}
queues: {vision: {quota: 2}, speech: {quota: 2}}
running: [{job: stretchy, team: vision, gpus: 1, tasks: 4, gang: 3}]
pending: [{job: late, team: speech, gpus: 2}]
"""


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="gpuyard")
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def compare(name: str, output: str) -> None:
    path = GOLDEN / name
    # Tables fill their columns with blanks, which editors take away.
    shown = "\n".join(line.rstrip() for line in output.splitlines()) + "\n"
    if WRITE:
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")


def test_the_busy_cluster_reads_as_written_down() -> None:
    compare("plan-busy.txt", run("plan", BUSY))


@pytest.mark.parametrize(("name", "cluster"), [("stale", STALE), ("wide", WIDE), ("elastic", ELASTIC)])
def test_a_plan_reads_as_written_down(name: str, cluster: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(cluster, encoding="utf-8")
    compare(f"plan-{name}.txt", run("plan", path))


def test_the_busy_cluster_shows_every_way_to_give_way() -> None:
    actions = json.loads(run("plan", BUSY, "-o", "json"))["actions"]
    tokens = {(action["type"], action["reason"]["token"]) for action in actions}
    assert {("evict", "Reclaimed"), ("evict", "Preempted"), ("move", "Moved")} <= tokens


def test_a_plan_is_the_same_in_json_and_yaml() -> None:
    assert yaml.safe_load(run("plan", BUSY, "-o", "yaml")) == json.loads(run("plan", BUSY, "-o", "json"))


def test_a_cluster_may_be_named_with_or_without_the_option() -> None:
    assert run("plan", BUSY) == run("plan", "--cluster", BUSY)


def test_a_plan_for_a_job_names_who_gives_way_to_it(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("{job: urgent, team: ads, gpus: 2, priority: 95}\n", encoding="utf-8")
    shown = run("plan", "--cluster", BUSY, job)
    assert 'gives way to job "urgent"' in shown
    assert "hotfix" not in shown
