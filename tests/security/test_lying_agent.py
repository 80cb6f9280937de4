"""A joined node that lies: what it says counts for itself alone; what is out of range is refused with the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest
from msgspec.structs import replace

from gpuyard.errors import RefusedError
from gpuyard.model.nodes import Device, MigSlices
from gpuyard.service import agent_pace
from gpuyard.service.agents import AgentServer
from gpuyard.service.certificates import Authority, fingerprint_of
from gpuyard.service.log_requests import LogRequests
from gpuyard.service.manager import Manager
from gpuyard.wire.agent_limits import CUT, MAX_SENTENCE_CHARS
from gpuyard.wire.agents import (
    SESSION,
    AttemptId,
    AttemptReport,
    Desired,
    Ending,
    Hello,
    Isolation,
    LogPiece,
    MachineFacts,
    Phase,
    ReadLog,
    ReadParcel,
    Refused,
    Report,
    Welcome,
    decode_manager,
    encode,
)
from gpuyard.worlds.standalone import node_health
from gpuyard.worlds.standalone.intents import AdmitNode, SetTeams
from gpuyard.worlds.standalone.lifecycle import JobState, TaskPhase
from gpuyard.worlds.standalone.node_health import CHANGES_TOO_OFTEN, MAX_CHANGES
from gpuyard.worlds.standalone.records import NodeRecord
from gpuyard.worlds.standalone.store.opening import open_store
from tests.security.besieged import HONEST, LIAR, ROOT, Besieged, Conversation

Course = Callable[[Besieged], Awaitable[None]]
HUGE = (1 << 64) - 1
GOOD = MachineFacts(
    devices=tuple(Device("A100", 80_000, f"GPU-{index}") for index in range(4)),
    cpu_milli=64_000,
    memory_bytes=1 << 40,
    isolation=Isolation.USERS,
)

OUT_OF_RANGE = [
    (replace(GOOD, devices=tuple(Device(id=str(index)) for index in range(64))), "64 GPUs"),
    (replace(GOOD, cpu_milli=HUGE), str(HUGE)),
    (replace(GOOD, memory_bytes=HUGE), str(HUGE)),
    (replace(GOOD, cpu_milli=-1), "-1"),
    (replace(GOOD, devices=(Device(memory_mib=1 << 63),)), "GPU with"),
    (replace(GOOD, devices=(Device(memory_mib=-5),)), "GPU with"),
    (replace(GOOD, devices=(Device(id="a"), Device(id="a"))), 'two GPUs with the id "a"'),
    (replace(GOOD, devices=(Device("A100\x1b[2J"),)), "cannot be printed"),
    (replace(GOOD, devices=(Device("m" * 300),)), "more than 253"),
    (replace(GOOD, devices=(Device(numa=1 << 62),)), "NUMA"),
    (replace(GOOD, devices=(Device(mig=(MigSlices("9" * 200 + "g", 1 << 60),)),)), "MIG slices"),
    (replace(GOOD, devices=(Device(mig=(MigSlices("8g.80gb", 1),)),)), "MIG slices"),
    (replace(GOOD, labels={"gpuyard:job": "7"}), "gpuyard:job"),
    (replace(GOOD, labels={"hostname": "m1"}), "hostname"),
    (replace(GOOD, labels={"": "x"}), "label"),
    (replace(GOOD, labels={"a": "two\nlines"}), "cannot be printed"),
    (replace(GOOD, labels={str(index): "" for index in range(1_000)}), "1000 labels"),
    (replace(GOOD, address="$(reboot)"), "neither an IP address nor a host name"),
    (replace(GOOD, address="fe80::1%a;b"), "neither"),
    (replace(GOOD, manager_address="a b"), "manager_address"),
]


def besieged(course: Course, folder: Path) -> None:
    """Live through a course of events; then the log is read again."""

    async def live() -> None:
        cluster = Besieged(folder)
        await cluster.start()
        before = cluster.honest_records()
        try:
            await course(cluster)
            cluster.lives()
            assert cluster.honest_records() == before
            await cluster.goes_on()
        finally:
            await cluster.stop()
        cluster.reads_again()

    asyncio.run(live())


def node(cluster: Besieged) -> NodeRecord:
    return cluster.manager.state.nodes[LIAR]


async def at_work(cluster: Besieged) -> tuple[Conversation, AttemptReport]:
    """The node in good order, with a task of its own that runs."""
    conversation = cluster.converse()
    await conversation.say(cluster.hello(GOOD))
    await conversation.say(encode(Report(1)))
    id = await cluster.submit(LIAR)
    await cluster.until(lambda: cluster.manager.state.jobs[id].tasks[0].attempt, f"the start of job {id}")
    running = AttemptReport(AttemptId(id, 0, 1), Phase.RUNNING, started_at_ms=1)
    await conversation.say(encode(Report(2, (running,))))
    assert cluster.manager.state.jobs[id].state is JobState.RUNNING
    return conversation, running


# ---------------------------------------------------------------------------------------------------------------- facts


@pytest.mark.parametrize(("facts", "why"), OUT_OF_RANGE)
def test_facts_out_of_range_make_the_node_unhealthy_and_end_nothing(
    facts: MachineFacts, why: str, tmp_path: Path
) -> None:
    async def course(cluster: Besieged) -> None:
        conversation, running = await at_work(cluster)
        await conversation.say(encode(Report(3, (running,), facts)))
        assert why in node(cluster).unhealthy
        assert node(cluster).facts == GOOD
        assert cluster.manager.state.jobs[running.id.job].state is JobState.RUNNING
        waits = await cluster.submit(LIAR)
        await cluster.goes_on()
        assert cluster.manager.state.jobs[waits].state is JobState.WAITING
        # Its lease is renewed all the while.
        await conversation.say(encode(Report(4, (running,))))
        told = lambda: [message.echo_ms for message in conversation.heard if isinstance(message, Desired)]  # noqa: E731
        await cluster.until(lambda: 4 in told(), "the renewal of its lease")
        assert why in node(cluster).unhealthy
        await conversation.say(encode(Report(5, (running,), GOOD)))
        assert node(cluster).unhealthy == ""
        await cluster.until(lambda: cluster.manager.state.jobs[waits].tasks[0].attempt, "the start of what waited")
        await conversation.end()

    besieged(course, tmp_path)


@pytest.mark.parametrize(("facts", "why"), OUT_OF_RANGE[:3])
def test_a_hello_out_of_range_is_taken_and_the_log_of_it_opens_again(
    facts: MachineFacts, why: str, tmp_path: Path
) -> None:
    async def course(cluster: Besieged) -> None:
        conversation = cluster.converse()
        await conversation.say(cluster.hello(facts))
        assert isinstance(conversation.heard[0], Welcome)
        assert why in node(cluster).unhealthy
        assert node(cluster).facts == MachineFacts(isolation=Isolation.USERS)
        await conversation.say(encode(Report(1, facts=GOOD)))
        assert (node(cluster).unhealthy, node(cluster).facts) == ("", GOOD)
        await conversation.end()

    besieged(course, tmp_path)


@pytest.mark.parametrize(
    ("field", "value"), [("cpu_milli", float("nan")), ("devices", 7), ("labels", {"a": 3}), ("isolation", "both")]
)
def test_facts_that_cannot_be_read_keep_the_session_and_the_lease(field: str, value: Any, tmp_path: Path) -> None:
    async def course(cluster: Besieged) -> None:
        conversation, running = await at_work(cluster)
        tree = msgspec.msgpack.decode(encode(Report(3, (running,), GOOD)))
        tree["facts"][field] = value
        await conversation.say(msgspec.msgpack.encode(tree))
        assert "cannot be read" in node(cluster).unhealthy
        assert not conversation.over
        assert cluster.manager.core.hub.contacts[LIAR].report.sent_ms == 3
        await conversation.say(encode(Report(4, (running,), GOOD)))
        assert node(cluster).unhealthy == ""
        await conversation.end()

    besieged(course, tmp_path)


def test_words_for_people_are_cut_and_cannot_steer_a_terminal(tmp_path: Path) -> None:
    async def course(cluster: Besieged) -> None:
        conversation, running = await at_work(cluster)
        facts = replace(GOOD, trouble=("a\nb\x1b[2J",) * 50, limits_note="n" * 10_000, driver="\x07" * 500)
        message = "first\nsecond \x1b]0;mine\x07" + "z" * 10_000
        ended = replace(running, phase=Phase.ENDED, ending=Ending.NOT_STARTED, message=message)
        await conversation.say(encode(Report(3, (ended,), facts)))
        kept = node(cluster).facts
        job = cluster.manager.state.jobs[running.id.job]
        words = (*kept.trouble, kept.limits_note, kept.driver, job.message, job.tasks[0].message)
        assert all(text.isprintable() for text in words)
        assert len(kept.trouble) == 16
        assert kept.limits_note.endswith(CUT)
        assert len(kept.limits_note) == len(job.tasks[0].message) == MAX_SENTENCE_CHARS
        await conversation.end()

    besieged(course, tmp_path)


def test_a_node_that_changes_its_word_all_the_time_fills_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def course(cluster: Besieged) -> None:
        conversation, running = await at_work(cluster)
        before = cluster.manager.state.seq
        for number in range(150):
            facts = replace(GOOD, cpu_milli=number, labels={"number": str(number)} if number % 3 else {"": "x"})
            await conversation.say(encode(Report(3 + number, (running,), facts)))
        assert cluster.manager.state.seq - before <= MAX_CHANGES + 1
        assert node(cluster).unhealthy == CHANGES_TOO_OFTEN
        monkeypatch.setattr(node_health, "CHANGES_MS", 0)
        await cluster.until(lambda: node(cluster).facts.cpu_milli == 149, "the newest facts count in the end")
        assert node(cluster).unhealthy == ""
        await conversation.end()

    besieged(course, tmp_path)


# ----------------------------------------------------------------------------------------------------- jobs of others


def test_what_it_says_of_attempts_elsewhere_counts_for_nothing(tmp_path: Path) -> None:
    async def course(cluster: Besieged) -> None:
        conversation, running = await at_work(cluster)
        before = cluster.manager.gpu_use()
        for phase, ending in ((Phase.ENDED, Ending.EXITED), (Phase.ENDED, Ending.LOST), (Phase.RUNNING, None)):
            forged = tuple(
                AttemptReport(id, phase, 1, 1, 1, ending, 0, "forged", 1, 0) for id in cluster.attempts_on(*HONEST)
            )
            assert forged
            await conversation.say(encode(Report(3, (running, *forged))))
        assert cluster.manager.gpu_use() == before, "it says how busy GPUs of others are"
        await conversation.end()

    besieged(course, tmp_path)


@pytest.mark.parametrize("exit_code", [256, -1, 1 << 62])
def test_an_attempt_out_of_range_is_dropped_and_not_lost(exit_code: int, tmp_path: Path) -> None:
    async def course(cluster: Besieged) -> None:
        conversation, running = await at_work(cluster)
        ended = replace(running, phase=Phase.ENDED, ending=Ending.EXITED, exit_code=exit_code)
        await conversation.say(encode(Report(3, (ended,))))
        assert cluster.manager.state.jobs[running.id.job].tasks[0].phase is TaskPhase.RUNNING
        assert f"exit_code {exit_code}" in node(cluster).unhealthy
        unreadable = msgspec.msgpack.decode(encode(Report(4, (running,))))
        unreadable["attempts"][0]["exit_code"] = "none"
        await conversation.say(msgspec.msgpack.encode(unreadable))
        assert cluster.manager.state.jobs[running.id.job].tasks[0].phase is TaskPhase.RUNNING
        assert "attempt cannot be read" in node(cluster).unhealthy
        await conversation.say(encode(Report(5, (replace(ended, exit_code=3), running))))
        assert cluster.manager.state.jobs[running.id.job].exit_code == 3
        assert node(cluster).unhealthy == ""
        await conversation.end()

    besieged(course, tmp_path)


def test_a_flood_of_attempts_hides_none_that_the_node_was_given(tmp_path: Path) -> None:
    async def course(cluster: Besieged) -> None:
        conversation, running = await at_work(cluster)
        flood = tuple(AttemptReport(AttemptId("9", number, 1), Phase.ENDED) for number in range(10_000))
        await conversation.say(encode(Report(3, (*flood, running))))
        assert cluster.manager.state.jobs[running.id.job].state is JobState.RUNNING
        assert len(cluster.manager.core.hub.contacts[LIAR].report.attempts) < 5_000
        await conversation.end()

    besieged(course, tmp_path)


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

    besieged(course, tmp_path)


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
        asks = [asyncio.create_task(requests.ask(seen.append, AttemptId("1", 0, 1), 0, 1, 0, 0)) for _ in range(20)]
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


def test_a_question_ends_with_the_session_that_was_asked(tmp_path: Path) -> None:
    async def course(cluster: Besieged) -> None:
        conversation, running = await at_work(cluster)
        reading = asyncio.create_task(cluster.manager.read_log(running.id, 0, 100, 10_000))
        await cluster.until(lambda: any(isinstance(one, ReadLog) for one in conversation.heard), "the question")
        await conversation.end()
        with pytest.raises(RefusedError, match="does not answer"):
            await asyncio.wait_for(reading, 5)

    besieged(course, tmp_path)


# ------------------------------------------------------------------------------------------------------------ isolation


def test_no_message_takes_back_that_teams_are_kept_apart(tmp_path: Path) -> None:
    async def course(cluster: Besieged) -> None:
        conversation, running = await at_work(cluster)
        cluster.manager.state.shared_user_accepted = False
        await conversation.say(encode(Report(3, (running,), replace(GOOD, isolation=Isolation.NONE))))
        assert "one and the same user" in node(cluster).unhealthy
        assert node(cluster).facts.isolation is Isolation.USERS
        cluster.manager.state.shared_user_accepted = True
        await conversation.end()

    besieged(course, tmp_path)


def test_a_second_team_is_refused_beside_a_node_that_would_share_a_user_also_if_it_is_silent(tmp_path: Path) -> None:
    async def course(cluster: Besieged) -> None:
        conversation, running = await at_work(cluster)
        state = cluster.manager.state
        both = (state.queues, state.teams)
        state.queues, state.teams = state.queues[:1], {"vision": state.teams["vision"]}
        state.shared_user_accepted = False
        for name in HONEST:
            facts = replace(state.nodes[name].facts, isolation=Isolation.USERS)
            state.nodes[name] = replace(state.nodes[name], facts=facts)
        await conversation.say(encode(Report(3, (running,), replace(GOOD, isolation=Isolation.NONE))))
        assert node(cluster).facts.isolation is Isolation.NONE, "one team may"
        for silent in (None, 5):
            state.nodes[LIAR] = replace(node(cluster), silent_since_ms=silent)
            with pytest.raises(RefusedError, match="one and the same user"):
                await cluster.manager.do(SetTeams(both[0]), ROOT)
        await conversation.end()

    async def live() -> None:
        cluster = Besieged(tmp_path)
        await cluster.start()
        await course(cluster)
        await cluster.stop()

    asyncio.run(live())


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

    besieged(course, tmp_path)


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

    besieged(course, tmp_path)


def test_reports_that_come_too_fast_wait_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        now[0] += int(seconds * 1000)

    async def flood() -> None:
        pace = agent_pace.Pace()
        for number in range(10_000):
            await pace.keep(Report(1 + number), 100)

    monkeypatch.setattr(agent_pace, "monotonic_ms", lambda: now[0])
    monkeypatch.setattr(agent_pace.asyncio, "sleep", sleep)
    asyncio.run(flood())
    assert now[0] >= 1000 * (10_000 / agent_pace.REPORTS_PER_S - agent_pace.BURST_S) - 1000


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

    besieged(course, tmp_path)


# ---------------------------------------------------------------------------------------------- the whole way, over TLS


@pytest.mark.slow
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
                call = channel.stream_stream(SESSION)()
                await call.write(encode(Hello(LIAR, "i", "b", "0", facts)))
                assert isinstance(decode_manager(await call.read()), Welcome)
                await call.write(encode(Report(7, facts=facts)))
                assert isinstance(decode_manager(await call.read()), Desired)
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
