"""What a running manager knows of its database: what was verified, what is damaged, what is in quarantine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from gpuyard.platform.clock import monotonic_ms
from gpuyard.service import soundness
from gpuyard.service.happened import _unreadable
from gpuyard.service.manager import Manager
from gpuyard.service.soundness import database_health
from gpuyard.wire.agents import MachineFacts
from gpuyard.worlds.standalone.events import NodeSeen
from gpuyard.worlds.standalone.store import verify
from gpuyard.worlds.standalone.store.opening import open_store
from gpuyard.worlds.standalone.store.port import Entry
from tests.worlds.standalone.yard import Yard
from tests.worlds.store.old import raw, write_old

pytestmark = pytest.mark.slow

BEYOND = MachineFacts((), cpu_milli=1 << 60, memory_bytes=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database of an older version, in whose log a node has said what no node can be."""
    yard = Yard()
    yard.submit()
    log = yard.journal.take_pending()
    bad = msgspec.json.encode(NodeSeen("a", BEYOND, "i", "b", "1"))
    log.append(Entry(len(log) + 1, yard.now_ms, "node-seen", bad, "node/a", "", ("node/a",)))
    path = tmp_path / "state" / "gpuyard.db"
    write_old(path, log)
    return path


def with_manager(path: Path, course: Callable[[Manager], Awaitable[None]]) -> None:
    async def live() -> None:
        manager = Manager(open_store(path))
        await manager.start()
        try:
            await course(manager)
        finally:
            await manager.stop()

    asyncio.run(live())


async def verified(manager: Manager) -> None:
    until_ms = monotonic_ms() + 30_000
    while manager.soundness.verification is None or not manager.soundness.verification.complete:
        assert monotonic_ms() < until_ms
        await asyncio.sleep(0.01)


def test_what_is_in_quarantine_is_logged_and_told_with_its_reason_to_operators(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def course(manager: Manager) -> None:
        await manager.record([])
        while not manager.soundness.in_quarantine:
            await asyncio.sleep(0.01)
        told = database_health(manager.soundness, detailed=True)
        assert (told.complete, told.quarantined, told.damage) == (True, 1, ())
        assert told.verified_entries > 5
        assert [(one.kind, "the range is" in one.why) for one in told.quarantine] == [("node-seen", True)]
        assert database_health(manager.soundness, detailed=False).quarantine[0].why == ""
        assert set(manager.state.jobs) == {"1"}

    with caplog.at_level(logging.WARNING):
        with_manager(path, course)
    assert any("(node-seen) of the log cannot be used and is in quarantine" in one.message for one in caplog.records)


def test_the_rest_of_a_long_log_is_verified_while_the_manager_serves(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Damage that a start does not need to see is told soon after it, and stops nobody."""

    async def whole(manager: Manager) -> None:
        await verified(manager)
        assert manager.soundness.verification is not None
        assert manager.soundness.verification.damage == ()

    with_manager(path, whole)
    snapshot_everything(path)
    with raw(str(path)) as run:
        run("UPDATE entries SET actor = 'eve' WHERE seq = 2")
        run("DELETE FROM entry_objects")
    monkeypatch.setattr(verify, "WHOLE_AT_START", 2)

    async def damaged(manager: Manager) -> None:
        assert manager.soundness.verification is not None
        assert not manager.soundness.verification.complete
        await verified(manager)
        await asyncio.sleep(0.1)
        told = database_health(manager.soundness, detailed=True)
        assert told.damage == ("entry 2 is not what was written: its checksum differs",)
        assert set(manager.state.jobs) == {"1"}
        # The index is made again: everything in it is in the entries.
        assert await manager.history(object="job/1")

    with caplog.at_level(logging.WARNING):
        with_manager(path, damaged)
    assert any("gpuyard store quarantine 2 --database" in one.getMessage() for one in caplog.records)


def snapshot_everything(path: Path) -> None:
    from gpuyard.worlds.standalone.journal import load

    store = open_store(path)
    store.open()
    store.save_snapshot(load(store).snapshot().stored())
    store.close()


def test_a_manager_that_is_stopped_waits_for_no_verification(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "WHOLE_AT_START", 0)
    monkeypatch.setattr(verify, "PAGE", 1)
    monkeypatch.setattr(soundness, "PAUSE_MS", 2_000)
    snapshot_everything(path)
    began_ms = monotonic_ms()

    async def course(manager: Manager) -> None:
        await asyncio.sleep(0.05)

    with_manager(path, course)
    assert monotonic_ms() - began_ms < 10_000


def test_an_entry_that_cannot_be_read_is_shown_without_its_content() -> None:
    shown = _unreadable(Entry(7, -1, "job-submitted", b"secret", "ann", "vision", ("job/1",)), ("job/1",))
    assert (shown.revision, bytes(shown.data)) == (7, b"{}")
    assert "quarantine" in shown.text
