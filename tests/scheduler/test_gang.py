"""Gangs: which tasks come next, in the order their owner gave them."""

from __future__ import annotations

from gpuyard.model.jobs import Job, Request, Task, TaskGroup
from gpuyard.scheduler.gang import Gang

ONE = Request(devices=1)


def a_job(*priorities: int, minimum: int) -> Job:
    tasks = tuple(Task(f"t{number}", ONE, priority=priority) for number, priority in enumerate(priorities))
    return Job("j", "q", tasks, TaskGroup(min_tasks=minimum))


def served(gang: Gang) -> list[list[str]]:
    """The ids of every chunk, as if each were placed at once."""
    chunks = []
    while (chunk := gang.next_chunk()) is not None:
        chunks.append([task.id for task in chunk.all_tasks()])
        gang.place(chunk, {task.id: ("n1", False) for task in chunk.all_tasks()})
    return chunks


def test_the_minimum_comes_at_once_and_the_rest_one_by_one_in_order() -> None:
    assert served(Gang(a_job(0, 0, 0, 0, minimum=2))) == [["t0", "t1"], ["t2"], ["t3"]]


def test_tasks_of_higher_priority_come_first_and_equals_keep_their_order() -> None:
    assert served(Gang(a_job(0, 5, 0, 5, minimum=1))) == [["t1"], ["t3"], ["t0"], ["t2"]]


def test_placing_takes_the_very_tasks_of_the_chunk_off_the_list() -> None:
    gang = Gang(a_job(*[0] * 3000, minimum=1))
    assert [ids[0] for ids in served(gang)] == [f"t{number}" for number in range(3000)]
    assert gang.stage() == 2


def test_either_group_will_do_where_one_is_enough() -> None:
    groups = (TaskGroup("a", min_tasks=1), TaskGroup("b", min_tasks=1))
    tasks = (Task("a-0", ONE, group="a"), Task("b-0", ONE, group="b"))
    gang = Gang(Job("j", "q", tasks, TaskGroup(children=groups, min_groups=1)))
    first = gang.next_chunk()
    assert first is not None
    assert [task.id for task in first.all_tasks()] == ["a-0"]
    assert [[task.id for task in chunk.all_tasks()] for chunk in gang.other_chunks()] == [["b-0"]]
