"""Reading the file of a backup, and finding what is damaged in it before anything is done with it.

Place in the flow: file ─frames─▶ **these** ─pages─▶ store. Invariant: a file that passes the check holds what was
backed up, to the last byte; of any other it is said what is wrong, and where.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import msgspec

from gpuyard.errors import StoreError
from gpuyard.worlds.standalone.store.archive import (
    ENTRIES,
    FORMAT,
    GAPS,
    HEADER_BYTES,
    LENGTH_BYTES,
    LINKS,
    MAGIC,
    SNAPSHOT,
    SUMS,
    WITH_CHECKSUMS,
    Header,
    Page,
)
from gpuyard.worlds.standalone.store.chain import Gap, Head
from gpuyard.worlds.standalone.store.port import DailySum, Damage, Entry, Quarantine, StoredSnapshot
from gpuyard.worlds.standalone.store.quarantine import note_all
from gpuyard.worlds.standalone.store.verify import LogCheck, in_order

READ_BYTES: Final = 1 << 12
"""Read at once: damage is found to so many bytes."""
MAX_FRAME_BYTES: Final = 4 << 30


def check_archive(path: str | Path) -> Header:
    """Read all of it: what is damaged, cut off or not what was in the database is found, and named."""
    with _opened(path) as file:
        header = _read_header(file, path)
        size = Path(path).stat().st_size
    if header.size and size != header.size:
        end = f"cut off after byte {size}" if size < header.size else f"followed by {size - header.size} more"
        raise damaged(path, f"it had {header.size} bytes and is {end}")
    _check_content(path, header)
    if _sha256(path, header) != header.sha256:
        raise damaged(path, f"its checksum does not match; its entries are whole, so look at its first {HEADER_BYTES}")
    return header


def _sha256(path: str | Path, header: Header) -> str:
    digest = hashlib.sha256()
    with _opened(path) as file:
        _read_header(file, path)
        while packed := file.read(1 << 16):
            digest.update(packed)
    digest.update(header.signed())
    return digest.hexdigest()


def _check_content(path: str | Path, header: Header) -> None:
    entries = snapshots = sums = 0
    check, quarantine, found = LogCheck(0, ()), Quarantine(), list[Damage]()
    for page in read_pages(path):
        entries += len(page.entries)
        snapshots += len(page.snapshots)
        sums += len(page.sums)
        note_all(quarantine, page.entries)
        found += check.follow(in_order([link.proof for link in page.links()], page.gaps))
    if header.format >= WITH_CHECKSUMS:
        found += check.end(Head(header.last_seq, _from_hex(header.digest)))
        bad = next((one for one in found if one.seq not in quarantine.entries), None)
        if bad is not None:
            raise damaged(path, bad.what)
    if (entries, snapshots, sums) != (header.entries, header.snapshots, header.sums):
        raise damaged(path, f"it holds {entries} entries and its header says {header.entries}")


def _from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def read_pages(path: str | Path) -> Iterator[Page]:
    """What it holds, in the order in which it was written. Entries and the gaps beside them are one page."""
    links = Page()
    with _opened(path) as file:
        _read_header(file, path)
        reader = _Unpacker(file, path)
        for letter, body in _frames(reader):
            try:
                page = _page(letter, body)
            except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
                raise reader.damaged("a part of it cannot be read") from error
            if letter == GAPS and not links.gaps:
                links = msgspec.structs.replace(links, gaps=page.gaps)
                continue
            yield from [links] if links != Page() else []
            links = page
    yield from [links] if links != Page() else []


def _page(letter: bytes, body: bytes) -> Page:
    if letter == LINKS:
        return Page(*msgspec.msgpack.decode(body, type=tuple[tuple[Entry, ...], bytes]))
    if letter == GAPS:
        return Page(gaps=msgspec.msgpack.decode(body, type=tuple[Gap, ...]))
    if letter == ENTRIES:
        return Page(entries=msgspec.msgpack.decode(body, type=tuple[Entry, ...]))
    if letter == SNAPSHOT:
        return Page(snapshots=msgspec.msgpack.decode(body, type=tuple[StoredSnapshot, ...]))
    if letter == SUMS:
        return Page(sums=msgspec.msgpack.decode(body, type=tuple[DailySum, ...]))
    raise ValueError(f"no part is called {letter!r}")


def _frames(reader: _Unpacker) -> Iterator[tuple[bytes, bytes]]:
    while letter := reader.take(1):
        length = int.from_bytes(reader.take(LENGTH_BYTES))
        if length > MAX_FRAME_BYTES:
            raise reader.damaged("a part of it is too large")
        body = reader.take(length)
        if len(body) != length:
            raise reader.damaged("it ends too early")
        yield letter, body
    reader.require_end()


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
                raise self.damaged("it cannot be unpacked") from error
        taken = bytes(self._ready[:count])
        del self._ready[:count]
        return taken

    def require_end(self) -> None:
        if not self._stream.eof:
            raise self.damaged("it ends too early")
        if self._stream.unused_data or self._file.read(1):
            raise self.damaged("there is more behind its end")

    def damaged(self, what: str) -> StoreError:
        end = self._file.tell()
        return damaged(self._path, f"{what}, at byte {max(end - READ_BYTES, 0)} to {end}")


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
    text = file.read(HEADER_BYTES)
    try:
        header = msgspec.json.decode(text, type=Header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damaged(path, f"its header, byte {len(MAGIC)} to {len(MAGIC) + HEADER_BYTES}, cannot be read") from error
    if header.format > FORMAT:
        raise StoreError(
            f"{path} has format {header.format}, written by gpuyard {header.gpuyard}; this one reads up to {FORMAT}",
            fix=f"restore it with gpuyard {header.gpuyard} or newer",
        )
    return header


def damaged(path: str | Path, what: str) -> StoreError:
    return StoreError(f"the backup {path} is damaged: {what}", fix="use another backup; nothing was changed")
