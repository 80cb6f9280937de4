"""Closing the days: use of a day that is over is kept in the store for good, and leaves the state.

Place in the flow: core, meter ─sums─▶ **days** ─▶ store, then journal. A day may come again, because the clock is set
back; then its kept sums are taken back before they are replaced by larger ones. Invariant: whatever crashes in
between, kept and open sums together are what was used, once.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuyard.service.clock import RecordedClock
from gpuyard.worlds.standalone.clock import is_settled
from gpuyard.worlds.standalone.events import DayClosed, DayReopened, Event
from gpuyard.worlds.standalone.journal import Journal
from gpuyard.worlds.standalone.meter import counted_up_to, day_of
from gpuyard.worlds.standalone.records import State
from gpuyard.worlds.standalone.store.port import DailySum


class DayBook:
    """Which days are to be closed. Its owner asks, keeps the sums, and says that they are kept."""

    def __init__(self, journal: Journal, clock: RecordedClock) -> None:
        self._journal = journal
        self._clock = clock
        self._reopened_seq = 0
        """The newest day that was reopened is durable with this entry."""
        self.closing = False
        """Sums are being kept: until `close` nothing may be booked on their days."""

    @property
    def _state(self) -> State:
        return self._journal.state

    def to_reopen(self) -> tuple[str, ...]:
        """Days that are over, and were closed before: what is kept of them is wanted by `reopen`."""
        meter = self._state.meter
        return tuple(day for day in self._over() if day <= meter.closed_until and day not in meter.reopened)

    def reopen(self, day: str, kept: Sequence[DailySum]) -> None:
        sums = tuple((one.team, one.user, one.job, one.kind, one.cause, one.gpu_milli_ms) for one in kept)
        self._reopened_seq = self._journal.record([DayReopened(day, sums)], self._clock.now_ms())

    def to_close(self) -> tuple[DailySum, ...]:
        """Sums of days that are over and not yet closed, to be kept before `close`."""
        if self.to_reopen() or self._journal.durable_seq < self._reopened_seq:
            # Sums that include kept ones may be kept only once it is durable that they do.
            return ()
        sums = tuple(
            DailySum(day, *key, amount) for day, there in self._over().items() for key, amount in there.items()
        )
        self.closing = bool(sums)
        return sums

    def close(self, sums: Sequence[DailySum]) -> None:
        """These sums are kept: their days are closed."""
        closed: list[Event] = [DayClosed(day) for day in sorted({one.day for one in sums})]
        self._journal.record(closed, self._clock.now_ms())
        self.closing = False

    def _over(self) -> dict[str, dict[tuple[str, str, str, str, str], int]]:
        """Days before today, counted to their end; none while the calendar is in doubt."""
        now_ms, meter = self._clock.now_ms(), self._state.meter
        today = day_of(now_ms)
        if day_of(meter.at_ms) >= today and all(day >= today for day in meter.open_days):
            return {}
        if not is_settled(self._state, now_ms):
            return {}
        counted = counted_up_to(self._state, now_ms).open_days
        return {day: counted[day] for day in sorted(counted) if day < today}


def all_sums(state: State, kept: Sequence[DailySum], now_ms: int) -> list[DailySum]:
    """What is kept and what is open, as of now. Where the open sums of a day are complete, they replace the kept ones.

    They are where it was reopened, and where it was never closed: a manager that ended just then has kept them already.
    """
    meter, running = state.meter, counted_up_to(state, now_ms).open_days
    complete = {day for day in running if day > meter.closed_until or day in meter.reopened}
    return [
        *(one for one in kept if one.day not in complete),
        *(DailySum(day, *key, amount) for day, sums in running.items() for key, amount in sums.items()),
    ]
