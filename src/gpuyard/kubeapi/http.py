"""HTTP/1.1 to one server, over connections that are kept: whole answers, and answers that never end.

Place in the flow: client ─request─▶ **http** ─▶ API server. Written because of a measurement: a scheduler that binds
hundreds of pods a second beside its API server has a tenth of a millisecond for a request, and a general library takes
ten times that. Only what the client needs: no redirects, no proxies, no cookies, no compression.
Invariants: every wait has an end; a connection on which anything went wrong is not used again; whoever reads an endless
answer too slowly makes the server wait, not this process grow.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import httptools
import msgspec

MAX_CONNECTIONS: Final = 512
MAX_ANSWER_BYTES: Final = 1 << 30
HIGH_WATER_BYTES: Final = 4 << 20
"""So much of an endless answer may lie unread before the server has to wait."""
MAX_HEAD_BYTES: Final = 64 << 10


class HttpError(Exception):
    """No answer, or none that can be understood."""


class SilenceError(HttpError):
    """Nothing was said for too long."""


class StaleError(HttpError):
    """A kept connection was closed before anything of an answer came; mostly the server has not read the request."""


class Answer(msgspec.Struct):
    """What came back; of its head only what somebody looks at."""

    status: int
    retry_after: str = ""
    content: bytes = b""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class Server(msgspec.Struct, frozen=True):
    """Where requests go."""

    host: str
    port: int
    trust: ssl.SSLContext | None
    name: str
    """What the certificate must be for."""
    prefix: str
    """What stands before every path."""
    host_header: str

    @classmethod
    def of(cls, url: str, trust: ssl.SSLContext | bool, name: str) -> Server:
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        host = parts.hostname or ""
        port = parts.port or (443 if tls else 80)
        context = trust if isinstance(trust, ssl.SSLContext) and tls else None
        return cls(host, port, context, name or host, parts.path.rstrip("/"), parts.netloc.rpartition("@")[2])


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._head: asyncio.Future[Answer] | None = None
        self._retry_after = ""
        self._head_bytes = 0
        self.pieces: deque[bytes] = deque()
        self._held_bytes = 0
        self._news: asyncio.Future[None] | None = None
        self._paused = False
        self._done = True
        self._error: HttpError | None = None
        self.used = False
        self._answered = False
        self.lost = asyncio.Event()
        """Set once nothing of it is left."""

    @property
    def is_open(self) -> bool:
        transport = self._transport
        return transport is not None and not transport.is_closing() and self._error is None and self._done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -------------------------------------------------------------------------------------------------------- requests

    def send(self, request: bytes) -> asyncio.Future[Answer]:
        """The head of the answer, when it comes."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._retry_after, self._head_bytes, self._held_bytes = "", 0, 0
        self.pieces.clear()
        self._done = self._answered = False
        self._head = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._head

    async def more(self) -> bool:
        """Wait until there is another piece; False at the end of the answer."""
        while not self.pieces:
            if self._error is not None:
                raise self._error
            if self._done:
                return False
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        return True

    def take(self) -> bytes:
        """All that has come so far."""
        piece = b"".join(self.pieces) if len(self.pieces) > 1 else self.pieces[0]
        self.pieces.clear()
        self._held_bytes = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return piece

    # -------------------------------------------------------------------------------------------------------- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(HttpError(f"the answer is not HTTP: {error}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()
        if self._done:
            self._error = self._error or HttpError("the connection was closed")
        elif self.used and not self._answered:
            self._fail(StaleError("the connection was closed"))
        else:
            self._fail(HttpError(f"the connection broke: {exc}" if exc else "the connection was closed in between"))

    # ----------------------------------------------------------------------------------------------------------- parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise httptools.HttpParserError("its head is too large")
        if name.lower() == b"retry-after":
            self._retry_after = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._head is not None and not self._head.done():
            self._head.set_result(Answer(self._parser.get_status_code(), self._retry_after))

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)
        self._held_bytes += len(body)
        if self._held_bytes > HIGH_WATER_BYTES and self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        self._done = True
        if not self._parser.should_keep_alive():
            self._error = HttpError("the server wants no further request here")
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _fail(self, error: HttpError) -> None:
        self._error = error
        if self._head is not None and not self._head.done():
            self._head.set_exception(error)
        self._wake()


class Http:
    """Requests to one server."""

    def __init__(self, server: Server, headers: str, connect_s: float, answer_s: float) -> None:
        self._server = server
        self._headers = f"Host: {server.host_header}\r\n{headers}"
        self._connect_s = connect_s
        self._answer_s = answer_s
        self._idle: list[_Connection] = []
        self._permits = asyncio.Semaphore(MAX_CONNECTIONS)
        self._streams: set[_Connection] = set()
        self._closed = False

    async def close(self) -> None:
        """Wait for their ends, too: whoever closes the event loop next would leave sockets behind."""
        self._closed = True
        connections = (*self._idle, *self._streams)
        self._idle.clear()
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.lost.wait()

    async def send(self, method: str, target: str, headers: str, content: bytes | None) -> Answer:
        """One request and its whole answer."""
        request = self._written(method, target, headers, content)
        async with self._permits:
            while True:
                connection = await self._connection()
                try:
                    async with asyncio.timeout(self._answer_s):
                        answer = await self._exchange(connection, request)
                except StaleError:
                    # Whether it was read cannot be told, so only what changes nothing is sent again.
                    if method != "GET":
                        raise
                    continue
                except TimeoutError:
                    raise SilenceError(f"no answer within {self._answer_s:g} s") from None
                finally:
                    self._put_back(connection)
                return answer

    @asynccontextmanager
    async def stream(
        self, target: str, headers: str, silence_s: float
    ) -> AsyncIterator[tuple[Answer, AsyncIterator[bytes]]]:
        """An answer as it comes, on a connection of its own."""
        connection = await self._connected()
        self._streams.add(connection)
        try:
            async with asyncio.timeout(self._answer_s):
                answer = await connection.send(self._written("GET", target, headers, None))
            yield answer, self._pieces(connection, silence_s)
        except TimeoutError:
            raise SilenceError(f"no answer within {self._answer_s:g} s") from None
        finally:
            self._streams.discard(connection)
            connection.close()

    async def _pieces(self, connection: _Connection, silence_s: float) -> AsyncIterator[bytes]:
        while True:
            if not connection.pieces:
                try:
                    async with asyncio.timeout(silence_s):
                        if not await connection.more():
                            return
                except TimeoutError:
                    raise SilenceError(f"nothing for {silence_s:g} s") from None
            yield connection.take()

    async def _exchange(self, connection: _Connection, request: bytes) -> Answer:
        answer = await connection.send(request)
        pieces: list[bytes] = []
        size = 0
        while await connection.more():
            pieces.append(connection.take())
            size += len(pieces[-1])
            if size > MAX_ANSWER_BYTES:
                raise HttpError(f"the answer is larger than {MAX_ANSWER_BYTES >> 20} MiB")
        answer.content = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return answer

    async def _connection(self) -> _Connection:
        """The one used last, which is the least likely to have been closed meanwhile."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                connection.used = True
                return connection
        return await self._connected()

    async def _connected(self) -> _Connection:
        server = self._server
        self._check_open()
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    _Connection,
                    server.host,
                    server.port,
                    ssl=server.trust,
                    server_hostname=server.name if server.trust else None,
                )
        except TimeoutError:
            raise SilenceError(f"no connection within {self._connect_s:g} s") from None
        except OSError as error:
            raise HttpError(error.strerror or str(error)) from None
        try:
            self._check_open()
        except HttpError:
            connection.close()
            raise
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise HttpError("it is closed")

    def _put_back(self, connection: _Connection) -> None:
        if connection.is_open and not self._closed:
            self._idle.append(connection)
        else:
            connection.close()

    def _written(self, method: str, target: str, headers: str, content: bytes | None) -> bytes:
        length = f"Content-Length: {len(content)}\r\n" if content is not None else ""
        head = f"{method} {self._server.prefix}{target} HTTP/1.1\r\n{self._headers}{headers}{length}\r\n"
        return head.encode("latin-1") + (content or b"")
