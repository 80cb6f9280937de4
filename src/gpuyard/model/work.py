"""What a job does once it has its place: its command and how it is treated. The scheduler never looks at it."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

DEFAULT_GRACE_MS: Final = 30_000
MAX_GRACE_MS: Final = 3_600_000
MAX_ARRAY: Final = 10_000
MAX_COMMAND_BYTES: Final = 128 << 10
MAX_ENV_BYTES: Final = 128 << 10
MAX_RETRIES: Final = 1_000
MAX_DEPENDENCIES: Final = 1_000

PRIORITIES: Final = {"low": 25, "normal": 50, "high": 75, "urgent": 100}
"""Words for priorities; any number will do."""

NOTICE_SIGNALS: Final = ("TERM", "INT", "HUP", "USR1", "USR2", "CONT")


class OnNodeLost(enum.StrEnum):
    """What becomes of a job whose machine is not heard of any more."""

    RESTART = "restart-after-lease"
    """Once it is certain that it no longer runs there, it waits for its turn again."""
    WAIT = "wait"
    """It keeps its place until the machine is back, or is declared lost."""
    FAIL = "fail"


class Work(msgspec.Struct, frozen=True, gc=False):
    """What is run, the same for all tasks of a job."""

    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    workdir: str = ""
    """Empty: the private directory of the job."""
    retries: int = 0
    """How often it is started again after it failed by itself."""
    on_node_lost: OnNodeLost = OnNodeLost.RESTART
    grace_ms: int = DEFAULT_GRACE_MS
    """From the notice that it must stop to the end."""
    notice_signal: str = "TERM"
    checkpoint: tuple[str, ...] = ()
    """A command that is run at notice."""
    parcel: str = ""
    """The SHA-256 of an archive it brings along, which its machine fetches before it starts; empty: none."""
    slurm_env: bool = False
    """Its tasks are told about themselves in Slurm's words, too."""


class Array(msgspec.Struct, frozen=True, gc=False):
    """Many jobs from one description: `0-9%4` is ten, four at a time."""

    indices: tuple[int, ...]
    at_once: int = 0
    """0: all."""
