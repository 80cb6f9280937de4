"""The manager's clocks, and the time it records at.

Place in the flow: platform ─both clocks─▶ **clock** ─time─▶ core, world, meter. Recorded time runs with the monotonic
clock; where somebody sets the wall clock it follows by an event that says so, never by itself. So an answer between a
jump and its event is as right as one after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from gpuyard.worlds.standalone.clock import clock_event
from gpuyard.worlds.standalone.events import ClockJumped, ClockRead
from gpuyard.worlds.standalone.records import State

READINGS: Final = 5
READ_WITHIN_MS: Final = 100
"""Both clocks are read within this, or again: a process that stood still in between has seen no jump."""


class Clock(msgspec.Struct, frozen=True):
    """Both clocks: `wall_ms` for people and calendars, `steady_ms` for leases and for how much time has passed."""

    wall_ms: Callable[[], int]
    steady_ms: Callable[[], int]
    boot: str = ""
    """Which start of the node `steady_ms` counts from."""


class RecordedClock:
    """The time at which everything is recorded."""

    def __init__(self, clock: Clock, state: State) -> None:
        self._clock = clock
        self._state = state

    def now_ms(self) -> int:
        assert self._state.clock is not None, "the clock is recorded before anything else"
        return self._clock.steady_ms() + self._state.clock.ahead_ms

    def event(self) -> tuple[ClockRead | ClockJumped, int] | None:
        """What is to be recorded of the clock itself, and at which time."""
        wall_ms, steady_ms = self._read()
        found = clock_event(self._state, self._clock.boot, wall_ms, steady_ms)
        return None if found is None else (found, steady_ms + found.reading.ahead_ms)

    def _read(self) -> tuple[int, int]:
        for _ in range(READINGS):
            steady_ms = self._clock.steady_ms()
            wall_ms = self._clock.wall_ms()
            if self._clock.steady_ms() - steady_ms <= READ_WITHIN_MS:
                break
        return wall_ms, steady_ms
