"""Where gpuyard keeps its own: one rule for everybody."""

from pathlib import Path

import pytest

from gpuyard.platform import home


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/people/ann")
    for name in ("GPUYARD_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("user")
def test_a_user_has_a_home_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert home.gpuyard_home() == Path("/people/ann/.local/state/gpuyard")
    monkeypatch.setenv("XDG_STATE_HOME", "/data/state")
    assert home.gpuyard_home() == Path("/data/state/gpuyard")
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    assert home.gpuyard_home() == Path("/people/ann/.local/state/gpuyard")


@pytest.mark.usefixtures("user")
def test_root_has_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert home.gpuyard_home() == Path("/var/lib/gpuyard")


@pytest.mark.usefixtures("user")
def test_the_variable_wins_and_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUYARD_HOME", "here")
    assert home.gpuyard_home() == tmp_path / "here"
