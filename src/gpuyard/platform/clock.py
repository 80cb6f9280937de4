"""The real clock. Everything below the shell takes the time as an argument instead."""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Milliseconds since 1970, as the world counts them."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Milliseconds from some start; never jumps when the world's clock is set."""
    return time.monotonic_ns() // 1_000_000


def sleep_ms(duration_ms: int) -> None:
    time.sleep(duration_ms / 1000)
