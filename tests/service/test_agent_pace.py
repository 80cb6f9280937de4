"""An agent that speaks too fast, or comes too often, waits; others do not notice."""

from __future__ import annotations

import asyncio

import pytest

from gpuyard.service import agent_pace
from gpuyard.wire.agents import LogPiece, Report


def test_reports_that_come_too_fast_wait_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]

    async def sleep(seconds: float) -> None:
        now[0] += int(seconds * 1000)

    async def flood() -> None:
        pace = agent_pace.Pace()
        for number in range(10_000):
            await pace.keep(Report(1 + number), 100)

    monkeypatch.setattr(agent_pace, "monotonic_ms", lambda: now[0])
    monkeypatch.setattr(asyncio, "sleep", sleep)
    asyncio.run(flood())
    assert now[0] >= 1000 * (10_000 / agent_pace.REPORTS_PER_S - agent_pace.BURST_S) - 1000


def test_what_an_honest_agent_says_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def say() -> None:
        pace = agent_pace.Pace()
        for number in range(100):
            await pace.keep(Report(1 + number), 20_000)
            await pace.keep(LogPiece(1), 256 << 10)

    async def sleep(seconds: float) -> None:
        raise AssertionError("it waits")

    monkeypatch.setattr(asyncio, "sleep", sleep)
    asyncio.run(say())


def test_each_node_has_sessions_of_its_own_and_gets_more_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(agent_pace, "monotonic_ms", lambda: now[0])
    sessions = agent_pace.Sessions()
    opened = [sessions.may_open("a") for _ in range(agent_pace.SESSIONS_PER_MINUTE + 5)]
    assert opened == [True] * agent_pace.SESSIONS_PER_MINUTE + [False] * 5
    assert sessions.may_open("b")
    now[0] += 60_000 // agent_pace.SESSIONS_PER_MINUTE + 1
    assert [sessions.may_open("a"), sessions.may_open("a")] == [True, False]
