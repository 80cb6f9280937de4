"""The agents' door: one gRPC stream per machine, with certificates on both sides.

Place in the flow: agent ─Hello, Report, LogPiece, ReadParcel─▶ **agents** ─▶ manager ─Desired, ReadLog, ParcelPiece─▶
**agents** ─▶ agent.
An agent speaks for the machine its certificate names and for no other. Invariant: what is queued for an agent is
bounded: of what should run only the newest word counts, and an agent that does not read is cut off. All of it runs in
the agents' thread (`agent_server.py`); what it asks of the manager is handed over (`handover.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, Protocol

import grpc
import msgspec

from gpuyard import __version__
from gpuyard.service.certificates import fingerprint_of
from gpuyard.wire.agents import (
    PROTOCOL,
    SERVICE,
    AgentMessage,
    Desired,
    Hello,
    Isolation,
    LogPiece,
    ManagerMessage,
    ParcelPiece,
    ReadParcel,
    Refused,
    Report,
    Welcome,
    decode_agent,
    encode,
)
from gpuyard.worlds.standalone.decide import teams_must_not_share_a_user
from gpuyard.worlds.standalone.records import State

MAX_QUEUED_LOGS: Final = 1_000
SHARES_A_USER: Final = (
    "there are several teams, and its jobs would all run as one and the same user, which protects none from another: "
    "start its agent as root, or the manager with --accept-shared-user"
)


class AgentsPort(Protocol):
    """What the door asks of the manager."""

    @property
    def lease_ms(self) -> int: ...

    @property
    def state(self) -> State: ...

    @property
    def ready(self) -> bool: ...

    def agent_connected(self, hello: Hello, send: Any) -> None: ...  # noqa: ANN401 - the manager's own type

    def agent_reported(self, node: str, report: Report) -> None: ...

    def agent_gone(self, node: str, send: Any) -> None: ...  # noqa: ANN401

    def log_piece(self, send: Any, piece: LogPiece) -> None: ...  # noqa: ANN401

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
        self.closed = False

    def send(self, message: ManagerMessage) -> None:
        if isinstance(message, Desired):
            self._desired = message
        elif len(self._others) < MAX_QUEUED_LOGS:
            self._others.append(message)
        self._filled.set()

    def close(self) -> None:
        self.closed = True
        self._filled.set()

    async def __aiter__(self) -> AsyncIterator[ManagerMessage]:
        while not self.closed:
            await self._filled.wait()
            self._filled.clear()
            desired, others = self._desired, self._others
            self._desired, self._others = None, []
            # First what should run: a question may be about what has only just been given to it.
            for message in (*((desired,) if desired else ()), *others):
                yield message


class Door(grpc.GenericRpcHandler):
    """Serves the one call of `wire.agents`."""

    def __init__(self, manager: AgentsPort) -> None:
        self._manager = manager
        self._sessions: dict[str, Outbox] = {}

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
        refused = self._refused(who)
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

    async def _hello(self, messages: AsyncIterator[bytes], node: str) -> Hello | Refused | None:
        message = await self._next(messages)
        if not isinstance(message, Hello):
            return None
        if message.node != node:
            return Refused(f'the certificate is of machine "{node}", not of "{message.node}"', again=False)
        if message.protocol != PROTOCOL:
            what = f"the manager speaks protocol {PROTOCOL}, the agent {message.protocol}: bring both to one version"
            return Refused(what, again=False)
        if message.facts.isolation is Isolation.NONE and teams_must_not_share_a_user(self._manager.state):
            return Refused(SHARES_A_USER)
        return message

    async def _next(self, messages: AsyncIterator[bytes]) -> AgentMessage | None:
        async for data in messages:
            try:
                return decode_agent(data)
            except msgspec.MsgspecError:
                return None
        return None

    async def _read(self, messages: AsyncIterator[bytes], node: str, outbox: Outbox, send: Any) -> None:  # noqa: ANN401
        try:
            while (message := await self._next(messages)) is not None and self._counts(node, outbox):
                match message:
                    case Report():
                        self._manager.agent_reported(node, message)
                    case LogPiece():
                        self._manager.log_piece(send, message)
                    case ReadParcel():
                        outbox.send(await self._manager.parcel_piece(node, message))
        finally:
            outbox.close()

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
