"""Durations as Go programs write them, and so all objects of Kubernetes: `1h30m`, `90s`, `1.5h`, `-1s`."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

MAX_NANOSECONDS: Final = 2**63 - 1

_NANOSECONDS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_PART: Final = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
MAX_TEXT: Final = 64


def duration_ms(text: str) -> int | None:
    """Milliseconds, what is less than one of them dropped; None for what is no duration."""
    sign = -1 if text.startswith("-") else 1
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0
    if not rest or len(rest) > MAX_TEXT or _PART.sub("", rest):
        return None
    total = sum(Decimal(number) * _NANOSECONDS[unit] for number, unit in _PART.findall(rest))
    return sign * (int(total) // 10**6) if total <= MAX_NANOSECONDS else None
