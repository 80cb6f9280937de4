"""Killed with -9 at any moment, between and within calls: what was answered stands, the rest is whole or not at all.

A twin in memory is asked the same. Whatever the killed process was answered, the twin answers too; what it was not
answered has either happened as a whole, as the twin shows, or not.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuyard.vdk import Budget, GpuResourceManager, JobUniqueIdentifier, Machine, MoveJob
from gpuyard.vdk.model import PlanState, StepState
from tests.vdk.crashing import EXPIRY_MS, TEAMS, Call, do
from tests.vdk.driving import everything
from tests.vdk.exact import Ground
from tests.vdk.tight import spot_of

pytestmark = pytest.mark.slow

FACTOR = 10 if os.environ.get("GPUYARD_LONG") == "1" else 1
KILLS = 12 * FACTOR
ROOT = Path(__file__).parents[2]
SIZES = {"m1": 2, "m2": 3, "m3": 3}


class Victims:
    """Processes that use the pool, one after the other."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def say(self, seed: int, at_ms: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seed} {at_ms}\n".encode())
        self.process.stdin.flush()

    def hear(self) -> tuple[str, bytes]:
        assert self.process.stdout is not None
        word, _, rest = self.process.stdout.readline().partition(b" ")
        assert word, "the process that starts the others is gone"
        return word.decode(), rest

    def life(self, seed: int, at_ms: int, words: int, delay_s: float) -> list[tuple[str, bytes]]:
        """Let one live until it has said so much, and a moment longer; all that it said."""
        self.say(seed, at_ms)
        _, pid = self.hear()
        said = [self.hear() for _ in range(words)]
        time.sleep(delay_s)
        os.kill(int(pid), signal.SIGKILL)
        while (heard := self.hear())[0] != "dead":
            said.append(heard)
        return said


@contextmanager
def victims(address: str) -> Iterator[Victims]:
    command = [sys.executable, "-m", "tests.vdk.crashing", address]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield Victims(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=60) == 0


class Twin:
    """The same calls in memory."""

    def __init__(self) -> None:
        self.now = [0]
        self.manager = GpuResourceManager(clock=lambda: self.now[0], expiry_ms=EXPIRY_MS)
        set_up(self.manager)

    def do(self, call: Call) -> Any:
        self.now[0] = call.at_ms
        return msgspec.json.decode(msgspec.json.encode(do(self.manager, call)))

    def follow(self, said: list[tuple[str, bytes]]) -> Call | None:
        """All that was answered; the call that was not, if there is one."""
        asked: Call | None = None
        for word, value in said:
            if word == "asked":
                asked = msgspec.json.decode(value, type=Call)
            else:
                assert asked is not None
                assert self.do(asked) == msgspec.json.decode(value)
                asked = None
        return asked


def set_up(manager: GpuResourceManager) -> None:
    for name, devices in SIZES.items():
        manager.set_machine(Machine(name, devices))
    for at, team in enumerate(TEAMS):
        manager.set_budget(Budget(team, 1000 + 1500 * at))


@contextmanager
def reopened(address: str, twin: Twin) -> Iterator[GpuResourceManager]:
    with GpuResourceManager(address, clock=lambda: twin.now[0], expiry_ms=EXPIRY_MS) as manager:
        yield manager


def books_hold(manager: GpuResourceManager) -> None:
    """No device has more than it can hold: neither now, nor once all plans are carried out."""
    for places in ([job.place for job in manager.jobs()], [job.next_place for job in manager.jobs()]):
        ground = Ground(SIZES)
        for spot in map(spot_of, places):
            if spot is not None:
                ground.put(spot)


def carry_out_all(manager: GpuResourceManager) -> None:
    """What was planned before the crash can be done after it."""
    while plans := manager.plans():
        ready = [step.action for plan in plans for step in plan.steps if step.state is StepState.READY]
        assert ready, "something can always go on"
        manager.confirm(ready[0].plan, ready[0].number)
        books_hold(manager)
    assert all(job.place is not None and job.place == job.next_place for job in manager.jobs())


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/pool.db"
    server = request.getfixturevalue("postgres_server")
    return str(server.url(server.make_database()))


def test_what_was_answered_stands_and_the_rest_is_whole_or_not_at_all(address: str) -> None:
    chance = random.Random(5)
    twin = Twin()
    with reopened(address, twin) as manager:
        set_up(manager)
    unanswered = happened = 0
    with victims(address) as processes:
        for seed in range(KILLS):
            said = processes.life(seed, twin.now[0], chance.randint(1, 40), chance.choice((0, 0.0005, 0.002)))
            call = twin.follow(said)
            with reopened(address, twin) as manager:
                books_hold(manager)
                if call is not None and everything(manager) != everything(twin.manager):
                    twin.do(call)
                    happened += 1
                assert everything(manager) == everything(twin.manager)
            unanswered += call is not None
    assert unanswered, f"no call was cut short; {happened} of them had happened"
    with reopened(address, twin) as manager:
        carry_out_all(manager)


def test_what_is_not_confirmed_is_rolled_back_after_a_crash_as_well(address: str) -> None:
    twin = Twin()
    with reopened(address, twin) as manager:
        set_up(manager)
    with victims(address) as processes:
        call = twin.follow(processes.life(3, 0, 60, 0))
    with reopened(address, twin) as manager:
        if call is not None and everything(manager) != everything(twin.manager):
            twin.do(call)
        manager.set_machine(Machine("m4", 8))
        (create,) = manager.try_provision_resources(JobUniqueIdentifier(job="late", team=TEAMS[0]), 1)
        real = {job.id: job.place for job in manager.jobs() if job.place is not None}
    for _ in range(5):
        # A plan that waits for another one is put off when that one goes.
        twin.now[0] += 2 * EXPIRY_MS
        with reopened(address, twin) as manager:
            manager.expire()
    with reopened(address, twin) as manager:
        assert manager.plan(create.plan).state is PlanState.ROLLED_BACK
        assert {job.id: job.place for job in manager.jobs() if job.place is not None} == real
        assert all(job.next_place in (None, job.place) or job.place is None for job in manager.jobs())
        stopped = [step.action for plan in manager.plans() for step in plan.steps]
        assert all(isinstance(action, MoveJob) and action.source is None for action in stopped)
        assert manager.try_provision_resources(create.job, 1)
