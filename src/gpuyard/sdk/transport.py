"""What both transports share: addresses, headers, timeouts, and how long to wait before trying again.

Place in the flow: Call ─**transport**─▶ httpx2 ─▶ the server. Invariants: a token travels in a header only, to the
address it was given for only (no redirect is followed); a request is repeated only where that cannot do a thing twice.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import msgspec

from gpuyard import __version__
from gpuyard.errors import InputError, NotSignedInError, UnreachableError
from gpuyard.platform.chance import some_of
from gpuyard.sdk.answers import TRY_AGAIN
from gpuyard.sdk.calls import Call
from gpuyard.wire.rest import JobDetail

TIMEOUT_MS: Final = 30_000
CONNECT_TIMEOUT_MS: Final = 5_000
STREAM_SILENCE_MS: Final = 60_000
"""A stream that says nothing for so long is opened anew; a living server sends a sign more often."""
MAX_RETRY_AFTER_MS: Final = 5_000
"""A server that wants us to wait longer is not waited for: the caller is told instead."""
MAX_LOG_BYTES: Final = 64 << 20
"""The server sends no more of a log at once; what is longer is read in several answers."""

LOG_OFFSET: Final = "Gpuyard-Log-Offset"
"""Where in its log an answer begins; needed to go on after one that was counted from the end."""
LAST_EVENT: Final = "Last-Event-ID"

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Retry(msgspec.Struct, frozen=True):
    """How often a request is sent at most, and how long is waited in between: doubled each time."""

    attempts: int = 5
    first_wait_ms: int = 100
    most_wait_ms: int = 5_000

    def wait_ms(self, failures: int) -> int:
        return some_of(min(self.first_wait_ms << min(failures - 1, 20), self.most_wait_ms))


STREAM_RETRY: Final = Retry(attempts=30)
"""For streams: long enough for a manager to be replaced."""


class Server(msgspec.Struct, frozen=True):
    """Where to send requests, and with what credential."""

    url: str
    token: str = ""
    ca: str = ""
    """A file with the authority that signed the server's certificate; empty: those of this machine."""

    def __repr__(self) -> str:
        return f"Server({self.url!r})"

    @property
    def loopback(self) -> bool:
        return urlsplit(self.url).hostname in _LOOPBACK


def settings(server: Server, timeout_ms: int) -> dict[str, Any]:
    """The arguments of httpx2's clients, the same for both."""
    return {
        "base_url": _address(server.url),
        "headers": {"User-Agent": f"gpuyard/{__version__}", **_credential(server.token)},
        "timeout": httpx2.Timeout(timeout_ms / 1000, connect=CONNECT_TIMEOUT_MS / 1000),
        "follow_redirects": False,
        # A proxy of the environment cannot reach this machine's own loopback.
        "trust_env": not server.loopback,
        "verify": _trust(server),
    }


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise InputError(f'"{url}" is no address of a server', fix="write it as https://host:port")
    if parts.username or parts.password or parts.query:
        fix = "keep the token in a file: gpuyard login, GPUYARD_TOKEN_FILE"
        raise InputError("the address of the server holds more than an address", fix=fix)
    return url


def _credential(token: str) -> dict[str, str]:
    if not token:
        return {}
    if not token.isascii() or not token.isprintable() or " " in token:
        raise NotSignedInError("the token holds characters no token has", fix="copy it again: gpuyard login")
    return {"Authorization": f"Bearer {token}"}


def _trust(server: Server) -> ssl.SSLContext | bool:
    if not server.ca or not server.url.startswith("https:"):
        return True
    try:
        return ssl.create_default_context(cafile=Path(server.ca))
    except (OSError, ssl.SSLError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UnreachableError(
            f"the authority {server.ca} cannot be used: {why}", fix="see: gpuyard config view"
        ) from None


def request_arguments(call: Call[Any]) -> dict[str, Any]:
    """The arguments of httpx2's `build_request`, the same for both."""
    return {
        "method": call.operation.method,
        "url": call.path,
        "params": list(call.query) or None,
        "headers": list(call.headers),
        "content": call.content or None,
    }


def may_repeat(call: Call[Any], error: httpx2.TransportError) -> bool:
    """Whether sending it again cannot do it twice."""
    never_sent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
    return (call.safe or never_sent) and not _hopeless(error)


def _hopeless(error: httpx2.TransportError) -> bool:
    """A certificate does not get better."""
    return isinstance(error, httpx2.UnsupportedProtocol) or "CERTIFICATE" in str(error).upper()


def asked_to_wait_ms(status: int, headers: Mapping[str, str], otherwise_ms: int) -> int | None:
    """How long the server wants us to wait before the same request again; None: do not ask again."""
    if status not in TRY_AGAIN:
        return None
    told = headers.get("retry-after", "")
    wait_ms = int(told) * 1000 if told.isdecimal() else otherwise_ms
    return wait_ms if wait_ms <= MAX_RETRY_AFTER_MS else None


def unreachable(server: Server, error: httpx2.TransportError) -> UnreachableError:
    """No answer, in words."""
    if "CERTIFICATE" in str(error).upper():
        what = f"the certificate of {server.url} is not one this machine trusts ({error})"
        fix = "name its authority, ca/ca.pem in the home of the manager: gpuyard login URL --ca FILE"
        return UnreachableError(what, fix=fix)
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        fix = "is it running? On this machine start it with: gpuyard up"
        return UnreachableError(f"no server answers at {server.url}", fix=fix)
    if isinstance(error, httpx2.TimeoutException):
        fix = "it may be busy; try again, and see: gpuyard doctor"
        return UnreachableError(f"the server at {server.url} did not answer in time", fix=fix)
    if isinstance(error, httpx2.RemoteProtocolError) and server.url.startswith("http:"):
        what = f"what listens at {server.url} does not answer as a server of HTTP does"
        return UnreachableError(what, fix="if it speaks TLS, write https:// instead of http://")
    what = f"the connection to {server.url} broke ({str(error) or type(error).__name__})"
    return UnreachableError(what, fix="try again; a change that was sent may or may not have happened")


class BusyError(httpx2.TransportError):
    """The server is there, but does not stream yet: as good as a broken connection."""


class Tries:
    """Counts the failures of one request or stream, and says how long to wait; raises once there is no hope."""

    def __init__(self, server: Server, call: Call[Any], retry: Retry) -> None:
        self._server = server
        self._call = call
        self._retry = retry
        self._failures = 0

    def succeeded(self) -> None:
        self._failures = 0

    def broken_wait_ms(self, error: httpx2.TransportError) -> int:
        """How long to wait after no answer, or a broken one."""
        self._failures += 1
        if self._failures >= self._retry.attempts or not may_repeat(self._call, error):
            raise unreachable(self._server, error) from None
        return self._retry.wait_ms(self._failures)

    def answered_wait_ms(self, response: httpx2.Response) -> int | None:
        """How long to wait before asking again; None: the answer stands."""
        self._failures += 1
        wait_ms = asked_to_wait_ms(response.status_code, response.headers, self._retry.wait_ms(self._failures))
        return wait_ms if self._call.safe and self._failures < self._retry.attempts else None

    def ended_wait_ms(self) -> int:
        """How long to wait before a stream that ended is opened again."""
        return self._retry.wait_ms(1)


class LogPlace:
    """How far a log has been read, so that reading can go on after a break."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self._read = 0

    def opened(self, headers: Mapping[str, str]) -> None:
        told = headers.get(LOG_OFFSET, "")
        if told.isdecimal():
            self.offset = int(told)
        self._read = 0

    def passed(self, size: int) -> None:
        self._read += size
        # Counted from an end that moves, a place cannot be found again.
        if self.offset >= 0:
            self.offset += size

    def refuse_if_unknown(self) -> None:
        """Going on would skip or repeat something."""
        if self.offset < 0 and self._read:
            what = "the log broke off, and where in it that was is not known"
            raise UnreachableError(what, fix="read it again, from its beginning or its end")

    @property
    def has_more(self) -> bool:
        """Whether the answer was cut because it was long."""
        return self._read >= MAX_LOG_BYTES


def attempt_of(job: JobDetail, task: int) -> int:
    """The newest attempt of a task; 0 where it never had a place."""
    return next((found.attempt for found in job.task_list if found.task == task), 0)


def attempt_is_over(job: JobDetail, task: int, attempt: int) -> bool:
    """Whether that attempt will write nothing more."""
    found = next((found for found in job.task_list if found.task == task), None)
    return job.ended_at is not None or found is None or found.attempt > attempt or found.ended_at is not None
