"""Giving checksums to a log that was written without them, once, when its database is brought up to date.

Place in the flow: schema ─upgrade─▶ **sealing** ─▶ entries, snapshots, sums. Runs inside the transaction of the
upgrade, so an interrupted one leaves the database as it was. What is damaged by then is sealed as it is found: no
checksum says what it was. Invariant: afterwards every entry proves itself, and what retention took is known.
"""

from __future__ import annotations

import logging
from typing import Final

from gpuyard.platform.chance import new_key
from gpuyard.worlds.standalone.store.chain import START, Gap, Proof, day_checksum, seal, snapshot_checksum
from gpuyard.worlds.standalone.store.rows import digest_at, entry_rows, kept_snapshots, sums_of_day, text
from gpuyard.worlds.standalone.store.session import Session

PAGE: Final = 5_000
TOLD_FROM: Final = 50_000
"""A log of fewer entries is done before anybody wonders."""

_log = logging.getLogger(__name__)


def seal_log(session: Session) -> None:
    """Chain all entries, and give snapshots, days and the head their checksums."""
    ((last_seq,),) = session.run("SELECT last_seq FROM head")
    oldest = min((seq for (seq,) in session.run("SELECT seq FROM snapshots")), default=0)
    digest = _seal_entries(session, last_seq, oldest)
    session.run("UPDATE head SET digest = :digest, log = :log", digest=digest, log=new_key())
    for snapshot, _ in list(kept_snapshots(session)):
        at = digest_at(session, snapshot.seq) or START
        checksum = snapshot_checksum(at, snapshot)
        session.run("UPDATE snapshots SET checksum = :checksum WHERE seq = :seq", checksum=checksum, seq=snapshot.seq)
    for (day,) in session.run("SELECT DISTINCT day FROM daily_sums"):
        seal_day(session, text(day))


def _seal_entries(session: Session, last_seq: int, oldest_snapshot: int) -> bytes:
    """The digest of the last one. What is missing before the oldest snapshot, retention took."""
    digest, seq = START, 0
    while rows := entry_rows(session, seq, PAGE):
        done: list[Proof] = []
        for row in rows:
            _seal_gap(session, Gap(seq + 1, min(row[0] - 1, oldest_snapshot), digest))
            sealed = seal(digest, row)
            done.append(sealed)
            digest, seq = sealed.digest, sealed.seq
        session.set_checksums(done)
        if last_seq >= TOLD_FROM:
            _log.warning("the database is brought up to date: %d of %d entries have a checksum", seq, last_seq)
    _seal_gap(session, Gap(seq + 1, min(last_seq, oldest_snapshot), digest))
    return digest


def _seal_gap(session: Session, gap: Gap) -> None:
    if gap.first <= gap.last:
        session.add_gaps([gap])


def seal_day(session: Session, day: str) -> None:
    """The checksum of a day's sums, as they are now; inside a transaction of the caller."""
    sums = sums_of_day(session, day)
    session.run("DELETE FROM day_checksums WHERE day = :day", day=day)
    session.run(
        "INSERT INTO day_checksums (day, row_count, checksum) VALUES (:day, :row_count, :checksum)",
        day=day,
        row_count=len(sums),
        checksum=day_checksum(sums),
    )
