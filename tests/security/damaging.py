"""A database with real content, and every way to damage it: the bytes of its files, or its rows by SQL."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec

from gpuyard.errors import StoreError
from gpuyard.worlds.standalone.events import NodeSeen
from gpuyard.worlds.standalone.journal import load
from gpuyard.worlds.standalone.store.opening import open_store
from gpuyard.worlds.standalone.store.port import Store
from gpuyard.worlds.standalone.store.sql_store import SqlStore
from tests.worlds.standalone.yard import Yard, facts
from tests.worlds.store.places import a_sum, content

JOBS = 60
PRUNED_BEFORE = 30
"""Entries of two kinds that retention took, at the beginning of the log."""

Content = tuple[object, ...]


def some_life(yard: Yard, jobs: int) -> None:
    """Jobs that are submitted, start, run and end, and machines that are seen."""
    for number in range(jobs):
        id = yard.submit()
        if number % 3 == 0:
            yard.place(id)
        yard.wait(1_000)
        if number % 7 == 0:
            yard.enter(NodeSeen("a", facts(4), f"i{number}", "boot", "1"))


def fill(store: Store, jobs: int = JOBS) -> Yard:
    """A log, snapshots, sums and gaps, as after a while."""
    yard = Yard()
    for _ in range(3):
        some_life(yard, jobs // 3)
        store.append(yard.journal.take_pending())
        store.save_snapshot(yard.journal.snapshot().stored())
        some_life(yard, 4)
    store.add_sums([a_sum(job=str(job), gpu_milli_ms=job * 1000) for job in range(30)])
    store.prune({"node-seen": yard.now_ms, "job-submitted": yard.now_ms}, PRUNED_BEFORE)
    # As a manager does: days are summed before the log says that they are closed.
    store.append(yard.journal.take_pending())
    return yard


def all_of(store: SqlStore) -> Content:
    """The state, and everything else that can be read, searches included."""
    state = msgspec.msgpack.encode(load(store).state)
    searches = (
        store.history(object="job/40"),
        store.history(kinds=["tasks-placed"]),
        store.history(teams=["vision"], limit=50),
        store.history(since_ms=0, until_ms=2**50, limit=50),
    )
    last_seq, log, _, sums = content(store)
    return state, last_seq, log, sums, searches


@contextmanager
def started(address: str, markers: Path | None = None) -> Iterator[SqlStore]:
    with closing(open_store(address, markers)) as store:
        store.open()
        yield store


class Refused(msgspec.Struct, frozen=True):
    """How a start was refused."""

    text: str
    fix: str


def start(address: str, markers: Path | None = None) -> Content | Refused:
    """What a start comes to. Any other error than one of the store's fails the test that asks."""
    try:
        with started(address, markers) as store:
            return all_of(store)
    except StoreError as error:
        return Refused(error.what, error.fix)


def copied(folder: Path, to: Path) -> Path:
    """The same database in another folder, with its journal and its marker."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(folder, to)
    return to / "gpuyard.db"


# ------------------------------------------------------------------------------------------------------ bytes of a file


def flip_byte(path: Path, draw: random.Random) -> str:
    data = bytearray(path.read_bytes())
    at, bit = draw.randrange(len(data)), draw.choice([1, 2, 4, 8, 16, 32, 64, 128, 255])
    data[at] ^= bit
    path.write_bytes(data)
    return f"byte {at} of {path.name} ^ {bit}"


def cut_off(path: Path, draw: random.Random) -> str:
    length = draw.randrange(path.stat().st_size)
    with path.open("r+b") as file:
        file.truncate(length)
    return f"{path.name} cut to {length}"


def zero_page(path: Path, draw: random.Random, page: int = 4096) -> str:
    at = draw.randrange(max(path.stat().st_size // page, 1)) * page
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes(page))
    return f"page at {at} of {path.name} zeroed"


def swap_pages(path: Path, draw: random.Random, page: int = 4096) -> str:
    data = bytearray(path.read_bytes())
    one, other = draw.sample(range(max(len(data) // page, 2)), 2)
    a, b = slice(one * page, one * page + page), slice(other * page, other * page + page)
    data[a], data[b] = data[b], data[a]
    path.write_bytes(data)
    return f"pages {one} and {other} of {path.name} swapped"


def garbage(path: Path, draw: random.Random) -> str:
    size = path.stat().st_size
    at, length = draw.randrange(size), draw.randrange(1, 600)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(draw.randbytes(min(length, size - at)))
    return f"{length} bytes at {at} of {path.name} are noise"


DAMAGES = (flip_byte, flip_byte, flip_byte, flip_byte, cut_off, zero_page, swap_pages, garbage)


def damage(folder: Path, draw: random.Random) -> str:
    """Damage one file of a database that is not its marker; what was done."""
    files = [path for path in sorted(folder.iterdir()) if path.name in ("gpuyard.db", "gpuyard.db-wal")]
    path = draw.choice([one for one in files if one.stat().st_size])
    with suppress(IndexError):
        return draw.choice(DAMAGES)(path, draw)
    return "nothing"
