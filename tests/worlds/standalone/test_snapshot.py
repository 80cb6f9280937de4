"""How the scheduler sees the state, also after a restart, when the kept ledger must follow as before."""

from __future__ import annotations

from gpuyard.model.jobs import TaskState
from gpuyard.scheduler.ledger import Ledger
from gpuyard.worlds.standalone.fold import HOUR_MS
from gpuyard.worlds.standalone.journal import Journal
from gpuyard.worlds.standalone.lifecycle import JobState
from gpuyard.worlds.standalone.records import Place
from gpuyard.worlds.standalone.snapshot import STUCK_AFTER_MS, snapshot_of
from gpuyard.worlds.standalone.world import Standalone
from tests.worlds.standalone.yard import GRACE_MS, LEASE_MS, Yard, a_form


def states(yard: Yard) -> dict[str, list[TaskState]]:
    return {job.id: [task.state for task in job.tasks] for job in snapshot_of(yard.state, yard.now_ms).jobs}


def test_only_what_may_start_is_pending() -> None:
    yard = Yard()
    waiting, held = yard.submit(), yard.submit(held=True)
    blocked, suspended = yard.submit(after=(waiting,)), yard.submit()
    yard.steer("suspend", suspended)
    gated = [TaskState.GATED]
    assert states(yard) == {waiting: [TaskState.PENDING], held: gated, blocked: gated, suspended: gated}


def test_what_is_over_is_not_seen() -> None:
    yard = Yard()
    id = yard.submit()
    yard.steer("cancel", id)
    assert states(yard) == {}


def test_a_task_holds_its_place_from_the_moment_it_is_assigned() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=2))
    yard.place(id)
    assert states(yard)[id] == [TaskState.RUNNING] * 2


def test_a_silent_machine_takes_nothing_new_and_keeps_what_it_has() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    yard.wait(LEASE_MS + 1)
    yard.tick()
    assert [node.ready for node in snapshot_of(yard.state, yard.now_ms).nodes] == [False, False]
    assert states(yard)[id] == [TaskState.RUNNING]


def test_after_a_restart_what_has_been_stopping_for_too_long_is_followed_as_before() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    yard.steer("cancel", id)
    world = Standalone(Journal(yard.state), lambda: yard.now_ms)
    ledger = Ledger.of(world.snapshot())
    yard.wait(GRACE_MS + STUCK_AFTER_MS + 1)
    ledger.apply(world.observe())
    assert ledger.facts() == yard.ledger().facts()
    assert yard.is_(id) is JobState.STOPPING


def test_a_move_counts_for_an_hour_and_no_longer() -> None:
    """It counted until something else was stopped: a budget that was used up once stayed so."""
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    yard.evict(id, (0,), whole=True, next=Place("b"))
    world = Standalone(Journal(yard.state), lambda: yard.now_ms)
    ledger = Ledger.of(world.snapshot())
    yard.wait(HOUR_MS - 1)
    ledger.apply(world.observe())
    assert ledger.moves_last_hour == 1
    yard.wait(1)
    ledger.apply(world.observe())
    assert ledger.moves_last_hour == yard.ledger().moves_last_hour == 0


def test_a_clock_that_was_ahead_and_is_set_back_makes_nobody_late() -> None:
    """What was told to stop just now would have seemed stuck for an hour, and others would have had to stop instead."""
    yard = Yard()
    before, id = yard.submit(), yard.submit()
    yard.run(before)
    yard.run(id)
    yard.steer("cancel", before)
    world = Standalone(yard.journal, lambda: yard.now_ms)
    ledger = Ledger.of(world.snapshot())
    yard.wait(HOUR_MS)
    ledger.apply(world.observe())
    assert ledger.jobs[before].tasks[0].state is TaskState.STUCK
    yard.wait(-HOUR_MS)
    yard.steer("cancel", id)
    ledger.apply(world.observe())
    assert {ledger.jobs[one].tasks[0].state for one in (before, id)} == {TaskState.FREEING}
    assert ledger.facts() == yard.ledger().facts()
