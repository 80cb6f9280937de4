"""JobSets of the real operator: all of one starts together, or one replicated job after the other."""

from __future__ import annotations

from typing import Any

import pytest

from gpuyard.testbed.bed import Bed
from gpuyard.testbed.record import Extras
from gpuyard.worlds.kubernetes.gangs import COMPLETION_INDEX
from tests.on_kube.operators.yard import GPUS, HALF, KILLED, Pod, Yard, gives_way, labelled, name_of, nodes_of, template

pytestmark = pytest.mark.long

REPLICATED = "jobset.sigs.k8s.io/replicatedjob-name"
of_a_set = labelled("jobset.sigs.k8s.io/jobset-name")
drivers, workers = labelled(REPLICATED, "driver"), labelled(REPLICATED, "workers")


@pytest.fixture(autouse=True)
def operator(testbed: Bed) -> None:
    testbed.add(Extras.of(operators=["jobset"]), print)


def replicated(name: str, jobs: int, pods: int, gpus: int, **more: Any) -> dict[str, Any]:
    pod = template(gpus, told_to_go=more.pop("told_to_go", KILLED))
    spec = {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "template": pod}
    return {"name": name, "replicas": jobs, "template": {"spec": spec}, **more}


def make(yard: Yard, name: str, *parts: dict[str, Any], **spec: Any) -> str:
    return yard.make("jobsets", "jobset.x-k8s.io/v1alpha2", "JobSet", name, {"replicatedJobs": list(parts), **spec})


def identity(pod: Pod) -> tuple[str, str, str]:
    """By what a pod that is made anew is known."""
    labels = pod["metadata"]["labels"]
    return labels[REPLICATED], labels["jobset.sigs.k8s.io/job-index"], labels[COMPLETION_INDEX]


def test_a_set_starts_as_a_whole_gives_way_as_a_whole_and_starts_again(yard: Yard) -> None:
    """Three nodes' worth of it; two are free at first."""
    yard.fill("one", "two")
    make(yard, "train", replicated("driver", 1, 1, GPUS), replicated("workers", 2, 2, HALF))
    first = yard.wait(of_a_set, 5)
    yard.end("one")
    assert sorted(nodes_of(yard.run(of_a_set, 5)).values()) == [1, 2, 2]
    assert yard.jobs() == {"pod/one", "pod/two", "jobset/train"}
    # The cluster is full, and this one counts for more.
    yard.fill("high", priorityClassName="inference")
    again = yard.wait(of_a_set, 5)
    assert {line["task"] for line in yard.lines("evict")} == set(map(name_of, first))
    assert sorted(map(identity, again)) == sorted(map(identity, first))
    yard.end("high")
    yard.run(of_a_set, 5)


def test_workers_start_again_without_a_driver_that_had_to_go_and_ended_in_good_order(yard: Yard) -> None:
    """Its Job is complete and makes no other."""
    yard.fill("one", "two")
    make(yard, "train", replicated("driver", 1, 1, GPUS, told_to_go=0), replicated("workers", 1, 2, HALF))
    # Long enough for it to be ready to end in good order.
    yard.some_run(of_a_set, 3)
    yard.fill("high", priorityClassName="inference")
    yard.end("high")
    yard.run(workers, 2)
    assert [pod["status"]["phase"] for pod in yard.pods(drivers)] in ([], ["Succeeded"])


def test_in_order_the_second_replicated_job_starts_as_a_whole_once_the_first_one_runs(yard: Yard) -> None:
    yard.fill("one", "two")
    in_order = {"startupPolicy": {"startupPolicyOrder": "InOrder"}}
    make(yard, "train", replicated("driver", 1, 1, GPUS), replicated("workers", 1, 3, HALF), **in_order)
    yard.run(drivers, 1)
    yard.wait(workers, 3)
    yard.end("one")
    yard.run(of_a_set, 4)
    assert yard.jobs() == {"pod/one", "pod/two", "jobset/train"}


def test_what_depends_on_another_replicated_job_starts_as_a_whole_once_that_one_runs(yard: Yard) -> None:
    yard.fill("one", "two")
    after = {"dependsOn": [{"name": "driver", "status": "Ready"}]}
    make(yard, "train", replicated("driver", 1, 1, GPUS), replicated("workers", 1, 3, HALF, **after))
    yard.run(drivers, 1)
    yard.wait(workers, 3)
    yard.end("one")
    yard.run(of_a_set, 4)


def test_a_pod_that_is_moved_is_made_anew_and_known_by_its_place_in_the_set(yard: Yard) -> None:
    third, fourth = yard.bed.record.node_names()[2:]
    yard.fill("third", node=third)
    yard.fill("fourth", node=fourth)
    yard.fill("left", gpus=HALF)
    for name in ("one", "two"):
        make(yard, name, replicated("workers", 1, 1, HALF))
        yard.run(labelled("jobset.sigs.k8s.io/jobset-name", name), 1)
    assert len(nodes_of(yard.pods(of_a_set))) == 2
    yard.end("left")
    yard.fill("big")
    (line,) = yard.lines("move")
    (node,) = nodes_of(yard.run(of_a_set, 2))
    assert node == line["to"]
    assert not any(map(gives_way, yard.pods(of_a_set)))


def test_jobs_that_each_have_a_domain_of_their_own_start_with_their_first_pods_then_as_a_whole(yard: Yard) -> None:
    """The operator lets no other pod of a Job be made before the first one has a place."""
    yard.fill("one", "two", "three")
    metadata = {"annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "kubernetes.io/hostname"}}
    spec = {"replicatedJobs": [replicated("workers", 2, 2, HALF)]}
    yard.make("jobsets", "jobset.x-k8s.io/v1alpha2", "JobSet", "train", spec, **metadata)
    first = yard.wait(of_a_set, 2)
    assert [identity(pod)[2] for pod in first] == ["0", "0"]
    yard.end("one")
    found = yard.run(of_a_set, 4)
    assert sorted(nodes_of(found).values()) == [2, 2]
    assert len({(identity(pod)[1], pod["spec"]["nodeName"]) for pod in found}) == 2
    assert yard.jobs() == {"pod/one", "pod/two", "pod/three", "jobset/train"}
