"""Recurring jobs: listing, looking, writing, pausing, running now."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from gpuyard.errors import RefusedError
from gpuyard.files.jobs import Surroundings
from gpuyard.files.schedule import ScheduleFile, read_schedule
from gpuyard.service.authorise import check_replacing, check_submission, schedule_for, seen_schedule, sees_schedule
from gpuyard.service.bodies import read_apart
from gpuyard.service.call import Answer, Call
from gpuyard.service.cursor import after, next_cursor
from gpuyard.service.handlers.submitting import could_never_run, never_runs, submitted_jobs
from gpuyard.service.problems import ProblemReason
from gpuyard.service.schedule_views import schedule_detail, schedule_object
from gpuyard.wire.access import Permission
from gpuyard.wire.rest import Page
from gpuyard.worlds.standalone.checks import leaf_of
from gpuyard.worlds.standalone.decide import decide
from gpuyard.worlds.standalone.events import ScheduleSet
from gpuyard.worlds.standalone.intents import (
    PauseSchedule,
    RemoveSchedule,
    ResumeSchedule,
    RunSchedule,
    SetSchedule,
    Submission,
)
from gpuyard.worlds.standalone.records import ScheduleRecord, schedule_id
from gpuyard.worlds.standalone.schedule_fold import written_anew
from gpuyard.worlds.standalone.snapshot import MACHINES


async def list_schedules(call: Call) -> Answer:
    limit = call.limit
    begin = after(call, (str,))
    team, owner = call.text("team"), call.text("owner")
    found = [
        schedule
        for id, schedule in sorted(call.state.schedules.items())
        if (begin is None or id > str(begin[0]))
        and (not team or schedule.team == team)
        and (not owner or schedule.owner == owner)
        and sees_schedule(call.caller, schedule)
    ]
    more = next_cursor(call, (found[limit - 1].id,)) if len(found) > limit else None
    items = tuple(schedule_object(call.state, schedule) for schedule in found[:limit])
    return Answer(Page(items, more, call.state.seq))


async def get_schedule(call: Call) -> Answer:
    return _answer(call, schedule_for(call))


def _answer(call: Call, schedule: ScheduleRecord) -> Answer:
    secrets = call.caller.may(Permission.SEE_SECRETS, team=schedule.team, owner=schedule.owner)
    return Answer(schedule_detail(call.state, schedule, secrets=secrets), revision=schedule.revision)


# ------------------------------------------------------------------------------------------------------------- writing


async def set_schedule(call: Call) -> Answer:
    known = seen_schedule(call)
    intent = await _intent(call)
    if known is not None:
        check_replacing(call, known)
    never = () if call.flag("allow_never") else await never_runs(call, intent.submission)
    if never:
        return could_never_run(call, never)
    if call.flag("dry_run"):
        return _dry_run(call, intent)
    await call.manager.do(intent, call.caller)
    return _answer(call, call.state.schedules[schedule_id(intent.team, intent.name)])


async def _intent(call: Call) -> SetSchedule:
    """The schedule of the body, if the caller may submit its job."""
    team, name = leaf_of(call.state, call.path["team"]), call.path["name"]
    file = await _read(call, team, name)
    check_submission(call, file.work.form, {"job.after": file.work.after, "job.afterok": file.work.afterok})
    work = file.work
    submission = Submission(
        work.name, call.caller.user, work.form, work.work, work.array, work.after, work.afterok, work.held
    )
    return SetSchedule(team, name, file.recurrence, submission, file.written, file.paused, call.if_match)


async def _read(call: Call, team: str, name: str) -> ScheduleFile:
    """Its job is of the team of the path; it need not say so itself."""
    leaves = tuple(call.state.teams)
    names = tuple(queue.name for queue in call.state.queues)
    around = Surroundings(names, leaves, (MACHINES,), own=(team,))
    file = await read_apart(call, lambda place: read_schedule(place, around, name))
    if file.work.form.queue != team:
        what = f'the job is of team "{file.work.form.queue}", its schedule of team "{team}"'
        raise RefusedError(ProblemReason.BAD_VALUE, what, fix="leave the team of the job out", field="job.team")
    return file


def _dry_run(call: Call, intent: SetSchedule) -> Answer:
    """As it would be; refused as it would be."""
    now_ms = call.manager.now_ms()
    events = decide(call.state, intent, now_ms)
    written = next(event for event in events if isinstance(event, ScheduleSet))
    return replace(_answer(call, written_anew(call.state, written, now_ms)), revision=None)


async def remove_schedule(call: Call) -> Answer:
    schedule = schedule_for(call)
    await call.manager.do(RemoveSchedule(schedule.team, schedule.name, call.if_match), call.caller)
    return Answer()


# ------------------------------------------------------------------------------------------------------------ steering


async def pause_schedule(call: Call) -> Answer:
    schedule = schedule_for(call)
    if not schedule.paused or _is_stale(call, schedule):
        await call.manager.do(PauseSchedule(schedule.team, schedule.name, call.if_match), call.caller)
    return _answer(call, call.state.schedules.get(schedule.id, schedule))


async def resume_schedule(call: Call) -> Answer:
    schedule = schedule_for(call)
    if schedule.stands_still or _is_stale(call, schedule):
        await call.manager.do(ResumeSchedule(schedule.team, schedule.name, call.if_match), call.caller)
    return _answer(call, call.state.schedules.get(schedule.id, schedule))


def _is_stale(call: Call, schedule: ScheduleRecord) -> bool:
    """Whether it is to be refused because it has changed, also where nothing is left to do."""
    return call.if_match not in (None, schedule.revision)


async def run_schedule(call: Call) -> Answer:
    schedule = schedule_for(call)
    key = f"{call.caller.user}/{call.key}" if call.key else ""
    intent = RunSchedule(schedule.team, schedule.name, key, f"run {schedule.id}", call.if_match)
    done = await call.manager.do(intent, call.caller)
    return await submitted_jobs(call, _newest_run(done.jobs))


def _newest_run(ids: tuple[str, ...]) -> tuple[str, ...]:
    """Of the jobs that a run has touched those it has made: a job, or all elements of an array. Others it replaces."""
    numbers = [int(id.partition("_")[0]) for id in ids]
    return tuple(id for id, number in zip(ids, numbers, strict=True) if number == max(numbers))


HANDLERS: Final = {
    "list_schedules": list_schedules,
    "get_schedule": get_schedule,
    "set_schedule": set_schedule,
    "remove_schedule": remove_schedule,
    "pause_schedule": pause_schedule,
    "resume_schedule": resume_schedule,
    "run_schedule": run_schedule,
}
