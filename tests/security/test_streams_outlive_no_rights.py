"""A stream ends within five seconds of the moment its request would be refused: each cause x each kind of stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final

import msgspec
import pytest

from gpuyard.service.handlers import HANDLERS
from gpuyard.wire.access import Grant, Role, Scope
from gpuyard.wire.agents import AttemptId
from gpuyard.wire.rest import Problem
from gpuyard.worlds.standalone.intents import RemoveUser, RevokeToken, SetUser
from tests.security.raw import Follower, exchange, place_of, request, status_of
from tests.service.yard import MovedClock, Yard
from tests.vdk.control.jobs import DataJobs

pytestmark = pytest.mark.slow

WITHIN_S: Final = 5.0
LARGE: Final = 48 << 20
"""More than sockets hold: the rest of it waits for its reader."""
LEAD: Final = (Grant(Role.LEAD, "vision"), Grant(Role.VIEWER, "speech"))

_numbers = count(1)


Follow = Callable[..., Follower]


@pytest.fixture
def follow(yard: Yard) -> Iterator[Follow]:
    """Open a stream, which is closed with the test."""
    with followers_of(yard) as opened:
        yield opened


@contextmanager
def followers_of(yard: Yard) -> Iterator[Follow]:
    opened: list[Follower] = []

    def open_one(path: str, token: str, *, reads: bool = True) -> Follower:
        opened.append(Follower(yard, path, token, reads=reads))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


class Person:
    """Somebody of a test's own, with a token."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        self.name = f"person-{next(_numbers)}"
        yard.do(SetUser(self.name, LEAD))
        self.token = yard.token(self.name)
        self.token_id = self.token.split("_")[1]


# ---------------------------------------------------------------------------------------------------------- the causes


def revoked(person: Person) -> None:
    person.yard.do(RevokeToken(person.token_id))


def expired(person: Person) -> None:
    clock = person.yard.clock
    clock.ahead_ms += 7_200_000


def removed(person: Person) -> None:
    person.yard.do(RemoveUser(person.name))


def without_roles(person: Person) -> None:
    person.yard.do(SetUser(person.name, ()))


def of_another_team(person: Person) -> None:
    person.yard.do(SetUser(person.name, (Grant(Role.LEAD, "product"),)))


def out_of_the_team(person: Person) -> None:
    """Still allowed to see events and jobs, of speech; those of vision are out of sight."""
    person.yard.do(SetUser(person.name, (Grant(Role.VIEWER, "speech"),)))


def only_a_viewer(person: Person) -> None:
    """Still sees the job; what it writes is not for viewers."""
    person.yard.do(SetUser(person.name, (Grant(Role.VIEWER, "vision"), Grant(Role.VIEWER, "speech"))))


CAUSES: Final[dict[str, tuple[Callable[[Person], None], str]]] = {
    "revoked": (revoked, "SignInNeeded"),
    "expired": (expired, "SignInNeeded"),
    "removed": (removed, "SignInNeeded"),
    "without roles": (without_roles, "NotAllowed"),
    "of another team": (of_another_team, ""),
    "out of the team": (out_of_the_team, ""),
    "only a viewer": (only_a_viewer, "NotAllowed"),
}
"""With the word of the refusal, where it is the same for all streams."""


# ----------------------------------------------------------------------------------------------------------- the kinds


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with Yard(tmp_path_factory.mktemp("yard"), clock=MovedClock()) as running:
        yield running


@pytest.fixture
def person(yard: Yard) -> Iterator[Person]:
    yard.clock.ahead_ms = 0
    yield Person(yard)
    yard.clock.ahead_ms = 0
    yard.machine.silent = False


@pytest.fixture(scope="module")
def quiet_job(yard: Yard) -> str:
    """It runs and writes nothing more."""
    id = yard.submit("mia", gpus=0)
    yard.wait_for(id, "running")
    return id


@pytest.fixture(scope="module")
def pending_job(yard: Yard) -> str:
    return yard.submit("mia", gpus=0, hold=True)


@pytest.fixture(scope="module")
def loud_job(yard: Yard) -> str:
    id = yard.submit("mia", gpus=0)
    yard.wait_for(id, "running")
    yard.machine.logs[AttemptId(id, 0, 1)] = b"x" * LARGE
    return id


KINDS: Final = {
    "all events": "/v1/events?watch=1",
    "events of a job": "/v1/events?watch=1&object=job/{quiet}",
    "events of a kind that does not happen": "/v1/events?watch=1&kind=node-lost",
    "a log that is followed": "/v1/jobs/{quiet}/logs?follow=1",
    "the log of a job that waits": "/v1/jobs/{pending}/logs?follow=1",
}
OF_EVENTS: Final = [kind for kind in KINDS if "events" in kind]

ENDS: Final = [
    (kind, cause) for kind in KINDS for cause in CAUSES if (kind in OF_EVENTS, cause) != (True, "only a viewer")
]
"""A viewer may see events."""


@pytest.fixture
def path(kind: str, quiet_job: str, pending_job: str) -> str:
    return KINDS[kind].format(quiet=quiet_job, pending=pending_job)


def problem_in(answer: bytes) -> Problem:
    """The refusal, be it the whole answer or the last message of a stream."""
    text = answer[answer.rindex(b'{"title"') :]
    return msgspec.json.decode(text[: text.rindex(b"}") + 1], type=Problem)


@pytest.mark.parametrize(("kind", "cause"), ENDS)
def test_it_ends_and_says_why(yard: Yard, follow: Follow, person: Person, path: str, kind: str, cause: str) -> None:
    other = Person(yard)
    follower, unconcerned = follow(path, person.token), follow(path, other.token)
    if "waits" in kind:
        time.sleep(0.3)
    else:
        follower.begun()
        unconcerned.begun()
    lose, reason = CAUSES[cause]
    lose(person)
    assert follower.ended_within(WITHIN_S), follower.answer
    if "followed" in kind:
        # Nothing can be said in a log, so it is broken off: nobody takes it for whole.
        assert not follower.whole
    else:
        found = problem_in(follower.answer)
        assert found.reason == reason or not reason
        assert found.status in (401, 403, 404)
        assert follower.whole
    if cause != "expired":
        assert not unconcerned.ended_within(0.2), "somebody else's stream ended, too"
    if reason or kind not in OF_EVENTS:
        again = exchange(yard, request("GET", path, "Connection: close", token=person.token))
        assert status_of(again) in (401, 403, 404)


def test_the_log_of_a_job_that_waits_is_refused_with_a_status_of_its_own(
    yard: Yard, follow: Follow, person: Person, pending_job: str
) -> None:
    follower = follow(f"/v1/jobs/{pending_job}/logs?follow=1", person.token)
    time.sleep(0.3)
    out_of_the_team(person)
    assert follower.ended_within(WITHIN_S)
    assert (status_of(follower.answer), problem_in(follower.answer).reason) == (403, "NotAllowed")


@pytest.mark.parametrize("cause", ["revoked", "only a viewer"])
@pytest.mark.parametrize("path", ["/v1/jobs/{id}/logs", "/v1/jobs/{id}/logs?follow=1"])
def test_who_waits_for_a_machine_that_does_not_answer_is_told(
    yard: Yard, follow: Follow, person: Person, quiet_job: str, path: str, cause: str
) -> None:
    yard.machine.silent = True
    follower = follow(path.format(id=quiet_job), person.token)
    time.sleep(0.3)
    CAUSES[cause][0](person)
    assert follower.ended_within(WITHIN_S)
    assert problem_in(follower.answer).reason == CAUSES[cause][1]


@pytest.mark.parametrize("cause", ["revoked", "of another team", "only a viewer"])
@pytest.mark.parametrize("query", ["", "?follow=1"])
def test_a_reader_who_is_slow_gets_no_more_than_is_on_its_way(
    yard: Yard, follow: Follow, person: Person, loud_job: str, query: str, cause: str
) -> None:
    """Sending is blocked: nobody asks for a next piece, and the connection must be ended all the same."""
    begin = yard.app.service.traffic.in_flight + yard.app.service.traffic.watching
    follower = follow(f"/v1/jobs/{loud_job}/logs{query}", person.token, reads=False)
    until = time.monotonic() + 10
    while yard.app.service.traffic.in_flight + yard.app.service.traffic.watching == begin:
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(0.5)
    CAUSES[cause][0](person)
    until = time.monotonic() + WITHIN_S
    while yard.app.service.traffic.in_flight + yard.app.service.traffic.watching != begin:
        assert time.monotonic() < until
        time.sleep(0.01)
    follower._read()
    assert len(follower.answer) < LARGE / 2
    assert not follower.whole


def test_the_end_of_an_executions_log_is_not_told_to_who_lost_the_right_while_the_machine_was_asked(
    yard: Yard, follow: Follow, person: Person
) -> None:
    jobs = DataJobs(yard, "mia")
    name = jobs.ready()
    id = jobs.start(name)
    yard.wait_for(id, "running")
    yard.machine.silent = True
    follower = follow(f"/data-jobs/for-team/vision/jobs/{name}/executions/{id}/logs", person.token)
    time.sleep(0.3)
    only_a_viewer(person)
    assert follower.ended_within(WITHIN_S)
    assert status_of(follower.answer) == 403


def test_sources_are_not_sent_on_to_who_may_not_have_them_any_more(yard: Yard, follow: Follow, person: Person) -> None:
    import random

    noise = random.Random(3).randbytes(7 << 19).hex()
    jobs = DataJobs(yard, "mia")
    name = jobs.create()
    assert jobs.upload(name, f"# {noise}").status_code == 200
    follower = follow(f"/data-jobs/for-team/vision/jobs/{name}/sources", person.token, reads=False)
    time.sleep(1.0)
    out_of_the_team(person)
    time.sleep(3.0)
    assert yard.app.service.traffic.in_flight == 0
    follower._read()
    assert not follower.whole


# ----------------------------------------------------------------------------------------------------- teams and scopes


def test_with_a_team_its_streams_end(fresh_yard: Yard) -> None:
    def change(method: str, path: str, **options: object) -> None:
        answer = fresh_yard.ask("root", method, path, **options)
        assert answer.status_code == 200, answer.text

    change("PATCH", "/v1/teams", json={"queues": {"short": {"new": True, "parent": "research"}}})
    fresh_yard.do(SetUser("only", (Grant(Role.MEMBER, "short"),)))
    fresh_yard.do(SetUser("both", (Grant(Role.MEMBER, "short"), Grant(Role.MEMBER, "vision"))))
    tokens = {name: fresh_yard.token(name) for name in ("only", "both")}
    with followers_of(fresh_yard) as follow:
        followers = {name: follow("/v1/events?watch=1", token) for name, token in tokens.items()}
        root = follow("/v1/events?watch=1", fresh_yard.tokens["root"])
        for follower in (*followers.values(), root):
            follower.begun()
        change("DELETE", "/v1/teams/short")
        for follower in followers.values():
            assert follower.ended_within(WITHIN_S)
            assert problem_in(follower.answer).reason == "NotAllowed"
        assert b"team short" in followers["both"].answer
        assert not root.ended_within(0.2)


@pytest.mark.parametrize("scope", [Scope.READ, Scope.FULL])
def test_each_scope_follows_its_own_token(
    yard: Yard, follow: Follow, person: Person, quiet_job: str, scope: Scope
) -> None:
    token = yard.token(person.name, scope)
    follower = follow(f"/v1/jobs/{quiet_job}/logs?follow=1", token)
    stays = follow(f"/v1/jobs/{quiet_job}/logs?follow=1", person.token)
    follower.begun()
    stays.begun()
    yard.do(RevokeToken(token.split("_")[1]))
    assert follower.ended_within(WITHIN_S)
    assert not stays.ended_within(0.2)


def test_what_is_streamed_is_what_its_reader_may_know_when_it_is_sent(
    yard: Yard, follow: Follow, person: Person
) -> None:
    """A lead who is made a viewer reads on, and commands are hidden from the next event on."""
    follower = follow("/v1/events?watch=1&kind=job-submitted", person.token)
    follower.begun()
    yard.submit("mia", gpus=0, hold=True, name="one", command=["before"])
    only_a_viewer(person)
    yard.submit("mia", gpus=0, hold=True, name="two", command=["afterwards"])
    until = time.monotonic() + 10
    while follower.answer.count(b"event: job-submitted") < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert b"before" in follower.answer
    assert b"afterwards" not in follower.answer


# ----------------------------------------------------------------------------------------------- what waits for a body


def test_a_body_that_was_begun_with_rights_does_nothing_once_they_are_gone(
    yard: Yard, follow: Follow, person: Person
) -> None:
    import socket

    body = b'{"command": ["x"], "team": "vision", "gpus": 0, "hold": true}'
    head = request(
        "POST",
        "/v1/jobs",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        token=person.token,
    )
    before = yard.manager.state.next_job
    with socket.create_connection(place_of(yard), timeout=10) as connection:
        connection.sendall(head + body[:5])
        time.sleep(0.3)
        revoked(person)
        connection.sendall(body[5:])
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert (status_of(answer), problem_in(answer).reason) == (401, "SignInNeeded")
    assert yard.manager.state.next_job == before


def test_an_answer_that_took_long_is_for_the_rights_of_its_end(
    yard: Yard, follow: Follow, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    from gpuyard.service import rights

    monkeypatch.setattr(rights, "RIGHTS_SECONDS", 0.1)
    list_jobs = HANDLERS["list_jobs"]
    id = yard.submit("mia", gpus=0, hold=True)

    async def slowly(call):  # type: ignore[no-untyped-def]
        answer = await list_jobs(call)
        await asyncio.sleep(0.5)
        return answer

    monkeypatch.setitem(HANDLERS, "list_jobs", slowly)
    from gpuyard.service.routing import PathEndpoint

    for route in yard.app._router.routes:
        endpoint = getattr(route, "endpoint", None)
        if isinstance(endpoint, PathEndpoint) and "list_jobs" in {one.name for one in endpoint._operations.values()}:
            monkeypatch.setattr(endpoint, "_handlers", HANDLERS)
    follower = follow("/v1/jobs?limit=1000", person.token)
    time.sleep(0.2)
    out_of_the_team(person)
    assert follower.ended_within(WITHIN_S) or follower.answer
    assert f'"id":"{id}"'.encode() not in follower.answer


def test_a_client_that_leaves_while_its_job_waits_gives_its_stream_back(
    yard: Yard, follow: Follow, person: Person, pending_job: str
) -> None:
    follower = follow(f"/v1/jobs/{pending_job}/logs?follow=1", person.token, reads=False)
    until = time.monotonic() + 10
    while person.token_id not in yard.app.service.traffic.watchers:
        assert time.monotonic() < until
        time.sleep(0.01)
    follower.close()
    while person.token_id in yard.app.service.traffic.watchers:
        assert time.monotonic() < until
        time.sleep(0.01)
