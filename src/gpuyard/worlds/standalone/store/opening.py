"""From what a person wrote to a store that can be opened."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from gpuyard.worlds.standalone.store.address import PostgresAddress, address_of
from gpuyard.worlds.standalone.store.marker import MARKER_SUFFIX
from gpuyard.worlds.standalone.store.sql_store import SqlStore


def open_store(address: str | Path, markers: Path | None = None) -> SqlStore:
    """The store at this address, not connected yet; `open` makes it ready to write.

    A path, sqlite:///PATH, or postgresql://USER:PASSWORD@HOST:PORT/DATABASE with the options of `address`. What this
    machine knows of a database on a server is kept in the folder `markers`; of a file it is kept beside that.
    """
    found = address_of(address)
    # Each driver takes time to load, and one of them is enough.
    if isinstance(found, PostgresAddress):
        from gpuyard.worlds.standalone.store.postgres import PostgresStore

        return PostgresStore(found, markers)
    from gpuyard.worlds.standalone.store.sqlite import SqliteStore

    return SqliteStore(found.path)


def is_there(address: str | Path) -> bool:
    """Whether something was ever kept at this address."""
    found = address_of(address)
    if not isinstance(found, PostgresAddress):
        # One that is gone, and of which a marker is left, is not one that never was.
        return found.path.exists() or found.path.with_name(found.path.name + MARKER_SUFFIX).exists()
    from gpuyard.worlds.standalone.store.postgres import PostgresSession

    with closing(PostgresSession(found)) as session:
        return bool(session.tables())
