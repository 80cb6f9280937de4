"""The real clock. Everything below the shell takes the time as an argument instead."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")


def wall_ms() -> int:
    """Milliseconds since 1970, as the world counts them."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Milliseconds from some start; never jumps when the world's clock is set."""
    return time.monotonic_ns() // 1_000_000


def boot_ms() -> int:
    """Milliseconds since the machine was started, also those it slept through: what leases are counted in."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def boot_id() -> str:
    """Which start of the machine this is: what the monotonic clocks count from."""
    return BOOT_ID_FILE.read_text(encoding="ascii").strip()


def sleep_ms(duration_ms: int) -> None:
    time.sleep(duration_ms / 1000)


def wall_text() -> str:
    """The time as a log shows it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def wall_micros_text() -> str:
    """The time to the microsecond, as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
