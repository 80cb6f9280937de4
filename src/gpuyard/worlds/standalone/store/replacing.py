"""Putting the content of a backup in the place of everything that a database holds.

Place in the flow: backup ─pages─▶ **replacing** ─▶ session, inside one transaction. Backups of older versions have no
checksums: their entries get them here. Invariant: the chain that is written is the one that was backed up, and goes on
with what is entered after it.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuyard.errors import StoreDamagedError
from gpuyard.platform.chance import new_key
from gpuyard.worlds.standalone.store.archive import Page
from gpuyard.worlds.standalone.store.chain import START, Gap, Head, chained, merged, snapshot_checksum
from gpuyard.worlds.standalone.store.port import StoredSnapshot
from gpuyard.worlds.standalone.store.rows import digest_at
from gpuyard.worlds.standalone.store.sealing import seal_day
from gpuyard.worlds.standalone.store.session import Session


def add_snapshot(session: Session, snapshot: StoredSnapshot, checksum: bytes) -> None:
    session.run(
        "INSERT INTO snapshots (seq, at_ms, body, checksum) VALUES (:seq, :at_ms, :body, :checksum)"
        " ON CONFLICT (seq) DO UPDATE SET at_ms = excluded.at_ms, body = excluded.body, checksum = excluded.checksum",
        seq=snapshot.seq,
        at_ms=snapshot.at_ms,
        body=snapshot.body,
        checksum=checksum,
    )


class Replacing:
    """What was written so far. `finish` gives the new head."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._seq = 0
        self._digest = START
        self._gaps: list[Gap] = []
        self._snapshots: list[StoredSnapshot] = []
        self._days: dict[str, None] = {}

    @property
    def last_seq(self) -> int:
        return self._seq

    def add(self, page: Page) -> None:
        self._gaps.extend(page.gaps)
        if page.entries:
            self._add_entries(page)
        elif page.gaps:
            self._pass(page.gaps[-1])
        if page.sums:
            self._session.add_sums(page.sums)
            self._days.update(dict.fromkeys(one.day for one in page.sums))
        self._snapshots.extend(page.snapshots)

    def _pass(self, gap: Gap) -> None:
        if gap.last > self._seq:
            self._seq, self._digest = gap.last, gap.digest

    def _add_entries(self, page: Page) -> None:
        links = list(page.links())
        if not links:
            for entry in page.entries:
                self._hole(entry.seq - 1)
                (link,) = chained(self._digest, (entry,))
                links.append(link)
                self._seq, self._digest = entry.seq, link.digest
        self._session.add_links(links)
        self._seq, self._digest = links[-1].entry.seq, links[-1].digest

    def _hole(self, last_seq: int) -> None:
        """What retention had taken when there were no checksums yet."""
        if last_seq > self._seq:
            gap = Gap(self._seq + 1, last_seq, self._digest)
            self._gaps.append(gap)
            self._pass(gap)

    def finish(self, head_seq: int) -> Head:
        session = self._session
        if self._gaps:
            self._pass(max(self._gaps, key=lambda gap: gap.last))
        self._hole(head_seq)
        session.add_gaps(merged(self._gaps))
        head = Head(head_seq, self._digest, new_key())
        session.run(
            "UPDATE head SET last_seq = :last_seq, digest = :digest, log = :log",
            last_seq=head.last_seq,
            digest=head.digest,
            log=head.log,
        )
        for snapshot in self._snapshots:
            at = digest_at(session, snapshot.seq) or START
            add_snapshot(session, snapshot, snapshot_checksum(at, snapshot))
        for day in self._days:
            seal_day(session, day)
        return head


def replace_all(session: Session, tables: Iterable[str], head_seq: int, pages: Iterable[Page]) -> Head:
    """Inside a transaction of the caller."""
    for name in tables:
        session.run(f"DELETE FROM {name}")
    replacing = Replacing(session)
    for page in pages:
        replacing.add(page)
    if head_seq < replacing.last_seq:
        raise StoreDamagedError(f"the backup holds entry {replacing.last_seq}, but says that it ends at {head_seq}")
    return replacing.finish(head_seq)
