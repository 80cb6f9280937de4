"""From plans to events, and back to what the next plan sees."""

from __future__ import annotations

from gpuyard.model.jobs import DeviceShare, TaskState
from gpuyard.model.plan import Bind, Evict, Move, Plan
from gpuyard.model.reasons import Reason, Token
from gpuyard.scheduler.cycle import plan
from gpuyard.scheduler.verify import verify_on
from gpuyard.worlds.standalone.events import TasksPlaced, TasksStopped
from gpuyard.worlds.standalone.lifecycle import JobState, TaskPhase
from gpuyard.worlds.standalone.planning import events_of
from gpuyard.worlds.standalone.snapshot import SHADOW, STUCK_AFTER_MS, snapshot_of
from tests.worlds.standalone.yard import FOR_ANOTHER, GRACE_MS, MEMORY_MIB, Yard, a_form

WHOLE = (DeviceShare(3, 1000, MEMORY_MIB),)
MOVED = Reason(Token.MOVED, beneficiary="other")


def carry_out(yard: Yard, *actions: Bind | Evict | Move) -> None:
    yard.enter(*events_of(yard.state, actions, yard.state.cycle + 1))


def moving(yard: Yard, tasks: int = 1, least: int | None = None) -> str:
    id = yard.submit(a_form(tasks=tasks, least=least))
    yard.run(id)
    last = tasks - 1
    carry_out(yard, Move(id, f"{id}/{last}", "a", "b", WHOLE, MOVED))
    return id


def test_a_task_that_is_moved_starts_at_its_new_place_only_after_it_has_left_the_old_one() -> None:
    yard = Yard()
    id = moving(yard)
    ledger = yard.ledger()
    assert not plan(ledger).actions
    early = Plan((Bind(id, f"{id}/0", "b", WHOLE, Reason(Token.PLACED)),))
    assert not verify_on(early, ledger)[0].holds
    yard.stopped(id)
    assert (yard.is_(id), yard.phases(id)) == (JobState.WAITING, [TaskPhase.PROMISED])
    bind = plan(yard.ledger()).actions[0]
    assert isinstance(bind, Bind)
    assert (bind.node, bind.shares) == ("b", WHOLE)


def test_what_is_being_moved_holds_both_places_and_counts_once() -> None:
    yard = Yard()
    id = moving(yard)
    jobs = {job.id: job for job in snapshot_of(yard.state, yard.now_ms).jobs}
    old, new = jobs[f"{id}{SHADOW}"].tasks[0], jobs[id].tasks[0]
    assert (old.node, old.state) == ("a", TaskState.FREEING)
    assert (new.node, new.state, new.leaving) == ("b", TaskState.PROMISED, True)


def test_an_elastic_job_of_which_one_task_is_moved_runs_on() -> None:
    yard = Yard()
    id = moving(yard, tasks=2, least=1)
    assert yard.is_(id) is JobState.RUNNING
    yard.stopped(id, 1)
    assert yard.phases(id) == [TaskPhase.RUNNING, TaskPhase.PROMISED]


def test_a_move_does_not_undo_what_is_done() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=2))
    yard.run(id)
    yard.end(id, 0)
    carry_out(yard, Move(id, f"{id}/1", "a", "b", WHOLE, MOVED))
    yard.stopped(id, 1)
    assert yard.phases(id) == [TaskPhase.DONE, TaskPhase.PROMISED]
    carry_out(yard, Bind(id, f"{id}/1", "b", WHOLE, Reason(Token.PLACED)))
    yard.end(id, 1)
    assert yard.is_(id) is JobState.SUCCEEDED


def test_a_job_that_loses_one_task_and_starts_another_in_one_plan_goes_on() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=2, least=1))
    yard.run(id, (0,))
    actions = (
        Evict(id, f"{id}/0", "a", FOR_ANOTHER),
        Bind(id, f"{id}/1", "b", WHOLE, Reason(Token.PLACED)),
    )
    stop, start = events_of(yard.state, actions, 9)
    assert isinstance(stop, TasksStopped)
    assert isinstance(start, TasksPlaced)
    assert stop.then is None
    yard.enter(stop, start)
    yard.stopped(id, 0)
    assert (yard.is_(id), yard.phases(id)) == (JobState.RUNNING, [TaskPhase.WAITING, TaskPhase.ASSIGNED])


def test_every_attempt_gets_the_next_number() -> None:
    yard = Yard()
    id = yard.submit(retries=1)
    yard.run(id)
    yard.end(id, code=1)
    carry_out(yard, Bind(id, f"{id}/0", "b", WHOLE, Reason(Token.PLACED)))
    assert (yard.task(id).attempt, yard.task(id).ran_on) == (2, ((1, "a"), (2, "b")))


def test_a_task_that_is_done_needs_no_place_and_counts_for_its_gang() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=3, least=3))
    yard.run(id, (0, 1, 2))
    yard.end(id, 0)
    carry_out(yard, Move(id, f"{id}/2", "a", "b", WHOLE, MOVED))
    yard.stopped(id, 2)
    yard.end(id, 1)
    ready = plan(yard.ledger()).actions
    assert [(type(action), action.task) for action in ready] == [(Bind, f"{id}/2")]


def test_what_should_have_stopped_long_ago_is_not_counted_on() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    yard.steer("cancel", id)
    assert snapshot_of(yard.state, yard.now_ms).jobs[0].tasks[0].state is TaskState.FREEING
    yard.wait(GRACE_MS + STUCK_AFTER_MS + 1)
    assert snapshot_of(yard.state, yard.now_ms).jobs[0].tasks[0].state is TaskState.STUCK
