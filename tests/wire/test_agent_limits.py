"""What an agent may say: each value against its limit, and bytes that raise no exception whatever they are."""

from __future__ import annotations

import random

import msgspec
import pytest
from msgspec.structs import replace

from gpuyard.model.nodes import Device, MigSlices
from gpuyard.wire.agent_limits import (
    CUT,
    attempt_problem,
    cleaned_hello,
    cleaned_report,
    cleaned_text,
    facts_problem,
    message_problem,
)
from gpuyard.wire.agent_reading import Unreadable, read_message
from gpuyard.wire.agents import AttemptId, AttemptReport, Hello, MachineFacts, Phase, Report, encode
from tests.security.hostile_agent import Hostile
from tests.security.refused_facts import GOOD, OUT_OF_RANGE

A_MIG_GPU = Device("A100", 40_000, "GPU-1", numa=-1, mig=(MigSlices("1g.5gb", 4), MigSlices("3g.20gb", 1)))


@pytest.mark.parametrize(("facts", "why"), OUT_OF_RANGE)
def test_facts_out_of_range_are_refused_with_the_reason(facts: MachineFacts, why: str) -> None:
    assert why in facts_problem(facts)


@pytest.mark.parametrize(
    "facts",
    [
        GOOD,
        MachineFacts(),
        replace(GOOD, devices=(Device(),) * 62),
        replace(GOOD, devices=(A_MIG_GPU,)),
        *(replace(GOOD, address=text) for text in ("10.0.0.1", "fe80::1%eth0", "::1", "node-1", "n_1.example.org.")),
        replace(GOOD, labels={"zone": "a", "topology.kubernetes.io/rack": "räck 7", "empty": ""}),
        replace(GOOD, trouble=("two\nlines",), limits_note="n" * 5_000),
    ],
)
def test_facts_in_range_are_not(facts: MachineFacts) -> None:
    assert facts_problem(facts) == ""


def test_a_text_of_an_agent_is_one_line_that_can_be_printed() -> None:
    assert cleaned_text("as it was, ünchanged") == "as it was, ünchanged"
    assert cleaned_text("a\nb\tc") == "a b c"
    assert cleaned_text("\x1b[2J\0\u202e\ud800").isprintable()
    assert cleaned_text("x" * 300, 100) == "x" * (100 - len(CUT)) + CUT


def test_a_job_sets_the_time_of_its_checkpoint_and_makes_no_node_unhealthy_by_it() -> None:
    attempt = AttemptReport(AttemptId("1", 0, 1), Phase.RUNNING, 1, -5, 1 << 60, checkpoint_at_ms=-(1 << 60))
    assert attempt_problem(attempt) == ""


@pytest.mark.parametrize(
    "attempt",
    [
        AttemptReport(AttemptId("1", -1, 1), Phase.RUNNING),
        AttemptReport(AttemptId("1", 0, 1 << 40), Phase.RUNNING),
        AttemptReport(AttemptId("9" * 101, 0, 1), Phase.RUNNING),
        AttemptReport(AttemptId("1", 0, 1), Phase.ENDED, exit_code=300),
        AttemptReport(AttemptId("1", 0, 1), Phase.RUNNING, gpu_percent=101),
    ],
)
def test_an_attempt_out_of_range_is_dropped(attempt: AttemptReport) -> None:
    assert attempt_problem(attempt)


@pytest.mark.parametrize("field", ["incarnation", "boot_id"])
@pytest.mark.parametrize("text", ["", "x" * 101, "a\nb"])
def test_a_session_is_not_opened_under_an_id_out_of_range(field: str, text: str) -> None:
    hello = Hello("a", "i", "b", "0", GOOD)
    assert message_problem(hello) == ""
    assert field in message_problem(replace(hello, **{field: text}))


def test_what_is_in_order_is_read_as_it_was_said() -> None:
    for message in (Hello("a", "i", "b", "0", GOOD), Report(5, (AttemptReport(AttemptId("1", 0, 1), Phase.ENDED),))):
        assert read_message(encode(message)) == message


def test_of_a_message_whose_facts_or_attempts_cannot_be_read_the_rest_counts() -> None:
    good = AttemptReport(AttemptId("1", 0, 1), Phase.RUNNING)
    tree = msgspec.msgpack.decode(encode(Report(5, (good, good), GOOD)))
    tree["facts"]["cpu_milli"] = 1.5
    tree["attempts"][1] = {"id": None}
    read = read_message(msgspec.msgpack.encode(tree))
    assert isinstance(read, Report)
    assert (read.sent_ms, read.attempts, read.facts) == (5, (good,), None)
    assert "cpu_milli" in read.unreadable
    assert read.unreadable_attempts
    tree = msgspec.msgpack.decode(encode(Hello("a", "i", "b", "0", GOOD)))
    del tree["facts"]["cpu_milli"]
    tree["facts"]["devices"] = "many"
    hello = read_message(msgspec.msgpack.encode(tree))
    assert isinstance(hello, Hello)
    assert (hello.node, hello.facts) == ("a", MachineFacts())
    assert "devices" in hello.unreadable


def test_no_bytes_raise_an_exception() -> None:
    rng = random.Random(1)
    ids = [AttemptId("1", 0, 1), AttemptId("2", 3, 4)]
    for _ in range(200):
        hostile = Hostile(rng, "a", ids, ids)
        for data in (hostile.message(), hostile.hello("i")):
            message = read_message(data)
            if isinstance(message, Unreadable):
                assert message.why.isprintable()
                continue
            assert len(message_problem(message)) < 1_000
            if isinstance(message, Hello):
                assert cleaned_hello(message).version.isprintable()
            if isinstance(message, Report):
                cleaned = cleaned_report(message)
                assert all(attempt.message.isprintable() for attempt in cleaned.attempts)
