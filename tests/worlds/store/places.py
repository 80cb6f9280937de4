"""Places where a store can keep its data, and entries to keep there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuyard.worlds.standalone.store.memory import MemoryDisk, MemoryStore
from gpuyard.worlds.standalone.store.opening import open_store
from gpuyard.worlds.standalone.store.port import DailySum, Entry, Store, StoredSnapshot
from gpuyard.worlds.standalone.store.sql_store import SqlStore

AnyStore = SqlStore | MemoryStore
DAY = "2026-11-16"


class Places:
    """A place whose stores are all closed at the end of the test."""

    def __init__(self, address: str | Path | MemoryDisk) -> None:
        self.address = address
        self._made: list[AnyStore] = []

    def store(self) -> AnyStore:
        made = MemoryStore(self.address) if isinstance(self.address, MemoryDisk) else open_store(self.address)
        self._made.append(made)
        return made

    def opened(self) -> AnyStore:
        made = self.store()
        made.open()
        return made

    def emptied(self) -> AnyStore:
        """The same open store for every example of a property, with nothing in it."""
        store = self._made[0] if self._made else self.opened()
        store.replace(0, [])
        return store

    def close(self) -> None:
        for store in self._made:
            store.close()


def an_entry(seq: int, **given: object) -> Entry:
    values: dict[str, object] = {
        "seq": seq,
        "at_ms": 1_000 * seq,
        "kind": "job-submitted",
        "body": b'{"job":%d}' % seq,
        "actor": "ann",
        "team": "vision",
        "objects": (f"job/{seq}", "team/vision"),
    }
    return Entry(**(values | given))  # type: ignore[arg-type]


def entries(first: int, last: int) -> list[Entry]:
    return [an_entry(seq) for seq in range(first, last + 1)]


def a_sum(**given: object) -> DailySum:
    values: dict[str, object] = {"day": DAY, "team": "vision", "user": "ann", "job": "7", "kind": "held"}
    return DailySum(**({"cause": "", "gpu_milli_ms": 1000} | values | given))  # type: ignore[arg-type]


def a_snapshot(seq: int, body: bytes = b"state") -> StoredSnapshot:
    return StoredSnapshot(seq, seq * 1_000, body)


def fill(store: Store, count: int = 25) -> None:
    """Some of everything."""
    store.append(entries(1, count))
    store.save_snapshot(a_snapshot(count // 2, bytes(range(256))))
    store.save_snapshot(a_snapshot(count))
    store.add_sums([a_sum(job=str(job), gpu_milli_ms=job) for job in range(count)])


def content(store: Store) -> tuple[int, list[Entry], list[StoredSnapshot], list[DailySum]]:
    """Everything that a store holds."""
    return store.last_seq(), store.read(0, 1_000_000), list(store.snapshots()), store.sums("0", "9")


def seqs(found: Sequence[Entry]) -> list[int]:
    return [entry.seq for entry in found]
