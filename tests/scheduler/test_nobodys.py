"""Jobs that are nobody's: in the way of everyone, not shared out, and left alone."""

from __future__ import annotations

from msgspec.structs import replace

from gpuyard.model.jobs import TaskState
from gpuyard.model.quantities import CPU, GPU
from gpuyard.model.reasons import Reason, Token
from gpuyard.model.snapshot import JobGone, JobSeen, Snapshot
from gpuyard.scheduler.cycle import schedule
from gpuyard.scheduler.explain import explain
from gpuyard.scheduler.ledger import Ledger
from tests.builders import ClusterBuilder, a_cluster, a_job, a_node


def total(snapshot: Snapshot, resource: str = GPU) -> int:
    ledger = Ledger.of(snapshot)
    return ledger.total()[ledger.queues.resources.at[resource]]


def two_nodes() -> ClusterBuilder:
    return a_cluster().nodes(2, gpus=4)


def test_what_it_holds_is_taken_off_what_is_shared_out() -> None:
    cluster = two_nodes().jobs(a_job("foreign").nobodys().gpus(3).cpu(2).on("node-1", 0, 1, 2))
    assert total(cluster.snapshot()) == 5_000
    assert total(cluster.snapshot(), CPU) == total(two_nodes().snapshot(), CPU) - 2_000


def test_it_is_charged_to_no_queue() -> None:
    cluster = two_nodes().queue("team", quota=8).jobs(a_job("foreign").nobodys().gpus(4).on("node-1", 0, 1, 2, 3))
    assert [amounts[0] for amounts in Ledger.of(cluster.snapshot()).queues.held] == [0]


def test_what_it_holds_on_a_closed_node_was_never_there_to_be_shared_out() -> None:
    closed = a_cluster().having(a_node("shut").gpus(4).cordoned(), a_node("open").gpus(4))
    assert total(closed.jobs(a_job("foreign").nobodys().on("shut", 0)).snapshot()) == 4_000


def test_what_it_holds_of_a_broken_gpu_is_not_taken_off_twice() -> None:
    broken = a_cluster().having(a_node("n").gpus(4).unhealthy(0))
    assert total(broken.jobs(a_job("foreign").nobodys().gpus(2).on("n", 0, 1)).snapshot()) == 2_000


def test_more_than_there_is_leaves_nothing_to_share_out() -> None:
    """A world may report what cannot be: three GPUs held, without saying which, on a node that has two."""
    foreign = a_job("foreign").nobodys().gpus(3).job()
    running = replace(foreign, tasks=(replace(foreign.tasks[0], state=TaskState.RUNNING, node="n"),))
    assert total(replace(a_cluster().having(a_node("n").gpus(2)).snapshot(), jobs=(running,))) == 0


def test_a_ledger_follows_one_that_comes_and_goes() -> None:
    cluster = two_nodes().snapshot()
    foreign = a_job("foreign").nobodys().on("node-1", 0).job({node.name: node for node in cluster.nodes})
    ledger = Ledger.of(cluster)
    ledger.apply([JobSeen(foreign)])
    assert ledger.facts() == Ledger.of(replace(cluster, jobs=(foreign,))).facts()
    ledger.apply([JobGone("foreign")])
    assert ledger.facts() == Ledger.of(cluster).facts()


def test_one_that_waits_is_ignored() -> None:
    cluster = two_nodes().jobs(a_job("foreign").nobodys()).snapshot()
    assert schedule(cluster).actions == ()
    assert schedule(cluster).waiting == ()


def test_a_part_of_one_is_not_stopped_as_stale() -> None:
    gang = a_job("foreign").nobodys().tasks(2).on("node-1", 0)
    stale = replace(gang, base=replace(gang.base, stale_since_ms=0))
    assert schedule(two_nodes().jobs(stale).at(10**9).snapshot()).actions == ()


def test_it_can_be_asked_about_like_any_other() -> None:
    running = a_job("foreign").nobodys().on("node-1", 0)
    cluster = two_nodes().jobs(running, a_job("idle").nobodys()).snapshot()
    assert explain(cluster, "foreign").blockers == ()
    assert explain(cluster, "idle").blockers == (Reason(Token.QUEUE_MISSING, never=True),)
