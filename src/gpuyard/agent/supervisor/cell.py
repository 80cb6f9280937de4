"""The cell of a task: cgroups of its own, in which the kernel keeps its bounds and from which no process can slip away.

Place in the flow: agent's cgroups ─entries of the spec─▶ **cell** ─▶ task, guard; the agent clears up what they leave.
Invariant: only processes in these folders are killed, and only these folders, and an empty parent, are removed.
"""

from __future__ import annotations

import os
import select
import signal

from gpuyard.agent.supervisor.files import Spec, slurp

MAKE_TRIES = 20
KILLED_AT_ONCE = 500
"""So many handles are open at once; the rest is met in the next round."""
REMOVE_TRIES = 20
REMOVE_PAUSE_MS = 5
"""A process that has ended is in its cgroup for a moment still."""


class Cell:
    """One folder in each hierarchy that is used; none at all where the machine has no cgroups for us."""

    def __init__(
        self, folders: list[str], must: list[str] | None = None, may: list[str] | None = None, oom: str = ""
    ) -> None:
        self.folders = folders
        self._must = must or []
        self._may = may or []
        self._oom = oom

    @property
    def bounds_memory(self) -> bool:
        return bool(self._oom)

    def make(self) -> None:
        """With all bounds set, before anybody is in it; an OSError that names the file if one cannot be."""
        for folder in self.folders:
            _make(folder)
        for setting in self._must:
            _set(setting)
        for setting in self._may:
            try:  # noqa: SIM105
                _set(setting)
            except OSError:
                pass  # This kernel, or this hierarchy, does not have it.

    def enter(self) -> None:
        """Be in it from here on, with everything we start. Only for a process of one thread."""
        for folder in self.folders:
            # Of version 1 the file for single threads: for whole processes the kernel would wait some 10 ms.
            tasks = f"{folder}/tasks"
            _write(tasks if os.access(tasks, os.W_OK) else f"{folder}/cgroup.procs", "0")

    def oom_kills(self) -> int:
        """How many processes the kernel has ended because memory had reached its bound."""
        for line in slurp(self._oom).splitlines() if self._oom else ():
            name, _, count = line.partition(b" ")
            if name == b"oom_kill":
                return int(count)
        return 0

    def kill(self) -> int:
        """Kill everybody who is in it; how many were."""
        met = 0
        for folder in self.folders:
            inside = members(folder)
            met += len(inside)
            if inside and not _kill_at_once(folder):
                _kill_one_by_one(folder, inside)
        return met

    def remove(self) -> None:
        """Once everybody is gone; what cannot be removed now is removed when the agent looks again."""
        for folder in self.folders:
            for _ in range(REMOVE_TRIES):
                if _removed(folder):
                    break
                select.poll().poll(REMOVE_PAUSE_MS)
            _rmdir(os.path.dirname(folder))  # noqa: PTH120 - it stays while there are others in it


def cell_of(spec: Spec) -> Cell:
    return Cell(spec.cgroups, spec.cgroup_settings, spec.cgroup_wishes, spec.cgroup_oom)


def members(folder: str) -> list[int]:
    """Also of cgroups that the task has made inside its own."""
    inside = [at for at, _, _ in os.walk(folder)]
    pids = [int(pid) for at in inside for pid in slurp(f"{at}/cgroup.procs").split()]
    return [pid for pid in pids if pid]  # 0 is one of a machine around ours, out of our reach.


def _kill_at_once(folder: str) -> bool:
    try:
        _write(f"{folder}/cgroup.kill", "1")
    except OSError:
        return False  # Version 1, or a kernel before 5.14.
    return True


def _kill_one_by_one(folder: str, pids: list[int]) -> None:
    """Nobody else, even if numbers are given anew: whose number still stands there once we have a handle is meant."""
    handles = {}
    for pid in pids[:KILLED_AT_ONCE]:
        try:
            handles[pid] = os.pidfd_open(pid)
        except OSError:
            continue
    still = set(members(folder))
    for pid, handle in handles.items():
        try:
            if pid in still:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        except OSError:
            pass  # It has ended by itself meanwhile.
        finally:
            os.close(handle)


def _make(folder: str) -> None:
    """The parent goes with the last task in it, which may be at this very moment: then again."""
    for _ in range(MAKE_TRIES):
        try:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - pathlib starts too slowly
        except FileNotFoundError:
            continue
        return
    raise FileNotFoundError(2, "its parent is removed again and again", folder)


def _removed(folder: str) -> bool:
    for at, _, _ in os.walk(folder, topdown=False):
        _rmdir(at)
    return not os.path.exists(folder)  # noqa: PTH110


def _rmdir(folder: str) -> None:
    try:  # noqa: SIM105
        os.rmdir(folder)  # noqa: PTH106
    except OSError:
        pass  # Somebody is in it, or it is gone.


def _set(setting: str) -> None:
    file, _, value = setting.rpartition("=")
    _write(file, value)


def _write(file: str, value: str) -> None:
    handle = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, value.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, file) from None
    finally:
        os.close(handle)
