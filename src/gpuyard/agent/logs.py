"""Reading what a task has said.

Place in the flow: supervisor ─pieces─▶ **logs** ─LogPiece─▶ manager ─▶ people. A log is cut into files named by where
they begin, and the oldest are dropped; whoever reads sees one log whose first bytes may be gone. Reads are bounded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from gpuyard.agent.supervisor.files import LOG_PREFIX
from gpuyard.wire.agents import MAX_LOG_PIECE_BYTES

TRIES: Final = 8
"""A file may be dropped between looking and reading; then there is a newer beginning."""


class Part(msgspec.Struct, frozen=True):
    """Some bytes of a log, where they stand in it, and how long it is."""

    offset: int
    data: bytes
    size: int


def read_part(folder: Path, offset: int, limit: int) -> Part:
    """At most `limit` bytes from `offset`; a negative one counts from the end, one that is gone means what is left."""
    for _ in range(TRIES):
        try:
            return _try_part(folder, offset, max(0, min(limit, MAX_LOG_PIECE_BYTES)))
        except FileNotFoundError:
            continue
    return Part(max(offset, 0), b"", max(offset, 0))


def _try_part(folder: Path, offset: int, limit: int) -> Part:
    begins = sorted(int(file.name.removeprefix(LOG_PREFIX)) for file in folder.glob(f"{LOG_PREFIX}*"))
    if not begins:
        return Part(0, b"", 0)
    size = begins[-1] + _path(folder, begins[-1]).stat().st_size
    start = min(max(offset if offset >= 0 else size + offset, begins[0]), size)
    return Part(start, _bytes(folder, begins, start, limit), size)


def _bytes(folder: Path, begins: list[int], start: int, limit: int) -> bytes:
    """From as many files as it takes."""
    parts: list[bytes] = []
    for begin, end in zip(begins, [*begins[1:], None], strict=True):
        missing = limit - sum(map(len, parts))
        if missing <= 0 or (end is not None and end <= start):
            continue
        with _path(folder, begin).open("rb") as file:
            file.seek(max(start - begin, 0))
            parts.append(file.read(missing))
    return b"".join(parts)


def _path(folder: Path, begin: int) -> Path:
    return folder / f"{LOG_PREFIX}{begin:020d}"
