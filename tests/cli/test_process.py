"""The command as a process of its own: exit codes, streams, pipes and start-up."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

FILES = Path(__file__).parents[1] / "files"
GPUYARD = [sys.executable, "-c", "from gpuyard.cli.main import main; main()"]


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*GPUYARD, *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        env={**os.environ, **environment},
    )


def test_help_needs_no_heavy_module() -> None:
    script = (
        "import sys\nfrom gpuyard.cli.main import cli\n"
        "try:\n    cli.main(['--help'], prog_name='gpuyard')\nexcept SystemExit:\n    pass\n"
        "print(sorted({'numpy', 'rich', 'yaml'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "path", sorted((FILES / "malformed" / "cluster").glob("qu*.yaml"))[:3], ids=lambda path: path.stem
)
def test_a_malformed_file_ends_with_two_and_its_message(path: Path) -> None:
    result = run("plan", "--cluster", path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: {path}:")
    assert "Traceback" not in result.stderr


def test_a_closed_pipe_is_no_error() -> None:
    command = " ".join([f"'{part}'" for part in [*GPUYARD, "schema", "scenario"]])
    result = subprocess.run(["bash", "-c", f"{command} | head -c 10"], capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.stderr) == ('{\n  "$sche', "")


def in_bash(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [f"'{part}'" for part in (*GPUYARD, *map(str, arguments))]
    script = script.replace("GPUYARD", " ".join(command))
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, encoding="utf-8", timeout=60)


@pytest.mark.parametrize("arguments", [["demo"], ["schema", "scenario"], ["demo", "--yaml"]], ids=" ".join)
def test_a_closed_pipe_ends_every_command_alike(arguments: list[str]) -> None:
    # The sleep lets the reader be gone before the first word is written.
    result = in_bash('{ sleep 0.3; GPUYARD; echo "ended with $?" >&2; } | true', *arguments)
    assert result.stderr == "ended with 141\n"


def test_a_full_disk_is_told() -> None:
    result = in_bash("GPUYARD > /dev/full", "demo")
    assert (result.returncode, result.stderr) == (
        74,
        "error: the output cannot be written: No space left on device\n",
    )


def test_a_closed_output_is_no_error() -> None:
    result = in_bash("GPUYARD >&-", "demo")
    assert (result.returncode, result.stderr) == (0, "")


def test_a_cluster_may_come_through_a_pipe() -> None:
    result = in_bash("echo 'pending: [{job: a}]' | GPUYARD", "plan", "--cluster", "-")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.endswith("1 job starts.\n")


def test_a_scenario_may_come_through_a_pipe() -> None:
    starter = Path(__file__).parents[2] / "src" / "gpuyard" / "examples" / "scenario.yaml"
    result = in_bash(f"cat '{starter}' | GPUYARD", "scenario", "check", "-")
    assert (result.stdout, result.stderr) == ("1 passed, 0 failed\n", "")


def test_a_terminal_without_unicode_is_served() -> None:
    result = run("demo", PYTHONIOENCODING="ascii")
    assert result.returncode == 0
    assert result.stderr == ""


def test_a_full_check_says_so_in_its_exit_code(tmp_path: Path) -> None:
    assert run("scenario", "new", tmp_path / "a.yaml").returncode == 0
    assert run("scenario", "check", tmp_path / "a.yaml").returncode == 0
    (tmp_path / "b.yaml").write_text("rule: x\n", encoding="utf-8")
    assert run("scenario", "check", tmp_path).returncode == 1
