"""MPIJobs v1 of the real training operator.

On a testbed of its own: the kind MPIJob is the other operator's on the one that all tests share.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gpuyard.testbed.api import Api
from gpuyard.testbed.bed import Bed
from gpuyard.testbed.known_operators import TRAINING
from gpuyard.testbed.machine import say_more
from gpuyard.testbed.node_files import BUSYBOX_IMAGE
from gpuyard.testbed.record import CONTROL, Extras
from tests.kube import a_namespace, running_testbed
from tests.on_kube.operators.yard import GPUS, Yard, labelled, name_of, template
from tests.on_kube.test_real_nodes import a_scheduler_of_real_nodes, patch

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.xdist_group("kubernetes")]

TYPE = "training.kubeflow.org/replica-type"
of_a_job, workers = labelled(TYPE), labelled(TYPE, "worker")


@pytest.fixture
def own_yard() -> Iterator[Yard]:
    extras = Extras.of(training_operator=True)
    with running_testbed(name=f"test-{os.getpid()}-mpi", nodes=3, extras=extras) as bed:
        serve_mpi_jobs(bed)
        name = "mpi-v1"
        with a_scheduler_of_real_nodes(bed) as scheduler, bed.api() as api, a_namespace(api, name):
            offer_storage(bed, api)
            yard = Yard(bed, api, scheduler, name)
            try:
                yield yard
            finally:
                yard.clear()


def serve_mpi_jobs(bed: Bed) -> None:
    """Usually it is told of PyTorchJobs only."""
    more = msgspec.structs.replace(TRAINING, only=(*TRAINING.only, "mpijobs"))
    say_more(bed.record, CONTROL, more.name, f"--enable-scheme=mpijob --mpi-kubectl-delivery-image={BUSYBOX_IMAGE}")
    with bed.api() as api:
        more.introduce(api, bed.record)
        bed.restart(more.name)
        more.wait_ready(api, bed.record)


def offer_storage(bed: Bed, api: Api) -> None:
    """What a launcher fetches kubectl into; kubelets of a testbed do not count it."""
    room = {"ephemeral-storage": "100Gi"}
    for node in bed.record.node_names():
        patch(api, f"/api/v1/nodes/{node}/status", {"status": {"capacity": room, "allocatable": room}})


def make(yard: Yard, name: str, count: int) -> str:
    def replicas(number: int, gpus: int) -> dict[str, Any]:
        # A worker that ends with anything else has failed for its operator, told to go or not.
        pod = template(gpus, container="mpi", told_to_go=0)
        return {"replicas": number, "restartPolicy": "Never", "template": pod}

    spec = {"mpiReplicaSpecs": {"Launcher": replicas(1, 0), "Worker": replicas(count, GPUS)}}
    return yard.make("mpijobs", "kubeflow.org/v1", "MPIJob", name, spec)


def test_launcher_and_workers_start_as_a_whole_and_a_worker_that_went_comes_back(own_yard: Yard) -> None:
    own_yard.fill("one", "two")
    make(own_yard, "train", 2)
    own_yard.wait(of_a_job, 3)
    own_yard.end("one")
    before = own_yard.run(of_a_job, 3)
    assert own_yard.jobs() == {"pod/one", "pod/two", "mpijob/train"}
    own_yard.end("two")
    (lost, *_) = map(name_of, own_yard.pods(workers))
    own_yard.end(lost)
    again = own_yard.run(of_a_job, 3)
    assert sorted(map(name_of, again)) == sorted(map(name_of, before))
    assert own_yard.jobs() == {"pod/one", "pod/two", "mpijob/train"}
