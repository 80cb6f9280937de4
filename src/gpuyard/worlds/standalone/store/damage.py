"""What a person is told of a damaged database: which one, what is wrong first, and the command that mends it.

Place in the flow: store ─Damage, Marker─▶ **damage** ─StoreDamagedError─▶ cli, manager's log. Invariant: every command
that is named can be copied as it stands, but for the name of the backup.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from gpuyard.errors import StoreDamagedError
from gpuyard.worlds.standalone.store.address import PostgresAddress, SqliteAddress, part_of
from gpuyard.worlds.standalone.store.marker import Marker, MarkerFile, NoMarker
from gpuyard.worlds.standalone.store.port import Damage
from gpuyard.worlds.standalone.store.rows import digest_at, head_of
from gpuyard.worlds.standalone.store.schema import WITH_CHECKSUMS, check_tables, version_of
from gpuyard.worlds.standalone.store.session import Session

SHOWN_KIND_CHARS: Final = 40


class Place:
    """A database, as a person names it in a command."""

    def __init__(self, address: SqliteAddress | PostgresAddress) -> None:
        self.address = address
        self.part, self._whole = part_of(address)
        """Which part of a manager's state it is; "": the manager's own."""

    def __str__(self) -> str:
        return str(self.address)

    @property
    def option(self) -> str:
        return f"--database {shlex.quote(self.address.url)}"

    @property
    def restore(self) -> str:
        """A backup is of a whole cluster, so it is put back where that is."""
        return f"restore a backup: gpuyard restore FILE --force --database {shlex.quote(self._whole.url)}"

    def damaged(self, found: Sequence[Damage]) -> StoreDamagedError:
        first = found[0]
        more = f" ({len(found) - 1} more)" if len(found) > 1 else ""
        return StoreDamagedError(
            f"the database {self} is damaged: {first.what}{more}", fix=self.way_back(first.seq), seq=first.seq
        )

    def damaged_entry(self, seq: int, kind: str) -> StoreDamagedError:
        what = f"entry {seq} ({kind[:SHOWN_KIND_CHARS]}) is not what was written: its checksum differs"
        return self.damaged([Damage(what, seq)])

    def way_back(self, seq: int = 0) -> str:
        without = f"; or go on without that entry: gpuyard store quarantine {seq} {self.option}" if seq else ""
        return f"{self.restore}{without}; what else is damaged: gpuyard store verify {self.option}"

    @contextmanager
    def named(self) -> Iterator[None]:
        """Damage that is found below is told with the place and the way back."""
        try:
            yield
        except StoreDamagedError as error:
            if error.fix:
                raise
            raise StoreDamagedError(
                f"the database {self} is damaged: {error.what}", fix=self.way_back(error.seq), seq=error.seq
            ) from error

    # --------------------------------------------------------------------------------------------------------- markers

    def lost(self, known: Marker, what: str, otherwise: str) -> StoreDamagedError:
        """It is not the database that this machine knows."""
        return StoreDamagedError(
            f"the database {self} {what}: its log had {known.last_seq} entries at {time_text(known.at_ms)}",
            fix=f"{self.restore}; or {otherwise}: gpuyard store accept {self.option}",
        )

    def gone(self, known: Marker) -> StoreDamagedError:
        return self.lost(known, "is empty, but a cluster was kept in it", "begin an empty cluster in its place")


def unfit_marker(place: Place, marker: MarkerFile | NoMarker, session: Session) -> StoreDamagedError | None:
    """Why the database is not the one that the marker knows; None where it is, or where nothing is known."""
    known = marker.read()
    version = version_of(session)
    if known is None:
        return _unknown(place, marker) if version == 0 and marker.unreadable else None
    if known.last_seq == 0:
        return None
    if version == 0:
        return place.gone(known)
    if version < WITH_CHECKSUMS:
        return place.lost(known, "is an older copy, from before an upgrade", "go on from that copy")
    check_tables(session)
    return _unfit_log(place, known, session)


def _unfit_log(place: Place, known: Marker, session: Session) -> StoreDamagedError | None:
    head = head_of(session)
    if head.log != known.log:
        if session.run("SELECT 1 FROM former_logs WHERE log = :log", log=known.log):
            return None
        if head.last_seq == 0:
            return place.gone(known)
        return place.lost(known, "is another one than at the last start", "go on with this one")
    if head.last_seq < known.last_seq:
        what = f"is older than at the last start, or has lost its end: it ends at entry {head.last_seq}"
        return place.lost(known, what, "go on from there, as after a restore")
    digest = digest_at(session, known.last_seq)
    if digest is not None and digest.hex() != known.digest:
        what = f"does not hold the entry {known.last_seq} that was written to it, but another one"
        return place.lost(known, what, "go on with what it holds")
    return None


def _unknown(place: Place, marker: MarkerFile | NoMarker) -> StoreDamagedError:
    return StoreDamagedError(
        f"the database {place} is empty, but a cluster was kept in it: {marker.path} is there, and cannot be read",
        fix=f"{place.restore}; or begin an empty cluster in its place: gpuyard store accept {place.option}",
    )


def time_text(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
