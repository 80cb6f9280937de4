"""Processes of this machine: who lives, and starting one that outlives us.

A process is known by its number and the moment it started, because numbers are used again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

import msgspec

END_S: Final = 2.0
PRIVATE: Final = 0o600
"""The mode of a log: what a process says is for its owner alone."""


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
    return next(iter(command_line(pid)), "")


def command_line(pid: int) -> tuple[str, ...]:
    """The words it was started with; none for one that is gone, and for the kernel's own."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(word.decode("utf-8", "replace") for word in text.removesuffix(b"\0").split(b"\0"))


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


def start_in_background(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> Background:
    """Start a program in a session of its own, so that closing the terminal does not end it."""
    variables = os.environ if environment is None else environment
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    streams = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.fspath(log), flags, PRIVATE),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return Background(os.posix_spawn(command[0], list(command), variables, file_actions=streams, setsid=True))


def _begun(command: Sequence[str], log: Path, environment: Mapping[str, str], *, stdin: int) -> subprocess.Popen[bytes]:
    """In a session of its own, what it says at the end of a log that is ours alone."""
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE), "ab") as file:
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=file,
            stderr=file,
            env=dict(environment),
            start_new_session=True,
            bufsize=0,
        )


class Listener:
    """A process of ours that hears what we tell it, and ends when we do."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._process = _begun(command, log, environment, stdin=subprocess.PIPE)
        assert self._process.stdin is not None
        self._pipe = self._process.stdin
        os.set_blocking(self._pipe.fileno(), False)

    def tell(self, data: bytes) -> bool:
        """False if it is gone, or hears nothing any more: then it is ended, and we need another one."""
        try:
            heard = self._pipe.write(data) == len(data)
        except OSError:
            heard = False
        if not heard:
            self.close()
        return heard

    def close(self) -> None:
        """Let it end by itself; one that does not is killed."""
        self._pipe.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Child:
    """A process of ours that does its work beside us until we end it; our terminal's Ctrl-C is not for it."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._process = _begun(command, log, environment, stdin=subprocess.DEVNULL)

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def end(self, within_s: float) -> None:
        """Politely; one that takes longer is killed."""
        self._process.terminate()
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def process_parents() -> dict[int, int]:
    """Of every process the one that started it, or that took it over."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            fields = _stat_fields(int(entry.name))
            if fields:
                found[int(entry.name)] = int(fields[1])
    return found


def descends_from(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    """Whether it is that process or was started below it."""
    for _ in range(len(parents)):
        if pid == ancestor:
            return True
        pid = parents.get(pid, 0)
    return False


def _stat_fields(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()


def marked_processes(mark: str) -> list[ProcessIdentity]:
    """Those whose variables hold that text, of all we may look into."""
    pattern = os.fsencode(mark)
    numbers = (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())
    found = (find_process(pid) for pid in numbers if pattern in _variables(pid))
    return [process for process in found if process is not None]


def resident_bytes(pid: int) -> int:
    """The memory it holds now; none for one that is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _variables(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def kill_process(process: ProcessIdentity) -> None:
    """End exactly that one at once, not another that was given its number since."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        if is_alive(process):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def become(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Be that program from here on, with our number, our terminal and our start; an OSError if it cannot be run."""
    sys.stdout.flush()
    os.execvpe(command[0], list(command), {**os.environ, **environment})
