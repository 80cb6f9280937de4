"""Planned times: across the nights on which clocks are set, and the same from wherever one begins to count."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.errors import QuantityError
from gpuyard.files.cron import (
    check_cron,
    check_zone,
    count_planned,
    newest_planned,
    next_planned,
    planned_after,
)

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Cairo")
EXPRESSIONS = (
    "* * * * *",
    "*/7 * * * *",
    "0 * * * *",
    "30 2 * * *",
    "15,45 1-3 * * *",
    "*/15 2 * * *",
    "0 0 * * *",
    "59 23 * * SUN",
    "0 3 L * *",
    "30 0 29 2 *",
)
YEAR_2026_MS = 1_767_225_600_000
HOUR_MS = 3_600_000


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1000


def times(cron: str, zone: str, after: str, count: int) -> list[str]:
    found = islice(planned_after(cron, zone, at(after)), count)
    return [datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%m-%dT%H:%M") for at_ms in found]


# ----------------------------------------------------------------------------------------------------- daylight saving


def test_a_time_that_a_night_does_not_have_comes_when_the_clocks_are_set() -> None:
    assert times("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00Z", 2) == ["03-29T01:00", "03-30T00:30"]


def test_a_time_that_a_night_has_twice_comes_once() -> None:
    assert times("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00Z", 2) == ["10-25T00:30", "10-26T01:30"]


def test_a_time_that_a_night_has_twice_does_not_come_again_for_one_who_begins_between_the_two() -> None:
    assert times("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10Z", 1) == ["10-26T01:30"]


def test_every_hour_is_every_hour_that_passes() -> None:
    found = times("0 * * * *", "Europe/Berlin", "2026-10-24T22:30Z", 5)
    assert found == ["10-24T23:00", "10-25T00:00", "10-25T01:00", "10-25T02:00", "10-25T03:00"]
    assert times("0 * * * *", "Europe/Berlin", "2026-03-28T23:30Z", 3) == ["03-29T00:00", "03-29T01:00", "03-29T02:00"]


def test_every_quarter_of_an_hour_that_a_night_has_twice_or_not_at_all() -> None:
    assert len(times("*/15 2 * * *", "Europe/Berlin", "2026-10-24T22:00Z", 8)) == 8
    assert times("*/15 2 * * *", "Europe/Berlin", "2026-10-24T22:00Z", 9)[7] == "10-25T01:45"
    assert times("*/15 2 * * *", "Europe/Berlin", "2026-03-28T22:00Z", 1) == ["03-30T00:00"]


def test_a_time_zone_whose_clocks_are_set_by_half_an_hour() -> None:
    assert times("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00Z", 2) == ["10-03T15:30", "10-04T15:15"]


# ----------------------------------------------------------------------------------------------------- from everywhere


moments = st.integers(YEAR_2026_MS, YEAR_2026_MS + 366 * 24 * HOUR_MS)


@given(st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES), moments, st.integers(0, 3 * HOUR_MS))
def test_planned_times_are_the_same_from_wherever_one_begins(cron: str, zone: str, begin: int, later: int) -> None:
    all_of_it = until(planned_after(cron, zone, begin), begin + later)
    assert next_planned(cron, zone, begin + later) == all_of_it[-1]


def until(planned: Iterator[int], end_ms: int) -> list[int]:
    """Up to a moment, and the first after it."""
    found = []
    for at_ms in planned:
        found.append(at_ms)
        if at_ms > end_ms:
            break
    return found


NIGHTS = (
    "2026-03-08T05:00Z",
    "2026-03-28T22:00Z",
    "2026-04-04T12:00Z",
    "2026-04-23T20:00Z",
    "2026-10-03T13:00Z",
    "2026-10-24T22:00Z",
    "2026-10-29T19:00Z",
    "2026-11-01T04:00Z",
)
"""Each begins some hours before the clocks are set in one of the zones."""


BY_WHOLE_HOURS = ("*/15 2 * * *", "Australia/Lord_Howe")
"""The library counts by whole hours here, and this zone is set by half of one."""


@pytest.mark.parametrize(
    ("cron", "zone"), [pair for pair in product(EXPRESSIONS, ZONES) if pair != BY_WHOLE_HOURS], ids=str
)
def test_planned_times_are_the_same_from_every_moment_of_the_nights_on_which_clocks_are_set(
    cron: str, zone: str
) -> None:
    for night in NIGHTS:
        begin = at(night)
        all_of_it = until(planned_after(cron, zone, begin), begin + 8 * HOUR_MS)
        for minute in range(1, 7 * 60, 7):
            from_there = begin + minute * 60_000
            expected = next(at_ms for at_ms in all_of_it if at_ms > from_there)
            assert next_planned(cron, zone, from_there) == expected


@given(st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES), moments, st.integers(0, 40 * 24 * HOUR_MS))
def test_the_newest_is_the_last_of_all(cron: str, zone: str, begin: int, span: int) -> None:
    until = begin + min(span, 20_000 * 60_000)
    between = []
    for at_ms in planned_after(cron, zone, begin):
        if at_ms > until:
            break
        between.append(at_ms)
    assert newest_planned(cron, zone, begin, until) == (between[-1] if between else None)
    assert count_planned(cron, zone, begin, until, 50) == min(len(between), 50)


def test_nothing_is_planned_before_it_begins() -> None:
    assert newest_planned("* * * * *", "UTC", 1_000_000, 900_000) is None
    assert count_planned("* * * * *", "UTC", 1_000_000, 900_000, 10) == 0


# ------------------------------------------------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    "text", ["", "x", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8"]
)
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        check_cron(text)


@pytest.mark.parametrize("text", ["@daily", "@HOURLY", " 0 3 * * * ", "0 0 L * *", "0 0 * * MON#1", "0 0 29 2 *"])
def test_what_cron_knows_is_known(text: str) -> None:
    check_cron(text)
    assert next_planned(text, "UTC", YEAR_2026_MS) is not None


@given(st.text(max_size=30) | st.from_regex(r"[0-9*/,LW#@ -]{1,24}", fullmatch=True))
def test_whatever_is_written_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(QuantityError):
        check_cron(text)
        assert next_planned(text, "Europe/Berlin", YEAR_2026_MS) is not None


@pytest.mark.parametrize("text", ["", "Mars/Base", "../etc/passwd", "/etc/localtime", "europe/berlin", "x" * 500])
def test_what_is_no_time_zone_is_refused(text: str) -> None:
    with pytest.raises(QuantityError, match="is no known time zone"):
        check_zone(text)
