"""Closing the days: use of a day that is over is kept in the store for good, and leaves the state.

Place in the flow: core, meter ─sums─▶ **days** ─▶ store, then journal. A day may come again, because the clock is set
back; then its kept sums are taken back, and replaced by larger ones. Invariant: whatever crashes in
between, kept and open sums together are what was used, once.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuyard.service.clock import RecordedClock
from gpuyard.worlds.standalone.clock import is_settled
from gpuyard.worlds.standalone.events import DayClosed, DayClosing, Event
from gpuyard.worlds.standalone.journal import Journal
from gpuyard.worlds.standalone.meter import counted_up_to, day_of
from gpuyard.worlds.standalone.records import State
from gpuyard.worlds.standalone.store.port import DailySum

Sums = dict[tuple[str, str, str, str, str], int]


class DayBook:
    """Which days are to be closed. Its owner begins with a day, keeps its sums, and then says that they are kept.

    Each step needs the one before to be durable. A manager that ends between two begins where it was.
    """

    def __init__(self, journal: Journal, clock: RecordedClock) -> None:
        self._journal = journal
        self._clock = clock
        self._begun_seq = 0

    def to_begin(self) -> tuple[str, ...]:
        """Days that are over, and are not being closed yet."""
        return tuple(day for day in self._over() if day not in self._journal.state.meter.closing)

    def was_closed(self, day: str) -> bool:
        """Whether sums of it may be kept, because the clock was set back into a closed day."""
        return day <= self._journal.state.meter.closed_until

    def begin(self, day: str, kept: Sequence[DailySum]) -> None:
        """Close a day, of which this was kept when it was closed before."""
        sums = tuple((one.team, one.user, one.job, one.kind, one.cause, one.gpu_milli_ms) for one in kept)
        self._begun_seq = self._journal.record([DayClosing(day, sums)], self._clock.now_ms())

    def to_close(self) -> tuple[DailySum, ...]:
        """Sums of days that are being closed, to be kept before `close`."""
        if self._journal.durable_seq < self._begun_seq:
            return ()
        over, closing = self._over(), self._journal.state.meter.closing
        return tuple(DailySum(day, *key, amount) for day in over if day in closing for key, amount in over[day].items())

    def close(self, sums: Sequence[DailySum]) -> None:
        """These sums are kept: their days are closed. Not one into which the clock was set back meanwhile."""
        kept: dict[str, Sums] = {}
        for one in sums:
            kept.setdefault(one.day, {})[one.team, one.user, one.job, one.kind, one.cause] = one.gpu_milli_ms
        over = self._over()
        closed: list[Event] = [DayClosed(day) for day in sorted(kept) if over.get(day) == kept[day]]
        self._journal.record(closed, self._clock.now_ms())

    def _over(self) -> dict[str, Sums]:
        """Days before today, counted to their end; none while the calendar is in doubt."""
        now_ms, meter = self._clock.now_ms(), self._journal.state.meter
        today = day_of(now_ms)
        if day_of(meter.at_ms) >= today and all(day >= today for day in meter.open_days):
            return {}
        if not is_settled(self._journal.state, now_ms):
            return {}
        counted = counted_up_to(self._journal.state, now_ms).open_days
        return {day: counted[day] for day in sorted(counted) if day < today}


def all_sums(state: State, kept: Sequence[DailySum], now_ms: int) -> list[DailySum]:
    """What is kept and what is open, as of now. Where the open sums of a day are complete, they replace the kept ones:
    of a day that is being closed, or was never closed.
    """
    meter, running = state.meter, counted_up_to(state, now_ms).open_days
    complete = {day for day in running if day > meter.closed_until or day in meter.closing}
    return [
        *(one for one in kept if one.day not in complete),
        *(DailySum(day, *key, amount) for day, sums in running.items() for key, amount in sums.items()),
    ]
