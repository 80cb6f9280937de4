"""When a device plugin begins, begins anew and ends: what is seen of two sockets in, the next step out.

Place in the flow: plugin looks at the kubelet's folder ─Sight─▶ **plugin_life** ─Step─▶ endpoint. Pure: time comes in.
Invariant: whenever a kubelet lives that has not heard of this endpoint, and nothing forbids it, the next step is BEGIN.

A kubelet that starts deletes all sockets in its folder and knows nobody. It is another one if its socket is another
file; a file system gives the number of a deleted file away again, so the time of its last change counts too.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

RETRY_MS: Final = 500
MAX_RETRY_MS: Final = 8_000
"""Between two attempts with the same kubelet: twice as long each time, up to this."""
DEAF_MS: Final = 1_000
"""How long a kubelet that has accepted us may leave us without asking for our devices."""


class SocketStamp(msgspec.Struct, frozen=True):
    """What tells one life of a socket from the next."""

    inode: int
    changed_ns: int


class Attempt(msgspec.Struct, frozen=True):
    """A registration: with whom, and in which words."""

    kubelet: SocketStamp
    version: str


class Sight(msgspec.Struct, frozen=True):
    """What is seen now."""

    now_ms: int
    kubelet: SocketStamp | None
    """Its socket; None while there is none."""
    own: SocketStamp | None
    listening: bool
    """Whether the kubelet has a stream of our devices open."""
    version: str
    wanted: bool = True
    """Whether the plugin is to be there at all."""
    hanging: bool = False


class Past(msgspec.Struct, frozen=True):
    """What one endpoint has done so far."""

    bound: SocketStamp | None = None
    """Its own socket, as it was made."""
    registered: Attempt | None = None
    tried: Attempt | None = None
    tried_at_ms: int = 0
    failed_in_a_row: int = 0
    heard_at_ms: int = 0
    """When the kubelet last listened, or accepted us."""


class Step(StrEnum):
    WAIT = "wait"
    BEGIN = "begin"
    END = "end"


def next_step(past: Past, seen: Sight) -> Step:
    if not seen.wanted:
        return Step.END if past.bound else Step.WAIT
    if seen.kubelet is None or seen.hanging:
        return Step.WAIT
    attempt = Attempt(seen.kubelet, seen.version)
    if past.registered == attempt and past.bound == seen.own:
        deaf = not seen.listening and seen.now_ms - past.heard_at_ms >= DEAF_MS
        return Step.BEGIN if deaf else Step.WAIT
    fresh = past.tried != attempt or past.failed_in_a_row == 0
    return Step.BEGIN if fresh or seen.now_ms - past.tried_at_ms >= pause_ms(past) else Step.WAIT


def pause_ms(past: Past) -> int:
    return min(RETRY_MS << min(past.failed_in_a_row - 1, 10), MAX_RETRY_MS) if past.failed_in_a_row else 0


def heard(past: Past, at_ms: int) -> Past:
    return msgspec.structs.replace(past, heard_at_ms=at_ms)


def succeeded(attempt: Attempt, bound: SocketStamp | None, at_ms: int) -> Past:
    return Past(bound=bound, registered=attempt, tried=attempt, tried_at_ms=at_ms, heard_at_ms=at_ms)


def failed(past: Past, attempt: Attempt, bound: SocketStamp | None, at_ms: int) -> Past:
    in_a_row = past.failed_in_a_row + 1 if past.tried == attempt else 1
    return Past(bound=bound, tried=attempt, tried_at_ms=at_ms, failed_in_a_row=in_a_row)
