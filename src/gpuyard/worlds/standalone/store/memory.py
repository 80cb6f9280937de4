"""A store without a disk, for simulations: what is durable outlives a crash, and every write can be made to fail.

Place in the flow: simulator ─faults─▶ **store** ◀─entries─ journal. The disk is a value of its own, as a disk is: a
new store on it sees what the last one has made durable. Deterministic: faults come from the simulator alone.
Invariant: as for every store, an append is on the disk as a whole or not at all, also when it is torn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import Final

from gpuyard.errors import StoreBusyError, StoreDamagedError, StoreFullError, StoreGoneError
from gpuyard.worlds.standalone.store.archive import Page, write_archive
from gpuyard.worlds.standalone.store.chain import START, Gap, Head, Link, chained, link_of, merged, runs
from gpuyard.worlds.standalone.store.checks import check_entries, check_sums, not_next
from gpuyard.worlds.standalone.store.port import (
    DailySum,
    Entry,
    Progress,
    Quarantine,
    StoredSnapshot,
    Verification,
    no_progress,
)
from gpuyard.worlds.standalone.store.quarantine import KINDS, note_all, quarantine_of
from gpuyard.worlds.standalone.store.search import MAX_RESULTS, Search
from gpuyard.worlds.standalone.store.sql_store import KEPT_SNAPSHOTS
from gpuyard.worlds.standalone.store.verify import LogCheck, clipped, first_few, in_order


class SimulatedCrashError(BaseException):
    """The process ends here. Nothing that handles errors may stop it, so it is none of ours and no Exception."""


class Fault(Enum):
    """What goes wrong with a write."""

    CRASH_BEFORE = "crash-before"
    """The process ends, and nothing has reached the disk."""
    CRASH_DURING = "crash-during"
    """The process ends when a part has reached the disk; the next open throws that part away."""
    CRASH_AFTER = "crash-after"
    """The process ends when all is durable, before anybody is told."""
    GONE_UNWRITTEN = "gone-unwritten"
    """The connection is lost, and nothing was written."""
    GONE_WRITTEN = "gone-written"
    """The connection is lost, and all was written."""
    FULL = "full"
    """There is no room; nothing was written, and the store stays open."""


WRITTEN: Final = frozenset({Fault.CRASH_AFTER, Fault.GONE_WRITTEN})
CRASHES: Final = frozenset({Fault.CRASH_BEFORE, Fault.CRASH_DURING, Fault.CRASH_AFTER})


class Write(Enum):
    """What a store is about to write."""

    APPEND = "append"
    SNAPSHOT = "snapshot"
    SUMS = "sums"
    PRUNE = "prune"


Faults = Callable[[Write], Fault | None]
"""Asked before every write whether it goes well."""


def no_faults(write: Write) -> Fault | None:
    """Everything goes well."""
    return None


class MemoryDisk:
    """What outlives the process: the log and all else that is durable, and who holds the writer's lock."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.checksums: dict[int, bytes] = {}
        """Of the entries of the log, by their numbers."""
        self.gaps: list[Gap] = []
        self.last_seq = 0
        self.digest = START
        self.snapshots: dict[int, StoredSnapshot] = {}
        self.sums: dict[tuple[str, ...], DailySum] = {}
        self.torn: tuple[Entry, ...] = ()
        """The beginning of an append that a crash has cut off."""
        self.writer: MemoryStore | None = None


class MemoryStore:
    """One process's view of a disk."""

    def __init__(self, disk: MemoryDisk | None = None, faults: Faults = no_faults) -> None:
        self._disk = disk or MemoryDisk()
        self._faults = faults
        self._quarantine = Quarantine()

    @property
    def description(self) -> str:
        return "in memory; gone with the process"

    # ------------------------------------------------------------------------------------------------ open and close

    def open(self) -> None:
        if self._disk.writer not in (None, self):
            raise StoreBusyError("another manager writes to this memory", fix="close it first")
        self._disk.writer = self
        self._disk.torn = ()
        self._quarantine = quarantine_of(self._disk.log)

    def close(self) -> None:
        if self._disk.writer is self:
            self._disk.writer = None

    @property
    def _live(self) -> MemoryDisk:
        if self._disk.writer is not self:
            raise StoreGoneError("the store is not open", fix="open it first")
        return self._disk

    def _write(self, write: Write, change: Callable[[], None], tear: Callable[[], None] = lambda: None) -> None:
        """Make a change durable, unless the simulator has other plans."""
        fault = self._faults(write)
        if fault is None or fault in WRITTEN:
            change()
        if fault is Fault.CRASH_DURING:
            tear()
        if fault is Fault.FULL:
            raise StoreFullError("the disk is full; nothing was written", fix="make room on the disk")
        if fault is not None:
            self.close()
        if fault in CRASHES:
            raise SimulatedCrashError(f"{write.value}: {fault.value}")
        if fault is not None:
            raise StoreGoneError("the connection was lost", fix="open it again")

    # ------------------------------------------------------------------------------------------------ what is damaged

    def mend_index(self) -> None:
        """There is none: a search looks at every entry."""

    def quarantine(self) -> Quarantine:
        return self._quarantine

    def damaged(self, what: str, seq: int = 0) -> StoreDamagedError:
        return StoreDamagedError(f"this memory is damaged: {what}", fix="restore a backup", seq=seq)

    def check(self) -> Verification:
        found = self.verify()
        if found.damage:
            raise self.damaged(found.damage[0].what, found.damage[0].seq)
        return found

    def verify(self, progress: Progress = no_progress) -> Verification:
        disk = self._disk
        check = LogCheck(0, self._quarantine.entries)
        proofs = [link.proof for link in links_of(disk, 0, len(disk.log))]
        damage = [*check.follow(in_order(proofs, disk.gaps)), *check.end(Head(disk.last_seq, disk.digest))]
        return Verification(0, check.entries, disk.last_seq, True, first_few(damage))

    # ------------------------------------------------------------------------------------------------------- the log

    def last_seq(self) -> int:
        return self._live.last_seq

    def append(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        check_entries(entries)
        disk = self._live
        if entries[0].seq != disk.last_seq + 1:
            raise not_next(entries[0].seq)

        def keep() -> None:
            for link in chained(disk.digest, entries):
                disk.checksums[link.entry.seq] = link.checksum
                disk.digest = link.digest
            disk.log.extend(entries)
            disk.last_seq = entries[-1].seq
            note_all(self._quarantine, entries)

        def tear() -> None:
            disk.torn = tuple(entries[: len(entries) // 2])

        self._write(Write.APPEND, keep, tear)

    def check_writable(self) -> None:
        """Memory has no end that could be seen before it is reached."""
        _ = self._live

    def read(self, after_seq: int, limit: int) -> list[Entry]:
        log = self._live.log
        first = _first_after(log, after_seq)
        return self._sound(log[first : first + max(limit, 0)])

    def _sound(self, entries: list[Entry]) -> list[Entry]:
        """The entries, where each is what was written or known not to be."""
        known, checksums = self._quarantine.entries, self._live.checksums
        for entry in entries:
            if entry.seq not in known and not link_of(entry, checksums.get(entry.seq, b"")).intact:
                raise self.damaged(f"entry {entry.seq} ({entry.kind}) is not what was written", entry.seq)
        return entries

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
        wanted = None if teams is None else tuple(teams)
        search = Search(object, tuple(kinds), actor, wanted, since_ms, until_ms, before_seq, limit)
        if search.finds_nothing:
            return []
        found = (entry for entry in reversed(self._live.log) if search.matches(entry))
        return [entry for entry, _ in zip(found, range(min(limit, MAX_RESULTS)), strict=False)]

    def prune(self, older_than_ms: Mapping[str, int], up_to_seq: int, after_seq: int = 0) -> int:
        disk = self._live
        known = self._quarantine.entries
        old = {
            entry.seq
            for entry in disk.log
            if entry.seq > after_seq and entry.seq not in known and _is_old(entry, older_than_ms, up_to_seq)
        }

        def drop() -> None:
            left = runs(link for link in links_of(disk, 0, len(disk.log)) if link.entry.seq in old)
            disk.gaps = merged([*disk.gaps, *left])
            disk.log = [entry for entry in disk.log if entry.seq not in old]
            for seq in old:
                del disk.checksums[seq]

        self._write(Write.PRUNE, drop)
        return len(old)

    # -------------------------------------------------------------------------------------------- snapshots and sums

    def save_snapshot(self, snapshot: StoredSnapshot) -> None:
        disk = self._live

        def keep() -> None:
            disk.snapshots[snapshot.seq] = snapshot
            for seq in sorted(disk.snapshots, reverse=True)[KEPT_SNAPSHOTS:]:
                del disk.snapshots[seq]

        self._write(Write.SNAPSHOT, keep)

    def snapshots(self) -> Iterator[StoredSnapshot]:
        disk = self._live
        return iter([disk.snapshots[seq] for seq in sorted(disk.snapshots, reverse=True)])

    def drop_snapshots_after(self, seq: int) -> None:
        disk = self._live
        disk.snapshots = {one: snapshot for one, snapshot in disk.snapshots.items() if one <= seq}

    def add_sums(self, sums: Sequence[DailySum]) -> None:
        check_sums(sums)
        disk = self._live
        self._write(Write.SUMS, lambda: disk.sums.update({_key(one): one for one in sums}))

    def sums(self, since_day: str, until_day: str) -> list[DailySum]:
        sums = self._live.sums
        return [sums[key] for key in sorted(sums) if since_day <= key[0] <= until_day]

    # --------------------------------------------------------------------------------------------- backup and restore

    def backup(self, path: str, progress: Progress = no_progress) -> None:
        write_archive(path, MemorySource(self._disk), progress)

    def is_empty(self) -> bool:
        disk = self._live
        return not (disk.last_seq or disk.snapshots or disk.sums)

    def replace(self, head_seq: int, pages: Iterable[Page]) -> None:
        disk, read = self._live, list(pages)
        disk.log, disk.checksums, disk.gaps, disk.digest, disk.last_seq = [], {}, [], START, 0
        for page in read:
            for link in page.links() if page.checksums else chained(disk.digest, page.entries):
                disk.log.append(link.entry)
                disk.checksums[link.entry.seq] = link.checksum
                disk.digest = link.digest
            disk.gaps = merged([*disk.gaps, *page.gaps])
        disk.last_seq = head_seq
        disk.snapshots = {one.seq: one for page in read for one in page.snapshots}
        disk.sums = {_key(one): one for page in read for one in page.sums}
        self._quarantine = quarantine_of(disk.log)


class MemorySource:
    """What a backup reads."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk

    def moment(self) -> AbstractContextManager[None]:
        return nullcontext()

    def head(self) -> Head:
        return Head(self._disk.last_seq, self._disk.digest)

    def snapshots(self) -> Iterator[StoredSnapshot]:
        return iter([self._disk.snapshots[seq] for seq in sorted(self._disk.snapshots, reverse=True)])

    def sums_after(self, last: DailySum | None, limit: int) -> list[DailySum]:
        keys = sorted(key for key in self._disk.sums if last is None or key > _key(last))
        return [self._disk.sums[key] for key in keys[:limit]]

    def links_after(self, after_seq: int, upto_seq: int, limit: int) -> tuple[list[Link], list[Gap]]:
        found = links_of(self._disk, after_seq, limit)
        last = found[-1].entry.seq if len(found) == limit else upto_seq
        touching = (gap for gap in self._disk.gaps if gap.first <= last and gap.last > after_seq)
        return found, [clipped(gap, after_seq, last) for gap in touching]


def links_of(disk: MemoryDisk, after_seq: int, limit: int) -> list[Link]:
    first = _first_after(disk.log, after_seq)
    return [link_of(entry, disk.checksums.get(entry.seq, b"")) for entry in disk.log[first : first + limit]]


def _first_after(log: Sequence[Entry], seq: int) -> int:
    return bisect_right(log, seq, key=lambda entry: entry.seq)


def _key(one: DailySum) -> tuple[str, ...]:
    return (one.day, one.team, one.user, one.job, one.kind, one.cause)


def _is_old(entry: Entry, older_than_ms: Mapping[str, int], up_to_seq: int) -> bool:
    before_ms = None if entry.kind in KINDS else older_than_ms.get(entry.kind)
    return before_ms is not None and entry.at_ms < before_ms and entry.seq <= up_to_seq
