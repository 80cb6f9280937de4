"""Moments as clients write and read them: RFC 3339 in UTC, or a duration ago."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from gpuyard.errors import QuantityError, RefusedError
from gpuyard.files.durations import duration_ms
from gpuyard.service.problems import ProblemReason

MAX_MOMENT_LENGTH: Final = 40
LAST_MOMENT_MS: Final = 253_402_300_799_000
"""9999-12-31T23:59:59Z: a later one has no date, and parts of its last second are rounded up to that."""


def moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def moment_or_none(at_ms: int | None) -> datetime | None:
    """Zero stands for never."""
    return moment(at_ms) if at_ms else None


def read_moment(text: str, now_ms: int, field: str) -> int | None:
    """`2026-11-16T08:00:00Z`, `2026-11-16`, or `30d`: so long ago. None where nothing is written."""
    if not text:
        return None
    try:
        return max(now_ms - duration_ms(text, field), 0)
    except QuantityError:
        pass
    try:
        found = datetime.fromisoformat(text) if len(text) <= MAX_MOMENT_LENGTH else None
    except ValueError:
        found = None
    if found is None:
        what = f'{field} "{text[:MAX_MOMENT_LENGTH]}" is no moment'
        fix = "write 2026-11-16T08:00:00Z, or how long ago: 30d"
        raise RefusedError(ProblemReason.BAD_PARAMETER, what, fix=fix, field=field)
    aware = found if found.tzinfo else found.replace(tzinfo=UTC)
    try:
        return min(max(int(aware.timestamp() * 1000), 0), LAST_MOMENT_MS)
    except (OverflowError, ValueError):
        return 0
