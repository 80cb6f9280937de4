"""What a server answers, as values or errors: everything both clients have in common after sending.

Place in the flow: transport ─status, bytes─▶ **answers** ─▶ a value of `wire.rest`, or one error of the tree.
Invariant: whatever a server sends, a caller gets one of these two.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from gpuyard import errors
from gpuyard.errors import ClientError
from gpuyard.sdk.calls import Call
from gpuyard.wire.rest import PROBLEM_EVENT, EventObject, Problem

Answer = TypeVar("Answer")

PROBLEM_MEDIA: Final = "application/problem+json"

TRY_AGAIN: Final = frozenset({429, 502, 503, 504})
"""The server, or something before it, is busy or starting: the same request may succeed soon."""

_BY_STATUS: Final[dict[int, type[ClientError]]] = {
    400: errors.MalformedError,
    401: errors.NotSignedInError,
    403: errors.NotAllowedError,
    404: errors.NotFoundError,
    405: errors.MalformedError,
    409: errors.ConflictError,
    412: errors.ConflictError,
    413: errors.MalformedError,
    415: errors.MalformedError,
    422: errors.RejectedError,
    428: errors.ConflictError,
}

_BY_REASON: Final[dict[str, type[ClientError]]] = {
    "BadField": errors.MalformedError,
    "BadValue": errors.MalformedError,
    "DependencyUnknown": errors.NotFoundError,
    "TooManyFailures": errors.NotSignedInError,
    "QueueFull": errors.RejectedError,
    "TooMany": errors.RejectedError,
    "UidsExhausted": errors.RejectedError,
    "SharedUser": errors.RejectedError,
    "NoAvailableBudget": errors.RejectedError,
    "NoArrangement": errors.RejectedError,
    "NoRoom": errors.RejectedError,
}
"""Words that say more than their status; service/problems.py has them all."""

_FIXES: Final[dict[type[ClientError], str]] = {
    errors.NotSignedInError: "sign in with: gpuyard login",
    errors.NotAllowedError: "gpuyard whoami shows what you may do; ask somebody with more rights",
}


def decoded(call: Call[Answer], status: int, content: bytes, media: str) -> Answer:
    """The value of an answer."""
    if not 200 <= status < 300:
        raise problem_error(status, content, media)
    value: Answer = _value(call.operation.answer, content)
    return value


def _value(kind: Any, content: bytes) -> Any:  # noqa: ANN401 - the table's types
    if kind is None:
        return None
    if kind is str:
        return content.decode(errors="replace")
    if kind is msgspec.Raw:
        return msgspec.Raw(content)
    return decoded_json(content, kind)


def decoded_json(content: bytes, kind: Any) -> Any:  # noqa: ANN401
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ClientError(
            f"the server's answer is not what this version knows: {error}",
            fix="compare the versions of both: gpuyard doctor",
        ) from None


def streamed_event(kind: str, content: str) -> EventObject:
    """One message of a stream of events; a stream that the server ended for a reason ends with that as an error."""
    if kind == PROBLEM_EVENT:
        found: Problem = decoded_json(content.encode(), Problem)
        raise problem_error(found.status, content.encode(), PROBLEM_MEDIA)
    event: EventObject = decoded_json(content.encode(), EventObject)
    return event


def refused_stream(status: int, content: bytes, media: str) -> ClientError | None:
    """Why a stream is not opened; None where the same request may succeed in a moment."""
    error = problem_error(status, content, media)
    return None if status in TRY_AGAIN and not isinstance(error, errors.NotSignedInError) else error


def problem_error(status: int, content: bytes, media: str) -> ClientError:
    """A refusal as an error of the tree."""
    problem = _problem(content, media)
    kind = _BY_STATUS.get(status, ClientError)
    if problem is not None:
        kind = _BY_REASON.get(problem.reason, kind)
    if problem is None:
        what = f"the server answered {status}, and not as gpuyard does"
        return kind(what, fix=_FIXES.get(kind, "check the address: gpuyard config view"), status=status)
    return kind(
        problem.detail or problem.title,
        fix=problem.fix or _FIXES.get(kind, ""),
        status=status,
        reason=problem.reason,
        field=problem.field,
        blockers=problem.blockers,
    )


def _problem(content: bytes, media: str) -> Problem | None:
    if not media.startswith(PROBLEM_MEDIA):
        return None
    try:
        return msgspec.json.decode(content, type=Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
