"""What the manager counts about itself while it runs. Nothing here is kept over a restart.

Place in the flow: the loop, the agents' sessions and the journal count ─▶ **stats** ─▶ metrics, status.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import msgspec

from gpuyard.worlds.standalone.events import ClockJumped, Event, ScheduleSkipped, TasksStopped

LATENCY_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
"""Upper bounds of the buckets of every histogram of times."""

AHEAD: Final = "ahead"
BACK: Final = "back"


class Histogram(msgspec.Struct):
    """How often something took how long."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_MS) + 1))
    """One per bound, and one for what took longer."""
    total_ms: float = 0.0

    def add(self, took_ms: float) -> None:
        self.counts[bisect_left(LATENCY_BOUNDS_MS, took_ms)] += 1
        self.total_ms += took_ms

    @property
    def count(self) -> int:
        return sum(self.counts)


class Stats(msgspec.Struct):
    """Counters of one run of the manager."""

    started_at_ms: int = 0
    cycles: int = 0
    last_cycle_ms: float = 0.0
    cycle_times: Histogram = msgspec.field(default_factory=Histogram)
    evictions: dict[str, int] = {}
    """By reason token, since the start."""
    skipped: dict[str, int] = {}
    """Planned times of schedules without a run, by reason, since the start."""
    clock_jumps: dict[str, int] = {}
    """Of the wall clock, by direction, since the start."""
    journal_times: Histogram = msgspec.field(default_factory=Histogram)
    """From an event's birth to the moment it is durable."""
    journal_waiting: int = 0
    """Events that are not durable yet."""
    agents: int = 0
    """Agents whose stream is open."""
    agent_trouble: str = ""
    """Why the agent of this machine, which the manager starts itself, does not run; empty: it does."""

    pool: str = ""
    """Where the pool is reached over gRPC: HOST:PORT; empty: nowhere."""

    def count(self, event: Event) -> None:
        match event:
            case ClockJumped():
                self.clock_jumped(event.by_ms)
            case ScheduleSkipped():
                self.skipped[event.why] = self.skipped.get(event.why, 0) + event.count
            case TasksStopped() if event.cycle:
                for one in event.tasks:
                    self.evicted(str(one.why.token) if one.why else "", 1)

    def cycle_done(self, took_ms: float) -> None:
        self.cycles += 1
        self.last_cycle_ms = took_ms
        self.cycle_times.add(took_ms)

    def clock_jumped(self, by_ms: int) -> None:
        direction = AHEAD if by_ms > 0 else BACK
        self.clock_jumps[direction] = self.clock_jumps.get(direction, 0) + 1

    def evicted(self, token: str, tasks: int) -> None:
        self.evictions[token] = self.evictions.get(token, 0) + tasks
