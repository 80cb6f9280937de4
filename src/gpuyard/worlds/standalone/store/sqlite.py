"""The store in one file: SQLite, through apsw and the library that it brings along.

Place in the flow: store ─statements─▶ **SQLite** ─▶ disk. One connection writes, and holds a lock beside the file.
Versions before 3.51.3 may damage a database in WAL mode (the WAL-reset bug), so there the older rollback journal is
used, which is slower and just as safe.
Invariant: a commit that has returned is on the disk.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from gpuyard.errors import (
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreGoneError,
    StoreReadOnlyError,
    StoreWaitError,
)
from gpuyard.platform.clock import wall_ms
from gpuyard.worlds.standalone.store.address import SqliteAddress
from gpuyard.worlds.standalone.store.chain import Gap, Link, Proof
from gpuyard.worlds.standalone.store.damage import Place
from gpuyard.worlds.standalone.store.lockfile import PRIVATE_FILE, FileLock
from gpuyard.worlds.standalone.store.marker import MARKER_SUFFIX, MarkerFile
from gpuyard.worlds.standalone.store.port import DailySum, Entry
from gpuyard.worlds.standalone.store.session import Row, Value
from gpuyard.worlds.standalone.store.sql_store import SqlStore

FIXED_IN: Final = (3, 51, 3)
"""The first version of SQLite without the WAL-reset bug."""

PRIVATE_FOLDER: Final = 0o700
BUSY_TIMEOUT_MS: Final = 10_000
READER_TIMEOUT_MS: Final = 60_000
"""With a rollback journal whoever writes keeps readers out; a backup beside a busy manager has time to find a gap."""
MIN_ROOM_BYTES: Final = 64 << 10
"""Less than this is taken for a full disk: an append is a few pages, and its journal is written first."""
WAL_LIMIT_BYTES: Final = 64 << 20
"""What is left of the journal after a time of many writes."""

LOCK_SUFFIX: Final = ".lock"
JOURNAL_SUFFIXES: Final = ("-wal", "-shm", "-journal")

WAL: Final = "wal"
ROLLBACK: Final = "delete"

DIALECT: Final[Mapping[str, str]] = {
    "integer": "INTEGER",
    "key": "INTEGER PRIMARY KEY",
    "text": "TEXT",
    "bytes": "BLOB",
    "clustered": "WITHOUT ROWID",
    "no_bytes": "x''",
    # Text as bytes: what is damaged need not be text any more, and the driver would refuse the whole page.
    "columns": "e.seq, e.at_ms, CAST(e.kind AS BLOB) AS kind, e.body, CAST(e.actor AS BLOB) AS actor,"
    " CAST(e.team AS BLOB) AS team, CAST(e.objects AS BLOB) AS objects, e.checksum",
}

_log = logging.getLogger(__name__)


def library_version() -> tuple[int, ...]:
    """Of the SQLite that is linked, which need not be the one that apsw brings along."""
    return tuple(int(part) for part in apsw.sqlite_lib_version().split("."))


class SqliteStore(SqlStore):
    """All state in one file."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        super().__init__(SqliteAddress(self._path), MarkerFile(self._path.with_name(self._path.name + MARKER_SUFFIX)))
        self._journal = WAL if library_version() >= FIXED_IN else ROLLBACK
        self._warned = False

    @property
    def description(self) -> str:
        mode = "WAL" if self._journal == WAL else f"rollback journal ({self._why_not_wal})"
        return f"SQLite {apsw.sqlite_lib_version()} in {self._path}, {mode}"

    @property
    def _why_not_wal(self) -> str:
        if library_version() < FIXED_IN:
            fixed = ".".join(map(str, FIXED_IN))
            return f"versions before {fixed} may damage a database in WAL mode"
        return "the file system cannot do WAL"

    def _connect_writer(self) -> SqliteSession:
        self._make_folder()
        lock = FileLock(self._path.with_name(self._path.name + LOCK_SUFFIX))
        try:
            self._make_file()
            session = SqliteSession(self._path, lock)
        except BaseException:
            lock.release()
            raise
        try:
            self._set_journal(session)
        except BaseException:
            session.close()
            raise
        return session

    def _connect_reader(self) -> SqliteSession:
        if not self._path.is_file():
            raise StoreError(f"there is no database {self._path}", fix="name another with --database")
        return SqliteSession(self._path, None)

    def check_writable(self) -> None:
        """Ask the file system: one that is full, or no longer to be written, would refuse the next append."""
        _ = self._session
        try:
            found = os.statvfs(self._path.parent)
        except OSError as error:
            raise StoreGoneError(
                f"the disk of {self._path} cannot be read: {error.strerror}", fix="look at the disk, then start again"
            ) from error
        if found.f_flag & os.ST_RDONLY:
            raise StoreReadOnlyError(f"{self._path} may only be read", fix="mount its disk so that it can be written")
        if found.f_bavail * found.f_frsize < MIN_ROOM_BYTES:
            raise StoreFullError(f"{self._path} cannot grow: the disk is full", fix="make room on the disk")

    def _look_before_connecting(self) -> None:
        """SQLite makes a new database of an empty file, and throws away the journal that is beside it."""
        known = self.marker.read()
        if known is not None and known.last_seq and not _has_content(self._path):
            raise self.place.gone(known)

    def set_aside(self) -> str:
        lock = FileLock(self._path.with_name(self._path.name + LOCK_SUFFIX))
        name = f"{self._path.name}.damaged-{wall_ms()}"
        try:
            for suffix in ("", *JOURNAL_SUFFIXES):
                file = self._path.with_name(self._path.name + suffix)
                if file.exists():
                    file.rename(self._path.with_name(name + suffix))
        except OSError as error:
            raise StoreError(
                f"the damaged database {self._path} cannot be given another name: {error.strerror}",
                fix="let the user of the manager own the folder",
            ) from error
        finally:
            lock.release()
        return str(self._path.with_name(name))

    def _set_journal(self, session: SqliteSession) -> None:
        ((mode,),) = session.run(f"PRAGMA journal_mode = {self._journal}")
        # Memory shared between processes is not to be had on every file system; SQLite then keeps the other journal.
        self._journal = WAL if mode == WAL else ROLLBACK
        session.run(f"PRAGMA synchronous = {'FULL' if self._journal == WAL else 'EXTRA'}")
        session.run(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
        if self._journal != WAL and not self._warned:
            _log.warning("the database is %s", self.description)
            self._warned = True

    def _make_folder(self) -> None:
        folder = self._path.parent
        try:
            folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        except FileNotFoundError as error:
            raise StoreError(
                f"there is no folder {folder.parent} for the database {self._path.name}",
                fix=f"make it, or name another place: mkdir -p {folder}",
            ) from error
        except OSError as error:
            raise StoreError(
                f"the folder {folder} of the database cannot be made: {error.strerror}",
                fix="name a place that the user of the manager may write to",
            ) from error

    def _make_file(self) -> None:
        """Made before SQLite makes it, so that nobody else can read it even for an instant."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            descriptor = os.open(self._path, flags, PRIVATE_FILE)
        except OSError as error:
            raise StoreError(
                f"the database {self._path} cannot be written: {error.strerror}",
                fix="let the user of the manager own the file, on a disk that may be written to",
            ) from error
        try:
            found = os.fstat(descriptor)
            if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != PRIVATE_FILE:
                os.fchmod(descriptor, PRIVATE_FILE)
        finally:
            os.close(descriptor)


class SqliteSession:
    """One connection; the writer's also holds the lock."""

    def __init__(self, path: Path, lock: FileLock | None) -> None:
        self._path = path
        self._lock = lock
        self._connection: apsw.Connection | None = None
        with self._explained():
            self._connection = apsw.Connection(os.fspath(path), flags=apsw.SQLITE_OPEN_READWRITE)
            self._connection.set_busy_timeout(BUSY_TIMEOUT_MS if lock else READER_TIMEOUT_MS)
            # The first read shows whether it is a database at all.
            self._connection.execute("PRAGMA schema_version").fetchall()

    @property
    def dialect(self) -> Mapping[str, str]:
        return DIALECT

    def run(self, sql: str, **values: Value) -> list[Row]:
        with self._explained():
            return list(self._live.execute(sql, values))

    def entry_rows(self, sql: str, **values: Value) -> list[Row]:
        """The columns are already asked for as bytes."""
        return self.run(sql, **values)

    def tables(self) -> frozenset[str]:
        found = self.run("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        return frozenset(row[0] for row in found)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        yield from self._between("BEGIN IMMEDIATE")

    @contextmanager
    def moment(self) -> Iterator[None]:
        yield from self._between("BEGIN")

    def _between(self, begin: str) -> Iterator[None]:
        self.run(begin)
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            if self._connection is not None and self._connection.in_transaction:
                with suppress(StoreError):
                    self.run("ROLLBACK")
            raise

    def append(self, links: Sequence[Link]) -> bool:
        first, last = links[0], links[-1]
        with self.transaction():
            self.run(
                "UPDATE head SET last_seq = :last_seq, digest = :digest"
                " WHERE last_seq = :before AND digest = :previous",
                last_seq=last.entry.seq,
                digest=last.digest,
                before=first.entry.seq - 1,
                previous=first.previous,
            )
            if self._live.changes() == 0:
                return False
            self.add_links(links)
        return True

    def add_links(self, links: Sequence[Link]) -> None:
        self._run_many("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)", map(_row, links))
        self.add_names([link.entry for link in links])

    def set_checksums(self, proofs: Sequence[Proof]) -> None:
        rows = ((proof.checksum, proof.seq) for proof in proofs)
        self._run_many("UPDATE entries SET checksum = ? WHERE seq = ?", rows)

    def add_names(self, entries: Sequence[Entry]) -> None:
        named = ((name, entry.seq) for entry in entries for name in dict.fromkeys(entry.objects))
        self._run_many("INSERT INTO entry_objects VALUES (?, ?)", named)

    def add_gaps(self, gaps: Sequence[Gap]) -> None:
        self._run_many("INSERT INTO gaps VALUES (?, ?, ?)", map(msgspec.structs.astuple, gaps))

    def structure_damage(self) -> list[str]:
        return [str(row[0]) for row in self.run("PRAGMA integrity_check(20)") if row[0] != "ok"]

    def size_bytes(self) -> int:
        ((pages,),), ((page_bytes,),) = self.run("PRAGMA page_count"), self.run("PRAGMA page_size")
        return int(pages) * int(page_bytes)

    def drop_entries(self, entries: Sequence[Entry]) -> None:
        self._run_many("DELETE FROM entries WHERE seq = ?", ((entry.seq,) for entry in entries))
        named = ((name, entry.seq) for entry in entries for name in entry.objects)
        self._run_many("DELETE FROM entry_objects WHERE object = ? AND seq = ?", named)

    def add_sums(self, sums: Sequence[DailySum]) -> None:
        self._run_many("REPLACE INTO daily_sums VALUES (?, ?, ?, ?, ?, ?, ?)", map(msgspec.structs.astuple, sums))

    def _run_many(self, sql: str, rows: Iterator[tuple[Any, ...]]) -> None:
        with self._explained():
            self._live.executemany(sql, rows)

    def close(self) -> None:
        if self._connection is not None:
            with suppress(apsw.Error):
                self._connection.close(True)
            self._connection = None
        if self._lock is not None:
            self._lock.release()

    @property
    def _live(self) -> apsw.Connection:
        if self._connection is None:
            raise StoreGoneError(f"the database {self._path} was closed", fix="open it again")
        return self._connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except apsw.IOError as error:
            # Whether a commit that failed like this is on the disk, only the next open can say.
            self.close()
            raise StoreGoneError(
                f"the disk of {self._path} cannot be read or written: {error}", fix="look at the disk, then start again"
            ) from error
        except apsw.Error as error:
            raise explained(error, self._path) from error
        except UnicodeDecodeError as error:
            raise StoreDamagedError("a text in it is not text any more") from error


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False
    except OSError:
        # What is wrong with it, opening it will tell.
        return True


def _row(link: Link) -> tuple[Any, ...]:
    entry = link.entry
    objects = msgspec.json.encode(entry.objects).decode()
    return entry.seq, entry.at_ms, entry.kind, entry.body, entry.actor, entry.team, objects, link.checksum


def explained(error: apsw.Error, path: Path) -> StoreError:
    """What an error of SQLite means to a person."""
    for kind, what in _DAMAGED:
        if isinstance(error, kind):
            return StoreDamagedError(f"{path} {what}", fix=Place(SqliteAddress(path)).restore)
    if isinstance(error, apsw.SQLError) and "no such" in str(error):
        return StoreDamagedError(str(error))
    for kind, what, fix in _MEANINGS:
        if isinstance(error, kind):
            refusal = _PASSING.get(kind, StoreError)
            return refusal(f"{path} {what}", fix=fix)
    return StoreError(f"SQLite refuses to work with {path}: {error}", fix="restore a backup if it does so again")


_DAMAGED: Final[tuple[tuple[type[apsw.Error], str], ...]] = (
    (apsw.NotADBError, "is not a SQLite database, or its first page is damaged"),
    (apsw.CorruptError, "is damaged: SQLite cannot read it"),
)

_MEANINGS: Final[tuple[tuple[type[apsw.Error], str, str], ...]] = (
    (apsw.FullError, "cannot grow: the disk is full; nothing was written", "make room on the disk"),
    (apsw.ReadOnlyError, "may only be read", "let the user of the manager own it, on a disk that may be written to"),
    (apsw.PermissionsError, "may not be opened", "let the user of the manager own it"),
    (apsw.CantOpenError, "cannot be opened", "name a file in a folder that the user of the manager may write to"),
    (apsw.BusyError, "is locked by another program", "close what else has it open, such as a SQLite shell"),
)

_PASSING: Final[Mapping[type[apsw.Error], type[StoreError]]] = {
    apsw.FullError: StoreFullError,
    apsw.BusyError: StoreWaitError,
}
"""After these nothing was written, and the same may be written later."""
