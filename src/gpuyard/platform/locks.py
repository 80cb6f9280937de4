"""Locks between processes: a file that one process holds as long as it lives.

They are the kernel's own (POSIX record locks): gone with their holder, however it ended, never passed on to a child. A
process must open a file it holds only once, because closing any other handle of it lets go of the lock.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path
from typing import Final

_FLOCK: Final = struct.Struct("hhqqi4x")
"""struct flock of 64-bit Linux: kind, whence, start, length, holder."""


def hold(path: Path) -> int | None:
    """Take the lock until this process ends, or until the handle is closed; None if another process has it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def holder(path: Path) -> int | None:
    """The process that has the lock; None if nobody has, or there is no such file."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(handle, fcntl.F_GETLK, asked))
    finally:
        os.close(handle)
    return None if kind == fcntl.F_UNLCK else pid
