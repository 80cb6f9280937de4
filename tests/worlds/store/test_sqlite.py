"""SQLite: its files, its journal, and what it says when it cannot be used."""

from __future__ import annotations

import logging
import os
import resource
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from gpuyard.errors import StoreError, StoreGoneError
from gpuyard.worlds.standalone.store import schema, sqlite
from gpuyard.worlds.standalone.store.search import Search, SeqRange, statement_of
from gpuyard.worlds.standalone.store.sqlite import SqliteStore
from tests.worlds.store.conftest import OLD_LIBRARY
from tests.worlds.store.places import Places, content, entries, fill

pytestmark = pytest.mark.slow

NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "gpuyard.db"


@contextmanager
def opened(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    store.open()
    try:
        yield store
    finally:
        store.close()


@contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Root may write everywhere, so root becomes somebody else for a moment."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --------------------------------------------------------------------------------------------------------------- files


def test_nobody_else_can_read_the_state(path: Path) -> None:
    with opened(path) as store:
        fill(store)
        assert mode_of(path.parent) == 0o700
        assert {file.name: mode_of(file) for file in path.parent.iterdir()} == dict.fromkeys(
            ("gpuyard.db", "gpuyard.db-wal", "gpuyard.db-shm", "gpuyard.db.lock", "gpuyard.db.marker"), 0o600
        )


def test_a_database_that_others_could_read_is_closed_to_them(path: Path) -> None:
    with opened(path):
        pass
    path.chmod(0o644)
    with opened(path):
        assert mode_of(path) == 0o600


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o750)
    with opened(folder / "gpuyard.db"):
        assert mode_of(folder) == 0o750


# ------------------------------------------------------------------------------------------------------------- journal


def test_a_library_with_the_fix_uses_wal_and_waits_for_the_disk(path: Path) -> None:
    with opened(path) as store:
        assert store._session.run("PRAGMA journal_mode") == [("wal",)]
        assert store._session.run("PRAGMA synchronous") == [(2,)]
        assert store.description == f"SQLite {apsw.sqlite_lib_version()} in {path}, WAL"


def test_a_library_without_the_fix_uses_the_rollback_journal_and_says_so_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite, "library_version", lambda: OLD_LIBRARY)
    with caplog.at_level(logging.WARNING), opened(path) as store:
        store.open()
        assert store._session.run("PRAGMA journal_mode") == [("delete",)]
        assert store._session.run("PRAGMA synchronous") == [(3,)]
        assert "rollback journal (versions before 3.51.3 may damage" in store.description
    assert [record.message for record in caplog.records] == [f"the database is {store.description}"]


@pytest.mark.parametrize(
    ("version", "fixed"), [((3, 40, 1), False), ((3, 51, 2), False), ((3, 51, 3), True), ((3, 54, 1), True)]
)
def test_the_fix_came_with_version_3_51_3(
    path: Path, monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], fixed: bool
) -> None:
    monkeypatch.setattr(sqlite, "library_version", lambda: version)
    assert SqliteStore(path).description.endswith(", WAL") == fixed


def test_the_journal_changes_with_the_library_and_nothing_is_lost(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        monkeypatch.setattr(sqlite, "library_version", lambda n=number: OLD_LIBRARY if n % 2 else (3, 54, 1))
        with opened(path) as store:
            store.append(entries(number + 1, number + 1))
    with opened(path) as store:
        assert store.read(0, 10) == entries(1, 4)


# -------------------------------------------------------------------------------------------------------------- errors


def refused(path: Path) -> str:
    store = SqliteStore(path)
    with pytest.raises(StoreError) as error:
        store.open()
    assert error.value.fix
    return str(error.value)


def test_a_file_that_is_no_database_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"some text of somebody, long enough to be looked at by a database" * 20)
    before = path.read_bytes()
    assert "is not a SQLite database" in refused(path)
    assert path.read_bytes() == before


def test_a_database_of_another_program_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with apsw.Connection(str(path)) as other:
        other.execute("CREATE TABLE recipes (name TEXT)")
    other.close()
    assert "tables of another program (recipes)" in refused(path)


def test_a_damaged_database_is_said_to_be_damaged(path: Path) -> None:
    with opened(path) as store:
        fill(store, 500)
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\xee" * (len(whole) - 100))
    assert "is damaged" in refused(path)


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    assert f"there is no folder {tmp_path}/a/b" in refused(tmp_path / "a" / "b" / "c" / "gpuyard.db")


def test_a_folder_in_the_place_of_the_file_is_refused(path: Path) -> None:
    path.mkdir(parents=True)
    assert "cannot be written: Is a directory" in refused(path)


def test_a_file_that_may_only_be_read_is_refused() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with opened(folder / "gpuyard.db"):
            pass
        folder.chmod(0o555)
        for file in folder.iterdir():
            file.chmod(0o444)
        with as_ordinary_user():
            assert "cannot be opened: Permission denied" in refused(folder / "gpuyard.db")
        folder.chmod(0o755)


def test_a_full_disk_keeps_what_was_appended_and_the_store_goes_on_when_there_is_room(path: Path) -> None:
    with opened(path) as store:
        store.append(entries(1, 10))
        ((pages,),) = store._session.run("PRAGMA page_count")
        store._session.run(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="the disk is full; nothing was written") as error:
            store.append(entries(11, 2000))
        assert not isinstance(error.value, StoreGoneError)
        assert store.read(0, 5000) == entries(1, 10)
        store._session.run("PRAGMA max_page_count = 1000000")
        store.append(entries(11, 2000))
        assert store.last_seq() == 2000


def test_an_error_of_the_disk_ends_the_session_and_the_next_open_finds_what_was_acknowledged(path: Path) -> None:
    with opened(path) as store:
        store.append(entries(1, 10))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
        try:
            with pytest.raises(StoreGoneError, match="cannot be read or written"):
                store.append(entries(11, 5000))
            with pytest.raises(StoreGoneError):
                store.last_seq()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        store.open()
        assert store.read(0, 5000) == entries(1, 10)


# ---------------------------------------------------------------------------------------------------------- migrations


NEWER = len(schema.MIGRATIONS) + 1


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_an_older_database_is_brought_up_to_date(
    kind: str, new_place: Callable[[str], Places], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = new_place(kind)
    old = place.opened()
    fill(old)
    before = content(old)
    old.close()
    further = ("ALTER TABLE entries ADD COLUMN note {text} NOT NULL DEFAULT ''", "UPDATE entries SET note = 'old'")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, further))
    new = place.opened()
    assert content(new) == before
    assert new._session.run("SELECT DISTINCT note FROM entries")[0][0] == "old"  # type: ignore[union-attr]
    assert schema.version_of(new._session) == len(schema.MIGRATIONS)  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_migration_that_fails_leaves_the_database_as_it_was(
    kind: str, new_place: Callable[[str], Places], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = new_place(kind)
    store = place.opened()
    fill(store)
    before = content(store)
    store.close()
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ("DELETE FROM entries", "CREATE NONSENSE")))
        with pytest.raises(StoreError):
            store.open()
    assert content(place.opened()) == before


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_newer_database_is_refused_and_left_alone(
    kind: str, new_place: Callable[[str], Places], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = new_place(kind)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ("CREATE TABLE more (x INTEGER)",)))
        place.opened().close()
    store = place.store()
    with pytest.raises(StoreError, match=f"schema version {NEWER}; this gpuyard knows versions up to {NEWER - 1}"):
        store.open()
    with pytest.raises(StoreError, match=f"schema version {NEWER}"):
        store.backup(str(tmp_path / "backup"))


def test_a_backup_does_not_migrate(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with opened(path):
        pass
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ("CREATE TABLE more (x INTEGER)",)))
    with pytest.raises(StoreError, match=f"has schema version {NEWER - 1}; this gpuyard works with version {NEWER}"):
        SqliteStore(path).backup(str(tmp_path / "backup"))


# -------------------------------------------------------------------------------------------------------------- search


@pytest.mark.parametrize(
    ("search", "index", "arms"),
    [
        (Search(), "INTEGER PRIMARY KEY", 1),
        (Search(since_ms=5), "INTEGER PRIMARY KEY", 1),
        (Search(object="job/1"), "PRIMARY KEY (object=?", 1),
        (Search(object="job/1", kinds=("a", "b"), teams=("x", "y")), "PRIMARY KEY (object=?", 1),
        (Search(kinds=("a",)), "entries_by_kind (kind=? AND seq>? AND seq<?)", 1),
        (
            Search(kinds=("a", "b"), teams=("x", "y")),
            "entries_by_team_and_kind (team=? AND kind=? AND seq>? AND seq<?)",
            4,
        ),
        (Search(teams=("x", "y", "")), "entries_by_team (team=? AND seq>? AND seq<?)", 3),
        (Search(actor="ann"), "entries_by_actor (actor=? AND seq>? AND seq<?)", 1),
    ],
)
def test_a_search_follows_an_index_and_sorts_no_more_than_a_page(
    path: Path, search: Search, index: str, arms: int
) -> None:
    with opened(path) as store:
        statement, values = statement_of(search, SeqRange(1, 100))
        plan = [row[-1] for row in store._session.run(f"EXPLAIN QUERY PLAN {statement}", **values)]
    assert sum(step.startswith(("SEARCH", "SCAN e", "SCAN o")) and index in step for step in plan) == arms, plan
    # What has been cut to a page in each arm is sorted when the arms are merged.
    assert sum("TEMP B-TREE" in step for step in plan) == (arms if arms > 1 else 0), plan
