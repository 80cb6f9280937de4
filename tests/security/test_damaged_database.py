"""Whatever is damaged in a database: a start has everything, or says what is damaged and how to go on. Nothing else.

The seed of every run is printed; GPUYARD_SEED repeats one.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuyard.errors import StoreError
from gpuyard.worlds.standalone.store.opening import open_store
from tests.conftest import LONG
from tests.postgres import Server
from tests.security.damaging import Content, Refused, all_of, copied, damage, fill, start, started
from tests.worlds.store.old import Run, raw

pytestmark = pytest.mark.slow

TIMES = 2_000 if LONG else 40
SQL_TIMES = 300 if LONG else 25
SEED = int(os.environ.get("GPUYARD_SEED", random.randrange(10**9)))


@pytest.fixture(autouse=True)
def told_seed() -> None:
    print(f"GPUYARD_SEED={SEED}")


def is_whole_or_says_so(found: Content | Refused, whole: Content, place: str, what: str) -> bool:
    """Whether it was refused; anything but one of the two fails."""
    if isinstance(found, Refused):
        assert place in found.text, (what, found)
        assert f"gpuyard restore FILE --force --database {place}" in found.fix, (what, found)
        assert "bug" not in found.text, (what, found)
        return True
    names = ("state", "last_seq", "log", "sums", "searches")
    differs = [name for name, one, other in zip(names, found, whole, strict=True) if one != other]
    assert not differs, (what, differs)
    return False


# ------------------------------------------------------------------------------------------------------ SQLite's files


@pytest.fixture
def closed(tmp_path: Path) -> tuple[Path, Content]:
    """A database that was closed, so that all is in its file."""
    path = tmp_path / "whole" / "gpuyard.db"
    with started(str(path)) as store:
        fill(store)
    with started(str(path)) as store:
        whole = all_of(store)
    return path.parent, whole


@pytest.fixture
def killed(tmp_path: Path) -> tuple[Path, Content]:
    """A database whose manager was killed: a part of it is in the journal alone."""
    path = tmp_path / "live" / "gpuyard.db"
    with started(str(path)) as store:
        fill(store)
        whole = all_of(store)
        copied(path.parent, tmp_path / "killed")
    assert (tmp_path / "killed" / "gpuyard.db-wal").stat().st_size > 10_000
    return tmp_path / "killed", whole


@pytest.mark.parametrize("kind", ["closed", "killed"])
def test_any_damage_of_its_files_is_found_or_harmless(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder, whole = request.getfixturevalue(kind)
    draw = random.Random(SEED)
    refused = 0
    for _ in range(TIMES):
        path = copied(folder, tmp_path / "copy")
        what = damage(path.parent, draw)
        refused += is_whole_or_says_so(start(str(path)), whole, str(path), what)
    # A closed file has little in it that nobody needs, and most of a journal is in the file as well.
    assert refused >= TIMES // 4


def test_a_database_that_is_emptied_gone_or_older_is_no_new_cluster(
    closed: tuple[Path, Content], tmp_path: Path
) -> None:
    folder, _ = closed
    path = folder / "gpuyard.db"
    older = path.read_bytes()
    with started(str(path)) as store:
        store.append([*store.read(store.last_seq() - 1, 1)][:0])
        fill_more(store)
        last_seq = store.last_seq()
    cases: dict[str, Callable[[], object]] = {
        "is empty, but a cluster was kept in it": lambda: path.write_bytes(b""),
        "is older than at the last start": lambda: path.write_bytes(older),
        "is empty, but": path.unlink,
    }
    for text, do in cases.items():
        do()
        found = start(str(path))
        assert isinstance(found, Refused)
        assert text in found.text
        assert f"its log had {last_seq} entries" in found.text
        assert f"gpuyard store accept --database {path}" in found.fix
        # And nothing was made in its place.
        assert not path.exists() or path.read_bytes() in (b"", older)


def fill_more(store: object) -> None:
    from tests.worlds.store.places import an_entry

    last = store.last_seq()  # type: ignore[attr-defined]
    store.append([an_entry(last + 1), an_entry(last + 2)])  # type: ignore[attr-defined]


def test_an_older_copy_that_was_written_to_since_is_another_log(closed: tuple[Path, Content], tmp_path: Path) -> None:
    folder, _ = closed
    path, fork = folder / "gpuyard.db", copied(folder, tmp_path / "fork")
    with started(str(path)) as store:
        fill_more(store)
    with started(str(fork)) as store:
        for _ in range(3):
            fill_more_of_others(store)
    shutil.copy(fork, path)
    found = start(str(path))
    assert isinstance(found, Refused)
    assert "but another one" in found.text


def fill_more_of_others(store: object) -> None:
    from tests.worlds.store.places import an_entry

    last = store.last_seq()  # type: ignore[attr-defined]
    store.append([an_entry(last + 1, actor="eve")])  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------------------- rows by SQL


STATEMENTS = (
    "DELETE FROM entries WHERE seq = :seq",
    "UPDATE entries SET body = :bytes WHERE seq = :seq",
    "UPDATE entries SET kind = 'job-went' WHERE seq = :seq",
    "UPDATE entries SET actor = 'eve' WHERE seq = :seq",
    "UPDATE entries SET team = 'speeches' WHERE seq = :seq",
    "UPDATE entries SET at_ms = at_ms + 1 WHERE seq = :seq",
    "UPDATE entries SET at_ms = -at_ms WHERE seq = :seq",
    "UPDATE entries SET objects = '[\"job/99999\"]' WHERE seq = :seq",
    "UPDATE entries SET objects = 'not json' WHERE seq = :seq",
    "UPDATE entries SET checksum = :bytes WHERE seq = :seq",
    "UPDATE entries SET seq = -seq WHERE seq = :seq",
    "UPDATE entries SET seq = seq + 100000 WHERE seq = :seq",
    "DELETE FROM entries WHERE seq > :seq",
    "DELETE FROM entries WHERE seq < :seq",
    "DELETE FROM entries",
    "INSERT INTO entries SELECT last_seq + 1, 5, 'noted', :bytes, '', '', '[]', :bytes FROM head",
    "INSERT INTO entries SELECT -7, 5, 'noted', :bytes, '', '', '[]', :bytes FROM head",
    "UPDATE head SET last_seq = last_seq - 1",
    "UPDATE head SET last_seq = last_seq + 1",
    "UPDATE head SET digest = :bytes",
    "UPDATE head SET log = 'another'",
    "DELETE FROM head",
    "DELETE FROM gaps",
    "UPDATE gaps SET last_seq = last_seq + 3",
    "UPDATE gaps SET digest = :bytes",
    "INSERT INTO gaps VALUES (100, 110, :bytes)",
    "DELETE FROM entry_objects WHERE seq = :seq",
    "DELETE FROM entry_objects",
    "UPDATE entry_objects SET object = 'job/777777' WHERE seq = :seq AND object LIKE 'job/%'",
    "INSERT INTO entry_objects VALUES ('job/40', 3)",
    "UPDATE snapshots SET body = :bytes",
    "UPDATE snapshots SET seq = seq + 1",
    "DELETE FROM snapshots",
    "DELETE FROM daily_sums WHERE job = '7'",
    "DELETE FROM daily_sums",
    "UPDATE daily_sums SET gpu_milli_ms = gpu_milli_ms + 1 WHERE job = '7'",
    "DELETE FROM day_checksums",
    "UPDATE schema_version SET version = 0",
    "DELETE FROM schema_version",
    "DROP TABLE gaps",
    "DROP TABLE snapshots",
    "DROP TABLE daily_sums",
    "DROP TABLE entry_objects",
    "DROP TABLE entries",
    "DROP TABLE head",
)


def spoil(run: Run, statement: str, draw: random.Random, last_seq: int) -> str:
    """Run a statement with what it needs of a number and of noise."""
    values: dict[str, object] = {}
    if ":seq" in statement:
        values["seq"] = draw.randint(2, last_seq - 1)
    if ":bytes" in statement:
        values["bytes"] = draw.randbytes(32)
    run(statement, **values)
    return f"{statement} {values}"


@pytest.mark.parametrize("statement", STATEMENTS)
def test_rows_that_are_changed_by_hand_are_found_or_harmless_in_sqlite(
    statement: str, closed: tuple[Path, Content]
) -> None:
    folder, whole = closed
    draw = random.Random(f"{SEED}{statement}")
    for _ in range(SQL_TIMES // 10 if ":seq" in statement else 1):
        path = copied(folder, folder.parent / "copy")
        with raw(str(path)) as run:
            what = spoil(run, statement, draw, 150)
        is_whole_or_says_so(start(str(path)), whole, str(path), what)


def test_rows_that_are_changed_by_hand_are_found_or_harmless_in_postgresql(
    postgres_server: Server, tmp_path: Path
) -> None:
    database = postgres_server.make_database()
    url = postgres_server.url(database)
    with started(url, tmp_path) as store:
        fill(store)
    with started(url, tmp_path) as store:
        whole = all_of(store)
    draw = random.Random(SEED)
    every = list(STATEMENTS) if LONG else draw.sample(STATEMENTS, SQL_TIMES)
    for number, statement in enumerate(every):
        copy = f"{database}_{number}"
        postgres_server.run("postgres", f"CREATE DATABASE {copy} TEMPLATE {database}")
        place = postgres_server.url(copy)
        markers = tmp_path / copy
        markers.mkdir()
        known_as(markers, place, tmp_path)
        with raw(place) as run:
            what = spoil(run, statement, draw, 150)
        found = start(place, markers)
        if isinstance(found, Refused):
            assert f"{copy}, schema gpuyard" in found.text, (what, found)
            assert f"gpuyard restore FILE --force --database 'postgresql://gpuyard@:5432/{copy}?host=" in found.fix
        else:
            assert found == whole, what
        postgres_server.run("postgres", f"DROP DATABASE {copy}")


def known_as(markers: Path, place: str, original: Path) -> None:
    """The marker of a database, as that of its copy."""
    (kept,) = original.glob("*.marker")
    shutil.copy(kept, open_store(place, markers).marker.path)


def test_a_database_on_a_server_that_is_emptied_is_no_new_cluster(postgres_server: Server, tmp_path: Path) -> None:
    database = postgres_server.make_database()
    url = postgres_server.url(database)
    with started(url, tmp_path) as store:
        fill(store, 9)
    postgres_server.run(database, "DROP SCHEMA gpuyard CASCADE")
    for _ in range(2):
        found = start(url, tmp_path)
        assert isinstance(found, Refused)
        assert "is empty, but a cluster was kept in it" in found.text
    # A machine that knows nothing of it begins one.
    (tmp_path / "elsewhere").mkdir()
    assert not isinstance(start(url, tmp_path / "elsewhere"), Refused)


# -------------------------------------------------------------------------------------------------------- the way back


@pytest.mark.parametrize("how", ["bytes", "empty", "gone", "rows", "no database", "header"])
def test_the_command_that_is_named_puts_the_backup_back(
    how: str, closed: tuple[Path, Content], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.cli.test_backup import run

    monkeypatch.setenv("GPUYARD_HOME", str(tmp_path / "home"))
    folder, whole = closed
    path, file = folder / "gpuyard.db", tmp_path / "yard.backup"
    assert run("backup", file, "--database", path).exit_code == 0
    with started(str(path)) as store:
        fill_more(store)
    size = path.stat().st_size
    with path.open("r+b") as data:
        if how == "bytes":
            data.seek(size // 2)
            data.write(os.urandom(size // 4))
        elif how == "header":
            data.write(os.urandom(4096))
    if how == "rows":
        with raw(str(path)) as by_hand:
            by_hand("DELETE FROM entries WHERE seq = 99")
    if how == "empty":
        path.write_bytes(b"")
    if how == "gone":
        path.unlink()
    if how == "no database":
        path.write_text("some text of somebody")
    found = start(str(path))
    assert isinstance(found, Refused)
    command = found.fix.partition("gpuyard restore FILE ")[2].partition(";")[0].split()
    done = run("restore", file, "--move", *command)
    assert done.exit_code == 0, done.output
    assert start(str(path)) == whole


def test_a_damaged_backup_changes_nothing(closed: tuple[Path, Content], tmp_path: Path) -> None:
    from tests.cli.test_backup import run

    folder, whole = closed
    path, file = folder / "gpuyard.db", tmp_path / "yard.backup"
    assert run("backup", file, "--database", path).exit_code == 0
    good, draw = file.read_bytes(), random.Random(SEED)
    for _ in range(TIMES // 4):
        data = bytearray(good)
        at = draw.randrange(len(data))
        if draw.random() < 0.3:
            del data[at:]
        else:
            data[at] ^= draw.randrange(1, 256)
        file.write_bytes(data)
        checked = run("backup", "--verify", file)
        if checked.exit_code == 0:
            # Spaces around a header mean nothing.
            continue
        assert checked.exit_code == 2, checked.output
        assert "is damaged" in checked.stderr or "is no backup" in checked.stderr, checked.stderr
        assert run("restore", file, "--force", "--database", path).exit_code == 2
    assert start(str(path)) == whole


def test_a_damaged_database_gives_no_backup(closed: tuple[Path, Content], tmp_path: Path) -> None:
    folder, _ = closed
    path = folder / "gpuyard.db"
    with raw(str(path)) as run:
        run("UPDATE entries SET body = x'00' WHERE seq = 77")
    with pytest.raises(StoreError, match=r"entry 77 .*is not what was written"):
        open_store(path).backup(str(tmp_path / "backup"))
    assert not (tmp_path / "backup").exists()
