"""`gpuyard kube testbed` as a command: its help, its errors, what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuyard.cli.exit_codes import FAILURE
from gpuyard.cli.main import cli
from gpuyard.cli.testbed import testbed as group
from gpuyard.testbed import record as records
from gpuyard.testbed import system
from gpuyard.testbed.record import write_record
from tests.testbed.samples import a_record


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No testbed of this machine is seen or touched."""
    monkeypatch.setattr(records, "ROOT", tmp_path / "testbeds")
    monkeypatch.delenv("GPUYARD_TESTBED", raising=False)
    return tmp_path / "testbeds"


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["kube", "testbed", *words], prog_name="gpuyard")


@pytest.mark.parametrize("command", list(group.commands))
def test_every_help_teaches_with_an_example(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"gpuyard kube testbed {command}" in result.output.split("Usage:")[1].partition("\n")[2]


@pytest.mark.parametrize(
    "words", [("down",), ("status",), ("env",), ("kubectl", "get", "nodes"), ("reboot", "node-1"), ("logs", "etcd")]
)
def test_what_is_not_there_is_told_with_the_way_to_have_it(words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code == FAILURE
    assert result.stderr == (
        'error: there is no testbed "default" on this machine\n  start it: gpuyard kube testbed up\n'
    )


def test_who_is_not_root_is_told_before_anything_is_made(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    result = run("up")
    assert result.exit_code == FAILURE
    assert "needs root: it makes namespaces, mounts and interfaces" in result.stderr
    assert not root.exists()


def test_a_machine_that_lacks_programs_is_told_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "why_not", lambda: "")
    monkeypatch.setattr(system, "missing", lambda: ["runc"])
    monkeypatch.setattr(system, "follow", lambda command, heard, folder: heard("setup: no network") or 1)
    result = run("up")
    assert result.exit_code == FAILURE
    assert "missing on this machine: runc" in result.stderr
    assert "error: this machine lacks runc\n  setup: no network\n" in result.stderr


def test_a_name_that_cannot_be_is_refused() -> None:
    result = run("up", "--name", "../etc")
    assert result.exit_code == FAILURE
    assert 'error: "../etc" cannot be the name of a testbed' in result.stderr


def test_one_that_did_not_come_up_whole_is_shown_as_it_is() -> None:
    write_record(a_record(name="half"))
    result = run("status", "--name", "half", "-o", "json")
    assert result.exit_code == FAILURE
    told = json.loads(result.stdout)
    assert (told["name"], told["healthy"], told["came_up"]) == ("half", False, False)
    assert [machine["on"] for machine in told["machines"]] == [False, False, False]
    assert "did not come up whole" in run("ls").output


def test_a_shell_is_told_where_it_is() -> None:
    write_record(a_record(name="sample"))
    told = run("env", "--name", "sample").output
    assert told == f'export KUBECONFIG={a_record().kubeconfig}\nexport PATH=/programs:"$PATH"\n'


def test_the_name_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    write_record(a_record(name="sample"))
    monkeypatch.setenv("GPUYARD_TESTBED", "sample")
    assert "export KUBECONFIG=" in run("env").output
