"""Sessions of a hostile agent: questions about logs, messages without sense, floods; and the whole way over TLS."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import grpc
import grpc.aio
import msgspec
import pytest
from msgspec.structs import replace

from gpuyard.errors import RefusedError
from gpuyard.service import agent_pace, agents
from gpuyard.service.agent_server import AgentServer
from gpuyard.service.certificates import Authority, fingerprint_of
from gpuyard.service.manager import Manager
from gpuyard.wire.agents import (
    SESSION,
    Desired,
    Hello,
    LogPiece,
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
from gpuyard.worlds.standalone.intents import AdmitNode
from gpuyard.worlds.standalone.lifecycle import JobState
from gpuyard.worlds.standalone.store.opening import open_store
from tests.security.besieged import LIAR, ROOT, Besieged, at_work, live_through
from tests.security.refused_facts import GOOD, HUGE, OUT_OF_RANGE

pytestmark = pytest.mark.slow


def test_only_the_session_that_is_asked_answers_for_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It even knows the number of the question here, which cannot be guessed."""

    async def course(cluster: Besieged) -> None:
        conversation, _ = await at_work(cluster)
        machine, (id, *_) = cluster.machines["m1"], cluster.attempts_on("m1")
        asked: list[ReadLog] = []
        monkeypatch.setattr(machine, "_read", asked.append)
        reading = asyncio.create_task(cluster.manager.read_log(id, 0, 100, 0))
        await cluster.until(lambda: asked, "the question")
        for _ in range(3):
            await conversation.say(encode(LogPiece(asked[0].request, 0, b"forged", 6, True)))
        assert not reading.done()
        cluster.manager.log_piece(machine.told, LogPiece(asked[0].request, 0, b"x" * 101, 101))
        assert "101 bytes" in (await reading).problem
        for request in (1, 2, 3, asked[0].request):
            await conversation.say(encode(LogPiece(request, 0, b"late", 4)))
        await conversation.end()

    live_through(course, tmp_path)


def test_a_question_ends_with_the_session_that_was_asked(tmp_path: Path) -> None:
    async def course(cluster: Besieged) -> None:
        conversation, running = await at_work(cluster)
        reading = asyncio.create_task(cluster.manager.read_log(running.id, 0, 100, 10_000))
        await cluster.until(lambda: any(isinstance(one, ReadLog) for one in conversation.heard), "the question")
        await conversation.end()
        with pytest.raises(RefusedError, match="does not answer"):
            await asyncio.wait_for(reading, 5)

    live_through(course, tmp_path)


# ---------------------------------------------------------------------------------------------- sessions and their pace


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xff",
        b"\x83\xa4type\xa6report\xa7sent_ms\x01\xa1x" + b"\x91" * 100_000,
        msgspec.msgpack.encode({"type": "report", "sent_ms": 1, "x": "abc"}).replace(b"sent_ms", b"sent_m\xff"),
        msgspec.msgpack.encode({"type": "report", "sent_ms": float("nan")}),
        encode(Report(0)),
        encode(Report(-5)),
        encode(Report(HUGE)),
        encode(LogPiece(1, -1)),
        encode(LogPiece(1, 0, b"x" * (256 * 1024 + 1))),
        encode(ReadParcel("../../etc/passwd")),
        encode(ReadParcel("0" * 64, -1)),
        encode(Hello(LIAR, "i", "b", "0", GOOD)),
    ],
)
def test_what_makes_no_sense_ends_the_session_with_the_reason(data: bytes, tmp_path: Path) -> None:
    async def course(cluster: Besieged) -> None:
        conversation, running = await at_work(cluster)
        await conversation.say(data)
        await cluster.until(lambda: conversation.over, "the end of the session")
        assert conversation.refusal is not None
        assert "refused" in conversation.refusal.why
        assert conversation.refusal.again
        assert cluster.manager.state.jobs[running.id.job].state is JobState.RUNNING
        await conversation.end()

    live_through(course, tmp_path)


def test_an_agent_that_is_refused_again_and_again_has_to_wait(tmp_path: Path) -> None:
    async def course(cluster: Besieged) -> None:
        for _ in range(agent_pace.SESSIONS_PER_MINUTE + 1):
            conversation = await cluster.greet()
            await conversation.say(b"\xff")
            await conversation.end()
        last = conversation.heard[-1]
        assert isinstance(last, Refused)
        assert "sessions in a minute" in last.why
        assert last.again

    live_through(course, tmp_path)


def test_who_opens_a_session_and_says_nothing_is_sent_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def course(cluster: Besieged) -> None:
        monkeypatch.setattr(agents, "HELLO_S", 0.05)
        conversation = cluster.converse()
        await cluster.until(lambda: conversation.over, "the end of the session")
        assert conversation.refusal == Refused("no first message within 0.05 s")
        await conversation.end()

    live_through(course, tmp_path)


def test_an_agent_that_reads_nothing_is_read_no_artifacts_for() -> None:
    async def queued() -> int:
        outbox = agents.Outbox("")
        asked = 0
        for _ in range(1_000):
            try:
                await asyncio.wait_for(outbox.has_room(), 0.01)
            except TimeoutError:
                return asked
            outbox.send(ParcelPiece("0" * 64, 0, b"x"))
            asked += 1
        return asked

    assert asyncio.run(queued()) == agents.MAX_QUEUED_BEFORE_PARCELS


def test_a_join_token_takes_no_name_of_a_node_that_may_come_back(tmp_path: Path) -> None:
    """After a restart no node is heard of for a moment."""

    async def course(cluster: Besieged) -> None:
        for silent in (None, 5):
            state = cluster.manager.state
            state.nodes["m1"] = replace(state.nodes["m1"], silent_since_ms=silent)
            with pytest.raises(RefusedError) as refused:
                await cluster.manager.do(AdmitNode("m1", "another"), ROOT)
            assert refused.value.reason == "NodeKnown"
        state.nodes["m1"] = replace(state.nodes["m1"], silent_since_ms=None)

    live_through(course, tmp_path)


# ---------------------------------------------------------------------------------------------- the whole way, over TLS


async def _next(call: grpc.aio.StreamStreamCall[bytes, bytes]) -> ManagerMessage:
    return decode_manager(cast(bytes, await call.read()))


def test_over_its_own_certificate_it_can_stop_neither_the_manager_nor_the_next_one(tmp_path: Path) -> None:
    authority = Authority.in_folder(tmp_path / "tls", "besieged")
    pair = authority.machine_with_key(LIAR)

    async def live() -> None:
        cluster = Besieged(tmp_path)
        await cluster.start()
        await cluster.manager.do(AdmitNode(LIAR, fingerprint_of(pair.certificate), vouched=True), ROOT)
        server = AgentServer(cluster.manager, authority.server(("127.0.0.1",)), authority.pem)
        port = await server.start("127.0.0.1:0")
        secrets = grpc.ssl_channel_credentials(authority.pem, pair.key, pair.certificate)
        before = cluster.honest_records()
        for facts, why in OUT_OF_RANGE[:3]:
            async with grpc.aio.secure_channel(f"127.0.0.1:{port}", secrets) as channel:
                call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(SESSION)()
                await call.write(encode(Hello(LIAR, "i", "b", "0", facts)))
                assert isinstance(await _next(call), Welcome)
                await call.write(encode(Report(7, facts=facts)))
                assert isinstance(await _next(call), Desired)
                assert why in cluster.manager.state.nodes[LIAR].unhealthy
                await call.write(b"\xff" * 5_000_000)  # Longer than may be received.
                assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await cluster.goes_on()
        assert cluster.honest_records() == before
        await server.stop()
        await cluster.stop()
        again = Manager(open_store(tmp_path / "state.db"))
        await again.start()
        assert again.state.nodes[LIAR].unhealthy
        await asyncio.sleep(0.2)
        assert again.ready
        await again.stop()

    asyncio.run(live())
