"""The store on any database with SQL: everything that SQLite and PostgreSQL do alike.

Place in the flow: journal ─▶ **store** ─statements─▶ session. A subclass only knows how to connect.
Invariant: the store has a session exactly while it holds the writer's lock.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Final

from gpuyard.errors import StoreDamagedError, StoreGoneError
from gpuyard.platform.clock import wall_ms
from gpuyard.worlds.standalone.store import rows, verify
from gpuyard.worlds.standalone.store.address import PostgresAddress, SqliteAddress
from gpuyard.worlds.standalone.store.archive import Page, write_archive
from gpuyard.worlds.standalone.store.chain import START, Head, Link, chained, merged, runs, snapshot_checksum
from gpuyard.worlds.standalone.store.checks import check_entries, check_sums, not_next
from gpuyard.worlds.standalone.store.damage import Place, unfit_marker
from gpuyard.worlds.standalone.store.marker import MarkerFile, NoMarker
from gpuyard.worlds.standalone.store.port import (
    DailySum,
    Damage,
    Entry,
    Progress,
    Quarantine,
    StoredSnapshot,
    Verification,
    no_progress,
)
from gpuyard.worlds.standalone.store.quarantine import KINDS, note_all, quarantine_of
from gpuyard.worlds.standalone.store.replacing import add_snapshot, replace_all
from gpuyard.worlds.standalone.store.rows import SUM_COLUMNS, SUM_KEY
from gpuyard.worlds.standalone.store.schema import check_tables, migrate, require_current
from gpuyard.worlds.standalone.store.sealing import seal_day
from gpuyard.worlds.standalone.store.search import MAX_RESULTS, TIMES_STATEMENT, Search, SeqRange, statement_of
from gpuyard.worlds.standalone.store.session import Session
from gpuyard.worlds.standalone.store.source import SqlSource
from gpuyard.worlds.standalone.store.verify import INDEX_DAMAGE

KEPT_SNAPSHOTS: Final = 3
PRUNE_CHUNK: Final = 2000
"""Entries that go in one transaction, so that none takes long."""

TABLES: Final = ("entries", "entry_objects", "snapshots", "daily_sums", "gaps", "day_checksums")

_log = logging.getLogger(__name__)


class SqlStore(ABC):
    """A store whose state is in a database."""

    def __init__(self, address: SqliteAddress | PostgresAddress, marker: MarkerFile | NoMarker) -> None:
        self.place = Place(address)
        self.marker = marker
        self._open_session: Session | None = None
        self._head = Head()
        self._quarantine = Quarantine()

    @property
    @abstractmethod
    def description(self) -> str: ...

    @abstractmethod
    def _connect_writer(self) -> Session:
        """A session that holds the writer's lock until it is closed."""

    @abstractmethod
    def _connect_reader(self) -> Session:
        """A further session, which locks nobody out."""

    @abstractmethod
    def _look_before_connecting(self) -> None:
        """Refuse what connecting alone would change."""

    @abstractmethod
    def set_aside(self) -> str:
        """Give what is there another name, so that an empty database is in its place; what it is called now."""

    # ------------------------------------------------------------------------------------------------ open and close

    def open(self, *, accept: bool = False) -> None:
        """`accept`: whatever is there is taken for what should be there; for a restore, and where a person says so."""
        self.close()
        if not accept:
            self._look_before_connecting()
        with self.place.named():
            session = self._connect_writer()
        try:
            with self.place.named():
                self._begin(session, accept=accept)
        except BaseException:
            session.close()
            raise
        self._open_session = session

    def _begin(self, session: Session, *, accept: bool) -> None:
        unfit = None if accept else unfit_marker(self.place, self.marker, session)
        if unfit is not None:
            raise unfit
        migrate(session)
        check_tables(session)
        self._head = rows.head_of(session)
        self._quarantine = quarantine_of(_of_kinds(session, KINDS))
        if not accept:
            self.marker.write(self._head, sync=True)

    @contextmanager
    def _reader(self) -> Iterator[Session]:
        """A session on the log that this machine knows, beside the writer if there is one."""
        self._look_before_connecting()
        with closing(self._connect_reader()) as session, self.place.named():
            unfit = unfit_marker(self.place, self.marker, session)
            if unfit is not None:
                raise unfit
            require_current(session)
            check_tables(session)
            yield session

    def close(self) -> None:
        self.marker.close()
        if self._open_session is not None:
            self._open_session.close()
            self._open_session = None

    @property
    def _session(self) -> Session:
        if self._open_session is None:
            raise StoreGoneError("the store is not open", fix="open it first")
        return self._open_session

    # ------------------------------------------------------------------------------------------------- what is damaged

    def quarantine(self) -> Quarantine:
        return self._quarantine

    def damaged(self, what: str, seq: int = 0) -> StoreDamagedError:
        return self.place.damaged([Damage(what, seq)])

    def check(self) -> Verification:
        session = self._session
        with self.place.named():
            found = verify.for_start(session, self._quarantine.entries)
            if found.damage:
                raise self.place.damaged(found.damage)
        if found.complete:
            self.mend_index()
        return found

    def mend_index(self) -> None:
        """Make the index of objects again, where it does not fit the entries: all of it is in them."""
        session = self._session
        if verify.index_fits(session):
            return
        _log.warning("%s: %s; it is made again", self.place, INDEX_DAMAGE)
        with session.transaction():
            session.run("DELETE FROM entry_objects")
            after_seq = 0
            while links := rows.read_links(session, after_seq, PRUNE_CHUNK):
                session.add_names([link.entry for link in links])
                after_seq = links[-1].entry.seq

    def verify(self, progress: Progress = no_progress) -> Verification:
        """Look at everything, beside the writer if there is one, and change nothing."""
        with self._reader() as session:
            quarantine = quarantine_of(_of_kinds(session, KINDS))
            return verify.everything(session, quarantine.entries, progress)

    # ------------------------------------------------------------------------------------------------- to look into it

    @contextmanager
    def reading(self) -> Iterator[tuple[Callable[[int, int], list[Link]], Quarantine]]:
        """Read entries as they are, damaged or not, beside the writer if there is one."""
        with closing(self._connect_reader()) as session, self.place.named():
            require_current(session)
            check_tables(session)
            yield partial(rows.read_links, session), quarantine_of(_of_kinds(session, KINDS))

    def link(self, seq: int) -> Link | None:
        """One entry as it is, damaged or not."""
        return rows.link_at(self._session, seq)

    def holds_in_snapshots_only(self, seq: int) -> bool:
        """Whether the state could not be made again without what an entry did."""
        older = any(one < seq for (one,) in self._session.run("SELECT seq FROM snapshots"))
        return not older and bool(rows.gaps(self._session, 1, seq))

    # ------------------------------------------------------------------------------------------------------- the log

    def last_seq(self) -> int:
        return last_seq(self._session)

    def append(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        check_entries(entries)
        links = list(chained(self._head.digest, entries))
        if not self._session.append(links):
            raise not_next(entries[0].seq)
        self._head = Head(entries[-1].seq, links[-1].digest, self._head.log)
        note_all(self._quarantine, entries)
        self.marker.write(self._head)

    @abstractmethod
    def check_writable(self) -> None: ...

    def read(self, after_seq: int, limit: int) -> list[Entry]:
        return self._sound(rows.read_links(self._session, after_seq, limit))

    def _sound(self, links: Iterable[Link]) -> list[Entry]:
        """The entries, where each is what was written or known not to be."""
        known = self._quarantine.entries
        bad = next((link.entry for link in links if not link.intact and link.entry.seq not in known), None)
        if bad is not None:
            raise self.place.damaged_entry(bad.seq, bad.kind)
        return [link.entry for link in links]

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
        search = Search(object, tuple(kinds), actor, wanted, since_ms, until_ms, before_seq, limit)
        return self._sound(find(self._session, search))

    def prune(self, older_than_ms: Mapping[str, int], up_to_seq: int, after_seq: int = 0) -> int:
        return sum(self._prune_kind(kind, older_than_ms[kind], up_to_seq, after_seq) for kind in sorted(older_than_ms))

    def _prune_kind(self, kind: str, before_ms: int, up_to_seq: int, after_seq: int) -> int:
        session = self._session
        old = None if kind in KINDS else _seq_range(session, Search(until_ms=before_ms, before_seq=up_to_seq + 1))
        gone = 0
        while old and after_seq < old.last:
            found = session.entry_rows(
                f"SELECT {session.dialect['columns']} FROM entries AS e WHERE e.kind = :kind AND e.at_ms < :before_ms"
                " AND e.seq > :after_seq AND e.seq <= :last_seq ORDER BY e.seq LIMIT :limit",
                kind=kind,
                before_ms=before_ms,
                after_seq=after_seq,
                last_seq=old.last,
                limit=PRUNE_CHUNK,
            )
            if not found:
                break
            links = [rows.link_of_row(row) for row in found]
            after_seq = links[-1].entry.seq
            gone += self._drop([link for link in links if link.entry.seq not in self._quarantine.entries])
        return gone

    def _drop(self, links: Sequence[Link]) -> int:
        """Take entries away, and note with the chain that they were there."""
        if not links:
            return 0
        session = self._session
        self._sound(links)
        span = {"first": links[0].entry.seq - 1, "last": links[-1].entry.seq + 1}
        with session.transaction():
            beside = rows.gaps(session, span["first"], span["last"])
            session.run("DELETE FROM gaps WHERE first_seq <= :last AND last_seq >= :first", **span)
            session.add_gaps(merged([*beside, *runs(links)]))
            session.drop_entries([link.entry for link in links])
        return len(links)

    # -------------------------------------------------------------------------------------------- snapshots and sums

    def save_snapshot(self, snapshot: StoredSnapshot) -> None:
        session = self._session
        with session.transaction():
            at = rows.digest_at(session, snapshot.seq)
            add_snapshot(session, snapshot, snapshot_checksum(at or START, snapshot))
            seqs = [row[0] for row in session.run("SELECT seq FROM snapshots ORDER BY seq DESC")]
            if len(seqs) > KEPT_SNAPSHOTS:
                session.run("DELETE FROM snapshots WHERE seq < :oldest", oldest=seqs[KEPT_SNAPSHOTS - 1])
        self.marker.write(self._head, sync=True)

    def snapshots(self) -> Iterator[StoredSnapshot]:
        for snapshot, intact in rows.kept_snapshots(self._session):
            if intact:
                yield snapshot
            else:
                _log.warning("%s: the snapshot at entry %s is damaged; an older one will do", self.place, snapshot.seq)

    def drop_snapshots_after(self, seq: int) -> None:
        self._session.run("DELETE FROM snapshots WHERE seq > :seq", seq=seq)

    def add_sums(self, sums: Sequence[DailySum]) -> None:
        check_sums(sums)
        if sums:
            with self._session.transaction():
                self._session.add_sums(sums)
                for day in dict.fromkeys(one.day for one in sums):
                    seal_day(self._session, day)

    def sums(self, since_day: str, until_day: str) -> list[DailySum]:
        found = self._session.run(
            f"SELECT {SUM_COLUMNS} FROM daily_sums WHERE day >= :since_day AND day <= :until_day ORDER BY {SUM_KEY}",
            since_day=since_day,
            until_day=until_day,
        )
        return [rows.sum_of(row) for row in found]

    # --------------------------------------------------------------------------------------------- backup and restore

    def backup(self, path: str, progress: Progress = no_progress) -> None:
        """On a session of its own, so that it may run beside the writer, in another thread or another process."""
        with self._reader() as session:
            quarantine = quarantine_of(_of_kinds(session, KINDS))
            write_archive(path, SqlSource(session, self.place, quarantine), progress)

    def is_empty(self) -> bool:
        return self.last_seq() == 0 and not any(self._session.run(f"SELECT 1 FROM {name} LIMIT 1") for name in TABLES)

    def replace(self, head_seq: int, pages: Iterable[Page]) -> None:
        """Put these in the place of everything there is, in one transaction. The log is another one from then on."""
        session, known = self._session, self.marker.read()
        former = {self._head.log: self._head.last_seq} | ({known.log: known.last_seq} if known else {})
        with session.transaction():
            head = replace_all(session, TABLES, head_seq, pages)
            for log, last_seq in former.items():
                _note_former(session, log, last_seq)
        self._take(session, head)

    def require_structure(self) -> None:
        """Before everything in it is replaced: a file that is damaged itself cannot be written to."""
        with self.place.named():
            found = self._session.structure_damage()
            if found:
                raise StoreDamagedError(found[0])

    def accept(self) -> None:
        """What is there is what this machine goes on with; so is what it has known until now no more."""
        self._take(self._session, self._head)

    def _take(self, session: Session, head: Head) -> None:
        self._head = head
        self._quarantine = quarantine_of(_of_kinds(session, KINDS))
        self.marker.write(head, sync=True)


def last_seq(session: Session) -> int:
    return rows.head_of(session).last_seq


def find(session: Session, search: Search) -> list[Link]:
    among = None if search.finds_nothing else _seq_range(session, search)
    if among is None:
        return []
    statement, values = statement_of(search, among, session.dialect["columns"])
    return [rows.link_of_row(row) for row in session.entry_rows(statement, **values)]


def _of_kinds(session: Session, kinds: Sequence[str]) -> list[Entry]:
    """All entries of these kinds, oldest first."""
    found = find(session, Search(kinds=tuple(kinds), limit=MAX_RESULTS))
    return [link.entry for link in reversed(found) if link.intact]


def _note_former(session: Session, log: str, last_seq: int) -> None:
    session.run("DELETE FROM former_logs WHERE log = :log", log=log)
    session.run(
        "INSERT INTO former_logs (log, last_seq, at_ms) VALUES (:log, :last_seq, :at_ms)",
        log=log,
        last_seq=last_seq,
        at_ms=wall_ms(),
    )


def _seq_range(session: Session, search: Search) -> SeqRange | None:
    """Where entries of these times are; the clock may have been set back, so their numbers need not be in a row."""
    newest = last_seq(session) if search.before_seq is None else search.before_seq - 1
    if not search.has_times:
        return SeqRange(1, newest)
    ((first, last),) = session.run(TIMES_STATEMENT, since_ms=search.since_ms, end_ms=search.end_ms)
    return None if first is None else SeqRange(first, min(last, newest))
