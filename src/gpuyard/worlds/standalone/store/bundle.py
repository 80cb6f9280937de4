"""One backup of several databases: the manager's, and those that belong to it.

Place in the flow: `gpuyard backup|restore` ─▶ **bundle** ─▶ backup ─▶ archive. Where there is only the manager's, the
file is its archive, as ever; else it is a tar with one archive for each.
Invariant: a restore looks at all archives and at all databases before it changes the first.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from gpuyard.errors import StoreError
from gpuyard.worlds.standalone.store import backup as single
from gpuyard.worlds.standalone.store.address import beside
from gpuyard.worlds.standalone.store.archive import MAGIC, Header
from gpuyard.worlds.standalone.store.archive_reading import check_archive
from gpuyard.worlds.standalone.store.opening import is_there, open_store
from gpuyard.worlds.standalone.store.port import Progress, no_progress

MAIN: Final = "gpuyard"
"""What the manager's own archive is called in a tar."""


class Contents(Header, frozen=True, omit_defaults=True):
    """What a backup holds: the manager's part, and the others by name."""

    parts: dict[str, Header] = msgspec.field(default_factory=dict)


def backup(address: str | Path, path: str | Path, parts: Sequence[str], progress: Progress = no_progress) -> Contents:
    """Copy a database, and those of its parts that are there, into one file."""
    found = [part for part in parts if is_there(beside(address, part))]
    if not found:
        return _contents(single.backup(address, path, progress=progress), {})
    target = Path(path)
    with _folder_beside(target) as folder:
        main = single.backup(address, folder / MAIN, progress=progress)
        headers = {part: single.backup(beside(address, part), folder / part) for part in found}
        _pack(folder, [MAIN, *found], target)
    return _contents(main, headers)


def restore(
    path: str | Path,
    address: str | Path,
    parts: Sequence[str],
    *,
    force: bool = False,
    progress: Progress = no_progress,
    mark: single.Mark | None = None,
    markers: Path | None = None,
) -> Contents:
    """Put a backup into databases that are empty, or with `force` in the place of everything that is there.

    `mark` makes an entry that follows those of the manager's own.
    """
    if not _is_tar(path):
        return _contents(single.restore(path, address, force=force, progress=progress, mark=mark, markers=markers), {})
    with _folder_beside(Path(path)) as folder:
        found = _unpack(path, folder, parts)
        headers = {part: check_archive(folder / part) for part in found}
        if not force:
            for part in found:
                _check_empty(beside(address, part), markers)
        main = single.restore(folder / MAIN, address, force=force, progress=progress, mark=mark, markers=markers)
        for part in found:
            single.restore(folder / part, beside(address, part), force=True, markers=markers)
    return _contents(main, headers)


def check(path: str | Path, parts: Sequence[str]) -> Contents:
    """Read all of a backup; what is damaged in it is found and named."""
    if not _is_tar(path):
        return _contents(check_archive(path), {})
    with tempfile.TemporaryDirectory(prefix="gpuyard-verify-") as name:
        folder = Path(name)
        headers = {part: check_archive(folder / part) for part in (MAIN, *_unpack(path, folder, parts))}
    return _contents(headers.pop(MAIN), headers)


def _contents(header: Header, parts: dict[str, Header]) -> Contents:
    return Contents(**{name: getattr(header, name) for name in Header.__struct_fields__}, parts=parts)


def _check_empty(address: str, markers: Path | None) -> None:
    if not is_there(address):
        return
    with closing(open_store(address, markers)) as store:
        store.open(accept=True)
        single.require_empty(store, address)


# ----------------------------------------------------------------------------------------------------------------- tar


@contextmanager
def _folder_beside(target: Path) -> Iterator[Path]:
    """For archives on their way, on the same disk; only its owner can look into it."""
    try:
        folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    except OSError as error:
        fix = "name a file in a folder that exists, may be written to and has room"
        raise StoreError(f"beside {target} nothing can be written: {error.strerror}", fix=fix) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _pack(folder: Path, names: Sequence[str], target: Path) -> None:
    try:
        whole = _packed(folder, names)
        with whole.open("rb") as file:
            os.fsync(file.fileno())
        whole.rename(target)
    except OSError as error:
        fix = "name a file in a folder that may be written to and has room"
        raise StoreError(f"the backup {target} cannot be written: {error.strerror}", fix=fix) from error


def _packed(folder: Path, names: Sequence[str]) -> Path:
    """One file of these archives, the same to the last byte whenever it is made of the same archives."""
    whole = folder / "whole"
    with whole.open("xb") as file:
        whole.chmod(0o600)
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for name in names:
                tar.add(folder / name, name, filter=_plain)
    return whole


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Nothing of who made it, or when."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o600
    return member


def _require_same(path: str | Path, folder: Path, members: Sequence[tarfile.TarInfo]) -> None:
    """Packed again, the archives must give the same file: what stands between them is damaged otherwise, or cut off."""
    if any(member.mtime for member in members):
        # Made before files were the same to the last byte; each of its archives is checked all the same.
        return
    whole = _packed(folder, [member.name for member in members])
    same = filecmp.cmp(whole, path, shallow=False)
    whole.unlink()
    if not same:
        what = "what stands between its archives is not what was written, or one of them is missing"
        raise StoreError(f"the backup {path} is damaged: {what}", fix="use another; nothing was changed")


def _is_tar(path: str | Path) -> bool:
    """What is no archive of one database; what it is instead is seen when it is read."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(MAGIC)) != MAGIC and tarfile.is_tarfile(path)
    except OSError:
        return False


def _unpack(path: str | Path, folder: Path, parts: Sequence[str]) -> list[str]:
    """The parts that are in it, their archives now in the folder beside the manager's."""
    try:
        with tarfile.open(path, "r:") as tar:
            members = {member.name: member for member in tar.getmembers() if member.isfile()}
            unknown = sorted(members.keys() - {MAIN, *parts})
            if unknown or MAIN not in members:
                what = f"it holds {unknown[0]}, which is not known here" if unknown else f"it lacks {MAIN}"
                raise StoreError(f"the backup {path} cannot be used: {what}", fix="restore it with a newer gpuyard")
            for name, member in members.items():
                source = tar.extractfile(member)
                assert source is not None
                with source, (folder / name).open("xb") as copy:
                    shutil.copyfileobj(source, copy)
            _require_same(path, folder, tar.getmembers())
    except (tarfile.TarError, EOFError) as error:
        raise StoreError(f"the backup {path} is damaged: {error}", fix="use another; nothing was changed") from error
    return [part for part in parts if part in members]
