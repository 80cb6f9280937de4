"""`gpuyard pool` as a person and a program use it, against a real manager."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuyard.cli.main import cli
from tests.service.yard import Yard

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with Yard(tmp_path_factory.mktemp("yard"), gpus=0) as running:
        yield running


@pytest.fixture
def pool(yard: Yard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("GPUYARD_URL", yard.url)
    monkeypatch.setenv("GPUYARD_TOKEN", yard.tokens["root"])
    monkeypatch.setenv("GPUYARD_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def run(*words: str, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, ["pool", *words], prog_name="gpuyard")
        assert result.exit_code == code, result.output
        return result

    return run


def test_a_plan_from_its_making_to_its_end(pool: Run) -> None:
    assert pool("machine", "set", "gpu-1", "2", "--type", "a").stdout == "gpu-1 2 x a\n"
    assert pool("budget", "set", "greedy", "0", "--type", "a").stdout == "greedy 0 a\n"
    assert pool("budget", "set", "modest", "1.5", "--type", "a").stdout == "modest 1.5 a\n"
    made = pool("provision", "greedy/old", "2", "--type", "a").stdout.splitlines()
    id = made[0].split()[1]
    assert made == [f"plan {id} for greedy/old: open", "  1. CreateJob greedy/old (2) on gpu-1:0,1: ready"]
    assert f"plan {id} for greedy/old: done" in pool("plan", "confirm", id, "1").stdout
    assert pool("quote", "modest/new", "1.5", "--type", "a").stdout.startswith("reshuffle: ")
    plan = json.loads(pool("provision", "modest/new", "1.5", "--type", "a", "-o", "json").stdout)
    assert [action["action"] for action in plan["actions"]] == ["DeleteJob", "CreateJob"]
    id = plan["plan"]
    assert f"{id}\tmodest/new\topen\t0 of 2\t1.5 a\t" in pool("plan", "ls").stdout
    jobs = pool("ls").stdout.splitlines()
    assert jobs[0].split("\t") == ["JOB", "AMOUNT", "TYPE", "PLACE", "NEXT", "PRIORITY", "SINCE"]
    assert jobs[1].split("\t")[:5] == ["greedy/old", "2", "a", "gpu-1:0,1", "being deleted"]
    assert jobs[2].split("\t")[:5] == ["modest/new", "1.5", "a", "-", "gpu-1:0,1(0.5)"]
    failed = pool("plan", "fail", id, "1", "--why", "it will not stop").stdout
    assert failed.splitlines()[0] == f"plan {id} for modest/new: rolled-back"
    assert "it will not stop" in pool("plan", "show", id).stdout
    assert pool("priority", "greedy/old", "on").stdout == "greedy/old priority on\n"
    assert json.loads(pool("ls", "--team", "greedy", "-o", "json").stdout)[0]["priority"] is True
    assert pool("ended", "greedy/old").stdout == "greedy/old ended\n"
    assert pool("plan", "ls", "-o", "name").stdout == ""
    assert id in pool("plan", "ls", "--all", "-o", "name").stdout.split()
    assert pool("budget", "rm", "greedy", "modest").stdout == "greedy removed\nmodest removed\n"
    assert pool("machine", "rm", "gpu-1").stdout == "gpu-1 removed\n"
    assert pool("machine", "ls", "--no-headers").stdout == ""


def test_refusals_end_with_their_code_and_say_why(pool: Run) -> None:
    pool("machine", "set", "gpu-2", "1", "--type", "b")
    pool("budget", "set", "team", "1", "--type", "b")
    pool("provision", "team/one", "1", "--type", "b")
    refused = pool("provision", "team/two", "1", "--type", "b", code=7)
    assert 'team "team" has no budget for job "two"' in refused.stderr
    assert "uses 1 of its budget of 1" in refused.stderr
    assert "is being started by plan" in pool("provision", "team/one", "1", "--type", "b", code=5).stderr
    assert pool("provision", "team/nan", "NaN", code=2).stderr.startswith("error: the amount NaN is not a number")
    assert "no job" in pool("ended", "team/never", code=3).stderr
    assert "TEAM/JOB" in pool("ended", "never", code=2).stderr
    assert pool("quote", "team/two", "1", "--type", "b").stdout.startswith("no-budget: ")
    assert pool("provision", "team/huge", "9", "--type", "b", code=7).exit_code == 7


def test_alternatives_are_written_in_the_order_of_preference(pool: Run) -> None:
    pool("machine", "set", "gpu-3", "2", "--type", "c")
    pool("budget", "set", "choosy", "0")
    made = json.loads(pool("provision", "choosy/x", "1", "--type", "none", "--type", "c=2", "-o", "json").stdout)
    assert made["alternatives"] == [
        {"amount": "1", "device_type": "none"},
        {"amount": "2", "device_type": "c"},
    ]
    assert made["actions"][0]["amount"] == "2"
