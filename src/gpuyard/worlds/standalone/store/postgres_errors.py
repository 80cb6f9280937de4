"""What an error of a PostgreSQL server means to a person.

Place in the flow: server ─error─▶ **these** ─StoreError─▶ store. Invariant: the class says what may be done next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pg8000.native import DatabaseError  # type: ignore[import-untyped]

from gpuyard.errors import (
    StoreConflictError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreGoneError,
    StoreReadOnlyError,
    StoreWaitError,
)
from gpuyard.worlds.standalone.store.address import PostgresAddress


class LockTimeoutError(StoreWaitError):
    """Somebody else holds what we wait for."""


def explained(error: DatabaseError, address: PostgresAddress) -> StoreError:
    """What an error of the server means to a person; its codes are in appendix A of PostgreSQL's manual."""
    fields = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
    code, message = str(fields.get("C", "")), str(fields.get("M", error))
    if code.startswith(("08", "57P")):
        return StoreGoneError(f"PostgreSQL at {address} has ended the session: {message}", fix="open it again")
    if code == "55P03":
        return LockTimeoutError(f"a lock in {address} is held by another session", fix="end that session")
    if code == "23505":
        return StoreConflictError(f"somebody else has written to {address}: {message}", fix="open it again")
    if code in _DAMAGED:
        return StoreDamagedError(f"the server cannot read it: {message}")
    for beginning, what, fix in _MEANINGS:
        if code.startswith(beginning):
            refusal = _PASSING.get(code, StoreError)
            return refusal(f"PostgreSQL at {address}: {what} ({message})", fix=fix)
    return StoreError(f"PostgreSQL at {address} refuses: {message} ({code})", fix="see the log of the server")


_MEANINGS: Final[tuple[tuple[str, str, str], ...]] = (
    ("28", "it does not accept the user or the password", "correct them in the address of the database"),
    ("3D000", "there is no such database", "make it: createdb NAME"),
    ("42501", "the user may not do this", "let the user own the schema, or let it make one: GRANT CREATE ON DATABASE"),
    ("25006", "it may only be read", "name the primary server, not a standby"),
    ("53100", "its disk is full; nothing was written", "make room on its disk"),
    ("53300", "it has too many connections", "raise max_connections, or close others"),
    ("57014", "the statement took too long; nothing was written", "look at what else the server does"),
)

_DAMAGED: Final = ("XX001", "XX002", "42P01", "42703")
"""A page or an index of it cannot be read, or a table or column of it is gone."""


_PASSING: Final[Mapping[str, type[StoreError]]] = {
    "25006": StoreReadOnlyError,
    "53100": StoreFullError,
    "57014": StoreWaitError,
}
"""After these nothing was written, and the same may be written later."""
