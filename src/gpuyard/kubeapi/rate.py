"""How often an API server is asked: so many requests a second, with some to spare for a burst.

Place in the flow: writer ─**rate**─▶ client. Invariant: over any span no more requests go out than the burst and what
the span allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpuyard.platform.clock import monotonic_ms


class Rate:
    """A bucket of permits that fills by itself."""

    def __init__(self, per_second: float, burst: int, now_ms: Callable[[], int] = monotonic_ms) -> None:
        self._per_ms = per_second / 1000
        self._burst = burst
        self._permits = float(burst)
        self._now_ms = now_ms
        self._at_ms = now_ms()

    async def permit(self) -> None:
        """Wait until one more request may go out."""
        while (wait_ms := self._take()) > 0:
            await asyncio.sleep(wait_ms / 1000)

    def _take(self) -> float:
        """Take a permit; else how long to wait for one."""
        now_ms = self._now_ms()
        self._permits = min(self._burst, self._permits + (now_ms - self._at_ms) * self._per_ms)
        self._at_ms = now_ms
        if self._permits >= 1:
            self._permits -= 1
            return 0
        return (1 - self._permits) / self._per_ms
