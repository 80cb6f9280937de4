"""What somebody should be told about an object they wrote: accepted, but not as they may have meant it."""

from __future__ import annotations

import msgspec


class Note(msgspec.Struct, frozen=True, gc=False):
    """A warning: one word for programs, one sentence for people with the way out in it."""

    reason: str
    message: str
