"""The store of the simulator: a crash at any instant, and a connection that is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuyard.errors import StoreError, StoreGoneError
from gpuyard.worlds.standalone.store.memory import (
    Fault,
    MemoryDisk,
    MemoryStore,
    SimulatedCrashError,
    Write,
)
from tests.worlds.store.places import a_snapshot, a_sum, content, entries


def once(what: Write, fault: Fault) -> Callable[[Write], Fault | None]:
    """The first such write goes wrong, all others go well."""
    left = [fault]
    return lambda write: left.pop() if write is what and left else None


def after_fault(fault: Fault, expected: type[BaseException]) -> list[int]:
    """What is on the disk after an append of 4 to 7 has gone wrong behind one that went well."""
    disk = MemoryDisk()
    store = MemoryStore(disk)
    store.open()
    store.append(entries(1, 3))
    store.close()
    broken = MemoryStore(disk, once(Write.APPEND, fault))
    broken.open()
    with pytest.raises(expected):
        broken.append(entries(4, 7))
    if expected is not StoreError:
        with pytest.raises(StoreGoneError):
            broken.last_seq()
    broken.close()
    again = MemoryStore(disk)
    again.open()
    found = [entry.seq for entry in again.read(0, 100)]
    assert again.last_seq() == found[-1]
    again.append(entries(found[-1] + 1, found[-1] + 2))
    return found


@pytest.mark.parametrize(
    ("fault", "raised", "kept"),
    [
        (Fault.CRASH_BEFORE, SimulatedCrashError, 3),
        (Fault.CRASH_DURING, SimulatedCrashError, 3),
        (Fault.CRASH_AFTER, SimulatedCrashError, 7),
        (Fault.GONE_UNWRITTEN, StoreGoneError, 3),
        (Fault.GONE_WRITTEN, StoreGoneError, 7),
        (Fault.FULL, StoreError, 3),
    ],
)
def test_an_append_that_goes_wrong_is_kept_as_a_whole_or_not_at_all(
    fault: Fault, raised: type[BaseException], kept: int
) -> None:
    assert after_fault(fault, raised) == list(range(1, kept + 1))


def test_a_torn_append_leaves_a_part_that_nobody_ever_reads() -> None:
    disk = MemoryDisk()
    store = MemoryStore(disk, once(Write.APPEND, Fault.CRASH_DURING))
    store.open()
    with pytest.raises(SimulatedCrashError):
        store.append(entries(1, 4))
    assert disk.torn == tuple(entries(1, 2))
    again = MemoryStore(disk)
    again.open()
    assert (disk.torn, again.is_empty()) == ((), True)


def test_no_handler_of_errors_stops_a_crash() -> None:
    assert not issubclass(SimulatedCrashError, Exception)


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_DURING, Fault.GONE_UNWRITTEN, Fault.FULL])
@pytest.mark.parametrize("write", [Write.SNAPSHOT, Write.SUMS, Write.PRUNE])
def test_every_other_write_can_go_wrong_too(write: Write, fault: Fault) -> None:
    disk = MemoryDisk()
    store = MemoryStore(disk, once(write, fault))
    store.open()
    store.append(entries(1, 5))
    before = content(store)
    changes: dict[Write, Callable[[], object]] = {
        Write.SNAPSHOT: lambda: store.save_snapshot(a_snapshot(3)),
        Write.SUMS: lambda: store.add_sums([a_sum()]),
        Write.PRUNE: lambda: store.prune({"job-submitted": 10**9}, 5),
    }
    with pytest.raises((SimulatedCrashError, StoreError)):
        changes[write]()
    store.open()
    assert content(store) == before


def test_the_same_faults_give_the_same_disk() -> None:
    def run() -> list[int]:
        return after_fault(Fault.GONE_WRITTEN, StoreGoneError)

    assert run() == run()
