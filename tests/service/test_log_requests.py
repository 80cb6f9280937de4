"""A question about a log is answered once, by the session it was put to, with no more than was asked for."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from msgspec.structs import replace

from gpuyard.service.log_requests import LogRequests, Send
from gpuyard.wire.agents import AttemptId, LogPiece, ReadLog


async def _piece_of(requests: LogRequests, send: Any, *pieces: LogPiece, offset: int = 0) -> LogPiece:
    asking = asyncio.create_task(requests.ask(send, AttemptId("1", 0, 1), offset, 10, 0, 0))
    await asyncio.sleep(0)
    (number,) = requests._open
    for piece in pieces:
        requests.answered(send, replace(piece, request=number))
    return await asking


@pytest.mark.parametrize(
    ("piece", "offset", "problem"),
    [
        (LogPiece(0, 5, b"abc", 8), 5, ""),
        (LogPiece(0, 7, b"abc", 10), 5, ""),
        (LogPiece(0, 3, b"", 3), 5, ""),
        (LogPiece(0, 4, b"abc", 10), 5, "begins at 4"),
        (LogPiece(0, 5, b"a" * 11, 16), 5, "11 bytes"),
        (LogPiece(0, 5, b"abc", 8), -3, ""),
    ],
)
def test_an_answer_fits_the_question(piece: LogPiece, offset: int, problem: str) -> None:
    found = asyncio.run(_piece_of(LogRequests(), lambda message: None, piece, offset=offset))
    assert problem in found.problem
    assert bool(found.problem) is bool(problem)


def test_numbers_of_questions_are_no_row() -> None:
    async def numbers() -> list[int]:
        seen: list[ReadLog] = []
        requests = LogRequests()
        asks = [
            asyncio.create_task(requests.ask(cast(Send, seen.append), AttemptId("1", 0, 1), 0, 1, 0, 0))
            for _ in range(20)
        ]
        await asyncio.sleep(0)
        for ask in asks:
            ask.cancel()
        await asyncio.gather(*asks, return_exceptions=True)
        assert len(requests) == 0
        return [one.request for one in seen]

    found = asyncio.run(numbers())
    assert len(set(found)) == 20
    assert max(found) > 1 << 55
    assert sorted(found) != found


def test_only_the_first_answer_counts_and_only_of_the_session_that_was_asked() -> None:
    def asked(message: object) -> None: ...

    def other(message: object) -> None: ...

    async def first() -> LogPiece:
        requests = LogRequests()
        asking = asyncio.create_task(requests.ask(asked, AttemptId("1", 0, 1), 0, 10, 0, 0))
        await asyncio.sleep(0)
        (number,) = requests._open
        requests.answered(other, LogPiece(number, 0, b"forged", 6))
        requests.answered(asked, LogPiece(number, 0, b"true", 4, problem="\x1b[2J"))
        requests.answered(asked, LogPiece(number, 0, b"again", 5))
        requests.session_ended(asked)
        return await asking

    found = asyncio.run(first())
    assert found.data == b"true"
    assert found.problem.isprintable()
