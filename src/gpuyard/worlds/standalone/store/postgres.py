"""The store in a PostgreSQL database: one session writes, and holds an advisory lock as long as it lives.

Place in the flow: store ─statements─▶ **PostgreSQL**. A batch travels as one JSON value and is appended by one
statement, together with the head of the log: one round trip, one transaction.
Invariant: a session that was lost has lost its lock with it and never writes again; even a writer that does not know
it yet cannot append, because the head has moved on.
"""

from __future__ import annotations

import hashlib
import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from pg8000.native import Connection, DatabaseError, InterfaceError  # type: ignore[import-untyped]

from gpuyard.errors import (
    StoreBusyError,
    StoreError,
    StoreGoneError,
    StoreReadOnlyError,
)
from gpuyard.platform.clock import wall_ms
from gpuyard.platform.dialling import dial, dial_local
from gpuyard.worlds.standalone.store.address import PostgresAddress
from gpuyard.worlds.standalone.store.chain import Gap, Link, Proof
from gpuyard.worlds.standalone.store.marker import MARKER_SUFFIX, MarkerFile, NoMarker
from gpuyard.worlds.standalone.store.port import DailySum, Entry
from gpuyard.worlds.standalone.store.postgres_errors import LockTimeoutError, explained
from gpuyard.worlds.standalone.store.session import Row, Value
from gpuyard.worlds.standalone.store.sql_store import SqlStore

CONNECT_TIMEOUT_S: Final = 10.0
SILENCE_TIMEOUT_S: Final = 30.0
"""Longer than a statement may take, so that a server that lives is the one to say no."""

STATEMENT_TIMEOUT_MS: Final = 20_000
LOCK_TIMEOUT_MS: Final = 2_000
"""A manager that has just been killed may still have a session for an instant."""

MAX_PREPARED: Final = 100

# A page of history is the end of an index, read backwards; a server that knows little of a table yet, or has planned
# for any value, would rather collect all that matches and sort it.
PLANNING: Final[Mapping[str, str]] = {"enable_bitmapscan": "off", "plan_cache_mode": "force_custom_plan"}

# The server, too, shall notice within half a minute that a writer's machine is gone, and free its lock.
SETTINGS: Final[Mapping[str, str]] = {
    "statement_timeout": str(STATEMENT_TIMEOUT_MS),
    "lock_timeout": str(LOCK_TIMEOUT_MS),
    "idle_in_transaction_session_timeout": str(STATEMENT_TIMEOUT_MS),
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "client_min_messages": "warning",
}
NOT_DURABLE: Final = ("off", "local")
"""Values of synchronous_commit under which a commit may return too early."""

DIALECT: Final[Mapping[str, str]] = {
    "integer": "BIGINT",
    "key": "BIGINT PRIMARY KEY",
    "text": 'TEXT COLLATE "C"',
    "bytes": "BYTEA",
    "clustered": "",
    "no_bytes": "''",
    "columns": "e.seq, e.at_ms, e.kind, e.body, e.actor, e.team, e.objects, e.checksum",
}

GIVEN: Final = """given AS MATERIALIZED (
    SELECT * FROM json_to_recordset(CAST(:entries AS json)) AS g(
        seq bigint, at_ms bigint, kind text, body text, actor text, team text, objects text, checksum text))"""
KEEP: Final = """INSERT INTO entries (seq, at_ms, kind, body, actor, team, objects, checksum)
    SELECT seq, at_ms, kind, decode(body, 'base64'), actor, team, objects, decode(checksum, 'base64') FROM given"""
NAME: Final = """INSERT INTO entry_objects (object, seq)
    SELECT DISTINCT n.object, given.seq FROM given, json_array_elements_text(CAST(objects AS json)) AS n(object)"""

APPEND: Final = f"""WITH {GIVEN},
    moved AS (
        UPDATE head SET last_seq = :last_seq, digest = :digest
        WHERE last_seq = :expected_seq AND digest = :previous RETURNING last_seq),
    kept AS ({KEEP} WHERE EXISTS (SELECT 1 FROM moved)),
    named AS ({NAME} WHERE EXISTS (SELECT 1 FROM moved))
    SELECT count(*) FROM moved"""
ADD: Final = f"WITH {GIVEN}, kept AS ({KEEP}), named AS ({NAME}) SELECT count(*) FROM given"
ADD_NAMES: Final = f"WITH {GIVEN}, named AS ({NAME}) SELECT count(*) FROM given"
SET_CHECKSUMS: Final = f"""WITH {GIVEN} UPDATE entries AS e SET checksum = decode(given.checksum, 'base64')
    FROM given WHERE e.seq = given.seq"""
DROP: Final = """WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset(CAST(:entries AS json)) AS g(seq bigint, objects json)),
    dropped AS (DELETE FROM entries AS e USING given WHERE e.seq = given.seq),
    unnamed AS (
        DELETE FROM entry_objects AS o USING given, json_array_elements_text(given.objects) AS n(object)
        WHERE o.object = n.object AND o.seq = given.seq)
    SELECT count(*) FROM given"""
# Of rows with the same key the last one counts, as if they had been written one after the other.
SUM: Final = """INSERT INTO daily_sums
    SELECT DISTINCT ON (day, team, user_name, job, kind, cause)
        day, team, user_name, job, kind, cause, gpu_milli_ms
    FROM (
        SELECT g.day, g.team, g.user AS user_name, g.job, g.kind, g.cause, g.gpu_milli_ms, place
        FROM ROWS FROM (json_to_recordset(CAST(:sums AS json)) AS (
            day text, team text, "user" text, job text, kind text, cause text, gpu_milli_ms bigint))
            WITH ORDINALITY AS g(day, team, "user", job, kind, cause, gpu_milli_ms, place)) AS given
    ORDER BY day, team, user_name, job, kind, cause, place DESC
    ON CONFLICT (day, team, user_name, job, kind, cause) DO UPDATE SET gpu_milli_ms = excluded.gpu_milli_ms"""

HOLDER: Final = """SELECT a.application_name, a.pid FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND CAST(l.classid AS bigint) = :high AND CAST(l.objid AS bigint) = :low"""


class PostgresStore(SqlStore):
    """All state in one schema of a database."""

    def __init__(self, address: PostgresAddress, markers: Path | None = None) -> None:
        super().__init__(address, MarkerFile(markers / marker_name(address)) if markers else NoMarker())
        self._address = address
        self._server = ""

    @property
    def description(self) -> str:
        return f"PostgreSQL{self._server} at {self._address}"

    def _connect_writer(self) -> PostgresSession:
        session = PostgresSession(self._address)
        try:
            session.lock()
            session.make_schema()
            ((version, fsync),) = session.run("SELECT current_setting('server_version'), current_setting('fsync')")
        except BaseException:
            session.close()
            raise
        self._server = f" {str(version).split()[0]}{' (fsync is off, not durable)' if fsync == 'off' else ''}"
        return session

    def check_writable(self) -> None:
        ((only_read,),) = self._session.run("SELECT current_setting('transaction_read_only')")
        if only_read == "on":
            raise StoreReadOnlyError(
                f"PostgreSQL at {self._address} may only be read", fix="name the primary server, not a standby"
            )

    def _connect_reader(self) -> PostgresSession:
        return PostgresSession(self._address)

    def _look_before_connecting(self) -> None:
        """Connecting to a server changes nothing."""

    def set_aside(self) -> str:
        schema = self._address.schema
        name = f"{schema[:40]}_damaged_{wall_ms()}"
        with closing(PostgresSession(self._address)) as session:
            session.lock()
            session.run(f'ALTER SCHEMA "{schema}" RENAME TO "{name}"')
        return f"schema {name}"


class PostgresSession:
    """One connection."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._connection: Any = _connect(address)
        self._prepared: dict[str, Any] = {}
        try:
            self._settle()
        except BaseException:
            self.close()
            raise

    def _settle(self) -> None:
        for name, value in {**SETTINGS, **PLANNING, "search_path": f'"{self._address.schema}"'}.items():
            self.run("SELECT set_config(:name, :value, false)", name=name, value=value)
        ((durability,),) = self.run("SELECT current_setting('synchronous_commit')")
        if durability in NOT_DURABLE:
            self.run("SELECT set_config('synchronous_commit', :value, false)", value="on")

    def lock(self) -> None:
        """Become the writer, for as long as this session lives."""
        key = lock_key(self._address.schema)
        try:
            self.run("SELECT pg_advisory_lock(:key)", key=key)
        except LockTimeoutError as error:
            raise StoreBusyError(
                f"another manager{self._holder(key)} writes to {self._address}",
                fix="stop it first, or name another database or schema: ?schema=NAME",
            ) from error

    def _holder(self, key: int) -> str:
        unsigned = key % 2**64
        rows = self.run(HOLDER, high=unsigned >> 32, low=unsigned & 0xFFFF_FFFF)
        return "".join(f", {name} (server process {pid})," for name, pid in rows[:1])

    def make_schema(self) -> None:
        schema = self._address.schema
        if not self.run("SELECT 1 FROM pg_namespace WHERE nspname = :schema", schema=schema):
            # A name cannot be a parameter; `address` lets only letters, digits and _ through.
            self.run(f'CREATE SCHEMA "{schema}"')

    @property
    def dialect(self) -> Mapping[str, str]:
        return DIALECT

    def run(self, sql: str, **values: Value) -> list[Row]:
        with self._explained():
            if not values:
                return self._live.run(sql) or []
            return self._statement(sql).run(**values) or []

    def _statement(self, sql: str) -> Any:  # noqa: ANN401 - the driver has no types
        """Prepared once, a statement takes one round trip instead of three."""
        if sql not in self._prepared:
            if len(self._prepared) >= MAX_PREPARED:
                self._prepared.pop(next(iter(self._prepared))).close()
            self._prepared[sql] = self._live.prepare(sql)
        return self._prepared[sql]

    def entry_rows(self, sql: str, **values: Value) -> list[Row]:
        return [
            (seq, at_ms, kind.encode(), body, actor.encode(), team.encode(), objects.encode(), checksum)
            for seq, at_ms, kind, body, actor, team, objects, checksum in self.run(sql, **values)
        ]

    def tables(self) -> frozenset[str]:
        found = self.run("SELECT tablename FROM pg_tables WHERE schemaname = :schema", schema=self._address.schema)
        return frozenset(row[0] for row in found)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        yield from self._between("BEGIN")

    @contextmanager
    def moment(self) -> Iterator[None]:
        yield from self._between("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def _between(self, begin: str) -> Iterator[None]:
        self.run(begin)
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            with suppress(StoreError):
                self.run("ROLLBACK")
            raise

    def append(self, links: Sequence[Link]) -> bool:
        first, last = links[0], links[-1]
        ((moved,),) = self.run(
            APPEND,
            entries=_json(_rows(links)),
            expected_seq=first.entry.seq - 1,
            previous=first.previous,
            last_seq=last.entry.seq,
            digest=last.digest,
        )
        return bool(moved)

    def add_links(self, links: Sequence[Link]) -> None:
        self.run(ADD, entries=_json(_rows(links)))

    def set_checksums(self, proofs: Sequence[Proof]) -> None:
        self.run(SET_CHECKSUMS, entries=_json(proofs))

    def add_names(self, entries: Sequence[Entry]) -> None:
        self.run(ADD_NAMES, entries=_json(entries))

    def add_gaps(self, gaps: Sequence[Gap]) -> None:
        for gap in gaps:
            self.run(
                "INSERT INTO gaps (first_seq, last_seq, digest) VALUES (:first, :last, :digest)",
                first=gap.first,
                last=gap.last,
                digest=gap.digest,
            )

    def structure_damage(self) -> list[str]:
        """The server checks its own pages, where it was made with data checksums."""
        return []

    def size_bytes(self) -> int:
        return 0

    def drop_entries(self, entries: Sequence[Entry]) -> None:
        self.run(DROP, entries=_json(entries))

    def add_sums(self, sums: Sequence[DailySum]) -> None:
        self.run(SUM, sums=_json(sums))

    def close(self) -> None:
        if self._connection is not None:
            with suppress(InterfaceError, OSError):
                self._connection.close()
            self._connection = None

    @property
    def _live(self) -> Any:  # noqa: ANN401 - the driver has no types
        if self._connection is None:
            raise StoreGoneError(f"the connection to {self._address} was lost", fix="open it again")
        return self._connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except DatabaseError as error:
            meaning = explained(error, self._address)
            if isinstance(meaning, StoreGoneError):
                self.close()
            raise meaning from error
        except (InterfaceError, OSError) as error:
            self.close()
            raise StoreGoneError(
                f"the connection to {self._address} was lost: {error}", fix="look at the server, then open it again"
            ) from error
        except BaseException:
            # The answer of the server is still on its way; nobody may take it for that of the next statement.
            self.close()
            raise


def marker_name(address: PostgresAddress) -> str:
    """Of the file that says what is known of this database."""
    where = f"{address.host}:{address.port}/{address.database}/{address.schema}"
    return f"postgres-{hashlib.sha256(where.encode()).hexdigest()[:16]}{MARKER_SUFFIX}"


def lock_key(schema: str) -> int:
    """Advisory locks have numbers; those of a database are apart from those of the next one."""
    return int.from_bytes(hashlib.sha256(f"gpuyard/{schema}".encode()).digest()[:8], signed=True)


class _Row(Entry, frozen=True, gc=False):
    """An entry with its checksum, as one JSON object."""

    checksum: bytes = b""


def _rows(links: Sequence[Link]) -> list[_Row]:
    return [_row(link) for link in links]


def _row(link: Link) -> _Row:
    return _Row(**msgspec.structs.asdict(link.entry), checksum=link.checksum)


def _json(values: Sequence[Entry] | Sequence[Proof] | Sequence[DailySum]) -> str:
    return msgspec.json.encode(values).decode()


# ---------------------------------------------------------------------------------------------------------- connecting


def _connect(address: PostgresAddress) -> Any:  # noqa: ANN401 - the driver has no types
    limits = {"connect_timeout_s": CONNECT_TIMEOUT_S, "silence_timeout_s": SILENCE_TIMEOUT_S}
    try:
        if address.is_local:
            dialled = dial_local(address.socket_path, **limits)
        else:
            dialled = dial(address.host, address.port, **limits)
    except OSError as error:
        raise _no_answer(address, error.strerror or str(error)) from error
    try:
        return Connection(
            address.user,
            host=address.host,
            database=address.database,
            password=address.password,
            sock=dialled,
            ssl_context=_tls(address),
            application_name=f"gpuyard {os.uname().nodename[:32]}/{os.getpid()}",
        )
    except DatabaseError as error:
        dialled.close()
        raise explained(error, address) from error
    except (ssl.SSLError, InterfaceError, OSError, ValueError) as error:
        dialled.close()
        refusal = _refusal_behind(error)
        raise (_no_answer(address, str(error)) if refusal is None else explained(refusal, address)) from error


def _refusal_behind(error: BaseException | None) -> DatabaseError | None:
    """What the server said before it hung up: the driver then says goodbye, and reports only that this failed."""
    while error is not None and not isinstance(error, DatabaseError):
        error = error.__context__
    return error


def _tls(address: PostgresAddress) -> Any:  # noqa: ANN401 - False: never, None: if the server can, True: always
    if address.is_local or address.tls == "disable":
        return False
    if address.tls == "prefer":
        return None
    if address.tls == "require":
        return True
    return ssl.create_default_context(cafile=address.root_certificate or None)


def _no_answer(address: PostgresAddress, why: str) -> StoreGoneError:
    return StoreGoneError(
        f"PostgreSQL at {address} cannot be reached: {why}",
        fix="check that the server runs, its address, and sslmode",
    )
