"""HTTP as uvicorn speaks it, with bounds on the head of a request: the part that is read before anybody is known.

Place in the flow: socket ─bytes─▶ **protocol** ─▶ app. The application bounds bodies; what comes before it can only be
bounded here. Invariant: a connection holds at most MAX_HEAD_BYTES and one read of a head, for at most HEAD_SECONDS.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gpuyard.service.limits import HEAD_SECONDS, MAX_HEAD_BYTES

_TOO_LARGE: Final = b"431 Request Header Fields Too Large"
_TOO_SLOW: Final = b"408 Request Timeout"


CONNECTION: Final = "gpuyard.connection"
"""What a request's scope calls the connection it came over."""
TARGET: Final = "gpuyard.target"
"""And the target of the request, as it was sent."""


class Connection:
    """The connection of a request, for an answer that must not go on."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.cycle: RequestResponseCycle | None = None
        """The request's own: others may have been sent behind it."""

    @property
    def closed(self) -> bool:
        """Nobody reads an answer any more."""
        return self._transport.is_closing()

    def break_off(self) -> None:
        """End the answer in the middle, also where its reader does not read: what is not yet sent, is not."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        self._transport.abort()


def connection_of(scope: Scope) -> Connection | None:
    """None where the request came by another way than over a connection of ours, as in a test."""
    found: Connection | None = scope.get(CONNECTION)
    return found


class BoundedHttp(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - uvicorn's own
        super().__init__(*arguments, **named)
        self._in_head = True
        self._head_bytes = 0
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._done_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        # One read may hold a head and much of its body, so it is judged by whether the head is still not over.
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(_TOO_LARGE)

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        if self._waiting is None:
            self._wait()
        super().on_message_begin()
        self.scope[CONNECTION] = Connection(self.transport)  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        self._in_head = False
        self.scope[TARGET] = self.url  # type: ignore[typeddict-unknown-key]
        self._done_waiting()
        super().on_headers_complete()
        connection = connection_of(self.scope)  # type: ignore[arg-type]
        if connection is not None:
            connection.cycle = self.cycle

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(HEAD_SECONDS, self._refuse, _TOO_SLOW)

    def _done_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _refuse(self, status: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()
