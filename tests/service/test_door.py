"""The agents' door listens to one session per machine: the newest, of a machine that is still one of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from gpuyard.service.agents import AgentsPort, Certified, Door
from gpuyard.service.certificates import Authority, Pair, fingerprint_of
from gpuyard.wire.agents import Hello, Isolation, MachineFacts, ManagerMessage, Refused, Report, Welcome, encode
from gpuyard.worlds.standalone.records import NodeRecord, State, TeamRecord


class Listener:
    """A manager that notes what it is told."""

    lease_ms = 60_000
    ready = True

    def __init__(self) -> None:
        self.state = State(nodes={"a": NodeRecord("a", 0, fingerprint="first")})
        self.state.cluster = "yard"
        self.heard: list[int] = []
        self.began: list[object] = []
        self.gone: list[object] = []

    def agent_connected(self, hello: Hello, send: object) -> None:
        self.began.append(send)

    def agent_gone(self, node: str, send: object) -> None:
        self.gone.append(send)

    def agent_reported(self, node: str, report: Report) -> None:
        self.heard.append(report.sent_ms)


def newer_session(manager: Listener, door: Door) -> None:
    door._replace(Certified("a", "first"))


def removed(manager: Listener, door: Door) -> None:
    del manager.state.nodes["a"]


def joined_again(manager: Listener, door: Door) -> None:
    manager.state.nodes["a"] = NodeRecord("a", 0, fingerprint="second")


@pytest.mark.parametrize("change", [newer_session, removed, joined_again])
def test_what_was_on_the_way_when_a_session_ceased_to_count_is_not_taken_in(change: object) -> None:
    manager = Listener()
    door = Door(cast(AgentsPort, manager))
    outbox = door._replace(Certified("a", "first"))

    async def messages() -> AsyncIterator[bytes]:
        yield encode(Report(1))
        change(manager, door)  # type: ignore[operator]
        yield encode(Report(2))

    asyncio.run(door._read(messages(), "a", outbox, outbox.send))
    assert manager.heard == [1]
    assert outbox.closed


class Line:
    """A connection with a certificate, as gRPC shows it."""

    def __init__(self, pair: Pair) -> None:
        self._pem = pair.certificate

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_common_name": [b"a"], "x509_pem_cert": [self._pem]}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Authority.in_folder(tmp_path_factory.mktemp("ca"), "yard").machine_with_key("a")


def hello(isolation: Isolation = Isolation.USERS) -> bytes:
    return encode(Hello("a", "incarnation", "boot", "0", MachineFacts(isolation=isolation)))


async def first_answers(door: Door, messages: AsyncIterator[bytes], pair: Pair) -> list[ManagerMessage]:
    """Until the session is over, which it is when there is nothing more to read."""
    return [message async for message in door._session(messages, Line(pair))]


def test_a_session_that_is_over_is_told_by_the_very_value_it_was_told_by_when_it_began(pair: Pair) -> None:
    """Else a machine whose agent has gone counts as connected for ever, and who asks for its logs waits in vain."""
    manager = Listener()
    manager.state.nodes["a"] = NodeRecord("a", 0, fingerprint=fingerprint_of(pair.certificate))

    async def messages() -> AsyncIterator[bytes]:
        yield hello()

    answers = asyncio.run(first_answers(Door(cast(AgentsPort, manager)), messages(), pair))
    assert isinstance(answers[0], Welcome)
    assert len(manager.began) == len(manager.gone) == 1
    assert manager.began[0] is manager.gone[0]


@pytest.mark.parametrize("change", [removed, joined_again])
def test_who_says_hello_only_after_its_machine_was_removed_or_has_joined_anew_is_refused(
    change: object, pair: Pair
) -> None:
    manager = Listener()
    manager.state.nodes["a"] = NodeRecord("a", 0, fingerprint=fingerprint_of(pair.certificate))
    door = Door(cast(AgentsPort, manager))

    async def messages() -> AsyncIterator[bytes]:
        change(manager, door)  # type: ignore[operator]
        yield hello()
        yield encode(Report(1))

    (answer,) = asyncio.run(first_answers(door, messages(), pair))
    assert isinstance(answer, Refused)
    assert not answer.again
    assert (manager.began, manager.heard) == ([], [])


@pytest.mark.parametrize(
    ("teams", "accepted", "isolation", "taken"),
    [
        (1, False, Isolation.NONE, True),
        (2, False, Isolation.NONE, False),
        (2, True, Isolation.NONE, True),
        (2, False, Isolation.USERS, True),
    ],
)
def test_where_teams_would_share_a_user_a_machine_is_taken_only_if_that_was_accepted(
    teams: int, accepted: bool, isolation: Isolation, taken: bool, pair: Pair
) -> None:
    """A second team is refused where such a machine is; the machine came in where there were two teams before it."""
    manager = Listener()
    manager.state.nodes["a"] = NodeRecord("a", 0, fingerprint=fingerprint_of(pair.certificate))
    manager.state.teams = {f"team-{number}": TeamRecord(number) for number in range(teams)}
    manager.state.shared_user_accepted = accepted

    async def messages() -> AsyncIterator[bytes]:
        yield hello(isolation)

    answer = asyncio.run(first_answers(Door(cast(AgentsPort, manager)), messages(), pair))[0]
    assert isinstance(answer, Welcome) is taken
    if isinstance(answer, Refused):
        assert answer.again
        assert "--accept-shared-user" in answer.why


def test_who_has_a_certificate_of_one_machine_cannot_speak_for_another(pair: Pair) -> None:
    manager = Listener()
    manager.state.nodes = {name: NodeRecord(name, 0, fingerprint=fingerprint_of(pair.certificate)) for name in "ab"}

    async def messages() -> AsyncIterator[bytes]:
        yield encode(Hello("b", "incarnation", "boot", "0", MachineFacts()))

    (answer,) = asyncio.run(first_answers(Door(cast(AgentsPort, manager)), messages(), pair))
    assert isinstance(answer, Refused)
    assert answer.why == 'the certificate is of machine "a", not of "b"'
    assert manager.began == []
