"""Reading what a task has said.

Place in the flow: supervisor ─pieces─▶ **logs** ─LogPiece─▶ manager ─▶ people. A log is cut into files named by where
they begin, and the oldest are dropped; whoever reads sees one log whose first bytes may be gone. Reads are bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from gpuyard.agent.supervisor.files import LOG_PREFIX, TIMES_PREFIX
from gpuyard.agent.supervisor.log import mark_covers_ms
from gpuyard.wire.agents import MAX_LOG_PIECE_BYTES

TRIES: Final = 8
"""A file may be dropped between looking and reading; then there is a newer beginning."""


BEYOND: Final = 1 << 62
"""Behind the end of every log."""


class Mark(msgspec.Struct, frozen=True):
    """What stands in the log from `offset` on was said at `at_ms`, or within `covers_ms` after."""

    at_ms: int
    covers_ms: int
    offset: int


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


def offset_since(folder: Path, since_ms: int) -> int:
    """Where begins what was said from then on, to the second; beyond the end where nothing was."""
    marks = [mark for file in sorted(folder.glob(f"{TIMES_PREFIX}*")) for mark in _marks(file)]
    if not marks:
        return 0
    return next((mark.offset for mark in marks if mark.at_ms + mark.covers_ms > since_ms), BEYOND)


def _marks(file: Path) -> Iterator[Mark]:
    """One a line; the last may not be written whole yet."""
    try:
        lines = file.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    for number, line in enumerate(lines):
        words = line.split()
        if line.endswith(b"\n") and len(words) == 2 and all(word.isdigit() for word in words):
            yield Mark(int(words[0]), mark_covers_ms(number), int(words[1]))


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
