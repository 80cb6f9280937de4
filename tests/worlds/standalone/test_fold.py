"""The state is the fold of the log: byte for byte, from any beginning."""

from __future__ import annotations

import msgspec

from gpuyard.model.jobs import DeviceShare
from gpuyard.model.queues import Queue
from gpuyard.model.work import Array
from gpuyard.worlds.standalone.events import DECODER, JobsForgotten, Restored
from gpuyard.worlds.standalone.fold import fold
from gpuyard.worlds.standalone.intents import SetTeams
from gpuyard.worlds.standalone.journal import load
from gpuyard.worlds.standalone.lifecycle import JobState, TaskPhase
from gpuyard.worlds.standalone.records import Place, State
from gpuyard.worlds.standalone.store.memory import MemoryDisk, MemoryStore
from tests.worlds.standalone.yard import MEMORY_MIB, Yard, a_form


def a_full_life() -> Yard:
    yard = Yard()
    first = yard.submit(a_form(tasks=3, least=1), retries=1)
    array = yard.submit(array=Array((0, 1, 2), at_once=1))
    yard.submit(after=(array, first), afterok=(array,))
    yard.run(first)
    yard.wait(5_000)
    yard.evict(first, (2,), whole=False)
    yard.stopped(first, 2)
    yard.end(first, 0, code=1)
    yard.stopped(first, 1)
    yard.run(f"{array}_0", node="b")
    yard.wait(5_000)
    yard.end(f"{array}_0")
    yard.scale(first, 2)
    return yard


def test_after_a_restore_numbers_go_on_beyond_all_that_may_have_been_given() -> None:
    yard = Yard()
    yard.submit()
    for million in (1, 2):
        yard.enter(Restored())
        assert yard.submit() == f"{million}000001"
    yard.do(SetTeams((*yard.state.queues, Queue("robots"))))
    assert yard.state.teams["robots"].number == 2001


def test_a_replayed_log_gives_the_same_state_byte_for_byte() -> None:
    yard = a_full_life()
    replayed = State()
    for entry in yard.journal.pending:
        fold(replayed, DECODER.decode(entry.body), entry.seq, entry.at_ms)
    assert msgspec.msgpack.encode(replayed) == msgspec.msgpack.encode(yard.state)


def test_a_snapshot_and_the_log_after_it_give_the_same_as_the_log_alone() -> None:
    yard = Yard()
    store = MemoryStore(MemoryDisk())
    store.open()
    store.append(yard.journal.take_pending())
    store.save_snapshot(yard.journal.snapshot().stored())
    id = yard.submit()
    yard.run(id)
    store.append(yard.journal.take_pending())
    loaded = load(store)
    assert msgspec.msgpack.encode(loaded.state) == msgspec.msgpack.encode(yard.state)
    assert loaded.snapshot_seq < loaded.state.seq


def test_attempt_numbers_go_on_where_tasks_were_scaled_away_and_come_back() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=2, least=1))
    yard.run(id)
    yard.evict(id, (1,), whole=False)
    yard.stopped(id, 1)
    yard.scale(id, 1)
    yard.scale(id, 3)
    yard.run(id, (1, 2))
    assert [task.attempt for task in yard.job(id).tasks] == [1, 2, 2]


def test_a_job_that_stops_as_a_whole_keeps_no_promise() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=2, least=1))
    yard.run(id)
    elsewhere = Place("b", (DeviceShare(0, 1000, MEMORY_MIB),))
    yard.evict(id, (1,), whole=False, next=elsewhere)
    yard.stopped(id, 1)
    assert yard.phases(id) == [TaskPhase.RUNNING, TaskPhase.PROMISED]
    yard.steer("requeue", id)
    assert yard.phases(id) == [TaskPhase.STOPPING, TaskPhase.WAITING]


def test_a_gang_that_lacks_a_part_is_stale_until_it_is_whole_again() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=2, least=1))
    yard.run(id, (0,))
    assert yard.job(id).stale_since_ms is None
    yard.wait(1_000)
    yard.scale(id, 2, 2)
    since_ms = yard.now_ms
    yard.wait(1_000)
    assert yard.job(id).stale_since_ms == since_ms
    yard.run(id, (1,), "b")
    assert yard.job(id).stale_since_ms is None


def test_what_is_forgotten_leaves_nothing_behind() -> None:
    yard = Yard()
    array = yard.submit(array=Array((0, 1)))
    ids = (f"{array}_0", f"{array}_1")
    for id in ids:
        yard.steer("cancel", id)
    yard.enter(JobsForgotten(ids))
    assert (yard.state.jobs, yard.state.arrays, yard.state.finished) == ({}, {}, [])
    assert yard.submit() == "2"


def test_every_recorded_plan_counts_up_the_cycle() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    before = yard.state.cycle
    yard.evict(id, (0,), whole=True)
    assert yard.state.cycle == before + 1
    yard.stopped(id)
    assert yard.is_(id) is JobState.WAITING
