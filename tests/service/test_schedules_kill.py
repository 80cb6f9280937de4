"""Recurring jobs and kill -9 of the real manager: what was missed while it was away is run once, however often it ends.

Nobody waits for a planned time here: the schedules are written by a manager whose clock is hours behind, so their time
has come, once, before the real one starts.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuyard.model.jobs import Job, Request, Task
from gpuyard.model.queues import Queue
from gpuyard.model.recurrence import Missed, Recurrence
from gpuyard.model.work import Work
from gpuyard.platform.clock import monotonic_ms, wall_ms
from gpuyard.service.clock import Clock
from gpuyard.service.manager import Manager
from gpuyard.service.signin import admin_of_home
from gpuyard.wire.access import Caller, Grant, Role
from gpuyard.worlds.standalone.events import ClusterFounded, TeamsSet
from gpuyard.worlds.standalone.intents import SetSchedule, SetUser, Submission
from gpuyard.worlds.standalone.records import TeamRecord
from gpuyard.worlds.standalone.store.opening import open_store
from tests.conftest import LONG
from tests.yard import Yard, open_folder, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("yard")]

HOUR_MS = 3_600_000
SCHEDULES = 20
KILLS = 40 if LONG else 2
ANN = Caller("ann", (Grant(Role.MEMBER, "default"),))


def planned_text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:00Z")


async def write_schedules(database: Path, record: Path) -> int:
    """Once a day, at the minute it was two hours ago; written three hours ago. The planned time."""
    planned_ms = wall_ms() - 2 * HOUR_MS
    moment = datetime.fromtimestamp(planned_ms // 1000, UTC)
    manager = Manager(open_store(database), clock=Clock(lambda: wall_ms() - 3 * HOUR_MS, monotonic_ms))
    await manager.start()
    await manager.record([ClusterFounded("test"), TeamsSet((Queue("default"),), {"default": TeamRecord(1)})])
    for intent in admin_of_home(manager.state, database.parents[1], wall_ms()):
        await manager.do(intent, ANN)
    await manager.do(SetUser("ann", ANN.grants), ANN)
    form = Job("", "default", (Task("", Request(devices=0, cpu_milli=10)),))
    work = Work(("/bin/sh", "-c", f'echo "$GPUYARD_SCHEDULE $GPUYARD_PLANNED_AT" >> {record}'))
    for number in range(SCHEDULES):
        missed = Missed.RUN_ONCE if number % 4 else Missed.SKIP
        recurrence = Recurrence(f"{moment.minute} {moment.hour} * * *", missed=missed)
        submission = Submission(f"s{number}", "ann", form, work)
        await manager.do(SetSchedule("default", f"s{number}", recurrence, submission), ANN)
    await manager.stop()
    return planned_ms


def test_what_was_missed_is_run_once_however_often_the_manager_ends() -> None:
    with open_folder() as folder:
        record = folder / "record"
        record.touch()
        record.chmod(0o666)
        yard = Yard(folder / "home", "--fake-gpus", "1", "--accept-shared-user")
        (yard.home / "state").mkdir(parents=True, mode=0o700)
        yard.home.chmod(0o755)
        planned_ms = asyncio.run(write_schedules(yard.home / "state" / "gpuyard.db", record))
        try:
            kill_often(yard)
            check(yard, record, planned_text(planned_ms))
        finally:
            yard.stop()


def kill_often(yard: Yard) -> None:
    """The first tick comes a second after the start: ends before it, in it and after it."""
    chance = random.Random(11)
    for _ in range(KILLS):
        yard.start()
        time.sleep(chance.uniform(0.0, 1.4))
        yard.kill_manager()
    yard.start()


def check(yard: Yard, record: Path, planned: str) -> None:
    made_up_for = {f"default/s{number}" for number in range(SCHEDULES) if number % 4}
    expected = Counter({f"{schedule} {planned}": 1 for schedule in made_up_for})

    def ran() -> Counter[str]:
        return Counter(record.read_text(encoding="utf-8").splitlines())

    wait_for(lambda: len(ran()) >= len(expected), 90, lambda: str(ran()))
    with yard.ready() as client:
        found = {f"{one.team}/{one.name}": one for one in client.schedules()}
        for id, schedule in found.items():
            detail = client.get_schedule(schedule.team, schedule.name)
            assert len(detail.runs) == (1 if id in made_up_for else 0), id
            skipped = schedule.last_skip.reason if schedule.last_skip else ""
            assert skipped == ("" if id in made_up_for else "Missed"), id
        wait_for(lambda: all(job.state == "succeeded" for job in client.jobs()), 60)
        assert len(list(client.jobs())) == len(made_up_for)
    assert ran() == expected
