"""Schedules: what is asked of them, and what becomes of their planned times."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpuyard.errors import RefusedError
from gpuyard.model.queues import Queue
from gpuyard.model.recurrence import SCHEDULE_LABEL, Missed, Overlap, Recurrence
from gpuyard.model.work import Array
from gpuyard.wire.access import Grant, Role
from gpuyard.worlds.standalone import schedules
from gpuyard.worlds.standalone.events import JobsForgotten, ScheduleRan, ScheduleSkipped, ScheduleSuspended
from gpuyard.worlds.standalone.intents import (
    Intent,
    PauseSchedule,
    RemoveSchedule,
    RemoveUser,
    ResumeSchedule,
    RunSchedule,
    SetSchedule,
    SetTeams,
    SetUser,
    Steer,
)
from gpuyard.worlds.standalone.lifecycle import JobState
from gpuyard.worlds.standalone.records import MAX_RUNS_KEPT, SkipReason, SuspendReason
from tests.worlds.standalone.schedule_yard import (
    HOUR_MS,
    MEMBER,
    MINUTE_MS,
    NIGHTLY,
    ScheduleYard,
    a_submission,
    at,
    planned_times,
)
from tests.worlds.standalone.yard import a_form

PAUSE, RESUME = PauseSchedule("vision", "nightly"), ResumeSchedule("vision", "nightly")
RUN, REMOVE = RunSchedule("vision", "nightly"), RemoveSchedule("vision", "nightly")


def refused(yard: ScheduleYard, intent: Intent) -> RefusedError:
    before = yard.state.seq
    with pytest.raises(RefusedError) as error:
        yard.do(intent)
    assert yard.state.seq == before
    return error.value


# ---------------------------------------------------------------------------------------------------------------- runs


def test_a_planned_time_leads_to_one_job_of_its_owner_that_says_whose_run_it_is() -> None:
    yard = ScheduleYard()
    yard.set("0 9 * * *")
    yard.pass_until("2026-03-02T08:59:59Z")
    assert not yard.runs
    yard.pass_until("2026-03-02T09:00:01Z")
    yard.pass_until("2026-03-02T09:00:02Z")
    (run,) = yard.runs
    job = yard.job(run.job)
    assert (job.user, job.team, job.schedule, job.planned_at_ms) == ("ann", "vision", NIGHTLY, at("2026-03-02T09:00Z"))
    assert dict(job.form.labels)[SCHEDULE_LABEL] == "nightly"
    env = dict(job.work.env)
    assert (env["GPUYARD_SCHEDULE"], env["GPUYARD_PLANNED_AT"]) == (NIGHTLY, "2026-03-02T09:00:00Z")


def test_a_run_and_the_note_of_it_are_in_the_log_with_the_schedule_and_the_team() -> None:
    yard = ScheduleYard()
    yard.set("0 9 * * *")
    yard.journal.take_pending()
    yard.pass_until("2026-03-02T09:00:00Z")
    submitted, ran = yard.journal.pending
    assert [entry.kind for entry in (submitted, ran)] == ["job-submitted", "schedule-ran"]
    for entry in (submitted, ran):
        assert {f"schedule/{NIGHTLY}", "team/vision", "job/1"} == set(entry.objects)
        assert (entry.team, entry.actor) == ("vision", f"schedule/{NIGHTLY}")


def test_a_schedule_begins_after_it_is_written_and_counts_anew_when_it_is_written_anew() -> None:
    yard = ScheduleYard("2026-03-02T09:00:00Z")
    yard.set("0 9 * * *")
    yard.tick_schedules()
    assert yard.runs == ()
    yard.now_ms = at("2026-03-02T12:00:00Z")
    yard.set("0 10 * * *")
    yard.tick_schedules()
    assert yard.runs == ()
    yard.pass_until("2026-03-03T10:00:00Z")
    assert planned_times(yard) == [at("2026-03-03T10:00Z")]


def test_what_was_due_before_it_is_written_anew_is_run_as_it_was() -> None:
    yard = ScheduleYard()
    yard.set("0 9 * * *")
    yard.now_ms = at("2026-03-02T09:00:00Z") + 300
    yard.set("0 10 * * *", submission=a_submission(a_form(gpus=2)))
    (run,) = yard.runs
    assert (run.planned_at_ms, yard.job(run.job).form.tasks[0].request.devices) == (at("2026-03-02T09:00Z"), 1)


def test_an_array_is_one_run() -> None:
    yard = ScheduleYard()
    yard.set(submission=a_submission(array=Array((0, 1, 2))), overlap=Overlap.SKIP)
    yard.pass_minutes(1)
    yard.steer("cancel", "1_0")
    yard.pass_minutes(1)
    assert [run.job for run in yard.runs] == ["1"]
    for id in ("1_1", "1_2"):
        yard.steer("cancel", id)
    yard.pass_minutes(1)
    assert [run.job for run in yard.runs] == ["1", "2"]


def test_the_newest_runs_are_kept_and_those_that_are_not_over() -> None:
    yard = ScheduleYard()
    yard.set(overlap=Overlap.REPLACE)
    yard.pass_minutes(1)
    yard.run("1")
    # The first is asked to stop and takes its time; all others are replaced before they start.
    yard.pass_minutes(MAX_RUNS_KEPT + 5)
    assert len(yard.runs) == MAX_RUNS_KEPT + 1
    assert yard.runs[0].job == "1"
    assert yard.job(yard.runs[-1].job).after[0] == "1"


# ------------------------------------------------------------------------------------------------------------ overlaps


def test_a_planned_time_is_skipped_while_an_earlier_run_is_not_over() -> None:
    yard = ScheduleYard()
    yard.set()
    yard.pass_minutes(3)
    assert [run.job for run in yard.runs] == ["1"]
    skip = yard.schedule.last_skip
    assert skip is not None
    assert (skip.why, skip.earlier, skip.planned_at_ms) == (SkipReason.OVERLAP, "1", yard.now_ms)
    yard.steer("cancel", "1")
    yard.pass_minutes(1)
    assert [run.job for run in yard.runs] == ["1", "2"]


def test_a_queued_run_waits_for_the_one_before_it_and_too_many_are_skipped() -> None:
    yard = ScheduleYard()
    yard.set(overlap=Overlap.QUEUE)
    yard.pass_minutes(2)
    assert (yard.is_("1"), yard.is_("2")) == (JobState.WAITING, JobState.BLOCKED)
    yard.run("1")
    yard.end("1")
    assert yard.is_("2") is JobState.WAITING
    yard.pass_minutes(schedules.MAX_QUEUED_RUNS + 2)
    assert len(schedules.unfinished(yard.state, yard.schedule)) == schedules.MAX_QUEUED_RUNS + 1
    assert yard.schedule.last_skip is not None
    assert yard.schedule.last_skip.why is SkipReason.TOO_MANY_QUEUED


@pytest.mark.parametrize("array", [None, Array((0, 1), at_once=1)])
def test_a_replaced_run_is_cancelled_politely_and_the_new_one_starts_when_it_has_ended(array: Array | None) -> None:
    yard = ScheduleYard()
    yard.set(overlap=Overlap.REPLACE, submission=a_submission(array=array))
    yard.pass_minutes(1)
    first = "1_0" if array else "1"
    yard.run(first)
    yard.pass_minutes(1)
    second = "2_0" if array else "2"
    assert (yard.is_(first), yard.is_(second)) == (JobState.STOPPING, JobState.BLOCKED)
    assert yard.job(first).message == f"replaced by the next run of schedule {NIGHTLY}, job 2"
    yard.stopped(first)
    assert (yard.is_(first), yard.is_(second)) == (JobState.CANCELLED, JobState.WAITING)
    assert all(job.state is JobState.CANCELLED for job in yard.state.jobs.values() if job.id.startswith("1"))


def test_a_run_that_only_waits_is_replaced_at_once() -> None:
    yard = ScheduleYard()
    yard.set(overlap=Overlap.REPLACE)
    yard.pass_minutes(2)
    assert (yard.is_("1"), yard.is_("2")) == (JobState.CANCELLED, JobState.WAITING)


# -------------------------------------------------------------------------------------------------------------- missed


def missed(yard: ScheduleYard) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    for event in yard.events:
        if isinstance(event, ScheduleRan):
            found.append(("ran", event.planned_at_ms, 1))
        elif isinstance(event, ScheduleSkipped):
            found.append((event.why, event.planned_at_ms, event.count))
    return found


def test_one_run_makes_up_for_all_that_was_missed_within_the_limit() -> None:
    yard = ScheduleYard()
    yard.set("0 * * * *", limit_ms=HOUR_MS)
    yard.restart()
    yard.pass_until("2026-03-02T13:50:00Z")
    assert missed(yard) == [
        (SkipReason.MISSED, at("2026-03-02T12:00Z"), 4),
        ("ran", at("2026-03-02T13:00Z"), 1),
    ]


def test_nothing_makes_up_for_what_was_missed_longer_ago_than_the_limit() -> None:
    yard = ScheduleYard()
    yard.set("0 9 * * *", limit_ms=HOUR_MS)
    yard.pass_until("2026-03-02T10:00:01Z")
    assert missed(yard) == [(SkipReason.MISSED, at("2026-03-02T09:00Z"), 1)]
    yard.pass_until("2026-03-02T11:00:00Z")
    assert len(yard.events) == 1


def test_missed_times_are_skipped_where_that_is_asked_for_and_a_minute_late_is_no_miss() -> None:
    yard = ScheduleYard()
    yard.set("0 * * * *", missed=Missed.SKIP)
    yard.pass_until("2026-03-02T09:01:00Z")
    yard.steer("cancel", "1")
    yard.pass_until("2026-03-02T11:01:01Z")
    assert missed(yard) == [("ran", at("2026-03-02T09:00Z"), 1), (SkipReason.MISSED, at("2026-03-02T11:00Z"), 2)]


def test_a_clock_that_is_set_back_brings_no_planned_time_again() -> None:
    yard = ScheduleYard()
    yard.set("0 * * * *", overlap=Overlap.QUEUE)
    yard.pass_until("2026-03-02T10:00:00Z")
    for moment in ("2026-03-02T07:00:00Z", "2026-03-02T09:00:00Z", "2026-03-02T10:00:00Z"):
        yard.pass_until(moment)
    assert planned_times(yard) == [at("2026-03-02T10:00Z")]
    yard.pass_until("2026-03-02T11:00:00Z")
    assert len(yard.runs) == 2


def test_many_missed_times_are_counted_to_a_bound() -> None:
    yard = ScheduleYard()
    yard.set("* * * * *")
    yard.pass_until("2027-03-02T08:00:00Z")
    (skipped, ran) = missed(yard)
    assert (skipped[2], ran[1]) == (schedules.MAX_COUNTED, yard.now_ms)


# ------------------------------------------------------------------------------------------------- pause, resume, run


def test_a_paused_schedule_runs_nothing_and_makes_up_for_nothing() -> None:
    yard = ScheduleYard()
    yard.set()
    yard.do(PAUSE)
    yard.pass_minutes(5)
    assert (yard.runs, yard.events) == ((), [])
    yard.do(RESUME)
    yard.tick_schedules()
    assert yard.runs == ()
    yard.pass_minutes(1)
    assert len(yard.runs) == 1


def test_a_schedule_can_be_written_paused_and_stays_so_unless_said_otherwise() -> None:
    yard = ScheduleYard()
    yard.set(paused=True)
    yard.set("*/5 * * * *")
    assert yard.schedule.paused
    yard.set("*/5 * * * *", paused=False)
    assert not yard.schedule.paused


def test_a_run_can_be_asked_for_at_any_time_and_moves_no_planned_time() -> None:
    yard = ScheduleYard()
    yard.set("0 9 * * *")
    yard.do(PAUSE)
    yard.do(RUN)
    assert [(run.job, run.asked) for run in yard.runs] == [("1", True)]
    assert "is not over" in refused(yard, RUN).what
    yard.steer("cancel", "1")
    yard.do(RESUME)
    yard.pass_until("2026-03-02T09:00:00Z")
    assert planned_times(yard)[-1] == at("2026-03-02T09:00Z")


def test_a_removed_schedule_leaves_its_runs() -> None:
    yard = ScheduleYard()
    yard.set()
    yard.pass_minutes(1)
    yard.do(REMOVE)
    yard.pass_minutes(3)
    assert (yard.state.schedules, list(yard.state.jobs)) == ({}, ["1"])
    assert refused(yard, REMOVE).reason == "ScheduleUnknown"


def test_runs_are_no_change_of_the_schedule() -> None:
    yard = ScheduleYard()
    yard.set()
    seen = yard.schedule.revision
    yard.pass_minutes(2)
    yard.set("0 9 * * *", revision=seen)
    assert refused(yard, PauseSchedule("vision", "nightly", seen)).reason == "Changed"


# --------------------------------------------------------------------------------------------------------------- owner


@pytest.mark.parametrize(
    ("leave", "why"),
    [
        (SetUser("ann", ()), SuspendReason.NOT_ALLOWED),
        (SetUser("ann", (Grant(Role.VIEWER, "vision"),)), SuspendReason.NOT_ALLOWED),
        (SetUser("ann", (Grant(Role.MEMBER, "speech"),)), SuspendReason.NOT_ALLOWED),
        (RemoveUser("ann"), SuspendReason.OWNER_GONE),
    ],
)
def test_an_owner_who_has_left_runs_nothing_any_more(leave: Intent, why: SuspendReason) -> None:
    yard = ScheduleYard()
    yard.set()
    yard.do(leave)
    yard.pass_minutes(3)
    (event,) = yard.events
    assert isinstance(event, ScheduleSuspended)
    assert yard.schedule.suspended is not None
    assert (event.why, yard.schedule.suspended.why, yard.state.jobs) == (why, why, {})
    assert refused(yard, RESUME).reason in ("NotAllowed", "UserUnknown")
    yard.do(SetUser("ann", MEMBER))
    yard.do(RESUME)
    yard.pass_minutes(1)
    assert len(yard.runs) == 1


def test_no_namesake_runs_what_a_user_who_was_taken_away_has_left_behind() -> None:
    yard = ScheduleYard()
    yard.set("0 0 1 1 *")
    yard.do(RemoveUser("ann"))
    yard.do(SetUser("ann", MEMBER))
    yard.pass_until("2027-01-01T00:00:00Z")
    assert (yard.runs, yard.schedule.stands_still) == ((), True)
    yard.do(RESUME)
    yard.pass_until("2028-01-01T00:00:00Z")
    assert len(yard.runs) == 1


def test_somebody_else_takes_a_suspended_schedule_over_by_writing_it_anew() -> None:
    yard = ScheduleYard()
    yard.do(SetUser("lea", (Grant(Role.LEAD, "vision"),)))
    yard.set()
    yard.do(RemoveUser("ann"))
    yard.pass_minutes(1)
    yard.set(submission=a_submission(user="lea"))
    yard.pass_minutes(1)
    assert yard.job(yard.runs[-1].job).user == "lea"


def test_a_role_in_a_queue_above_the_team_is_one_in_the_team() -> None:
    yard = ScheduleYard()
    yard.do(SetTeams((Queue("research"), Queue("vision", "research"), Queue("speech"))))
    yard.do(SetUser("ann", (Grant(Role.MEMBER, "research"),)))
    yard.set()
    yard.pass_minutes(1)
    assert len(yard.runs) == 1
    assert not yard.schedule.stands_still


def test_an_owner_who_is_no_lead_any_more_may_not_run_what_needs_one() -> None:
    yard = ScheduleYard()
    yard.do(SetUser("ann", (Grant(Role.LEAD, "vision"),)))
    yard.set(submission=a_submission(a_form(priority=75)))
    yard.do(SetUser("ann", MEMBER))
    yard.pass_minutes(1)
    assert yard.schedule.suspended is not None
    assert "needs a lead" in yard.schedule.suspended.message


def test_a_full_cluster_skips_a_run_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    yard = ScheduleYard()
    yard.set()
    monkeypatch.setattr("gpuyard.worlds.standalone.submitting.MAX_JOBS", 0)
    yard.pass_minutes(1)
    assert yard.schedule.last_skip is not None
    assert yard.schedule.last_skip.why is SkipReason.QUEUE_FULL
    assert not yard.schedule.stands_still


def test_a_team_with_schedules_cannot_be_taken_away() -> None:
    yard = ScheduleYard()
    yard.set()
    error = refused(yard, SetTeams((Queue("speech"),)))
    assert (error.reason, error.field) == ("TeamHasSchedules", "vision")
    assert "gpuyard schedule rm vision/nightly" in error.fix


# ------------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("recurrence", "field"),
    [
        (Recurrence("61 * * * *"), "cron"),
        (Recurrence("* * * *"), "cron"),
        (Recurrence("* * * * * *"), "cron"),
        (Recurrence("0 0 30 2 *"), "cron"),
        (Recurrence("0 0 * * *", "Mars/Base"), "time_zone"),
        (Recurrence("0 0 * * *", missed_limit_ms=-1), "missed_limit"),
    ],
)
def test_a_wrong_recurrence_is_refused_with_its_field(recurrence: Recurrence, field: str) -> None:
    yard = ScheduleYard()
    error = refused(yard, SetSchedule("vision", "nightly", recurrence, a_submission()))
    assert (error.reason, error.field) == ("BadValue", field)
    assert error.fix


@pytest.mark.parametrize("name", ["", "-x", "a b", "a/b", "ä", "a,b", "x" * 201])
def test_a_name_that_would_have_to_be_quoted_is_refused(name: str) -> None:
    yard = ScheduleYard()
    error = refused(yard, SetSchedule("vision", name, Recurrence("@daily"), a_submission()))
    assert (error.reason, error.field) == ("BadValue", "name")


def test_a_job_of_another_team_of_too_many_tasks_or_after_a_certain_one_is_refused() -> None:
    yard = ScheduleYard()
    first = yard.submit()
    for submission, field in (
        (a_submission(a_form("speech")), "job.team"),
        (replace(a_submission(), after=(first,)), "job.after"),
        (replace(a_submission(), afterok=(first,)), "job.afterok"),
        (a_submission(a_form(tasks=schedules.MAX_SCHEDULED_TASKS + 1)), "job.tasks"),
    ):
        error = refused(yard, SetSchedule("vision", "nightly", Recurrence("@daily"), submission))
        assert (error.reason, error.field) == ("BadValue", field)


def test_too_many_schedules_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    yard = ScheduleYard()
    monkeypatch.setattr(schedules, "MAX_SCHEDULES_PER_TEAM", 2)

    def named(name: str) -> SetSchedule:
        return SetSchedule("vision", name, Recurrence("@daily"), a_submission())

    for name in ("a", "b", "a"):
        yard.do(named(name))
    assert refused(yard, named("c")).reason == "TooMany"
    monkeypatch.setattr(schedules, "MAX_SCHEDULES_PER_TEAM", 3)
    monkeypatch.setattr(schedules, "MAX_SCHEDULES", 2)
    assert refused(yard, named("c")).reason == "TooMany"


def test_nobody_has_a_schedule_for_what_they_may_not_submit() -> None:
    yard = ScheduleYard()
    stranger, urgent = a_submission(user="eve"), a_submission(a_form(priority=75))
    for submission, reason in ((stranger, "UserUnknown"), (urgent, "NotAllowed")):
        assert refused(yard, SetSchedule("vision", "nightly", Recurrence("@daily"), submission)).reason == reason


def test_a_run_that_is_long_forgotten_is_over() -> None:
    yard = ScheduleYard()
    yard.set()
    yard.pass_minutes(1)
    yard.do(Steer("1", "cancel"))
    yard.enter(JobsForgotten(("1",)))
    yard.wait(MINUTE_MS)
    yard.tick_schedules()
    assert len(yard.runs) == 2
