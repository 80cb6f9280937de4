"""What follows for a job, and for those that wait for it, when something ends."""

from __future__ import annotations

import pytest

from gpuyard.errors import RefusedError
from gpuyard.model.jobs import Job, Request, Task, TaskGroup
from gpuyard.model.work import Array, OnNodeLost
from gpuyard.wire.agents import Ending
from gpuyard.worlds.standalone.lifecycle import JobState, TaskPhase
from gpuyard.worlds.standalone.records import Then
from tests.worlds.standalone.yard import Yard, a_form


def test_a_job_succeeds_when_all_its_tasks_have() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=2))
    yard.run(id)
    yard.end(id, 0)
    assert yard.is_(id) is JobState.RUNNING
    yard.end(id, 1)
    assert (yard.is_(id), yard.job(id).exit_code) == (JobState.SUCCEEDED, 0)


def test_one_task_that_fails_stops_the_others_of_its_gang_and_then_fails_the_job() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=2))
    yard.run(id)
    yard.end(id, 0, code=3)
    assert (yard.is_(id), yard.job(id).then) == (JobState.STOPPING, Then.FAIL)
    yard.stopped(id, 1)
    assert (yard.is_(id), yard.job(id).exit_code) == (JobState.FAILED, 3)
    assert yard.job(id).message == "task 0 ended with code 3 on a"


def test_a_job_is_tried_again_as_often_as_it_may_and_fails_then() -> None:
    yard = Yard()
    id = yard.submit(retries=2)
    for failures in (1, 2):
        yard.run(id)
        yard.end(id, code=1)
        assert (yard.is_(id), yard.job(id).failures) == (JobState.WAITING, failures)
    yard.run(id)
    yard.end(id, code=1)
    assert (yard.is_(id), yard.task(id).attempt) == (JobState.FAILED, 3)


def test_a_run_limit_is_no_failure_to_be_tried_again() -> None:
    yard = Yard()
    id = yard.submit(retries=2)
    yard.run(id)
    yard.end(id, code=None, ending=Ending.RUN_LIMIT)
    assert yard.is_(id) is JobState.FAILED


@pytest.mark.parametrize(
    ("choice", "state"), [(OnNodeLost.RESTART, JobState.WAITING), (OnNodeLost.FAIL, JobState.FAILED)]
)
def test_what_is_lost_with_its_machine_does_what_its_owner_chose(choice: OnNodeLost, state: JobState) -> None:
    yard = Yard()
    id = yard.submit(on_node_lost=choice)
    yard.run(id)
    yard.end(id, code=None, ending=Ending.LOST)
    assert (yard.is_(id), yard.job(id).failures) == (state, state is JobState.FAILED)


def test_an_elastic_job_goes_on_without_a_task_that_gave_way() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=3, least=1))
    yard.run(id)
    yard.evict(id, (2,), whole=False)
    yard.stopped(id, 2)
    assert yard.is_(id) is JobState.RUNNING
    assert yard.phases(id) == [TaskPhase.RUNNING, TaskPhase.RUNNING, TaskPhase.WAITING]


@pytest.mark.parametrize("ending", [Ending.LOST, Ending.LEASE_EXPIRED, Ending.STOPPED])
def test_an_elastic_job_goes_on_without_a_task_that_was_lost_with_its_machine(ending: Ending) -> None:
    """The rest was restarted, too, for the reason that a gang of two with three tasks left were incomplete."""
    yard = Yard()
    id = yard.submit(a_form(tasks=4, least=2))
    yard.run(id)
    yard.end(id, 3, code=None, ending=ending)
    assert yard.is_(id) is JobState.RUNNING
    assert yard.phases(id) == [TaskPhase.RUNNING] * 3 + [TaskPhase.WAITING]
    yard.end(id, 2, code=None, ending=ending)
    yard.end(id, 1, code=None, ending=ending)
    assert (yard.is_(id), yard.job(id).then) == (JobState.STOPPING, Then.REQUEUE)


def test_an_elastic_job_that_is_to_fail_with_its_machine_does_so_whatever_is_left() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=2, least=1), on_node_lost=OnNodeLost.FAIL)
    yard.run(id)
    yard.end(id, 1, code=None, ending=Ending.LOST)
    assert (yard.is_(id), yard.job(id).then) == (JobState.STOPPING, Then.FAIL)


def test_a_job_that_is_stopped_and_has_done_all_meanwhile_has_succeeded() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    yard.steer("cancel", id)
    yard.end(id)
    assert yard.is_(id) is JobState.SUCCEEDED


def test_a_job_that_is_requeued_runs_its_done_tasks_again() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=2))
    yard.run(id)
    yard.end(id, 0)
    yard.steer("requeue", id)
    yard.stopped(id, 1)
    assert yard.is_(id) is JobState.WAITING
    assert yard.phases(id) == [TaskPhase.WAITING, TaskPhase.WAITING]
    yard.run(id)
    assert yard.job(id).restarts == 1


def test_a_job_that_is_scaled_down_to_its_done_tasks_has_succeeded() -> None:
    yard = Yard()
    id = yard.submit(a_form(tasks=2, least=1))
    yard.run(id)
    yard.end(id, 0)
    yard.steer("suspend", id)
    yard.stopped(id, 1)
    assert yard.is_(id) is JobState.SUSPENDED
    yard.scale(id, 1)
    assert yard.is_(id) is JobState.SUCCEEDED


def test_all_groups_of_a_job_must_be_done() -> None:
    yard = Yard()
    one = Request(devices=1)
    group = TaskGroup("all", children=(TaskGroup("head", 1), TaskGroup("rest", 1)))
    tasks = (Task("", one, "head"), Task("", one, "rest"), Task("", one, "rest"))
    id = yard.submit(Job("", "vision", tasks, group))
    yard.run(id)
    yard.end(id, 0)
    yard.end(id, 1)
    assert yard.is_(id) is JobState.RUNNING
    yard.end(id, 2)
    assert yard.is_(id) is JobState.SUCCEEDED


# ------------------------------------------------------------------------------------------------------ those that wait


def test_a_job_waits_for_the_end_of_another_however_it_ends() -> None:
    yard = Yard()
    first = yard.submit()
    second = yard.submit(after=(first,))
    assert yard.is_(second) is JobState.BLOCKED
    yard.run(first)
    yard.end(first, code=1)
    assert yard.is_(second) is JobState.WAITING


def test_a_job_whose_success_was_depended_on_takes_the_others_down_with_it() -> None:
    yard = Yard()
    first = yard.submit()
    second = yard.submit(afterok=(first,))
    third = yard.submit(afterok=(second,))
    last = yard.submit(after=(third,))
    yard.steer("cancel", first)
    assert [yard.is_(id) for id in (second, third)] == [JobState.FAILED, JobState.FAILED]
    assert yard.job(second).message == f"job {first}, on whose success it depends, cancelled"
    assert yard.is_(last) is JobState.WAITING


def test_what_can_never_be_depended_on_is_refused_at_once() -> None:
    yard = Yard()
    first = yard.submit()
    yard.steer("cancel", first)
    with pytest.raises(RefusedError, match=f"job {first}, on whose success it would depend, cancelled"):
        yard.submit(afterok=(first,))


def test_the_elements_of_an_array_get_their_turn_in_order() -> None:
    yard = Yard()
    array = yard.submit(array=Array((0, 1, 2, 3), at_once=2))
    elements = [f"{array}_{index}" for index in range(4)]
    assert [yard.is_(id) for id in elements] == [JobState.WAITING] * 2 + [JobState.BLOCKED] * 2
    yard.run(elements[1])
    yard.end(elements[1])
    assert [yard.is_(id) for id in elements[2:]] == [JobState.WAITING, JobState.BLOCKED]
    yard.steer("cancel", elements[0])
    assert yard.is_(elements[3]) is JobState.WAITING


def test_an_element_that_ends_before_its_turn_takes_nobodys_turn() -> None:
    yard = Yard()
    array = yard.submit(array=Array((0, 1, 2), at_once=1))
    yard.steer("cancel", f"{array}_1")
    assert yard.is_(f"{array}_2") is JobState.BLOCKED
    yard.steer("cancel", f"{array}_0")
    assert yard.is_(f"{array}_2") is JobState.WAITING


def test_a_job_can_wait_for_a_whole_array() -> None:
    yard = Yard()
    array = yard.submit(array=Array((0, 1)))
    last = yard.submit(afterok=(array,))
    yard.run(f"{array}_0")
    yard.end(f"{array}_0")
    assert yard.is_(last) is JobState.BLOCKED
    yard.run(f"{array}_1")
    yard.end(f"{array}_1", code=1)
    assert yard.is_(last) is JobState.FAILED


def test_a_held_job_that_is_released_still_waits_for_others() -> None:
    yard = Yard()
    first = yard.submit()
    second = yard.submit(after=(first,), held=True)
    yard.steer("release", second)
    assert yard.is_(second) is JobState.BLOCKED
