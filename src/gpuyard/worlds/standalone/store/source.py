"""What a backup reads of a database.

Place in the flow: session ─rows─▶ **source** ─pages─▶ archive. Invariant: an entry that is not what was written is
named, and never gets into a backup, unless it is known not to be and in quarantine.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuyard.worlds.standalone.store import rows
from gpuyard.worlds.standalone.store.chain import Gap, Head, Link
from gpuyard.worlds.standalone.store.damage import Place
from gpuyard.worlds.standalone.store.port import DailySum, Quarantine, StoredSnapshot
from gpuyard.worlds.standalone.store.rows import SUM_COLUMNS, SUM_KEY
from gpuyard.worlds.standalone.store.session import Session, Value
from gpuyard.worlds.standalone.store.verify import clipped


class SqlSource:
    """What a backup reads: a database through a session of its own."""

    def __init__(self, session: Session, place: Place, quarantine: Quarantine) -> None:
        self._session = session
        self._place = place
        self._quarantine = quarantine
        self.moment = session.moment

    def head(self) -> Head:
        return rows.head_of(self._session)

    def snapshots(self) -> Iterator[StoredSnapshot]:
        return (snapshot for snapshot, intact in rows.kept_snapshots(self._session) if intact)

    def sums_after(self, last: DailySum | None, limit: int) -> list[DailySum]:
        where, values = "", dict[str, Value]()
        if last is not None:
            where = f"WHERE ({SUM_KEY}) > (:day, :team, :user_name, :job, :kind, :cause)"
            values = {"day": last.day, "team": last.team, "user_name": last.user}
            values |= {"job": last.job, "kind": last.kind, "cause": last.cause}
        statement = f"SELECT {SUM_COLUMNS} FROM daily_sums {where} ORDER BY {SUM_KEY} LIMIT :limit"
        return [rows.sum_of(row) for row in self._session.run(statement, limit=limit, **values)]

    def links_after(self, after_seq: int, upto_seq: int, limit: int) -> tuple[list[Link], list[Gap]]:
        with self._session.moment():
            found = rows.read_links(self._session, after_seq, limit)
            links = [link for link in found if link.entry.seq <= upto_seq]
            last = links[-1].entry.seq if len(links) == limit else upto_seq
            gaps = [clipped(gap, after_seq, last) for gap in rows.gaps(self._session, after_seq + 1, last)]
        for link in links:
            if not link.intact and link.entry.seq not in self._quarantine.entries:
                raise self._place.damaged_entry(link.entry.seq, link.entry.kind)
        return links, gaps
