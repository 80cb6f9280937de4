"""Archives that travel to nodes: read, checked and packed in one place, for the manager and for the agent alike.

Place in the flow: an uploaded zip ─▶ **files** ─▶ a tar, named by its SHA-256 ─▶ the agent, which reads it again before
a task may unpack it. Pure. Invariants: a file that is read here is a plain one, lies in the folder it is unpacked into,
and has a place of its own there; the same files give the same tar, byte for byte. So a tar that holds anything else is
not one of ours, however another program would read it.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import tarfile
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from gpuyard.errors import InputError
from gpuyard.wire.agents import MAX_PARCEL_BYTES

MAX_FILES: Final = 2_000
"""In one archive; as many folders may be listed besides."""
MAX_NAME_BYTES: Final = 255
MAX_PATH_BYTES: Final = 1_024
# Early enough for zip, and the same for all: a newer date would make another archive of the same files.
PACKED_AT_S: Final = 315_619_200
PACKED_AT: Final = (1980, 1, 2, 0, 0, 0)

_DRIVE: Final = re.compile(r"[A-Za-z]:")
_METHODS: Final = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""The others have dictionaries as large as the archive says."""
_END: Final = struct.Struct("<4s4H2LH")
"""How the list of a zip file ends: the last fields are its number of entries, its size, its place."""
_END_MARK: Final = b"PK\x05\x06"
_ENTRY_MARK: Final = b"PK\x01\x02"
_DAMAGED: Final = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    UnicodeError,
    ValueError,
    IndexError,
    struct.error,
)
"""What Python's zip raises for an archive that is damaged, encrypted or packed in a way it does not know."""


class TooLargeError(InputError):
    """What an archive holds is more than may travel."""


class File(msgspec.Struct, frozen=True):
    """One file, by its path in the folder it is unpacked into."""

    path: str
    data: bytes
    executable: bool = False


# --------------------------------------------------------------------------------------------------------------- names


class Paths:
    """The paths of one archive, each of which has a place of its own."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def add(self, path: str, *, folder: bool = False) -> None:
        """Take a path in; an InputError where it leads elsewhere, or where something else lies there."""
        check_path(path)
        # Two spellings of one name are one file on some disks.
        parts = unicodedata.normalize("NFC", path).split("/")
        above = {"/".join(parts[:count]) for count in range(1, len(parts))}
        here = "/".join(parts)
        if above & self._files or (here in self._files if folder else here in self._folders):
            raise _bad(f"the archive holds a file and a folder of one name: {shown(path)}", "rename one of them")
        if not folder and here in self._files:
            raise _bad(f"the archive holds {shown(path)} twice", "pack the folder once more")
        self._folders |= above
        (self._folders if folder else self._files).add(here)


def check_path(path: str) -> None:
    """An InputError where a path leads out of the folder it is unpacked into, or is none that can be shown."""
    parts = path.split("/")
    if not path.isprintable():
        raise _bad(f"{shown(path)} holds a character that cannot be shown", "rename it")
    if "\\" in path or _DRIVE.match(path) or "" in parts or "." in parts or ".." in parts:
        raise _bad(f"{shown(path)} does not lie in the folder of the job", "pack the folder itself")
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        raise _bad(f"{shown(path)} is not UTF-8", "rename it") from None
    if max(sizes) > MAX_NAME_BYTES or sum(sizes) + len(sizes) - 1 > MAX_PATH_BYTES:
        raise _bad(f'the name "{path[:40]}..." is too long', "shorten it")


def shown(path: str) -> str:
    """A name for a message: nothing in it is passed on to a terminal."""
    return f'"{path[:80]}"' if path.isprintable() else repr(path[:80])


def _check_mode(path: str, mode: int) -> None:
    if mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX):
        raise _bad(f"{shown(path)} would run as another user, or is sticky", "take these bits away: chmod a-st")


# ----------------------------------------------------------------------------------------------------------------- tar


def pack_tar(files: Iterable[File]) -> bytes:
    """The one archive of these files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for file in sorted(files, key=lambda file: file.path):
            member = tarfile.TarInfo(file.path)
            member.size, member.mtime = len(file.data), PACKED_AT_S
            member.mode = 0o755 if file.executable else 0o644
            tar.addfile(member, io.BytesIO(file.data))
    return packed.getvalue()


def unpack_tar(data: bytes) -> tuple[File, ...]:
    """The files of an archive that `pack_tar` has made; an InputError for any other."""
    if len(data) > MAX_PARCEL_BYTES:
        raise _too_large(len(data))
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            files = tuple(_tar_files(tar))
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise _bad(f"the archive cannot be read: {error}", "pack it once more") from None
    if pack_tar(files) != data:
        raise _bad("the archive holds more than plain files, or is not packed as gpuyard packs", "upload it once more")
    return files


def _tar_files(tar: tarfile.TarFile) -> Iterator[File]:
    paths = Paths()
    for count, member in enumerate(tar, 1):
        if count > MAX_FILES:
            raise _too_many(f"more than {MAX_FILES}")
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
            raise _bad(f"{shown(member.name)} is no plain file", "replace links by what they lead to")
        _check_mode(member.name, member.mode)
        paths.add(member.name)
        file = tar.extractfile(member)
        assert file is not None, "a plain file"
        yield File(member.name, file.read(), bool(member.mode & stat.S_IXUSR))


# ----------------------------------------------------------------------------------------------------------------- zip


def unpack_zip(data: bytes) -> tuple[File, ...]:
    """The files in the folder that a zip file holds, in the order of their paths."""
    try:
        _check_listed(data)
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            files = _zip_files(packed)
    except _DAMAGED as error:
        raise _bad(f"the archive of the sources cannot be read: {error}", "upload a zip file") from None
    return tuple(sorted(files, key=lambda file: file.path))


def _check_listed(data: bytes) -> None:
    """Before the list is read: each of its entries costs far more memory than its bytes."""
    end = data.rfind(_END_MARK)
    if end < 0:
        raise zipfile.BadZipFile("it is no zip file")
    size = _END.unpack_from(data, end)[5]
    listed = data[max(end - size, 0) : end].count(_ENTRY_MARK)
    if listed > 2 * MAX_FILES:
        raise _too_many(str(listed))


def _zip_files(packed: zipfile.ZipFile) -> list[File]:
    listed = packed.infolist()
    plain = [info for info in listed if not info.is_dir()]
    if len(plain) > MAX_FILES:
        raise _too_many(str(len(plain)))
    total_bytes = sum(info.file_size for info in plain)
    if total_bytes > MAX_PARCEL_BYTES:
        raise _too_large(total_bytes)
    paths = Paths()
    found = []
    for info in listed:
        path, mode = _zip_path(info), info.external_attr >> 16
        if path:
            paths.add(path, folder=info.is_dir())
        if not info.is_dir():
            found.append(File(path, packed.read(info), bool(mode & stat.S_IXUSR)))
    return found


def _zip_path(info: zipfile.ZipInfo) -> str:
    """The path inside the one folder that was packed; empty: that folder itself."""
    name, mode = info.orig_filename, info.external_attr >> 16
    kind = stat.S_IFDIR if info.is_dir() else stat.S_IFREG
    if stat.S_IFMT(mode) not in (0, kind):
        raise _bad(f"{shown(name)} is no plain file", "replace links by what they lead to")
    _check_mode(name, mode)
    if info.compress_type not in _METHODS:
        raise _bad(f"{shown(name)} is packed in a way that is not read", "pack it with deflate")
    whole = name.removesuffix("/") if info.is_dir() else name
    check_path(whole)
    _, slash, inner = whole.partition("/")
    if not slash and not info.is_dir():
        raise _bad(f"{shown(name)} does not lie in the folder of the job", "pack the folder itself")
    return inner


def pack_zip(files: Iterable[File], folder: str) -> bytes:
    """One folder of that name, in the form VDK's command line unpacks."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for file in files:
            info = zipfile.ZipInfo(f"{folder}/{file.path}", PACKED_AT)
            info.external_attr = (stat.S_IFREG | (0o755 if file.executable else 0o644)) << 16
            target.writestr(info, file.data, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _too_many(count: str) -> InputError:
    return _bad(f"the archive holds {count} files, and {MAX_FILES} is the most", "leave out what is data")


def _too_large(total_bytes: int) -> TooLargeError:
    what = f"the files have {total_bytes >> 10} KiB, and {MAX_PARCEL_BYTES >> 10} is the most"
    return TooLargeError(what, fix="keep data out of the folder of the job; fetch it in a step")


def _bad(what: str, fix: str) -> InputError:
    return InputError(what, fix=fix)
