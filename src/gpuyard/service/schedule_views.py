"""Schedules as the objects of the REST API. Pure.

Place in the flow: State ─**schedule_views**─▶ wire.rest objects ─JSON─▶ the client.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec.structs import asdict

from gpuyard.files.cron import planned_after
from gpuyard.service.moments import moment, moment_or_none
from gpuyard.service.sentences import skip_text
from gpuyard.service.views import gpus_text
from gpuyard.wire.rest import RunObject, ScheduleDetail, ScheduleObject, SkipObject, Why
from gpuyard.worlds.standalone.consequences import state_of
from gpuyard.worlds.standalone.records import Run, ScheduleRecord, Skip, State

NEXT_SHOWN: Final = 5
FORGOTTEN: Final = "forgotten"
SCHEDULE_STATES: Final = ("active", "paused", "suspended")


def schedule_object(state: State, schedule: ScheduleRecord) -> ScheduleObject:
    when = schedule.recurrence
    return ScheduleObject(
        team=schedule.team,
        name=schedule.name,
        owner=schedule.owner,
        state=schedule_state(schedule),
        cron=when.cron,
        time_zone=when.time_zone,
        overlap=when.overlap,
        missed=when.missed,
        missed_limit_ms=when.missed_limit_ms,
        gpus=gpus_text(schedule.submission.form),
        set_at=moment(schedule.set_at_ms),
        revision=schedule.revision,
        next_at=moment_or_none(next(next_times(schedule), None)),
        last_run=_run(state, schedule.runs[-1]) if schedule.runs else None,
        last_skip=_skip(schedule.last_skip) if schedule.last_skip else None,
        why=tuple(_why(schedule)),
    )


def schedule_detail(state: State, schedule: ScheduleRecord, *, secrets: bool) -> ScheduleDetail:
    return ScheduleDetail(
        **asdict(schedule_object(state, schedule)),
        next_times=tuple(moment(at_ms) for at_ms in islice(next_times(schedule), NEXT_SHOWN)),
        runs=tuple(_run(state, run) for run in reversed(schedule.runs)),
        job=_job_file(schedule) if secrets else None,
    )


def next_times(schedule: ScheduleRecord) -> Iterator[int]:
    """Planned times that are to come; none while it stands still."""
    if schedule.stands_still:
        return iter(())
    when = schedule.recurrence
    return planned_after(when.cron, when.time_zone, schedule.settled_until_ms)


def schedule_state(schedule: ScheduleRecord) -> str:
    if schedule.suspended is not None:
        return "suspended"
    return "paused" if schedule.paused else "active"


def _why(schedule: ScheduleRecord) -> Iterator[Why]:
    if schedule.suspended is not None:
        yield Why(schedule.suspended.why, schedule.suspended.message)
    if schedule.paused:
        yield Why("Paused", "it is paused: resume it to let it run at its next time")


def _run(state: State, run: Run) -> RunObject:
    known = run.job in state.jobs or run.job in state.arrays
    return RunObject(
        job=run.job,
        state=state_of(state, run.job) if known else FORGOTTEN,
        planned_at=moment(run.planned_at_ms),
        submitted_at=moment(run.submitted_at_ms),
        asked=run.asked,
    )


def _skip(skip: Skip) -> SkipObject:
    return SkipObject(moment(skip.planned_at_ms), skip.why, skip_text(skip), skip.count)


def _job_file(schedule: ScheduleRecord) -> dict[str, Any] | None:
    return msgspec.json.decode(schedule.written, type=dict[str, Any]) if schedule.written else None
