"""What the manager asks of a database: an append-only log, snapshots of its fold, and daily sums.

Place in the flow: journal ─entries─▶ **store** ─▶ SQLite or PostgreSQL. All calls are synchronous and come from one
thread at a time. Invariant: one writer; an append is durable as a whole when it returns, or has not happened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One event as it is kept. `seq` counts up from 1 without a gap and is chosen by the writer."""

    seq: int
    at_ms: int
    kind: str
    """The tag of the event, e.g. job-submitted."""
    body: bytes
    """The event itself, as JSON."""
    actor: str = ""
    """Who caused it: a user, an agent's node as node/NAME, or "" for the manager itself."""
    team: str = ""
    """The team it concerns, for who may see it; "" concerns the whole cluster."""
    objects: tuple[str, ...] = ()
    """What it is about: job/17, node/a, team/vision, user/ann, token/x. Searched by `history`."""


class StoredSnapshot(msgspec.Struct, frozen=True):
    """The fold of all entries up to and with `seq`."""

    seq: int
    at_ms: int
    body: bytes


class DailySum(msgspec.Struct, frozen=True, gc=False):
    """Use of one day, kept for ever. Written again, a row of the same keys is replaced."""

    day: str
    """2026-11-16, in UTC."""
    team: str
    user: str
    job: str
    kind: str
    """held, owed, borrowed, lent, wasted, idle."""
    cause: str
    """For what was wasted: the entry that caused it, as seq/TOKEN; else ""."""
    gpu_milli_ms: int


class Store(Protocol):
    """A database that holds one cluster's state."""

    @property
    def description(self) -> str:
        """What it is, for people: kind, place, version, journal mode."""

    def open(self) -> None:
        """Connect, take the writer's lock, migrate. StoreBusyError where another writer has it, StoreError else."""

    def close(self) -> None: ...

    def last_seq(self) -> int:
        """0 where nothing was ever written."""

    def append(self, entries: Sequence[Entry]) -> None:
        """All in one transaction, durable on return. StoreConflictError where a seq is taken or would leave a gap,
        StoreGoneError where the connection or the lock was lost (whether it was written is then not known),
        StoreWaitError where nothing was written and the same may be written later."""

    def check_writable(self) -> None:
        """Look, without writing, whether an append could succeed; raises as it would."""

    def read(self, after_seq: int, limit: int) -> list[Entry]:
        """The next entries in order. Entries that retention took away are simply not there."""

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
        """Newest first, of those that match all that is given; `teams` None: of all teams and the cluster.

        `since_ms` itself is found, `until_ms` and `before_seq` themselves are not.
        """

    def save_snapshot(self, snapshot: StoredSnapshot) -> None:
        """Keeps the newest few, so that a damaged one is no end."""

    def snapshots(self) -> Iterator[StoredSnapshot]:
        """Newest first."""

    def add_sums(self, sums: Sequence[DailySum]) -> None: ...

    def sums(self, since_day: str, until_day: str) -> list[DailySum]:
        """Of these days and those between them, in the order of their keys."""

    def prune(self, older_than_ms: Mapping[str, int], up_to_seq: int, after_seq: int = 0) -> int:
        """Delete entries of each named kind written before that moment; how many went.

        Only of those after `after_seq`, up to and with `up_to_seq`.
        """

    def backup(self, path: str) -> None:
        """A copy of everything in one file that `restore` reads, consistent, while the manager goes on."""
