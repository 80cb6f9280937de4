"""Planned times, from a cron expression in a time zone.

Place in the flow: a schedule as written ─▶ **cron** ─▶ checked; the manager's tick ─▶ **cron** ─▶ planned times, in
milliseconds since 1970. Pure: the clock is an argument. Invariant: an expression has the same planned times from
wherever one begins to count, so a restart finds those that another process would have found. (But for the one zone
whose clocks are set by half an hour, on that night, where only the hour is named.)
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from itertools import islice, takewhile
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from gpuyard.errors import QuantityError
from gpuyard.files.suggest import did_you_mean

MAX_CRON_LENGTH: Final = 200
MAX_ZONE_LENGTH: Final = 64
CRON_FIX: Final = (
    "five fields: minute 0-59, hour 0-23, day of month 1-31, month 1-12, day of week 0-7 (0 and 7 are Sunday);"
    ' "0 3 * * *" is 03:00 every day, "*/15 8-17 * * MON-FRI" every quarter of an hour at work'
)
ZONE_FIX: Final = "a name of the IANA database: UTC, Europe/Berlin, America/New_York"
WORDS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS: Final = ("minute", "hour", "day-of-month", "month", "day-of-week")
_HOUR_MS: Final = 3_600_000
_LOOK_BACK_MS: Final = (_HOUR_MS, 24 * _HOUR_MS, 32 * 24 * _HOUR_MS, 366 * 24 * _HOUR_MS)
"""How far back the newest planned time is looked for, in steps: whoever runs every minute has one in the last hour."""


# ------------------------------------------------------------------------------------------------------------ checking


def check_cron(text: str, what: str = "cron") -> None:
    """Refuse what is no expression of five fields, and one that never comes."""
    fields = expanded(text).split()
    if len(text) > MAX_CRON_LENGTH or not text.isascii():
        raise QuantityError(f'{what} "{text[:40]}…" is too long, or not of plain letters', fix=CRON_FIX)
    if len(fields) != len(_FIELDS):
        count = f"{len(fields)} field{'' if len(fields) == 1 else 's'}"
        raise QuantityError(f'{what} "{text}" has {count}, not five', fix=CRON_FIX)
    try:
        begin = CronSim(" ".join(fields), datetime(2024, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise QuantityError(f'{what} "{text}": {_wrong_field(fields, str(error))}', fix=CRON_FIX) from None
    if next(begin, None) is None:
        raise QuantityError(f'{what} "{text}" names a day that never comes', fix=CRON_FIX)


def expanded(text: str) -> str:
    """The five fields of an expression; @daily and its like are words for some."""
    return WORDS.get(text.strip().lower(), text)


def _wrong_field(fields: list[str], said: str) -> str:
    name = said.removeprefix("Bad ")
    if name not in _FIELDS:
        return said
    return f'"{fields[_FIELDS.index(name)]}" is no {name.replace("-", " ")}'


def check_zone(text: str, what: str = "time_zone") -> None:
    """Refuse what is no time zone; names are written as the database has them."""
    if text in _zones():
        return
    meant = did_you_mean(text[:MAX_ZONE_LENGTH], sorted(_zones()))
    raise QuantityError(f'{what} "{text[:MAX_ZONE_LENGTH]}" is no known time zone{meant}', fix=ZONE_FIX)


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    """Of the machine, or where it has none those that come with us."""
    return frozenset(available_timezones())


# ------------------------------------------------------------------------------------------------------- planned times


@lru_cache(maxsize=1024)
def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)


def planned_after(cron: str, time_zone: str, after_ms: int) -> Iterator[int]:
    """Planned times after a moment, in order, without end but for expressions whose days run out."""
    last_ms = after_ms
    for moment in CronSim(expanded(cron), datetime.fromtimestamp(after_ms // 1000, _zone(time_zone))):
        # In the hour that an autumn night has twice the library may count from the first of the two.
        at_ms = int(moment.timestamp()) * 1000
        if at_ms > last_ms:
            last_ms = at_ms
            yield at_ms


def next_planned(cron: str, time_zone: str, after_ms: int) -> int | None:
    return next(planned_after(cron, time_zone, after_ms), None)


def newest_planned(cron: str, time_zone: str, after_ms: int, until_ms: int) -> int | None:
    """The last planned time after one moment and not after another."""
    for span_ms in (*_LOOK_BACK_MS, until_ms - after_ms):
        begin_ms = max(until_ms - span_ms, after_ms)
        found = _last(_between(cron, time_zone, begin_ms, until_ms))
        if found is not None or begin_ms == after_ms:
            return found
    return None


def count_planned(cron: str, time_zone: str, after_ms: int, until_ms: int, most: int) -> int:
    """How many there are between two moments, the second included; counted up to a bound."""
    return sum(1 for _ in islice(_between(cron, time_zone, after_ms, until_ms), most))


def _between(cron: str, time_zone: str, after_ms: int, until_ms: int) -> Iterator[int]:
    if until_ms <= after_ms:
        return iter(())
    return takewhile(lambda at_ms: at_ms <= until_ms, planned_after(cron, time_zone, after_ms))


def _last(times: Iterator[int]) -> int | None:
    last = None
    for last in times:  # noqa: B007 - the last one is what is wanted
        pass
    return last
