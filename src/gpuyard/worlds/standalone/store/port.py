"""What the manager asks of a database: an append-only log, snapshots of its fold, and daily sums.

Place in the flow: journal ─entries─▶ **store** ─▶ SQLite or PostgreSQL. All calls are synchronous and come from one
thread at a time. Invariant: one writer; an append is durable as a whole when it returns, or has not happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from gpuyard.errors import StoreDamagedError

Progress = Callable[[int, int], None]
"""Called with how many entries are done, and how many there are at most."""


def no_progress(done: int, of: int) -> None:
    """Nobody looks."""


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


class Damage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that is not as it was written."""

    what: str
    seq: int = 0
    """The entry, where it is about one."""


class Verification(msgspec.Struct, frozen=True):
    """What was looked at, and what is wrong with it."""

    at_ms: int
    entries: int
    last_seq: int
    complete: bool
    """Everything was looked at; otherwise the newest entries, which a start needs."""
    damage: tuple[Damage, ...] = ()


class Quarantined(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One entry that is kept and not used."""

    seq: int
    kind: str
    why: str
    damaged: bool = False
    """Its bytes are not those that were written, or it is gone: snapshots that were taken after it are still right."""
    checksum: str = ""
    """As it was kept beside the entry, in hexadecimal: what the quarantine replaces."""


class Spoilt(msgspec.Struct, frozen=True):
    """Snapshots from one number up to another hold what an entry did that is no longer used, or lack what it did."""

    first: int
    before: int


class Quarantine(msgspec.Struct):
    """What the log says about entries that are not used."""

    entries: dict[int, Quarantined] = {}
    at_ms: dict[int, int] = {}
    """Since when."""
    spoilt: list[Spoilt] = []

    def spoils(self, snapshot_seq: int) -> bool:
        """Whether a snapshot was taken while an entry counted that does not count now, or the other way round."""
        return any(one.first <= snapshot_seq < one.before for one in self.spoilt)


class Store(Protocol):
    """A database that holds one cluster's state. What is damaged is told with a StoreDamagedError, never read."""

    @property
    def description(self) -> str:
        """What it is, for people: kind, place, version, journal mode."""

    def open(self) -> None:
        """Connect, take the writer's lock, migrate. StoreBusyError where another writer has it, StoreError else."""

    def close(self) -> None: ...

    def check(self) -> Verification:
        """Before a start: whether it holds what was written. StoreDamagedError names the first thing that is bad."""

    def verify(self, progress: Progress = no_progress) -> Verification:
        """The same for everything there is, beside the writer; it tells what is damaged and raises nothing for it."""

    def mend_index(self) -> None:
        """Make again what finds entries by their objects, where it does not fit the entries."""

    def quarantine(self) -> Quarantine:
        """Entries that are kept and not used."""

    def damaged(self, what: str, seq: int = 0) -> StoreDamagedError:
        """This store, or that entry of it, cannot be used; told with the place and the commands that help."""

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
        """Newest first, those that are what was written."""

    def drop_snapshots_after(self, seq: int) -> None:
        """They cannot be used."""

    def add_sums(self, sums: Sequence[DailySum]) -> None: ...

    def sums(self, since_day: str, until_day: str) -> list[DailySum]:
        """Of these days and those between them, in the order of their keys."""

    def prune(self, older_than_ms: Mapping[str, int], up_to_seq: int, after_seq: int = 0) -> int:
        """Delete entries of each named kind written before that moment; how many went.

        Only of those after `after_seq`, up to and with `up_to_seq`.
        """

    def backup(self, path: str) -> None:
        """A copy of everything in one file that `restore` reads, consistent, while the manager goes on."""
