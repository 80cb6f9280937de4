"""Questions about logs that agents have not answered yet.

Place in the flow: REST ─▶ **log_requests** ─ReadLog─▶ agent ─LogPiece─▶ **log_requests** ─▶ REST. Touched by the
manager's thread alone. Invariant: a question is answered once, by the session it was put to, with no more than was
asked for; no other agent can answer it, and none can guess its number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from gpuyard.platform.chance import unguessable
from gpuyard.wire.agent_limits import answer_problem, cleaned_text
from gpuyard.wire.agents import AttemptId, Desired, LogPiece, ReadLog

REQUEST_BITS: Final = 63

Send = Callable[[Desired | ReadLog], None]
"""How an agent is told something: the one value by which its session is known."""


class SessionEndedError(Exception):
    """The session that was asked has ended."""


class _Open(msgspec.Struct):
    send: Send
    asked: ReadLog
    answer: asyncio.Future[LogPiece]


class LogRequests:
    """All of one manager."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}

    def __len__(self) -> int:
        return len(self._open)

    async def ask(self, send: Send, id: AttemptId, offset: int, limit: int, wait_ms: int, since_ms: int) -> LogPiece:
        """Return the answer; SessionEndedError where the agent goes away. Who no longer waits cancels it."""
        asked = ReadLog(unguessable(REQUEST_BITS), id, offset, limit, wait_ms, since_ms)
        answer: asyncio.Future[LogPiece] = asyncio.get_running_loop().create_future()
        self._open[asked.request] = _Open(send, asked, answer)
        try:
            send(asked)
            return await answer
        finally:
            self._open.pop(asked.request, None)

    def answered(self, send: Send, piece: LogPiece) -> None:
        """Take an answer, if that session was asked and has not answered yet."""
        found = self._open.get(piece.request)
        if found is None or found.send != send or found.answer.done():
            return
        problem = answer_problem(found.asked, piece)
        if problem:
            piece = LogPiece(piece.request, problem=problem)
        found.answer.set_result(replace(piece, problem=cleaned_text(piece.problem)))

    def session_ended(self, send: Send) -> None:
        """Nothing more will come from it."""
        for found in self._open.values():
            if found.send == send and not found.answer.done():
                found.answer.set_exception(SessionEndedError())
