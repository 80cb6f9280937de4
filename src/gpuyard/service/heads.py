"""The head of a request, judged before anything in it is used: one meaning, or none.

Place in the flow: protocol ─target, headers─▶ **heads** ─▶ sign-in, routing. Whatever two programs could read in two
ways is refused: a header that counts once and comes twice, a body with two lengths, a path that is another one after
decoding. Invariant: what is routed is what was sent, and the host it was sent to is the one that was checked.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from gpuyard.errors import RefusedError
from gpuyard.service.limits import MAX_HEADER_BYTES, MAX_PATH_BYTES
from gpuyard.service.problems import ProblemReason
from gpuyard.service.protocol import TARGET

SINGULAR: Final = frozenset(
    {
        *("host", "authorization", "content-length", "content-type", "content-encoding", "transfer-encoding"),
        *("origin", "sec-fetch-site", "if-match", "idempotency-key", "last-event-id", "expect", "upgrade"),
    }
)
"""Headers that say one thing: twice is once too often, also where both say the same."""

_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::([0-9]{1,5}))?")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_HIDDEN: Final = frozenset(b"/\\")
"""Signs that divide a path: encoded, they would divide it for one reader and not for the next."""


class Host:
    """A host and its port, as a Host header or an origin names it."""

    def __init__(self, name: str, port: int | None) -> None:
        self.name = name.lower()
        self.port = port

    def is_at(self, other: Host, scheme: str) -> bool:
        """Whether both mean the same place for that scheme."""
        standard = _DEFAULT_PORTS.get(scheme)
        return self.name == other.name and (self.port or standard) == (other.port or standard)


def read_host(text: str) -> Host | None:
    """None where it is no host: empty, with a user, with a port no host has."""
    match = _HOST.fullmatch(text)
    if match is None:
        return None
    port = int(match.group(2)) if match.group(2) else None
    return None if port is not None and not 0 < port < 1 << 16 else Host(match.group(1), port)


def check_head(scope: Scope) -> None:
    headers = scope["headers"]
    if sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
        raise RefusedError(ProblemReason.TOO_LARGE, "the header fields are too large", fix="send fewer")
    if len(scope.get("raw_path") or b"") > MAX_PATH_BYTES:
        raise RefusedError(ProblemReason.TOO_LARGE, "the path is too long", fix="shorten it")
    _check_singular(headers)
    _check_framing(scope)
    _check_target(scope)
    check_path(scope.get("raw_path") or scope["path"].encode())


def _check_singular(headers: list[tuple[bytes, bytes]]) -> None:
    counted = Counter(name.decode("latin-1").lower() for name, _ in headers)
    twice = sorted(name for name, count in counted.items() if count > 1 and name in SINGULAR)
    if twice:
        raise _bad(f"the header {twice[0]} is given {counted[twice[0]]} times", "send it once", twice[0])


def _check_framing(scope: Scope) -> None:
    """A body has one length: told, or in pieces."""
    headers = Headers(scope=scope)
    encoding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if length is not None and not _LENGTH.fullmatch(length):
        raise _bad("Content-Length is no number of bytes", "send decimal digits", "content-length")
    if encoding is None:
        return
    if length is not None or scope.get("http_version") == "1.0" or encoding.strip().lower() != "chunked":
        what = "Transfer-Encoding is something else than chunked, or comes with Content-Length or with HTTP/1.0"
        raise _bad(what, "send Content-Length, or chunked alone", "transfer-encoding")


def _check_target(scope: Scope) -> None:
    """A target in absolute form names a host, too: the one of the Host header."""
    target: bytes | None = scope.get(TARGET)
    if target is None or (target.startswith(b"/") and b"#" not in target):
        return
    try:
        parts = urlsplit(target.decode("ascii"))
        named = read_host(parts.netloc) if parts.scheme in _DEFAULT_PORTS and not parts.fragment else None
    except ValueError:
        named = None
    if named is None or b"#" in target:
        raise _bad("the target of the request is neither a path nor an address of this service", "send a path", "")
    host = read_host(Headers(scope=scope).get("host", ""))
    if host is None or not host.is_at(named, parts.scheme):
        raise _bad("the target of the request names another host than the Host header", "send a path", "host")


def check_path(raw: bytes) -> None:
    """A path that means the same before it is decoded and after."""
    what = _wrong_in(raw)
    if what:
        fix = "encode a name once, as UTF-8; names hold no slashes, and no segment is . or .."
        raise RefusedError(ProblemReason.BAD_PATH, f"the path {what}", fix=fix)


def _wrong_in(raw: bytes) -> str:
    text = raw.decode("latin-1")
    if _ESCAPE.search(text):
        return "holds a per cent sign that encodes nothing"
    if b"\\" in raw or any(byte < 0x21 or byte > 0x7E for byte in raw):
        return "holds a character that has to be encoded, or a backslash"
    for segment in text.split("/"):
        decoded = unquote_to_bytes(segment)
        if _HIDDEN.intersection(decoded):
            return "holds an encoded slash or backslash"
        if decoded in (b".", b".."):
            return "has a segment that is . or .."
        if any(byte < 0x20 or byte == 0x7F for byte in decoded):
            return "holds an encoded control character"
        try:
            decoded.decode("utf-8")
        except UnicodeDecodeError:
            return "is not UTF-8 once it is decoded"
    return ""


def _bad(what: str, fix: str, field: str) -> RefusedError:
    return RefusedError(ProblemReason.BAD_HEADER, what, fix=fix, field=field)


# ----------------------------------------------------------------------------------------------------------- web pages


def check_host(scope: Scope, hosts: frozenset[str]) -> None:
    """Against names that lead here without being ours: a page that was loaded from such a name could ask us."""
    host = read_host(Headers(scope=scope).get("host", ""))
    if host is None:
        raise _bad("the Host header is missing or malformed", "send one: HOST or HOST:PORT", "host")
    if host.name not in hosts:
        raise RefusedError(
            ProblemReason.HOST_NOT_ALLOWED,
            "the service does not answer to this host name",
            fix="use an address the manager was started with, or add the name: --name",
        )


def check_origin(scope: Scope, *, tls: bool) -> None:
    """Against pages of other origins, on every method: no browser may act for somebody who did not mean it.

    A page of another port of the same machine is one of those.
    """
    headers = Headers(scope=scope)
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none").strip().lower()
    ours = origin is None or _is_ours(origin, read_host(headers.get("host", "")), tls=tls)
    if not ours or site not in ("none", "same-origin"):
        what = "the request comes from a page of another origin"
        raise RefusedError(ProblemReason.ORIGIN_NOT_ALLOWED, what, fix="use the command line or a client library")


def _is_ours(origin: str, host: Host | None, *, tls: bool) -> bool:
    scheme, sign, place = origin.strip().partition("://")
    scheme, named = scheme.lower(), read_host(place)
    if not sign or scheme not in _DEFAULT_PORTS or named is None or host is None:
        return False
    return named.is_at(host, scheme) and (scheme == "https" or not tls)
