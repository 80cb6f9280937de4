"""Stale gangs: what is left of a gang that lost a part is stopped after its grace, and not before."""

from __future__ import annotations

import pytest

from gpuyard.model.jobs import DeviceShare, Job, Request, Task, TaskGroup, TaskState
from gpuyard.model.nodes import Device, Node
from gpuyard.model.plan import Bind, Evict
from gpuyard.model.queues import Queue
from gpuyard.model.reasons import Token
from gpuyard.model.snapshot import JobSeen, Snapshot
from gpuyard.scheduler.cycle import plan, schedule
from gpuyard.scheduler.ledger import Ledger

NOW_MS = 1_000_000
ONE = Request(devices=1)


def a_gang(lost: TaskState, stale_for_ms: int | None, grace_ms: int | None = None) -> Job:
    """Two tasks that belong together; one runs, the other is lost in some way."""
    up = Task("g-0", ONE, state=TaskState.RUNNING, node="n1", shares=(DeviceShare(0, 1000, 100),))
    since_ms = None if stale_for_ms is None else NOW_MS - stale_for_ms
    group = TaskGroup(min_tasks=2)
    return Job(
        "g", "q", (up, Task("g-1", ONE, state=lost)), group, stale_since_ms=since_ms, staleness_grace_ms=grace_ms
    )


def cluster(*jobs: Job, gpus: int = 1) -> Snapshot:
    return Snapshot((Node("n1", (Device("A", 100),) * gpus, 8_000, 1 << 30),), (Queue("q"),), jobs, now_ms=NOW_MS)


def evicted(snapshot: Snapshot) -> list[str]:
    return [action.task for action in schedule(snapshot).actions if isinstance(action, Evict)]


def test_a_gang_below_its_minimum_for_longer_than_the_grace_is_stopped_with_its_numbers() -> None:
    actions = schedule(cluster(a_gang(TaskState.FAILED, 61_000))).actions
    assert [(type(action), action.task, action.reason.token) for action in actions] == [(Evict, "g-0", Token.STALE)]
    assert (actions[0].reason.have, actions[0].reason.need) == (1, 2)


@pytest.mark.parametrize(
    ("stale_for_ms", "grace_ms", "expected"),
    [
        (59_000, None, []),
        (60_000, None, ["g-0"]),
        (61_000, 120_000, []),
        (0, 0, ["g-0"]),
        (None, None, []),
        (10**9, -1, []),
    ],
)
def test_the_grace_is_the_jobs_own_or_the_policys_and_may_be_for_ever(
    stale_for_ms: int | None, grace_ms: int | None, expected: list[str]
) -> None:
    assert evicted(cluster(a_gang(TaskState.FAILED, stale_for_ms, grace_ms))) == expected


def test_a_gang_of_which_a_task_has_succeeded_is_ending_not_stale() -> None:
    assert evicted(cluster(a_gang(TaskState.SUCCEEDED, 61_000))) == []


def test_a_gang_that_this_cycle_completes_is_left_alone() -> None:
    actions = schedule(cluster(a_gang(TaskState.PENDING, 61_000), gpus=2)).actions
    assert [type(action) for action in actions] == [Bind]


def test_a_ledger_that_follows_notices_that_a_gang_lost_a_part_and_that_it_is_whole_again() -> None:
    ledger = Ledger.of(cluster())
    ledger.apply((JobSeen(a_gang(TaskState.FAILED, 61_000)),))
    assert [type(action) for action in plan(ledger).actions] == [Evict]
    whole = Job("g", "q", a_gang(TaskState.FAILED, None).tasks[:1])
    ledger.apply((JobSeen(whole),))
    assert plan(ledger).actions == ()
