"""A snapshot of the state for the store, encoded piece by piece in another thread than the one that changes the state.

Place in the flow: journal ─State─▶ **snapshot draft** ─StoredSnapshot─▶ store. Encoding hundreds of thousands of jobs
at once would keep every other thread from running meanwhile. Invariant: what is stored is the state as it was when the
draft was made, and is read back as the same `State`.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

import msgspec

from gpuyard.worlds.standalone.records import JobRecord, State
from gpuyard.worlds.standalone.store.port import StoredSnapshot

PIECE: Final = 500
"""Jobs that are encoded at once."""
_FEW: Final = 15
"""A map of so many entries has one byte in front of them, a larger one three."""


class SnapshotDraft(msgspec.Struct, frozen=True):
    """A state as it is now, of which its jobs are not yet encoded."""

    seq: int
    at_ms: int
    others: dict[str, msgspec.Raw]
    """Field → encoded; all but the jobs."""
    jobs: dict[str, JobRecord]

    @classmethod
    def of(cls, state: State) -> SnapshotDraft:
        encoded = {
            name: msgspec.Raw(msgspec.msgpack.encode(getattr(state, name)))
            for name in state.__struct_fields__
            if name != "jobs"
        }
        return cls(state.seq, state.at_ms, encoded, dict(state.jobs))

    def stored(self) -> StoredSnapshot:
        """Takes a while; may run in any thread."""
        jobs = msgspec.Raw(b"".join(self._pieces()))
        return StoredSnapshot(self.seq, self.at_ms, msgspec.msgpack.encode({**self.others, "jobs": jobs}))

    def _pieces(self) -> list[bytes]:
        """One map, in the parts it is made of: how many entries it has, and the entries."""
        pieces = [b"\xdf" + len(self.jobs).to_bytes(4, "big")]
        entries = iter(self.jobs.items())
        while piece := dict(islice(entries, PIECE)):
            pieces.append(msgspec.msgpack.encode(piece)[1 if len(piece) <= _FEW else 3 :])
        return pieces
