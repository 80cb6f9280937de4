"""An API server that answers by a script: what a real one does only by accident, on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from gpuyard.kubeapi.access import Access
from gpuyard.kubeapi.client import KubeClient

HANG = object()
"""Says nothing more, and does not end."""
CUT = object()
"""Ends in the middle."""


class Asked:
    def __init__(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        parts = urlsplit(target)
        self.method = method
        self.path = parts.path
        self.query = dict(parse_qsl(parts.query))
        self.headers = headers
        self.body: Any = json.loads(body) if body else None

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "true"


class Answer:
    """A status and an object, or a stream of them."""

    def __init__(self, status: int = 200, *parts: Any, stream: bool = False, headers: str = "") -> None:
        self.status = status
        self.parts = parts
        self.stream = stream
        self.headers = headers


def listed(*objects: dict[str, Any], version: str = "1", more: str = "") -> Answer:
    return Answer(200, {"metadata": {"resourceVersion": version, "continue": more}, "items": list(objects)})


def watched(*events: Any) -> Answer:
    return Answer(200, *events, stream=True)


def refused(status: int, reason: str = "", message: str = "no", headers: str = "") -> Answer:
    body = {"kind": "Status", "reason": reason, "message": message, "code": status}
    return Answer(status, body, headers=headers)


def event(kind: str, name: str, version: str) -> dict[str, Any]:
    return {"type": kind, "object": an_object(name, version)}


def an_object(name: str, version: str = "1") -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": version}, "other": {"deep": [1, 2.5, None]}}


LAST_TURNS = 10
"""Of the event loop, until whoever has just connected is being listened to."""
NOTHING = Answer(0)
"""No answer at all: the connection is closed."""


class Script:
    """Answers in their order; the last one again and again."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.asked: list[Asked] = []

    def next(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


@asynccontextmanager
async def serving(script: Script, **access: Any) -> AsyncIterator[KubeClient]:
    """A client of a server that follows the script."""

    conversations: set[asyncio.Task[None]] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        conversations.add(task)
        task.add_done_callback(conversations.discard)
        try:
            while True:
                await _answer(script.next(await _request(reader)), writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(converse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = KubeClient(Access(server=f"http://127.0.0.1:{port}", **access))
    try:
        yield client
    finally:
        await client.close()
        server.close()
        # A loop that is closed before all of them have ended leaves their sockets behind, as do those that never began.
        for _ in range(LAST_TURNS):
            await asyncio.sleep(0)
        for task in conversations:
            task.cancel()
        await asyncio.gather(*conversations, return_exceptions=True)


async def _request(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(method, target, headers, body)


async def _answer(answer: Answer, writer: asyncio.StreamWriter) -> None:
    if answer is NOTHING:
        raise ConnectionError
    framing = "Transfer-Encoding: chunked\r\n"
    writer.write(f"HTTP/1.1 {answer.status} X\r\n{answer.headers}{framing}\r\n".encode())
    for part in answer.parts:
        if part is HANG:
            await writer.drain()
            await asyncio.sleep(60)
        if part is CUT:
            raise ConnectionError
        line = part if isinstance(part, bytes) else json.dumps(part).encode() + (b"\n" if answer.stream else b"")
        writer.write(b"%x\r\n%b\r\n" % (len(line), line))
    writer.write(b"0\r\n\r\n")
    await writer.drain()
