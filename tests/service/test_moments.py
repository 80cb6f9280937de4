"""Moments that clients name: read, bounded to those that have a date, or refused."""

from __future__ import annotations

import pytest

from gpuyard.errors import RefusedError
from gpuyard.service.moments import LAST_MOMENT_MS, moment, read_moment
from gpuyard.worlds.standalone.meter import day_of

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("", None),
        ("1h", NOW_MS - 3_600_000),
        ("3650d", NOW_MS - 3650 * 86_400_000),
        ("1970-01-01", 0),
        ("0001-01-01", 0),
        ("1969-12-31T23:59:59Z", 0),
        ("9999-12-31T23:59:59.999999Z", LAST_MOMENT_MS),
        ("9999-12-31T23:59:59-23:59", LAST_MOMENT_MS),
        ("0001-01-01T00:00:00+23:59", 0),
        ("2026-11-16T08:00:00Z", 1_794_816_000_000),
    ],
)
def test_a_moment_is_read_and_has_a_date(text: str, at_ms: int | None) -> None:
    """The last microseconds of the year 9999 were rounded up to a year that no calendar has."""
    found = read_moment(text, NOW_MS, "until")
    assert found == at_ms
    if found is not None:
        assert moment(found).year <= 9999
        assert len(day_of(found)) == 10


@pytest.mark.parametrize("text", ["yesterday", "10000-01-01", "2026-13-01", "2026-01-01T25:00Z", "x" * 100, "9" * 30])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(RefusedError) as caught:
        read_moment(text, NOW_MS, "since")
    assert caught.value.field == "since"
