"""Judges a log by the promise about planned times: each has one run, or a recorded reason why it has none.

It knows nothing of cron: it judges schedules that run every N minutes, whose planned times are the multiples of N.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from gpuyard.worlds.standalone.events import (
    DECODER,
    Event,
    JobSubmitted,
    SchedulePaused,
    ScheduleRan,
    ScheduleRemoved,
    ScheduleResumed,
    ScheduleSet,
    ScheduleSkipped,
    ScheduleSuspended,
)
from gpuyard.worlds.standalone.schedules import MAX_COUNTED
from gpuyard.worlds.standalone.store.port import Entry

MINUTE_MS = 60_000


class Course(msgspec.Struct):
    """How far the planned times of one schedule are accounted for."""

    period_ms: int
    settled_ms: int
    still: bool = False

    def planned_until(self, until_ms: int) -> list[int]:
        """Planned times that are not accounted for, up to and with a moment."""
        first = (self.settled_ms // self.period_ms + 1) * self.period_ms
        return list(range(first, until_ms + 1, self.period_ms))


def period_ms(cron: str) -> int:
    found = re.fullmatch(r"\*(?:/([0-9]+))? \* \* \* \*", cron)
    assert found is not None, f"only every N minutes is judged, not {cron}"
    return int(found[1] or 1) * MINUTE_MS


class PlannedTimes:
    """Follows a log entry by entry. An AssertionError says what is broken."""

    def __init__(self) -> None:
        self.courses: dict[str, Course] = {}
        self.runs: dict[tuple[str, int], str] = {}
        """(schedule, planned time) → the run it has had. One that is removed and made again is another."""
        self.submitted: dict[tuple[str, int], set[str]] = {}
        self.skipped = 0

    def follow(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.enter(DECODER.decode(entry.body), entry.at_ms)

    def enter(self, event: Event, at_ms: int) -> None:
        match event:
            case JobSubmitted(job) if job.schedule:
                run = job.array or job.id
                self.submitted.setdefault((job.schedule, job.planned_at_ms), set()).add(run)
            case ScheduleSet(schedule):
                self._written(event, at_ms)
            case ScheduleRemoved(schedule):
                self._removed(schedule)
            case SchedulePaused(schedule):
                self.courses[schedule].still = True
            case ScheduleResumed(schedule):
                course = self.courses[schedule]
                course.still, course.settled_ms = False, max(course.settled_ms, at_ms)
            case ScheduleSuspended(schedule):
                if event.planned_at_ms:
                    self._settle(schedule, event.planned_at_ms, 1)
                self.courses[schedule].still = True
            case ScheduleRan(schedule, planned_at_ms, run, asked):
                self._ran(schedule, planned_at_ms, run, asked=asked)
            case ScheduleSkipped(schedule, planned_at_ms, _, count):
                self.skipped += count
                self._settle(schedule, planned_at_ms, count)

    def _removed(self, schedule: str) -> None:
        self.check_every_submission_is_a_run()
        del self.courses[schedule]
        self.runs = {key: run for key, run in self.runs.items() if key[0] != schedule}
        self.submitted = {key: runs for key, runs in self.submitted.items() if key[0] != schedule}

    def _written(self, event: ScheduleSet, at_ms: int) -> None:
        known = self.courses.get(event.schedule)
        if known is not None and not known.still:
            forgotten = known.planned_until(at_ms)
            assert not forgotten, f"{event.schedule} is written anew, and {forgotten} had nothing"
        settled_ms = max(known.settled_ms, at_ms) if known else at_ms
        self.courses[event.schedule] = Course(period_ms(event.recurrence.cron), settled_ms, event.paused)

    def _ran(self, schedule: str, planned_at_ms: int, run: str, *, asked: bool) -> None:
        key = (schedule, planned_at_ms)
        assert run in self.submitted.get(key, ()), f"{key} has run {run}, which was not submitted"
        if asked:
            self.submitted[key].remove(run)
            return
        assert key not in self.runs, f"{key} has run {self.runs.get(key)}, and again {run}"
        self.runs[key] = run
        self._settle(schedule, planned_at_ms, 1)

    def _settle(self, schedule: str, planned_at_ms: int, count: int) -> None:
        """So many planned times are accounted for by this: no fewer than there were, and no more."""
        course = self.courses[schedule]
        assert not course.still, f"{schedule} stands still, and {planned_at_ms} is settled"
        due = course.planned_until(planned_at_ms)
        assert due, f"{schedule}: {planned_at_ms} is settled twice"
        told = f"{schedule}: {len(due)} up to {due[-1]} were planned, {count} up to {planned_at_ms} are settled"
        assert (due[-1], min(len(due), MAX_COUNTED)) == (planned_at_ms, count), told
        course.settled_ms = planned_at_ms

    def check_nothing_is_overdue(self, now_ms: int) -> None:
        """After a tick: everything that has come is accounted for."""
        for schedule, course in self.courses.items():
            overdue = [] if course.still else course.planned_until(now_ms)
            assert not overdue, f"{schedule}: {overdue} had neither a run nor a reason"

    def check_every_submission_is_a_run(self) -> None:
        """Nothing is submitted for a planned time that is not noted, and nothing twice."""
        for key, runs in self.submitted.items():
            noted = {self.runs[key]} if key in self.runs else set()
            assert runs == noted, f"{key} was submitted as {runs}, and noted is {noted}"
