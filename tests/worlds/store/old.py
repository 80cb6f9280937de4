"""Databases as older versions of gpuyard have left them, written with SQL alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import apsw
import msgspec
from pg8000.native import Connection  # type: ignore[import-untyped]

from gpuyard.worlds.standalone.store.port import DailySum, Entry, StoredSnapshot

SQLITE = {
    "integer": "INTEGER",
    "key": "INTEGER PRIMARY KEY",
    "text": "TEXT",
    "bytes": "BLOB",
    "clustered": "WITHOUT ROWID",
}
POSTGRES = {"integer": "BIGINT", "key": "BIGINT PRIMARY KEY", "text": 'TEXT COLLATE "C"', "bytes": "BYTEA"}
SCHEMA = (
    "CREATE TABLE schema_version (version INTEGER NOT NULL)",
    "CREATE TABLE head (id INTEGER PRIMARY KEY CHECK (id = 1), last_seq {integer} NOT NULL)",
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
"""What schema version 2 was, and 1 with the same tables."""

Run = Callable[..., Any]


@contextmanager
def raw(address: str) -> Iterator[Run]:
    """Run statements in a database, with values by name, past everything that gpuyard keeps."""
    if not address.startswith("postgresql://"):
        Path(address).parent.mkdir(exist_ok=True, mode=0o700)
        file = apsw.Connection(address)
        try:
            yield lambda sql, **values: file.execute(sql, values).fetchall()
        finally:
            file.close()
        return
    parts = urlsplit(address)
    folder = parse_qs(parts.query)["host"][0]
    server = Connection(
        unquote(parts.username or ""),
        database=parts.path.lstrip("/"),
        unix_sock=f"{folder}/.s.PGSQL.{parts.port}",
    )
    try:
        server.run("CREATE SCHEMA IF NOT EXISTS gpuyard")
        server.run("SET search_path = gpuyard")
        yield server.run
    finally:
        server.close()


def write_old(
    address: str | Path,
    entries: Sequence[Entry],
    snapshots: Sequence[StoredSnapshot] = (),
    sums: Sequence[DailySum] = (),
    *,
    version: int = 2,
    last_seq: int | None = None,
) -> None:
    """A database without checksums, with these in it."""
    words = POSTGRES | {"clustered": ""} if str(address).startswith("postgresql://") else SQLITE
    with raw(str(address)) as run:
        run("BEGIN")
        for statement in SCHEMA:
            run(statement.format_map(words))
        run("INSERT INTO schema_version VALUES (:version)", version=version)
        end = last_seq if last_seq is not None else entries[-1].seq if entries else 0
        run("INSERT INTO head VALUES (1, :end)", end=end)
        for entry in entries:
            insert_old(run, entry)
        for one in snapshots:
            run("INSERT INTO snapshots VALUES (:seq, :at_ms, :body)", **msgspec.structs.asdict(one))
        for sum in sums:
            values = msgspec.structs.asdict(sum)
            run("INSERT INTO daily_sums VALUES (:day, :team, :user, :job, :kind, :cause, :gpu_milli_ms)", **values)
        run("COMMIT")


def insert_old(run: Run, entry: Entry) -> None:
    values = {**msgspec.structs.asdict(entry), "objects": msgspec.json.encode(entry.objects).decode()}
    run("INSERT INTO entries VALUES (:seq, :at_ms, :kind, :body, :actor, :team, :objects)", **values)
    for name in dict.fromkeys(entry.objects):
        run("INSERT INTO entry_objects VALUES (:name, :seq)", name=name, seq=entry.seq)
