"""LeaderWorkerSets of the real operator: each replica is a gang of its own."""

from __future__ import annotations

from time import sleep
from typing import Any

import pytest

from gpuyard.testbed.bed import Bed
from gpuyard.testbed.record import Extras
from tests.on_kube.faults.cluster import TEAM
from tests.on_kube.operators.yard import (
    A_WHILE_S,
    GPUS,
    HALF,
    Pod,
    Yard,
    gives_way,
    labelled,
    name_of,
    nodes_of,
    template,
)

pytestmark = pytest.mark.long

PREFIX = "leaderworkerset.sigs.k8s.io"
of_a_set = labelled(f"{PREFIX}/name")
first, second = labelled(f"{PREFIX}/group-index", "0"), labelled(f"{PREFIX}/group-index", "1")


@pytest.fixture(autouse=True)
def operator(testbed: Bed) -> None:
    testbed.add(Extras.of(operators=["lws"]), print)


def leader(pod: Pod) -> bool:
    return bool(pod["metadata"]["labels"].get(f"{PREFIX}/worker-index") == "0")


def worker(pod: Pod) -> bool:
    return of_a_set(pod) and not leader(pod)


def make(
    yard: Yard, name: str, replicas: int, size: int, gpus: int, annotations: dict[str, str] | None = None, **spec: Any
) -> str:
    pods = template(gpus, restartPolicy="Always", queue="")
    whole = {"replicas": replicas, "leaderWorkerTemplate": {"size": size, "workerTemplate": pods}, **spec}
    metadata = {"labels": {"kai.scheduler/queue": TEAM}, "annotations": annotations or {}}
    return yard.make("leaderworkersets", "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", name, whole, **metadata)


def place(pod: Pod) -> tuple[str, str]:
    """By what a pod that is made anew is known."""
    labels = pod["metadata"]["labels"]
    return labels[f"{PREFIX}/group-index"], labels[f"{PREFIX}/worker-index"]


def test_each_replica_starts_as_a_whole_and_gives_way_as_a_whole(yard: Yard) -> None:
    """Two replicas of two nodes each; three nodes are free at first."""
    yard.fill("one")
    make(yard, "serve", replicas=2, size=2, gpus=GPUS)
    yard.run(first, 2)
    yard.wait(second, 2)
    yard.end("one")
    before = yard.run(of_a_set, 4)
    assert yard.jobs() == {"pod/one", "leaderworkerset/serve-0", "leaderworkerset/serve-1"}
    yard.fill("high", priorityClassName="inference")
    (gone,) = yard.jobs("evict")
    yard.wait(labelled(f"{PREFIX}/group-index", gone.removeprefix("leaderworkerset/serve-")), 2)
    yard.end("high")
    assert sorted(map(place, yard.run(of_a_set, 4))) == sorted(map(place, before))


def test_a_leader_that_comes_first_starts_alone_and_its_workers_as_a_whole_once_it_is_ready(yard: Yard) -> None:
    yard.fill("one", "two")
    make(yard, "serve", replicas=1, size=3, gpus=GPUS, startupPolicy="LeaderReady")
    yard.run(leader, 1)
    yard.wait(worker, 2)
    yard.end("one")
    yard.run(of_a_set, 3)
    assert yard.jobs() == {"pod/one", "pod/two", "leaderworkerset/serve-0"}


def test_a_pod_that_is_moved_is_made_anew_and_known_by_its_place_in_the_set(yard: Yard) -> None:
    third, fourth = yard.bed.record.node_names()[2:]
    yard.fill("third", node=third)
    yard.fill("fourth", node=fourth)
    yard.fill("left", gpus=HALF)
    for name in ("one", "two"):
        make(yard, name, replicas=1, size=1, gpus=HALF)
        yard.run(labelled(f"{PREFIX}/name", name), 1)
    assert len(nodes_of(yard.pods(of_a_set))) == 2
    yard.end("left")
    yard.fill("big")
    (line,) = yard.lines("move")
    (node,) = nodes_of(yard.run(of_a_set, 2))
    assert node == line["to"]
    assert not any(map(gives_way, yard.pods(of_a_set)))


def test_a_group_that_would_be_made_anew_as_a_whole_is_not_moved_in_part(yard: Yard) -> None:
    """Half of it on each of two nodes, so that a move of one half would free the other's."""
    a, b, c, d = yard.bed.record.node_names()
    for node in (c, d):
        yard.fill(f"full-{node}", node=node)
    for node in (a, b):
        yard.fill(f"half-{node}", gpus=HALF, node=node)
    make(yard, "serve", replicas=1, size=2, gpus=HALF)
    before = yard.run(of_a_set, 2)
    assert nodes_of(before) == {a: 1, b: 1}
    yard.end(f"half-{a}", f"half-{b}")
    yard.add("big", GPUS)
    yard.wait(lambda pod: name_of(pod) == "big", 1)
    assert yard.lines("move") == []
    assert {pod["metadata"]["uid"] for pod in yard.pods(of_a_set)} == {pod["metadata"]["uid"] for pod in before}


def test_a_group_that_has_a_domain_of_its_own_starts_with_its_leader_then_as_a_whole(yard: Yard) -> None:
    """The operator makes workers only once their leader has a place."""
    yard.fill("one", "two", "three")
    metadata = {f"{PREFIX}/exclusive-topology": "kubernetes.io/hostname"}
    make(yard, "serve", replicas=2, size=2, gpus=HALF, annotations=metadata)
    assert len(nodes_of(yard.run(first, 2))) == 1
    assert list(map(leader, yard.wait(second, 1))) == [True]
    yard.end("one")
    assert len(nodes_of(yard.run(second, 2))) == 1
    assert len(nodes_of(yard.pods(of_a_set))) == 2


def test_a_leader_whose_workers_find_no_room_goes_on(yard: Yard) -> None:
    """It has lost nothing yet: stopped, it would only begin anew, every minute."""
    yard.fill("one", "two")
    soon = {"kai.scheduler/staleness-grace-period": "1s"}
    make(yard, "serve", replicas=1, size=3, gpus=GPUS, startupPolicy="LeaderReady", annotations=soon)
    (before,) = yard.run(leader, 1)
    yard.wait(worker, 2)
    sleep(A_WHILE_S)
    (after,) = yard.pods(leader)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert yard.lines("evict") == []
