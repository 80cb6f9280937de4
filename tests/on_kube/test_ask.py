"""A cluster read once: with the eyes of its scheduler, by the rights of whoever asks."""

from __future__ import annotations

import pytest

from gpuyard.errors import KubeError, KubeRefusedError
from gpuyard.kube.ask import Target, refuse_half
from gpuyard.kube.published import ANNOTATION, published_text
from gpuyard.kube.rights import Right, right_of
from gpuyard.model.jobs import TaskState
from gpuyard.policies.policy import DEFAULT, NodePlacement, Policy
from gpuyard.worlds.kubernetes.settings import Settings
from tests.kubeapi.scripted import Asked
from tests.on_kube.shelves import (
    COLLECTIONS,
    LEASES,
    MAPS,
    PODS,
    QUEUES,
    Shelf,
    a_job,
    a_lease,
    a_node,
    a_pod,
    a_team,
    read,
)


def test_what_is_read_is_what_the_scheduler_would_see() -> None:
    cluster = read(*a_team(), a_node(), a_pod("runs", 2, node="node-1"), a_pod("waits", 3))
    jobs = {job.id: job for job in cluster.snapshot.jobs}
    assert set(jobs) == {"default/pod/runs", "default/pod/waits"}
    assert jobs["default/pod/waits"].tasks[0].state is TaskState.PENDING
    assert [queue.name for queue in cluster.snapshot.queues] == ["all", "team"]
    assert len(cluster.snapshot.nodes[0].devices) == 8


def test_nothing_is_written() -> None:
    shelf = Shelf(*a_team(), a_node(), a_pod("waits"))
    read(shelf=shelf)
    assert {asked.method for asked in shelf.asked} == {"GET"}
    assert not any(asked.is_watch for asked in shelf.asked)


def test_owners_are_read_when_a_pod_names_one_and_only_then() -> None:
    gang = a_job("train", 2, **{"batch.kubernetes.io/x": ""})
    alone, owned = Shelf(*a_team(), a_pod("p")), Shelf(*a_team(), gang, a_pod("train-0", owner=gang))
    assert COLLECTIONS["Job"] not in {asked.path for asked in _asked(alone)}
    assert COLLECTIONS["Job"] in {asked.path for asked in _asked(owned)}
    assert "default/job/train" in read(shelf=owned).picture.groups


def test_an_owner_that_is_gone_is_not_waited_for() -> None:
    gone = a_job("gone", 4)
    cluster = read(*a_team(), a_pod("gone-0", owner=gone))
    record = cluster.picture.pods["default/gone-0"]
    assert record.grouping is not None
    assert record.job == "default/job/gone"


def test_the_settings_of_the_scheduler_come_from_its_lease() -> None:
    told = published_text(Settings(("gpuyard", "kai-scheduler")), Policy(node_placement=NodePlacement.SPREAD))
    lease = a_lease(annotations={ANNOTATION: told})
    cluster = read(*a_team(), lease, a_pod("theirs", scheduler="kai-scheduler"))
    assert "default/pod/theirs" in cluster.ledger.jobs
    assert cluster.policy.node_placement is NodePlacement.SPREAD
    assert cluster.notes() == ()


@pytest.mark.parametrize("told", [None, {}, {ANNOTATION: "{"}, {ANNOTATION: '{"policy": {"steps": 7}}'}])
def test_where_the_lease_tells_nothing_the_defaults_are_assumed_and_that_is_said(told: dict[str, str] | None) -> None:
    cluster = read(*a_team(), a_lease(annotations=told), a_pod("theirs", scheduler="kai-scheduler"))
    assert cluster.policy == DEFAULT
    assert "default/pod/theirs" not in cluster.ledger.jobs
    (note,) = cluster.notes()
    assert "the defaults are assumed" in note


def test_a_place_that_was_promised_is_seen() -> None:
    promised = a_pod("next", 8)
    promised["status"]["nominatedNodeName"] = "node-1"
    cluster = read(*a_team(), a_node(), promised)
    assert cluster.ledger.jobs["default/pod/next"].tasks[0].state is TaskState.PROMISED


# ----------------------------------------------------------------------------------------------------- what is missing


def test_every_right_that_is_missing_is_named_at_once_with_the_way_to_grant_it() -> None:
    cluster = read(shelf=Shelf(*a_team(), denied=(PODS, QUEUES)))
    with pytest.raises(KubeRefusedError) as caught:
        refuse_half(cluster)
    assert caught.value.what == "you may not list pods or list queues.scheduling.run.ai"
    assert caught.value.status == 403
    assert "kubectl create clusterrole gpuyard-reader --verb=list --resource=pods,queues.scheduling.run.ai" in str(
        caught.value
    )


def test_a_right_on_owners_is_named_like_any_other() -> None:
    gang = a_job("train", 2)
    cluster = read(shelf=Shelf(*a_team(), gang, a_pod("train-0", owner=gang), denied=(COLLECTIONS["Job"],)))
    with pytest.raises(KubeRefusedError, match=r"you may not list jobs.batch"):
        refuse_half(cluster)


def test_what_is_ours_may_stay_hidden_and_the_answer_says_so() -> None:
    cluster = read(shelf=Shelf(*a_team(), a_node(), a_pod("p"), denied=(MAPS, LEASES)))
    refuse_half(cluster)
    said = "\n".join(cluster.notes())
    assert "you may not read its lease gpuyard-system/gpuyard-scheduler" in said
    assert "you may not list configmaps in namespace gpuyard-system" in said
    assert "get configmaps/gpuyard-places in namespace gpuyard-system" in said


def test_kinds_that_nobody_has_installed_are_told_with_the_command_that_does() -> None:
    cluster = read(shelf=Shelf(absent=(QUEUES, COLLECTIONS["PodGroup"], COLLECTIONS["Topology"])))
    with pytest.raises(KubeError, match="this cluster has no kind Queue and PodGroup") as caught:
        refuse_half(cluster)
    assert caught.value.fix.endswith("gpuyard kube install")


def test_a_cluster_without_topologies_is_a_whole_one() -> None:
    refuse_half(read(shelf=Shelf(*a_team(), absent=(COLLECTIONS["Topology"],))))


def test_another_namespace_of_the_scheduler_is_read_where_it_is_named() -> None:
    shelf = Shelf(*a_team())
    read(shelf=shelf, target=Target(system_namespace="elsewhere"))
    paths = {asked.path for asked in shelf.asked}
    assert "/apis/coordination.k8s.io/v1/namespaces/elsewhere/leases/gpuyard-scheduler" in paths
    assert MAPS not in paths


@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("/api/v1/pods", Right("list", "pods")),
        ("/api/v1/namespaces", Right("list", "namespaces")),
        ("/api/v1/namespaces/sys/configmaps", Right("list", "configmaps", "", "sys")),
        ("/apis/batch/v1/jobs", Right("list", "jobs", "batch")),
        ("/apis/a.b/v1/namespaces/n/things", Right("list", "things", "a.b", "n")),
    ],
)
def test_a_path_tells_the_right_it_takes(path: str, right: Right) -> None:
    assert right_of(path) == right


def _asked(shelf: Shelf) -> list[Asked]:
    read(shelf=shelf)
    return list(shelf.asked)
