"""What-if: the difference between the plan as things are and the plan as they would be, by the same code."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.model.difference import Difference
from gpuyard.model.jobs import Job, TaskState
from gpuyard.model.plan import Evict, Move
from gpuyard.model.reasons import Token
from gpuyard.model.snapshot import JobGone, JobSeen, NodeSeen, QueuesSet, Snapshot
from gpuyard.policies.policy import DEFAULT, Policy, Step
from gpuyard.scheduler.cycle import plan as plan_on
from gpuyard.scheduler.cycle import schedule
from gpuyard.scheduler.ledger import Ledger
from gpuyard.scheduler.what_if import difference, drained, removed, what_if, what_if_on
from tests.builders import a_cluster, a_job, a_node
from tests.scheduler.test_properties import thorough
from tests.strategies import clusters, histories

FREE_PLACES: Final = replace(DEFAULT, steps=(Step.ALLOCATE, Step.STALE_GANGS))
POLICIES: Final = (FREE_PLACES, DEFAULT)


def by_id(snapshot: Snapshot) -> dict[str, Job]:
    return {job.id: job for job in snapshot.jobs}


# ---------------------------------------------------------------------------------------------------- properties


@pytest.mark.parametrize("policy", POLICIES, ids=["free-places", "all-steps"])
@given(cluster=clusters())
def test_no_change_makes_no_difference(policy: Policy, cluster: Snapshot) -> None:
    found = what_if(cluster, (), policy)
    assert found.empty
    assert found.unaffected_running == sum(
        any(task.state in (TaskState.RUNNING, TaskState.PROMISED) for task in job.tasks) for job in cluster.jobs
    )


@pytest.mark.parametrize("policy", POLICIES, ids=["free-places", "all-steps"])
@thorough
@given(data=st.data())
def test_the_difference_is_that_of_two_full_schedules(policy: Policy, data: st.DataObject) -> None:
    before = data.draw(clusters())
    changes, after = data.draw(histories(before))
    expected = difference(by_id(before), schedule(before, policy), by_id(after), schedule(after, policy))
    assert what_if(before, changes, policy) == expected


@pytest.mark.parametrize("policy", POLICIES, ids=["free-places", "all-steps"])
@given(data=st.data())
def test_asking_leaves_the_ledger_as_it_was(policy: Policy, data: st.DataObject) -> None:
    before = data.draw(clusters())
    changes, _ = data.draw(histories(before))
    ledger = Ledger.of(before)
    facts, plan = ledger.facts(), plan_on(ledger, policy)
    what_if_on(ledger, changes, policy)
    assert ledger.facts() == facts
    assert plan_on(ledger, policy) == plan


@pytest.mark.parametrize("policy", POLICIES, ids=["free-places", "all-steps"])
@given(cluster=clusters())
def test_whatever_ran_on_a_drained_node_stops_or_moves(policy: Policy, cluster: Snapshot) -> None:
    node = cluster.nodes[0]
    found = what_if(cluster, drained(cluster.jobs, (node,), cluster.now_ms), policy)
    named = {entry.job for entry in found.stopped} | {entry.job for entry in found.moved}
    before = schedule(cluster, policy)
    evicted = {action.task for action in before.actions if isinstance(action, Evict | Move)}
    for job in cluster.jobs:
        here = [task for task in job.tasks if task.node == node.name and task.state is TaskState.RUNNING]
        # What is nobody's is not there to be placed anew.
        assert not job.queue or job.id in named or all(task.id in evicted for task in here)


# ------------------------------------------------------------------------------------------------------ examples


def test_a_raised_limit_starts_a_job() -> None:
    cluster = a_cluster().nodes(1).queue("q", limit=1).jobs(a_job("a").team("q"), a_job("b").team("q")).snapshot()
    wider = tuple(replace(queue, shares=()) for queue in cluster.queues)
    (started,) = what_if(cluster, (QueuesSet(wider),)).started
    assert (started.job, started.tasks, started.nodes, started.promised) == ("b", 1, ("node-1",), False)


def test_a_new_job_may_keep_another_from_starting() -> None:
    cluster = a_cluster().nodes(1, gpus=2).jobs(a_job("late").gpus(2).submitted(5)).snapshot()
    new = a_job("early").gpus(2).priority(90).job()
    found = what_if(cluster, (JobSeen(new),))
    assert [entry.job for entry in found.started] == ["early"]
    (waiting,) = found.waiting
    assert (waiting.job, waiting.reasons[0].token, waiting.more_tasks) == ("late", Token.NOT_ENOUGH, False)
    assert found.stopped == ()


def test_a_cancelled_job_stops_and_leaves_its_place() -> None:
    cluster = a_cluster().nodes(1, gpus=1).jobs(a_job("old").on("node-1", 0), a_job("next")).snapshot()
    found = what_if(cluster, (JobGone("old"),))
    assert [(entry.job, entry.reason) for entry in found.stopped] == [("old", None)]
    assert [entry.job for entry in found.started] == ["next"]


def test_a_job_that_would_have_given_way_is_told_to_stay() -> None:
    old, late = a_job("old").gpus(2).team("rich").on("node-1", 0, 1), a_job("late").gpus(2).team("poor")
    cluster = a_cluster().nodes(1, gpus=2).queue("rich", quota=0).queue("poor", quota=2).jobs(old, late).snapshot()
    found = what_if(cluster, (JobGone("late"),))
    (staying,) = found.staying
    assert (staying.job, staying.tasks, staying.nodes, staying.moves) == ("old", 1, ("node-1",), False)
    assert (found.started, found.stopped, found.moved, found.unaffected_running) == ((), (), (), 0)


def test_a_job_that_would_have_moved_is_told_to_stay() -> None:
    old, other = a_job("old").on("node-1", 0), a_job("other").on("node-2", 0)
    cluster = a_cluster().nodes(2, gpus=2).jobs(old, other, a_job("pair").gpus(2)).snapshot()
    found = what_if(cluster, (JobGone("pair"),))
    (staying,) = found.staying
    assert (staying.tasks, staying.moves, found.moved) == (1, True, ())


def test_another_gpu_of_the_same_node_is_not_elsewhere() -> None:
    cluster = a_cluster().nodes(1, gpus=2).jobs(a_job("old").on("node-1", 0), a_job("next")).snapshot()
    assert what_if(cluster, (JobGone("old"),)).moved == ()


def two_nodes(spare: int) -> Snapshot:
    nodes = a_node("n1").gpus(2), a_node("n2").gpus(spare)
    return a_cluster().having(*nodes).jobs(a_job("j").gpus(2).on("n1", 0, 1), a_job("k").on("n2", 0)).at(9).snapshot()


def drain(cluster: Snapshot, *names: str) -> Difference:
    nodes = [node for node in cluster.nodes if node.name in names]
    return what_if(cluster, drained(cluster.jobs, nodes, cluster.now_ms))


def test_what_runs_on_a_drained_node_moves_where_there_is_room() -> None:
    (moved,) = drain(two_nodes(spare=4), "n1").moved
    assert (moved.job, moved.sources, moved.nodes) == ("j", ("n1",), ("n2",))
    assert moved.reason is not None
    assert (moved.reason.token, moved.reason.subject) == (Token.DRAINED, "n1")


def test_what_finds_no_other_place_stops_and_waits() -> None:
    found = drain(two_nodes(spare=2), "n1")
    (stopped,) = found.stopped
    assert (stopped.job, stopped.tasks, stopped.nodes) == ("j", 1, ("n1",))
    assert stopped.reason is not None
    assert stopped.reason.token is Token.DRAINED
    assert [entry.job for entry in found.waiting] == ["j"]
    assert found.unaffected_running == 1


def test_a_node_that_is_taken_away_counts_as_drained() -> None:
    cluster = two_nodes(spare=4)
    found = what_if(cluster, removed(cluster.jobs, cluster.nodes[:1], cluster.now_ms))
    assert [(entry.job, entry.nodes) for entry in found.moved] == [("j", ("n2",))]


def test_a_promise_on_a_drained_node_is_no_eviction() -> None:
    promised = a_job("p").on("n1", 0, state=TaskState.PROMISED)
    cluster = a_cluster().having(a_node("n1").gpus(1), a_node("n2").gpus(1)).jobs(promised).snapshot()
    changes = drained(cluster.jobs, cluster.nodes[:1], 5)
    assert all(change.job.last_eviction is None for change in changes if isinstance(change, JobSeen))
    (moved,) = what_if(cluster, changes).moved
    assert (moved.nodes, moved.reason) == (("n2",), None)


def test_a_new_node_lets_work_start_elsewhere() -> None:
    cluster = a_cluster().nodes(1, gpus=1).jobs(a_job("a"), a_job("b").submitted(1)).snapshot()
    found = what_if(cluster, (NodeSeen(a_node("node-2").gpus(1).node()),))
    assert [(entry.job, entry.nodes) for entry in found.started] == [("b", ("node-2",))]


def test_a_job_that_only_starts_elsewhere_is_not_disturbed() -> None:
    cluster = a_cluster().nodes(1, gpus=2).jobs(a_job("a").gpus(2)).snapshot()
    found = what_if(cluster, (NodeSeen(a_node("node-0").gpus(2).node()),))
    (moved,) = found.moved
    assert (moved.sources, moved.nodes, moved.reason) == (("node-1",), ("node-0",), None)


def test_asking_does_not_forget_a_job_whose_end_is_known() -> None:
    ledger = Ledger.of(a_cluster().nodes(1).jobs(a_job("short").lasts(limit_ms=1000).on("node-1", 0)).snapshot())
    facts = ledger.facts()
    what_if_on(ledger, (JobGone("short"),))
    assert ledger.facts() == facts


def test_what_is_nobodys_is_not_sent_anywhere() -> None:
    """Pods of other schedulers on a node that is drained: they are not there to be placed anew."""
    cluster = a_cluster().nodes(2).jobs(a_job("theirs").gpus(1).on("node-1", 0)).snapshot()
    theirs = [replace(job, queue="") for job in cluster.jobs]
    (cordoned,) = drained(theirs, cluster.nodes[:1], now_ms=0)
    assert isinstance(cordoned, NodeSeen)
    assert drained(cluster.jobs, cluster.nodes[:1], now_ms=0)[1:] != ()
