"""Planned times, whatever happens: crashes between any two writes, clocks that are set, people who change their minds.

A course of events is drawn; a manager that crashes loses what was not yet written and begins again from the store.
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.errors import RefusedError
from gpuyard.model.queues import Queue
from gpuyard.model.recurrence import Missed, Overlap, Recurrence
from gpuyard.model.work import Array
from gpuyard.service.clock import Clock
from gpuyard.service.core import Core
from gpuyard.wire.access import Grant, Role
from gpuyard.worlds.standalone.events import SharedUserAccepted
from gpuyard.worlds.standalone.intents import (
    Intent,
    PauseSchedule,
    RemoveSchedule,
    ResumeSchedule,
    RunSchedule,
    SetSchedule,
    SetTeams,
    SetUser,
    Steer,
)
from gpuyard.worlds.standalone.journal import load
from gpuyard.worlds.standalone.lifecycle import OVER
from gpuyard.worlds.standalone.store.memory import MemoryDisk, MemoryStore
from tests.planned_times import MINUTE_MS, PlannedTimes
from tests.worlds.standalone.schedule_yard import a_submission, at

LONG: Final = os.environ.get("GPUYARD_LONG") == "1"
BEGIN_MS: Final = at("2026-03-02T08:00:30Z")
NAMES: Final = ("a", "a", "b")


class Life:
    """A manager that may end at any moment, on a disk that keeps what was written."""

    def __init__(self) -> None:
        self.now_ms = BEGIN_MS
        self.set_back_ms = 0
        """By how much the wall clock was set back; the steady clock never is."""
        self.disk = MemoryDisk()
        self.start()
        self.do(SetTeams((Queue("vision"), Queue("speech"))))
        self.do(SetUser("ann", (Grant(Role.MEMBER, "vision"),)))
        self.write()

    def start(self) -> None:
        self.store = MemoryStore(self.disk)
        self.store.open()
        journal = load(self.store)
        self.core = Core(journal, Clock(lambda: self.now_ms, lambda: self.now_ms + self.set_back_ms))
        if not journal.state.seq:
            journal.record([SharedUserAccepted()], self.now_ms)

    def crash(self) -> None:
        """What was not written is lost."""
        self.disk.writer = None
        self.start()

    def write(self) -> None:
        batch = self.core.take()
        if batch.entries:
            self.store.append(batch.entries)

    def tick(self) -> None:
        self.core.tick()

    def do(self, intent: Intent) -> None:
        try:
            self.core.do(intent, "ann")
        except RefusedError:
            return

    def end_all(self) -> None:
        """Every job that is not over is cancelled, so that the next run finds nothing before it."""
        for job in list(self.core.state.jobs.values()):
            if job.state not in OVER:
                self.do(Steer(job.id, "cancel"))


recurrences = st.builds(
    Recurrence,
    st.sampled_from(("* * * * *", "*/5 * * * *")),
    st.sampled_from(("UTC", "Europe/Berlin")),
    st.sampled_from(Overlap),
    st.sampled_from(Missed),
    st.sampled_from((0, 3 * MINUTE_MS, 24 * 60 * MINUTE_MS)),
)
names = st.sampled_from(NAMES)
arrays = st.sampled_from((None, Array((0, 1))))
members = st.sampled_from(((Grant(Role.MEMBER, "vision"),), (), (Grant(Role.VIEWER, "vision"),)))
settings_of = st.builds(
    lambda name, recurrence, array, paused: SetSchedule(
        "vision", name, recurrence, a_submission(array=array), paused=paused
    ),
    names,
    recurrences,
    arrays,
    st.sampled_from((None, None, False, True)),
)
verbs = st.builds(
    lambda verb, name: verb("vision", name),
    st.sampled_from((PauseSchedule, ResumeSchedule, RunSchedule, RemoveSchedule)),
    names,
)
deeds = st.one_of(settings_of, verbs, st.builds(lambda grants: SetUser("ann", grants), members))
pauses_ms = st.sampled_from((1_000, 30_000, MINUTE_MS, 61_000, 4 * MINUTE_MS, 61 * MINUTE_MS))
steps = st.one_of(
    st.tuples(st.just("do"), deeds),
    st.tuples(st.just("pass"), pauses_ms),
    st.tuples(st.just("pass"), pauses_ms),
    st.tuples(st.just("sleep"), pauses_ms),
    st.tuples(st.just("set back"), pauses_ms),
    st.tuples(st.sampled_from(("write", "write", "crash", "end all")), st.none()),
)


def happen(life: Life, what: str, how: object) -> None:
    match what:
        case "do":
            life.do(how)  # type: ignore[arg-type]
        case "pass":
            life.now_ms += how  # type: ignore[operator]
            life.tick()
        case "sleep":
            life.now_ms += how  # type: ignore[operator]
        case "set back":
            life.now_ms -= how  # type: ignore[operator]
            life.set_back_ms += how  # type: ignore[operator]
            life.tick()
        case "write":
            life.write()
        case "crash":
            life.crash()
        case "end all":
            life.end_all()


FIRST = SetSchedule("vision", "a", Recurrence("* * * * *"), a_submission())


@settings(max_examples=2_000 if LONG else 150)
@given(st.lists(steps, min_size=5, max_size=40))
def test_a_planned_time_is_run_once_or_has_a_recorded_reason_across_crashes(
    course: list[tuple[str, object]],
) -> None:
    life = Life()
    life.do(FIRST)
    for what, how in course:
        happen(life, what, how)
    life.tick()
    life.write()
    judge = PlannedTimes()
    judge.follow(life.disk.log)
    judge.check_nothing_is_overdue(life.now_ms)
    judge.check_every_submission_is_a_run()
    known = life.core.state.schedules
    assert known.keys() == judge.courses.keys()
    for id, course_of in judge.courses.items():
        assert (known[id].settled_until_ms, known[id].stands_still) == (course_of.settled_ms, course_of.still)


@settings(max_examples=500 if LONG else 50)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=20))
def test_a_manager_that_lives_from_crash_to_crash_runs_every_minute_once(written_after: list[int]) -> None:
    """Ticks come every second; after so many of them what is pending is written, and then the manager ends."""
    life = Life()
    life.do(SetSchedule("vision", "a", Recurrence("* * * * *"), a_submission()))
    life.write()
    began_ms = life.now_ms
    for ticks in written_after:
        for _ in range(ticks):
            life.now_ms += 1_000
            life.tick()
            life.end_all()
        life.write()
        life.now_ms += 500
        life.tick()
        life.crash()
    life.tick()
    life.write()
    judge = PlannedTimes()
    judge.follow(life.disk.log)
    minutes = range((began_ms // MINUTE_MS + 1) * MINUTE_MS, life.now_ms + 1, MINUTE_MS)
    assert [planned for _, planned in judge.runs] == list(minutes)
