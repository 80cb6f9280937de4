"""What lives beside the model in a daemon: it is there as long as the daemon, and not without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuyard.fakegpu.control import DaemonStatus, Shutdown, Status, asked
from gpuyard.fakegpu.daemon import Companion, Daemon, Settings
from gpuyard.fakegpu.fleet import Fleet, a_fleet
from gpuyard.fakegpu.yard import Yard


class Cluster:
    """Gives the model its machines, as a cluster does."""

    def __init__(self) -> None:
        self.ended = False

    async def run(self, yard: Yard, now_ms: Callable[[], int]) -> None:
        yard.engine.advance(max(now_ms(), yard.engine.now_ms))
        yard.change(a_fleet("T4", 2, ["n"]))
        try:
            await asyncio.sleep(60)
        finally:
            self.ended = True


class Broken:
    async def run(self, yard: Yard, now_ms: Callable[[], int]) -> None:
        raise RuntimeError("a bug")


def live(home: Path, *companions: Companion, only: str | None = None, max_shown: int = 64) -> DaemonStatus:
    """A daemon that starts with nothing, and is ended when it has a machine."""

    async def both() -> DaemonStatus:
        settings = Settings(home, port=0, only=only, max_shown=max_shown)
        task = asyncio.create_task(Daemon(settings, Fleet(()), companions).run())
        while not task.done():
            await asyncio.sleep(0.02)
            if (home / "control.sock").exists():
                status = await asked(home, Status(), DaemonStatus)
                if status.machine_count:
                    await asked(home, Shutdown(), int)
                    await task
                    return status
        await task
        raise AssertionError("it ended by itself")

    home.mkdir(exist_ok=True)
    return asyncio.run(both())


def test_a_companion_gives_the_model_its_machines_and_ends_with_the_daemon(tmp_path: Path) -> None:
    cluster = Cluster()
    status = live(tmp_path / "home", cluster)
    assert (status.machine_count, status.gpu_count) == (1, 2)
    assert status.machines[0].state is not None
    assert cluster.ended


def test_machines_that_no_program_looks_at_have_no_directory(tmp_path: Path) -> None:
    assert live(tmp_path / "home", Cluster(), max_shown=0).machines[0].state is None


def test_a_companion_that_breaks_takes_the_daemon_with_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        live(tmp_path / "home", Broken())


def test_the_directory_of_a_machine_that_comes_back_stays_and_others_go(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for name in ("n", "other"):
        (home / "machines" / name).mkdir(parents=True)
        (home / "machines" / name / "state").touch()
    kept = (home / "machines" / "n").stat().st_ino

    class Looks(Cluster):
        async def run(self, yard: Yard, now_ms: Callable[[], int]) -> None:
            self.there = sorted(path.name for path in (home / "machines").iterdir())
            self.inode = (home / "machines" / "n").stat().st_ino
            await super().run(yard, now_ms)

    looks = Looks()
    live(home, looks, only="n")
    assert looks.there == ["n"]
    assert looks.inode == kept
