"""What follows for a job, and for those that wait for it, when an attempt ends or somebody steps in.

Place in the flow: reports and decide ─▶ **consequences** ─events─▶ journal. The functions are given the state as it is
after the events they follow from, and say what comes next. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuyard.model.reasons import EVICTIONS, Reason, Token
from gpuyard.model.work import OnNodeLost
from gpuyard.scheduler.gang import satisfied
from gpuyard.wire.agents import Ending
from gpuyard.worlds.standalone.events import (
    ArrayReleased,
    AttemptEnded,
    Event,
    JobScaled,
    JobWent,
    Leaving,
    TasksStopped,
)
from gpuyard.worlds.standalone.lifecycle import OVER, PLACED, Happening, JobState, TaskPhase
from gpuyard.worlds.standalone.records import JobRecord, State, TaskRecord, Then, done_per_leaf, per_leaf

SETTLED: Final = {
    Then.REQUEUE: Happening.REQUEUED,
    Then.RETRY: Happening.REQUEUED,
    Then.SUSPEND: Happening.SUSPENDED,
    Then.HOLD: Happening.HELD,
    Then.CANCEL: Happening.CANCELLED,
    Then.FAIL: Happening.FAILED,
}

_BY_ITSELF: Final = frozenset({Ending.EXITED, Ending.NOT_STARTED, Ending.OUT_OF_MEMORY, Ending.RUN_LIMIT})
"""Endings that are the job's own doing."""


def ended_well(job: JobRecord, ending: Ending, exit_code: int | None) -> bool:
    return ending is Ending.EXITED and exit_code == 0


def after_attempt(job: JobRecord, event: AttemptEnded) -> Iterator[Event]:
    """What follows for the job of an attempt that has ended and is entered."""
    left = [index for index, task in enumerate(job.tasks) if task.phase in PLACED]
    if job.state is JobState.STOPPING:
        if not left:
            yield settled(job)
        return
    if event.done:
        yield from _after_success(job, left)
        return
    task = job.tasks[event.task]
    if task.phase is TaskPhase.PROMISED or _goes_on_without(job, event):
        # An elastic job goes on without it.
        return
    yield from _after_failure(job, event, left)


def _goes_on_without(job: JobRecord, event: AttemptEnded) -> bool:
    """Whether it was stopped for another's sake or lost with its machine, and enough of its job is left."""
    why = job.tasks[event.task].why
    asked = why is not None and why.token in EVICTIONS and event.ending not in _BY_ITSELF
    return (asked or _verdict(job, event) is Then.REQUEUE) and _enough_left(job)


def _enough_left(job: JobRecord) -> bool:
    staying = (index for index, task in enumerate(job.tasks) if _stays(task))
    return satisfied(job.form.group, per_leaf(job.form, staying))


def _stays(task: TaskRecord) -> bool:
    """Done, or on a machine and not to leave but for another place."""
    if task.phase is TaskPhase.STOPPING:
        return task.next is not None
    return task.phase in PLACED or task.phase is TaskPhase.DONE


def _after_success(job: JobRecord, left: list[int]) -> Iterator[Event]:
    done = done_per_leaf(job)
    if not left and (satisfied(job.form.group, done) or sum(done.values()) == len(job.tasks)):
        yield JobWent(job.id, Happening.SUCCEEDED, exit_code=0)


def _after_failure(job: JobRecord, event: AttemptEnded, left: list[int]) -> Iterator[Event]:
    then = _verdict(job, event)
    message = _sentence(event)
    why = Reason(Token.RUN_LIMIT) if event.ending is Ending.RUN_LIMIT else None
    going = [index for index in left if job.tasks[index].phase is not TaskPhase.STOPPING]
    if left:
        reason = why or Reason(Token.GANG_INCOMPLETE, have=len(left), need=job.form.group.fewest_tasks)
        leaving = tuple(Leaving(index, reason) for index in going)
        yield TasksStopped(job.id, leaving, then=then, message=message)
        return
    yield JobWent(
        job.id,
        SETTLED[then] if not (job.held and then in (Then.REQUEUE, Then.RETRY)) else Happening.FAILED,
        why=why,
        message=message,
        exit_code=event.exit_code,
        failed=then in (Then.RETRY, Then.FAIL),
    )


def _verdict(job: JobRecord, event: AttemptEnded) -> Then:
    if event.ending is Ending.RUN_LIMIT:
        return Then.FAIL
    if event.ending in _BY_ITSELF:
        return Then.RETRY if job.failures < job.work.retries else Then.FAIL
    if event.ending in (Ending.LOST, Ending.LEASE_EXPIRED) and job.work.on_node_lost is OnNodeLost.FAIL:
        return Then.FAIL
    return Then.REQUEUE


def _sentence(event: AttemptEnded) -> str:
    task = f"task {event.task}"
    match event.ending:
        case Ending.EXITED:
            return f"{task} ended with code {event.exit_code} on {event.node}"
        case Ending.NOT_STARTED:
            return f"{task} could not be started on {event.node}: {event.message}"
        case Ending.OUT_OF_MEMORY:
            return f"{task} held more memory on {event.node} than it asked for: {event.message}"
        case Ending.RUN_LIMIT:
            return f"{task} ran for as long as it may"
        case Ending.LEASE_EXPIRED:
            return f"{event.node} had no contact for too long and stopped {task}"
        case Ending.LOST:
            return f"{task} was lost on {event.node}{': ' if event.message else ''}{event.message}"
        case Ending.STOPPED:
            return f"{task} was stopped on {event.node}"


def settled(job: JobRecord) -> JobWent:
    """A job of which nothing is left on any machine goes where it was to go."""
    if all(task.phase is TaskPhase.DONE for task in job.tasks):
        return JobWent(job.id, Happening.SUCCEEDED, exit_code=0)
    then = job.then or Then.REQUEUE
    if job.held and then in (Then.REQUEUE, Then.RETRY):
        return JobWent(job.id, Happening.HELD, why=job.why, message=job.message)
    return JobWent(
        job.id,
        SETTLED[then],
        why=job.why,
        message=job.message,
        exit_code=_exit_code(job),
        failed=then in (Then.RETRY, Then.FAIL),
    )


def _exit_code(job: JobRecord) -> int | None:
    codes = [task.exit_code for task in job.tasks if task.exit_code]
    return codes[0] if codes and job.then in (Then.FAIL, Then.RETRY) else None


def stop_or(job: JobRecord, then: Then, happening: Happening, message: str, why: Reason | None = None) -> Event:
    """Stop what runs of a job, politely; where nothing runs, it happens at once."""
    if not any(task.phase in PLACED for task in job.tasks):
        return JobWent(job.id, happening, message=message, why=why)
    leaving = tuple(
        Leaving(index, task.why if task.phase is TaskPhase.STOPPING else why)
        for index, task in enumerate(job.tasks)
        if task.phase in PLACED
    )
    return TasksStopped(job.id, leaving, then=then, message=message)


# ----------------------------------------------------------------------------------------------- those that wait for it


def follow_ups(state: State, event: Event) -> Iterator[Event]:
    """What follows at once from an event that has just been entered."""
    match event:
        case AttemptEnded(job):
            yield from after_attempt(state.jobs[job], event)
        case JobWent(job) if state.jobs[job].state in OVER:
            yield from _after_end(state, state.jobs[job])
        case JobScaled(job) if all(task.phase is TaskPhase.DONE for task in state.jobs[job].tasks):
            yield JobWent(job, Happening.SUCCEEDED, exit_code=0)
        case ArrayReleased(array, _, released_from):
            for id in state.arrays[array].elements[released_from : state.arrays[array].released]:
                yield from filter(None, [unblocked(state, id)])


def _after_end(state: State, job: JobRecord) -> Iterator[Event]:
    """What follows for others once a job is over."""
    if job.array and job.array in state.arrays:
        yield from _release_next(state, job)
    for ended in (job.id, job.array):
        for id in state.dependents.get(ended, ()) if ended else ():
            yield from filter(None, [unblocked(state, id)])


def unblocked(state: State, id: str) -> Event | None:
    """Whether a job that waits for others may go on now, or never will."""
    job = state.jobs.get(id)
    if job is None or job.state not in (JobState.BLOCKED, JobState.HELD):
        return None
    failed = [other for other in job.afterok if state_of(state, other) in (JobState.FAILED, JobState.CANCELLED)]
    if failed:
        what = f"job {failed[0]}, on whose success it depends, {state_of(state, failed[0])}"
        return JobWent(id, Happening.FAILED, message=what)
    if job.state is JobState.BLOCKED and not is_blocked(state, job):
        return JobWent(id, Happening.UNBLOCKED)
    return None


def state_of(state: State, id: str) -> JobState:
    """Where a job stands; one that is long forgotten has ended well."""
    record = state.jobs.get(id)
    if record is not None:
        return record.state
    array = state.arrays.get(id)
    if array is None:
        return JobState.SUCCEEDED
    states = [state_of(state, element) for element in array.elements]
    if any(one not in OVER for one in states):
        return JobState.RUNNING
    bad = next((one for one in states if one is not JobState.SUCCEEDED), None)
    return bad or JobState.SUCCEEDED


def is_blocked(state: State, job: JobRecord) -> bool:
    """Whether it still waits for others, or for its turn in its array."""
    if any(state_of(state, other) not in OVER for other in (*job.after, *job.afterok)):
        return True
    array = state.arrays.get(job.array) if job.array else None
    if array is None or not array.array.at_once or job.array_index is None:
        return False
    return array.elements.index(job.id) >= array.released


def _release_next(state: State, job: JobRecord) -> Iterator[Event]:
    """An element that had its turn is over: the next in order gets its own."""
    array = state.arrays[job.array]
    if not array.array.at_once or array.elements.index(job.id) >= array.released:
        return
    released = array.released
    while released < len(array.elements):
        released += 1
        if state_of(state, array.elements[released - 1]) not in OVER:
            break
    if released != array.released:
        yield ArrayReleased(array.id, released, array.released)
