"""A joined node that lies: what it says counts for itself alone; what is out of range is refused with the reason."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gpuyard.errors import RefusedError
from gpuyard.wire.agent_limits import CUT, MAX_SENTENCE_CHARS
from gpuyard.wire.agents import (
    AttemptId,
    AttemptReport,
    Desired,
    Ending,
    Isolation,
    MachineFacts,
    Phase,
    Report,
    Welcome,
    encode,
)
from gpuyard.worlds.standalone import node_health
from gpuyard.worlds.standalone.intents import SetTeams
from gpuyard.worlds.standalone.lifecycle import JobState, TaskPhase
from gpuyard.worlds.standalone.node_health import CHANGES_TOO_OFTEN, MAX_CHANGES
from tests.security.besieged import HONEST, LIAR, ROOT, Besieged, Conversation, at_work, live_through, node
from tests.security.refused_facts import GOOD, OUT_OF_RANGE

pytestmark = pytest.mark.slow

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
        await cluster.until(lambda: 4 in echoes(conversation), "the renewal of its lease")
        assert why in node(cluster).unhealthy
        await conversation.say(encode(Report(5, (running,), GOOD)))
        assert node(cluster).unhealthy == ""
        await cluster.until(lambda: cluster.manager.state.jobs[waits].tasks[0].attempt, "the start of what waited")
        await conversation.end()

    live_through(course, tmp_path)


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

    live_through(course, tmp_path)


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

    live_through(course, tmp_path)


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

    live_through(course, tmp_path)


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

    live_through(course, tmp_path)


def echoes(conversation: Conversation) -> list[int]:
    """The stamps from which its lease was renewed."""
    return [message.echo_ms for message in conversation.heard if isinstance(message, Desired)]


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

    live_through(course, tmp_path)


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

    live_through(course, tmp_path)


def test_a_flood_of_attempts_hides_none_that_the_node_was_given(tmp_path: Path) -> None:
    async def course(cluster: Besieged) -> None:
        conversation, running = await at_work(cluster)
        flood = tuple(AttemptReport(AttemptId("9", number, 1), Phase.ENDED) for number in range(10_000))
        await conversation.say(encode(Report(3, (*flood, running))))
        assert cluster.manager.state.jobs[running.id.job].state is JobState.RUNNING
        assert len(cluster.manager.core.hub.contacts[LIAR].report.attempts) < 5_000
        await conversation.end()

    live_through(course, tmp_path)


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

    live_through(course, tmp_path)


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
