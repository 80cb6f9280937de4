"""In the place of writer and API server, for those who say things: what was said, and refusals on demand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, cast

from gpuyard.errors import KubeError
from gpuyard.kubeapi.client import KubeClient
from gpuyard.worlds.kubernetes.writer import Writer

Work = Callable[[], Awaitable[None]]


class Words:
    """Both at once; what is said waits until it is `written`."""

    def __init__(self) -> None:
        self.queue: deque[Work] = deque()
        self.merged: list[tuple[str, dict[str, Any]]] = []
        self.created: list[dict[str, Any]] = []
        self.faults: deque[KubeError] = deque()
        """What the next requests are answered with."""
        self.failed = 0

    @property
    def writer(self) -> Writer:
        return cast(Writer, self)

    @property
    def client(self) -> KubeClient:
        return cast(KubeClient, self)

    def say(self, work: Work) -> None:
        self.queue.append(work)

    async def request(self, send: Callable[[], Awaitable[bytes]]) -> bytes:
        if self.faults:
            raise self.faults.popleft()
        return await send()

    async def merge(self, path: str, body: dict[str, Any], kind: str = "") -> bytes:
        self.merged.append((path, body))
        return b""

    async def create(self, path: str, body: dict[str, Any]) -> bytes:
        self.created.append(body)
        return b""

    def write(self) -> None:
        """Everything that was said so far."""

        async def work() -> None:
            while self.queue:
                try:
                    await self.queue.popleft()()
                except KubeError:
                    self.failed += 1

        asyncio.run(work())

    # ------------------------------------------------------------------------------------------------------------ sight

    def conditions(self) -> list[tuple[str, str, str]]:
        """Pod, reason and sentence of every condition, in the order they were written."""
        found = []
        for path, body in self.merged:
            if "/pods/" in path:
                (condition,) = body["status"]["conditions"]
                found.append((path.split("/")[-2], condition["reason"], condition["message"]))
        return found

    def events(self) -> list[tuple[str, str]]:
        return [(event["regarding"]["name"], event["reason"]) for event in self.created]
