"""Processes of this machine: who lives, and starting one that outlives us.

A process is known by its number and the moment it started, because numbers are used again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec


class ProcessIdentity(msgspec.Struct, frozen=True):
    """One life of one process. `started` is in clock ticks since the machine was started."""

    pid: int
    started: int
    name: str


def find_process(pid: int) -> ProcessIdentity | None:
    """The process that has this number now; None if there is none, or only what is left of one that ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The short name stands in brackets and may itself hold blanks and brackets.
    short = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    state, started = fields[0], int(fields[19])
    return None if state in "ZXx" else ProcessIdentity(pid, started, _program(pid) or short)


def _program(pid: int) -> str:
    """The first word of its command line; empty for one that has none, as the kernel's own."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return words[0].decode("utf-8", "replace")


def is_alive(process: ProcessIdentity) -> bool:
    now = find_process(process.pid)
    return now is not None and now.started == process.started


class Background(msgspec.Struct, frozen=True):
    """A process of ours that outlives us."""

    pid: int

    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        try:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return 0
        return os.waitstatus_to_exitcode(status) if ended else None


def start_in_background(command: Sequence[str], log: Path) -> Background:
    """Start a program in a session of its own, so that closing the terminal does not end it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    streams = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.fspath(log), flags, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return Background(os.posix_spawn(command[0], list(command), os.environ, file_actions=streams, setsid=True))


def become(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Be that program from here on, with our number, our terminal and our start; an OSError if it cannot be run."""
    sys.stdout.flush()
    os.execvpe(command[0], list(command), {**os.environ, **environment})
