"""A fleet file that may be changed while it is in use.

Place in the flow: daemon ─poll─▶ **reload** ─Fleet─▶ engine.replace. Invariant: `fleet` is always one that was read
without an error; a bad change is told once and leaves it as it was, and the next good one counts again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import msgspec

from gpuyard.errors import InputError
from gpuyard.fakegpu.config import fleet_of
from gpuyard.fakegpu.fleet import Fleet, reduced
from gpuyard.files.source import read_text

_Stamp: TypeAlias = tuple[int, int, int, int] | None


class Loaded(msgspec.Struct, frozen=True):
    """The file has changed and holds this now."""

    fleet: Fleet


class Refused(msgspec.Struct, frozen=True):
    """The file has changed and cannot be used; the fleet from before still runs."""

    error: InputError

    def __str__(self) -> str:
        return f"{self.error}\n  the fleet from before this change still runs"


class FleetFile:
    """A file, what it held when it was last good, and what is wrong with it now."""

    def __init__(self, path: Path, only: str | None = None) -> None:
        self.path = path
        self._only = only
        self._stamp = _stamp(path)
        self._text = read_text(path)
        self.fleet = self._fleet_of(self._text)
        self.error: InputError | None = None

    def poll(self) -> Loaded | Refused | None:
        """Look at the file again: what has changed, or nothing."""
        stamp = _stamp(self.path)
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            text = read_text(self.path)
            if text == self._text and self.error is None:
                return None
            fleet = self._fleet_of(text)
        except InputError as error:
            self.error = error
            return Refused(error)
        self._text, self.fleet, self.error = text, fleet, None
        return Loaded(fleet)

    def _fleet_of(self, text: str) -> Fleet:
        return reduced(fleet_of(text, str(self.path)), self._only)


def _stamp(path: Path) -> _Stamp:
    """What changes when a file is written or put in another's place; None while it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev
