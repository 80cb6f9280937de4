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

from gpuyard.errors import StoreError, StoreFullError, StoreGoneError, StoreReadOnlyError, StoreWaitError
from gpuyard.worlds.standalone.store.lockfile import PRIVATE_FILE, FileLock
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

WAL: Final = "wal"
ROLLBACK: Final = "delete"

DIALECT: Final[Mapping[str, str]] = {
    "integer": "INTEGER",
    "key": "INTEGER PRIMARY KEY",
    "text": "TEXT",
    "bytes": "BLOB",
    "clustered": "WITHOUT ROWID",
}

_log = logging.getLogger(__name__)


def library_version() -> tuple[int, ...]:
    """Of the SQLite that is linked, which need not be the one that apsw brings along."""
    return tuple(int(part) for part in apsw.sqlite_lib_version().split("."))


class SqliteStore(SqlStore):
    """All state in one file."""

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._path = Path(path)
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

    def append(self, entries: Sequence[Entry]) -> bool:
        head = {"first_seq": entries[0].seq, "last_seq": entries[-1].seq}
        with self.transaction():
            self.run("UPDATE head SET last_seq = :last_seq WHERE last_seq = :first_seq - 1", **head)
            if self._live.changes() == 0:
                return False
            self.add_entries(entries)
        return True

    def add_entries(self, entries: Sequence[Entry]) -> None:
        self._run_many("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", map(_row, entries))
        named = ((name, entry.seq) for entry in entries for name in dict.fromkeys(entry.objects))
        self._run_many("INSERT INTO entry_objects VALUES (?, ?)", named)

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


def _row(entry: Entry) -> tuple[Any, ...]:
    objects = msgspec.json.encode(entry.objects).decode()
    return entry.seq, entry.at_ms, entry.kind, entry.body, entry.actor, entry.team, objects


def explained(error: apsw.Error, path: Path) -> StoreError:
    """What an error of SQLite means to a person."""
    for kind, what, fix in _MEANINGS:
        if isinstance(error, kind):
            refusal = _PASSING.get(kind, StoreError)
            return refusal(f"{path} {what}", fix=fix)
    return StoreError(f"SQLite refuses to work with {path}: {error}", fix="restore a backup if it does so again")


_MEANINGS: Final[tuple[tuple[type[apsw.Error], str, str], ...]] = (
    (apsw.NotADBError, "is not a SQLite database", "name another file, or restore a backup into a new one"),
    (apsw.CorruptError, "is damaged", "restore a backup into a new file: gpuyard restore FILE --database PATH"),
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
