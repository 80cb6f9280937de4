"""The agents' door listens to one session per machine: the newest, of a machine that is still one of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from gpuyard.service.agents import AgentsPort, Door
from gpuyard.wire.agents import Report, encode
from gpuyard.worlds.standalone.records import NodeRecord, State


class Listener:
    """A manager that notes what it is told."""

    lease_ms = 60_000
    ready = True

    def __init__(self) -> None:
        self.state = State(nodes={"a": NodeRecord("a", 0, fingerprint="first")})
        self.heard: list[int] = []

    def agent_reported(self, node: str, report: Report) -> None:
        self.heard.append(report.sent_ms)


def newer_session(manager: Listener, door: Door) -> None:
    door._replace("a", "first")


def removed(manager: Listener, door: Door) -> None:
    del manager.state.nodes["a"]


def joined_again(manager: Listener, door: Door) -> None:
    manager.state.nodes["a"] = NodeRecord("a", 0, fingerprint="second")


@pytest.mark.parametrize("change", [newer_session, removed, joined_again])
def test_what_was_on_the_way_when_a_session_ceased_to_count_is_not_taken_in(change: object) -> None:
    manager = Listener()
    door = Door(cast(AgentsPort, manager))
    outbox = door._replace("a", "first")

    async def messages() -> AsyncIterator[bytes]:
        yield encode(Report(1))
        change(manager, door)  # type: ignore[operator]
        yield encode(Report(2))

    asyncio.run(door._read(messages(), "a", outbox))
    assert manager.heard == [1]
    assert outbox.closed
