"""Clusters in which making jobs give way once went wrong, as small as they can be."""

from __future__ import annotations

from msgspec.structs import replace

from gpuyard.model.jobs import TaskState
from gpuyard.model.plan import Evict, Plan, Promise
from gpuyard.model.reasons import Token
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import DEFAULT
from gpuyard.scheduler.cycle import schedule
from tests.builders import ClusterBuilder, a_cluster, a_job, a_node


def owing(gpus: int) -> ClusterBuilder:
    """One node; queue `owed` may take back from queue `lent`, which is owed nothing."""
    return a_cluster().having(a_node("n").gpus(gpus)).queue("owed", quota=gpus).queue("lent", quota=0)


def evicted(plan: Plan) -> list[str]:
    return [action.task for action in plan.actions if isinstance(action, Evict)]


def promised(plan: Plan) -> list[str]:
    return [action.task for action in plan.actions if isinstance(action, Promise)]


def test_a_job_may_come_where_the_one_it_must_be_apart_from_gives_way() -> None:
    runs = a_job("r").team("lent").labels(app="web").on("n", 0)
    plan = schedule(owing(1).jobs(runs, a_job("w").team("owed").apart("hostname", app="web")).snapshot())
    assert (evicted(plan), promised(plan)) == (["r-0"], ["w-0"])


def test_a_job_that_must_be_near_another_does_not_take_its_place() -> None:
    runs = a_job("r").team("lent").labels(app="web").on("n", 0)
    stays = a_job("s").team("owed").non_preemptible().on("n", 1)
    plan = schedule(owing(2).jobs(runs, stays, a_job("w").team("owed").near("hostname", app="web")).snapshot())
    assert plan.actions == ()


def test_a_job_that_gives_way_while_it_waits_to_grow_has_one_turn() -> None:
    grows = a_job("r").team("lent").tasks(4, gang=1).on("n", 0).on("n", 1).on("n", 2)
    plan = schedule(owing(3).jobs(grows, a_job("w").team("owed")).snapshot())
    assert (evicted(plan), promised(plan)) == (["r-2"], ["w-0"])


def test_a_stale_gang_that_has_just_given_way_is_not_stopped_twice() -> None:
    plan = schedule(stale_gang_in_the_way(), replace(DEFAULT, staleness_grace_ms=0))
    reasons = [(action.task, action.reason.token) for action in plan.actions if isinstance(action, Evict)]
    assert reasons == [("g-0", Token.RECLAIMED)]


def stale_gang_in_the_way() -> Snapshot:
    """A gang that has lost one of its two tasks, and a job that is owed the GPU of the other."""
    gang = a_job("g").team("lent").tasks(2).on("n", 0).on("n", state=TaskState.FAILED)
    return owing(1).jobs(gang, a_job("w").team("owed")).snapshot()
