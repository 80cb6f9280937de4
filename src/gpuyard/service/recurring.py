"""Which schedules are due: looked at with every tick, without working out all planned times each time.

Place in the flow: core's tick ─now─▶ **recurring** ─ids─▶ worlds/standalone/schedules ─events─▶ journal.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gpuyard.files.cron import next_planned
from gpuyard.worlds.standalone.records import ScheduleRecord, State

MAX_DUE_AT_ONCE: Final = 200
"""Schedules that are taken up in one tick: at midnight many are due, and others wait for their answers meanwhile."""


class _Known(msgspec.Struct, frozen=True):
    record: ScheduleRecord
    next_ms: int | None


class ScheduleWatch:
    """Remembers for each schedule when its next time is, until the schedule changes."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._known: dict[str, _Known] = {}
        self.broken: dict[str, Exception] = {}
        """Schedules whose next time cannot be worked out, e.g. as the machine lost their time zone."""

    def due(self, now_ms: int) -> list[str]:
        """Schedules of which a planned time has come, those first that have waited longest."""
        schedules = self.state.schedules
        if len(self._known) > len(schedules):
            self._known = {id: known for id, known in self._known.items() if id in schedules}
            self.broken = {id: error for id, error in self.broken.items() if id in schedules}
        found = [
            (next_ms, id)
            for id, schedule in schedules.items()
            if (next_ms := self.next_ms(schedule)) is not None and next_ms <= now_ms
        ]
        return [id for _, id in sorted(found)[:MAX_DUE_AT_ONCE]]

    def next_ms(self, schedule: ScheduleRecord) -> int | None:
        """Its next planned time that is not settled; None where it stands still, or its days have run out."""
        known = self._known.get(schedule.id)
        if known is None or known.record is not schedule:
            known = _Known(schedule, self._next_time(schedule))
            self._known[schedule.id] = known
        return known.next_ms

    def _next_time(self, schedule: ScheduleRecord) -> int | None:
        self.broken.pop(schedule.id, None)
        try:
            return next_time(schedule)
        except Exception as error:
            self.broken[schedule.id] = error
            return None


def next_time(schedule: ScheduleRecord) -> int | None:
    if schedule.stands_still:
        return None
    return next_planned(schedule.recurrence.cron, schedule.recurrence.time_zone, schedule.settled_until_ms)
