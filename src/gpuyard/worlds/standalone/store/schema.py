"""The tables, the same in both databases, and how an older database becomes a current one.

Place in the flow: opening a store ─▶ **migrate** ─▶ reading and writing. Each migration is one transaction together
with the record of its number, so that a crash leaves the database before it or after it.
Invariant: a migration that was released is never edited; what changes is a new one at the end of the list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gpuyard.errors import StoreDamagedError, StoreError
from gpuyard.worlds.standalone.store.sealing import seal_log
from gpuyard.worlds.standalone.store.session import Session

VERSION_TABLE: Final = "schema_version"

# The head keeps the last number by itself, because retention may take the newest entry away.
# An entry keeps its objects for whoever reads it; entry_objects finds it by one of them.
# (kind, seq) and its like give the newest entries of one kind without sorting.
THE_LOG: Final = (
    "CREATE TABLE schema_version (version INTEGER NOT NULL)",
    "CREATE TABLE head (id INTEGER PRIMARY KEY CHECK (id = 1), last_seq {integer} NOT NULL)",
    "INSERT INTO head (id, last_seq) VALUES (1, 0)",
    """CREATE TABLE entries (
        seq {key}, at_ms {integer} NOT NULL, kind {text} NOT NULL, body {bytes} NOT NULL,
        actor {text} NOT NULL, team {text} NOT NULL, objects {text} NOT NULL)""",
    "CREATE INDEX entries_by_kind ON entries (kind, seq)",
    "CREATE INDEX entries_by_team ON entries (team, seq)",
    "CREATE INDEX entries_by_team_and_kind ON entries (team, kind, seq)",
    "CREATE INDEX entries_by_actor ON entries (actor, seq)",
    "CREATE INDEX entries_by_time ON entries (at_ms, seq)",
    """CREATE TABLE entry_objects (
        object {text} NOT NULL, seq {integer} NOT NULL, PRIMARY KEY (object, seq)) {clustered}""",
    "CREATE TABLE snapshots (seq {key}, at_ms {integer} NOT NULL, body {bytes} NOT NULL)",
    """CREATE TABLE daily_sums (
        day {text} NOT NULL, team {text} NOT NULL, user_name {text} NOT NULL, job {text} NOT NULL,
        kind {text} NOT NULL, cause {text} NOT NULL, gpu_milli_ms {integer} NOT NULL,
        PRIMARY KEY (day, team, user_name, job, kind, cause)) {clustered}""",
)

# No table changes, but the log may hold events that a gpuyard without schedules cannot read: it refuses version 2.
EVENTS_OF_SCHEDULES: Final[tuple[str, ...]] = ()

# Each entry and snapshot has a checksum; the head names its log. A gap is what retention took. A log that was restored
# over another remembers that one's name.
CHECKSUMS: Final = (
    "ALTER TABLE entries ADD COLUMN checksum {bytes} NOT NULL DEFAULT {no_bytes}",
    "ALTER TABLE snapshots ADD COLUMN checksum {bytes} NOT NULL DEFAULT {no_bytes}",
    "ALTER TABLE head ADD COLUMN digest {bytes} NOT NULL DEFAULT {no_bytes}",
    "ALTER TABLE head ADD COLUMN log {text} NOT NULL DEFAULT ''",
    "CREATE TABLE gaps (first_seq {key}, last_seq {integer} NOT NULL, digest {bytes} NOT NULL)",
    """CREATE TABLE day_checksums (
        day {text} NOT NULL PRIMARY KEY, row_count {integer} NOT NULL, checksum {bytes} NOT NULL) {clustered}""",
    """CREATE TABLE former_logs (
        log {text} NOT NULL PRIMARY KEY, last_seq {integer} NOT NULL, at_ms {integer} NOT NULL) {clustered}""",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (THE_LOG, EVENTS_OF_SCHEDULES, CHECKSUMS)
"""The first makes version 1 of an empty database, each further one the next version."""

WITH_CHECKSUMS: Final = 3
"""The first version whose entries have checksums."""
AFTER: Final[Mapping[int, Callable[[Session], None]]] = {WITH_CHECKSUMS: seal_log}
"""What is done with the rows that are there, in the same transaction as the statements of that version."""

TABLES: Final = frozenset(
    {
        VERSION_TABLE,
        "head",
        "entries",
        "entry_objects",
        "snapshots",
        "daily_sums",
        "gaps",
        "day_checksums",
        "former_logs",
    }
)


def version_of(session: Session) -> int:
    """0 where there is nothing yet; a database of somebody else is refused."""
    tables = session.tables()
    if VERSION_TABLE in tables:
        return _written_version(session)
    if tables:
        raise StoreError(
            f"the database holds tables of another program ({', '.join(sorted(tables)[:3])})",
            fix="name an empty database, or for PostgreSQL another schema: ?schema=NAME",
        )
    return 0


def _written_version(session: Session) -> int:
    rows = session.run(f"SELECT version FROM {VERSION_TABLE}")
    if len(rows) != 1 or not isinstance(rows[0][0], int) or rows[0][0] < 1:
        raise StoreDamagedError(f"the table {VERSION_TABLE} does not hold a version")
    return rows[0][0]


def check_tables(session: Session) -> None:
    """A table that is gone is named before anything asks for it."""
    missing = sorted(TABLES - session.tables())
    if missing:
        raise StoreDamagedError(f"the table {missing[0]} is gone")


def migrate(session: Session) -> None:
    """Bring the database to the newest version; one that is newer than this program is left alone."""
    version = version_of(session)
    refuse_newer(version)
    for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
        with session.transaction():
            for statement in statements:
                session.run(statement.format_map(session.dialect))
            if number in AFTER:
                AFTER[number](session)
            session.run(f"DELETE FROM {VERSION_TABLE}")
            session.run(f"INSERT INTO {VERSION_TABLE} (version) VALUES (:version)", version=number)


def refuse_newer(version: int) -> None:
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the database has schema version {version}; this gpuyard knows versions up to {len(MIGRATIONS)}",
            fix="use the gpuyard that wrote it or a newer one, or restore a backup made with this one",
        )


def require_current(session: Session) -> None:
    """For those who only read, and therefore may not migrate."""
    version = version_of(session)
    refuse_newer(version)
    if version == 0:
        raise StoreError("the database is empty", fix="start the manager once, or name another with --database")
    if version < len(MIGRATIONS):
        raise StoreError(
            f"the database has schema version {version}; this gpuyard works with version {len(MIGRATIONS)}",
            fix="start the manager of this gpuyard once, which brings it up to date",
        )
