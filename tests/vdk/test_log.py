"""The log of a pool: a change is written as a whole or has not happened, whatever goes wrong with the disk."""

from __future__ import annotations

import random

import pytest

from gpuyard.errors import StoreError
from gpuyard.vdk import Budget, GpuResourceManager, Machine
from gpuyard.vdk.log import KEPT_MS
from gpuyard.worlds.standalone.store.memory import (
    WRITTEN,
    Fault,
    MemoryDisk,
    MemoryStore,
    SimulatedCrashError,
    Write,
)
from gpuyard.worlds.standalone.store.port import StoredSnapshot
from tests.vdk.crashing import TEAMS, Call, do, draw
from tests.vdk.driving import everything
from tests.vdk.pools import Clock, a_pool, ask, pool_on

CALLS = 60
SNAPSHOT_EVERY = 5


class Fate:
    """What goes wrong with one kind of write, if anything."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.of = Write.APPEND
        self.met = 0

    def __call__(self, write: Write) -> Fault | None:
        if self.fault is None or write is not self.of:
            return None
        self.met += 1
        return self.fault


class Shaken:
    """A pool whose disk fails now and then, and one whose disk does not."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.disk, self.fate = MemoryDisk(), Fate()
        self.pool = self.opened()
        self.steady = pool_on(MemoryStore(), self.clock, SNAPSHOT_EVERY)
        for pool in (self.pool, self.steady):
            for name in ("m1", "m2"):
                pool.set_machine(Machine(name, 3))
            for team in TEAMS:
                pool.set_budget(Budget(team, 2000))

    def opened(self) -> GpuResourceManager:
        return pool_on(MemoryStore(self.disk, self.fate), self.clock, SNAPSHOT_EVERY)

    def call(self, call: Call, fault: Fault | None) -> None:
        self.clock.now_ms = call.at_ms
        self.fate.fault = fault
        try:
            answer = do(self.pool, call)
        except SimulatedCrashError:
            self.fate.fault = None
            self.pool = self.opened()
            answer = "crash"
        except StoreError:
            answer = "store"
        self.fate.fault = None
        if answer not in ("crash", "store"):
            assert do(self.steady, call) == answer
        elif fault in WRITTEN or self.fate.of is not Write.APPEND:
            do(self.steady, call)
        assert everything(self.pool) == everything(self.steady)


@pytest.mark.parametrize("of", [Write.APPEND, Write.SNAPSHOT, Write.PRUNE])
@pytest.mark.parametrize("fault", Fault)
def test_a_call_has_happened_as_a_whole_or_not_at_all(fault: Fault, of: Write) -> None:
    """Where it could not be appended it has not; where only a snapshot could not be kept it has."""
    chance = random.Random(3)
    shaken = Shaken()
    shaken.fate.of = of
    for _ in range(CALLS):
        call = draw(chance, shaken.steady, shaken.clock.now_ms)
        shaken.call(call, fault if chance.random() < 0.4 else None)
    assert shaken.fate.met > 2


def test_a_snapshot_that_cannot_be_read_is_passed_over() -> None:
    disk, clock = MemoryDisk(), Clock()
    pool = pool_on(MemoryStore(disk), clock, SNAPSHOT_EVERY)
    for name in range(12):
        pool.set_machine(Machine(f"m{name}", 1))
    seen = everything(pool)
    pool.close()
    assert disk.snapshots
    for seq, kept in list(disk.snapshots.items()):
        disk.snapshots[seq] = StoredSnapshot(seq, kept.at_ms, b"damaged")
    again = pool_on(MemoryStore(disk), clock, SNAPSHOT_EVERY)
    assert everything(again) == seen


def test_a_log_with_a_gap_is_refused() -> None:
    disk, clock = MemoryDisk(), Clock()
    with pool_on(MemoryStore(disk), clock, 1000) as pool:
        for name in range(3):
            pool.set_machine(Machine(f"m{name}", 1))
    del disk.log[1]
    with pytest.raises(StoreError, match="entry 2 is missing"):
        pool_on(MemoryStore(disk), clock, 1000)


def test_old_entries_are_forgotten_once_two_snapshots_hold_them() -> None:
    disk, clock = MemoryDisk(), Clock()
    pool = pool_on(MemoryStore(disk), clock, SNAPSHOT_EVERY)
    for number in range(40):
        clock.now_ms = number * KEPT_MS
        pool.set_budget(Budget("a", number))
    assert len(disk.log) < 3 * SNAPSHOT_EVERY
    seen = everything(pool)
    pool.close()
    assert everything(pool_on(MemoryStore(disk), clock, SNAPSHOT_EVERY)) == seen


def test_two_pools_in_memory_are_different() -> None:
    first, second = a_pool(1, a=1), a_pool(1, a=1)
    ask(first, "a/x", 1)
    assert second.jobs() == []
