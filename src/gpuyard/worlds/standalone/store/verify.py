"""Whether a database holds what was written to it: every entry against its checksum, and all tables against each other.

Place in the flow: start, `gpuyard store verify`, backup ─▶ **verify** ─Damage─▶ a person. Nothing is changed. What is
in quarantine is known and not reported again. Invariant: where nothing is reported, log, gaps and head are what was
written, and the index, the snapshots and the sums agree with them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, islice
from typing import Final

from gpuyard.platform.clock import wall_ms
from gpuyard.worlds.standalone.store.chain import START, Gap, Head, Proof, day_checksum
from gpuyard.worlds.standalone.store.port import Damage, Progress, Verification, no_progress
from gpuyard.worlds.standalone.store.rows import (
    gaps,
    head_of,
    kept_snapshots,
    read_names,
    read_proofs,
    sums_of_day,
    text,
)
from gpuyard.worlds.standalone.store.session import Session

PAGE: Final = 2_000
MAX_NAMED: Final = 20
"""Damage that is named one by one; after that it is enough to know that there is more."""
HASH_SPAN: Final = 1 << 64
WHOLE_AT_START: Final = 50_000
"""A start looks at every entry of a log that is no longer; of a longer one at the newest, and at the others later."""
STRUCTURE_AT_START_BYTES: Final = 64 << 20
"""A file that is no larger is read as a whole before a start."""
INDEX_DAMAGE: Final = "the index entry_objects does not fit the entries"


# ------------------------------------------------------------------------------------------------------------- the log


class LogCheck:
    """Follows the chain from one number to the head."""

    def __init__(self, after_seq: int, quarantined: Container[int]) -> None:
        self.seq = after_seq
        self._digest: bytes | None = START if after_seq == 0 else None
        """None: not known, because what was there is damaged, or was not looked at."""
        self._quarantined = quarantined
        self.entries = 0

    def follow(self, parts: Iterable[Proof | Gap]) -> Iterator[Damage]:
        for part in parts:
            if isinstance(part, Gap):
                yield from self._gap(part)
            elif part.intact and part.seq == self.seq + 1 and part.previous == self._digest:
                self.seq, self._digest = part.seq, part.digest
                self.entries += 1
            else:
                yield from self._entry(part)

    def _gap(self, gap: Gap) -> Iterator[Damage]:
        yield from self._missing(gap.first)
        if gap.first <= self.seq or gap.last < gap.first:
            yield Damage(f"entry {gap.first} is there, but retention has noted it as gone")
        self._digest = gap.digest
        self.seq = max(self.seq, gap.last)

    def _missing(self, next_seq: int) -> Iterator[Damage]:
        if next_seq <= self.seq + 1:
            return
        unknown = next((seq for seq in range(self.seq + 1, next_seq) if seq not in self._quarantined), None)
        if unknown is not None:
            yield Damage(f"entry {unknown} is missing", unknown)
        self._digest = None
        self.seq = next_seq - 1

    def _entry(self, proof: Proof) -> Iterator[Damage]:
        self.entries += 1
        yield from self._missing(proof.seq)
        known = proof.seq in self._quarantined
        if proof.seq <= self.seq:
            yield Damage(f"entry {proof.seq} is there, but retention has noted it as gone")
        elif not proof.intact and not known:
            yield Damage(f"entry {proof.seq} is not what was written: its checksum differs", proof.seq)
        elif proof.intact and not known and self._digest not in (None, proof.previous):
            yield Damage(f"entry {proof.seq} does not follow the entry before it", proof.seq)
        self._digest = proof.digest if proof.intact else None
        self.seq = max(self.seq, proof.seq)

    def end(self, head: Head) -> Iterator[Damage]:
        yield from self._missing(head.last_seq + 1)
        if self.seq > head.last_seq:
            yield Damage(f"the log goes on to entry {self.seq}, but its head says {head.last_seq}")
        elif self._digest not in (None, head.digest):
            yield Damage(f"the head of the log does not fit its last entry, {head.last_seq}")


def in_order(proofs: Iterable[Proof], holes: Sequence[Gap]) -> Iterator[Proof | Gap]:
    if not holes:
        return iter(proofs)
    return merge(proofs, holes, key=lambda part: part.first if isinstance(part, Gap) else part.seq)


def first_few(found: Iterable[Damage]) -> tuple[Damage, ...]:
    return tuple(islice(found, MAX_NAMED))


# -------------------------------------------------------------------------------------------------------- the database


def log_damage(session: Session, check: LogCheck, progress: Progress = no_progress) -> Iterator[Damage]:
    """What is wrong with the log; page by page, so that a writer is not held up and may take entries away meanwhile."""
    while True:
        after_seq = check.seq
        with session.moment():
            head = head_of(session)
            proofs = read_proofs(session, after_seq, PAGE)
            upto = proofs[-1].seq if proofs else head.last_seq
            holes = [clipped(gap, after_seq, upto) for gap in gaps(session, after_seq + 1, upto)]
        yield from check.follow(in_order(proofs, holes))
        if not proofs:
            break
        progress(min(check.seq, head.last_seq), head.last_seq)
    yield from check.end(head)


def clipped(gap: Gap, after_seq: int, upto: int) -> Gap:
    """What belongs to this page: retention may have widened a gap of which a part was seen."""
    return Gap(max(gap.first, after_seq + 1), min(gap.last, upto), gap.digest)


def outside_damage(session: Session) -> Iterator[Damage]:
    """Numbers begin with 1."""
    for (seq,) in session.run("SELECT seq FROM entries WHERE seq < 1 ORDER BY seq LIMIT 1"):
        yield Damage(f"there is an entry with the number {seq}")


def index_fits(session: Session) -> bool:
    """Whether entries are found by the objects they name, and by no others."""
    with session.moment():
        return _names_of_entries(session) == _names_of_index(session)


def _names_of_entries(session: Session) -> int:
    """A sum over all pairs of object and entry, which does not depend on their order."""
    found, after_seq = 0, 0
    while named := read_names(session, after_seq, PAGE):
        after_seq = named[-1][0]
        found += sum(hash((name, seq)) for seq, names in named for name in dict.fromkeys(names))
    return found % HASH_SPAN


def _names_of_index(session: Session) -> int:
    found, last, last_seq = 0, "", -(2**62)
    while page := session.run(
        "SELECT object, seq FROM entry_objects WHERE (object, seq) > (:last, :last_seq)"
        " ORDER BY object, seq LIMIT 5000",
        last=last,
        last_seq=last_seq,
    ):
        found += sum(hash((name, seq)) for name, seq in page)
        last, last_seq = page[-1]
    return found % HASH_SPAN


def sums_damage(session: Session) -> Iterator[Damage]:
    """Each day's sums against the checksum of that day."""
    with session.moment():
        rows = session.run("SELECT day, row_count, checksum FROM day_checksums")
        kept = {text(day): (count, checksum) for day, count, checksum in rows}
        days = {text(day) for (day,) in session.run("SELECT DISTINCT day FROM daily_sums")}
        for day in sorted(days | kept.keys()):
            sums = sums_of_day(session, day)
            if kept.get(day) != (len(sums), day_checksum(sums)):
                yield Damage(f"the daily sums of {day[:10]} are not those that were written")


def snapshot_damage(session: Session) -> Iterator[Damage]:
    for snapshot, intact in kept_snapshots(session):
        if not intact:
            yield Damage(f"the snapshot at entry {snapshot.seq} is not what was written")


def everything(session: Session, quarantined: Container[int], progress: Progress = no_progress) -> Verification:
    """Look at all there is."""
    structure = [Damage(what) for what in session.structure_damage()]
    if structure:
        return Verification(wall_ms(), 0, 0, False, first_few(structure))
    check = LogCheck(0, quarantined)
    found = chain(
        outside_damage(session),
        log_damage(session, check, progress),
        snapshot_damage(session),
        sums_damage(session),
        () if index_fits(session) else (Damage(INDEX_DAMAGE),),
    )
    damage = first_few(found)
    return Verification(wall_ms(), check.entries, head_of(session).last_seq, True, damage)


def for_start(session: Session, quarantined: Container[int]) -> Verification:
    """Look at what a start needs; of a log that is not long, at all. Snapshots are looked at when they are read."""
    structure = [] if session.size_bytes() > STRUCTURE_AT_START_BYTES else session.structure_damage()
    if structure:
        return Verification(wall_ms(), 0, 0, False, (Damage(structure[0]),))
    last_seq = head_of(session).last_seq
    newest = max((seq for (seq,) in session.run("SELECT seq FROM snapshots")), default=0)
    whole = last_seq <= WHOLE_AT_START
    check = LogCheck(0 if whole else max(min(newest, last_seq - WHOLE_AT_START), 0), quarantined)
    found = chain(outside_damage(session), log_damage(session, check), sums_damage(session) if whole else ())
    damage = first_few(found)
    return Verification(wall_ms(), check.entries, last_seq, whole, damage)
