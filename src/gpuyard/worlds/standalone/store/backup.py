"""Backup and restore, from and to any database.

Place in the flow: `gpuyard backup|restore` ─▶ **these** ─▶ store ─▶ archive. A backup needs no lock, so the manager may
run; a restore is a writer, so it may not.
Invariant: a restore that fails has changed nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path

from gpuyard.errors import StoreDamagedError, StoreError
from gpuyard.worlds.standalone.store.address import address_of
from gpuyard.worlds.standalone.store.archive import Header, Page
from gpuyard.worlds.standalone.store.archive_reading import check_archive, read_pages
from gpuyard.worlds.standalone.store.opening import open_store
from gpuyard.worlds.standalone.store.port import Entry, Progress, no_progress
from gpuyard.worlds.standalone.store.sql_store import SqlStore

_log = logging.getLogger(__name__)

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
    markers: Path | None = None,
) -> Header:
    """Put a backup into a database that is empty, or with `force` in the place of everything that is there.

    `mark` makes an entry that follows those of the backup, in the same transaction. `markers` is the folder where this
    machine keeps what it knows of databases on a server.
    """
    header = check_archive(path)
    pages = _with_progress(path, header, progress)
    last = (mark(header.last_seq + 1),) if mark else ()
    with closing(open_store(address, markers)) as store:
        open_to_replace(store, force=force)
        if not force:
            require_empty(store, address)
        store.replace(header.last_seq + len(last), chain(pages, [Page(last)]))
    return header


def open_to_replace(store: SqlStore, *, force: bool) -> None:
    """Open a database whatever is in it. One that is damaged itself gets another name by force, and nothing is lost."""
    try:
        store.open(accept=True)
        if force:
            store.require_structure()
    except StoreDamagedError as error:
        store.close()
        if not force:
            raise
        _log.warning("%s: %s; it is now %s", store.place, error.what, store.set_aside())
        store.open(accept=True)


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
