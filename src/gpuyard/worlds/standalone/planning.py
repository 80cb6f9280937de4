"""From a verified plan to events: who starts where, with which attempt, and who must go.

Place in the flow: loop ─actions─▶ **planning** ─events─▶ journal. Pure. Invariant: every attempt number is given once,
here, and is in the log before a machine hears of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuyard.model.plan import Action, Bind, Evict, Move, Promise, Resize
from gpuyard.model.reasons import Reason
from gpuyard.worlds.standalone.events import (
    Event,
    Leaving,
    Placing,
    PromiseDropped,
    TasksPlaced,
    TasksPromised,
    TasksStopped,
)
from gpuyard.worlds.standalone.lifecycle import PLACED, JobState, TaskPhase
from gpuyard.worlds.standalone.records import JobRecord, Place, State, Then


def events_of(state: State, actions: Iterable[Action], cycle: int) -> Iterator[Event]:
    """One event per job and kind, in the order of the plan: who goes before who comes."""
    binds: dict[str, list[Placing]] = {}
    promises: dict[str, list[Placing]] = {}
    leaving: dict[str, list[Leaving]] = {}
    dropped: dict[str, list[tuple[int, Reason]]] = {}
    for action in actions:
        record = state.jobs.get(action.job)
        if record is None:
            continue
        task = task_index(action.task)
        current = record.tasks[task]
        match action:
            case Bind() if _still_stops(record, task):
                # Its new place is free before it has left the old one: it starts there once it has.
                continue
            case Bind():
                placing = Placing(task, _place(action), action.reason, current.attempt + 1)
                binds.setdefault(action.job, []).append(placing)
            case Promise():
                promises.setdefault(action.job, []).append(Placing(task, _place(action), action.reason))
            case Evict() if current.phase in PLACED and current.next is None:
                leaving.setdefault(action.job, []).append(Leaving(task, action.reason))
            case Evict():
                dropped.setdefault(action.job, []).append((task, action.reason))
            case Move():
                leaving.setdefault(action.job, []).append(Leaving(task, action.reason, _place(action)))
            case Resize():
                raise AssertionError("nothing is resized in place on our own machines")
    for job, drops in dropped.items():
        yield PromiseDropped(job, cycle, tuple(task for task, _ in drops), drops[0][1])
    for job, going in leaving.items():
        coming = [one.task for one in binds.get(job, ())]
        yield TasksStopped(job, tuple(going), cycle, _then(state.jobs[job], going, coming))
    for job, placings in binds.items():
        yield TasksPlaced(job, cycle, tuple(placings))
    for job, placings in promises.items():
        yield TasksPromised(job, cycle, tuple(placings))


def _still_stops(record: JobRecord, task: int) -> bool:
    return record.state is JobState.STOPPING or record.tasks[task].phase is TaskPhase.STOPPING


def _then(record: JobRecord, going: list[Leaving], coming: list[int]) -> Then | None:
    """Where nothing of a job is left in place, the job as a whole stops and waits for its turn again.

    Not one that is only moved and has tasks that are done: those would run again.
    """
    gone = {one.task for one in going}
    left = [
        index
        for index, task in enumerate(record.tasks)
        if (task.phase in (TaskPhase.ASSIGNED, TaskPhase.RUNNING) and index not in gone) or index in coming
    ]
    moved = all(one.next is not None for one in going)
    if left or (moved and any(task.phase is TaskPhase.DONE for task in record.tasks)):
        return None
    return Then.REQUEUE


def _place(action: Bind | Promise | Move) -> Place:
    return Place(action.node, action.shares)


def task_index(task: str) -> int:
    return int(task.rpartition("/")[2])
