"""What a reading of the manager's clocks means: nothing new, another boot, or a jump of the wall clock.

Place in the flow: service/clock ─reading─▶ **clock** ─event─▶ journal. Pure. The monotonic clock says how much time has
passed, also while no manager ran; it counts from the node's boot, so across boots only the wall clock is left, and is
believed unless it goes back. Invariant: time that is recorded runs with the monotonic clock between two jumps.
"""

from __future__ import annotations

from typing import Final

from gpuyard.worlds.standalone.events import ClockJumped, ClockRead
from gpuyard.worlds.standalone.records import ClockReading, State

MAX_DEVIATION_MS: Final = 1_000
"""The wall clock may be so far from the recorded time. Smaller steps add up, and are followed together."""
UNSETTLED_JUMP_MS: Final = 12 * 3_600_000
"""After a jump of at least so much the calendar is doubted: days are closed when the clock has settled."""
SETTLED_AFTER_MS: Final = 24 * 3_600_000


def clock_event(state: State, boot: str, wall_ms: int, steady_ms: int) -> ClockRead | ClockJumped | None:
    """What is to be recorded before anything else at this time; None: nothing."""
    known_ms = _known_time(state, boot, steady_ms)
    expected_ms = max(wall_ms, state.at_ms) if known_ms is None else known_ms
    by_ms = wall_ms - expected_ms
    if abs(by_ms) > MAX_DEVIATION_MS:
        return ClockJumped(by_ms, ClockReading(boot, wall_ms - steady_ms))
    return ClockRead(ClockReading(boot, expected_ms - steady_ms)) if known_ms is None else None


def _known_time(state: State, boot: str, steady_ms: int) -> int | None:
    """The time by the monotonic clock; None where it counts from another start than the recorded one."""
    if state.clock is None or state.clock.boot != boot:
        return None
    now_ms = steady_ms + state.clock.ahead_ms
    return now_ms if now_ms >= state.meter.at_ms else None


def is_settled(state: State, now_ms: int) -> bool:
    """Whether the wall clock has not jumped far within the last day."""
    return all(abs(jump.by_ms) < UNSETTLED_JUMP_MS or now_ms - jump.at_ms >= SETTLED_AFTER_MS for jump in state.jumps)
