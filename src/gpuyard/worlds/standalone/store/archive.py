"""The file of a backup: one format, whichever database it came from or goes to.

    magic, header (JSON, padded to a fixed size), then a zlib stream of frames: one letter, a length, a list of rows.

Place in the flow: store ─pages─▶ **archive** ─pages─▶ store. Snapshots and sums are read at one moment, together with
the number of the last entry. The entries follow in pages after it: they never change, so nobody has to wait meanwhile.
Invariant: a file that has its name is whole, and its checksum covers the header and everything after it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO, Final, Protocol

import msgspec

from gpuyard import __version__
from gpuyard.errors import StoreError
from gpuyard.worlds.standalone.store.port import DailySum, Entry, StoredSnapshot

FORMAT: Final = 2
"""Since 2 its entries may be about schedules, which an older gpuyard does not know. Older formats are read."""
MAGIC: Final = b"gpuyard backup\n"
HEADER_BYTES: Final = 1024
PAGE_ROWS: Final = 1000
COMPRESSION: Final = 6
READ_BYTES: Final = 1 << 16
LENGTH_BYTES: Final = 8
MAX_FRAME_BYTES: Final = 4 << 30

SUMS: Final = b"u"
SNAPSHOT: Final = b"s"
ENTRIES: Final = b"e"

Progress = Callable[[int, int], None]
"""Called with how many entries are done, and how many there are at most."""


def no_progress(done: int, of: int) -> None:
    """Nobody looks."""


class Header(msgspec.Struct, frozen=True):
    """What a backup holds."""

    format: int
    gpuyard: str
    """The version that wrote it."""
    last_seq: int
    entries: int
    snapshots: int
    sums: int
    sha256: str = ""
    """Of this header without it, and of all that follows."""


class Page(msgspec.Struct, frozen=True):
    """A part of a backup, small enough to be held in memory."""

    entries: tuple[Entry, ...] = ()
    snapshots: tuple[StoredSnapshot, ...] = ()
    sums: tuple[DailySum, ...] = ()


class Source(Protocol):
    """What a backup is read from."""

    def moment(self) -> AbstractContextManager[None]: ...

    def last_seq(self) -> int: ...

    def snapshots(self) -> Iterator[StoredSnapshot]: ...

    def sums_after(self, last: DailySum | None, limit: int) -> list[DailySum]: ...

    def entries_after(self, after_seq: int, limit: int) -> list[Entry]: ...


# ------------------------------------------------------------------------------------------------------------- writing


def write_archive(path: str | Path, source: Source, progress: Progress = no_progress) -> Header:
    """Write a backup beside its place and move it there, so that an older one stays until the new one is whole."""
    target = Path(path)
    try:
        descriptor, unfinished = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise _unwritten(target, error) from error
    try:
        with os.fdopen(descriptor, "w+b") as file:
            header = _fill(file, source, progress)
            file.flush()
            os.fsync(file.fileno())
        Path(unfinished).rename(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise _unwritten(target, error) from error
    finally:
        Path(unfinished).unlink(missing_ok=True)
    return header


def _fill(file: IO[bytes], source: Source, progress: Progress) -> Header:
    file.write(b" " * (len(MAGIC) + HEADER_BYTES))
    writer = _Writer(file)
    last_seq = _copy_moment(source, writer)
    _copy_entries(source, last_seq, writer, progress)
    header = writer.finish(last_seq)
    file.seek(0)
    file.write(MAGIC + msgspec.json.encode(header).ljust(HEADER_BYTES - 1) + b"\n")
    return header


def _copy_moment(source: Source, writer: _Writer) -> int:
    with source.moment():
        last_seq = source.last_seq()
        for snapshot in source.snapshots():
            writer.write(Page(snapshots=(snapshot,)))
        last: DailySum | None = None
        while sums := source.sums_after(last, PAGE_ROWS):
            writer.write(Page(sums=tuple(sums)))
            last = sums[-1]
    return last_seq


def _copy_entries(source: Source, last_seq: int, writer: _Writer, progress: Progress) -> None:
    after_seq = 0
    while after_seq < last_seq:
        read = source.entries_after(after_seq, PAGE_ROWS)
        page = tuple(entry for entry in read if entry.seq <= last_seq)
        if not page:
            break
        writer.write(Page(entries=page))
        after_seq = page[-1].seq
        progress(after_seq, last_seq)
    if after_seq < last_seq:
        progress(last_seq, last_seq)


class _Writer:
    """Frames, compressed and counted."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stream = zlib.compressobj(COMPRESSION)
        self._hash = hashlib.sha256()
        self._entries = self._snapshots = self._sums = 0

    def write(self, page: Page) -> None:
        for letter, rows in ((ENTRIES, page.entries), (SNAPSHOT, page.snapshots), (SUMS, page.sums)):
            if rows:
                body = msgspec.msgpack.encode(rows)
                self._put(self._stream.compress(letter + len(body).to_bytes(LENGTH_BYTES) + body))
        self._entries += len(page.entries)
        self._snapshots += len(page.snapshots)
        self._sums += len(page.sums)

    def finish(self, last_seq: int) -> Header:
        self._put(self._stream.flush())
        header = Header(FORMAT, __version__, last_seq, self._entries, self._snapshots, self._sums)
        self._hash.update(msgspec.json.encode(header))
        return msgspec.structs.replace(header, sha256=self._hash.hexdigest())

    def _put(self, packed: bytes) -> None:
        self._hash.update(packed)
        self._file.write(packed)


def _sync_folder(folder: Path) -> None:
    """The new name itself is on the disk only when the folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some file systems cannot sync a folder; they need it no less, but there is nothing to do about it.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritten(target: Path, error: OSError) -> StoreError:
    return StoreError(
        f"the backup {target} cannot be written: {error.strerror}",
        fix="name a file in a folder that exists, may be written to and has room",
    )


# ------------------------------------------------------------------------------------------------------------- reading


def check_archive(path: str | Path) -> Header:
    """Read all of it once: what is damaged or cut off is found before anything is done with it."""
    with _opened(path) as file:
        header = _read_header(file, path)
        digest = hashlib.sha256()
        while packed := file.read(READ_BYTES):
            digest.update(packed)
    digest.update(msgspec.json.encode(msgspec.structs.replace(header, sha256="")))
    if digest.hexdigest() != header.sha256:
        raise _damaged(path, "its checksum does not match")
    _check_counts(path, header)
    return header


def _check_counts(path: str | Path, header: Header) -> None:
    entries = snapshots = sums = 0
    for page in read_pages(path):
        entries += len(page.entries)
        snapshots += len(page.snapshots)
        sums += len(page.sums)
    if (entries, snapshots, sums) != (header.entries, header.snapshots, header.sums):
        raise _damaged(path, f"it holds {entries} entries and its header says {header.entries}")


def read_pages(path: str | Path) -> Iterator[Page]:
    """What it holds, in the order in which it was written."""
    with _opened(path) as file:
        _read_header(file, path)
        for letter, body in _frames(file, path):
            try:
                yield _page(letter, body)
            except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
                raise _damaged(path, "a part of it cannot be read") from error


def _page(letter: bytes, body: bytes) -> Page:
    if letter == ENTRIES:
        return Page(entries=msgspec.msgpack.decode(body, type=tuple[Entry, ...]))
    if letter == SNAPSHOT:
        return Page(snapshots=msgspec.msgpack.decode(body, type=tuple[StoredSnapshot, ...]))
    if letter == SUMS:
        return Page(sums=msgspec.msgpack.decode(body, type=tuple[DailySum, ...]))
    raise ValueError(f"no part is called {letter!r}")


def _frames(file: IO[bytes], path: str | Path) -> Iterator[tuple[bytes, bytes]]:
    reader = _Unpacker(file, path)
    while letter := reader.take(1):
        length = int.from_bytes(reader.take(LENGTH_BYTES))
        if length > MAX_FRAME_BYTES:
            raise _damaged(path, "a part of it is too large")
        body = reader.take(length)
        if len(body) != length:
            raise _damaged(path, "it ends too early")
        yield letter, body


class _Unpacker:
    """The frames' bytes, unpacked as far as they are asked for."""

    def __init__(self, file: IO[bytes], path: str | Path) -> None:
        self._file = file
        self._path = path
        self._stream = zlib.decompressobj()
        self._ready = bytearray()

    def take(self, count: int) -> bytes:
        while len(self._ready) < count and (packed := self._file.read(READ_BYTES)):
            try:
                self._ready += self._stream.decompress(packed)
            except zlib.error as error:
                raise _damaged(self._path, "it cannot be unpacked") from error
        taken = bytes(self._ready[:count])
        del self._ready[:count]
        return taken


def _opened(path: str | Path) -> IO[bytes]:
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise StoreError(
            f"the backup {path} cannot be read: {error.strerror}", fix="name a file that is there"
        ) from error


def _read_header(file: IO[bytes], path: str | Path) -> Header:
    if file.read(len(MAGIC)) != MAGIC:
        raise StoreError(f"{path} is no backup of gpuyard", fix="name a file that gpuyard backup has written")
    try:
        header = msgspec.json.decode(file.read(HEADER_BYTES), type=Header)
    except msgspec.DecodeError as error:
        raise _damaged(path, "its header cannot be read") from error
    if header.format > FORMAT:
        raise StoreError(
            f"{path} has format {header.format}, written by gpuyard {header.gpuyard}; this one reads up to {FORMAT}",
            fix=f"restore it with gpuyard {header.gpuyard} or newer",
        )
    return header


def _damaged(path: str | Path, what: str) -> StoreError:
    return StoreError(f"the backup {path} is damaged: {what}", fix="use another backup; nothing was changed")
