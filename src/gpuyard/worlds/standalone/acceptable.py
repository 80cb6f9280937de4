"""Whether an event holds only values that the state and the scheduler can count with.

Place in the flow: decide, reports, planning ─events─▶ **acceptable** ─▶ journal ─▶ log; log ─events─▶ **acceptable** ─▶
fold. Pure, and without the state: what contradicts the state is found by the fold itself. Invariant: an event without
a problem, folded into a state of such events, gives a snapshot that can be planned on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from gpuyard.model.job_limits import job_problem, shares_problem
from gpuyard.model.jobs import MAX_TASKS_PER_JOB
from gpuyard.model.limits import (
    MAX_DURATION_MS,
    MAX_NUMBER,
    MAX_TIME_MS,
    labels_problem,
    node_facts_problem,
    number_problem,
    times_problem,
)
from gpuyard.model.queue_rules import tree_problem
from gpuyard.model.recurrence import MAX_MISSED_LIMIT_MS
from gpuyard.model.work import MAX_ARRAY, MAX_GRACE_MS, MAX_RETRIES, Array, Work
from gpuyard.worlds.standalone.events import (
    ArrayReleased,
    ArraySubmitted,
    AttemptBegan,
    AttemptEnded,
    Checkpointed,
    DayClosed,
    Event,
    IdleNoticed,
    IdleReclaimable,
    IdleWarned,
    JobScaled,
    JobSubmitted,
    JobWent,
    LeaseSet,
    NodeLabelled,
    NodeSeen,
    Placing,
    PromiseDropped,
    RequestKept,
    ScheduleRan,
    ScheduleSet,
    ScheduleSkipped,
    ScheduleSuspended,
    TasksPlaced,
    TasksPromised,
    TasksStopped,
    TeamsSet,
    TokenCreated,
)
from gpuyard.worlds.standalone.records import JobRecord, Place

MAX_IDLE_PERCENT: Final = 100
MAX_SEQ: Final = (1 << 63) - 1
"""Of entries of the log, cycles and attempts: what an SQL column holds."""
MAX_EXIT_CODE: Final = (1 << 32) - 1
"""Windows and some signals count this far; POSIX ends at 255."""
DAY_LENGTH: Final = len("2026-01-31")


def event_problem(event: Event) -> str:
    """Return why an event cannot be folded and planned on; an empty text where nothing in it forbids it."""
    check = _CHECKS.get(type(event))
    return check(event) if check is not None else ""


# --------------------------------------------------------------------------------------------------- nodes and queues


def _node_seen(event: NodeSeen) -> str:
    facts = event.facts
    return node_facts_problem(facts.devices, facts.cpu_milli, facts.memory_bytes, facts.labels)


def _node_labelled(event: NodeLabelled) -> str:
    return labels_problem(event.labels)


def _lease_set(event: LeaseSet) -> str:
    return number_problem("the lease, in milliseconds,", event.lease_ms, MAX_DURATION_MS)


def _teams_set(event: TeamsSet) -> str:
    for name, team in event.teams.items():
        found = (
            number_problem(f'the number of team "{name[:40]}"', team.number)
            or number_problem(f'the idle limit of team "{name[:40]}"', team.idle_limit_ms, MAX_DURATION_MS)
            or number_problem(f'the idle percentage of team "{name[:40]}"', team.idle_percent, MAX_IDLE_PERCENT)
        )
        if found:
            return found
    return tree_problem(event.queues)


def _token_created(event: TokenCreated) -> str:
    return times_problem((event.token.created_at_ms, event.token.expires_at_ms))


# ---------------------------------------------------------------------------------------------------------------- jobs


def _job_submitted(event: JobSubmitted) -> str:
    return _record_problem(event.job)


def _record_problem(job: JobRecord) -> str:
    number = job.id.partition("_")[0]
    if not (number.isascii() and number.isdecimal() and len(number) <= len(str(MAX_SEQ))):
        return f'"{job.id[:40]}" is not the number of a job'
    if len(job.tasks) != len(job.form.tasks):
        return f"it has {len(job.form.tasks)} tasks and {len(job.tasks)} records of them"
    return (
        times_problem((job.submitted_at_ms, job.planned_at_ms, job.ended_at_ms, job.started_at_ms))
        or work_problem(job.work)
        or job_problem(job.form)
    )


def work_problem(work: Work) -> str:
    """Return which number of what a job runs is out of range."""
    return number_problem("the grace of a job, in milliseconds,", work.grace_ms, MAX_GRACE_MS) or number_problem(
        "the number of retries", work.retries, MAX_RETRIES
    )


def array_problem(array: Array) -> str:
    """Return whether an array has too many elements, or an index out of range."""
    return (
        number_problem("the number of elements of an array", len(array.indices), MAX_ARRAY)
        or number_problem("the number of elements at once", array.at_once)
        or next((found for index in array.indices if (found := number_problem("an index", index))), "")
    )


def _array_submitted(event: ArraySubmitted) -> str:
    return array_problem(event.array.array) or number_problem("elements released", event.array.released)


def _array_released(event: ArrayReleased) -> str:
    return number_problem("elements released", event.released) or number_problem("elements", event.released_from)


def _job_went(event: JobWent) -> str:
    return number_problem("an exit code", event.exit_code, MAX_EXIT_CODE, -MAX_EXIT_CODE)


def _job_scaled(event: JobScaled) -> str:
    return number_problem("the number of tasks", event.tasks, MAX_TASKS_PER_JOB, 1) or number_problem(
        "the minimum of tasks", event.min_tasks, event.tasks
    )


def _request_kept(event: RequestKept) -> str:
    return times_problem((event.receipt.at_ms,))


# --------------------------------------------------------------------------------------------------------------- tasks


def _tasks_placed(event: TasksPlaced | TasksPromised) -> str:
    return _cycle_problem(event.cycle) or next((found for one in event.tasks if (found := _placing_problem(one))), "")


def _placing_problem(placing: Placing) -> str:
    return _task_problem(placing.task, placing.attempt) or _place_problem(placing.place)


def _place_problem(place: Place | None) -> str:
    return shares_problem(place.shares) if place is not None else ""


def _task_problem(task: int, attempt: int = 0) -> str:
    # Written out: this is asked for every task placed.
    if 0 <= task < MAX_TASKS_PER_JOB and 0 <= attempt <= MAX_NUMBER:
        return ""
    return number_problem("the index of a task", task, MAX_TASKS_PER_JOB - 1) or number_problem("an attempt", attempt)


def _cycle_problem(cycle: int) -> str:
    return number_problem("the number of a cycle", cycle, MAX_SEQ)


def _promise_dropped(event: PromiseDropped) -> str:
    return _cycle_problem(event.cycle) or _first(_task_problem(task) for task in event.tasks)


def _tasks_stopped(event: TasksStopped) -> str:
    return _cycle_problem(event.cycle) or _first(
        _task_problem(one.task) or _place_problem(one.next) for one in event.tasks
    )


def _attempt_began(event: AttemptBegan) -> str:
    return _task_problem(event.task, event.attempt) or times_problem((event.started_at_ms,))


def _attempt_ended(event: AttemptEnded) -> str:
    return (
        _task_problem(event.task, event.attempt)
        or times_problem((event.ended_at_ms,))
        or number_problem("an exit code", event.exit_code, MAX_EXIT_CODE, -MAX_EXIT_CODE)
    )


def _checkpointed(event: Checkpointed) -> str:
    return _task_problem(event.task) or times_problem((event.at_ms,))


def _idle_noticed(event: IdleNoticed) -> str:
    return times_problem((event.since_ms,))


def _idled(event: IdleWarned | IdleReclaimable) -> str:
    return number_problem("the time without use, in milliseconds,", event.idle_ms, MAX_TIME_MS)


def _day_closed(event: DayClosed) -> str:
    return "" if len(event.day) == DAY_LENGTH else f'"{event.day[:40]}" is not a day'


# ----------------------------------------------------------------------------------------------------------- schedules


def _schedule_set(event: ScheduleSet) -> str:
    submission = event.submission
    limit = event.recurrence.missed_limit_ms
    return (
        number_problem("the limit for missed times, in milliseconds,", limit, MAX_MISSED_LIMIT_MS)
        or work_problem(submission.work)
        or (array_problem(submission.array) if submission.array is not None else "")
        or job_problem(submission.form)
    )


def _planned(event: ScheduleRan | ScheduleSkipped | ScheduleSuspended) -> str:
    return times_problem((event.planned_at_ms,))


def _first(problems: Iterable[str]) -> str:
    return next(filter(None, problems), "")


_CHECKS: Final[dict[type, Callable[[Any], str]]] = {
    ArrayReleased: _array_released,
    ArraySubmitted: _array_submitted,
    AttemptBegan: _attempt_began,
    AttemptEnded: _attempt_ended,
    Checkpointed: _checkpointed,
    DayClosed: _day_closed,
    IdleNoticed: _idle_noticed,
    IdleReclaimable: _idled,
    IdleWarned: _idled,
    JobScaled: _job_scaled,
    JobSubmitted: _job_submitted,
    JobWent: _job_went,
    LeaseSet: _lease_set,
    NodeLabelled: _node_labelled,
    NodeSeen: _node_seen,
    PromiseDropped: _promise_dropped,
    RequestKept: _request_kept,
    ScheduleRan: _planned,
    ScheduleSet: _schedule_set,
    ScheduleSkipped: _planned,
    ScheduleSuspended: _planned,
    TasksPlaced: _tasks_placed,
    TasksPromised: _tasks_placed,
    TasksStopped: _tasks_stopped,
    TeamsSet: _teams_set,
    TokenCreated: _token_created,
}
"""What each kind of event is checked for; kinds that are not listed hold names alone."""
