"""A proxy between a scheduler and a real API server that does what networks and servers do on bad days.

By rules it refuses, delays, loses answers, drops requests or lets them hang; streams it cuts or silences. Behind it
everything is real. It also counts: whatever a scheduler asks for is seen here.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Match = Callable[["Request"], bool]
SECONDS = 60.0


class Request:
    """What was asked, and what became of it."""

    def __init__(self, method: str, target: str, body: bytes) -> None:
        parts = urlsplit(target)
        self.method = method
        self.target = target
        self.path = parts.path
        self.query = dict(parse_qsl(parts.query))
        self.body = body
        self.at = monotonic()
        self.fate = ""
        """Its status as it was answered, or what the proxy did with it instead."""

    @property
    def watches(self) -> bool:
        return self.query.get("watch") == "true"

    @property
    def writes(self) -> bool:
        return self.method != "GET"

    def __repr__(self) -> str:
        return f"{self.method} {self.path} {self.fate}"


# --------------------------------------------------------------------------------------------------------------- rules


def part(word: str, name: str = "") -> Match:
    """Requests about a part of pods: binding, eviction, status; of pods whose name begins so."""
    return lambda asked: asked.writes and asked.path.endswith(f"/{word}") and f"/pods/{name}" in asked.path


def watching(what: str) -> Match:
    return lambda asked: asked.watches and asked.path.endswith(f"/{what}")


def listing(what: str) -> Match:
    return lambda asked: asked.method == "GET" and not asked.watches and asked.path.endswith(f"/{what}")


def anything(asked: Request) -> bool:
    return True


def writing(asked: Request) -> bool:
    return asked.writes


class Rule:
    """What is done to requests that match, for so many of them."""

    def __init__(
        self, match: Match, deed: str, *, times: int = 1_000_000, after: int = 0, status: int = 500, seconds: float = 0
    ) -> None:
        self.match = match
        self.deed = deed
        self.left = times
        self.after = after
        """So many are let through first."""
        self.status = status
        self.seconds = seconds
        self.hit = 0

    def takes(self, asked: Request) -> bool:
        if self.left <= 0 or not self.match(asked):
            return False
        if self.after > 0:
            self.after -= 1
            return False
        self.left -= 1
        self.hit += 1
        return True


def refuse(match: Match, status: int, times: int = 1_000_000) -> Rule:
    """Answered with this status, and not done."""
    return Rule(match, "refuse", times=times, status=status)


def slow(match: Match, seconds: float, times: int = 1_000_000) -> Rule:
    """Done a while later."""
    return Rule(match, "slow", times=times, seconds=seconds)


def lose(match: Match, times: int = 1_000_000) -> Rule:
    """Done, but the connection breaks before the answer."""
    return Rule(match, "lose", times=times)


def drop(match: Match, times: int = 1_000_000) -> Rule:
    """The connection breaks before it is done."""
    return Rule(match, "drop", times=times)


def hang(match: Match, times: int = 1_000_000, after: int = 0) -> Rule:
    """Neither done nor answered, and the connection stays open."""
    return Rule(match, "hang", times=times, after=after)


class Stream:
    """A watch that is open."""

    def __init__(self, asked: Request, writer: asyncio.StreamWriter) -> None:
        self.asked = asked
        self.writer = writer
        self.muted = False


# --------------------------------------------------------------------------------------------------------------- proxy


class Proxy:
    """Listens on this machine, without TLS and without credentials; behind it it is the admin."""

    def __init__(self, host: str, port: int, trust: ssl.SSLContext, token: str) -> None:
        self._host, self._port, self._trust, self._token = host, port, trust, token
        self.rules: list[Rule] = []
        self.asked: list[Request] = []
        self._under_way: list[Request] = []
        """What the server has not answered yet."""
        self.streams: set[Stream] = set()
        self._conversations: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.port = 0

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(SECONDS)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # ----------------------------------------------------------------------------------------------------- for the test

    def on(self, rule: Rule) -> Rule:
        self.rules.append(rule)
        return rule

    def calm(self) -> None:
        """No more faults; what hangs is dropped."""
        self.rules.clear()

    def watched(self, what: str) -> None:
        """Wait until somebody watches these."""
        until = monotonic() + SECONDS
        while not any(stream.asked.path.endswith(what) for stream in list(self.streams)):
            assert monotonic() < until, f"nobody watches {what}"
            sleep(0.01)

    def cut(self, what: str) -> int:
        """Break watches of these objects in the middle; of all where none are named."""
        return self._on_streams(what, lambda stream: stream.writer.transport.abort())

    def mute(self, what: str) -> int:
        """Let them stay open, and say nothing any more."""

        def mute(stream: Stream) -> None:
            stream.muted = True

        return self._on_streams(what, mute)

    def _on_streams(self, what: str, do: Callable[[Stream], None]) -> int:
        found = [stream for stream in list(self.streams) if stream.asked.path.endswith(what)]
        for stream in found:
            self._loop.call_soon_threadsafe(do, stream)
        return len(found)

    def settled(self, match: Match) -> None:
        """Wait until no such request is on its way: what it does is seen before its answer."""
        until = monotonic() + SECONDS
        while any(map(match, list(self._under_way))):
            assert monotonic() < until, f"not answered: {self._under_way}"
            sleep(0.01)

    def count(self, match: Match, fate: str = "") -> int:
        return sum(match(asked) and asked.fate.startswith(fate) for asked in list(self.asked))

    def saw(self, match: Match, count: int = 1, within_s: float = SECONDS) -> None:
        """Wait until so many such requests have come."""
        until = monotonic() + within_s
        while self.count(match) < count:
            assert monotonic() < until, f"{count} requests did not come within {within_s:g} s: {self.asked[-20:]}"
            sleep(0.01)

    # ------------------------------------------------------------------------------------------------------- its thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._meet, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        # Whoever has come at the last moment begins to be heard only now.
        self._loop.run_until_complete(asyncio.sleep(0.01))
        for task in self._conversations:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._conversations, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._conversations.add(task)
        conversation = Conversation(self, reader, writer)
        try:
            await conversation.hold()
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass
        finally:
            self._conversations.discard(task)
            conversation.end()

    @contextmanager
    def under_way(self, asked: Request) -> Iterator[None]:
        self._under_way.append(asked)
        try:
            yield
        finally:
            self._under_way.remove(asked)

    def rule_for(self, asked: Request) -> Rule | None:
        return next((rule for rule in self.rules if rule.takes(asked)), None)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port, ssl=self._trust, limit=1 << 24)

    def head_for(self, asked: Request, kind: str) -> bytes:
        lines = [
            f"{asked.method} {asked.target} HTTP/1.1",
            f"Host: {self._host}",
            f"Authorization: Bearer {self._token}",
            "Accept: application/json",
            "User-Agent: gpuyard",
            *([f"Content-Type: {kind}", f"Content-Length: {len(asked.body)}"] if asked.body else []),
        ]
        return "\r\n".join((*lines, "", "")).encode()


class Conversation:
    """One connection of a client, and the one it stands for."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._reader, self._writer = reader, writer
        self._behind: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def end(self) -> None:
        self._writer.transport.abort()
        if self._behind is not None:
            self._behind[1].transport.abort()

    async def hold(self) -> None:
        while True:
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, target, _ = head[0].split(" ")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
            body = await self._reader.readexactly(int(headers.get("content-length", 0)))
            asked = Request(method, target, body)
            self._proxy.asked.append(asked)
            if not await self._serve(asked, headers.get("content-type", "")):
                return

    async def _serve(self, asked: Request, kind: str) -> bool:
        """Whether the connection goes on."""
        rule = self._proxy.rule_for(asked)
        if rule is not None:
            asked.fate = rule.deed
            match rule.deed:
                case "refuse":
                    asked.fate = f"{rule.status} refused"
                    await self._refuse(rule.status)
                    return True
                case "drop":
                    return False
                case "hang":
                    while rule in self._proxy.rules:
                        await asyncio.sleep(0.02)
                    return False
                case "slow":
                    await asyncio.sleep(rule.seconds)
        with self._proxy.under_way(asked):
            return await self._forward(asked, kind, lost=rule is not None and rule.deed == "lose")

    async def _refuse(self, status: int) -> None:
        said = {"kind": "Status", "code": status, "reason": "Faulty", "message": "by the proxy"}
        body = json.dumps(said).encode()
        self._writer.write(
            f"HTTP/1.1 {status} No\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await self._writer.drain()

    async def _forward(self, asked: Request, kind: str, *, lost: bool) -> bool:
        if self._behind is None:
            self._behind = await self._proxy.connect()
        reader, writer = self._behind
        writer.write(self._proxy.head_for(asked, kind) + asked.body)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        asked.fate = f"{head.split(b' ', 2)[1].decode()}{' lost' if lost else ''}"
        if asked.watches:
            await self._stream(asked, head, reader)
            return False
        content = await self._content(head, reader)
        if lost:
            return False
        self._writer.write(head + content)
        await self._writer.drain()
        return True

    async def _content(self, head: bytes, reader: asyncio.StreamReader) -> bytes:
        fields = head.decode("latin-1").lower()
        if "transfer-encoding: chunked" in fields:
            pieces = []
            while True:
                piece = await _chunk(reader)
                pieces.append(piece)
                if piece.startswith(b"0\r\n"):
                    return b"".join(pieces)
        length = next(
            (line.split(":", 1)[1] for line in fields.split("\r\n") if line.startswith("content-length")), "0"
        )
        return await reader.readexactly(int(length))

    async def _stream(self, asked: Request, head: bytes, reader: asyncio.StreamReader) -> None:
        self._writer.write(head)
        if "chunked" not in head.decode("latin-1").lower():
            self._writer.write(await self._content(head, reader))
            await self._writer.drain()
            return
        stream = Stream(asked, self._writer)
        self._proxy.streams.add(stream)
        gone = asyncio.ensure_future(self._reader.read())
        chunk = asyncio.ensure_future(_chunk(reader))
        try:
            while True:
                # Whoever asked may go away while nothing is said.
                await asyncio.wait((chunk, gone), return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    return
                piece = chunk.result()
                if not stream.muted:
                    self._writer.write(piece)
                    await self._writer.drain()
                if piece.startswith(b"0\r\n") and not stream.muted:
                    return
                chunk = asyncio.ensure_future(_chunk(reader))
        finally:
            self._proxy.streams.discard(stream)
            for task in (gone, chunk):
                task.cancel()
                with suppress(asyncio.CancelledError, asyncio.IncompleteReadError, OSError):
                    await task


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readuntil(b"\r\n")
    return size + await reader.readexactly(int(size, 16) + 2)


def body_of(asked: Request) -> Any:
    return json.loads(asked.body) if asked.body else None
