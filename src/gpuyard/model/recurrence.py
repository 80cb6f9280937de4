"""When a job comes again, and what becomes of a planned time at which it cannot simply be run."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

DEFAULT_TIME_ZONE: Final = "UTC"
DEFAULT_MISSED_LIMIT_MS: Final = 24 * 3600 * 1000
MAX_MISSED_LIMIT_MS: Final = 366 * 24 * 3600 * 1000
MAX_SCHEDULE_NAME: Final = 200
"""Characters: entries of the log are found by it."""
SCHEDULE_NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$"
"""It stands in addresses and in labels, so nothing in it has to be quoted."""
SCHEDULE_LABEL: Final = "gpuyard.io/schedule"
"""Every run carries it, with the name of its schedule."""


class Overlap(enum.StrEnum):
    """What becomes of a planned time while an earlier run is not over."""

    SKIP = "skip"
    QUEUE = "queue"
    """The run is submitted, and waits for the one before it."""
    REPLACE = "replace"
    """The earlier run is cancelled, politely; the new one starts once it has ended."""


class Missed(enum.StrEnum):
    """What becomes of planned times that passed while no manager ran."""

    SKIP = "skip"
    RUN_ONCE = "run-once"
    """One run for all of them, if the newest is not too long ago."""


class Recurrence(msgspec.Struct, frozen=True, gc=False):
    """When, in which time zone, and what about times that cannot be kept."""

    cron: str
    time_zone: str = DEFAULT_TIME_ZONE
    overlap: Overlap = Overlap.SKIP
    missed: Missed = Missed.RUN_ONCE
    missed_limit_ms: int = DEFAULT_MISSED_LIMIT_MS
