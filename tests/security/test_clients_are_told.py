"""Clients show why a stream was ended, and do not come back in silence: both SDK clients, and the command line."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from click.testing import CliRunner

from gpuyard.cli.exit_codes import NOT_ALLOWED
from gpuyard.cli.main import cli
from gpuyard.errors import ClientError, NotAllowedError, NotSignedInError
from gpuyard.sdk.async_client import AsyncClient
from gpuyard.sdk.client import Client
from gpuyard.wire.access import Grant, Role
from gpuyard.worlds.standalone.intents import RemoveUser, RevokeToken, SetUser
from tests.service.yard import Yard

pytestmark = pytest.mark.slow

_numbers = count(1)
LOSE_AFTER_S = 0.5
WITHIN_S = 10.0


class Person:
    def __init__(self, yard: Yard) -> None:
        self.name = f"client-{next(_numbers)}"
        yard.do(SetUser(self.name, (Grant(Role.LEAD, "vision"), Grant(Role.VIEWER, "speech"))))
        self.token = yard.token(self.name)
        self._yard = yard

    def revoke(self) -> None:
        self._yard.do(RevokeToken(self.token.split("_")[1]))

    def remove(self) -> None:
        self._yard.do(RemoveUser(self.name))

    def demote(self) -> None:
        self._yard.do(SetUser(self.name, (Grant(Role.VIEWER, "speech"),)))

    def bar(self) -> None:
        self._yard.do(SetUser(self.name, ()))


Lose = Callable[[Person], None]
CAUSES: dict[str, tuple[Lose, type[ClientError]]] = {
    "revoked": (Person.revoke, NotSignedInError),
    "removed": (Person.remove, NotSignedInError),
    "demoted": (Person.demote, NotAllowedError),
    "barred": (Person.bar, NotAllowedError),
}


@pytest.fixture
def person(yard: Yard) -> Person:
    return Person(yard)


@pytest.fixture(scope="module")
def job(yard: Yard) -> str:
    id = yard.submit("mia", gpus=0)
    yard.wait_for(id, "running")
    return id


@pytest.fixture
def losing(person: Person) -> Iterator[Callable[[Lose], None]]:
    """Take the rights away in a moment, while the test's own thread follows."""
    timers: list[threading.Timer] = []

    def begin(lose: Lose) -> None:
        timers.append(threading.Timer(LOSE_AFTER_S, lose, (person,)))
        timers[-1].start()

    yield begin
    for timer in timers:
        timer.join()


Losing = Callable[[Lose], None]


@pytest.mark.parametrize("cause", CAUSES)
def test_watching_ends_with_an_error(yard: Yard, person: Person, losing: Losing, cause: str) -> None:
    lose, error = CAUSES[cause]
    with Client(yard.url, person.token) as client:
        losing(lose)
        began = time.monotonic()
        with pytest.raises(error):
            list(client.watch())
    assert time.monotonic() - began < WITHIN_S


@pytest.mark.parametrize("cause", ["revoked", "removed"])
def test_following_a_log_ends_with_an_error(yard: Yard, person: Person, job: str, losing: Losing, cause: str) -> None:
    lose, error = CAUSES[cause]
    with Client(yard.url, person.token) as client:
        losing(lose)
        with pytest.raises(error):
            list(client.logs(job, follow=True))


@pytest.mark.parametrize("cause", CAUSES)
def test_watching_ends_with_an_error_in_async_programs(yard: Yard, person: Person, losing: Losing, cause: str) -> None:
    lose, error = CAUSES[cause]

    async def watch() -> None:
        async with AsyncClient(yard.url, person.token) as client:
            losing(lose)
            async for _ in client.watch():
                pass

    with pytest.raises(error):
        asyncio.run(asyncio.wait_for(watch(), WITHIN_S))


@pytest.mark.parametrize("command", [["logs", "-f", "{job}"], ["wait", "{job}"], ["events", "-w"]])
@pytest.mark.parametrize("cause", ["revoked", "removed"])
def test_the_command_line_says_so_and_ends(
    yard: Yard,
    person: Person,
    job: str,
    losing: Losing,
    monkeypatch: pytest.MonkeyPatch,
    cause: str,
    command: list[str],
) -> None:
    monkeypatch.setenv("GPUYARD_URL", yard.url)
    monkeypatch.setenv("GPUYARD_TOKEN", person.token)
    losing(CAUSES[cause][0])
    done = CliRunner().invoke(cli, [word.format(job=job) for word in command], prog_name="gpuyard")
    assert done.exit_code == NOT_ALLOWED
    assert "the token is not valid" in done.output
    if command[0] != "events":
        assert f"job {job} cannot be followed any more; it goes on" in done.output
