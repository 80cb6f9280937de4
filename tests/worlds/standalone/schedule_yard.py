"""A yard whose user ann has a schedule in team vision; a test moves its clock from one planned time to the next."""

from __future__ import annotations

from datetime import datetime

from gpuyard.model.jobs import Job
from gpuyard.model.recurrence import Missed, Overlap, Recurrence
from gpuyard.model.work import Array, Work
from gpuyard.service.recurring import ScheduleWatch
from gpuyard.wire.access import Grant, Role
from gpuyard.worlds.standalone.events import Event, ScheduleRan, ScheduleSkipped, ScheduleSuspended
from gpuyard.worlds.standalone.intents import SetSchedule, SetUser, Submission
from gpuyard.worlds.standalone.records import Run, ScheduleRecord
from gpuyard.worlds.standalone.schedules import due_events
from gpuyard.worlds.standalone.store.port import Entry
from tests.worlds.standalone.yard import GRACE_MS, Yard, a_form

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
NIGHTLY = "vision/nightly"
MEMBER = (Grant(Role.MEMBER, "vision"),)


def at(text: str) -> int:
    """2026-03-01T03:00Z in milliseconds."""
    return int(datetime.fromisoformat(text).timestamp()) * 1000


def a_submission(form: Job | None = None, user: str = "ann", array: Array | None = None) -> Submission:
    return Submission("report", user, form or a_form(), Work(("report",), grace_ms=GRACE_MS), array)


class ScheduleYard(Yard):
    """Time begins at a whole hour unless said otherwise; `pass_until` ticks once at that moment."""

    def __init__(self, begin: str = "2026-03-02T08:00:00Z") -> None:
        super().__init__()
        self.now_ms = at(begin)
        self.events: list[Event] = []
        self.journal.listeners.append(self._heard)
        self.watch = ScheduleWatch(self.state)
        self.do(SetUser("ann", MEMBER))

    def _heard(self, event: Event, _: Entry) -> None:
        if isinstance(event, ScheduleRan | ScheduleSkipped | ScheduleSuspended):
            self.events.append(event)

    def set(
        self,
        cron: str = "* * * * *",
        *,
        zone: str = "UTC",
        overlap: Overlap = Overlap.SKIP,
        missed: Missed = Missed.RUN_ONCE,
        limit_ms: int = 24 * HOUR_MS,
        submission: Submission | None = None,
        paused: bool | None = None,
        revision: int | None = None,
    ) -> None:
        recurrence = Recurrence(cron, zone, overlap, missed, limit_ms)
        intent = SetSchedule("vision", "nightly", recurrence, submission or a_submission(), "{}", paused, revision)
        self.do(intent)

    @property
    def schedule(self) -> ScheduleRecord:
        return self.state.schedules[NIGHTLY]

    @property
    def runs(self) -> tuple[Run, ...]:
        return self.schedule.runs

    def tick_schedules(self) -> None:
        """As the core does."""
        for id in self.watch.due(self.now_ms):
            events = due_events(self.state, self.state.schedules[id], self.now_ms)
            self.journal.record(events, self.now_ms, f"schedule/{id}")

    def pass_until(self, text: str) -> None:
        self.now_ms = at(text)
        self.tick_schedules()

    def pass_minutes(self, count: int) -> None:
        """Minute by minute, as a manager lives."""
        for _ in range(count):
            self.wait(MINUTE_MS)
            self.tick_schedules()

    def restart(self) -> None:
        """Another process begins with what the log says."""
        self.watch = ScheduleWatch(self.state)


def planned_times(yard: ScheduleYard) -> list[int]:
    return [run.planned_at_ms for run in yard.runs]
