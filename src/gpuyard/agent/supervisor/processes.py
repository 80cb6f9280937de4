"""The machine's processes: who descends from a task, carries its mark or is in its cell, and killing all of them.

Place in the flow: task, guard ─▶ **processes** ─▶ /proc, cell. Invariant: when `kill_everything` returns, nobody of the
task was seen twice in a row; nobody else was killed, even if numbers were given anew meanwhile.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys

from gpuyard.agent.supervisor.files import slurp

STUBBORN_MS = 50
"""Between two rounds of killing."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

SIGKILL = 9
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

libc = ctypes.CDLL(None, use_errno=True)

TYPE_CHECKING = False
if TYPE_CHECKING:  # It starts too slowly for what it is needed for.
    from collections.abc import Callable

    from gpuyard.agent.supervisor.cell import Cell


class Seen:
    """One process, as /proc shows it."""

    __slots__ = ("parent", "pid", "resident_bytes", "started", "state")

    def __init__(self, pid: int, text: bytes) -> None:
        fields = text[text.rindex(b")") + 2 :].split()
        self.pid = pid
        self.state = fields[0]
        self.parent = int(fields[1])
        self.started = int(fields[19])
        self.resident_bytes = int(fields[21]) * PAGE_BYTES

    @property
    def alive(self) -> bool:
        return self.state not in (b"Z", b"X")


def see(pid: int) -> Seen | None:
    text = slurp(f"/proc/{pid}/stat")
    return Seen(pid, text) if text else None


def all_processes() -> list[Seen]:
    found = (see(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    return [process for process in found if process is not None]


def descendants(root: int, everyone: list[Seen]) -> list[Seen]:
    children: dict[int, list[Seen]] = {}
    for process in everyone:
        children.setdefault(process.parent, []).append(process)
    found = list(children.get(root, ()))
    for process in found:  # Grows while it is walked.
        found.extend(children.get(process.pid, ()))
    return found


def carries(process: Seen, mark: bytes) -> bool:
    """Whether it was started with the task's variables, wherever it has been moved since."""
    return mark in slurp(f"/proc/{process.pid}/environ")


def kill(process: Seen) -> None:
    """Kill exactly that process, not one that was given its number since."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        now = see(process.pid)
        if now is not None and now.started == process.started:
            os.kill(process.pid, SIGKILL)
    except OSError:
        pass
    finally:
        os.close(handle)


def proportional_bytes(process: Seen) -> int:
    """What it holds, shared pages counted once among those who share them."""
    for line in slurp(f"/proc/{process.pid}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) << 10
    return process.resident_bytes


def kill_everything(mark: bytes, cell: Cell, meanwhile: Callable[[], object]) -> None:
    """Again and again until nobody is seen: what forks while it is killed is found in the next round."""
    quiet, pause_ms = 0, 1
    while quiet < 2:
        everyone = all_processes()
        # Those who cleared their variables descend from us, those who were moved from below us carry the mark.
        ours = {process.pid: process for process in descendants(os.getpid(), everyone) if process.alive}
        ours.update((process.pid, process) for process in everyone if process.alive and carries(process, mark))
        for process in ours.values():
            kill(process)
        # Those who did both are still in its cell.
        found = len(ours) + cell.kill()
        meanwhile()
        quiet = 0 if found else quiet + 1
        if found:
            select.poll().poll(pause_ms)
            pause_ms = min(2 * pause_ms, STUBBORN_MS)


def prctl(option: int, value: int) -> None:
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def set_oom_score(score: int) -> None:
    """Root may spare itself: where the machine runs out of memory, the task goes before the one that watches it."""
    try:
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:  # noqa: PTH123
            file.write(b"%d" % score)
    except OSError:
        return


def fork_into(life: Callable[[], object]) -> int:
    """A process of its own group that lives that life, and ends with 0 only if it came to its end."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        life()
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def bury() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
