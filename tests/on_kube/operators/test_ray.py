"""RayClusters of the real operator: the head and the workers it cannot do without. No Ray runs in the pods."""

from __future__ import annotations

from time import sleep
from typing import Any

import pytest

from gpuyard.testbed.bed import Bed
from gpuyard.testbed.record import Extras
from tests.kube import eventually
from tests.on_kube.operators.yard import A_WHILE_S, GPUS, HALF, Yard, gives_way, labelled, name_of, nodes_of, template

pytestmark = pytest.mark.long

KIND = "ray.io/node-type"
head, worker, of_a_cluster = labelled(KIND, "head"), labelled(KIND, "worker"), labelled(KIND)
OWN_COMMAND = {"ray.io/overwrite-container-cmd": "true"}
"""Else the operator would have the pods start Ray."""


@pytest.fixture(autouse=True)
def operator(testbed: Bed) -> None:
    testbed.add(Extras.of(operators=["kuberay"]), print)


def pods(gpus: int) -> dict[str, Any]:
    return template(gpus, container="ray", restartPolicy="Always")


def cluster(head_gpus: int, *groups: dict[str, Any]) -> dict[str, Any]:
    return {
        "headGroupSpec": {"rayStartParams": {}, "template": pods(head_gpus)},
        "workerGroupSpecs": [{"rayStartParams": {}, **group} for group in groups],
    }


def group(name: str, gpus: int, **replicas: int) -> dict[str, Any]:
    return {"groupName": name, "template": pods(gpus), **replicas}


def make(yard: Yard, name: str, spec: dict[str, Any]) -> str:
    return yard.make("rayclusters", "ray.io/v1", "RayCluster", name, spec, annotations=OWN_COMMAND)


def test_head_and_least_replicas_start_as_a_whole_and_the_rest_as_it_fits(yard: Yard) -> None:
    """Three nodes' worth of it must start together, one is more than that."""
    yard.fill("one", "two")
    make(yard, "ray", cluster(HALF, group("large", GPUS, replicas=3, minReplicas=2, maxReplicas=3)))
    yard.wait(of_a_cluster, 4)
    yard.end("one")
    running = yard.some_run(of_a_cluster, 3)
    assert sum(map(head, running)) == 1
    assert yard.jobs() == {"pod/one", "pod/two", "raycluster/ray"}
    yard.end("two")
    yard.run(of_a_cluster, 4)


def test_no_more_replicas_are_waited_for_than_the_operator_makes(yard: Yard) -> None:
    make(yard, "ray", cluster(HALF, group("few", HALF, replicas=3, minReplicas=0, maxReplicas=1)))
    yard.run(of_a_cluster, 2)


def test_hosts_of_a_replica_count_and_groups_give_way_together_and_start_again(yard: Yard) -> None:
    yard.fill("one")
    spec = cluster(
        HALF,
        group("pairs", GPUS, replicas=1, minReplicas=1, maxReplicas=2, numOfHosts=2),
        group("small", HALF, replicas=1, minReplicas=1, maxReplicas=1),
    )
    make(yard, "ray", spec)
    before = yard.run(of_a_cluster, 4)
    yard.fill("high", priorityClassName="inference")
    yard.wait(of_a_cluster, 4)
    assert {line["task"] for line in yard.lines("evict")} == set(map(name_of, before))
    yard.end("high")
    yard.run(of_a_cluster, 4)


def test_a_worker_that_is_moved_is_made_anew_and_known_by_its_group(yard: Yard) -> None:
    third, fourth = yard.bed.record.node_names()[2:]
    yard.fill("third", node=third)
    yard.fill("fourth", node=fourth)
    yard.fill("left", gpus=HALF)
    for name in ("one", "two"):
        make(yard, name, cluster(0, group("g", HALF, replicas=1, minReplicas=1, maxReplicas=1)))
        yard.run(labelled("ray.io/cluster", name), 2)
    assert len(nodes_of(yard.pods(worker))) == 2
    yard.end("left")
    yard.fill("big")
    (line,) = (line for line in yard.lines("move") if line["gpus"])
    (node,) = nodes_of(yard.run(worker, 2))
    assert node == line["to"]
    assert not any(map(gives_way, yard.pods(worker)))


def ray_job(yard: Yard, name: str, head_gpus: int, *groups: dict[str, Any]) -> str:
    submitter = template(0, script="sleep 1000", container="submits")
    spec = {"entrypoint": "true", "rayClusterSpec": cluster(head_gpus, *groups), "submitterPodTemplate": submitter}
    return yard.make("rayjobs", "ray.io/v1", "RayJob", name, spec, annotations=OWN_COMMAND)


def test_the_cluster_of_a_ray_job_is_a_gang_and_whoever_submits_is_another(yard: Yard) -> None:
    yard.fill("one", "two")
    ray_job(yard, "train", HALF, group("g", GPUS, replicas=2, minReplicas=2, maxReplicas=2))
    (made, *_) = yard.wait(of_a_cluster, 3)
    name = made["metadata"]["labels"]["ray.io/cluster"]
    yard.end("one")
    yard.run(of_a_cluster, 3)
    yard.run(labelled("batch.kubernetes.io/job-name", "train"), 1)
    assert yard.jobs() == {"pod/one", "pod/two", f"raycluster/{name}", "job/train"}


def test_the_head_of_a_ray_jobs_cluster_is_not_moved_because_it_would_not_be_made_anew(yard: Yard) -> None:
    third, fourth = yard.bed.record.node_names()[2:]
    yard.fill("third", node=third)
    yard.fill("fourth", node=fourth)
    yard.fill("left", gpus=HALF)
    for count, name in enumerate(("one", "two"), start=1):
        ray_job(yard, name, HALF)
        yard.run(head, count)
    yard.end("left")
    yard.add("big", GPUS)
    yard.wait(lambda pod: name_of(pod) == "big", 1)
    assert yard.lines("move") == []
    provisioned = f"/apis/ray.io/v1/namespaces/{yard.namespace}/rayclusters"
    eventually(lambda: all(map(is_provisioned, yard.api.get(provisioned)["items"])), "that the clusters are there")
    yard.end(name_of(yard.pods(head)[0]))
    sleep(A_WHILE_S)
    assert len(yard.pods(head)) == 1


def is_provisioned(found: dict[str, Any]) -> bool:
    conditions = found.get("status", {}).get("conditions") or []
    return any(one["type"] == "RayClusterProvisioned" and one["status"] == "True" for one in conditions)


def test_the_cluster_of_a_ray_service_is_a_gang(yard: Yard) -> None:
    yard.fill("one", "two")
    workers = group("g", GPUS, replicas=2, minReplicas=2, maxReplicas=2)
    spec = {"serveConfigV2": "applications: []", "rayClusterConfig": cluster(HALF, workers)}
    yard.make("rayservices", "ray.io/v1", "RayService", "serve", spec, annotations=OWN_COMMAND)
    (made, *_) = yard.wait(of_a_cluster, 3)
    yard.end("one")
    yard.run(of_a_cluster, 3)
    assert yard.jobs() == {"pod/one", "pod/two", f"raycluster/{made['metadata']['labels']['ray.io/cluster']}"}
