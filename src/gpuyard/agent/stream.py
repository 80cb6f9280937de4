"""The one stream to the manager: mutual TLS, whole messages, and coming back when it breaks.

Place in the flow: daemon ◀─messages─▶ **stream** ◀─gRPC─▶ manager. It knows nothing of what the messages mean.
Invariant: a session ends as soon as either side is silent, refuses or breaks; whoever keeps one open starts the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, cast

import grpc
import grpc.aio
import msgspec

from gpuyard.agent.membership import CA, CERTIFICATE, KEY
from gpuyard.errors import AgentError
from gpuyard.platform.chance import between
from gpuyard.wire.agents import MAX_MESSAGE_BYTES, SESSION, AgentMessage, ManagerMessage, decode_manager, encode

FIRST_PAUSE_MS: Final = 100
LONGEST_PAUSE_MS: Final = 5_000
CLOSE_S: Final = 1.0

OPTIONS: Final = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A proxy of the environment is for the web, not for the manager.
    ("grpc.enable_http_proxy", 0),
    # We come back at our own pace.
    ("grpc.enable_retries", 0),
)


class Talk(Protocol):
    """One session, as the daemon sees it."""

    def outgoing(self) -> AsyncIterator[AgentMessage]:
        """What to say, beginning with the hello; it ends when there is nothing more to say."""

    def heard(self, message: ManagerMessage) -> None:
        """What the manager said."""

    def silence_s(self) -> float:
        """How long the manager may be silent before it counts as gone."""


def credentials(home: Path) -> grpc.ChannelCredentials:
    """From the files that joining has left; AgentError if this machine has not joined."""
    try:
        (home / KEY).chmod(0o600)  # Whoever put it there.
        ca, certificate, key = ((home / name).read_bytes() for name in (CA, CERTIFICATE, KEY))
    except FileNotFoundError as error:
        fix = "join it: gpuyard agent --join TOKEN@URL, with a token from: gpuyard node token"
        raise AgentError(f"this machine has not joined a manager: {error.filename} is missing", fix=fix) from None
    return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=certificate)


async def converse(address: str, secrets: grpc.ChannelCredentials, talk: Talk) -> None:
    """One session, from the connection to its end. An AioRpcError or TimeoutError says why it ended."""
    async with grpc.aio.secure_channel(address, secrets, options=OPTIONS) as channel:
        method: grpc.aio.StreamStreamMultiCallable[AgentMessage, ManagerMessage] = channel.stream_stream(
            SESSION, request_serializer=encode, response_deserializer=decode_manager
        )
        call = method()
        try:
            await _until_first_ends(_say(call, talk), _hear(call, talk))
        finally:
            call.cancel()


async def _say(call: grpc.aio.StreamStreamCall[AgentMessage, ManagerMessage], talk: Talk) -> None:
    async for message in talk.outgoing():
        try:
            await call.write(message)
        except asyncio.InvalidStateError:
            # The call has just ended; why is heard by the other part.
            await asyncio.Event().wait()


async def _hear(call: grpc.aio.StreamStreamCall[AgentMessage, ManagerMessage], talk: Talk) -> None:
    while True:
        message = await asyncio.wait_for(call.read(), talk.silence_s())
        if message is grpc.aio.EOF:
            return
        talk.heard(cast("ManagerMessage", message))


async def _until_first_ends(*parts: Awaitable[None]) -> None:
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not task.cancelled():  # Which is how gRPC ends a call that the other part has ended.
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), CLOSE_S)


class Pause:
    """How long to wait before the next try: longer each time, and for everybody differently."""

    def __init__(self) -> None:
        self._next_ms = FIRST_PAUSE_MS

    def reset(self) -> None:
        self._next_ms = FIRST_PAUSE_MS

    def take_ms(self) -> int:
        now_ms = self._next_ms
        self._next_ms = min(2 * now_ms, LONGEST_PAUSE_MS)
        return between(now_ms // 2, now_ms)


def why_it_ended(error: BaseException) -> str:
    """In words for the log."""
    match error:
        case grpc.aio.AioRpcError():
            return error.details() or error.code().name
        case TimeoutError():
            return "the manager said nothing for too long"
        case msgspec.MsgspecError():
            return f"the manager said something this agent does not understand: {error}"
    return str(error) or type(error).__name__
