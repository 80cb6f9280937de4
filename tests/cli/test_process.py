"""The command as a process of its own: exit codes, streams, pipes and start-up."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_terminal_without_unicode_is_served() -> None:
    result = run("demo", PYTHONIOENCODING="ascii")
    assert result.returncode == 0
    assert result.stderr == ""


def test_a_full_check_says_so_in_its_exit_code(tmp_path: Path) -> None:
    assert run("scenario", "new", tmp_path / "a.yaml").returncode == 0
    assert run("scenario", "check", tmp_path / "a.yaml").returncode == 0
    (tmp_path / "b.yaml").write_text("rule: x\n", encoding="utf-8")
    assert run("scenario", "check", tmp_path).returncode == 1
