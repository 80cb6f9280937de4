"""What passes between the agents' thread and the manager's, in both directions.

Place in the flow: Door ─agents' thread─▶ **handover** ─manager's thread─▶ manager ─Desired, ReadLog─▶ **handover** ─▶
Door. The core is touched by the manager's thread alone. Leases stay safe: the manager stamps a report when it takes it
in, which is never before it came in, and only then may its stamp be sent back.
Invariant: what waits is bounded. Of the reports of one session, and of what one agent should run, only the newest
waits; of log pieces and requests at most MAX_QUEUED_LOGS do, and of a session that was replaced nothing does.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from typing import Final

import msgspec
from msgspec.structs import replace

from gpuyard.service.agents import MAX_QUEUED_LOGS, AgentsPort, Send
from gpuyard.service.limits import SLICE_MS
from gpuyard.wire.agents import Desired, Hello, LogPiece, ManagerMessage, ParcelPiece, ReadParcel, Refused, Report
from gpuyard.worlds.standalone.records import State

REPEAT_PARTS: Final = 6
"""What should run is said again after this part of the lease: an agent takes a third of it in silence for the end."""
NOT_TAKEN_IN: Final = "the manager could not take in what this agent said; its log says why"

_log: Final = logging.getLogger("gpuyard.agents")


class Session(msgspec.Struct, eq=False):
    """One session as the manager knows it."""

    node: str
    fingerprint: str
    """Of the certificate that the node had when the session began."""
    mail: Mail
    counts: bool = False
    """The manager has taken in its hello."""


class Waiting(msgspec.Struct, eq=False):
    """What the manager has not yet heard from one node."""

    began: tuple[Session, Hello] | None = None
    report: tuple[Session, Report] | None = None
    pieces: list[tuple[Session, LogPiece]] = []
    ended: list[Session] = []


class Mail:
    """Messages to one session: put by the manager's thread, delivered in the agents'.

    Where the manager is busy for long, what should run is said again, with the stamp it had: that gives no further
    lease, and the agent knows that the session lives.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Send, repeat_s: float) -> None:
        self._loop = loop
        self._deliver = deliver
        self._repeat_s = repeat_s
        self._repeating: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()
        self._desired: Desired | None = None
        self._others: list[ManagerMessage] = []
        self._due = False

    def put(self, message: ManagerMessage) -> None:
        with self._lock:
            if isinstance(message, Desired):
                self._desired = message
            elif len(self._others) < MAX_QUEUED_LOGS:
                self._others.append(message)
            if self._due:
                return
            self._due = True
        with suppress(RuntimeError):  # The agents' thread has ended.
            self._loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        with self._lock:
            desired, others = self._desired, self._others
            self._desired, self._others, self._due = None, [], False
        if desired is not None:
            self._say(desired)
        for message in others:
            self._deliver(message)

    def _say(self, desired: Desired) -> None:
        self.close()
        self._deliver(desired)
        self._repeating = self._loop.call_later(self._repeat_s, self._say, desired)

    def close(self) -> None:
        """Repeat nothing any more; called in the agents' thread."""
        if self._repeating is not None:
            self._repeating.cancel()
            self._repeating = None


class Handover:
    """The manager, as the Door sees it in the agents' thread."""

    def __init__(self, manager: AgentsPort, loop: asyncio.AbstractEventLoop) -> None:
        self._manager = manager
        self._loop = loop
        self._agents_loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._waiting: dict[str, Waiting] = {}
        self._due = False
        self._sessions: dict[Send, Session] = {}
        """By the function that sends to it; used in the agents' thread alone."""
        self._newest: dict[str, Session] = {}
        """By node; used in the agents' thread alone."""

    def open(self, agents_loop: asyncio.AbstractEventLoop) -> None:
        """Called first, in the agents' thread."""
        self._agents_loop = agents_loop

    # ------------------------------------------------------------------------------------------ in the agents' thread

    @property
    def lease_ms(self) -> int:
        return self._manager.lease_ms

    @property
    def state(self) -> State:
        """To look up single records, which are values; never to go through."""
        return self._manager.state

    @property
    def ready(self) -> bool:
        return self._manager.ready

    def agent_connected(self, hello: Hello, send: Send) -> None:
        known = self.state.nodes.get(hello.node)
        repeat_s = self.lease_ms / 1000 / REPEAT_PARTS
        assert self._agents_loop is not None, "opened first"
        session = Session(hello.node, known.fingerprint if known else "", Mail(self._agents_loop, send, repeat_s))
        self._sessions[send] = self._newest[hello.node] = session
        with self._lock:
            # What a former session has said and the manager has not heard is of no interest any more.
            self._waiting[hello.node] = Waiting(began=(session, hello))
        self._knock()

    def agent_reported(self, node: str, report: Report) -> None:
        session = self._newest[node]
        with self._lock:
            waiting = self._waiting.setdefault(node, Waiting())
            before = waiting.report
            if before is not None and before[0] is session and report.facts is None and not report.unreadable:
                report = replace(report, facts=before[1].facts, unreadable=before[1].unreadable)
            waiting.report = (session, report)
        self._knock()

    def log_piece(self, send: Send, piece: LogPiece) -> None:
        session = self._sessions[send]
        with self._lock:
            pieces = self._waiting.setdefault(session.node, Waiting()).pieces
            if len(pieces) < MAX_QUEUED_LOGS:
                pieces.append((session, piece))
        self._knock()

    def agent_gone(self, node: str, send: Send) -> None:
        session = self._sessions.pop(send, None)
        if session is None:
            return
        session.mail.close()
        if self._newest.get(node) is session:
            del self._newest[node]
        with self._lock:
            self._waiting.setdefault(node, Waiting()).ended.append(session)
        self._knock()

    async def parcel_piece(self, node: str, asked: ReadParcel) -> ParcelPiece:
        answer = asyncio.run_coroutine_threadsafe(self._manager.parcel_piece(node, asked), self._loop)
        return await asyncio.wrap_future(answer)

    def _knock(self) -> None:
        with self._lock:
            if self._due:
                return
            self._due = True
        with suppress(RuntimeError):  # The manager has ended.
            self._loop.call_soon_threadsafe(self._take)

    # ----------------------------------------------------------------------------------------- in the manager's thread

    def _take(self) -> None:
        """Tell the manager what waits, node by node; after a while other work comes first again."""
        until = self._loop.time() + SLICE_MS / 1000
        while True:
            with self._lock:
                node = next(iter(self._waiting), None)
                if node is None:
                    self._due = False
                    return
                waiting = self._waiting.pop(node)
            self._tell(node, waiting)
            if self._loop.time() >= until:
                self._loop.call_soon(self._take)
                return

    def _tell(self, node: str, waiting: Waiting) -> None:
        session = waiting.began[0] if waiting.began else waiting.report[0] if waiting.report else None
        try:
            self._tell_in_order(node, waiting)
        except Exception as error:
            _log.error("what the agent of %s said was not taken in", node, exc_info=error)
            if session is not None:
                session.counts = False
                session.mail.put(Refused(NOT_TAKEN_IN))

    def _tell_in_order(self, node: str, waiting: Waiting) -> None:
        if waiting.began is not None:
            session, hello = waiting.began
            known = self._manager.state.nodes.get(node)
            # It may have been removed since, or have joined again.
            if known is not None and known.fingerprint == session.fingerprint:
                self._manager.agent_connected(hello, session.mail.put)
                session.counts = True
        if waiting.report is not None and waiting.report[0].counts:
            self._manager.agent_reported(node, waiting.report[1])
        for session, piece in waiting.pieces:
            self._manager.log_piece(session.mail.put, piece)
        for session in waiting.ended:
            self._manager.agent_gone(node, session.mail.put)
