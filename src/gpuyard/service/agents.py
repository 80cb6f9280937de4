"""The agents' door: one gRPC stream per machine, with certificates on both sides.

Place in the flow: agent ─Hello, Report, LogPiece, ReadParcel─▶ **agents** ─▶ manager ─Desired, ReadLog, ParcelPiece─▶
**agents** ─▶ agent.
An agent speaks for the machine its certificate names and for no other. What cannot be read, or is out of range, ends
its session with a reason, and nothing else. All of it runs in the agents' thread (`agent_server.py`); what it asks of
the manager is handed over (`handover.py`). Invariants: what is queued for an agent is bounded: of what should run only
the newest word counts, and an agent that does not read is cut off; one that speaks too fast or comes too often is
held back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import grpc
import msgspec

from gpuyard import __version__
from gpuyard.service.agent_pace import SESSIONS_PER_MINUTE, Pace, Sessions
from gpuyard.service.certificates import fingerprint_of
from gpuyard.wire.agent_limits import cleaned_text, message_problem
from gpuyard.wire.agent_reading import Unreadable, read_message
from gpuyard.wire.agents import (
    PROTOCOL,
    SERVICE,
    AgentMessage,
    Desired,
    Hello,
    LogPiece,
    ManagerMessage,
    ParcelPiece,
    ReadParcel,
    Refused,
    Report,
    Welcome,
    encode,
)
from gpuyard.worlds.standalone.node_health import isolation_problem
from gpuyard.worlds.standalone.records import State

MAX_QUEUED_LOGS: Final = 1_000
MAX_QUEUED_BEFORE_PARCELS: Final = 8
"""No piece of an artifact is read for an agent that has so many messages to read: a piece is 1 MiB."""
HELLO_S: Final = 10.0
"""Within which the first message must have come."""

_log = logging.getLogger(__name__)

Send = Callable[[ManagerMessage], None]
"""How an agent is told something: the one value by which its session is known."""


class AgentsPort(Protocol):
    """What the door asks of the manager."""

    @property
    def lease_ms(self) -> int: ...

    @property
    def state(self) -> State: ...

    @property
    def ready(self) -> bool: ...

    def agent_connected(self, hello: Hello, send: Send) -> None: ...

    def agent_reported(self, node: str, report: Report) -> None: ...

    def agent_gone(self, node: str, send: Send) -> None: ...

    def log_piece(self, send: Send, piece: LogPiece) -> None: ...

    async def parcel_piece(self, node: str, asked: ReadParcel) -> ParcelPiece: ...


class Certified(msgspec.Struct, frozen=True):
    """Whom a certificate names, and which certificate that is; it is ours, or there would be no connection."""

    node: str
    fingerprint: str = ""
    """Empty: none was shown."""

    @classmethod
    def of(cls, known: Mapping[str, Sequence[bytes]]) -> Certified:
        name = (known.get("x509_common_name") or [b""])[0].decode("utf-8", "replace")
        pem = (known.get("x509_pem_cert") or [b""])[0]
        return cls(name, fingerprint_of(pem) if pem else "")


class Outbox:
    """What one agent is to be told: the newest word on what should run, and questions about logs."""

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        """Of the certificate this session was opened with."""
        self._desired: Desired | None = None
        self._others: list[ManagerMessage] = []
        self._filled = asyncio.Event()
        self._taken = asyncio.Event()
        self.closed = False
        self.refusal: Refused | None = None
        """Why the session ends, as the last thing the agent is told."""

    def send(self, message: ManagerMessage) -> None:
        if isinstance(message, Desired):
            self._desired = message
        elif len(self._others) < MAX_QUEUED_LOGS:
            self._others.append(message)
        self._filled.set()

    async def has_room(self) -> None:
        """Wait until the agent has read what it was told."""
        while len(self._others) >= MAX_QUEUED_BEFORE_PARCELS and not self.closed:
            self._taken.clear()
            await self._taken.wait()

    def refuse(self, why: str) -> None:
        self.refusal = Refused(why)
        self.close()

    def close(self) -> None:
        self.closed = True
        self._filled.set()
        self._taken.set()

    async def __aiter__(self) -> AsyncIterator[ManagerMessage]:
        while not self.closed:
            await self._filled.wait()
            self._filled.clear()
            desired, others = self._desired, self._others
            self._desired, self._others = None, []
            self._taken.set()
            # First what should run: a question may be about what has only just been given to it.
            for message in (*((desired,) if desired else ()), *others):
                yield message


class Door(grpc.GenericRpcHandler):
    """Serves the one call of `wire.agents`."""

    def __init__(self, manager: AgentsPort) -> None:
        self._manager = manager
        self._sessions: dict[str, Outbox] = {}
        self._openings = Sessions()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, ManagerMessage] | None:
        if details.method != f"/{SERVICE}/Session":
            return None
        handler: grpc.RpcMethodHandler[bytes, ManagerMessage] = grpc.stream_stream_rpc_method_handler(
            self._session, request_deserializer=None, response_serializer=encode
        )
        return handler

    async def _session(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[ManagerMessage]:  # noqa: ANN401
        who = Certified.of(context.auth_context())
        # Asked again after the hello, which may come late: meanwhile the machine may have been removed.
        refused = self._refused(who) or self._too_often(who)
        hello = None if refused else await self._hello(messages, who.node)
        refused = refused or self._refused(who) or (hello if isinstance(hello, Refused) else None)
        if refused or not isinstance(hello, Hello):
            yield refused or Refused("the first message must be a Hello", again=False)
            return
        node, outbox = who.node, self._replace(who)
        send = outbox.send  # The one value by which the manager knows this session again.
        self._manager.agent_connected(hello, send)
        reading = asyncio.create_task(self._read(messages, node, outbox, send))
        try:
            yield Welcome(self._manager.state.cluster, __version__, self._manager.lease_ms)
            async for message in outbox:
                yield message
            if outbox.refusal is not None:
                yield outbox.refusal
        finally:
            reading.cancel()
            self._manager.agent_gone(node, send)
            if self._sessions.get(node) is outbox:
                del self._sessions[node]

    def _refused(self, who: Certified) -> Refused | None:
        """Why that certificate does not speak for a machine of ours; None where it does."""
        if not self._manager.ready:
            return Refused("the manager is starting")
        known = self._manager.state.nodes.get(who.node)
        if known is None or not who.fingerprint or who.fingerprint != known.fingerprint:
            why = f'machine "{who.node}" was removed, or has joined again with another certificate'
            return Refused(why, again=False)
        return None

    def _too_often(self, who: Certified) -> Refused | None:
        if self._openings.may_open(who.node):
            return None
        return Refused(f"this node has opened more than {SESSIONS_PER_MINUTE} sessions in a minute: wait")

    async def _hello(self, messages: AsyncIterator[bytes], node: str) -> Hello | Refused | None:
        try:
            message = await asyncio.wait_for(self._first(messages), HELLO_S)
        except TimeoutError:
            return Refused(f"no first message within {HELLO_S:g} s")
        if isinstance(message, Unreadable):
            return Refused(f"the first message cannot be read: {message.why}")
        if not isinstance(message, Hello):
            return None
        if message.node != node:
            named = cleaned_text(message.node, 80)
            return Refused(f'the certificate is of machine "{node}", not of "{named}"', again=False)
        if message.protocol != PROTOCOL:
            what = f"the manager speaks protocol {PROTOCOL}, the agent {message.protocol}: bring both to one version"
            return Refused(what, again=False)
        problem = message_problem(message)
        if not problem and not message.unreadable:
            problem = isolation_problem(self._manager.state, message.facts)
        return Refused(problem) if problem else message

    async def _first(self, messages: AsyncIterator[bytes]) -> AgentMessage | Unreadable | None:
        async for data in messages:
            return read_message(data)
        return None

    async def _read(self, messages: AsyncIterator[bytes], node: str, outbox: Outbox, send: Send) -> None:
        """Take in what an agent says, until it ends, counts no more, or makes no sense."""
        pace = Pace()
        try:
            async for data in messages:
                message = read_message(data)
                problem = message.why if isinstance(message, Unreadable) else message_problem(message)
                if problem or isinstance(message, Unreadable):
                    outbox.refuse(f"a message is refused: {problem}")
                    return
                await pace.keep(message, len(data))
                if not self._counts(node, outbox):
                    return
                await self._take(message, node, outbox, send)
        except grpc.RpcError:
            pass  # The connection broke, or a message was longer than may be received.
        except Exception:
            # What an agent says ends its own session at most. What is wrong with us is for the manager's log.
            _log.exception('a message of node "%s" could not be dealt with', node)
            outbox.refuse("the manager could not deal with a message: its log says why")
        finally:
            outbox.close()

    async def _take(self, message: AgentMessage, node: str, outbox: Outbox, send: Send) -> None:
        match message:
            case Report():
                self._manager.agent_reported(node, message)
            case LogPiece():
                self._manager.log_piece(send, message)
            case ReadParcel():
                await outbox.has_room()
                outbox.send(await self._manager.parcel_piece(node, message))
            case Hello():
                outbox.refuse("a message is refused: a second Hello in one session")

    def _counts(self, node: str, outbox: Outbox) -> bool:
        """Whether what was just read still speaks for the machine: it has no newer session and was not removed."""
        known = self._manager.state.nodes.get(node)
        return not outbox.closed and known is not None and known.fingerprint == outbox.fingerprint

    def _replace(self, who: Certified) -> Outbox:
        """A machine has one session: the newest."""
        before = self._sessions.get(who.node)
        if before is not None:
            before.close()
        self._sessions[who.node] = Outbox(who.fingerprint)
        return self._sessions[who.node]

    def close(self) -> None:
        for outbox in self._sessions.values():
            outbox.close()
