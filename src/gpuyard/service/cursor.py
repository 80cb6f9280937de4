"""Cursors: where in a list to go on. They name the last item that was shown, so lists may change in between.

Place in the flow: `next` of a page ─client─▶ `cursor` of the next request. A cursor holds no secret and grants nothing:
what is shown is filtered anew. Invariant: one that was not made for the same list and filters is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

import msgspec

from gpuyard.errors import RefusedError
from gpuyard.service.call import Call
from gpuyard.service.limits import MAX_CURSOR_LENGTH
from gpuyard.service.problems import ProblemReason

_NOT_FILTERS = frozenset({"cursor", "limit", "estimate"})

Key = tuple[str | int, ...]


class _Cursor(msgspec.Struct, frozen=True, array_like=True):
    list: str
    filters: str
    key: tuple[str | int, ...]


def next_cursor(call: Call, key: Key) -> str:
    """Names the last item of a page."""
    packed = msgspec.msgpack.encode(_Cursor(call.operation.name, _filters(call), key))
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def after(call: Call, shape: tuple[type, ...]) -> Key | None:
    """The item to go on after; None: from the beginning."""
    text = call.text("cursor")
    if not text:
        return None
    found = _decoded(text)
    fits = found is not None and found.list == call.operation.name and found.filters == _filters(call)
    if found is None or not fits or tuple(map(type, found.key)) != shape:
        raise RefusedError(
            ProblemReason.BAD_CURSOR,
            "the cursor is not one of this list and these filters",
            fix="use `next` of the page before, with the same parameters; or begin without a cursor",
            field="cursor",
        )
    return found.key


def _decoded(text: str) -> _Cursor | None:
    if len(text) > MAX_CURSOR_LENGTH or not text.isascii():
        return None
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return msgspec.msgpack.decode(packed, type=_Cursor)
    except (binascii.Error, msgspec.DecodeError):
        return None


def _filters(call: Call) -> str:
    given = sorted((name, str(value)) for name, value in call.query.items() if name not in _NOT_FILTERS)
    return hashlib.sha256(msgspec.msgpack.encode(given)).hexdigest()[:16]
