"""Clusters in which making jobs give way once went wrong, as small as they can be."""

from __future__ import annotations

from msgspec.structs import replace

from gpuyard.model.jobs import TaskState
from gpuyard.model.plan import Evict, Move, Plan, Promise
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


def test_a_job_that_waits_to_grow_can_be_moved() -> None:
    """What it has not yet got does not stand in the way of what it gets back."""
    nodes = a_cluster().having(a_node("m").gpus(2), a_node("n").gpus(2)).queue("full", limit=1)
    grows = a_job("g").team("full").tasks(2, gang=1).on("", state=TaskState.PENDING).on("n", 0)
    stays = a_job("s").non_preemptible().on("m", 0)
    plan = schedule(nodes.jobs(grows, stays, a_job("w").gpus(2)).snapshot())
    placed = [(action.task, action.node) for action in plan.actions if isinstance(action, Move | Promise)]
    assert placed == [("g-1", "m"), ("w-0", "n")]


def test_a_gang_that_moves_leaves_the_task_alone_that_can_stay() -> None:
    pair = a_job("p").fraction("0.25").tasks(2).on("n", 0).on("n", 1)
    plan = schedule(a_cluster().having(a_node("n").gpus(2)).jobs(pair, a_job("w")).snapshot())
    assert [(type(action), action.task) for action in plan.actions] == [(Move, "p-0"), (Promise, "w-0")]


def test_what_is_above_a_minimum_may_stay_while_the_rest_moves() -> None:
    """Its first block finds its old place again; its last one still has to move."""
    nodes = a_cluster().having(a_node("m").gpus(2), a_node("n").gpus(1))
    elastic = a_job("e").fraction("0.5").tasks(2, gang=1).on("m", 0).on("n", 0)
    plan = schedule(nodes.jobs(elastic, a_job("w").gpus(2)).snapshot())
    assert [(type(action), action.task) for action in plan.actions] == [(Move, "e-0"), (Promise, "w-0")]


def test_who_moves_may_need_room_made_too() -> None:
    """The large job can only move where the small one lies, which has another place."""
    nodes = a_cluster().having(a_node("one").gpus(1), a_node("three").gpus(3), a_node("two").gpus(2))
    small, large = a_job("small").fraction("0.5").on("two", 0), a_job("large").gpus(2).on("three", 0, 1)
    plan = schedule(nodes.jobs(small, large, a_job("w").gpus(3)).snapshot())
    moves = [(action.task, action.node) for action in plan.actions if isinstance(action, Move)]
    assert moves == [("small-0", "one"), ("large-0", "two")]


def test_where_the_cheapest_set_is_unfair_to_a_sibling_another_is_found() -> None:
    """Department `right` would come below its share; team `b` of the own department borrows, too."""
    tree = a_cluster().having(a_node("n").gpus(4)).queue("left", quota=2).queue("right", quota=0)
    tree = tree.queue("a", "left", quota=2).queue("b", "left", quota=0).queue("c", "right", quota=0)
    runs = [a_job(f"b{at}").team("b").on("n", at) for at in (0, 1)] + [
        a_job(f"c{at}").team("c").on("n", at) for at in (2, 3)
    ]
    plan = schedule(tree.jobs(*runs, a_job("w").team("a").gpus(2)).snapshot())
    assert promised(plan) == ["w-0"]


def stale_gang_in_the_way() -> Snapshot:
    """A gang that has lost one of its two tasks, and a job that is owed the GPU of the other."""
    gang = a_job("g").team("lent").tasks(2).on("n", 0).on("n", state=TaskState.FAILED)
    return owing(1).jobs(gang, a_job("w").team("owed")).snapshot()


def test_tasks_of_different_jobs_may_have_the_same_id() -> None:
    """As pods of two namespaces have: each is told as what it is, and whoever finds another place moves there."""
    cluster = owing(2).having(a_node("other").gpus(1))
    runs = [a_job(id).team("lent").on("n", device) for device, id in enumerate(("a", "b"))]
    snapshot = cluster.jobs(*runs, a_job("w").team("owed").gpus(2)).snapshot()
    jobs = [replace(job, tasks=tuple(replace(task, id="web-0") for task in job.tasks)) for job in snapshot.jobs[:2]]
    plan = schedule(replace(snapshot, jobs=(*jobs, snapshot.jobs[2])))
    stopped = {(action.job, type(action)) for action in plan.actions if isinstance(action, Evict | Move)}
    assert stopped == {("a", Evict), ("b", Move)} or stopped == {("a", Move), ("b", Evict)}
    assert promised(plan) == ["w-0"]
