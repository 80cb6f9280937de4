"""Moments as Kubernetes writes them, to and from milliseconds since 1970.

Place in the flow: objects ─text─▶ **moments** ─ms─▶ whoever reckons in time. Invariant: a text that is no moment, or
none at all, is 0 and no error: the API server does not write such.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

REMEMBERED: Final = 4096


@lru_cache(REMEMBERED)
def ms_of(text: str | None) -> int:
    """`2026-11-18T09:30:00Z`, with or without parts of a second."""
    if not text:
        return 0
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return 0
    return int(moment.timestamp() * 1000) if moment.tzinfo else 0


def text_of(moment_ms: int) -> str:
    """To the second, as most fields have it."""
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micros_text_of(moment_ms: int) -> str:
    """To the microsecond, as leases and events have it."""
    return datetime.fromtimestamp(moment_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
