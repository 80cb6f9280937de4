"""Submissions: from what somebody asks to have run to the jobs that stand in the log.

Place in the flow: Submit, or a planned time of a schedule ─▶ **submitting** ─events─▶ journal. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from gpuyard.errors import RefusedError
from gpuyard.model.jobs import Job
from gpuyard.worlds.standalone.checks import leaf_of
from gpuyard.worlds.standalone.consequences import is_blocked, state_of
from gpuyard.worlds.standalone.events import ArraySubmitted, Event, JobSubmitted, RequestKept
from gpuyard.worlds.standalone.intents import Submission, Submit
from gpuyard.worlds.standalone.lifecycle import JobState
from gpuyard.worlds.standalone.records import ArrayRecord, JobRecord, Receipt, State, TaskRecord

MAX_JOBS: Final = 200_000
"""Jobs that are not over. More would make every answer slow: a queue this long is a mistake."""

MAX_TASKS_AT_ONCE: Final = 200_000
"""Tasks of one submission, over all elements of its array: they are made, and written to the log, in one step."""


def submitted_before(state: State, key: str, fingerprint: str) -> tuple[str, ...] | None:
    """The jobs a request with this key has led to; None where there was none."""
    receipt = state.receipts.get(key) if key else None
    if receipt is None:
        return None
    if receipt.fingerprint != fingerprint:
        raise RefusedError(
            "KeyReused",
            "the Idempotency-Key was used for another request",
            fix="use a new key for every new request",
        )
    return receipt.jobs


def submit(state: State, intent: Submit, now_ms: int) -> Iterator[Event]:
    submission = intent.submission
    _check_submission(state, submission)
    number = state.next_job
    if submission.array is None:
        records = [_record(state, submission, str(number), now_ms)]
    else:
        records = list(_elements(state, submission, number, now_ms))
        elements = tuple(record.id for record in records)
        released = submission.array.at_once or len(elements)
        yield ArraySubmitted(ArrayRecord(str(number), submission.array, elements, released))
    for record in records:
        yield JobSubmitted(record)
    if intent.key:
        ids = tuple(record.id for record in records)
        yield RequestKept(intent.key, Receipt(intent.fingerprint, ids, now_ms))


def _check_submission(state: State, submission: Submission) -> None:
    leaf_of(state, submission.form.queue)
    count = len(submission.array.indices) if submission.array else 1
    tasks = count * len(submission.form.tasks)
    if tasks > MAX_TASKS_AT_ONCE:
        what = f"{count} elements of {len(submission.form.tasks)} tasks are {tasks}; {MAX_TASKS_AT_ONCE} is the most"
        raise RefusedError("BadValue", what, fix="submit several arrays, or jobs of fewer tasks", field="array")
    waiting = len(state.jobs) - len(state.finished)
    if waiting + count > MAX_JOBS:
        raise RefusedError(
            "QueueFull", f"{waiting} jobs are not over, and {MAX_JOBS} is the most", fix="wait, or cancel some"
        )
    for field, ids in (("after", submission.after), ("afterok", submission.afterok)):
        for id in ids:
            if id not in state.jobs and id not in state.arrays:
                raise RefusedError("DependencyUnknown", f"there is no job {id}", fix="gpuyard ls -a", field=field)
    for id in submission.afterok:
        if state_of(state, id) in (JobState.FAILED, JobState.CANCELLED):
            what = f"job {id}, on whose success it would depend, {state_of(state, id)}"
            raise RefusedError("DependencyNever", what, fix="use after instead of afterok", field="afterok")


def _elements(state: State, submission: Submission, number: int, now_ms: int) -> Iterator[JobRecord]:
    array = submission.array
    assert array is not None
    for position, index in enumerate(array.indices):
        record = _record(state, submission, f"{number}_{index}", now_ms)
        throttled = bool(array.at_once) and position >= array.at_once
        if throttled and record.state is JobState.WAITING:
            record = replace(record, state=JobState.BLOCKED)
        yield replace(record, array=str(number), array_index=index)


def _record(state: State, submission: Submission, id: str, now_ms: int) -> JobRecord:
    form = _named(submission.form, id, now_ms)
    record = JobRecord(
        id=id,
        name=submission.name,
        user=submission.user,
        form=form,
        work=submission.work,
        state=JobState.WAITING,
        tasks=(TaskRecord(),) * len(form.tasks),
        submitted_at_ms=now_ms,
        after=submission.after,
        afterok=submission.afterok,
        held=submission.held,
        schedule=submission.schedule,
        planned_at_ms=submission.planned_at_ms,
        elastic=form.group.fewest_tasks < len(form.tasks),
    )
    if submission.held:
        return replace(record, state=JobState.HELD)
    return replace(record, state=JobState.BLOCKED) if is_blocked(state, record) else record


def _named(form: Job, id: str, now_ms: int) -> Job:
    """The form with the job's own id, by which its tasks are named, too."""
    tasks = tuple(replace(task, id=f"{id}/{index}") for index, task in enumerate(form.tasks))
    return replace(form, id=id, tasks=tasks, submitted_at_ms=now_ms)
