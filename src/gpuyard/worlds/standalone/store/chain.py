"""Checksums of the log: each covers its entry and the checksum before it, so that no entry changes or goes unseen.

Place in the flow: store ─entries─▶ **chain** ─links─▶ database, and back. Pure. A checksum is kept beside its entry as
two digests, the one before and its own, so that an entry proves itself also where the one before it is gone.
Invariant: entries and the gaps that retention left follow each other without a break, from number 1 to the head.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from gpuyard.worlds.standalone.store.port import DailySum, Entry, StoredSnapshot

DIGEST_BYTES: Final = 16
CHECKSUM_BYTES: Final = 2 * DIGEST_BYTES
START: Final = bytes(DIGEST_BYTES)
"""What the first entry of a log follows."""

_encode = msgspec.msgpack.Encoder().encode


class Proof(msgspec.Struct, frozen=True, gc=False):
    """What an entry shows for itself."""

    seq: int
    checksum: bytes
    """The digest before it, then its own."""
    intact: bool
    """Whether the checksum is that of the entry."""

    @property
    def previous(self) -> bytes:
        return self.checksum[:DIGEST_BYTES]

    @property
    def digest(self) -> bytes:
        return self.checksum[DIGEST_BYTES:]


class Link(msgspec.Struct, frozen=True, gc=False):
    """An entry as it is kept, with its checksum."""

    entry: Entry
    checksum: bytes
    intact: bool = True

    @property
    def previous(self) -> bytes:
        return self.checksum[:DIGEST_BYTES]

    @property
    def digest(self) -> bytes:
        return self.checksum[DIGEST_BYTES:]

    @property
    def proof(self) -> Proof:
        return Proof(self.entry.seq, self.checksum, self.intact)


class Gap(msgspec.Struct, frozen=True, gc=False):
    """Entries in a row that retention took away, both ends included, and the digest of the last of them."""

    first: int
    last: int
    digest: bytes


class Head(msgspec.Struct, frozen=True):
    """The end of a log."""

    last_seq: int = 0
    digest: bytes = START
    log: str = ""
    """Which log it is: every one has a name of its own, and one that is restored has a new one."""


def digest_of(previous: bytes, entry: Entry) -> bytes:
    return digest_of_row(
        previous,
        (
            entry.seq,
            entry.at_ms,
            entry.kind.encode(),
            entry.body,
            entry.actor.encode(),
            entry.team.encode(),
            msgspec.json.encode(entry.objects),
        ),
    )


def digest_of_row(previous: bytes, values: Sequence[object]) -> bytes:
    """Of the columns of an entry, all text as UTF-8: also what is damaged has one."""
    return hashlib.blake2b(previous + _encode(values), digest_size=DIGEST_BYTES).digest()


def chained(previous: bytes, entries: Iterable[Entry]) -> Iterator[Link]:
    """Give each entry its checksum, the first one following `previous`."""
    for entry in entries:
        digest = digest_of(previous, entry)
        yield Link(entry, previous + digest)
        previous = digest


def seal(previous: bytes, row: Sequence[Any]) -> Proof:
    """Give the row of an entry, as it was read, a checksum that follows `previous`."""
    return Proof(row[0], previous + digest_of_row(previous, row[:-1]), True)


def link_of(entry: Entry, checksum: bytes) -> Link:
    """An entry that was read, and whether it is the one that was written."""
    try:
        intact = digest_of(checksum[:DIGEST_BYTES], entry) == checksum[DIGEST_BYTES:]
    except (TypeError, ValueError, OverflowError, AttributeError):
        # A value of a kind that was never written.
        intact = False
    return Link(entry, checksum, intact)


def proof_of_row(row: Sequence[Any]) -> Proof:
    """The columns of an entry, its checksum the last, as they were read: all text as UTF-8."""
    checksum = row[-1]
    try:
        digest = digest_of_row(checksum[:DIGEST_BYTES], row[:-1])
    except (TypeError, ValueError, OverflowError):
        return Proof(row[0], checksum if isinstance(checksum, bytes) else b"", False)
    return Proof(row[0], checksum, digest == checksum[DIGEST_BYTES:])


def snapshot_checksum(at: bytes, snapshot: StoredSnapshot) -> bytes:
    """`at` is the digest of the entry the snapshot was taken at."""
    seen = _encode((snapshot.seq, snapshot.at_ms, snapshot.body))
    return at + hashlib.blake2b(at + seen, digest_size=DIGEST_BYTES).digest()


def is_intact(snapshot: StoredSnapshot, checksum: bytes) -> bool:
    try:
        return snapshot_checksum(checksum[:DIGEST_BYTES], snapshot) == checksum
    except (TypeError, ValueError, OverflowError):
        return False


def day_checksum(sums: Sequence[DailySum]) -> bytes:
    """Of all sums of one day, in the order of their keys."""
    return hashlib.blake2b(_encode(list(map(msgspec.structs.astuple, sums))), digest_size=DIGEST_BYTES).digest()


def runs(links: Iterable[Link]) -> list[Gap]:
    """The gaps that these entries leave where they are taken away; they come in order."""
    found: list[Gap] = []
    for link in links:
        seq = link.entry.seq
        first = found.pop().first if found and found[-1].last == seq - 1 else seq
        found.append(Gap(first, seq, link.digest))
    return found


def merged(gaps: Iterable[Gap]) -> list[Gap]:
    """Gaps that follow each other as one."""
    found: list[Gap] = []
    for gap in sorted(gaps, key=lambda one: one.first):
        first = found.pop().first if found and found[-1].last == gap.first - 1 else gap.first
        found.append(Gap(first, gap.last, gap.digest))
    return found
