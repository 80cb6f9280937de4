"""Whatever the clocks do, what is charged is what was held, by the monotonic clock: a property of the whole core.

A course of jobs, reports, midnights, jumps of the wall clock, restarts and reboots is drawn; the core runs it on a
store in memory, as the manager does. What was held is added up beside it, without any of its code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from gpuyard.model.jobs import DeviceShare
from gpuyard.model.quantities import GPU, MILLI
from gpuyard.model.queues import Queue, QueueShare
from gpuyard.model.reasons import Reason, Token
from gpuyard.model.work import Work
from gpuyard.service.clock import Clock
from gpuyard.service.core import Core
from gpuyard.service.days import all_sums
from gpuyard.wire.agents import Ending, Hello
from gpuyard.worlds.standalone.clock import MAX_DEVIATION_MS
from gpuyard.worlds.standalone.events import (
    DECODER,
    AttemptBegan,
    AttemptEnded,
    IdleNoticed,
    Placing,
    SharedUserAccepted,
    TasksPlaced,
)
from gpuyard.worlds.standalone.fold import fold
from gpuyard.worlds.standalone.intents import AdmitNode, SetTeams, Submission, Submit
from gpuyard.worlds.standalone.journal import load
from gpuyard.worlds.standalone.lifecycle import PLACED
from gpuyard.worlds.standalone.records import Place, State
from gpuyard.worlds.standalone.store.memory import MemoryDisk, MemoryStore
from gpuyard.worlds.standalone.store.port import DailySum
from tests.worlds.standalone.yard import MEMORY_MIB, a_form, facts

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
BEGIN_MS: Final = 1_700_006_395_000
"""Five seconds before midnight."""


class Life:
    """A manager on a node whose clocks a test moves. What is entered is written at once, unless it ends before."""

    def __init__(self) -> None:
        self.wall_ms, self.steady_ms, self.boots = BEGIN_MS, 70_000, 0
        self.disk = MemoryDisk()
        self.held_milli = 0
        self.charged = 0
        """What was held: GPU milli x milliseconds of the monotonic clock."""
        self.written_at_ms = 0
        """By the monotonic clock."""
        self.start()
        self.core.record([SharedUserAccepted()])
        self.core.do(SetTeams((Queue("vision", shares=(QueueShare(GPU, 2 * MILLI),)), Queue("speech"))), "ann")
        self.core.do(AdmitNode("a", "certificate of a"), "ann")
        self.core.hello(Hello("a", "first", "boot", "0", facts(64)))
        self.write()

    # ------------------------------------------------------------------------------------------------------ its node

    def start(self) -> None:
        self.store = MemoryStore(self.disk)
        self.store.open()
        clock = Clock(lambda: self.wall_ms, lambda: self.steady_ms, f"boot {self.boots}")
        self.core = Core(load(self.store), clock, lease_ms=400 * DAY_MS)
        self.write()

    def pass_time(self, ms: int) -> None:
        self.wall_ms += ms
        self.steady_ms += ms
        self.charged += self.held_milli * ms

    def set_clock(self, by_ms: int) -> None:
        self.wall_ms += by_ms

    def restart(self, away_ms: int) -> None:
        self.disk.writer = None
        self.pass_time(away_ms)
        self.start()

    def reboot(self, apart_ms: int) -> None:
        """Across boots only the wall clock is left: what has passed by it is charged, and never less than nothing."""
        passed_ms = self.steady_ms - self.written_at_ms
        self.disk.writer = None
        self.wall_ms += apart_ms
        self.charged += self.held_milli * (max(self.wall_ms - self.core.state.at_ms, 0) - passed_ms)
        self.boots, self.steady_ms = self.boots + 1, 3_000
        self.start()

    # ------------------------------------------------------------------------------------------------------ its work

    def write(self) -> None:
        batch = self.core.take()
        self.store.append(batch.entries)
        self.core.published(batch)
        self.held_milli = MILLI * len(self.placed())
        if batch.entries:
            self.written_at_ms = self.steady_ms

    def placed(self) -> list[tuple[str, int]]:
        return [
            (job.id, index)
            for job in self.core.state.jobs.values()
            for index, task in enumerate(job.tasks)
            if task.phase in PLACED
        ]

    def submit(self, tasks: int) -> None:
        """A job that runs at once."""
        team = "vision" if tasks % 2 else "speech"
        id = str(self.core.state.next_job)
        self.core.do(Submit(Submission("job", "ann", a_form(team, tasks, 1), Work(("train",)))), "ann")
        share = DeviceShare(0, MILLI, MEMORY_MIB)
        placings = tuple(Placing(task, Place("a", (share,)), Reason(Token.PLACED), 1) for task in range(tasks))
        self.core.record([TasksPlaced(id, self.core.state.cycle + 1, placings)])
        self.core.record([AttemptBegan(id, task, 1, "a", self.core.now_ms()) for task in range(tasks)])
        self.write()

    def end(self, number: int) -> None:
        """A task ends, well or not."""
        placed = self.placed()
        if placed:
            id, task = placed[number % len(placed)]
            code = number % 2
            ended = AttemptEnded(id, task, 1, "a", Ending.EXITED, self.core.now_ms(), code, done=not code)
            self.core.record([ended])
            self.write()

    def idle(self, number: int) -> None:
        placed = self.placed()
        if placed:
            id = placed[number % len(placed)][0]
            known = self.core.state.jobs[id].idle_since_ms
            self.core.record([IdleNoticed(id, self.core.now_ms() if known is None else None)])
            self.write()

    def tick(self, ends: int) -> None:
        """As the manager does every second; it may end at any point of closing a day."""
        self.core.tick()
        days = self.core.days
        for day in days.to_begin():
            days.begin(day, self.store.sums(day, day) if days.was_closed(day) else [])
        if ends == 1:
            self.restart(0)
            return
        sums = days.to_close()
        self.store.add_sums(sums)
        if ends == 2:
            self.restart(0)
            return
        if ends == 4:
            # The clock is set while the sums are being kept.
            self.set_clock(-10_000)
            self.idle(0)
            self.pass_time(2_000)
        if sums and ends != 3:
            days.close(sums)
        self.write()

    # ------------------------------------------------------------------------------------------------------- its sums

    def sums(self, kind: str) -> int:
        """As the manager answers."""
        kept = self.store.sums("0", "9")
        found: list[DailySum] = all_sums(self.core.state, kept, self.core.recorded.now_ms())
        return sum(one.gpu_milli_ms for one in found if one.kind == kind)

    def check(self) -> None:
        held = self.sums("held")
        assert held == self.charged, f"{held - self.charged} of {self.charged} too much"
        assert self.sums("owed") + self.sums("borrowed") == held
        assert self.sums("idle") <= held
        assert self.sums("wasted") <= held

    def check_log(self) -> None:
        """The state is the fold of the log, and time is dated as a wall clock would that is never far off."""
        replayed = State()
        for entry in self.disk.log:
            fold(replayed, DECODER.decode(entry.body), entry.seq, entry.at_ms)
        assert msgspec.msgpack.encode(replayed) == msgspec.msgpack.encode(self.core.state)
        assert abs(self.core.recorded.now_ms() - self.wall_ms) <= MAX_DEVIATION_MS


jumps_ms = st.one_of(
    st.sampled_from((-40 * DAY_MS, -DAY_MS, -HOUR_MS, -60_000, 60_000, HOUR_MS, DAY_MS, 40 * DAY_MS)),
    st.integers(-3_000, 3_000),
    st.integers(-400 * DAY_MS, 400 * DAY_MS),
)
pauses_ms = st.one_of(
    st.integers(0, 5_000), st.integers(0, HOUR_MS), st.sampled_from((5_000, 10_000, HOUR_MS, DAY_MS, 40 * DAY_MS))
)
steps = st.one_of(
    st.tuples(st.just("submit"), st.integers(1, 4)),
    st.tuples(st.sampled_from(("end", "idle")), st.integers(0, 9)),
    st.tuples(st.just("pass_time"), pauses_ms),
    st.tuples(st.just("pass_time"), pauses_ms),
    st.tuples(st.just("set_clock"), jumps_ms),
    st.tuples(st.just("tick"), st.sampled_from((0, 0, 0, 0, 1, 2, 3, 4))),
    st.tuples(st.just("restart"), pauses_ms),
    st.tuples(st.just("reboot"), jumps_ms),
)

JUST_AFTER_MIDNIGHT: Final = (
    ("submit", 1),
    ("pass_time", 6_000),
    ("tick", 0),
    ("set_clock", -60_000),
    ("tick", 0),
    ("pass_time", 70_000),
    *(("tick", ends) for ends in (0, 1, 0, 2, 0, 0)),
)
"""A day is closed, the clock is set back into it, and it is closed again by a manager that ends while it does."""

AHEAD_AND_BACK: Final = (
    ("submit", 2),
    ("pass_time", HOUR_MS),
    ("set_clock", 40 * DAY_MS),
    ("tick", 0),
    ("pass_time", 3 * DAY_MS),
    *(("tick", 0),) * 3,
    ("set_clock", -40 * DAY_MS),
    ("tick", 0),
    ("pass_time", 45 * DAY_MS),
    *(("tick", 0),) * 3,
    ("end", 0),
)


SET_WHILE_SUMS_ARE_KEPT: Final = (
    ("submit", 1),
    ("pass_time", 6_000),
    ("tick", 0),
    ("tick", 4),
    ("pass_time", 20_000),
    *(("tick", 0),) * 3,
)
"""The clock is set back into a day between the moment its sums are kept and the moment it is closed."""

KEPT_BUT_NOT_CLOSED: Final = (
    ("submit", 1),
    ("pass_time", 6_000),
    ("tick", 0),
    ("tick", 2),
    ("set_clock", -40 * DAY_MS),
    ("tick", 0),
    ("pass_time", HOUR_MS),
)
"""The sums of a day are kept, the manager ends before the day is closed, and the day is then far ahead."""


@example(JUST_AFTER_MIDNIGHT)
@example(AHEAD_AND_BACK)
@example(SET_WHILE_SUMS_ARE_KEPT)
@example(KEPT_BUT_NOT_CLOSED)
@given(st.lists(steps, min_size=5, max_size=40))
def test_what_is_charged_is_what_was_held_by_the_monotonic_clock(course: Sequence[tuple[str, int]]) -> None:
    life = Life()
    for what, how in course:
        getattr(life, what)(how)
        life.check()
    for _ in range(3):
        life.tick(0)
    life.check()
    life.check_log()
