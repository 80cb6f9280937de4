"""What passes between the agents' thread and the manager's: bounded, in order, and no agent notices a busy manager."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import grpc
import pytest

from gpuyard.service.agent_server import AgentServer
from gpuyard.service.agents import AgentsPort
from gpuyard.service.certificates import Authority, fingerprint_of
from gpuyard.service.handover import NOT_TAKEN_IN, Handover
from gpuyard.wire.agents import (
    SESSION,
    AttemptId,
    Desired,
    Hello,
    LogPiece,
    MachineFacts,
    ManagerMessage,
    ParcelPiece,
    ReadLog,
    ReadParcel,
    Refused,
    Report,
    Welcome,
    decode_manager,
    encode,
)
from gpuyard.worlds.standalone.records import NodeRecord, State

FACTS = MachineFacts(cpu_milli=4_000)


class Manager:
    """Notes what it hears, and in which thread; answers each report as a manager does."""

    lease_ms = 60_000
    ready = True

    def __init__(self, fingerprint: str = "first") -> None:
        self.state = State(nodes={name: NodeRecord(name, 0, fingerprint=fingerprint) for name in ("a", "b")})
        self.heard: list[object] = []
        self.threads: set[int] = set()
        self.senders: dict[str, Callable[[ManagerMessage], None]] = {}
        self.broken_by = "nobody"

    def _note(self, node: str, what: object) -> None:
        self.threads.add(threading.get_ident())
        if node == self.broken_by:
            raise KeyError(node)
        self.heard.append(what)

    def agent_connected(self, hello: Hello, send: Any) -> None:
        self._note(hello.node, hello)
        self.senders[hello.node] = send

    def agent_reported(self, node: str, report: Report) -> None:
        self._note(node, report)
        self.senders[node](Desired(report.sent_ms))

    def agent_gone(self, node: str, send: Any) -> None:
        self._note(node, "gone")

    def log_piece(self, send: Any, piece: LogPiece) -> None:
        self._note("", (send, piece))

    async def parcel_piece(self, node: str, asked: ReadParcel) -> ParcelPiece:
        self._note(node, asked)
        return ParcelPiece(asked.digest, size=7)


def hello(node: str = "a", incarnation: str = "i") -> Hello:
    return Hello(node, incarnation, "b", "0", FACTS)


def both(manager: Manager, script: Callable[[Handover], Awaitable[None]]) -> None:
    """Run a script as the agents' side; here both sides are one thread, and hear of each other a moment later."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        handover = Handover(cast(AgentsPort, manager), loop)
        handover.open(loop)
        await script(handover)

    asyncio.run(run())


async def a_moment() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_of_the_reports_of_a_session_only_the_newest_waits_and_no_facts_are_lost() -> None:
    manager = Manager()

    async def script(handover: Handover) -> None:
        handover.agent_connected(hello(), [].append)  # type: ignore[arg-type]
        handover.agent_reported("a", Report(1, facts=FACTS))
        for stamp in range(2, 5_000):
            handover.agent_reported("a", Report(stamp))
        await a_moment()

    both(manager, script)
    assert manager.heard == [hello(), Report(4_999, facts=FACTS)]


def test_what_a_replaced_session_has_said_is_not_heard() -> None:
    manager = Manager()
    before, after = list[ManagerMessage](), list[ManagerMessage]()

    async def script(handover: Handover) -> None:
        first, second = before.append, after.append
        handover.agent_connected(hello(), first)
        handover.agent_reported("a", Report(1))
        handover.agent_connected(hello(incarnation="j"), second)
        handover.agent_gone("a", first)
        handover.agent_reported("a", Report(2))
        await a_moment()

    both(manager, script)
    assert manager.heard == [hello(incarnation="j"), Report(2), "gone"]
    assert (before, after) == ([], [Desired(2)])


@pytest.mark.parametrize("joined_again", [False, True])
def test_a_node_that_was_removed_meanwhile_is_not_heard(joined_again: bool) -> None:
    manager = Manager()

    async def script(handover: Handover) -> None:
        handover.agent_connected(hello(), [].append)  # type: ignore[arg-type]
        handover.agent_reported("a", Report(1))
        del manager.state.nodes["a"]
        if joined_again:
            manager.state.nodes["a"] = NodeRecord("a", 0, fingerprint="second")
        await a_moment()

    both(manager, script)
    assert manager.heard == []


def test_what_the_manager_cannot_take_in_ends_that_session_alone() -> None:
    manager = Manager()
    manager.broken_by = "a"
    told: list[ManagerMessage] = []

    async def script(handover: Handover) -> None:
        handover.agent_connected(hello("a"), told.append)
        handover.agent_reported("a", Report(1))
        handover.agent_connected(hello("b"), [].append)  # type: ignore[arg-type]
        await a_moment()

    both(manager, script)
    assert manager.heard == [hello("b")]
    assert told == [Refused(NOT_TAKEN_IN)]


def test_log_pieces_that_wait_are_bounded_and_come_from_the_session_that_was_asked() -> None:
    manager = Manager()

    async def script(handover: Handover) -> None:
        send = list[ManagerMessage]().append
        handover.agent_connected(hello(), send)
        for request in range(3_000):
            handover.log_piece(send, LogPiece(request))
        await a_moment()
        await a_moment()
        asked = [one[0] for one in manager.heard if isinstance(one, tuple)]
        assert set(asked) == {manager.senders["a"]}

    both(manager, script)
    assert len(manager.heard) == 1 + 1_000


def test_of_what_an_agent_is_told_only_the_newest_desired_waits() -> None:
    manager = Manager()
    told: list[ManagerMessage] = []

    async def script(handover: Handover) -> None:
        handover.agent_connected(hello(), told.append)
        await a_moment()
        for stamp in range(100):
            manager.senders["a"](Desired(stamp))
        for request in range(3_000):
            manager.senders["a"](ReadLog(request, AttemptId("1", 0, 1)))
        await a_moment()

    both(manager, script)
    assert told[0] == Desired(99)
    assert len(told) == 1 + 1_000


def test_parcels_are_answered_by_the_manager() -> None:
    async def script(handover: Handover) -> None:
        assert await handover.parcel_piece("a", ReadParcel("d")) == ParcelPiece("d", size=7)

    both(Manager(), script)


# ------------------------------------------------------------------------------------------------ over real connections


class Agent:
    """One session over gRPC, in a thread of its own; notes when it heard what."""

    def __init__(self, port: int, authority: Authority) -> None:
        pair = authority.machine_with_key("a")
        self._credentials = grpc.ssl_channel_credentials(authority.pem, pair.key, pair.certificate)
        self.fingerprint = fingerprint_of(pair.certificate)
        self._address = f"localhost:{port}"
        self.heard: list[tuple[float, ManagerMessage]] = []
        self.ended = ""
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._over = threading.Event()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._call.cancel()
        self._thread.join(10)

    def _live(self) -> None:
        with grpc.secure_channel(self._address, self._credentials) as channel:
            session = channel.stream_stream(SESSION, request_serializer=encode, response_deserializer=decode_manager)
            self._call = session(self._says())
            try:
                for message in self._call:
                    self.heard.append((time.monotonic(), message))
            except grpc.RpcError as error:
                self.ended = "" if self._over.is_set() else str(error)

    def _says(self) -> Any:
        yield hello()
        stamp = 0
        while not self._over.wait(0.05):
            stamp += 1
            yield Report(stamp)

    def echoes(self, since: float, until: float) -> list[int]:
        return [one.echo_ms for at, one in self.heard if since <= at <= until and isinstance(one, Desired)]


@pytest.mark.slow
def test_a_manager_that_is_busy_for_long_loses_no_session_and_gives_no_lease(tmp_path: Any) -> None:
    """Its event loop stands still for three leases: sessions live on and hear of nothing new."""
    authority = Authority.in_folder(tmp_path / "ca", "test")
    manager = Manager()
    manager.lease_ms = 600

    async def run() -> tuple[Agent, list[int], list[int]]:
        server = AgentServer(cast(AgentsPort, manager), authority.server(("localhost",)), authority.pem)
        port = await server.start("127.0.0.1:0")
        agent = Agent(port, authority)
        manager.state.nodes["a"] = NodeRecord("a", 0, fingerprint=agent.fingerprint)
        agent.start()
        while not agent.echoes(0, time.monotonic()):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        began = time.monotonic()
        time.sleep(3 * manager.lease_ms / 1000)
        ended = time.monotonic()
        while not agent.echoes(ended, time.monotonic()):
            await asyncio.sleep(0.01)
        after = agent.echoes(ended, time.monotonic())
        agent.stop()
        await server.stop()
        return agent, agent.echoes(began + 0.2, ended), after

    agent, during, after = asyncio.run(run())
    assert agent.ended == ""
    assert isinstance(agent.heard[0][1], Welcome)
    assert len(during) >= 5, "it was told again and again that the session lives"
    assert len(set(during)) == 1, "but given no further lease"
    assert after[-1] > during[0] + 10
    assert manager.threads == {threading.get_ident()}
