"""Recurring jobs: what people ask of a schedule, and what becomes of its planned times.

Place in the flow: intents, and the manager's tick ─▶ **schedules** ─events─▶ journal. Pure: time is an argument.
Invariant: the events of a planned time are entered together, the jobs of its run and the note that it has had it. So
whatever crashes, a planned time has one run, or one reason why it has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from msgspec.structs import replace

from gpuyard.errors import InputError, RefusedError
from gpuyard.files.cron import check_cron, check_zone, count_planned, newest_planned
from gpuyard.model.recurrence import (
    MAX_MISSED_LIMIT_MS,
    SCHEDULE_LABEL,
    SCHEDULE_NAME_PATTERN,
    Missed,
    Overlap,
    Recurrence,
)
from gpuyard.wire.access import Caller
from gpuyard.worlds.standalone.checks import check_revision, leaf_of
from gpuyard.worlds.standalone.consequences import state_of, stop_or
from gpuyard.worlds.standalone.events import (
    Event,
    JobSubmitted,
    RequestKept,
    SchedulePaused,
    ScheduleRan,
    ScheduleRemoved,
    ScheduleResumed,
    ScheduleSet,
    ScheduleSkipped,
    ScheduleSuspended,
)
from gpuyard.worlds.standalone.intents import (
    PauseSchedule,
    RemoveSchedule,
    ResumeSchedule,
    RunSchedule,
    ScheduleIntent,
    SetSchedule,
    Submission,
    Submit,
)
from gpuyard.worlds.standalone.lifecycle import OVER, Happening
from gpuyard.worlds.standalone.permits import objection_to, reaching
from gpuyard.worlds.standalone.records import (
    JobRecord,
    Receipt,
    ScheduleRecord,
    SkipReason,
    State,
    SuspendReason,
    Then,
    schedule_id,
)
from gpuyard.worlds.standalone.submitting import submit

MAX_SCHEDULES: Final = 5_000
MAX_SCHEDULES_PER_TEAM: Final = 500
MAX_SCHEDULED_TASKS: Final = 4_096
"""Tasks of a job that comes again: each schedule is held in memory with its job."""
MAX_WRITTEN_BYTES: Final = 256 << 10
"""Of its job file."""
MAX_QUEUED_RUNS: Final = 10
"""Runs that wait for the one before them, where overlaps queue."""
ON_TIME_MS: Final = 60_000
"""A planned time that is taken up within this is on time: the manager was busy, or started again."""
MAX_COUNTED: Final = 1_000
"""Missed times are counted up to this."""


def decide_schedule(state: State, intent: ScheduleIntent, now_ms: int) -> Iterator[Event]:
    """The events an intent leads to; RefusedError where it cannot be."""
    match intent:
        case SetSchedule():
            yield from _set(state, intent, now_ms)
        case RemoveSchedule(team, name, revision):
            yield ScheduleRemoved(schedule_of(state, team, name, revision).id)
        case PauseSchedule(team, name, revision):
            yield SchedulePaused(schedule_of(state, team, name, revision).id)
        case ResumeSchedule(team, name, revision):
            schedule = schedule_of(state, team, name, revision)
            _check_owner(state, schedule.submission)
            yield ScheduleResumed(schedule.id)
        case RunSchedule():
            yield from _run_now(state, intent, now_ms)


def schedule_of(state: State, team: str, name: str, revision: int | None = None) -> ScheduleRecord:
    schedule = state.schedules.get(schedule_id(team, name))
    if schedule is None:
        raise RefusedError("ScheduleUnknown", f'team "{team}" has no schedule "{name}"', fix="gpuyard schedule ls")
    check_revision(revision, schedule.revision, f'schedule "{schedule.id}"')
    return schedule


# ------------------------------------------------------------------------------------------------------------- setting


def _set(state: State, intent: SetSchedule, now_ms: int) -> Iterator[Event]:
    id = schedule_id(intent.team, intent.name)
    known = state.schedules.get(id)
    if known is not None and intent.revision == 0:
        fix = f"look at it: gpuyard schedule describe {id}; to change it: gpuyard schedule set {id}"
        raise RefusedError("Changed", f'there is a schedule "{id}" already', fix=fix)
    check_revision(intent.revision, known.revision if known else 0, f'schedule "{id}"')
    _check_name(intent.name)
    leaf_of(state, intent.team)
    _check_recurrence(intent.recurrence)
    _check_job(intent)
    _check_owner(state, intent.submission)
    if known is None:
        _check_room(state, intent.team)
    elif not known.stands_still:
        # What was due before it is written anew is due as it was.
        yield from due_events(state, known, now_ms)
    paused = (known is not None and known.paused) if intent.paused is None else intent.paused
    yield ScheduleSet(id, intent.recurrence, intent.submission, intent.written, paused)


def _check_name(name: str) -> None:
    if not re.fullmatch(SCHEDULE_NAME_PATTERN, name):
        fix = "letters, digits and . _ - after the first letter or digit, at most 200"
        raise RefusedError("BadValue", f'"{name[:40]}" cannot be the name of a schedule', fix=fix, field="name")


def _check_recurrence(recurrence: Recurrence) -> None:
    for field, check, text in (
        ("cron", check_cron, recurrence.cron),
        ("time_zone", check_zone, recurrence.time_zone),
    ):
        try:
            check(text, field)
        except InputError as error:
            raise RefusedError("BadValue", error.what, fix=error.fix, field=field) from None
    if not 0 <= recurrence.missed_limit_ms <= MAX_MISSED_LIMIT_MS:
        what = f"a missed limit of {recurrence.missed_limit_ms} ms is out of range"
        raise RefusedError("BadValue", what, fix="from 0s to 366d", field="missed_limit")


def _check_job(intent: SetSchedule) -> None:
    """What a job cannot have that is submitted again and again."""
    submission = intent.submission
    if submission.form.queue != intent.team:
        what = f'the job is of team "{submission.form.queue}", its schedule of team "{intent.team}"'
        raise RefusedError("BadValue", what, fix="leave the team of the job out", field="job.team")
    for field in ("after", "afterok"):
        if getattr(submission, field):
            what = f"{field} names one certain job, and this one comes again and again"
            fix = f"leave {field} out; overlap: queue lets each run wait for the one before it"
            raise RefusedError("BadValue", what, fix=fix, field=f"job.{field}")
    tasks = len(submission.form.tasks)
    if tasks > MAX_SCHEDULED_TASKS:
        what = f"{tasks} tasks are more than the {MAX_SCHEDULED_TASKS} that a job of a schedule may have"
        raise RefusedError("BadValue", what, fix="write fewer, or an array", field="job.tasks")
    if len(intent.written.encode()) > MAX_WRITTEN_BYTES:
        what = f"its job file is longer than {MAX_WRITTEN_BYTES >> 10} KiB"
        raise RefusedError("BadValue", what, fix="put what it runs into a script on the machines", field="job")


def _check_owner(state: State, submission: Submission) -> None:
    objection = _objection(state, submission)
    if objection is not None:
        why, what = objection
        word = "UserUnknown" if why is SuspendReason.OWNER_GONE else "NotAllowed"
        fix = "whoever sets a schedule owns it: somebody who may submit that job can write it anew"
        raise RefusedError(word, what, fix=fix)


def _check_room(state: State, team: str) -> None:
    mine = sum(schedule.team == team for schedule in state.schedules.values())
    for count, most, whose in (
        (mine, MAX_SCHEDULES_PER_TEAM, f'team "{team}" has'),
        (len(state.schedules), MAX_SCHEDULES, "there are"),
    ):
        if count >= most:
            what = f"{whose} {count} schedules, and {most} is the most"
            raise RefusedError("TooMany", what, fix="remove some: gpuyard schedule ls, gpuyard schedule rm")


def _objection(state: State, submission: Submission) -> tuple[SuspendReason, str] | None:
    """Why the owner may not submit the job now."""
    user = state.users.get(submission.user)
    if user is None:
        return SuspendReason.OWNER_GONE, f'its owner "{submission.user}" is no user any more'
    found = objection_to(Caller(user.name, reaching(user.grants, state.queues)), submission.form)
    return (SuspendReason.NOT_ALLOWED, found.what) if found else None


def left_behind(state: State, user: str) -> Iterator[Event]:
    """What a user who is taken away leaves behind stands still at once: no namesake is to run it."""
    message = f'its owner "{user}" is no user any more'
    for schedule in state.schedules.values():
        if schedule.owner == user and schedule.suspended is None:
            yield ScheduleSuspended(schedule.id, SuspendReason.OWNER_GONE, message)


# ------------------------------------------------------------------------------------------------------- planned times


def due_events(state: State, schedule: ScheduleRecord, now_ms: int) -> list[Event]:
    """What follows from the planned times that have come since the last that was settled: at most one run."""
    cron, zone = schedule.recurrence.cron, schedule.recurrence.time_zone
    newest_ms = newest_planned(cron, zone, schedule.settled_until_ms, now_ms)
    if newest_ms is None:
        return []
    runs = _is_run(schedule.recurrence, now_ms - newest_ms)
    missed_ms = newest_planned(cron, zone, schedule.settled_until_ms, newest_ms - 1) if runs else newest_ms
    events: list[Event] = []
    if missed_ms is not None:
        count = count_planned(cron, zone, schedule.settled_until_ms, missed_ms, MAX_COUNTED)
        events.append(ScheduleSkipped(schedule.id, missed_ms, SkipReason.MISSED, count))
    return [*events, *_run(state, schedule, newest_ms, now_ms)] if runs else events


def _is_run(recurrence: Recurrence, late_ms: int) -> bool:
    made_up_for = recurrence.missed is Missed.RUN_ONCE and late_ms <= recurrence.missed_limit_ms
    return late_ms <= ON_TIME_MS or made_up_for


def _run(state: State, schedule: ScheduleRecord, planned_at_ms: int, now_ms: int) -> list[Event]:
    """One run for a planned time, or why there is none."""
    objection = _objection(state, schedule.submission)
    if objection is not None:
        return [ScheduleSuspended(schedule.id, *objection, planned_at_ms)]
    skipped = _overlap(state, schedule)
    if skipped is not None:
        return [ScheduleSkipped(schedule.id, planned_at_ms, skipped, earlier=unfinished(state, schedule)[-1])]
    try:
        return list(_submitted(state, schedule, planned_at_ms, now_ms, asked=False))
    except RefusedError as refused:
        if refused.reason in ("QueueFull", "UidsExhausted"):
            return [ScheduleSkipped(schedule.id, planned_at_ms, SkipReason.QUEUE_FULL)]
        return [ScheduleSuspended(schedule.id, SuspendReason.TEAM_GONE, refused.what, planned_at_ms)]


def unfinished(state: State, schedule: ScheduleRecord) -> list[str]:
    """Runs that are not over, oldest first."""
    return [run.job for run in schedule.runs if state_of(state, run.job) not in OVER]


def _overlap(state: State, schedule: ScheduleRecord) -> SkipReason | None:
    """Why an earlier run keeps a new one from being submitted; None where none does."""
    waiting = len(unfinished(state, schedule))
    match schedule.recurrence.overlap:
        case Overlap.SKIP if waiting:
            return SkipReason.OVERLAP
        case Overlap.QUEUE if waiting > MAX_QUEUED_RUNS:
            return SkipReason.TOO_MANY_QUEUED
    return None


def _submitted(
    state: State, schedule: ScheduleRecord, planned_at_ms: int, now_ms: int, *, asked: bool
) -> Iterator[Event]:
    """The jobs of a run. It waits for earlier ones; where it replaces them, they are cancelled once it is there."""
    earlier = unfinished(state, schedule)
    number = str(state.next_job)
    yield from submit(state, Submit(_as_run(schedule, planned_at_ms, tuple(earlier))), now_ms)
    yield ScheduleRan(schedule.id, planned_at_ms, number, asked)
    if schedule.recurrence.overlap is Overlap.REPLACE:
        message = f"replaced by the next run of schedule {schedule.id}, job {number}"
        for job in _jobs_of(state, earlier):
            yield stop_or(job, Then.CANCEL, Happening.CANCELLED, message)


def _jobs_of(state: State, runs: list[str]) -> Iterator[JobRecord]:
    for run in runs:
        ids = state.arrays[run].elements if run in state.arrays else (run,)
        yield from (state.jobs[id] for id in ids if id in state.jobs and state.jobs[id].state not in OVER)


def _as_run(schedule: ScheduleRecord, planned_at_ms: int, after: tuple[str, ...]) -> Submission:
    """The job as one run of it: it says whose run it is, to people and to itself."""
    submission = schedule.submission
    labels = {**dict(submission.form.labels), SCHEDULE_LABEL: schedule.name}
    env = {
        **dict(submission.work.env),
        "GPUYARD_SCHEDULE": schedule.id,
        "GPUYARD_PLANNED_AT": datetime.fromtimestamp(planned_at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return replace(
        submission,
        form=replace(submission.form, labels=tuple(sorted(labels.items()))),
        work=replace(submission.work, env=tuple(sorted(env.items()))),
        after=after,
        schedule=schedule.id,
        planned_at_ms=planned_at_ms,
    )


def _run_now(state: State, intent: RunSchedule, now_ms: int) -> Iterator[Event]:
    schedule = schedule_of(state, intent.team, intent.name, intent.revision)
    _check_owner(state, schedule.submission)
    skipped = _overlap(state, schedule)
    if skipped is not None:
        earlier = unfinished(state, schedule)[-1]
        fix = f"wait for it or cancel it (gpuyard cancel {earlier}), or set overlap to queue or replace"
        raise RefusedError("WrongState", f"its run {earlier} is not over", fix=fix)
    events = list(_submitted(state, schedule, now_ms, now_ms, asked=True))
    yield from events
    if intent.key:
        ids = tuple(event.job.id for event in events if isinstance(event, JobSubmitted))
        yield RequestKept(intent.key, Receipt(intent.fingerprint, ids, now_ms))
