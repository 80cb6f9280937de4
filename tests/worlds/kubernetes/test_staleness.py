"""A gang that has lost a part is stopped after a while; one that has not got it yet is not."""

from __future__ import annotations

from gpuyard.model.jobs import Job, Request, Task, TaskGroup, TaskState
from gpuyard.worlds.kubernetes.staleness import has_lost_a_part, most_together

LEADER = TaskGroup(children=(TaskGroup("leader", min_tasks=1),))
WHOLE = TaskGroup(children=(TaskGroup("leader", min_tasks=1), TaskGroup("workers", min_tasks=2)))
RUNNING, PENDING = TaskState.RUNNING, TaskState.PENDING


def a_job(group: TaskGroup, **states: TaskState) -> Job:
    """Tasks by leaf and number: `workers1`."""
    tasks = tuple(
        Task(
            id=name,
            request=Request(),
            group=name.rstrip("0123456789"),
            state=state,
            node="n" if state is RUNNING else "",
        )
        for name, state in states.items()
    )
    return Job(id="j", queue="q", tasks=tasks, group=group)


def test_workers_that_never_had_a_place_are_not_lost() -> None:
    alone = a_job(LEADER, leader=RUNNING)
    together = most_together(alone, 0)
    waiting = a_job(WHOLE, leader=RUNNING, workers1=PENDING, workers2=PENDING)
    together = most_together(waiting, together)
    assert not has_lost_a_part(waiting, [LEADER], together)


def test_workers_that_had_a_place_are_lost_until_the_gang_is_started_anew() -> None:
    whole = a_job(WHOLE, leader=RUNNING, workers1=RUNNING, workers2=RUNNING)
    together = most_together(whole, 1)
    assert together == 3
    rest = a_job(WHOLE, leader=RUNNING, workers1=PENDING, workers2=RUNNING)
    together = most_together(rest, together)
    assert has_lost_a_part(rest, [LEADER, WHOLE], together)
    stopped = a_job(WHOLE, leader=PENDING, workers1=PENDING, workers2=PENDING)
    together = most_together(stopped, together)
    assert together == 0
    again = a_job(WHOLE, leader=RUNNING, workers1=PENDING, workers2=PENDING)
    assert not has_lost_a_part(again, [LEADER], most_together(again, together))


def test_a_part_of_the_second_step_alone_is_a_loss_even_if_nothing_is_remembered() -> None:
    """As after a restart of the scheduler: half a gang was never allowed to start."""
    headless = a_job(WHOLE, leader=PENDING, workers1=RUNNING, workers2=RUNNING)
    assert has_lost_a_part(headless, [WHOLE], most_together(headless, 0))


def test_a_gang_of_one_step_that_lacks_a_part_has_lost_it() -> None:
    group = TaskGroup(min_tasks=2)
    half = a_job(group, a=RUNNING, b=PENDING)
    assert has_lost_a_part(half, [group], most_together(half, 0))
    assert not has_lost_a_part(a_job(group, a=RUNNING, b=RUNNING), [group], 2)
