"""Backup and restore, from and to any database.

Place in the flow: `gpuyard backup|restore` ─▶ **these** ─▶ store ─▶ archive. A backup needs no lock, so the manager may
run; a restore is a writer, so it may not.
Invariant: a restore that fails has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path

from gpuyard.errors import StoreError
from gpuyard.worlds.standalone.store.address import address_of
from gpuyard.worlds.standalone.store.archive import Header, Page, Progress, check_archive, no_progress, read_pages
from gpuyard.worlds.standalone.store.opening import open_store
from gpuyard.worlds.standalone.store.port import Entry
from gpuyard.worlds.standalone.store.sql_store import SqlStore

Mark = Callable[[int], Entry]
"""An entry with this number."""


def backup(address: str | Path, path: str | Path, *, progress: Progress = no_progress) -> Header:
    """Copy a database into one file; what the file holds is read back once, because one that is damaged is none."""
    open_store(address).backup(str(path), progress)
    return check_archive(path)


def restore(
    path: str | Path,
    address: str | Path,
    *,
    force: bool = False,
    progress: Progress = no_progress,
    mark: Mark | None = None,
) -> Header:
    """Put a backup into a database that is empty, or with `force` in the place of everything that is there.

    `mark` makes an entry that follows those of the backup, in the same transaction.
    """
    header = check_archive(path)
    pages = _with_progress(path, header, progress)
    last = (mark(header.last_seq + 1),) if mark else ()
    with closing(open_store(address)) as store:
        store.open()
        if not force:
            require_empty(store, address)
        store.replace(header.last_seq + len(last), chain(pages, [Page(last)]))
    return header


def require_empty(store: SqlStore, address: str | Path) -> None:
    if not store.is_empty():
        raise StoreError(
            f"the database {address_of(address)} is not empty: its log has {store.last_seq()} entries",
            fix="name an empty one, or give --force to replace everything in it",
        )


def _with_progress(path: str | Path, header: Header, progress: Progress) -> Iterator[Page]:
    done = 0
    for page in read_pages(path):
        yield page
        if page.entries:
            done += len(page.entries)
            progress(done, header.entries)
