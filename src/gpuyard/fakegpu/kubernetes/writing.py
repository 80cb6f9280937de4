"""Work on objects of the cluster, by name: a few at a time, and again when it fails or was marked meanwhile.

Place in the flow: updater ─mark─▶ **writing** ─▶ node writer, map writer ─▶ API server. Invariants: of one name there
is never more than one piece of work under way; what is marked is done in the end, however often the API server fails.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from gpuyard.errors import KubeError
from gpuyard.platform.chance import some_of

FIRST_RETRY_MS: Final = 500
MOST_RETRY_MS: Final = 30_000

Do = Callable[[str], Awaitable[int]]
"""Do what is to be done about a name now; after so many milliseconds it is to be looked at again, if that is not 0."""
Refused = Callable[[str, KubeError], Awaitable[None]]


class Writing:
    """A queue of names, and workers who take care of them."""

    def __init__(self, do: Do, refused: Refused, workers: int) -> None:
        self._do = do
        self._refused = refused
        self._workers = workers
        self._queue: deque[str] = deque()
        self._marked: set[str] = set()
        self._busy: set[str] = set()
        self._failed: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._some = asyncio.Event()

    def mark(self, names: Iterable[str]) -> None:
        """There is something to do about these."""
        for name in names:
            if name not in self._marked:
                self._marked.add(name)
                self._queue.append(name)
        if self._queue:
            self._some.set()

    @property
    def is_idle(self) -> bool:
        return not self._marked and not self._busy and not self._timers

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            name = await self._next()
            self._busy.add(name)
            try:
                again_ms = await self._do(name)
                self._failed.pop(name, None)
            except KubeError as error:
                await self._refused(name, error)
                again_ms = self._pause_ms(name)
            self._busy.discard(name)
            if again_ms:
                self._later(name, again_ms)
            self._some.set()

    async def _next(self) -> str:
        while True:
            for _ in range(len(self._queue)):
                name = self._queue.popleft()
                if name not in self._busy:
                    self._marked.discard(name)
                    return name
                self._queue.append(name)
            self._some.clear()
            await self._some.wait()

    def _later(self, name: str, after_ms: int) -> None:
        if name not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[name] = loop.call_later(after_ms / 1000, self._wake, name)

    def _wake(self, name: str) -> None:
        del self._timers[name]
        self.mark([name])

    def _pause_ms(self, name: str) -> int:
        failed = self._failed[name] = self._failed.get(name, 0) + 1
        return some_of(min(FIRST_RETRY_MS << min(failed, 16), MOST_RETRY_MS))
