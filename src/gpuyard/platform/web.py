"""A small HTTP server for pages that are made while they are sent.

Place in the flow: exporter ─pieces of text─▶ **web** ─▶ whoever scrapes. Invariant: no client, slow, silent or hostile,
can hold up the model: every wait has an end, and between two pieces everybody else has a turn.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import msgspec

from gpuyard.errors import InputError

MAX_HEAD_BYTES: Final = 16 << 10
MAX_CONNECTIONS: Final = 64
REQUEST_SECONDS: Final = 10.0
SEND_SECONDS: Final = 30.0
CLOSE_SECONDS: Final = 2.0
PLAIN: Final = "text/plain; charset=utf-8"

_REASONS: Final = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Unavailable"}


class Page(msgspec.Struct, frozen=True):
    """One answer. Its body is taken piece by piece, while it is sent."""

    body: Iterable[str]
    status: int = 200
    content_type: str = PLAIN


Pages = Callable[[str, Mapping[str, str]], Page]
"""The page at a path, with what stood behind its question mark."""


class _Request(msgspec.Struct, frozen=True):
    method: str
    target: str
    version: str


class WebServer:
    """Pages on one address, until it is closed."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self, host: str, port: int) -> int:
        """Listen; the answer is the port, which the system chooses if it was 0."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=MAX_HEAD_BYTES)
        except OSError as error:
            raise _not_listening(host, port, error) from None
        listening: int = self._server.sockets[0].getsockname()[1]
        return listening

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._server.wait_closed(), CLOSE_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            # A client that goes away, or is too slow, or is here at our end, is left alone: it will ask again.
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._answer(reader, writer)
        finally:
            self._open -= 1
            writer.close()
            with suppress(OSError, TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), SEND_SECONDS)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open > MAX_CONNECTIONS:
            await _send(writer, "HTTP/1.1", Page(["too many connections\n"], 503), with_body=True)
            return
        try:
            request = _parse(await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), REQUEST_SECONDS))
        except (asyncio.LimitOverrunError, ValueError):
            await _send(writer, "HTTP/1.1", Page(["not an HTTP request\n"], 400), with_body=True)
            return
        await _send(writer, request.version, self._page(request), with_body=request.method != "HEAD")

    def _page(self, request: _Request) -> Page:
        if request.method not in ("GET", "HEAD"):
            return Page(["only GET and HEAD\n"], 405)
        address = urlsplit(request.target)
        return self._pages(address.path, dict(parse_qsl(address.query)))


def _parse(head: bytes) -> _Request:
    method, target, version = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(version)
    return _Request(method, target, version)


async def _send(writer: asyncio.StreamWriter, version: str, page: Page, *, with_body: bool) -> None:
    """An old client gets the text up to the end of the connection; a newer one sees whether it came whole."""
    chunked = version != "HTTP/1.0"
    lines = [
        f"{version} {page.status} {_REASONS[page.status]}",
        f"Content-Type: {page.content_type}",
        "Connection: close",
        *(["Transfer-Encoding: chunked"] if chunked else []),
    ]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))
    if with_body:
        for piece in page.body:
            if not (content := piece.encode("utf-8")):
                continue  # An empty chunk would end the answer.
            writer.write(b"%X\r\n%b\r\n" % (len(content), content) if chunked else content)
            await asyncio.wait_for(writer.drain(), SEND_SECONDS)
            await asyncio.sleep(0)
        if chunked:
            writer.write(b"0\r\n\r\n")
    await asyncio.wait_for(writer.drain(), SEND_SECONDS)


def _not_listening(host: str, port: int, error: OSError) -> InputError:
    if error.errno == errno.EADDRINUSE:
        fix = "end what listens there, or choose another with --port (0 takes any free one)"
        return InputError(f"port {port} of {host} is taken", fix=fix)
    why = error.strerror or str(error)
    return InputError(f"cannot listen on port {port} of {host}: {why}", fix="choose another with --host and --port")
