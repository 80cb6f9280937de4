"""What jobs bring along: fetched from the manager once, and kept for the next task that brings the same.

Place in the flow: process_runtime ─wants─▶ **parcels** ─ReadParcel─▶ manager ─ParcelPiece─▶ **parcels** ─file─▶ the
task. A parcel is asked for piece by piece, each after the one before. Invariant: a file here has the digest it is
named by, and is an archive of plain files that lie in one folder; what is not is thrown away.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Final

from gpuyard.errors import InputError
from gpuyard.platform.clock import boot_ms, wall_ms
from gpuyard.platform.files import write_private
from gpuyard.wire.agents import MAX_PARCEL_BYTES, ParcelPiece, ReadParcel
from gpuyard.wire.artifacts import unpack_tar

DIGEST: Final = re.compile(r"[0-9a-f]{64}")
AGAIN_MS: Final = 10_000
"""A piece that has not come by then is asked for again."""
MAX_FETCHED_AT_ONCE: Final = 4
KEPT_MS: Final = 7 * 24 * 3_600_000
KEPT_BYTES: Final = 1 << 30


class _Coming:
    """A parcel on its way."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.asked_at_ms: int | None = None


class Parcels:
    """The parcels of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._coming: dict[str, _Coming] = {}
        self._problems: dict[str, str] = {}

    def is_here(self, digest: str) -> bool:
        """Whether a task can have it now; if not, it is fetched."""
        if DIGEST.fullmatch(digest) and (self._folder / digest).exists():
            return True
        if digest not in self._problems:
            self._coming.setdefault(digest, _Coming())
        return False

    def problem(self, digest: str) -> str:
        """Why it cannot be had; told once, so that a later task has it tried again. Empty: it may yet come."""
        return self._problems.pop(digest, "")

    def put(self, digest: str, target: Path, group: int) -> None:
        """A copy for one task, which its group may read; -1: for its owner alone."""
        source = self._folder / digest
        os.utime(source)
        target.unlink(missing_ok=True)
        shutil.copyfile(source, target)
        if group >= 0:
            os.chown(target, -1, group)
        target.chmod(0o640 if group >= 0 else 0o600)

    # ------------------------------------------------------------------------------------------------------- fetching

    def questions(self) -> list[ReadParcel]:
        """What to ask now: the next piece of the first few, unless it is just being waited for."""
        now_ms = boot_ms()
        asked = []
        for digest, coming in list(self._coming.items())[:MAX_FETCHED_AT_ONCE]:
            if coming.asked_at_ms is None or now_ms >= coming.asked_at_ms + AGAIN_MS:
                coming.asked_at_ms = now_ms
                asked.append(ReadParcel(digest, len(coming.data)))
        return asked

    def arrived(self, piece: ParcelPiece) -> None:
        coming = self._coming.get(piece.digest)
        if coming is None or (piece.offset != len(coming.data) and not piece.problem):
            return  # Asked for twice, and here already.
        coming.asked_at_ms = None
        coming.data += piece.data
        problem = piece.problem or _wrong(piece, coming)
        if problem:
            self._drop(piece.digest, problem)
        elif len(coming.data) == piece.size:
            self._keep(piece.digest, bytes(coming.data))

    def disconnected(self) -> None:
        """Nothing that was asked for will come; what is here already is good."""
        for coming in self._coming.values():
            coming.asked_at_ms = None

    def _keep(self, digest: str, data: bytes) -> None:
        if hashlib.sha256(data).hexdigest() != digest:
            self._drop(digest, "it came damaged from the manager")
            return
        try:
            # A task unpacks it: what is in it is not the manager's word alone.
            unpack_tar(data)
        except InputError as error:
            self._drop(digest, f"this machine does not unpack it: {error.what}")
            return
        try:
            write_private(self._folder / digest, data)
        except OSError as error:
            self._drop(digest, f"it cannot be written on this machine: {error.strerror}")
        else:
            del self._coming[digest]

    def _drop(self, digest: str, problem: str) -> None:
        del self._coming[digest]
        self._problems[digest] = f"what the job brings along cannot be had: {problem}"


def _wrong(piece: ParcelPiece, coming: _Coming) -> str:
    if piece.size > MAX_PARCEL_BYTES or len(coming.data) > piece.size:
        return f"it is larger than {MAX_PARCEL_BYTES >> 20} MiB, or than the manager said"
    return "" if piece.data or len(coming.data) == piece.size else "the manager sent nothing"


def prune(folder: Path) -> None:
    """Drop what no task has taken for long, then the least used until the rest is small enough."""
    now_ms = wall_ms()
    kept = sorted((file.stat().st_mtime_ns // 1_000_000, file) for file in folder.iterdir())
    total_bytes = 0
    for used_at_ms, file in reversed(kept):
        total_bytes += file.stat().st_size
        if now_ms - used_at_ms > KEPT_MS or total_bytes > KEPT_BYTES:
            file.unlink(missing_ok=True)
