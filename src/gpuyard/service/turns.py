"""Fair shares of what is scarce: turns for expensive work, and amounts that callers hold for a while.

Place in the flow: handlers ─user─▶ **turns** ─admitted or refused─▶ the work. A caller is a user, whatever tokens and
connections it uses. Invariant: a caller that asks for little is served soon, whatever the others ask for, and whatever
is taken is given back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from gpuyard.errors import RefusedError
from gpuyard.service.limits import MAX_QUEUED_PER_USER
from gpuyard.service.problems import ProblemReason

SHARE: Final = 4
"""A user may hold a quarter of what is free: twenty who hold all they can leave something for the next."""


class Turns:
    """Admits expensive work, a few at a time: next is the user who has used the least time (start-time fair queuing).

    Time is virtual: it goes on with the turns that begin, so a user who was away has nothing saved up, and a user who
    has had a long turn waits until the others have had as much.
    """

    def __init__(self, slots: int, what: str, queued_per_user: int = MAX_QUEUED_PER_USER) -> None:
        self._slots = self._free = slots
        self._what = what
        self._queued_per_user = queued_per_user
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self._now = 0.0
        self._begins: dict[str, float] = {}
        """The virtual time at which the next turn of a user begins."""

    @property
    def queued(self) -> int:
        return sum(map(len, self._queues.values()))

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[None]:
        """Wait for a turn, and give it back at the end; refused where too many of this user wait already."""
        if self._free and not self._queues:
            self._begin(user)
        else:
            await self._queue(user)
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            yield
        finally:
            self._end(user, clock() - began)

    async def _queue(self, user: str) -> None:
        queue = self._queues.get(user, deque())
        if len(queue) >= self._queued_per_user:
            raise busy(f"{self._queued_per_user} of your requests wait for {self._what}")
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(admitted)
        self._queues[user] = queue
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.cancelled():
                self._leave(user, admitted)
            else:
                self._end(user, 0.0)
            raise

    def _leave(self, user: str, admitted: asyncio.Future[None]) -> None:
        self._queues[user].remove(admitted)
        if not self._queues[user]:
            del self._queues[user]

    def _begin(self, user: str) -> None:
        self._free -= 1
        self._now = self._begins[user] = max(self._now, self._begins.get(user, 0.0))

    def _end(self, user: str, took: float) -> None:
        self._free += 1
        self._begins[user] = self._begins.get(user, self._now) + took
        while self._free and self._queues:
            self._admit_next()
        if self._free == self._slots:
            # Nobody was kept waiting by anybody: all begin from nothing again.
            self._now, self._begins = 0.0, {}

    def _admit_next(self) -> None:
        """Of users who have used as little, the one who began to wait first."""
        user = min(self._queues, key=lambda name: max(self._now, self._begins.get(name, 0.0)))
        admitted = self._queues[user][0]
        self._leave(user, admitted)
        self._begin(user)
        admitted.set_result(None)


class Shares:
    """A bounded amount that users hold parts of: each at most a quarter of what is still free.

    One user alone gets a fifth of it; what each further user may hold is less, and something is left for the next.
    """

    def __init__(self, capacity: int, what: str) -> None:
        self.capacity = capacity
        self.taken = 0
        self._what = what
        self._by_user: dict[str, int] = {}

    def take(self, user: str, amount: int) -> None:
        held = self._by_user.get(user, 0)
        if (held + amount) * SHARE > self.capacity - self.taken:
            raise busy(f"your share of {self.capacity} {self._what} is used up")
        self.resume(user, amount)

    def resume(self, user: str, amount: int) -> None:
        """Take back what was lent out for a while, free or not."""
        self.taken += amount
        self._by_user[user] = self._by_user.get(user, 0) + amount

    def give_back(self, user: str, amount: int) -> None:
        self.taken -= amount
        left = self._by_user.pop(user, 0) - amount
        if left:
            self._by_user[user] = left


def busy(what: str) -> RefusedError:
    return RefusedError(ProblemReason.BUSY, what, fix="try again in a moment")
