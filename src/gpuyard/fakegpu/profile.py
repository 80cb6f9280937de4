"""Utilisation profiles: what a task does over time, as phases of utilisation and memory.

Place in the flow: file or annotation ─read_profile─▶ **Profile** ─engine─▶ load of a GPU. A phase lasts `time_ms`, or
as long as the task where it has none. After the last round a task does nothing and keeps the memory it last had.
Invariant: 0 ≤ low ≤ high ≤ 100 for utilisation, and only the last phase may be without an end.
"""

from __future__ import annotations

from typing import Final

import msgspec

FULL_MILLI_PERCENT: Final = 100_000
DEFAULT_MEMORY_MILLI_PERCENT: Final = 90_000
"""Of the memory a task may use, where neither the task nor its profile says how much it takes."""


class Memory(msgspec.Struct, frozen=True):
    """Memory of a phase: bytes, or thousandths of a per cent of what the task may use; drawn anew in each phase."""

    low: int
    high: int
    relative: bool


class Phase(msgspec.Struct, frozen=True):
    """One phase. A range is drawn from anew every few seconds; `memory` is the task's own where it is None."""

    time_ms: int | None
    low_percent: int
    high_percent: int
    memory: Memory | None = None


class Profile(msgspec.Struct, frozen=True):
    """Phases, one after the other, so many rounds; None repeats as long as the task runs."""

    phases: tuple[Phase, ...]
    repeat: int | None = 1


BUSY: Final = Profile((Phase(None, 100, 100),))
"""What a task does that says nothing: all it can, while it runs."""


def steady(percent: int) -> Profile:
    """The same utilisation as long as the task runs."""
    return Profile((Phase(None, percent, percent),))
