"""When which job must be looked at again, although nothing is heard of it.

Place in the flow: beside world. Invariant: of one moment and one job there is one alarm, however often it is set, so
that a large gang which is looked at again and again fills no memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator


class Alarms:
    """Moments and jobs, the next one first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._there: set[tuple[int, str]] = set()

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def set(self, moment_ms: int, job: str, now_ms: int) -> None:
        """What is past is no alarm."""
        alarm = (moment_ms, job)
        if moment_ms > now_ms and alarm not in self._there:
            self._there.add(alarm)
            heapq.heappush(self._heap, alarm)

    def due(self, now_ms: int) -> Iterator[str]:
        """The jobs whose time has come; they are taken away."""
        while self._heap and self._heap[0][0] <= now_ms:
            alarm = heapq.heappop(self._heap)
            self._there.discard(alarm)
            yield alarm[1]
