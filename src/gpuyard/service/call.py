"""One request, read and checked, as a handler sees it; and what a handler gives back.

Place in the flow: routing ─**Call**─▶ handler ─**Answer**─▶ routing. A handler never sees a header, a status line or an
unchecked value.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import IO, Final

import msgspec

from gpuyard.errors import RefusedError
from gpuyard.service.certificates import Authority
from gpuyard.service.encoded import Encoded
from gpuyard.service.limits import MAX_JOB_BYTES, MAX_PAGE, STREAMS_PER_TOKEN
from gpuyard.service.port import ManagerPort
from gpuyard.service.problems import ProblemReason
from gpuyard.service.signin import SignIn
from gpuyard.service.traffic import Traffic
from gpuyard.wire.access import Caller
from gpuyard.wire.operations import Operation
from gpuyard.wire.rest import Problem
from gpuyard.worlds.standalone.records import State

Parting = Callable[[Problem], bytes]
"""The last message of a stream that is ended from this side."""

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")


class Settings(msgspec.Struct, frozen=True):
    """How the service is run."""

    version: str
    hosts: tuple[str, ...] = LOOPBACK
    """Names it answers to, without ports."""
    tls: bool = False
    agents: str = ""
    """Where agents connect: HOST:PORT."""
    authority: Authority | None = None
    streams_per_token: int = STREAMS_PER_TOKEN
    max_job_bytes: int = MAX_JOB_BYTES
    """Of the body of a job or schedule."""
    warnings: tuple[str, ...] = ()
    """What an operator should know about how it was started."""


class Service(msgspec.Struct, frozen=True):
    """What all handlers share."""

    manager: ManagerPort
    settings: Settings
    signin: SignIn
    traffic: Traffic
    encoded: Encoded


class Call(msgspec.Struct, frozen=True):
    """A request of somebody who is known, for an operation of the table."""

    service: Service
    operation: Operation
    caller: Caller
    path: dict[str, str]
    query: dict[str, object]
    """Every parameter of the operation, those that were not given with their default."""
    body: bytes = b""
    media: str = ""
    value: object = None
    """The body as the type the table names, where it is not read like a file."""
    upload: IO[bytes] | None = None
    """The body of an upload, in a file that is closed with the request."""
    if_match: int | None = None
    key: str = ""
    """The Idempotency-Key."""
    last_event: int | None = None
    address: str = ""
    """Where it comes from, for whoever counts wrong credentials."""
    left: Callable[[], bool] = lambda: False
    """Whether nobody reads the answer any more."""

    @property
    def manager(self) -> ManagerPort:
        return self.service.manager

    @property
    def state(self) -> State:
        return self.service.manager.state

    def text(self, name: str) -> str:
        return str(self.query[name] or "")

    def number(self, name: str) -> int:
        value = self.query[name]
        return value if isinstance(value, int) else 0

    def flag(self, name: str) -> bool:
        return bool(self.query[name])

    @property
    def limit(self) -> int:
        """Items of a page."""
        limit = self.number("limit")
        if not 1 <= limit <= MAX_PAGE:
            what = f"limit must be from 1 to {MAX_PAGE}, not {limit}"
            raise RefusedError(ProblemReason.BAD_PARAMETER, what, fix="ask for pages", field="limit")
        return limit


class Answer(msgspec.Struct, frozen=True):
    """What a handler gives back: a value of the type the table names, or text, or a stream."""

    value: object = None
    status: int = 0
    """0: the operation's own."""
    revision: int | None = None
    """For the ETag."""
    text: str | None = None
    stream: AsyncIterator[bytes] | None = None
    media: str = ""
    """Where it is not the operation's own."""
    headers: tuple[tuple[str, str], ...] = ()
    target: Callable[[Call], object] | None = None
    """Of a stream: authorise the call for what is streamed once more, or refuse it. Asked while the stream goes on."""
    parting: Parting | None = None
    """Of a stream: its last message where its call is refused in the middle; None: its format has none."""
    release: Callable[[], None] | None = None
    """What is given back once the answer is sent, or its reader is gone."""
