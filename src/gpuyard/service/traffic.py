"""How many requests there were and are: counted for the metrics, bounded and shared fairly for everybody's sake.

Place in the flow: app, handlers and streams ─▶ **traffic** ─▶ metrics. Expensive work has turns of three kinds, each
shared between users (`turns.py`); bodies are read in a thread of their own. Invariant: whatever is taken is given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from gpuyard.service.limits import (
    MAX_BODIES_BYTES,
    MAX_IN_FLIGHT,
    MAX_READING,
    MAX_SEARCHING,
    MAX_THINKING,
    MAX_WATCHERS,
    STREAMS_PER_TOKEN,
)
from gpuyard.service.stats import Histogram
from gpuyard.service.turns import Shares, Turns, busy

Result = TypeVar("Result")


class InFlight:
    """One request that is being answered, and what is held of its body."""

    def __init__(self, user: str, bodies: Shares) -> None:
        self.user = user
        self._bodies = bodies
        self._bytes = 0

    def hold(self, count: int) -> None:
        """Count bytes of the body that have come in; refused where this user holds too many."""
        self._bodies.take(self.user, count)
        self._bytes += count

    def let_go(self) -> None:
        self._bodies.give_back(self.user, self._bytes)
        self._bytes = 0


class Traffic:
    """The requests of one run of the service."""

    def __init__(self, streams_per_token: int = STREAMS_PER_TOKEN) -> None:
        self.streams_per_token = streams_per_token
        self.answered: dict[tuple[str, int], int] = {}
        """(operation, status) → how often."""
        self.times: dict[str, Histogram] = {}
        self.watchers: dict[str, int] = {}
        """Token → its open streams."""
        self.reading = Turns(MAX_READING, "a large body or list")
        self.thinking = Turns(MAX_THINKING, "the scheduler")
        self.searching = Turns(MAX_SEARCHING, "a search of the log")
        self._requests = Shares(MAX_IN_FLIGHT, "requests at once")
        self._bodies = Shares(MAX_BODIES_BYTES, "bytes of bodies")
        self._reader = ThreadPoolExecutor(1, "gpuyard-read")

    @property
    def in_flight(self) -> int:
        return self._requests.taken

    @contextmanager
    def request(self, user: str) -> Iterator[InFlight]:
        """Count a request of a user until it is answered; one without a credential is of the user with no name."""
        self._requests.take(user, 1)
        request = InFlight(user, self._bodies)
        try:
            yield request
        finally:
            request.let_go()
            self._requests.give_back(user, 1)

    async def apart(self, user: str, work: Callable[[], Result]) -> Result:
        """Run pure work on values that nobody changes in the reader's thread, when it is this user's turn."""
        async with self.reading.turn(user):
            return await asyncio.get_running_loop().run_in_executor(self._reader, work)

    def done(self, operation: str, status: int, took_ms: float) -> None:
        self.answered[operation, status] = self.answered.get((operation, status), 0) + 1
        self.times.setdefault(operation, Histogram()).add(took_ms)

    @property
    def watching(self) -> int:
        return sum(self.watchers.values())

    def open_stream(self, token: str, user: str) -> Callable[[], None]:
        """A request becomes a stream: it counts as a watcher, and no longer as in flight, until it is given back."""
        mine = self.watchers.get(token, 0)
        if self.watching >= MAX_WATCHERS:
            raise busy(f"{MAX_WATCHERS} streams are open")
        if mine >= self.streams_per_token:
            raise busy(f"{self.streams_per_token} streams of this token are open")
        self.watchers[token] = mine + 1
        self._requests.give_back(user, 1)
        return lambda: self._close_stream(token, user)

    def _close_stream(self, token: str, user: str) -> None:
        self._requests.resume(user, 1)
        self.watchers[token] -= 1
        if not self.watchers[token]:
            del self.watchers[token]
