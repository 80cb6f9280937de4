"""How the program starts: at once, and with nothing it does not need."""

import subprocess
import sys

import pytest

from benchmarks.calibration import measure
from gpuyard.cli.commands import COMMANDS
from gpuyard.cli.up import serve, up

ATTEMPTS = 4
HELP_MS = 150
"""For `gpuyard --help`, calibrated."""
HEAVY = ("httpx2", "rich", "numpy", "yaml", "msgspec", "asyncio", "ssl", "gpuyard.scheduler", "gpuyard.service")
STARTED = "import sys\nfrom gpuyard.cli.main import cli\ntry:\n    cli.main({arguments}, prog_name='gpuyard')\n"
ENDED = "except SystemExit:\n    pass\nprint(sorted(name for name in {heavy} if name in sys.modules))"


def loaded(*arguments: str) -> str:
    script = (STARTED + ENDED).format(arguments=list(arguments), heavy=HEAVY)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return result.stdout.splitlines()[-1]


def test_help_loads_no_command() -> None:
    assert loaded("--help") == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_needs_neither_the_network_nor_the_scheduler(name: str) -> None:
    assert not set(eval(loaded(name, "--help"))) & {"httpx2", "rich", "numpy", "gpuyard.scheduler", "gpuyard.service"}


@pytest.mark.slow
def test_help_answers_at_once() -> None:
    command = [sys.executable, "-c", "from gpuyard.cli.main import main; main()", "--help"]

    def took_ms() -> float:
        return measure(lambda: subprocess.run(command, capture_output=True, check=True, timeout=60), 5).calibrated_ms

    # Other tests run beside this one; the calibration tells of a slow clock, not of a crowd.
    assert any(took_ms() < HELP_MS for _ in range(ATTEMPTS))


@pytest.mark.parametrize("name", ["up", "serve"])
def test_the_database_may_be_named_by_a_variable_that_no_command_line_shows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUYARD_DATABASE", "postgresql://yard@db/yard")
    command = {"up": up, "serve": serve}[name]
    assert command.make_context(name, []).params["database"] == "postgresql://yard@db/yard"
