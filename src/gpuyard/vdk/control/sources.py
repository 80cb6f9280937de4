"""The folder of a data job: as VDK's command line uploads it, as it is kept, and as it is given back.

Place in the flow: zip ─▶ **sources** ─▶ a tar, kept under its SHA-256 ─▶ the machine that runs it, or zip again. Pure.
What an archive may hold is said in wire/artifacts.py, for the machine that unpacks it, too.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from gpuyard.errors import InputError, RefusedError, StoreError
from gpuyard.service.problems import ProblemReason
from gpuyard.wire.agents import MAX_PARCEL_BYTES
from gpuyard.wire.artifacts import File, TooLargeError, pack_tar, pack_zip, unpack_tar, unpack_zip

CONFIG_FILE: Final = "config.ini"


class Sources(msgspec.Struct, frozen=True):
    """All files of a job, in the order of their paths, and the archive made of them."""

    files: tuple[File, ...]
    archive: bytes

    @property
    def version(self) -> str:
        return hashlib.sha256(self.archive).hexdigest()

    def text(self, path: str) -> str | None:
        """A file as text; None where it is missing."""
        found = next((file.data for file in self.files if file.path == path), None)
        try:
            return None if found is None else found.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise _refused(f"{path} is not UTF-8 text", "save it as UTF-8") from None


def unpacked_zip(data: bytes) -> Sources:
    """What VDK's command line has packed: one folder with the job's files in it."""
    try:
        files = unpack_zip(data)
    except TooLargeError as error:
        raise RefusedError(ProblemReason.TOO_LARGE, error.what, fix=error.fix) from None
    except InputError as error:
        raise _refused(error.what, error.fix) from None
    sources = Sources(files, pack_tar(files))
    if sources.text(CONFIG_FILE) is None:
        raise _refused(f"the sources hold no {CONFIG_FILE}", "it lies in the folder of the data job itself")
    if len(sources.archive) > MAX_PARCEL_BYTES:
        what = (
            f"the sources have {len(sources.archive) >> 10} KiB once packed, and {MAX_PARCEL_BYTES >> 10} is the most"
        )
        fix = "keep data out of the folder of the job; fetch it in a step"
        raise RefusedError(ProblemReason.TOO_LARGE, what, fix=fix)
    return sources


def as_zip(archive: bytes, folder: str) -> bytes:
    """What was kept, in the form VDK's command line unpacks: one folder of that name."""
    try:
        return pack_zip(unpack_tar(archive), folder)
    except InputError as error:
        raise StoreError(f"the kept sources of {folder} are damaged: {error.what}", fix="upload them again") from None


def _refused(what: str, fix: str) -> RefusedError:
    return RefusedError(ProblemReason.BAD_VALUE, what, fix=fix, field="sources")
