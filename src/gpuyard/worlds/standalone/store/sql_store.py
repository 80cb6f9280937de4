"""The store on any database with SQL: everything that SQLite and PostgreSQL do alike.

Place in the flow: journal ─▶ **store** ─statements─▶ session. A subclass only knows how to connect.
Invariant: the store has a session exactly while it holds the writer's lock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final

import msgspec

from gpuyard.errors import StoreGoneError
from gpuyard.worlds.standalone.store.archive import Page, Progress, no_progress, write_archive
from gpuyard.worlds.standalone.store.checks import check_entries, check_sums, not_next
from gpuyard.worlds.standalone.store.port import DailySum, Entry, StoredSnapshot
from gpuyard.worlds.standalone.store.schema import migrate, require_current
from gpuyard.worlds.standalone.store.search import (
    COLUMNS,
    TIMES_STATEMENT,
    Search,
    SeqRange,
    statement_of,
)
from gpuyard.worlds.standalone.store.session import Row, Session

KEPT_SNAPSHOTS: Final = 3
PRUNE_CHUNK: Final = 2000
"""Entries that go in one transaction, so that none takes long."""

TABLES: Final = ("entries", "entry_objects", "snapshots", "daily_sums")
SUM_KEY: Final = "day, team, user_name, job, kind, cause"
SUM_COLUMNS: Final = f"{SUM_KEY}, gpu_milli_ms"

_objects = msgspec.json.Decoder(tuple[str, ...])


class SqlStore(ABC):
    """A store whose state is in a database."""

    def __init__(self) -> None:
        self._open_session: Session | None = None

    @property
    @abstractmethod
    def description(self) -> str: ...

    @abstractmethod
    def _connect_writer(self) -> Session:
        """A session that holds the writer's lock until it is closed."""

    @abstractmethod
    def _connect_reader(self) -> Session:
        """A further session, which locks nobody out."""

    # ------------------------------------------------------------------------------------------------ open and close

    def open(self) -> None:
        self.close()
        session = self._connect_writer()
        try:
            migrate(session)
        except BaseException:
            session.close()
            raise
        self._open_session = session

    def close(self) -> None:
        if self._open_session is not None:
            self._open_session.close()
            self._open_session = None

    @property
    def _session(self) -> Session:
        if self._open_session is None:
            raise StoreGoneError("the store is not open", fix="open it first")
        return self._open_session

    # ------------------------------------------------------------------------------------------------------- the log

    def last_seq(self) -> int:
        return last_seq(self._session)

    def append(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        check_entries(entries)
        if not self._session.append(entries):
            raise not_next(entries[0].seq)

    @abstractmethod
    def check_writable(self) -> None: ...

    def read(self, after_seq: int, limit: int) -> list[Entry]:
        return read(self._session, after_seq, limit)

    def history(
        self,
        *,
        object: str = "",
        kinds: Sequence[str] = (),
        actor: str = "",
        teams: Sequence[str] | None = None,
        since_ms: int = 0,
        until_ms: int | None = None,
        before_seq: int | None = None,
        limit: int = 100,
    ) -> list[Entry]:
        wanted = None if teams is None else tuple(teams)
        return find(self._session, Search(object, tuple(kinds), actor, wanted, since_ms, until_ms, before_seq, limit))

    def prune(self, older_than_ms: Mapping[str, int], up_to_seq: int, after_seq: int = 0) -> int:
        return sum(self._prune_kind(kind, older_than_ms[kind], up_to_seq, after_seq) for kind in sorted(older_than_ms))

    def _prune_kind(self, kind: str, before_ms: int, up_to_seq: int, after_seq: int) -> int:
        session = self._session
        old = _seq_range(session, Search(until_ms=before_ms, before_seq=up_to_seq + 1))
        gone = 0
        while old and after_seq < old.last:
            rows = session.run(
                f"SELECT {COLUMNS} FROM entries AS e WHERE e.kind = :kind AND e.at_ms < :before_ms"
                " AND e.seq > :after_seq AND e.seq <= :last_seq ORDER BY e.seq LIMIT :limit",
                kind=kind,
                before_ms=before_ms,
                after_seq=after_seq,
                last_seq=old.last,
                limit=PRUNE_CHUNK,
            )
            if not rows:
                break
            with session.transaction():
                session.drop_entries([_entry(row) for row in rows])
            after_seq, gone = rows[-1][0], gone + len(rows)
        return gone

    # -------------------------------------------------------------------------------------------- snapshots and sums

    def save_snapshot(self, snapshot: StoredSnapshot) -> None:
        with self._session.transaction():
            add_snapshot(self._session, snapshot)
            seqs = [row[0] for row in self._session.run("SELECT seq FROM snapshots ORDER BY seq DESC")]
            if len(seqs) > KEPT_SNAPSHOTS:
                self._session.run("DELETE FROM snapshots WHERE seq < :oldest", oldest=seqs[KEPT_SNAPSHOTS - 1])

    def snapshots(self) -> Iterator[StoredSnapshot]:
        return snapshots(self._session)

    def add_sums(self, sums: Sequence[DailySum]) -> None:
        check_sums(sums)
        if sums:
            with self._session.transaction():
                self._session.add_sums(sums)

    def sums(self, since_day: str, until_day: str) -> list[DailySum]:
        rows = self._session.run(
            f"SELECT {SUM_COLUMNS} FROM daily_sums WHERE day >= :since_day AND day <= :until_day ORDER BY {SUM_KEY}",
            since_day=since_day,
            until_day=until_day,
        )
        return [DailySum(*row) for row in rows]

    # --------------------------------------------------------------------------------------------- backup and restore

    def backup(self, path: str, progress: Progress = no_progress) -> None:
        """On a session of its own, so that it may run beside the writer, in another thread or another process."""
        with closing(self._connect_reader()) as session:
            require_current(session)
            write_archive(path, SqlSource(session), progress)

    def is_empty(self) -> bool:
        return self.last_seq() == 0 and not any(self._session.run(f"SELECT 1 FROM {name} LIMIT 1") for name in TABLES)

    def replace(self, head_seq: int, pages: Iterable[Page]) -> None:
        """Put these in the place of everything there is, in one transaction."""
        session = self._session
        with session.transaction():
            for name in TABLES:
                session.run(f"DELETE FROM {name}")
            session.run("UPDATE head SET last_seq = :last_seq", last_seq=head_seq)
            for page in pages:
                if page.entries:
                    session.add_entries(page.entries)
                if page.sums:
                    session.add_sums(page.sums)
                for snapshot in page.snapshots:
                    add_snapshot(session, snapshot)


class SqlSource:
    """What a backup reads: a database through a session of its own."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.moment = session.moment

    def last_seq(self) -> int:
        return last_seq(self._session)

    def snapshots(self) -> Iterator[StoredSnapshot]:
        return snapshots(self._session)

    def sums_after(self, last: DailySum | None, limit: int) -> list[DailySum]:
        where, values = "", {}
        if last is not None:
            where = f"WHERE ({SUM_KEY}) > (:day, :team, :user_name, :job, :kind, :cause)"
            values = {"day": last.day, "team": last.team, "user_name": last.user}
            values |= {"job": last.job, "kind": last.kind, "cause": last.cause}
        statement = f"SELECT {SUM_COLUMNS} FROM daily_sums {where} ORDER BY {SUM_KEY} LIMIT :limit"
        return [DailySum(*row) for row in self._session.run(statement, limit=limit, **values)]

    def entries_after(self, after_seq: int, limit: int) -> list[Entry]:
        return read(self._session, after_seq, limit)


def last_seq(session: Session) -> int:
    return int(session.run("SELECT last_seq FROM head")[0][0])


def read(session: Session, after_seq: int, limit: int) -> list[Entry]:
    rows = session.run(
        f"SELECT {COLUMNS} FROM entries AS e WHERE e.seq > :after_seq ORDER BY e.seq LIMIT :limit",
        after_seq=after_seq,
        limit=max(limit, 0),
    )
    return [_entry(row) for row in rows]


def find(session: Session, search: Search) -> list[Entry]:
    among = None if search.finds_nothing else _seq_range(session, search)
    if among is None:
        return []
    statement, values = statement_of(search, among)
    return [_entry(row) for row in session.run(statement, **values)]


def _seq_range(session: Session, search: Search) -> SeqRange | None:
    """Where entries of these times are; the clock may have been set back, so their numbers need not be in a row."""
    newest = last_seq(session) if search.before_seq is None else search.before_seq - 1
    if not search.has_times:
        return SeqRange(1, newest)
    ((first, last),) = session.run(TIMES_STATEMENT, since_ms=search.since_ms, end_ms=search.end_ms)
    return None if first is None else SeqRange(first, min(last, newest))


def snapshots(session: Session) -> Iterator[StoredSnapshot]:
    """One at a time, because they are large."""
    for (seq,) in session.run("SELECT seq FROM snapshots ORDER BY seq DESC"):
        for row in session.run("SELECT seq, at_ms, body FROM snapshots WHERE seq = :seq", seq=seq):
            yield StoredSnapshot(*row)


def add_snapshot(session: Session, snapshot: StoredSnapshot) -> None:
    session.run(
        "INSERT INTO snapshots (seq, at_ms, body) VALUES (:seq, :at_ms, :body)"
        " ON CONFLICT (seq) DO UPDATE SET at_ms = excluded.at_ms, body = excluded.body",
        seq=snapshot.seq,
        at_ms=snapshot.at_ms,
        body=snapshot.body,
    )


def _entry(row: Row) -> Entry:
    seq, at_ms, kind, body, actor, team, objects = row
    return Entry(seq, at_ms, kind, body, actor, team, _objects.decode(objects))
