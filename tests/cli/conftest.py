"""A server for commands to speak to, and nothing of the machine's own settings."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuyard.cli.main import cli
from tests.sdk.yard import TOKEN, Yard, served

Run = Callable[..., Result]
SETTINGS = ("URL", "TOKEN", "TOKEN_FILE", "TEAM", "CONTEXT", "CONFIG", "OUTPUT", "DEBUG")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands see neither this machine's server nor its user's settings."""
    for name in SETTINGS:
        monkeypatch.delenv(f"GPUYARD_{name}", raising=False)
    for name in ("NO_COLOR", "FORCE_COLOR", "PAGER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.setenv("GPUYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("gpuyard.sdk.config.MACHINE_FILE", tmp_path / "machine.toml")


@pytest.fixture
def yard() -> Yard:
    return Yard()


@pytest.fixture
def url(yard: Yard) -> Iterator[str]:
    with served(yard) as address:
        yield address


@pytest.fixture
def gpuyard(url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command that is signed in to the yard."""
    monkeypatch.setenv("GPUYARD_URL", url)
    monkeypatch.setenv("GPUYARD_TOKEN", TOKEN)
    return run


def run(*arguments: str | Path, input: str | None = None) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="gpuyard", input=input)
