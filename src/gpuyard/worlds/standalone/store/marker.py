"""What the machine knows of a database without asking it: that a log was kept there, and how far it had come.

Place in the flow: store ─every append─▶ **marker** ─next open─▶ is it still that log, and no shorter? A database that
is empty, older or another one is then never taken for a new cluster. The marker is one small file, written after the
database has the entries, so it is never ahead of it. A kill of the process loses nothing of it; a loss of power may
leave it at what was synced last. Invariant: it never holds more than was durable.
"""

from __future__ import annotations

import logging
import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from gpuyard.platform.clock import monotonic_ms, wall_ms
from gpuyard.worlds.standalone.store.chain import Head
from gpuyard.worlds.standalone.store.lockfile import PRIVATE_FILE

MARKER_SUFFIX: Final = ".marker"
MARKER_BYTES: Final = 512
"""Written as one piece, which one sector of a disk holds."""
SYNC_EVERY_MS: Final = 10_000
"""How far a marker may be behind after a loss of power."""

_log = logging.getLogger(__name__)


class Marker(msgspec.Struct, frozen=True):
    """What was last known of a log."""

    log: str
    last_seq: int
    digest: str
    """Of the last entry, in hexadecimal."""
    at_ms: int
    check: int = 0
    """Of all that."""

    @property
    def whole(self) -> bool:
        return self.check == _check(self)


def _check(marker: Marker) -> int:
    return zlib.crc32(msgspec.json.encode(msgspec.structs.replace(marker, check=0)))


class MarkerFile:
    """A marker on disk. Not there, or not readable: nothing is known."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1
        self._synced_ms = 0

    def read(self) -> Marker | None:
        try:
            marker = msgspec.json.decode(self.path.read_bytes(), type=Marker)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            _log.warning("the marker %s cannot be read: %s", self.path, error)
            return None
        if not marker.whole:
            _log.warning("the marker %s is damaged, so it is not known how far the log had come", self.path)
            return None
        return marker

    @property
    def unreadable(self) -> bool:
        """Whether there is one that says nothing any more: a log was kept here, and that is all that is known."""
        return self.path.exists() and self.read() is None

    def write(self, head: Head, *, sync: bool = False) -> None:
        """Note how far the log has come; only once the database has it."""
        marker = Marker(head.log, head.last_seq, head.digest.hex(), wall_ms())
        text = msgspec.json.encode(msgspec.structs.replace(marker, check=_check(marker)))
        now_ms = monotonic_ms()
        try:
            if self._descriptor < 0:
                self._open()
            os.pwrite(self._descriptor, text.ljust(MARKER_BYTES - 1) + b"\n", 0)
            if sync or now_ms - self._synced_ms >= SYNC_EVERY_MS:
                os.fdatasync(self._descriptor)
                self._synced_ms = now_ms
        except OSError as error:
            # The log is durable without it; what is lost is the way to notice that an older copy was put back.
            _log.warning("the marker %s cannot be written: %s", self.path, error.strerror)
            self.close()

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(self.path, flags, PRIVATE_FILE)

    def close(self) -> None:
        if self._descriptor >= 0:
            with suppress(OSError):
                os.fdatasync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


class NoMarker:
    """For a database of which nobody keeps a marker."""

    path = Path(os.devnull)
    unreadable = False

    def read(self) -> Marker | None:
        return None

    def write(self, head: Head, *, sync: bool = False) -> None: ...

    def close(self) -> None: ...
