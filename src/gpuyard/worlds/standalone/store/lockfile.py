"""The writer's lock of a file: held by one process, gone with it however it ends.

Invariant: the file is never removed, because whoever waits for it would then lock a file that nobody else sees.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from gpuyard.errors import StoreBusyError, StoreError

PRIVATE_FILE: Final = 0o600
PID_BYTES: Final = 32


class FileLock:
    """Held from its making until `release`."""

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE)
        except OSError as error:
            raise StoreError(
                f"the lock file {path} cannot be opened: {error.strerror}",
                fix="let the user of the manager own the folder and the files in it",
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._descriptor, PID_BYTES, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            raise StoreBusyError(
                f"another manager, process {holder or 'unknown'}, writes to {path.with_suffix('')}",
                fix="stop it first, or name another database",
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
