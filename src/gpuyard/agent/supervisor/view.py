"""What a task sees of the node's processes: its own. A PID namespace of its own, and a /proc that shows only that.

Place in the flow: task ─**view**─▶ init, command and hook; agent ─probe─▶ **view**. The supervisor stays outside, where
it sees, signals and counts the task's processes by the machine's numbers. The first process in the namespace is an
init: it reaps what loses its parent, and when it ends the kernel kills everything in the namespace.
Invariant: nothing that is mounted here is seen outside the task, and no /proc of the machine is mounted again.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from gpuyard.agent.supervisor.files import slurp
from gpuyard.agent.supervisor.processes import PR_SET_PDEATHSIG, SIGKILL, Seen, bury, libc, prctl

CLONE_NEWNS = 0x0002_0000
CLONE_NEWPID = 0x2000_0000
MS_NOSUID = 1 << 1
MS_NODEV = 1 << 2
MS_NOEXEC = 1 << 3
MS_BIND = 1 << 12
MS_REC = 1 << 14
MS_SLAVE = 1 << 19
"""What we mount stays here, and what the machine mounts and unmounts later happens here, too."""

PROC = "/proc"
PROC_OPTIONS = MS_NOSUID | MS_NODEV | MS_NOEXEC
SYSTEM_BUS = "/run/dbus/system_bus_socket"
"""There systemd tells every user the command lines of every service's processes, and so of the agent's tasks."""
MAX_OPEN_FILES = 1 << 16

KEYCTL = {"x86_64": 250, "aarch64": 219}
"""The number of the system call, for which the C library has no name."""
JOIN_SESSION_KEYRING = 1

TYPE_CHECKING = False
if TYPE_CHECKING:  # They start too slowly for what they are needed for.
    from typing import NoReturn


def begin_namespace() -> int:
    """Have whatever is forked from here on in a new PID namespace; the machine's number of its init."""
    _check(libc.unshare(CLONE_NEWPID))
    outside = os.getpid()
    pid = os.fork()
    if pid == 0:
        _be_init(outside)
    return pid


def _be_init(outside: int) -> NoReturn:
    """Reap until we are killed. Signals of the task do not reach us: we have no handlers, and another user."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
        prctl(PR_SET_PDEATHSIG, SIGKILL)
        # A parent outside has number 0 here, dead or alive; this /proc is still that of the machine.
        if Seen(0, slurp(f"{PROC}/self/stat")).parent == outside:
            os.closerange(3, MAX_OPEN_FILES)
            while True:
                bury()
                signal.sigwait((signal.SIGCHLD,))
    finally:
        os._exit(1)


def enter_namespace() -> None:
    """See only the PID namespace we are in, for good. For a process that is still root, before its command is run."""
    points = proc_mounts(slurp(f"{PROC}/self/mountinfo"))
    _check(libc.unshare(CLONE_NEWNS))
    _mount("none", "/", "", MS_REC | MS_SLAVE)
    for point in points:
        _mount_if_reachable("proc", point, "proc", PROC_OPTIONS)
    _mount_if_reachable(os.devnull, SYSTEM_BUS, "", MS_BIND)


def leave_keyring() -> None:
    """Have an empty session keyring: one that was inherited from whoever started the agent is open to all its tasks.

    A kernel without keys, or a container that forbids them, has none to share.
    """
    number = KEYCTL.get(os.uname().machine)
    if number is not None:
        libc.syscall(ctypes.c_long(number), ctypes.c_long(JOIN_SESSION_KEYRING), None)


def proc_mounts(table: bytes) -> list[str]:
    """Where a whole /proc is mounted; a machine may have more than one, as where it holds other root folders."""
    points = [PROC]
    for line in table.decode("utf-8", "surrogateescape").splitlines():
        place, _, kind = line.partition(" - ")
        fields = place.split(" ")
        if kind.split(" ")[0] == "proc" and len(fields) > 4 and fields[3] == "/":
            points.append(_plain(fields[4]))
    return list(dict.fromkeys(points))


def _plain(point: str) -> str:
    """Blanks and the like are written as octal numbers there."""
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(octal, character)
    return point


def probe() -> None:
    """Say on the output why a task cannot have this here; nothing where it can."""
    try:
        init = begin_namespace()
        pid = os.fork()
    except OSError as error:
        print(f"a PID namespace: {error.strerror}", flush=True)
        return
    if pid == 0:
        _probe_inside()
    os.waitpid(pid, 0)
    os.kill(init, SIGKILL)


def _probe_inside() -> NoReturn:
    try:
        enter_namespace()
        seen = sorted(int(name) for name in os.listdir(PROC) if name.isdigit())  # noqa: PTH208
        if seen != [1, os.getpid()]:
            print(f"/proc shows {len(seen)} processes in it", flush=True)
    except OSError as error:
        print(f"a /proc of its own: {error.strerror}", flush=True)
    finally:
        sys.stdout.flush()
        os._exit(0)


def _mount_if_reachable(what: str, point: str, kind: str, options: int) -> None:
    """A place that is not there, or hidden below another mount, needs no cover."""
    try:  # noqa: SIM105
        _mount(what, point, kind, options)
    except (FileNotFoundError, NotADirectoryError):
        pass


def _mount(what: str, point: str, kind: str, options: int) -> None:
    words = (os.fsencode(what), os.fsencode(point), os.fsencode(kind) if kind else None)
    _check(libc.mount(*words, ctypes.c_ulong(options), None))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
