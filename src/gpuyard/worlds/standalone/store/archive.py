"""Writing the file of a backup: one format, whichever database it came from or goes to.

    magic, header (JSON, padded to a fixed size), then a zlib stream of frames: one letter, a length, a list of rows.

Place in the flow: store ─pages─▶ **archive** ─pages─▶ store. Snapshots and sums are read at one moment, together with
the number of the last entry. The entries follow in pages after it: they never change, so nobody has to wait meanwhile.
Invariant: a file that has its name is whole, its checksum covers the header and everything after it, and its entries
have the checksums that they had in the database.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO, Final, Protocol

import msgspec

from gpuyard import __version__
from gpuyard.errors import StoreError
from gpuyard.worlds.standalone.store.chain import CHECKSUM_BYTES, Gap, Head, Link, link_of
from gpuyard.worlds.standalone.store.port import DailySum, Entry, Progress, StoredSnapshot, no_progress

FORMAT: Final = 3
"""Since 2 its entries may be about schedules, which an older gpuyard does not know; since 3 they have checksums. Older
formats are read."""
WITH_CHECKSUMS: Final = 3
MAGIC: Final = b"gpuyard backup\n"
HEADER_BYTES: Final = 1024
PAGE_ROWS: Final = 1000
COMPRESSION: Final = 6
LENGTH_BYTES: Final = 8

SUMS: Final = b"u"
SNAPSHOT: Final = b"s"
ENTRIES: Final = b"e"
"""Without checksums: of formats before 3."""
LINKS: Final = b"l"
"""Entries, and their checksums one after the other."""
GAPS: Final = b"g"


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
    digest: str = ""
    """Of the last entry, in hexadecimal: the end of the chain. Since format 3, as is `size`."""
    size: int = 0
    """Of the whole file, in bytes."""

    def signed(self) -> bytes:
        """What its checksum covers of it."""
        later = ("digest", "size") if self.format >= WITH_CHECKSUMS else ()
        names = ("format", "gpuyard", "last_seq", "entries", "snapshots", "sums", "sha256", *later)
        return msgspec.json.encode({name: "" if name == "sha256" else getattr(self, name) for name in names})


class Page(msgspec.Struct, frozen=True):
    """A part of a backup, small enough to be held in memory."""

    entries: tuple[Entry, ...] = ()
    checksums: bytes = b""
    """Of the entries, one after the other; empty: they have none yet."""
    gaps: tuple[Gap, ...] = ()
    """What retention had taken before, between and after the entries."""
    snapshots: tuple[StoredSnapshot, ...] = ()
    sums: tuple[DailySum, ...] = ()

    def links(self) -> Iterator[Link]:
        """The entries with their checksums, where they have some."""
        if self.checksums:
            for place, entry in enumerate(self.entries):
                start = place * CHECKSUM_BYTES
                yield link_of(entry, self.checksums[start : start + CHECKSUM_BYTES])


class Source(Protocol):
    """What a backup is read from."""

    def moment(self) -> AbstractContextManager[None]: ...

    def head(self) -> Head: ...

    def snapshots(self) -> Iterator[StoredSnapshot]: ...

    def sums_after(self, last: DailySum | None, limit: int) -> list[DailySum]: ...

    def links_after(self, after_seq: int, upto_seq: int, limit: int) -> tuple[list[Link], list[Gap]]:
        """The next entries, and the gaps before, between and behind them; StoreDamagedError names one that is bad."""


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
    head = _copy_moment(source, writer)
    _copy_entries(source, head.last_seq, writer, progress)
    header = writer.finish(head)
    file.seek(0)
    file.write(MAGIC + msgspec.json.encode(header).ljust(HEADER_BYTES - 1) + b"\n")
    return header


def _copy_moment(source: Source, writer: _Writer) -> Head:
    with source.moment():
        head = source.head()
        for snapshot in source.snapshots():
            writer.write(Page(snapshots=(snapshot,)))
        last: DailySum | None = None
        while sums := source.sums_after(last, PAGE_ROWS):
            writer.write(Page(sums=tuple(sums)))
            last = sums[-1]
    return head


def _copy_entries(source: Source, last_seq: int, writer: _Writer, progress: Progress) -> None:
    after_seq = 0
    while after_seq < last_seq:
        links, gaps = source.links_after(after_seq, last_seq, PAGE_ROWS)
        checksums = b"".join(link.checksum for link in links)
        writer.write(Page(entries=tuple(link.entry for link in links), checksums=checksums, gaps=tuple(gaps)))
        if len(links) < PAGE_ROWS:
            break
        after_seq = links[-1].entry.seq
        progress(after_seq, last_seq)
    progress(last_seq, last_seq)


class _Writer:
    """Frames, compressed and counted."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stream = zlib.compressobj(COMPRESSION)
        self._hash = hashlib.sha256()
        self._entries = self._snapshots = self._sums = 0

    def write(self, page: Page) -> None:
        if page.entries:
            self._frame(LINKS, (page.entries, page.checksums))
        for letter, rows in ((GAPS, page.gaps), (SNAPSHOT, page.snapshots), (SUMS, page.sums)):
            if rows:
                self._frame(letter, rows)
        self._entries += len(page.entries)
        self._snapshots += len(page.snapshots)
        self._sums += len(page.sums)

    def _frame(self, letter: bytes, rows: object) -> None:
        body = msgspec.msgpack.encode(rows)
        self._put(self._stream.compress(letter + len(body).to_bytes(LENGTH_BYTES) + body))

    def finish(self, head: Head) -> Header:
        self._put(self._stream.flush())
        header = Header(
            FORMAT,
            __version__,
            head.last_seq,
            self._entries,
            self._snapshots,
            self._sums,
            digest=head.digest.hex(),
            size=self._file.tell(),
        )
        self._hash.update(header.signed())
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
