"""The folder of a data job: as VDK's command line uploads it, as it is kept, and as it is given back.

Place in the flow: zip ─▶ **sources** ─▶ a tar, kept under its SHA-256 ─▶ the machine that runs it, or zip again. Pure.
Invariant: the same files give the same tar, whenever and wherever they were packed; no name in it leads out of the
folder it is unpacked into, and it holds plain files alone.
"""

from __future__ import annotations

import hashlib
import io
import stat
import tarfile
import zipfile
import zlib
from pathlib import PurePosixPath
from typing import Final

import msgspec

from gpuyard.errors import RefusedError
from gpuyard.service.problems import ProblemReason
from gpuyard.wire.agents import MAX_PARCEL_BYTES

MAX_UPLOAD_BYTES: Final = MAX_PARCEL_BYTES
MAX_FILES: Final = 2_000
MAX_NAME_BYTES: Final = 255
MAX_PATH_BYTES: Final = 1_024
CONFIG_FILE: Final = "config.ini"
# Early enough for zip, and the same for all: a newer date would make another version of the same files.
PACKED_AT_S: Final = 315_619_200
PACKED_AT: Final = (1980, 1, 2, 0, 0, 0)
_DAMAGED: Final = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    UnicodeError,
    ValueError,
)
"""What Python's zip raises for an archive that is damaged, encrypted or packed in a way it does not know."""


class File(msgspec.Struct, frozen=True):
    """One file of a job, by its path in the job's folder."""

    path: str
    data: bytes
    executable: bool = False


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
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            files = _files(packed)
    except _DAMAGED as error:
        raise _refused(f"the archive of the sources cannot be read: {error}", "upload a zip file") from None
    sources = Sources(files, _tar(files))
    if sources.text(CONFIG_FILE) is None:
        raise _refused(f"the sources hold no {CONFIG_FILE}", "it lies in the folder of the data job itself")
    if len(sources.archive) > MAX_PARCEL_BYTES:
        raise _too_large(len(sources.archive))
    return sources


def _files(packed: zipfile.ZipFile) -> tuple[File, ...]:
    listed = [info for info in packed.infolist() if not info.is_dir()]
    if len(listed) > MAX_FILES:
        raise _refused(f"the sources have {len(listed)} files, and {MAX_FILES} is the most", "leave out what is data")
    total_bytes = sum(info.file_size for info in listed)
    if total_bytes > MAX_PARCEL_BYTES:
        raise _too_large(total_bytes)
    found: dict[str, File] = {}
    for info in listed:
        path = _path(info)
        if path in found:
            raise _refused(f'the archive holds "{path[:80]}" twice', "pack the folder once more")
        found[path] = File(path, packed.read(info), bool(info.external_attr >> 16 & stat.S_IXUSR))
    return tuple(found[path] for path in sorted(found))


def _path(info: zipfile.ZipInfo) -> str:
    """Its path inside the one folder that was packed."""
    parts = PurePosixPath(info.filename).parts
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise _refused(f'"{info.filename[:80]}" is no plain file', "replace links by what they lead to")
    inner = parts[1:]
    if info.filename.startswith("/") or ".." in parts or not inner or "\\" in info.filename:
        raise _refused(f'"{info.filename[:80]}" does not lie in the folder of the job', "pack the folder itself")
    if any(len(part.encode()) > MAX_NAME_BYTES for part in inner) or len("/".join(inner).encode()) > MAX_PATH_BYTES:
        raise _refused(f'the name "{info.filename[:40]}..." is too long', "shorten it")
    if any(not character.isprintable() for character in info.filename):
        raise _refused(f"{info.filename[:80]!r} holds a character that cannot be shown", "rename it")
    return "/".join(inner)


def _tar(files: tuple[File, ...]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for file in files:
            member = tarfile.TarInfo(file.path)
            member.size, member.mtime = len(file.data), PACKED_AT_S
            member.mode = 0o755 if file.executable else 0o644
            tar.addfile(member, io.BytesIO(file.data))
    return packed.getvalue()


def as_zip(archive: bytes, folder: str) -> bytes:
    """What was kept, in the form VDK's command line unpacks: one folder of that name."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None, "plain files alone are packed"
            info = zipfile.ZipInfo(f"{folder}/{member.name}", PACKED_AT)
            info.external_attr = (stat.S_IFREG | member.mode) << 16
            target.writestr(info, file.read(), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _too_large(total_bytes: int) -> RefusedError:
    what = f"the sources have {total_bytes >> 10} KiB, and {MAX_PARCEL_BYTES >> 10} is the most"
    return RefusedError(ProblemReason.TOO_LARGE, what, fix="keep data out of the folder of the job; fetch it in a step")


def _refused(what: str, fix: str) -> RefusedError:
    return RefusedError(ProblemReason.BAD_VALUE, what, fix=fix, field="sources")
