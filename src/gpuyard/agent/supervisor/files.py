"""The files of an attempt's folder: their names, what the agent wrote into them, and a knock when there is news.

Place in the flow: process_runtime ─**files**─▶ task, and back. Invariant: a file is there as a whole or not at all.
"""

from __future__ import annotations

import os

SPEC = "spec"
LOCK = "lock"
GUARD_LOCK = "guard"
STARTED = "started"
STATE = "state"
STOP = "stop"
ORDERS = "orders"
OWN_LOG = "supervisor.log"
LOG_PREFIX = "log."
TIMES_PREFIX = "times."
MARK_EVERY_MS = 1_000
MARKS_A_STEP = 4_096


def read_record(path: str) -> dict[str, list[str]]:
    """A file of `name=value` entries, each ended by a NUL; a name may come several times."""
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib starts too slowly
        content = file.read()
    found: dict[str, list[str]] = {}
    for entry in os.fsdecode(content).split("\0")[:-1]:
        name, _, value = entry.partition("=")
        found.setdefault(name, []).append(value)
    return found


def write_file(path: str, content: bytes, *, mode: int = 0o600, group: int = -1, keep: bool = False) -> None:
    """As a whole or not at all; `keep`: it also outlives a loss of power."""
    new = f"{path}.new"
    # Whatever lies there under that name was left by a former try of ours: only we write into these folders.
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        if group >= 0:
            os.fchown(handle, -1, group)
        os.fchmod(handle, mode)
        os.write(handle, content)
        if keep:
            os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(new, path)  # noqa: PTH104


def knock(path: str) -> None:
    """Wake whoever reads that pipe; nobody may be there."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(handle, b".")
    except OSError:
        pass  # It is full of knocks already.
    finally:
        os.close(handle)


class Spec:
    """What the agent wrote down about the attempt."""

    def __init__(self, record: dict[str, list[str]]) -> None:
        def number(name: str) -> int:
            return int(record.get(name, ["0"])[0])

        def text(name: str) -> str:
            return record.get(name, [""])[0]

        self.mark = text("mark")
        self.lease = text("lease")
        self.wake = text("wake")
        self.notice = text("notice")
        self.notice_group = number("notice_group")
        self.isolated = bool(number("isolated"))
        """The task sees its own processes only."""
        self.umask = number("umask")
        self.command = record.get("arg", [])
        self.hook = record.get("hook", [])
        self.env = dict(entry.split("=", 1) for entry in record.get("env", []))
        self.workdir = text("workdir")
        self.as_user = bool(text("uid"))
        self.uid = number("uid")
        self.gid = number("gid")
        self.groups = [int(group) for group in record.get("group", [])]
        self.limits = [limit.split(":") for limit in record.get("limit", [])]
        self.memory_bytes = number("memory_bytes")
        self.cgroups = record.get("cgroup", [])
        self.cgroup_settings = record.get("cgroup_set", [])
        self.cgroup_wishes = record.get("cgroup_try", [])
        self.cgroup_oom = text("cgroup_oom")
        self.run_limit_ms = number("run_limit_ms")
        self.grace_ms = number("grace_ms")
        self.notice_signal = number("notice_signal")
        self.log_piece_bytes = number("log_piece_bytes")
        self.log_pieces = number("log_pieces")


def slurp(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""
