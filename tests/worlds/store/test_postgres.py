"""PostgreSQL: a connection that is lost, a writer that was replaced, TLS, and what is said when it cannot be used."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pg8000.native import Connection  # type: ignore[import-untyped]

from gpuyard.errors import StoreBusyError, StoreConflictError, StoreError, StoreGoneError
from gpuyard.worlds.standalone.store import postgres
from gpuyard.worlds.standalone.store.opening import open_store
from gpuyard.worlds.standalone.store.sql_store import SqlStore
from tests.ports import free_ports
from tests.postgres import Server, running_server
from tests.worlds.store.places import content, entries, fill, seqs


@pytest.fixture
def database(postgres_server: Server) -> str:
    return postgres_server.make_database()


@contextmanager
def opened(url: str) -> Iterator[SqlStore]:
    with closing(open_store(url)) as store:
        store.open()
        yield store


def end_sessions(server: Server, database: str) -> None:
    server.run("postgres", f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{database}'")


# ----------------------------------------------------------------------------------------------------- lost and fenced


def test_a_lost_connection_is_gone_until_the_store_is_opened_again(postgres_server: Server, database: str) -> None:
    with opened(postgres_server.url(database)) as store:
        store.append(entries(1, 3))
        end_sessions(postgres_server, database)
        with pytest.raises(StoreGoneError):
            store.append(entries(4, 5))
        with pytest.raises(StoreGoneError):
            store.last_seq()
        store.open()
        assert store.last_seq() == 3
        store.append(entries(4, 5))
        assert store.read(0, 10) == entries(1, 5)


def test_a_writer_that_lost_its_connection_has_lost_the_lock(postgres_server: Server, database: str) -> None:
    url = postgres_server.url(database)
    with opened(url) as old:
        old.append(entries(1, 1))
        end_sessions(postgres_server, database)
        with opened(url) as new:
            new.append(entries(2, 2))
            with pytest.raises(StoreGoneError):
                old.append(entries(2, 3))
            with pytest.raises(StoreBusyError):
                old.open()
            assert seqs(new.read(0, 10)) == [1, 2]


def test_a_writer_is_fenced_by_the_head_of_the_log_as_well(postgres_server: Server, database: str) -> None:
    with opened(postgres_server.url(database)) as store:
        store.append(entries(1, 3))
        postgres_server.run(database, "UPDATE gpuyard.head SET last_seq = 4")
        with pytest.raises(StoreConflictError):
            store.append(entries(4, 4))
        assert seqs(store.read(0, 10)) == [1, 2, 3]


def test_whoever_holds_the_lock_is_named(postgres_server: Server, database: str) -> None:
    url = postgres_server.url(database)
    with (
        opened(url),
        pytest.raises(StoreBusyError, match=r"another manager, gpuyard .*/\d+ \(server process \d+\), wr"),
    ):
        open_store(url).open()


def test_clusters_share_a_database_in_schemas_of_their_own(postgres_server: Server, database: str) -> None:
    east = postgres_server.url(database, options="&schema=east")
    west = postgres_server.url(database, options="&schema=west")
    with opened(east) as first, opened(west) as second:
        fill(first)
        assert second.is_empty()
        second.append(entries(1, 2))
        assert (first.last_seq(), second.last_seq()) == (25, 2)


def test_a_table_that_another_session_has_locked_fails_the_append_and_the_store_goes_on(
    postgres_server: Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "SETTINGS", {**postgres.SETTINGS, "lock_timeout": "200"})
    url = postgres_server.url(database)
    with opened(url) as store, closing(open_store(url)._connect_reader()) as other:
        with other.transaction():
            other.run("LOCK TABLE head")
            with pytest.raises(StoreError, match="held by another session"):
                store.append(entries(1, 1))
        store.append(entries(1, 1))
        assert store.last_seq() == 1


def test_a_statement_that_takes_too_long_is_ended(
    postgres_server: Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "SETTINGS", {**postgres.SETTINGS, "statement_timeout": "100"})
    with opened(postgres_server.url(database)) as store:
        with pytest.raises(StoreError, match="took too long; nothing was written"):
            store._session.run("SELECT pg_sleep(5)")
        assert store.last_seq() == 0


def test_a_commit_waits_for_the_disk_even_where_the_server_would_not(postgres_server: Server, database: str) -> None:
    postgres_server.run("postgres", f"ALTER DATABASE {database} SET synchronous_commit = off")
    with opened(postgres_server.url(database)) as store:
        assert store._session.run("SHOW synchronous_commit") == [["on"]]


def test_a_server_without_fsync_is_said_to_be_not_durable(postgres_server: Server, database: str) -> None:
    with opened(postgres_server.url(database)) as store:
        assert "(fsync is off, not durable)" in store.description


def test_more_kinds_of_statements_than_are_kept_prepared(
    postgres_server: Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "MAX_PREPARED", 3)
    with opened(postgres_server.url(database)) as store:
        fill(store)
        assert seqs(store.history(kinds=["job-submitted"], limit=2)) == [25, 24]
        assert content(store)[0] == 25


# --------------------------------------------------------------------------------------------------------------- errors


def refused(url: str, kind: type[StoreError] = StoreError) -> str:
    store = open_store(url)
    with pytest.raises(kind) as error:
        store.open()
    assert error.value.fix
    return str(error.value)


def test_a_database_that_is_missing_is_named(postgres_server: Server) -> None:
    assert "there is no such database" in refused(postgres_server.url("absent"))


def test_a_server_that_hangs_up_first_is_still_quoted(postgres_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    read_refusal = Connection.handle_ERROR_RESPONSE

    def read_late(self: Connection, data: bytes, context: object) -> None:
        read_refusal(self, data, context)
        time.sleep(0.3)  # by now the server has closed, and the driver's goodbye finds nobody

    monkeypatch.setattr(Connection, "handle_ERROR_RESPONSE", read_late)
    assert "there is no such database" in refused(postgres_server.url("absent"))


def test_a_user_that_is_not_known_is_refused(postgres_server: Server, database: str) -> None:
    assert "does not accept the user or the password" in refused(postgres_server.url(database, user="mallory"))


def test_a_user_who_may_not_make_a_schema_is_told(postgres_server: Server, database: str) -> None:
    postgres_server.run(database, "DROP ROLE IF EXISTS guest", "CREATE ROLE guest LOGIN")
    assert "the user may not do this" in refused(postgres_server.url(database, user="guest"))


def test_a_schema_of_another_program_is_left_alone(postgres_server: Server, database: str) -> None:
    postgres_server.run(database, "CREATE SCHEMA shop", "CREATE TABLE shop.goods (name TEXT)")
    assert "tables of another program (goods)" in refused(postgres_server.url(database, options="&schema=shop"))


def test_a_database_that_may_only_be_read_is_refused(postgres_server: Server, database: str) -> None:
    postgres_server.run("postgres", f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    assert "it may only be read" in refused(postgres_server.url(database))


def test_a_server_that_is_not_there_may_come_back(tmp_path: Path) -> None:
    assert "cannot be reached" in refused(f"postgresql://ann@/yard?host={tmp_path}", StoreGoneError)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert "cannot be reached" in refused(f"postgresql://ann@127.0.0.1:{port}/yard", StoreGoneError)


def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "SILENCE_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert "cannot be reached" in refused(
            f"postgresql://a:secret@127.0.0.1:{port}/y?sslmode=disable", StoreGoneError
        )


# ------------------------------------------------------------------------------------------------------------------ TLS


def a_certificate(name: str) -> tuple[str, str]:
    """A certificate that vouches for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(names)
        .issuer_name(names)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode()


WHO_MAY = """
local all all trust
hostssl all ann 127.0.0.1/32 scram-sha-256
host all plain 127.0.0.1/32 trust
"""


@pytest.mark.slow
def test_tls_in_every_mode_and_a_password(tmp_path: Path) -> None:
    certificate, key = a_certificate("localhost")
    trusted, stranger = tmp_path / "ca.pem", tmp_path / "other.pem"
    trusted.write_text(certificate)
    stranger.write_text(a_certificate("localhost")[0])
    (port,) = free_ports(1)
    files = {
        "server.crt": certificate,
        "server.key": key,
        "pg_hba.conf": WHO_MAY,
    }
    settings = ("listen_addresses=127.0.0.1", f"port={port}", "ssl=on")
    with running_server(settings=settings, files=files, port=port) as server:
        server.run(
            "postgres", "CREATE ROLE ann LOGIN SUPERUSER PASSWORD 'se cret'", "CREATE ROLE plain LOGIN SUPERUSER"
        )
        base = f"postgresql://ann:se%20cret@localhost:{port}/postgres?sslmode="
        for mode in ("prefer", "require", f"verify-full&sslrootcert={trusted}"):
            with opened(base + mode) as store:
                assert store._session.run("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") == [[True]]
        plain = f"postgresql://plain@127.0.0.1:{port}/postgres?sslmode=disable"
        with opened(plain) as store:
            assert store._session.run("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") == [[False]]
        assert "does not accept the user" in refused(base + "disable")
        assert "CERTIFICATE_VERIFY_FAILED" in refused(f"{base}verify-full&sslrootcert={stranger}")
        by_number = base.replace("localhost", "127.0.0.1")
        assert "CERTIFICATE_VERIFY_FAILED" in refused(f"{by_number}verify-full&sslrootcert={trusted}")
        wrong = refused(base.replace("se%20cret", "guess") + "require")
        assert "does not accept the user or the password" in wrong
        assert "guess" not in wrong


def test_a_server_without_tls_is_refused_where_tls_is_required(postgres_server: Server) -> None:
    with running_plain(postgres_server) as port:
        assert "Server refuses SSL" in refused(
            f"postgresql://ann@127.0.0.1:{port}/yard?sslmode=require", StoreGoneError
        )


@contextmanager
def running_plain(server: Server) -> Iterator[int]:
    """A way to the server's socket over TCP, for one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            arrived, _ = listener.accept()
            with arrived, socket.socket(socket.AF_UNIX) as behind:
                behind.connect(f"{server.folder}/.s.PGSQL.5432")
                behind.sendall(arrived.recv(8))
                arrived.sendall(behind.recv(1))

        thread = Thread(target=answer)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()
