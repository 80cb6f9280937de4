"""Bodies of requests: read within bounds of size and time, and taken for what they say they are.

Place in the flow: ASGI ─bytes─▶ **bodies** ─▶ a value of the table's type, or the Place of a file's top, which is read
in a thread of its own. Invariant: no more than the bound is ever held, and a body without its kind is refused: no web
form can be taken for a request.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import IO, Any, Final, TypeVar

import msgspec
from msgspec.structs import replace
from starlette.types import Receive

from gpuyard.errors import RefusedError
from gpuyard.files.budget import Limits
from gpuyard.files.place import Place
from gpuyard.files.source import text_of
from gpuyard.files.tree import parse
from gpuyard.service.call import Call
from gpuyard.service.limits import BODY_SECONDS, FILE_LIMITS, JOB_LIMITS
from gpuyard.service.problems import ProblemReason
from gpuyard.wire.operations import JOB_FILE, SCHEDULE_FILE

Hold = Callable[[int], None]
Result = TypeVar("Result")

JSON: Final = "application/json"
YAML: Final = "application/yaml"
_FILES: Final = {
    JSON: "body.json",
    YAML: "body.yaml",
    "application/x-yaml": "body.yaml",
    "text/yaml": "body.yaml",
    "text/x-yaml": "body.yaml",
}
"""What a file may be sent as, and what errors call it."""

FILE_EXAMPLE: Final = "docs/job-file.md, docs/teams-file.md"
_ESCAPE: Final = re.compile(r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|.)", re.DOTALL)


async def read_body(receive: Receive, declared: str, limit: int, hold: Hold) -> bytes:
    """Return the whole body, if it is not too large and comes in time; `hold` counts what is held of it."""
    pieces: list[bytes] = []
    async with _in_time():
        async for piece in _pieces(receive, declared, limit):
            hold(len(piece))
            pieces.append(piece)
    return b"".join(pieces)


async def read_upload(receive: Receive, declared: str, limit: int, hold: Hold) -> IO[bytes]:
    """Return the whole body in a file without a name, which is written as it comes in and stands at its beginning."""
    file: IO[bytes] = await asyncio.to_thread(tempfile.TemporaryFile)
    try:
        async with _in_time():
            async for piece in _pieces(receive, declared, limit):
                hold(len(piece))
                await asyncio.to_thread(file.write, piece)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            yield
    except TimeoutError:
        raise RefusedError(ProblemReason.TOO_SLOW, f"no whole body within {BODY_SECONDS:g} s", fix="again") from None


async def _pieces(receive: Receive, declared: str, limit: int) -> AsyncIterator[bytes]:
    """What comes in, until the body is whole or too large."""
    if declared.isdecimal() and int(declared) > limit:
        raise too_large(limit)
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RefusedError(ProblemReason.TOO_SLOW, "the connection was closed", fix="again")
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise too_large(limit)
        yield piece
        more = message.get("more_body", False)


def too_large(limit: int) -> RefusedError:
    size = f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit >> 10} KiB"
    return RefusedError(ProblemReason.TOO_LARGE, f"larger than {size}", fix="send less at once")


def media_of(content_type: str) -> str:
    """The kind of a body without its parameters; only UTF-8 is read."""
    media, *parameters = (part.strip().lower() for part in content_type.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "charset" and value.strip('"') not in ("utf-8", "utf8", "us-ascii"):
            raise RefusedError(ProblemReason.WRONG_MEDIA, f"charset {value[:40]} is not read", fix="send UTF-8")
    return media


def check_media(media: str, *, file: bool) -> None:
    if not (media in _FILES if file else media == JSON):
        raise _wrong_media(media, f"{YAML} or {JSON}" if file else JSON)


def check_kind(media: str, kind: str) -> None:
    """Of a body that its handler reads as bytes."""
    if media != kind:
        raise _wrong_media(media, kind)


def _wrong_media(media: str, kinds: str) -> RefusedError:
    what = f'a body of kind "{media[:80]}" is not read here' if media else "the request does not say what its body is"
    return RefusedError(ProblemReason.WRONG_MEDIA, what, fix=f"send Content-Type: {kinds}")


def decoded(body: bytes, kind: Any) -> object:  # noqa: ANN401 - the table's types
    """A JSON body as a value of the table's type."""
    if not body.strip():
        raise RefusedError(ProblemReason.MALFORMED, "the body is empty", fix="send JSON")
    try:
        value: object = msgspec.json.decode(body, type=kind)
    except UnicodeDecodeError:
        raise RefusedError(ProblemReason.MALFORMED, "the body is not UTF-8 text", fix="send UTF-8") from None
    except RecursionError:
        raise RefusedError(ProblemReason.MALFORMED, "the body is nested too deep", fix="flatten it") from None
    return value


async def read_apart(call: Call, read: Callable[[Place], Result]) -> Result:
    """Read a body that is read like a file off the event loop, when it is its user's turn.

    `read` makes a value of the top of the file. It runs in another thread: it may use values, never the state.
    """
    return await call.service.traffic.apart(call.caller.user, lambda: read(_file_of(call)))


def _file_of(call: Call) -> Place:
    """The top of a body that is read like a file."""
    name = _FILES[call.media]
    text = text_of(call.body, name)
    if call.media == JSON:
        text = _ESCAPE.sub(_paired, text)
    return Place(name, parse(text, name, FILE_EXAMPLE, _limits(call)))


def _limits(call: Call) -> Limits:
    if call.operation.body not in (JOB_FILE, SCHEDULE_FILE):
        return FILE_LIMITS
    return replace(JOB_LIMITS, text_characters=call.service.settings.max_job_bytes)


def _paired(match: re.Match[str]) -> str:
    """JSON writes characters beyond the first plane as two escapes, which YAML does not know."""
    high, low = match.groups()
    if high is None:
        return match.group()
    return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + (int(low, 16) - 0xDC00))
