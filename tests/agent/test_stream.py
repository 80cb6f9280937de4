"""The stream's own part: what it makes of a call that ends while something is being said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import grpc.aio
import pytest

from gpuyard.agent import stream
from gpuyard.wire.agents import AgentMessage, ManagerMessage, Report


class Call:
    """One that has ended, as gRPC's has: what is written is refused in its own way, what is read says why."""

    def __init__(self, why: BaseException | None) -> None:
        self._why = why

    async def write(self, message: AgentMessage) -> None:
        raise asyncio.InvalidStateError("RPC already finished.")

    async def read(self) -> object:
        await asyncio.sleep(0.01)
        if self._why is not None:
            raise self._why
        return grpc.aio.EOF


class Talk:
    async def outgoing(self) -> AsyncIterator[AgentMessage]:
        yield Report(1)

    def heard(self, message: ManagerMessage) -> None:
        raise AssertionError("nothing was said")

    def silence_s(self) -> float:
        return 30.0


def converse(why: BaseException | None) -> None:
    async def both() -> None:
        call = cast("grpc.aio.StreamStreamCall[AgentMessage, ManagerMessage]", Call(why))
        await stream._until_first_ends(stream._say(call, Talk()), stream._hear(call, Talk()))

    asyncio.run(both())


def test_a_call_that_ends_while_something_is_said_ends_the_session_and_not_the_agent() -> None:
    """The error of gRPC for it is none of those that a session ends with: the whole agent ended with it."""
    converse(None)


def test_why_it_ended_is_told_by_what_is_heard() -> None:
    with pytest.raises(TimeoutError):
        converse(TimeoutError())
