"""Backup and restore: from any database to any other, while the manager goes on, and never by halves."""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import msgspec
import pytest

from gpuyard.errors import StoreBusyError, StoreError
from gpuyard.worlds.standalone.store import archive, backup
from gpuyard.worlds.standalone.store.archive import FORMAT, HEADER_BYTES, MAGIC, Page
from gpuyard.worlds.standalone.store.archive_reading import check_archive, read_pages
from gpuyard.worlds.standalone.store.memory import MemoryDisk
from gpuyard.worlds.standalone.store.opening import open_store
from tests.worlds.store.conftest import SQL_KINDS
from tests.worlds.store.places import Places, a_sum, content, entries, fill, seqs

pytestmark = pytest.mark.slow

NewPlace = Callable[[str], Places]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "backups" / "yard.backup"


@pytest.fixture
def made(file: Path, new_place: NewPlace) -> Path:
    """A backup of some of everything."""
    file.parent.mkdir()
    store = new_place("memory").opened()
    fill(store)
    store.backup(str(file))
    return file


def address_of(place: Places) -> str | Path:
    assert not isinstance(place.address, MemoryDisk)
    return place.address


# ---------------------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize(
    ("start", "end"), [("sqlite", "postgres"), ("postgres", "sqlite"), ("memory", "sqlite-rollback")]
)
def test_what_is_restored_is_what_was_backed_up(start: str, end: str, new_place: NewPlace, tmp_path: Path) -> None:
    source, target = new_place(start).opened(), new_place(end)
    fill(source, 40)
    source.prune({"job-submitted": 6_000}, 40)
    source.backup(str(tmp_path / "first"))
    header = backup.restore(tmp_path / "first", address_of(target))
    restored = target.opened()
    assert content(restored) == content(source)
    assert seqs(restored.history(object="job/30")) == [30]
    assert (header.last_seq, header.entries, header.snapshots, header.sums) == (40, 35, 2, 40)
    restored.append(entries(41, 42))
    restored.close()
    assert backup.backup(address_of(target), tmp_path / "second").entries == 37


@pytest.mark.parametrize("kind", SQL_KINDS)
def test_more_than_a_page_of_everything(
    kind: str, new_place: NewPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "PAGE_ROWS", 7)
    source, target = new_place(kind), new_place(kind)
    store = source.opened()
    fill(store, 50)
    seen: list[tuple[int, int]] = []
    backup.backup(address_of(source), tmp_path / "all", progress=lambda done, of: seen.append((done, of)))
    assert seen[0] == (7, 50)
    assert seen[-1] == (50, 50)
    backup.restore(tmp_path / "all", address_of(target))
    assert content(target.opened()) == content(store)


def test_an_empty_database_can_be_backed_up_and_restored(new_place: NewPlace, tmp_path: Path) -> None:
    source, target = new_place("sqlite"), new_place("sqlite")
    source.opened()
    assert backup.backup(address_of(source), tmp_path / "empty").last_seq == 0
    backup.restore(tmp_path / "empty", address_of(target))
    assert target.opened().is_empty()


# ---------------------------------------------------------------------------------------------- while the manager runs


@pytest.mark.slow
@pytest.mark.parametrize("kind", SQL_KINDS)
def test_appends_go_on_while_a_backup_is_made(kind: str, new_place: NewPlace, tmp_path: Path) -> None:
    place = new_place(kind)
    store = place.opened()
    for first in range(1, 20_001, 5_000):
        store.append(entries(first, first + 4_999))
    store.add_sums([a_sum(job=str(job)) for job in range(3_000)])
    copy = Thread(target=backup.backup, args=(address_of(place), tmp_path / "copy"))
    copy.start()
    waits, last = [], 20_000
    while copy.is_alive():
        began = time.perf_counter()
        store.append(entries(last + 1, last + 3))
        waits.append(time.perf_counter() - began)
        last += 3
        # No manager writes without a pause: it also answers and plans.
        time.sleep(0.01)
    copy.join()
    header = check_archive(tmp_path / "copy")
    kept = [entry for page in read_pages(tmp_path / "copy") for entry in page.entries]
    assert kept == entries(1, header.last_seq)
    assert 20_000 <= header.last_seq <= last
    assert (header.last_seq - 20_000) % 3 == 0
    assert len(waits) > 3
    assert sorted(waits)[len(waits) // 2] < 0.5
    assert max(waits) < 5


def test_sums_and_snapshots_are_those_of_the_moment_of_the_last_entry(
    new_place: NewPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = new_place("sqlite")
    store = place.opened()
    fill(store, 10)
    before = content(store)
    copy_entries = archive._copy_entries

    def later(*given: object) -> None:
        fill_more(store)
        copy_entries(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(archive, "_copy_entries", later)
    place.store().backup(str(tmp_path / "copy"))
    backup.restore(tmp_path / "copy", address_of(target := new_place("sqlite")))
    assert content(target.opened()) == before


def fill_more(store: object) -> None:
    store.append(entries(11, 20))  # type: ignore[attr-defined]
    store.add_sums([a_sum(gpu_milli_ms=99)])  # type: ignore[attr-defined]


# ----------------------------------------------------------------------------------------------------------- the file


def test_only_its_owner_can_read_a_backup_and_nothing_else_is_left(made: Path) -> None:
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert [path.name for path in made.parent.iterdir()] == [made.name]


def test_a_new_backup_takes_the_place_of_the_old_one_when_it_is_whole(
    made: Path, new_place: NewPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = made.read_bytes()
    store = new_place("sqlite").opened()
    fill(store, 3)

    def fails(*given: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(archive, "_copy_entries", fails)
        with pytest.raises(StoreError, match="cannot be written: No space left"):
            store.backup(str(made))
    assert made.read_bytes() == before
    assert [path.name for path in made.parent.iterdir()] == [made.name]
    store.backup(str(made))
    assert check_archive(made).entries == 3


def test_a_folder_that_is_missing_is_an_error_with_a_way_out(new_place: NewPlace, tmp_path: Path) -> None:
    store = new_place("sqlite").opened()
    with pytest.raises(StoreError, match="cannot be written: No such file or directory"):
        store.backup(str(tmp_path / "absent" / "x"))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_database_that_is_not_there_cannot_be_backed_up(kind: str, new_place: NewPlace, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no database|the database is empty"):
        backup.backup(address_of(new_place(kind)), tmp_path / "x")
    assert list(tmp_path.glob("x*")) == []


# ------------------------------------------------------------------------------------------------------------ restoring


def test_a_database_with_something_in_it_is_replaced_only_by_force(made: Path, new_place: NewPlace) -> None:
    place = new_place("sqlite")
    store = place.opened()
    store.append(entries(1, 99))
    before = content(store)
    store.close()
    with pytest.raises(StoreError, match="is not empty: its log has 99 entries") as error:
        backup.restore(made, address_of(place))
    assert "--force" in error.value.fix
    assert content(place.opened()) == before
    place.close()
    backup.restore(made, address_of(place), force=True)
    assert place.opened().last_seq() == 25


@pytest.mark.parametrize("kind", SQL_KINDS)
def test_a_restore_that_fails_halfway_has_changed_nothing(
    kind: str, made: Path, new_place: NewPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = new_place(kind)
    store = place.opened()
    fill(store, 7)
    before = content(store)
    store.close()

    def torn(path: Path) -> Iterator[Page]:
        yield from list(read_pages(path))[:-1]
        raise StoreError("the disk cannot be read")

    monkeypatch.setattr(backup, "read_pages", torn)
    with pytest.raises(StoreError, match="the disk cannot be read"):
        backup.restore(made, address_of(place), force=True)
    assert content(place.opened()) == before


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_database_that_a_manager_writes_to_is_not_restored_into(kind: str, made: Path, new_place: NewPlace) -> None:
    place = new_place(kind)
    place.opened()
    with pytest.raises(StoreBusyError):
        backup.restore(made, address_of(place), force=True)


def test_any_damage_is_found_before_anything_is_touched(made: Path, tmp_path: Path) -> None:
    whole = made.read_bytes()
    bad, target = tmp_path / "bad", tmp_path / "state" / "gpuyard.db"
    start = len(MAGIC) + HEADER_BYTES
    header_end = whole.index(b"}") + 1
    places = [*range(0, header_end, 9), *range(start, len(whole), max(1, (len(whole) - start) // 60)), len(whole) - 1]
    for place in places:
        bad.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(StoreError):
            backup.restore(bad, target)
    for length in (0, 5, len(MAGIC) + 10, start, start + 50, len(whole) - 1):
        bad.write_bytes(whole[:length])
        with pytest.raises(StoreError):
            backup.restore(bad, target)
    bad.write_bytes(whole + b"more")
    with pytest.raises(StoreError):
        backup.restore(bad, target)
    assert not target.parent.exists()


def test_a_file_that_is_no_backup_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("hello")
    with pytest.raises(StoreError, match="is no backup of gpuyard"):
        check_archive(text)
    with pytest.raises(StoreError, match="cannot be read: No such file"):
        check_archive(tmp_path / "absent")
    with pytest.raises(StoreError, match="cannot be read: Is a directory"):
        check_archive(tmp_path)


def test_a_newer_format_is_refused_with_the_version_that_reads_it(made: Path) -> None:
    header = msgspec.structs.replace(check_archive(made), format=FORMAT + 1, gpuyard="9.1")
    data = made.read_bytes()[len(MAGIC) + HEADER_BYTES :]
    made.write_bytes(MAGIC + msgspec.json.encode(header).ljust(HEADER_BYTES - 1) + b"\n" + data)
    with pytest.raises(StoreError, match=rf"has format {FORMAT + 1}, written by gpuyard 9\.1") as error:
        check_archive(made)
    assert "9.1 or newer" in error.value.fix


def test_a_backup_says_what_it_holds_in_its_first_lines(made: Path) -> None:
    lines = made.read_bytes().split(b"\n")
    assert lines[0] == b"gpuyard backup"
    assert msgspec.json.decode(lines[1])["entries"] == 25


def test_the_same_content_gives_the_same_file(made: Path, new_place: NewPlace, tmp_path: Path) -> None:
    other = new_place("postgres")
    backup.restore(made, address_of(other))
    open_store(address_of(other)).backup(str(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == made.read_bytes()
