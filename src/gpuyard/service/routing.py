"""From the table of operations to routes: each request is checked in the same order, then handed to its handler.

Place in the flow: guard ─ASGI─▶ **routing** ─Call─▶ handler ─Answer─▶ response. Invariant: a request reaches a handler
only if the table admits its caller to the operation and every parameter is known and of its type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Final
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import Receive, Scope, Send

from gpuyard.errors import RefusedError
from gpuyard.service.authorise import admit
from gpuyard.service.bodies import check_kind, check_media, decoded, media_of, read_body, read_upload
from gpuyard.service.call import Answer, Call, Service, Settings
from gpuyard.service.handlers import HANDLERS, Handler
from gpuyard.service.limits import (
    MAX_BODY_BYTES,
    MAX_FILE_BYTES,
    MAX_KEY_LENGTH,
    MAX_QUERY_BYTES,
    MAX_UPLOAD_BYTES,
    SMALL_BODY_BYTES,
)
from gpuyard.service.problems import ProblemReason
from gpuyard.service.protocol import connection_of
from gpuyard.service.rights import Rights, answered
from gpuyard.service.streaming import GuardedStream
from gpuyard.wire.access import Caller
from gpuyard.wire.operations import (
    ARCHIVE,
    BYTE_BODIES,
    CHANGE_FILE,
    JOB_FILE,
    OPERATIONS,
    SCHEDULE_FILE,
    TEAMS_FILE,
    Operation,
    Parameter,
)

FILE_BODIES: Final = (JOB_FILE, TEAMS_FILE, CHANGE_FILE, SCHEDULE_FILE)
NOBODY: Final = Caller("", ())

_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
_REVISION: Final = re.compile(r'(?:W/)?"([0-9]{1,18})"|([0-9]{1,18})')
_KEY: Final = re.compile(r"[!-~]+")


def router(service: Service, beside: Sequence[BaseRoute] = ()) -> Router:
    """One route per path; which method does what, the table says. `beside` are those of the faces."""
    routes = table_routes(HANDLERS, lambda: service)
    return Router([*routes, *beside], redirect_slashes=False)


def table_routes(
    handlers: Mapping[str, Handler], service: Callable[[], Service], table: Sequence[Operation] = OPERATIONS
) -> list[Route]:
    """The routes of those operations of the table that these handlers serve."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in table:
        if operation.name in handlers:
            by_path.setdefault(operation.path, {})[operation.method] = operation
    return [Route(path, endpoint=PathEndpoint(service, methods, handlers)) for path, methods in by_path.items()]


def wrong_method(scope: Scope) -> RefusedError:
    what = f"{scope['method'][:20]} is not possible here"
    return RefusedError(ProblemReason.WRONG_METHOD, what, fix=f"use one of: {scope['gpuyard.allow']}")


class PathEndpoint:
    """All operations of one path."""

    def __init__(
        self, service: Callable[[], Service], operations: Mapping[str, Operation], handlers: Mapping[str, Handler]
    ) -> None:
        self._service = service
        self._handlers = handlers
        self._operations = dict(operations)
        if "GET" in self._operations:
            self._operations["HEAD"] = self._operations["GET"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        operation = self._operations.get(request.method)
        if operation is None:
            scope["gpuyard.allow"] = ", ".join(sorted(self._operations))
            raise wrong_method(scope)
        scope["gpuyard.operation"] = operation.name
        call = await read_call(self._service(), operation, request)
        try:
            answer = await answered(call, self._handlers[operation.name])
            try:
                await response_of(call, answer)(scope, receive, send)
            finally:
                if answer.release is not None:
                    answer.release()
        finally:
            if call.upload is not None:
                call.upload.close()


# ------------------------------------------------------------------------------------------------------------- reading


async def read_call(service: Service, operation: Operation, request: Request) -> Call:
    """The request as its handler sees it; refused where anything about it is wrong."""
    caller = request.scope.get("gpuyard.caller", NOBODY)
    admit(caller, operation)
    query = read_query(operation.query, request.scope.get("query_string", b""))
    media = _media(operation, request)
    if_match, key = _if_match(request.headers.get("if-match")), _key(request.headers.get("idempotency-key"))
    last_event = _last_event(request.headers.get("last-event-id")) if operation.name == "list_events" else None
    connection = connection_of(request.scope)
    # Last, because an upload is a file that somebody must close.
    body, value, upload = await _body(service, operation, request, caller.user)
    return Call(
        service=service,
        operation=operation,
        caller=caller,
        path={name: str(value) for name, value in request.path_params.items()},
        query=query,
        body=body,
        media=media,
        value=value,
        upload=upload,
        if_match=if_match,
        key=key,
        last_event=last_event,
        address=request.client.host if request.client else "",
        left=(lambda: connection.closed) if connection is not None else (lambda: False),
    )


def _media(operation: Operation, request: Request) -> str:
    """The kind of the body, which is one that the operation takes; empty where it takes none."""
    if operation.body is None:
        return ""
    media = media_of(request.headers.get("content-type", ""))
    if _is_bytes(operation):
        check_kind(media, BYTE_BODIES[operation.body])
    else:
        check_media(media, file=operation.body in FILE_BODIES)
    if request.headers.get("content-encoding", "identity") != "identity":
        raise RefusedError(ProblemReason.WRONG_MEDIA, "an encoded body is not read", fix="send it as it is")
    return media


async def _body(
    service: Service, operation: Operation, request: Request, user: str
) -> tuple[bytes, object, IO[bytes] | None]:
    """The body as bytes, as a value of the table's type, or as a file."""
    if operation.body is None:
        return b"", None, None
    declared, hold = request.headers.get("content-length", ""), request.scope["gpuyard.request"].hold
    limit = body_limit(service.settings, operation)
    if operation.body == ARCHIVE:
        return b"", None, await read_upload(request.receive, declared, limit, hold)
    body = await read_body(request.receive, declared, limit, hold)
    if _is_bytes(operation) or operation.body in FILE_BODIES:
        return body, None, None
    if len(body) <= SMALL_BODY_BYTES:
        return body, decoded(body, operation.body), None
    async with service.traffic.reading.turn(user):
        return body, decoded(body, operation.body), None


def body_limit(settings: Settings, operation: Operation) -> int:
    """The most bytes that the body of an operation may have."""
    if operation.body in (JOB_FILE, SCHEDULE_FILE):
        return settings.max_job_bytes
    if operation.body == ARCHIVE:
        return MAX_UPLOAD_BYTES
    return MAX_FILE_BYTES if operation.body in FILE_BODIES else MAX_BODY_BYTES


def _is_bytes(operation: Operation) -> bool:
    return isinstance(operation.body, str) and operation.body in BYTE_BODIES


def read_query(parameters: tuple[Parameter, ...], raw: bytes) -> dict[str, object]:
    """Every parameter by its type; what is unknown or given twice is refused."""
    if len(raw) > MAX_QUERY_BYTES:
        raise RefusedError(ProblemReason.TOO_LARGE, f"the query is longer than {MAX_QUERY_BYTES} bytes", fix="shorten")
    known = {parameter.name: parameter for parameter in parameters}
    values: dict[str, object] = {parameter.name: parameter.default for parameter in parameters}
    seen: set[str] = set()
    for name, text in _pairs(raw):
        if name not in known or name in seen:
            how = "is given twice" if name in seen else "is unknown here"
            fix = f"known here: {', '.join(known)}" if known else "this operation has no parameters"
            raise RefusedError(ProblemReason.BAD_PARAMETER, f'"{name[:80]}" {how}', fix=fix, field=name[:80])
        seen.add(name)
        values[name] = _value(known[name], text)
    return values


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=50)
    except ValueError:
        what = "the query is not encoded as queries are, or has too many parameters"
        raise RefusedError(ProblemReason.BAD_PARAMETER, what, fix="encode it as UTF-8 with per cent signs") from None


def _value(parameter: Parameter, text: str) -> object:
    if parameter.type is str:
        return text
    if parameter.type is bool and text.lower() in _FLAGS:
        return _FLAGS[text.lower()]
    if parameter.type is int and _INTEGER.fullmatch(text):
        return int(text)
    kind = "true or false" if parameter.type is bool else "a whole number"
    what = f'{parameter.name} must be {kind}, not "{text[:40]}"'
    raise RefusedError(ProblemReason.BAD_PARAMETER, what, fix=parameter.description, field=parameter.name)


def _if_match(header: str | None) -> int | None:
    """The revision that is meant; `*` means any."""
    if header is None or header.strip() == "*":
        return None
    match = _REVISION.fullmatch(header.strip())
    if match is None:
        raise _bad_header("If-Match", 'send the ETag of an answer: "17"')
    return int(match.group(1) or match.group(2))


def _key(header: str | None) -> str:
    if header is None:
        return ""
    if len(header) > MAX_KEY_LENGTH or not _KEY.fullmatch(header):
        raise _bad_header("Idempotency-Key", f"send 1 to {MAX_KEY_LENGTH} letters, digits or signs, without blanks")
    return header


def _last_event(header: str | None) -> int | None:
    if header is None or not header.strip():
        return None
    if not re.fullmatch(r"[0-9]{1,18}", header.strip()):
        raise _bad_header("Last-Event-ID", "send the id of the last event that was received")
    return int(header)


def _bad_header(name: str, fix: str) -> RefusedError:
    return RefusedError(ProblemReason.BAD_HEADER, f"the header {name} is malformed", fix=fix, field=name)


# ----------------------------------------------------------------------------------------------------------- answering


def response_of(call: Call, answer: Answer) -> Response:
    operation = call.operation
    status = answer.status or operation.status
    headers = dict(answer.headers)
    if answer.revision is not None:
        headers["ETag"] = f'"{answer.revision}"'
    media = answer.media or operation.media
    if answer.stream is not None:
        assert answer.target is not None, "a stream says what its rights are about"
        return GuardedStream(answer.stream, Rights(call, answer.target), answer.parting, status, headers, media)
    if answer.text is not None:
        return Response(answer.text, status, {**headers, "content-type": media})
    if answer.value is None:
        return Response(None, status, headers)
    return Response(msgspec.json.encode(answer.value), status, headers, media)
