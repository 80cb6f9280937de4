"""How many requests there were and are: counted for the metrics, bounded for everybody's sake.

Place in the flow: guard and streams ─▶ **traffic** ─▶ metrics. Invariant: whatever is taken is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from gpuyard.errors import RefusedError
from gpuyard.service.limits import (
    MAX_IN_FLIGHT,
    MAX_THINKING,
    MAX_THINKING_QUEUED,
    MAX_WATCHERS,
    STREAMS_PER_TOKEN,
)
from gpuyard.service.problems import ProblemReason
from gpuyard.service.stats import Histogram


class Traffic:
    """The requests of one run of the service."""

    def __init__(self, streams_per_token: int = STREAMS_PER_TOKEN) -> None:
        self.streams_per_token = streams_per_token
        self.in_flight = 0
        self.answered: dict[tuple[str, int], int] = {}
        """(operation, status) → how often."""
        self.times: dict[str, Histogram] = {}
        self.watchers: dict[str, int] = {}
        """Token → its open streams."""
        self.thinking_queued = 0
        self._thinking = asyncio.Semaphore(MAX_THINKING)

    @contextmanager
    def request(self) -> Iterator[None]:
        if self.in_flight >= MAX_IN_FLIGHT:
            raise _busy(f"{MAX_IN_FLIGHT} requests are being answered")
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def done(self, operation: str, status: int, took_ms: float) -> None:
        self.answered[operation, status] = self.answered.get((operation, status), 0) + 1
        self.times.setdefault(operation, Histogram()).add(took_ms)

    @property
    def watching(self) -> int:
        return sum(self.watchers.values())

    def open_stream(self, token: str) -> Callable[[], None]:
        """A request becomes a stream: it counts as a watcher, and no longer as in flight, until it is given back."""
        mine = self.watchers.get(token, 0)
        if self.watching >= MAX_WATCHERS:
            raise _busy(f"{MAX_WATCHERS} streams are open")
        if mine >= self.streams_per_token:
            raise _busy(f"{self.streams_per_token} streams of this token are open")
        self.watchers[token] = mine + 1
        self.in_flight -= 1
        return lambda: self._close_stream(token)

    def _close_stream(self, token: str) -> None:
        self.in_flight += 1
        self.watchers[token] -= 1
        if not self.watchers[token]:
            del self.watchers[token]

    @asynccontextmanager
    async def thinking(self) -> AsyncIterator[None]:
        """A turn for a question to the scheduler, which takes a while."""
        if self.thinking_queued >= MAX_THINKING_QUEUED:
            raise _busy("too many questions to the scheduler wait for their turn")
        self.thinking_queued += 1
        try:
            async with self._thinking:
                yield
        finally:
            self.thinking_queued -= 1


def _busy(what: str) -> RefusedError:
    return RefusedError(ProblemReason.BUSY, what, fix="try again in a moment")
