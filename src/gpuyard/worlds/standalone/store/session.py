"""What the store needs of one connection to a database, so that everything above it is written once.

Place in the flow: store ─statements─▶ **session** ─▶ SQLite or PostgreSQL. Values travel as named parameters only.
Invariant: every error of a driver leaves a session as a StoreError; a session that is gone stays gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from gpuyard.worlds.standalone.store.chain import Gap, Link, Proof
from gpuyard.worlds.standalone.store.port import DailySum, Entry

Value = int | str | bytes
Row = Sequence[Any]
"""One row of an answer; the columns are those of its statement."""


class Session(Protocol):
    """One connection."""

    @property
    def dialect(self) -> Mapping[str, str]:
        """How this database spells what the schema leaves open."""

    def run(self, sql: str, **values: Value) -> list[Row]:
        """One statement; parameters are written as :name in both databases."""

    def entry_rows(self, sql: str, **values: Value) -> list[Row]:
        """Rows of entries in full, all text as UTF-8: what is damaged need not be text any more."""

    def tables(self) -> frozenset[str]:
        """The tables that are there now, ours or not."""

    def transaction(self) -> AbstractContextManager[None]:
        """Everything inside is written, or nothing."""

    def moment(self) -> AbstractContextManager[None]:
        """All that is read inside is of one moment. In rollback-journal mode a writer waits for its end."""

    def append(self, links: Sequence[Link]) -> bool:
        """The entries and the head of the log in one transaction; False, and nothing done, where they do not follow."""

    def add_links(self, links: Sequence[Link]) -> None:
        """Entries as they are, inside a transaction of the caller."""

    def set_checksums(self, proofs: Sequence[Proof]) -> None:
        """Of entries that are there, inside a transaction of the caller."""

    def drop_entries(self, entries: Sequence[Entry]) -> None: ...

    def add_names(self, entries: Sequence[Entry]) -> None:
        """What entries are found by, inside a transaction of the caller."""

    def add_gaps(self, gaps: Sequence[Gap]) -> None: ...

    def structure_damage(self) -> list[str]:
        """What the database itself finds wrong with how it is stored; it reads all of it."""

    def size_bytes(self) -> int:
        """How much there is to read for that."""

    def add_sums(self, sums: Sequence[DailySum]) -> None: ...

    def close(self) -> None: ...
