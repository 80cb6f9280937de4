"""The life of a plan: confirmed, failed, overdue, built upon; and what becomes of jobs in the middle of one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from gpuyard.vdk import Budget, GpuResourceManager, Machine
from gpuyard.vdk.errors import (
    JobEndedError,
    JobKnownError,
    JobUnknownError,
    MachineBusyError,
    MachineUnknownError,
    PlanUnknownError,
    StepNotReadyError,
    StepOverError,
    StepUnknownError,
    TeamBusyError,
    TeamUnknownError,
)
from gpuyard.vdk.model import PlanState, StepState
from tests.vdk.pools import MINUTE_MS, Clock, a_pool, ask, confirm, job, lying, start, states, told


def reclaiming(clock: Clock | None = None) -> GpuResourceManager:
    """Plan 3 deletes x for new."""
    pool = a_pool(2, clock=clock, a=0, b=2)
    start(pool, "a/x", 1)
    start(pool, "a/y", 1)
    ask(pool, "b/new", 1)
    return pool


# ---------------------------------------------------------------------------------------------- confirmed, step by step


def test_steps_are_confirmed_in_their_order() -> None:
    pool = reclaiming()
    assert states(pool, "3") == [StepState.READY, StepState.WAITING]
    with pytest.raises(StepNotReadyError, match=r"waits for step 1 of plan 3 \(delete"):
        pool.confirm("3", 2)
    assert pool.confirm("3", 1).state is PlanState.OPEN
    assert lying(pool) == {"a/y": "m1:1", "b/new": "stopped"}
    assert pool.confirm("3", 2).state is PlanState.DONE
    assert lying(pool) == {"a/y": "m1:1", "b/new": "m1:0"}


def test_what_is_said_of_steps_that_are_over_or_never_were() -> None:
    pool = reclaiming()
    pool.confirm("3", 1)
    for settle in (pool.confirm, pool.fail):
        with pytest.raises(StepOverError, match="confirmed already"):
            settle("3", 1)
        with pytest.raises(StepUnknownError, match="count from 1 to 2"):
            settle("3", 0)
        with pytest.raises(StepUnknownError):
            settle("3", 3)
        with pytest.raises(PlanUnknownError):
            settle("4", 1)
    assert [plan.id for plan in pool.plans()] == ["3"]
    assert [plan.id for plan in pool.plans(open_only=False)] == ["1", "2", "3"]


def test_a_plan_may_build_on_another_and_then_waits_for_it() -> None:
    pool = a_pool(2, a=0, b=2)
    start(pool, "a/wide", 2)
    ask(pool, "b/first", 1)
    assert told(ask(pool, "b/second", 1)) == ["create b/second m1:1"]
    with pytest.raises(StepNotReadyError, match="delete job"):
        pool.confirm("3", 1)
    pool.confirm("2", 1)
    pool.confirm("3", 1)
    pool.confirm("2", 2)
    assert lying(pool) == {"b/first": "m1:0", "b/second": "m1:1"}


def swapping() -> GpuResourceManager:
    """Plan 5 makes room for 0.4 by letting p and q, which are both in the way of the other, change places."""
    pool = a_pool(1, 1, a=1, b=1, c=1)
    start(pool, "c/fixed", 0.3, priority=True)
    start(pool, "a/p", 0.5)
    start(pool, "c/solid", 0.4, priority=True)
    start(pool, "a/q", 0.3)
    assert told(ask(pool, "b/new", 0.4)) == [
        "move a/p m1:0 > stopped",
        "move a/q m2:0 > m1:0",
        "move a/p stopped > m2:0",
        "create b/new m1:0",
    ]
    return pool


def test_of_jobs_that_swap_places_one_is_stopped_first() -> None:
    pool = swapping()
    for number in range(1, 5):
        assert states(pool, "5")[number - 1] is StepState.READY
        pool.confirm("5", number)
    assert lying(pool) == {"a/p": "m2:0", "a/q": "m1:0", "b/new": "m1:0", "c/fixed": "m1:0", "c/solid": "m2:0"}


@pytest.mark.parametrize(("done", "rescue"), [(1, "m1:0"), (2, "m2:0")])
def test_a_job_that_was_stopped_for_a_plan_that_failed_is_started_again(done: int, rescue: str) -> None:
    pool = swapping()
    for number in range(1, done + 1):
        pool.confirm("5", number)
    pool.fail("5", done + 1)
    (plan,) = pool.plans()
    assert told(plan.actions) == [f"move a/p stopped > {rescue}"]
    pool.confirm(plan.id, 1)
    assert lying(pool)["a/p"] == rescue


def test_a_job_that_was_stopped_is_offered_its_start_until_somebody_does_it() -> None:
    clock = Clock()
    pool = swapping()
    pool._clock = clock
    pool.confirm("5", 1)
    for number in range(1, 4):
        clock.now_ms = number * MINUTE_MS
        pool.expire()
        (plan,) = pool.plans()
        assert (plan.id, told(plan.actions)) == (str(5 + number), ["move a/p stopped > m1:0"])


# ------------------------------------------------------------------------------------------------------ failed, overdue


def test_a_step_that_fails_takes_back_what_is_not_done() -> None:
    pool = reclaiming()
    pool.confirm("3", 1)
    plan = pool.fail("3", 2, "no such image")
    assert plan.state is PlanState.ROLLED_BACK
    assert states(pool, "3") == [StepState.CONFIRMED, StepState.FAILED]
    assert plan.steps[1].note == "step 2 failed: no such image"
    assert lying(pool) == {"a/y": "m1:1"}
    assert told(ask(pool, "b/new", 1)) == ["create b/new m1:0"]


def test_what_was_built_on_a_plan_goes_with_it_and_what_was_not_stays() -> None:
    pool = a_pool(2, 1, a=0, b=3)
    start(pool, "a/wide", 2)
    ask(pool, "b/other", 1)
    ask(pool, "b/first", 1)
    ask(pool, "b/second", 1)
    assert pool.fail("3", 1).state is PlanState.ROLLED_BACK
    assert [plan.id for plan in pool.plans()] == ["2"]
    assert pool.plan("4").steps[0].note == "it was built on plan 3, which was rolled back"
    assert lying(pool) == {"a/wide": "m1:0,1", "b/other": "stopped"}


def test_nobody_is_deleted_for_being_over_the_budget_by_a_job_that_never_came() -> None:
    pool = a_pool(2, a=1, b=1)
    start(pool, "a/x", 1)
    ask(pool, "a/y", 1)
    assert told(ask(pool, "b/new", 1)) == ["delete a/x", "create b/new m1:0"]
    pool.fail("2", 1)
    assert pool.plan("3").state is PlanState.ROLLED_BACK
    assert told(ask(pool, "b/new", 1)) == ["create b/new m1:1"]


def test_what_nobody_confirms_in_time_is_rolled_back_and_every_confirmation_gives_more_time() -> None:
    clock = Clock()
    pool = reclaiming(clock)
    clock.now_ms = MINUTE_MS - 1
    assert pool.expire() == []
    pool.confirm("3", 1)
    clock.now_ms = 2 * MINUTE_MS - 2
    assert pool.expire() == []
    clock.now_ms = 2 * MINUTE_MS - 1
    (plan,) = pool.expire()
    assert (plan.id, plan.steps[1].note) == ("3", "nobody confirmed it in time")
    assert lying(pool) == {"a/y": "m1:1"}
    with pytest.raises(StepOverError, match="rolled-back already: nobody confirmed it in time"):
        pool.confirm("3", 2)


def test_every_call_looks_for_what_is_overdue_first() -> None:
    clock = Clock()
    pool = a_pool(1, clock=clock, a=1)
    ask(pool, "a/x", 1)
    clock.now_ms = MINUTE_MS
    assert told(ask(pool, "a/y", 1)) == ["create a/y m1:0"]
    assert pool.plan("1").state is PlanState.ROLLED_BACK


def test_a_plan_that_can_only_wait_for_another_has_time_as_long_as_it_waits() -> None:
    clock = Clock()
    pool = a_pool(2, clock=clock, a=0, b=2)
    start(pool, "a/wide", 2)
    ask(pool, "b/first", 1)
    clock.now_ms = MINUTE_MS // 2
    ask(pool, "b/second", 1)
    pool.confirm("2", 1)
    clock.now_ms = MINUTE_MS
    pool.confirm("2", 2)
    assert [plan.id for plan in pool.plans()] == ["3"]
    clock.now_ms = MINUTE_MS * 3 // 2
    assert [plan.id for plan in pool.expire()] == ["3"]


def test_plans_need_not_expire() -> None:
    clock = Clock()
    pool = GpuResourceManager(clock=clock, expiry_ms=None)
    pool.set_machine(Machine("m", 1))
    pool.set_budget(Budget("a", 1000))
    ask(pool, "a/x", 1)
    clock.now_ms = 2**50
    assert pool.expire() == []
    assert pool.confirm("1", 1).state is PlanState.DONE


# --------------------------------------------------------------------------------------------- jobs in the middle of it


def test_a_job_that_ends_before_it_is_deleted_leaves_nothing_to_do() -> None:
    pool = reclaiming()
    pool.job_ended(job("a/x"))
    assert states(pool, "3") == [StepState.VOID, StepState.READY]
    assert pool.confirm("3", 1).state is PlanState.OPEN
    assert pool.confirm("3", 2).state is PlanState.DONE


def test_a_job_that_ends_before_it_is_created_has_its_place_no_more() -> None:
    pool = reclaiming()
    pool.job_ended(job("b/new"))
    assert states(pool, "3") == [StepState.READY, StepState.VOID]
    assert told(ask(pool, "b/next", 1)) == ["create b/next m1:0"]


def test_a_job_that_is_given_priority_is_deleted_no_more() -> None:
    pool = reclaiming()
    pool.mark_job_priority(job("a/x"), True)
    assert pool.plan("3").steps[0].note == 'job "x" of team "a" was given priority'
    assert lying(pool) == {"a/x": "m1:0", "a/y": "m1:1"}
    assert told(ask(pool, "b/new", 1)) == ["delete a/y", "create b/new m1:1"]


def test_a_move_that_was_answered_stands_when_its_job_is_given_priority() -> None:
    pool = a_pool(2, 2, a=4, b=2)
    for name in ("a/x", "a/y", "a/z"):
        start(pool, name, 1)
    pool.job_ended(job("a/y"))
    assert told(ask(pool, "b/wide", 2)) == ["move a/x m1:0 > m2:1", "create b/wide m1:0,1"]
    pool.mark_job_priority(job("a/x"), True)
    confirm(pool, pool.plan("4").actions)
    assert lying(pool) == {"a/x": "m2:1", "a/z": "m2:0", "b/wide": "m1:0,1"}


def test_a_deleted_job_may_come_again_under_its_name() -> None:
    pool = reclaiming()
    pool.set_machine(Machine("m2", 1))
    assert told(ask(pool, "a/x", 1)) == ["create a/x m2:0"]
    with pytest.raises(StepNotReadyError, match=r"step 1 of plan 3 \(delete"):
        pool.confirm("4", 1)
    confirm(pool, pool.plan("3").actions)
    pool.confirm("4", 1)
    assert lying(pool)["a/x"] == "m2:0"


# ---------------------------------------------------------------------------------------------- known, unknown and over


def test_a_job_is_provisioned_once_until_it_ends() -> None:
    pool = a_pool(4, a=4)
    ask(pool, "a/x", 1)
    with pytest.raises(JobKnownError, match="being started by plan 1"):
        ask(pool, "a/x", 2)
    pool.confirm("1", 1)
    with pytest.raises(JobKnownError, match="has a place already"):
        ask(pool, "a/x", 1)
    pool.job_ended(job("a/x"))
    assert told(ask(pool, "a/x", 1)) == ["create a/x m1:0"]


def test_a_job_ends_once() -> None:
    pool = a_pool(1, a=1)
    start(pool, "a/x", 1)
    pool.job_ended(job("a/x"))
    for call in (pool.job_ended, lambda id: pool.mark_job_priority(id, True)):
        with pytest.raises(JobEndedError):
            call(job("a/x"))
        with pytest.raises(JobUnknownError):
            call(job("a/never"))
        with pytest.raises(TeamUnknownError):
            call(job("nobody/x"))
    with pytest.raises(TeamUnknownError, match="give it a budget first"):
        ask(pool, "nobody/x", 1)


def test_a_job_that_was_deleted_has_ended() -> None:
    pool = reclaiming()
    pool.confirm("3", 1)
    with pytest.raises(JobEndedError):
        pool.job_ended(job("a/x"))


# --------------------------------------------------------------------------------------------------- machines and teams


def test_machines_come_and_grow_and_go_only_without_jobs() -> None:
    pool = a_pool(2, a=2)
    start(pool, "a/x", 1)
    pool.set_machine(Machine("m1", 1))
    with pytest.raises(MachineBusyError, match="would go"):
        pool.set_machine(Machine("m1", 1, "t4"))
    pool.set_machine(Machine("m1", 3))
    ask(pool, "a/y", 2)
    with pytest.raises(MachineBusyError, match='job "y" of team "a"'):
        pool.set_machine(Machine("m1", 2))
    with pytest.raises(MachineBusyError):
        pool.remove_machine("m1")
    with pytest.raises(MachineUnknownError):
        pool.remove_machine("m2")
    pool.job_ended(job("a/y"))
    pool.job_ended(job("a/x"))
    pool.remove_machine("m1")
    assert pool.machines() == []


def test_calls_from_many_threads_do_not_get_in_each_others_way() -> None:
    pool = a_pool(4, 4, a=8)

    def work(thread: int) -> None:
        for number in range(10):
            name = f"a/{thread}-{number}"
            start(pool, name, 1)
            pool.job_ended(job(name))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert (pool.jobs(), pool.plans()) == ([], [])
    assert len(pool.plans(open_only=False)) == 80


def test_a_team_goes_only_without_jobs() -> None:
    pool = a_pool(1, a=1)
    ask(pool, "a/x", 1)
    with pytest.raises(TeamBusyError, match="x"):
        pool.remove_team("a")
    pool.job_ended(job("a/x"))
    pool.remove_team("a")
    assert pool.budgets() == []
    with pytest.raises(TeamUnknownError):
        pool.remove_team("a")


def test_lowering_a_budget_stops_nobody_by_itself() -> None:
    pool = a_pool(1, a=1, b=1)
    start(pool, "a/x", 1)
    pool.set_budget(Budget("a", 500))
    assert lying(pool) == {"a/x": "m1:0"}
    assert told(ask(pool, "b/y", 0.5)) == ["delete a/x", "create b/y m1:0"]
