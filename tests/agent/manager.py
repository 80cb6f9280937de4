"""A manager for tests: the real stream, TLS and messages, and a memory of what an agent has said."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from time import monotonic, sleep
from typing import Any

import grpc
import grpc.aio
import msgspec

from gpuyard.wire.agents import (
    SERVICE,
    AgentMessage,
    Assignment,
    AttemptId,
    AttemptReport,
    Desired,
    Hello,
    LogPiece,
    MachineFacts,
    ManagerMessage,
    ParcelPiece,
    Phase,
    ReadLog,
    ReadParcel,
    Refused,
    Report,
    Stop,
    Welcome,
    decode_agent,
    encode,
)
from tests.agent.certificates import Authority

PATIENCE_S = 60.0
PIECE_BYTES = 1_000


class Manager:
    """Everything it wants and has heard. Its methods may be called from the test's thread."""

    def __init__(self, authority: Authority, lease_ms: int = 60_000) -> None:
        self.authority = authority
        self.lease_ms = lease_ms
        self.wanted: dict[AttemptId, Assignment] = {}
        self.recorded: set[AttemptId] = set()
        self.hellos: list[Hello] = []
        self.facts = MachineFacts()
        self.reports: dict[AttemptId, AttemptReport] = {}
        self.now_reported: tuple[AttemptReport, ...] = ()
        self.phases: dict[AttemptId, list[Phase]] = {}
        self.silent = False
        """Hears, but does not answer: no lease is renewed."""
        self.refusal: Refused | None = None
        self.say_twice = False
        self.parcels: dict[str, bytes | None] = {}
        """By what they are asked for; None: asked for, and never answered."""
        self.asked_parcels: list[ReadParcel] = []
        self.port = 0
        self._echo_ms = 0
        self._asked = itertools.count(1)
        self._pieces: dict[int, Future[LogPiece]] = {}
        self._queue: asyncio.Queue[ManagerMessage] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: grpc.aio.Server | None = None

    # ------------------------------------------------------------------------------------------------------- serving

    def __enter__(self) -> Manager:
        self._thread.start()
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def open(self) -> None:
        self._do(self._open())

    def close(self) -> None:
        self._do(self._close())

    def _do(self, part: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(part, self._loop).result(PATIENCE_S)

    async def _open(self) -> None:
        key, certificate = self.authority.for_server()
        secrets = grpc.ssl_server_credentials(
            [(key, certificate)], root_certificates=self.authority.pem, require_client_auth=True
        )
        method = grpc.stream_stream_rpc_method_handler(
            self._session, request_deserializer=decode_agent, response_serializer=encode
        )
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Session": method}),))
        self.port = self._server.add_secure_port(f"127.0.0.1:{self.port}", secrets)
        await self._server.start()

    async def _close(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def _session(
        self, said: AsyncIterator[AgentMessage], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[ManagerMessage]:
        queue: asyncio.Queue[ManagerMessage] = asyncio.Queue()
        hearing = asyncio.ensure_future(self._hear(said, queue))
        try:
            while True:
                yield await queue.get()
        finally:
            hearing.cancel()

    async def _hear(self, said: AsyncIterator[AgentMessage], queue: asyncio.Queue[ManagerMessage]) -> None:
        async for message in said:
            match message:
                case Hello():
                    self.hellos.append(message)
                    self.facts = message.facts
                    self._echo_ms = 0
                    self._queue = queue
                    queue.put_nowait(self.refusal or Welcome("test manager", "0", self.lease_ms))
                case Report():
                    self._reported(message)
                    self._push()
                case LogPiece():
                    self._pieces.pop(message.request).set_result(message)
                case ReadParcel():
                    self.asked_parcels.append(message)
                    piece = self._parcel_piece(message)
                    if piece is not None:
                        queue.put_nowait(piece)

    def _parcel_piece(self, asked: ReadParcel) -> ParcelPiece | None:
        if asked.digest not in self.parcels:
            return ParcelPiece(asked.digest, problem="nobody knows it")
        data = self.parcels[asked.digest]
        if data is None:
            return None
        return ParcelPiece(asked.digest, asked.offset, data[asked.offset : asked.offset + PIECE_BYTES], len(data))

    def _reported(self, report: Report) -> None:
        self._echo_ms = report.sent_ms
        self.facts = report.facts or self.facts
        self.now_reported = report.attempts
        for attempt in report.attempts:
            self.reports[attempt.id] = attempt
            phases = self.phases.setdefault(attempt.id, [])
            if phases[-1:] != [attempt.phase]:
                phases.append(attempt.phase)

    def _push(self) -> None:
        if self._queue is None or self.silent:
            return
        desired = Desired(self._echo_ms, tuple(self.wanted.values()), tuple(self.recorded))
        for _ in range(2 if self.say_twice else 1):
            self._queue.put_nowait(desired)

    def push(self) -> None:
        self._loop.call_soon_threadsafe(self._push)

    def send(self, message: ManagerMessage) -> None:
        assert self._queue is not None
        self._loop.call_soon_threadsafe(self._queue.put_nowait, message)

    # -------------------------------------------------------------------------------------------------------- wanting

    def want(self, *assignments: Assignment) -> None:
        self.wanted.update((assignment.id, assignment) for assignment in assignments)
        self.push()

    def stop(self, id: AttemptId, stop: Stop) -> None:
        self.wanted[id] = msgspec.structs.replace(self.wanted[id], stop=stop)
        self.push()

    def drop(self, id: AttemptId) -> None:
        del self.wanted[id]
        self.push()

    def drop_everything(self) -> None:
        """And wait until nothing runs any more, so that the next test finds the machine idle."""
        self.wanted = {}
        self.push()
        eventually(lambda: all(one.phase is Phase.ENDED for one in self.now_reported), what=self)

    def record(self, id: AttemptId) -> None:
        self.recorded.add(id)
        self.wanted.pop(id, None)
        self.push()

    def read_log(self, id: AttemptId, **asked: int) -> LogPiece:
        number = next(self._asked)
        answer: Future[LogPiece] = Future()
        self._pieces[number] = answer
        self.send(ReadLog(number, id, **asked))
        return answer.result(PATIENCE_S)

    @property
    def open_questions(self) -> int:
        """About logs."""
        return len(self._pieces)

    def whole_log(self, id: AttemptId) -> bytes:
        """Of one that has ended."""
        found, piece = b"", self.read_log(id)
        while True:
            found += piece.data
            if piece.ended or piece.problem:
                return found
            piece = self.read_log(id, offset=piece.offset + len(piece.data), wait_ms=5_000)

    # -------------------------------------------------------------------------------------------------------- waiting

    def wait_for(self, id: AttemptId, phase: Phase, within_s: float = PATIENCE_S) -> AttemptReport:
        eventually(lambda: id in self.reports and self.reports[id].phase is phase, within_s, f"{id} {phase}: {self}")
        return self.reports[id]

    def __str__(self) -> str:
        return f"{len(self.hellos)} hellos, {sorted(self.reports.items())}"


def eventually(holds: Callable[[], bool], within_s: float = PATIENCE_S, what: object = "") -> None:
    until = monotonic() + within_s
    while not holds():
        assert monotonic() < until, f"not within {within_s:g} s: {what}"
        sleep(0.005)
