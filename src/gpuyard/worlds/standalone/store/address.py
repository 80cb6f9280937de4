"""Where a database is, as a person writes it.

    /var/lib/gpuyard/gpuyard.db, sqlite:///var/lib/gpuyard/gpuyard.db
    postgresql://user:password@host:5432/database?sslmode=verify-full&schema=gpuyard

Invariant: what is shown of an address never holds a password.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

import msgspec

from gpuyard.errors import StoreError

POSTGRES_PORT: Final = 5432
DEFAULT_SCHEMA: Final = "gpuyard"
DEFAULT_FILE: Final = "gpuyard.db"
PARTS: Final = ("pool", "data-jobs")
"""Databases that belong to the manager's and are beside it."""
TLS_MODES: Final = ("disable", "prefer", "require", "verify-full")
OPTIONS: Final = ("schema", "sslmode", "sslrootcert", "passwordfile", "host")
SCHEMA_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
FORMS: Final = "write a path, sqlite:///PATH, or postgresql://USER:PASSWORD@HOST:PORT/DATABASE"


class SqliteAddress(msgspec.Struct, frozen=True):
    """A file on this machine."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def url(self) -> str:
        """As it is named in a command."""
        return str(self.path)


class PostgresAddress(msgspec.Struct, frozen=True):
    """A database of a PostgreSQL server, and the schema in it that is ours."""

    host: str
    """A name, or the folder of the server's socket, which begins with a slash."""
    port: int
    database: str
    user: str
    password: str = ""
    schema: str = DEFAULT_SCHEMA
    tls: str = "prefer"
    root_certificate: str = ""

    @property
    def is_local(self) -> bool:
        return self.host.startswith("/")

    @property
    def socket_path(self) -> str:
        return f"{self.host}/.s.PGSQL.{self.port}"

    def __str__(self) -> str:
        host = self.host if self.is_local else f"{self.host}:{self.port}"
        return f"{host}/{self.database}, schema {self.schema}"

    @property
    def url(self) -> str:
        """As it is named in a command, without the password."""
        options = {"host": self.host} if self.is_local else {}
        options |= {"schema": self.schema} if self.schema != DEFAULT_SCHEMA else {}
        options |= {"sslmode": self.tls} if self.tls != "prefer" else {}
        options |= {"sslrootcert": self.root_certificate} if self.root_certificate else {}
        host = "" if self.is_local else f"[{self.host}]" if ":" in self.host else self.host
        asked = f"?{urlencode(options, safe='/')}" if options else ""
        return f"postgresql://{quote(self.user)}@{host}:{self.port}/{quote(self.database)}{asked}"

    def __repr__(self) -> str:
        return f"PostgresAddress({self})"


def address_of(text: str | Path) -> SqliteAddress | PostgresAddress:
    """Read an address; an error shows it without its password."""
    written = str(text)
    if not written.strip():
        raise StoreError("the address of the database is empty", fix=FORMS)
    scheme, found, _ = written.partition("://")
    if not found:
        return SqliteAddress(Path(written).expanduser().absolute())
    if scheme == "sqlite":
        return _sqlite(written)
    if scheme in ("postgresql", "postgres"):
        return _postgres(written)
    raise StoreError(f"there is no database called {scheme}://", fix=FORMS)


def beside(text: str | Path, part: str) -> str:
    """The address of another database that belongs to this one.

    SQLite: a file in the same folder (`pool.db` beside `gpuyard.db`); PostgreSQL: a schema (`gpuyard_pool`).
    """
    address = address_of(text)
    if isinstance(address, SqliteAddress):
        path = address.path
        return str(path.with_name(f"{part}.db" if path.name == DEFAULT_FILE else f"{path.name}.{part}"))
    schema = f"{address.schema}_{part.replace('-', '_')}"
    if not SCHEMA_NAME.fullmatch(schema):
        raise StoreError(f"the schema {schema} has too long a name", fix="choose a shorter one: ?schema=NAME")
    parts = urlsplit(str(text))
    options = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name != "schema"]
    return parts._replace(query=urlencode([*options, ("schema", schema)])).geturl()


def part_of(address: SqliteAddress | PostgresAddress) -> tuple[str, SqliteAddress | PostgresAddress]:
    """Which part of a manager's state is at an address, and where the manager's own is; "": it is that itself."""
    if isinstance(address, PostgresAddress):
        for part in PARTS:
            ending = f"_{part.replace('-', '_')}"
            if address.schema.endswith(ending) and address.schema != ending:
                return part, msgspec.structs.replace(address, schema=address.schema.removesuffix(ending))
        return "", address
    for part in PARTS:
        if address.path.name == f"{part}.db":
            return part, SqliteAddress(address.path.with_name(DEFAULT_FILE))
        if address.path.name.endswith(f".{part}"):
            return part, SqliteAddress(address.path.with_name(address.path.name.removesuffix(f".{part}")))
    return "", address


def without_password(text: str) -> str:
    """The same address for people to see."""
    try:
        parts = urlsplit(text)
        if not parts.scheme or "@" not in parts.netloc:
            return text
        user, _, _ = parts.netloc.rpartition("@")[0].partition(":")
        host = parts.netloc.rpartition("@")[2]
        return parts._replace(netloc=f"{quote(unquote(user))}@{host}").geturl()
    except ValueError:
        return f"{text.partition('://')[0]}://..."


def _sqlite(written: str) -> SqliteAddress:
    parts = urlsplit(written)
    if parts.netloc or parts.query or not parts.path.strip("/"):
        raise StoreError(f"{written} names no file", fix="write three slashes and the path: sqlite:///var/lib/x.db")
    return SqliteAddress(Path(unquote(parts.path)).absolute())


def _postgres(written: str) -> PostgresAddress:
    try:
        parts = urlsplit(written)
        port = parts.port or POSTGRES_PORT
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise StoreError(f"{without_password(written)} is no address of a PostgreSQL database", fix=FORMS) from error
    _check_options(options)
    host = options.get("host") or unquote(parts.hostname or "")
    database = unquote(parts.path.lstrip("/"))
    user = unquote(parts.username or "")
    for what, value in (("host", host), ("database", database), ("user", user)):
        if not value:
            raise StoreError(f"{without_password(written)} names no {what}", fix=FORMS)
    return PostgresAddress(
        host=host,
        port=port,
        database=database,
        user=user,
        password=_password(parts, options),
        schema=options.get("schema", DEFAULT_SCHEMA),
        tls=options.get("sslmode", "prefer"),
        root_certificate=options.get("sslrootcert", ""),
    )


def _check_options(options: dict[str, str]) -> None:
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise StoreError(f"{unknown[0]} is no option of a database's address", fix=f"known are {', '.join(OPTIONS)}")
    if options.get("sslmode", "prefer") not in TLS_MODES:
        raise StoreError(f"sslmode={options['sslmode']} is not known", fix=f"known are {', '.join(TLS_MODES)}")
    if not SCHEMA_NAME.fullmatch(options.get("schema", DEFAULT_SCHEMA)):
        raise StoreError(
            f"schema={options['schema']} is no name of a schema",
            fix="use small letters, digits and _, at most 63, a letter first",
        )


def _password(parts: SplitResult, options: dict[str, str]) -> str:
    """A file keeps it out of command lines and process lists."""
    if "passwordfile" not in options:
        return unquote(parts.password or "")
    path = Path(options["passwordfile"]).expanduser()
    try:
        return path.read_text(encoding="utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"the password file {path} cannot be read", fix="name a text file that is there") from error
