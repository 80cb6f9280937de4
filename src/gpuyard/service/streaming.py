"""Answers that are sent piece by piece: while their reader is there, and while it may have them.

Place in the flow: handler ─Answer─▶ **streaming** ─ASGI─▶ the client. Where a stream is ended from this side, its last
message says why if its format has room for one; else the connection is broken off, so that nobody takes it for whole.
Invariant: no piece is sent to a caller who would not be given it by a new request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from gpuyard.errors import RefusedError
from gpuyard.service.call import Parting
from gpuyard.service.limits import PARTING_SECONDS
from gpuyard.service.problems import ProblemReason, problem
from gpuyard.service.protocol import connection_of
from gpuyard.service.rights import Rights


class GuardedStream(StreamingResponse):
    """A stream under the rights of its call. It ends what it reads from when it ends, not some time later."""

    def __init__(
        self,
        stream: AsyncIterator[bytes],
        rights: Rights,
        parting: Parting | None,
        status: int,
        headers: Mapping[str, str],
        media: str,
    ) -> None:
        super().__init__(rights.checked(stream), status, headers, media)
        self._source = stream
        self._rights = rights
        self._parting = parting
        self._break_off: Callable[[], object] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = connection_of(scope)
        self._break_off = None if connection is None else connection.break_off
        await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        try:
            async with self._rights.held():
                await super().stream_response(send)
        except RefusedError as refusal:
            await self._part(refusal, send)
        finally:
            for stream in (self.body_iterator, self._source):
                close = getattr(stream, "aclose", None)
                if close is not None:
                    await close()

    async def _part(self, refusal: RefusedError, send: Send) -> None:
        """Say why, if that can be said and is heard at once; else break off."""
        if self._parting is not None:
            found = problem(ProblemReason(refusal.reason), refusal.what, fix=refusal.fix, field=refusal.field)
            last = {"type": "http.response.body", "body": self._parting(found), "more_body": False}
            try:
                async with asyncio.timeout(PARTING_SECONDS):
                    await send(last)
                return
            except TimeoutError:
                pass  # A reader who does not read is not told.
        if self._break_off is None:
            raise refusal
        self._break_off()
