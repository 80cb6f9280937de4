"""Somebody sets the clock of a running manager's node: nobody is charged, nothing is lost, and everybody is told."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpuyard.model.jobs import Job, Request, Task
from gpuyard.model.nodes import Device
from gpuyard.model.quantities import MILLI
from gpuyard.model.queues import Queue
from gpuyard.model.work import Work
from gpuyard.service import manager
from gpuyard.service.clock import Clock
from gpuyard.service.core import Core
from gpuyard.service.manager import Manager
from gpuyard.service.upkeep import PRUNE_EVERY_MS
from gpuyard.wire.access import Caller, Grant, Role
from gpuyard.wire.agents import AttemptReport, Desired, Ending, Hello, MachineFacts, Phase, ReadLog, Report
from gpuyard.worlds.standalone.events import ClusterFounded, SharedUserAccepted
from gpuyard.worlds.standalone.intents import AdmitNode, SetTeams, Submission, Submit, TeamSettings
from gpuyard.worlds.standalone.journal import Journal
from gpuyard.worlds.standalone.lifecycle import JobState
from gpuyard.worlds.standalone.meter import day_of
from gpuyard.worlds.standalone.records import State
from gpuyard.worlds.standalone.retention import DECISIONS_MS
from gpuyard.worlds.standalone.store.opening import open_store
from tests.service.yard import Yard

ROOT = Caller("root", (Grant(Role.ADMIN),))
SECOND_MS = 1_000
HOUR_MS = 3_600_000
HALF_AN_HOUR_MS = HOUR_MS // 2
"""Tokens of the yard last for an hour, by the wall clock."""
DAY_MS = 24 * HOUR_MS
BEGIN_MS = 1_700_000_000_000
GPUS = 2
IDLE_LIMIT_MS = 10 * 60_000


class Node:
    """The clocks of the manager's node, and a manager on it with one agent that runs what it is told."""

    def __init__(self, folder: Path) -> None:
        self.address = f"sqlite:///{folder / 'state.db'}"
        self.wall_ms, self.steady_ms, self.boot = BEGIN_MS, 50_000, "first"
        self.manager: Manager
        self._reported_ms = 0
        self._running: dict[Any, AttemptReport] = {}

    async def start(self) -> None:
        clock = Clock(lambda: self.wall_ms, lambda: self.steady_ms, self.boot)
        self.manager = Manager(open_store(self.address), clock=clock, lease_ms=900 * DAY_MS)
        await self.manager.start()

    async def found(self) -> None:
        await self.manager.record([ClusterFounded("test"), SharedUserAccepted()])
        settings = {"vision": TeamSettings(idle_limit_ms=IDLE_LIMIT_MS)}
        await self.manager.do(SetTeams((Queue("vision"),), settings), ROOT)
        await self.manager.do(AdmitNode("a", "certificate"), ROOT)
        self.connect()

    def connect(self) -> None:
        devices = tuple(Device("A100", 80_000, f"gpu-{number}") for number in range(GPUS))
        facts = MachineFacts(devices, cpu_milli=8_000, memory_bytes=1 << 36)
        self.manager.agent_connected(Hello("a", "i", "b", "0", facts), self._told)
        self.report()

    def _told(self, message: Desired | ReadLog) -> None:
        assert isinstance(message, Desired)
        for one in message.assignments:
            if one.id not in self._running:
                self._running[one.id] = AttemptReport(one.id, Phase.RUNNING, 1, self.wall_ms, gpu_percent=0)
        asyncio.get_running_loop().call_soon(self.report)

    def report(self) -> None:
        self._reported_ms += 1
        self.manager.agent_reported("a", Report(self._reported_ms, tuple(self._running.values())))

    async def run(self, key: str = "") -> str:
        """A job that runs on one GPU."""
        id = await self.submit(key)
        await until(lambda: self.manager.state.jobs[id].state is JobState.RUNNING)
        return id

    async def submit(self, key: str) -> str:
        form, work = Job("", "vision", (Task("", Request(devices=1)),)), Work(("train",))
        done = await self.manager.do(Submit(Submission("job", "root", form, work), key, "print"), ROOT)
        return done.jobs[0]

    def pass_time(self, ms: int) -> None:
        self.wall_ms += ms
        self.steady_ms += ms

    def tick(self) -> None:
        self.manager.core.tick()
        self.manager._changed()

    async def used(self, kind: str = "held") -> int:
        """GPU milliseconds, over all days."""
        sums = await self.manager.sums("0", "9")
        return sum(one.gpu_milli_ms for one in sums if one.kind == kind) // MILLI


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


def on_node(folder: Path, story: Callable[[Node], Awaitable[None]]) -> None:
    async def live() -> None:
        node = Node(folder)
        await node.start()
        await node.found()
        try:
            await story(node)
        finally:
            await node.manager.stop()

    asyncio.run(live())


# ----------------------------------------------------------------------------------------------------------------- use


@pytest.mark.parametrize("by_ms", [-30 * DAY_MS, -5 * SECOND_MS, 5 * SECOND_MS, 40 * DAY_MS])
def test_an_answer_is_right_before_the_jump_is_noticed_and_after_it(tmp_path: Path, by_ms: int) -> None:
    async def story(node: Node) -> None:
        await node.run()
        node.pass_time(HOUR_MS)
        node.wall_ms += by_ms
        assert await node.used() == HOUR_MS
        node.tick()
        assert await node.used() == HOUR_MS
        node.pass_time(HOUR_MS)
        assert (await node.used(), await node.used("owed")) == (2 * HOUR_MS, 2 * HOUR_MS)

    on_node(tmp_path, story)


@pytest.mark.parametrize(("by_ms", "passes_ms"), [(40 * DAY_MS, 0), (-DAY_MS, 90 * SECOND_MS), (300, HOUR_MS)])
def test_a_clock_that_is_set_while_the_manager_is_down_charges_what_really_passed(
    tmp_path: Path, by_ms: int, passes_ms: int
) -> None:
    async def story(node: Node) -> None:
        await node.run()
        node.pass_time(HOUR_MS)
        await node.manager.stop()
        node.pass_time(passes_ms)
        node.wall_ms += by_ms
        await node.start()
        assert await node.used() == HOUR_MS + passes_ms
        noted = [one for one in await node.manager.history() if one.kind == "clock-jumped"]
        assert len(noted) == (abs(by_ms) > SECOND_MS)

    on_node(tmp_path, story)


def test_after_a_reboot_the_clock_cannot_have_gone_back(tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        await node.run()
        await node.manager.stop()
        node.wall_ms, node.steady_ms, node.boot = BEGIN_MS - 20 * DAY_MS, 7_000, "second"
        await node.start()
        assert await node.used() == 0
        node.pass_time(HOUR_MS)
        node.wall_ms += 20 * DAY_MS
        assert await node.used() == HOUR_MS
        node.tick()
        await node.manager.record([])
        kinds = [one.kind for one in await node.manager.history(kinds=("clock-jumped", "clock-read"))]
        assert kinds == ["clock-jumped", "clock-jumped", "clock-read"]

    on_node(tmp_path, story)


def test_a_restart_on_the_same_boot_notes_nothing(tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        for _ in range(3):
            await node.manager.stop()
            node.pass_time(HOUR_MS)
            await node.start()
        assert [one.kind for one in await node.manager.history(kinds=("clock-jumped", "clock-read"))] == ["clock-read"]

    on_node(tmp_path, story)


def test_a_day_that_is_closed_and_comes_again_keeps_what_was_used_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "TICK_MS", 20)

    async def story(node: Node) -> None:
        day, midnight_ms = day_of(BEGIN_MS), (BEGIN_MS // DAY_MS + 1) * DAY_MS
        await node.run()
        first_ms = midnight_ms - node.wall_ms
        node.pass_time(first_ms + SECOND_MS)
        await until(lambda: node.manager.state.meter.closed_until == day)
        node.wall_ms -= 60 * SECOND_MS
        node.tick()
        node.pass_time(90 * SECOND_MS)
        await until(lambda: day not in node.manager.state.meter.open_days)
        kept = await node.manager.sums(day, day)
        assert sum(one.gpu_milli_ms for one in kept if one.kind == "held") == (first_ms + 60 * SECOND_MS) * MILLI
        assert await node.used() == first_ms + 91 * SECOND_MS

    on_node(tmp_path, story)


# ------------------------------------------------------------------------------------------------- what would be lost


def test_a_jump_ahead_takes_nothing_from_jobs_that_run_or_ran(tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        ran, runs = await node.run("key"), await node.run()
        node.pass_time(61 * SECOND_MS)
        node.report()
        assert node.manager.state.jobs[runs].idle_since_ms == node.wall_ms
        attempt = next(id for id in node._running if id.job == ran)
        node._running[attempt] = AttemptReport(attempt, Phase.ENDED, 1, node.wall_ms, node.wall_ms, Ending.EXITED, 0)
        node.report()
        assert node.manager.state.jobs[ran].over
        node.wall_ms += 40 * DAY_MS
        node.tick()
        node.report()
        job = node.manager.state.jobs[runs]
        assert (job.state, job.idle_since_ms, job.warned_idle) == (JobState.RUNNING, node.wall_ms, False)
        assert ran in node.manager.state.jobs, "a job that ended a minute ago is not forgotten"
        assert await node.submit("key") == ran, "the request was answered a minute ago"

    on_node(tmp_path, story)


def test_the_log_is_kept_for_as_long_as_it_is_by_the_monotonic_clock(tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        journal = node.manager.core.journal
        first = await node.run()
        journal.snapshot_every = 0
        await node.manager.record([SharedUserAccepted()])
        await until(lambda: any(node.manager.store.snapshots()))

        async def submitted() -> list[str]:
            await node.manager._in(node.manager._writing, node.manager._upkeep._prune_store)
            return [one.objects[0] for one in await node.manager.history(kinds=("job-submitted",))]

        node.wall_ms += 10 * DECISIONS_MS
        node.tick()
        assert await submitted() == [f"job/{first}"]
        node.wall_ms -= 10 * DECISIONS_MS
        node.tick()
        assert await submitted() == [f"job/{first}"]
        node.pass_time(DECISIONS_MS + HOUR_MS)
        assert await submitted() == []

    assert PRUNE_EVERY_MS < DECISIONS_MS
    on_node(tmp_path, story)


# --------------------------------------------------------------------------------------------------------- who is told


def test_a_jump_is_in_the_log_the_metrics_the_status_and_the_journal(
    fresh_yard: Yard, caplog: pytest.LogCaptureFixture
) -> None:
    yard = fresh_yard
    id = yard.submit("max", gpus=2)
    yard.wait_for(id, "running")
    with caplog.at_level(logging.WARNING, logger="gpuyard.service.manager"):
        yard.clock.ahead_ms += HALF_AN_HOUR_MS
        wait(lambda: jumps(yard) == 1)
        yard.clock.ahead_ms -= HALF_AN_HOUR_MS
        wait(lambda: jumps(yard) == 2)
    texts = [one["text"] for one in yard.ask("root", "GET", "/v1/audit").json()["items"] if "clock" in one["text"]]
    # Both clocks are read to the millisecond, so half an hour may be one less.
    directions = [re.match(r"the server's clock jumped (ahead|back) by (30m|29m 59s) ", text) for text in texts[:2]]
    assert [found[1] for found in directions if found] == ["back", "ahead"]
    assert all(text in caplog.text for text in texts[:2])
    (warning,) = [one for one in yard.ask("max", "GET", "/v1/status").json()["warnings"] if "clock" in one]
    assert warning.startswith("the server's clock jumped back by ")
    assert warning.endswith("2 jumps within a day")
    metrics = yard.ask("olga", "GET", "/metrics").text
    for direction in ("ahead", "back"):
        assert f'gpuyard_clock_jumps_total{{direction="{direction}"}} 1' in metrics
    rows = yard.ask("root", "GET", "/v1/usage", params={"by": "job"}).json()["items"]
    assert [float(row["held"]) < 0.1 for row in rows if row["job"] == id] == [True]


def jumps(yard: Yard) -> int:
    """As whoever follows the events sees them."""
    return len(yard.ask("root", "GET", "/v1/events", params={"kind": "clock-jumped"}).json()["items"])


def wait(holds: Callable[[], bool]) -> None:
    for _ in range(200):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come about in 10 s")


def test_a_process_that_stands_still_between_two_readings_has_seen_no_jump() -> None:
    """As one that is stopped by a signal for a minute, just between its wall clock and its monotonic clock."""
    clock = {"wall": BEGIN_MS, "steady": 0, "stands": 0}

    def wall_ms() -> int:
        clock["steady"], clock["wall"] = clock["steady"] + clock["stands"], clock["wall"] + clock["stands"]
        clock["stands"] = 0
        return clock["wall"]

    journal = Journal(State())
    core = Core(journal, Clock(wall_ms, lambda: clock["steady"]))
    clock["stands"] = 60_000
    core.tick()
    assert [entry.kind for entry in journal.pending] == ["clock-read"]
