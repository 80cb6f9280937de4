"""Time and chance that a seed decides: the platform under simulations.

Place in the flow: simulator ─▶ **simulated** ─time, chance─▶ the production cores. Nothing here waits, and nothing
reads a real clock. Invariant: the same seed gives the same course of events, in every process.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

MAX_DRIFT_PPM: Final = 1_000
"""How far the clock of a machine may run apart from true time: 0.1 %."""
PPM: Final = 1_000_000

Kind = TypeVar("Kind")
Act = Callable[[], None]


class Timer(msgspec.Struct):
    """Something that is to happen, unless it is cancelled before."""

    act: Act
    cancelled: bool = False


class Timeline:
    """True time, which no machine knows. What is due at one moment happens in the order it was asked for."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._due: list[tuple[int, int, Timer]] = []
        self._count = 0

    def after(self, delay_ms: int, act: Act) -> Timer:
        timer = Timer(act)
        self._count += 1
        heapq.heappush(self._due, (self.now_ms + max(delay_ms, 0), self._count, timer))
        return timer

    def run(self, for_ms: int) -> None:
        """Let so much time pass, and everything happen that is due in it."""
        until_ms = self.now_ms + for_ms
        while self._due and self._due[0][0] <= until_ms:
            self.now_ms, _, timer = heapq.heappop(self._due)
            if not timer.cancelled:
                timer.act()
        self.now_ms = until_ms


class DriftingClock:
    """Both clocks of one machine: they run evenly, but not quite as true time does."""

    def __init__(self, timeline: Timeline, drift_ppm: int, wall_ms: int, steady_ms: int) -> None:
        self._timeline = timeline
        self._pace_ppm = PPM + drift_ppm
        self._wall_ms = wall_ms
        self._steady_ms = steady_ms
        self._wall_since_ms = self._steady_since_ms = timeline.now_ms

    def wall_ms(self) -> int:
        return self._wall_ms + self._run_ms(self._wall_since_ms)

    def steady_ms(self) -> int:
        return self._steady_ms + self._run_ms(self._steady_since_ms)

    def _run_ms(self, since_ms: int) -> int:
        return (self._timeline.now_ms - since_ms) * self._pace_ppm // PPM

    def set_forward(self, by_ms: int) -> None:
        """Somebody sets the wall clock, forward or back; the steady one runs on."""
        self._wall_ms += by_ms

    def restart(self, steady_ms: int) -> None:
        """The machine starts again: its steady clock counts anew."""
        self._steady_ms, self._steady_since_ms = steady_ms, self._timeline.now_ms

    def true_ms(self, duration_ms: int) -> int:
        """How long a duration of this clock takes in true time, rounded up."""
        return -(-duration_ms * PPM // self._pace_ppm)


class Chance:
    """What is drawn at random, for one concern: another one draws from its own source and disturbs nothing."""

    def __init__(self, seed: int, concern: str) -> None:
        self._random = random.Random(f"{seed}/{concern}")

    def between(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def pick(self, kinds: Sequence[Kind]) -> Kind:
        return self._random.choice(kinds)

    def weighted(self, kinds: Sequence[tuple[Kind, int]]) -> Kind:
        """One of these, the heavier the likelier."""
        return self._random.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]

    def happens(self, per_mille: int) -> bool:
        return self._random.randrange(1000) < per_mille

    def skewed(self, low: int, high: int) -> int:
        """Mostly near the low end, now and then far up."""
        return low + int((high - low) * self._random.random() ** 4)
