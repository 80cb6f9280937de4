"""Workers that lie close to each other by index."""

from __future__ import annotations

import pytest

from gpuyard.model.jobs import TopologyRule
from gpuyard.scheduler.gang import leaves
from gpuyard.worlds.kubernetes.grouping import Grouping, widest
from tests.worlds.kubernetes.manifests import a_pod, an_owner, grouped, topologies_in

RACKS = "{kind: Topology, metadata: {name: racks}, spec: {levels: [{nodeLabel: example.com/rack, alias: rack}]}}"
IN_A_RACK = TopologyRule("racks", "example.com/rack")

PYTORCH = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: big, annotations: {kai.scheduler/topology: racks}}
spec:
  pytorchReplicaSpecs:
    Master: {replicas: 1}
    Worker:
      replicas: 5
      template:
        metadata:
          annotations:
            kai.scheduler/segment-size: "2"
            kai.scheduler/segment-topology-required-placement: rack
"""

LWS = """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: llama, annotations: {kai.scheduler/topology: racks}}
spec:
  startupPolicy: %s
  leaderWorkerTemplate:
    size: %d
    subGroupPolicy: {subGroupSize: 2, subGroupPolicyType: %s}
    workerTemplate:
      metadata: {annotations: {kai.scheduler/segment-topology-required-placement: rack}}
"""


def sizes(grouping: Grouping) -> list[tuple[str, int]]:
    return [(leaf.name, leaf.min_tasks) for leaf in leaves(grouping.group)]


def test_the_workers_of_a_pytorch_job_are_divided_by_index() -> None:
    owner = an_owner(PYTORCH)

    def pod(kind: str, at: int) -> Grouping:
        labels = {"training.kubeflow.org/replica-type": kind, "training.kubeflow.org/replica-index": str(at)}
        return grouped(a_pod(f"big-{kind}-{at}", owner, labels=labels), owner, topologies=topologies_in(RACKS))

    assert sizes(pod("master", 0)) == [("master", 1), ("segment-0", 2), ("segment-1", 2), ("segment-2", 1)]
    assert [pod("worker", at).leaf for at in range(5)] == [f"segment-{at}" for at in (0, 0, 1, 1, 2)]
    assert pod("master", 0).leaf == "master"
    assert {leaf.topology for leaf in leaves(pod("worker", 0).group)} == {None, IN_A_RACK}
    assert pod("worker", 0).group is pod("master", 0).group


def test_without_a_place_of_their_own_there_are_no_segments() -> None:
    owner = an_owner(PYTORCH.replace("segment-topology-required-placement", "something-else"))
    assert sizes(grouped(a_pod("big-worker-0", owner), owner)) == [("", 6)]


def lws(size: int, policy: str, startup: str = "LeaderCreated") -> list[Grouping]:
    owner = an_owner(LWS % (startup, size, policy))
    prefix = "leaderworkerset.sigs.k8s.io"
    return [
        grouped(
            a_pod(f"llama-0-{at}", owner, labels={f"{prefix}/group-index": "0", f"{prefix}/worker-index": str(at)}),
            owner,
            topologies=topologies_in(RACKS),
        )
        for at in range(size)
    ]


@pytest.mark.parametrize(
    ("size", "policy", "expected", "places"),
    [
        (4, "LeaderWorker", [("segment-0", 2), ("segment-1", 2)], [0, 0, 1, 1]),
        (5, "LeaderWorker", [("segment-0", 3), ("segment-1", 2)], [0, 0, 0, 1, 1]),
        (5, "LeaderExcluded", [("leader", 1), ("segment-0", 2), ("segment-1", 2)], [None, 0, 0, 1, 1]),
    ],
)
def test_a_leader_stands_in_the_first_segment_or_outside_of_all(
    size: int, policy: str, expected: list[tuple[str, int]], places: list[int | None]
) -> None:
    pods = lws(size, policy)
    assert sizes(pods[0]) == expected
    assert [pod.leaf for pod in pods] == ["leader" if at is None else f"segment-{at}" for at in places]


@pytest.mark.parametrize("policy", ["LeaderWorker", "LeaderExcluded"])
def test_a_leader_that_must_be_ready_first_starts_alone_in_the_place_of_its_segment(policy: str) -> None:
    leader, *workers = lws(5, policy, "LeaderReady")
    assert leader.group.fewest_tasks == 1
    assert [leaf.name for leaf in leaves(leader.group)] == [leader.leaf]
    assert widest(pod.group for pod in (leader, *workers)).fewest_tasks == 5
