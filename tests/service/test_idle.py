"""GPUs that are held and not used: warned of, then open to others; never a silent end."""

from __future__ import annotations

import msgspec

from gpuyard.model.snapshot import Snapshot
from gpuyard.scheduler.cycle import schedule
from gpuyard.service.idle import SETTLING_MS, IdleWatch
from gpuyard.worlds.standalone.intents import SetTeams, TeamSettings
from gpuyard.worlds.standalone.lifecycle import JobState
from gpuyard.worlds.standalone.snapshot import snapshot_of
from tests.worlds.standalone.yard import Yard, a_form

LIMIT_MS = 600_000


class IdleYard(Yard):
    """Team vision lets its jobs idle for ten minutes."""

    def __init__(self) -> None:
        super().__init__(machines=("a",))
        self.do(SetTeams(self.state.queues, {"vision": TeamSettings(idle_limit_ms=LIMIT_MS)}))
        self.watch = IdleWatch(self.state)

    def reported(self, job: str, percent: int, task: int = 0) -> None:
        self.enter(*self.watch.noticed({(job, task): percent}, self.now_ms))
        self.enter(*self.watch.overdue(self.now_ms))

    def snapshot(self) -> Snapshot:
        return snapshot_of(self.state, self.now_ms)


def test_a_job_that_idles_beyond_its_teams_limit_is_warned_then_reclaimable_and_runs_on() -> None:
    yard = IdleYard()
    id = yard.submit()
    yard.run(id)
    yard.wait(SETTLING_MS + 1)
    yard.reported(id, 0)
    assert yard.job(id).idle_since_ms == yard.now_ms
    yard.wait(LIMIT_MS)
    yard.reported(id, 0)
    assert (yard.job(id).warned_idle, yard.job(id).reclaimable) == (True, False)
    yard.wait(LIMIT_MS)
    yard.reported(id, 0)
    assert yard.job(id).reclaimable
    assert yard.job(id).state is JobState.RUNNING


def test_use_takes_everything_back() -> None:
    yard = IdleYard()
    id = yard.submit()
    yard.run(id)
    yard.wait(SETTLING_MS + 1)
    for _ in range(3):
        yard.reported(id, 0)
        yard.wait(LIMIT_MS)
    yard.reported(id, 80)
    job = yard.job(id)
    assert (job.idle_since_ms, job.warned_idle, job.reclaimable) == (None, False, False)


def test_one_busy_task_keeps_the_whole_job_from_idling() -> None:
    yard = IdleYard()
    id = yard.submit(a_form(tasks=2))
    yard.run(id)
    yard.wait(SETTLING_MS + 1)
    yard.reported(id, 90, task=1)
    yard.reported(id, 0, task=0)
    assert yard.job(id).idle_since_ms is None


def test_a_job_that_has_just_started_is_not_idle_yet() -> None:
    yard = IdleYard()
    id = yard.submit()
    yard.run(id)
    yard.wait(SETTLING_MS - 1)
    yard.reported(id, 0)
    assert yard.job(id).idle_since_ms is None


def test_a_task_that_has_ended_keeps_nobody_from_idling() -> None:
    yard = IdleYard()
    id = yard.submit(a_form(tasks=2, least=1))
    yard.run(id)
    yard.wait(SETTLING_MS + 1)
    yard.reported(id, 90, task=1)
    yard.reported(id, 0, task=0)
    yard.end(id, task=1)
    yard.reported(id, 0, task=0)
    assert yard.job(id).idle_since_ms == yard.now_ms


def test_a_job_is_not_idle_as_long_as_a_task_of_it_was_not_heard_of() -> None:
    """As after a restart of the manager: the first machine to report says nothing about the others."""
    yard = IdleYard()
    id = yard.submit(a_form(tasks=2))
    yard.run(id)
    yard.wait(SETTLING_MS + 1)
    yard.reported(id, 0, task=0)
    assert yard.job(id).idle_since_ms is None
    yard.reported(id, 0, task=1)
    assert yard.job(id).idle_since_ms == yard.now_ms


def test_a_job_that_was_started_again_is_given_time_again() -> None:
    yard = IdleYard()
    id = yard.submit(retries=1)
    yard.run(id)
    yard.wait(SETTLING_MS + 1)
    yard.end(id, code=1)
    yard.run(id)
    yard.reported(id, 0)
    assert yard.job(id).idle_since_ms is None


def test_a_team_without_a_limit_is_left_alone() -> None:
    yard = IdleYard()
    id = yard.submit(a_form("speech"))
    yard.run(id)
    yard.wait(SETTLING_MS + 1)
    for _ in range(5):
        yard.reported(id, 0)
        yard.wait(LIMIT_MS)
    assert not yard.job(id).warned_idle


def test_whoever_waits_in_the_team_gets_the_place_of_a_reclaimable_job_and_it_is_told_why() -> None:
    yard = IdleYard()
    id = yard.submit(msgspec.structs.replace(a_form(tasks=4), preemptible=False))
    yard.run(id)
    yard.wait(SETTLING_MS + 1)
    waiting = yard.submit(a_form(gpus=4))
    assert not [action for action in schedule(yard.snapshot()).actions if action.job == id]
    for _ in range(3):
        for task in range(4):
            yard.reported(id, 0, task)
        yard.wait(LIMIT_MS)
    evicted = [action for action in schedule(yard.snapshot()).actions if action.job == id]
    assert {action.reason.beneficiary for action in evicted} == {waiting}
