"""Addresses of databases: every form that is read, and what is said about the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuyard.errors import StoreError
from gpuyard.worlds.standalone.store.address import PostgresAddress, SqliteAddress, address_of, without_password
from gpuyard.worlds.standalone.store.opening import open_store
from gpuyard.worlds.standalone.store.postgres import PostgresStore
from gpuyard.worlds.standalone.store.sqlite import SqliteStore


def test_a_path_is_a_file_of_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert address_of("/var/lib/x.db") == SqliteAddress(Path("/var/lib/x.db"))
    assert address_of("sqlite:///var/lib/x%20y.db") == SqliteAddress(Path("/var/lib/x y.db"))
    assert address_of("state/x.db") == address_of(Path("state/x.db")) == SqliteAddress(tmp_path / "state" / "x.db")
    assert isinstance(open_store("state/x.db"), SqliteStore)


def test_an_address_of_postgresql_says_everything() -> None:
    url = "postgresql://ann:p%40ss@db.example:6432/yard?sslmode=verify-full&schema=east&sslrootcert=/ca.pem"
    assert address_of(url) == PostgresAddress(
        "db.example", 6432, "yard", "ann", "p@ss", schema="east", tls="verify-full", root_certificate="/ca.pem"
    )
    assert isinstance(open_store(url), PostgresStore)


def test_what_is_left_out_of_an_address_has_its_usual_value() -> None:
    assert address_of("postgres://ann@db/yard") == PostgresAddress("db", 5432, "yard", "ann", "", "gpuyard", "prefer")


def test_a_folder_as_host_is_a_local_socket() -> None:
    address = address_of("postgresql://ann@/yard?host=/run/postgresql")
    assert isinstance(address, PostgresAddress)
    assert address.socket_path == "/run/postgresql/.s.PGSQL.5432"


def test_a_password_can_lie_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n")
    address = address_of(f"postgresql://ann@db/yard?passwordfile={file}")
    assert isinstance(address, PostgresAddress)
    assert address.password == "secret"
    with pytest.raises(StoreError, match=r"password file .*absent cannot be read"):
        address_of(f"postgresql://ann@db/yard?passwordfile={tmp_path}/absent")


@pytest.mark.parametrize(
    ("written", "what"),
    [
        ("", "is empty"),
        ("mysql://ann:secret@db/yard", "there is no database called mysql://"),
        ("sqlite://x.db", "names no file"),
        ("sqlite:///", "names no file"),
        ("postgresql://ann:secret@db", "names no database"),
        ("postgresql://ann:secret@/yard", "names no host"),
        ("postgresql://db/yard", "names no user"),
        ("postgresql://ann:secret@db:nine/yard", "is no address"),
        ("postgresql://ann:secret@db:99999/yard", "is no address"),
        ("postgresql://ann:secret@[db/yard", "is no address"),
        ("postgresql://ann:secret@db/yard?sslmode=maybe", "sslmode=maybe is not known"),
        ("postgresql://ann:secret@db/yard?colour=red", "colour is no option"),
        ("postgresql://ann:secret@db/yard?schema=a;drop", "is no name of a schema"),
        ("postgresql://ann:secret@db/yard?schema=Gpu", "is no name of a schema"),
    ],
)
def test_anything_else_is_refused_with_the_way_out_and_without_the_password(written: str, what: str) -> None:
    with pytest.raises(StoreError) as error:
        address_of(written)
    assert what in str(error.value)
    assert error.value.fix
    assert "secret" not in str(error.value)


def test_a_password_is_never_shown() -> None:
    url = "postgresql://ann:secret@db/yard"
    store = open_store(url)
    assert store.description == "PostgreSQL at db:5432/yard, schema gpuyard"
    assert "secret" not in repr(address_of(url)) + str(address_of(url)) + repr(store)
    assert without_password(url) == "postgresql://ann@db/yard"
    assert without_password("/var/lib/x.db") == "/var/lib/x.db"
