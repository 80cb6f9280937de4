"""A database without checksums is brought up to date: nothing in it changes, and every entry proves itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuyard.errors import StoreDamagedError
from gpuyard.worlds.standalone.store import schema, sealing
from gpuyard.worlds.standalone.store.opening import open_store
from gpuyard.worlds.standalone.store.session import Session
from tests.worlds.store.old import raw, write_old
from tests.worlds.store.places import Places, a_snapshot, a_sum, content, entries

pytestmark = pytest.mark.slow

NewPlace = Callable[[str], Places]
SQL = ["sqlite", "postgres"]


def address_of(place: Places) -> str:
    return str(place.address)


@pytest.mark.parametrize("kind", SQL)
@pytest.mark.parametrize("version", [1, 2])
def test_what_an_older_version_wrote_is_all_there_and_whole(kind: str, version: int, new_place: NewPlace) -> None:
    place = new_place(kind)
    log, kept, sums = entries(1, 60), [a_snapshot(40), a_snapshot(20)], [a_sum(job=str(job)) for job in range(9)]
    # Retention took some of them, before the oldest snapshot and in the middle.
    left = [entry for entry in log if entry.seq not in (1, 2, 7, 8, 9, 15)]
    write_old(address_of(place), left, kept, sums, version=version)
    store = place.opened()
    assert content(store) == (60, left, kept, sums)
    assert store.check().complete
    found = store.verify()
    assert (found.damage, found.entries) == ((), 54)
    store.append(entries(61, 70))
    assert store.verify().damage == ()


@pytest.mark.parametrize("kind", SQL)
def test_what_retention_cannot_have_taken_is_missing(kind: str, new_place: NewPlace) -> None:
    place = new_place(kind)
    write_old(address_of(place), [entry for entry in entries(1, 60) if entry.seq != 45], [a_snapshot(40)])
    store = place.opened()
    with pytest.raises(StoreDamagedError, match="entry 45 is missing"):
        store.check()


@pytest.mark.parametrize("kind", SQL)
def test_an_upgrade_that_is_interrupted_has_not_happened(
    kind: str, new_place: NewPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = new_place(kind)
    write_old(address_of(place), entries(1, 30), [a_snapshot(20)])
    pages = []

    def dies(session: Session, *given: object) -> None:
        pages.append(1)
        if len(pages) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sealing, "PAGE", 7)
        patch.setattr(sealing, "_seal_gap", dies)
        with pytest.raises(KeyboardInterrupt):
            place.store().open()
    with raw(address_of(place)) as run:
        assert run("SELECT version FROM schema_version")[0][0] == 2
    store = place.opened()
    assert content(store)[:3] == (30, entries(1, 30), [a_snapshot(20)])
    assert store.verify().damage == ()


def test_a_log_of_several_pages_is_one_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "PAGE", 7)
    path = tmp_path / "state" / "gpuyard.db"
    write_old(path, entries(1, 50))
    store = open_store(path)
    store.open()
    assert store.verify().damage == ()
    store.close()


def test_the_newest_schema_version_is_the_one_with_checksums() -> None:
    """A migration that comes later belongs to AFTER only if it works on rows."""
    assert set(schema.AFTER) == {schema.WITH_CHECKSUMS}
