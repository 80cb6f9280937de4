"""Schedules in databases: one that an older gpuyard wrote is read on, and a backup carries them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuyard.errors import StoreError
from gpuyard.worlds.standalone.journal import load
from gpuyard.worlds.standalone.store import backup, schema
from gpuyard.worlds.standalone.store.memory import MemoryDisk
from gpuyard.worlds.standalone.store.port import StoredSnapshot
from tests.worlds.standalone.schedule_yard import NIGHTLY, ScheduleYard
from tests.worlds.standalone.yard import Yard
from tests.worlds.store.old import write_old
from tests.worlds.store.places import Places

pytestmark = pytest.mark.slow

NewPlace = Callable[[str], Places]
NEW_FIELDS = ("schedule", "planned_at_ms")


def as_before_schedules(snapshot: StoredSnapshot) -> StoredSnapshot:
    """The snapshot as a gpuyard without schedules would have written it."""
    state: dict[str, Any] = msgspec.msgpack.decode(snapshot.body, strict=False)
    del state["schedules"]
    for job in state["jobs"].values():
        for field in NEW_FIELDS:
            del job[field]
    return msgspec.structs.replace(snapshot, body=msgspec.msgpack.encode(state))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_database_from_before_schedules_is_read_on(
    kind: str, new_place: NewPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    yard, place = Yard(), new_place(kind)
    first = yard.submit()
    log = yard.journal.take_pending()
    snapshot = as_before_schedules(yard.journal.snapshot().stored())
    second = yard.submit()
    write_old(str(place.address), [*log, *yard.journal.take_pending()], [snapshot], version=1)
    new = place.opened()
    loaded = load(new)
    assert loaded.snapshot_seq
    assert list(loaded.state.jobs) == [first, second]
    assert msgspec.msgpack.encode(loaded.state) == msgspec.msgpack.encode(yard.state)
    new.close()
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (schema.THE_LOG,))
        with pytest.raises(StoreError, match=r"schema version \d; this gpuyard knows versions up to 1"):
            place.opened()


def test_a_backup_carries_schedules_and_their_runs(new_place: NewPlace, tmp_path: Path) -> None:
    yard = ScheduleYard()
    source, target = new_place("sqlite").opened(), new_place("sqlite-rollback")
    yard.set("*/5 * * * *", zone="Europe/Berlin")
    yard.pass_minutes(7)
    source.append(yard.journal.take_pending())
    source.save_snapshot(yard.journal.snapshot().stored())
    yard.pass_minutes(5)
    source.append(yard.journal.take_pending())
    source.backup(str(tmp_path / "backup"))
    assert not isinstance(target.address, MemoryDisk)
    backup.restore(tmp_path / "backup", target.address)
    restored = load(target.opened()).state
    assert restored.schedules == {NIGHTLY: yard.schedule}
    assert len(restored.schedules[NIGHTLY].runs) == 1
