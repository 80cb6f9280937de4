"""Rows of the database as values, whatever they hold: what was damaged is read, too, so that it can be named.

Place in the flow: session ─rows─▶ **rows** ─Link, Gap, Head─▶ store, verification. Invariant: no content of a table
raises anything but a StoreError.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from gpuyard.errors import StoreDamagedError
from gpuyard.worlds.standalone.store.chain import START, Gap, Head, Link, Proof, is_intact, proof_of_row
from gpuyard.worlds.standalone.store.port import DailySum, Entry, StoredSnapshot
from gpuyard.worlds.standalone.store.session import Row, Session

SUM_KEY: Final = "day, team, user_name, job, kind, cause"
SUM_COLUMNS: Final = f"{SUM_KEY}, gpu_milli_ms"

_objects = msgspec.json.Decoder(tuple[str, ...])


def link_of_row(row: Row) -> Link:
    """The row of an entry; what cannot be read of it is left out, and then it is not intact."""
    proof = proof_of_row(row)
    seq, at_ms, kind, body, actor, team, objects, _ = row
    when_ms = at_ms if isinstance(at_ms, int) else 0
    entry = Entry(seq, when_ms, text(kind), _bytes(body), text(actor), text(team), _names(objects))
    return Link(entry, proof.checksum, proof.intact)


def text(value: object) -> str:
    """Text that was written as such, or what is left of it."""
    if isinstance(value, str):
        return value
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else repr(value)


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else repr(value).encode()


def _names(value: object) -> tuple[str, ...]:
    try:
        return _objects.decode(value if isinstance(value, (bytes, str)) else b"")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ()


def read_names(session: Session, after_seq: int, limit: int) -> list[tuple[int, tuple[str, ...]]]:
    """What entries are about."""
    rows = session.run(
        "SELECT seq, objects FROM entries WHERE seq > :after_seq ORDER BY seq LIMIT :limit",
        after_seq=after_seq,
        limit=limit,
    )
    return [(seq, _names(objects)) for seq, objects in rows]


def read_links(session: Session, after_seq: int, limit: int) -> list[Link]:
    return [link_of_row(row) for row in entry_rows(session, after_seq, limit)]


def read_proofs(session: Session, after_seq: int, limit: int) -> list[Proof]:
    """The same without the entries, which takes a third of the time."""
    return [proof_of_row(row) for row in entry_rows(session, after_seq, limit)]


def entry_rows(session: Session, after_seq: int, limit: int) -> list[Row]:
    return session.entry_rows(
        f"SELECT {session.dialect['columns']} FROM entries AS e WHERE e.seq > :after_seq ORDER BY e.seq LIMIT :limit",
        after_seq=after_seq,
        limit=max(limit, 0),
    )


def link_at(session: Session, seq: int) -> Link | None:
    found = read_links(session, seq - 1, 1)
    return found[0] if found and found[0].entry.seq == seq else None


def gaps(session: Session, first_seq: int, last_seq: int) -> list[Gap]:
    """Those that touch this span, in their order."""
    found = session.run(
        "SELECT first_seq, last_seq, digest FROM gaps WHERE first_seq <= :last AND last_seq >= :first"
        " ORDER BY first_seq",
        first=first_seq,
        last=last_seq,
    )
    return [Gap(first, last, _bytes(digest)) for first, last, digest in found]


def head_of(session: Session) -> Head:
    rows = session.run("SELECT last_seq, digest, log FROM head")
    if len(rows) != 1 or not isinstance(rows[0][0], int):
        raise StoreDamagedError("the table head does not say where the log ends")
    last_seq, digest, log = rows[0]
    return Head(last_seq, _bytes(digest) or START, text(log))


def digest_at(session: Session, seq: int) -> bytes | None:
    """The digest of an entry, also where retention took it; None where it is not known any more."""
    if seq == 0:
        return START
    link = link_at(session, seq)
    if link is not None:
        return link.digest
    return next((gap.digest for gap in gaps(session, seq, seq) if gap.last == seq), None)


def kept_snapshots(session: Session) -> Iterator[tuple[StoredSnapshot, bool]]:
    """Newest first, one at a time because they are large, and whether each is as it was written."""
    for (seq,) in session.run("SELECT seq FROM snapshots ORDER BY seq DESC"):
        for row in session.run("SELECT seq, at_ms, body, checksum FROM snapshots WHERE seq = :seq", seq=seq):
            snapshot = StoredSnapshot(row[0], row[1], _bytes(row[2]))
            yield snapshot, is_intact(snapshot, _bytes(row[3]))


def sums_of_day(session: Session, day: str) -> list[DailySum]:
    rows = session.run(f"SELECT {SUM_COLUMNS} FROM daily_sums WHERE day = :day ORDER BY {SUM_KEY}", day=day)
    return [sum_of(row) for row in rows]


def sum_of(row: Row) -> DailySum:
    day, team, user, job, kind, cause, amount = row
    return DailySum(text(day), text(team), text(user), text(job), text(kind), text(cause), amount)
