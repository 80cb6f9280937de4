"""Processes of this machine: who lives, and starting one that outlives us.

A process is known by its number and the moment it started, because numbers are used again.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

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


def ask_to_end(process: ProcessIdentity) -> bool:
    """Send it the polite signal, unless it has ended already; whether it was sent."""
    if not is_alive(process):
        return False
    try:
        os.kill(process.pid, signal.SIGTERM)
    except ProcessLookupError:
        return False
    return True


class Background(msgspec.Struct, frozen=True):
    """A process of ours that outlives us."""

    running: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.running.pid

    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self.running.poll()


def start_in_background(command: Sequence[str], log: Path) -> Background:
    """Start a program in a session of its own, so that closing the terminal does not end it."""
    with log.open("wb") as output:
        running = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, close_fds=True
        )
    return Background(running)


class Child:
    """A program a person runs through us: it has our terminal, and we wait for it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._running = subprocess.Popen(command, env={**os.environ, **environment})

    @property
    def pid(self) -> int:
        return self._running.pid

    def end(self) -> None:
        """End it before its time, and see it gone."""
        self._running.terminate()
        self._running.wait()

    def wait(self) -> int:
        """Its exit code, as a shell would tell it."""
        try:
            code = self._running.wait()
        except KeyboardInterrupt:
            # The terminal has sent the same signal to the program; how it ends is its own decision.
            code = self._running.wait()
        return 128 - code if code < 0 else code
