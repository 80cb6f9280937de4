"""Thousands of hostile requests to a running manager: none is answered with an error of its own, none ends it.

GPUYARD_FUZZ_SEED=N draws the cases of that seed. A case that fails prints one line to run it, and those before it that
made the state it met, again: GPUYARD_FUZZ_REST=SEED:NUMBER. `make test-long` draws 200 000.
"""

from __future__ import annotations

import http.client
import logging
import os
import random
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from gpuyard.service.problems import KINDS, ProblemReason
from gpuyard.wire.access import Grant, Role
from gpuyard.wire.rest import Problem
from gpuyard.worlds.standalone.intents import SetUser
from tests.security.raw import place_of
from tests.security.rest_cases import ALL, CHANGES, JOBS, SCHEDULES, TEAM_TREES, Case, Names, make
from tests.service.yard import Yard
from tests.vdk.control.jobs import DataJobs

pytestmark = pytest.mark.slow

LONG: Final = os.environ.get("GPUYARD_LONG") == "1"
CASES: Final = int(os.environ.get("GPUYARD_FUZZ_CASES", "200000" if LONG else "2000"))
BATCH: Final = 500
"""So many share a manager: what they have made is in each other's way, and is not kept for ever."""
LOOK_EVERY: Final = 100
ANSWER_S: Final = 20.0
STREAM_S: Final = 0.2
KEEPER: Final = "keeper-of-the-tests"
"""An admin nobody else knows of: requests take roles and tokens away from those whose names they know."""
STREAMS: Final = ("watch=", "follow=")
AWAY: Final = frozenset({ProblemReason.UNAVAILABLE, ProblemReason.MACHINE_AWAY})


class Answer(NamedTuple):
    status: int
    media: str
    body: bytes


class Client:
    """One connection at a time, kept as long as the server does; it sends whatever it is given."""

    def __init__(self, yard: Yard) -> None:
        self._place = place_of(yard)
        self._socket: socket.socket | None = None

    def send(self, case: Case, token: str) -> Answer | None:
        """None: a stream, which was looked at and left."""
        method, target, lines = case.head
        said = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", *(f"{name}: {value}" for name, value in lines)]
        said += [f"Authorization: Bearer {token}"] if token else []
        said += [f"Content-Length: {len(case.body)}"] if case.body else []
        try:
            return self._exchange("\r\n".join([*said, "", ""]).encode("latin-1", "replace") + case.body, case)
        except (http.client.RemoteDisconnected, ConnectionError):
            # It was closed after the answer before, as it may be; once more on a fresh one.
            self.close()
            return self._exchange("\r\n".join([*said, "", ""]).encode("latin-1", "replace") + case.body, case)

    def _exchange(self, data: bytes, case: Case) -> Answer | None:
        streams = any(word in case.head[1] for word in STREAMS)
        if self._socket is None:
            self._socket = socket.create_connection(self._place)
        self._socket.settimeout(STREAM_S if streams else ANSWER_S)
        self._socket.sendall(data)
        response = http.client.HTTPResponse(self._socket, method=case.head[0])
        try:
            response.begin()
            answer = Answer(response.status, response.headers.get("content-type", ""), response.read())
            closes = response.will_close
        except TimeoutError:
            self.close()
            if streams:
                return None
            raise
        finally:
            response.close()
        if closes:
            self.close()
        return answer

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Errors(logging.Handler):
    """What the server's log calls an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@contextmanager
def errors_logged() -> Iterator[Errors]:
    heard = Errors()
    logging.getLogger().addHandler(heard)
    try:
        yield heard
    finally:
        logging.getLogger().removeHandler(heard)


class Fuzzer:
    """One manager, and the cases of one batch."""

    def __init__(self, yard: Yard, seed: int, errors: Errors) -> None:
        self._yard = yard
        self._seed = seed
        self._errors = errors
        self._client = Client(yard)
        yard.do(SetUser(KEEPER, (Grant(Role.ADMIN),)))
        self._keeper = yard.token(KEEPER)
        self._hidden = frozenset(yard.manager.state.tokens)
        self._plans = furnish(yard)
        self.statuses: Counter[int] = Counter()
        self.reached: Counter[str] = Counter()

    def run(self, first: int, last: int) -> None:
        for number in range(first, last):
            case = make(self._seed, number, self._names)
            try:
                self._one(case)
                if number % LOOK_EVERY == 0 or number == last - 1:
                    self._look()
            except BaseException:
                print(f"\nfailed: GPUYARD_FUZZ_REST={self._seed}:{number} runs it again\n{case}")
                raise
        self._client.close()

    def _names(self) -> Names:
        state = self._yard.manager.state
        tokens = tuple(token for token in state.tokens if token not in self._hidden)
        return Names(tuple(state.jobs)[-8:] or ("1",), tokens[-2:] or ("x",), self._plans)

    def _one(self, case: Case) -> None:
        answer = self._client.send(case, self._yard.tokens.get(case.user, ""))
        if answer is None:
            self.reached[case.operation] += 1
            return
        self.statuses[answer.status] += 1
        if answer.status < 400:
            self.reached[case.operation] += 1
        check(answer)
        assert not self._errors.lines, self._errors.lines

    def _look(self) -> None:
        """It lives, it plans, and it still knows who may what."""
        known = Case("status", KEEPER, ("GET", "/v1/status", ()), b"")
        answer = self._client.send(known, self._keeper)
        assert answer is not None
        assert answer.status == 200, answer
        failed = self._yard.manager.failed
        assert failed is not None
        assert not failed.done(), failed.exception()


def furnish(yard: Yard) -> tuple[str, ...]:
    """Something of every kind, so that requests meet it; the plans of the pool."""

    def ask(method: str, path: str, body: dict[str, Any]) -> Any:
        answer = yard.ask("root", method, path, json=body)
        assert answer.status_code < 300, (path, answer.text)
        return answer.json()

    for job in JOBS[:3]:
        ask("POST", "/v1/jobs", job)
    ask("PUT", "/v1/schedules/vision/nightly", SCHEDULES[0])
    ask("POST", "/v1/tokens", {"name": "spare"})
    ask("PUT", "/v1/pool/machines/large", {"devices": 64})
    ask("PUT", "/v1/pool/budgets/vision", {"amount": 16})
    plans = [ask("POST", "/v1/pool/provision", {"name": f"p{n}", "team": "vision", "amount": "1"}) for n in range(3)]
    data_jobs = DataJobs(yard, "root")
    data_jobs.create("shared-job")
    data_jobs.deploy("shared-job")
    data_jobs.start("shared-job")
    return tuple(str(plan["plan"]) for plan in plans)


def check(answer: Answer) -> None:
    """An answer is a success, or a refusal that says what is wrong and nothing of the inside."""
    assert b"Traceback" not in answer.body
    assert b"unexpected error" not in answer.body, answer
    if answer.status < 400 or not answer.body:
        assert answer.status != 500
        return
    if not answer.media.startswith("application/problem+json"):
        # Told by the HTTP server itself, or in OAuth's own words.
        assert answer.status in (400, 429), answer
        return
    problem = msgspec.json.decode(answer.body, type=Problem)
    reason = ProblemReason(problem.reason)
    assert problem.status == answer.status
    assert KINDS[reason].status == answer.status
    assert answer.status < 500 or reason in AWAY, answer
    assert problem.detail


def test_no_request_is_answered_with_an_error_of_our_own(tmp_path: Path) -> None:
    told = os.environ.get("GPUYARD_FUZZ_REST", "")
    seed, _, number = told.partition(":")
    drawn = int(seed or os.environ.get("GPUYARD_FUZZ_SEED", "") or random.SystemRandom().randrange(1 << 32))
    first, last = (int(number) // BATCH * BATCH, int(number) + 1) if number else (0, CASES)
    print(f"seed {drawn}: GPUYARD_FUZZ_SEED={drawn}")
    statuses: Counter[int] = Counter()
    reached: Counter[str] = Counter()
    for begin in range(first, last, BATCH):
        folder = tmp_path / str(begin)
        folder.mkdir()
        with errors_logged() as errors, Yard(folder) as yard:
            fuzzer = Fuzzer(yard, drawn, errors)
            fuzzer.run(begin, min(begin + BATCH, last))
        statuses += fuzzer.statuses
        reached += fuzzer.reached
    print(f"{last - first} requests: {dict(sorted(statuses.items()))}")
    if not number and CASES >= 2000:
        # A fuzzer whose requests are all turned away at the door tries nothing.
        assert sum(count for status, count in statuses.items() if status < 400) > CASES / 10
        assert len(reached) > len(ALL) * 0.6, sorted({one.name for one in ALL} - reached.keys())


def test_the_same_seed_gives_the_same_requests() -> None:
    names = Names(("1", "2"), ("t",), ("1",))
    for number in range(200):
        assert make(7, number, lambda: names) == make(7, number, lambda: names)
    assert {make(7, number, lambda: names).operation for number in range(2000)} == {one.name for one in ALL}


def test_what_is_made_hostile_was_right_before(fresh_yard: Yard) -> None:
    """Else a request is refused for the same reason whatever is done to it."""
    kinds = (
        ("POST", "/v1/jobs", JOBS),
        ("PATCH", "/v1/teams?dry_run=1", TEAM_TREES),
        ("POST", "/v1/what-if", CHANGES),
        ("PUT", "/v1/schedules/vision/nightly", SCHEDULES),
    )
    for method, path, bodies in kinds:
        for body in bodies:
            answer = fresh_yard.ask("root", method, path, json=body)
            assert answer.status_code < 300, (body, answer.text)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(500, "application/problem+json", b'{"title":"x","status":500,"reason":"Internal","detail":"x"}'),
        Answer(500, "text/plain", b"Internal Server Error"),
        Answer(500, "", b""),
        Answer(503, "application/problem+json", b'{"title":"x","status":503,"reason":"NoSuchWord","detail":"x"}'),
        Answer(400, "application/problem+json", b'{"title":"x","status":400,"reason":"NotAllowed","detail":"x"}'),
        Answer(400, "application/problem+json", b'{"title":"x","status":400,"reason":"BadField"}'),
        Answer(200, "text/plain", b"Traceback (most recent call last)"),
        Answer(502, "text/html", b"<html>"),
    ],
)
def test_what_would_be_a_finding_is_one(answer: Answer) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check(answer)
