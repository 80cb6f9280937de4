"""MPIJobs v2beta1 of the real operator: a launcher, which is a Job, and its workers."""

from __future__ import annotations

from typing import Any

import pytest

from gpuyard.testbed.bed import Bed
from gpuyard.testbed.record import Extras
from tests.on_kube.operators.yard import GPUS, HALF, Pod, Yard, gives_way, labelled, name_of, nodes_of, template

pytestmark = pytest.mark.long

ROLE = "training.kubeflow.org/job-role"
launcher, worker, of_a_job = labelled(ROLE, "launcher"), labelled(ROLE, "worker"), labelled(ROLE)


@pytest.fixture(autouse=True)
def operator(testbed: Bed) -> None:
    testbed.add(Extras.of(operators=["mpi-operator"]), print)


def make(yard: Yard, name: str, workers: int, gpus: int, **spec: Any) -> str:
    launches = {"replicas": 1, "template": template(0, restartPolicy="OnFailure")}
    works = {"replicas": workers, "template": template(gpus)}
    whole = {"mpiReplicaSpecs": {"Launcher": launches, "Worker": works}, **spec}
    return yard.make("mpijobs", "kubeflow.org/v2beta1", "MPIJob", name, whole)


def identity(pod: Pod) -> tuple[str, str]:
    """By what a pod that is made anew is known."""
    labels = pod["metadata"]["labels"]
    return labels[ROLE], labels.get("training.kubeflow.org/replica-index", "")


def test_launcher_and_workers_start_as_a_whole_give_way_as_a_whole_and_start_again(yard: Yard) -> None:
    yard.fill("one", "two")
    make(yard, "train", workers=3, gpus=GPUS)
    before = yard.wait(of_a_job, 4)
    yard.end("one")
    yard.run(of_a_job, 4)
    assert yard.jobs() == {"pod/one", "pod/two", "mpijob/train"}
    yard.fill("high", priorityClassName="inference")
    again = yard.wait(of_a_job, 4)
    assert {line["task"] for line in yard.lines("evict")} == set(map(name_of, before))
    assert sorted(map(identity, again)) == sorted(map(identity, before))
    yard.end("high")
    yard.run(of_a_job, 4)


def test_a_launcher_that_comes_last_starts_once_its_workers_are_ready(yard: Yard) -> None:
    yard.fill("one", "two")
    make(yard, "train", workers=3, gpus=GPUS, launcherCreationPolicy="WaitForWorkersReady")
    yard.wait(of_a_job, 3)
    assert yard.pods(launcher) == []
    yard.end("one")
    yard.run(worker, 3)
    yard.run(launcher, 1)
    assert yard.jobs() == {"pod/one", "pod/two", "mpijob/train"}


def test_a_worker_that_is_moved_is_made_anew_and_known_by_its_index(yard: Yard) -> None:
    third, fourth = yard.bed.record.node_names()[2:]
    yard.fill("third", node=third)
    yard.fill("fourth", node=fourth)
    yard.fill("left", gpus=HALF)
    for name in ("one", "two"):
        make(yard, name, workers=1, gpus=HALF)
        yard.run(labelled("training.kubeflow.org/job-name", name), 2)
    assert len(nodes_of(yard.pods(worker))) == 2
    yard.end("left")
    yard.fill("big")
    (line,) = (line for line in yard.lines("move") if line["gpus"])
    (node,) = nodes_of(yard.run(worker, 2))
    assert node == line["to"]
    assert not any(map(gives_way, yard.pods(worker)))
