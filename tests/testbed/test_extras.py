"""What is added to a testbed that runs: nodes by KWOK, DNS, the training operator with its webhook."""

from __future__ import annotations

from collections.abc import Iterator
from time import sleep
from typing import Any

import pytest

from gpuyard.errors import KubeTestbedError
from gpuyard.testbed.api import Api
from gpuyard.testbed.bed import Bed
from gpuyard.testbed.control_plane import GONE_AFTER_S
from gpuyard.testbed.node_files import BUSYBOX_IMAGE
from gpuyard.testbed.record import Extras
from gpuyard.testbed.status import status_of
from tests.kube import a_namespace, a_pod, eventually, phase

NODES = 20
GPUS = 8


@pytest.fixture
def api(testbed: Bed) -> Iterator[Api]:
    with testbed.api() as api:
        yield api


@pytest.fixture
def kwok_nodes(testbed: Bed, api: Api) -> Iterator[list[str]]:
    names = [f"kwok-{number}" for number in range(1, NODES + 1)]
    # Nodes that are there stay as they are, and other tests may have made some without GPUs.
    remove_pretended(api)
    testbed.add(Extras.of(kwok=NODES, kwok_gpus=GPUS), print)
    yield names
    remove_pretended(api)


def remove_pretended(api: Api) -> None:
    for node in api.get("/api/v1/nodes?labelSelector=type=kwok")["items"]:
        api.delete(f"/api/v1/nodes/{node['metadata']['name']}")


def test_nodes_that_kwok_pretends_offer_gpus_and_run_pods(testbed: Bed, api: Api, kwok_nodes: list[str]) -> None:
    nodes = {node["metadata"]["name"]: node["status"] for node in api.get("/api/v1/nodes")["items"]}
    assert all(nodes[name]["allocatable"]["nvidia.com/gpu"] == str(GPUS) for name in kwok_nodes)
    assert status_of(testbed.record).fake_nodes == NODES
    spec: dict[str, Any] = {"nodeSelector": {"type": "kwok"}, "tolerations": [{"operator": "Exists"}]}
    pod = a_pod("pretended", **spec)
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": GPUS}}
    with a_namespace(api, "kwok") as pods:
        api.create(pods, pod)
        eventually(lambda: phase(api, f"{pods}/pretended") == "Running", "the start of the pod")
        assert api.get(f"{pods}/pretended")["spec"]["nodeName"] in kwok_nodes


def test_nodes_that_kwok_pretends_stay_ready_without_anybody_changing_them(api: Api, kwok_nodes: list[str]) -> None:
    """Heard from too seldom, each would be doubted and believed again every few seconds: much ado for nothing."""

    def versions() -> dict[str, str]:
        nodes = api.get("/api/v1/nodes?labelSelector=type=kwok")["items"]
        return {node["metadata"]["name"]: node["metadata"]["resourceVersion"] for node in nodes}

    def at_rest() -> bool:
        before = versions()
        sleep(2 * GONE_AFTER_S)
        return before.keys() == set(kwok_nodes) and versions() == before

    eventually(at_rest, "rest")


def pytorch_job(container: str) -> dict[str, Any]:
    def replicas(count: int, script: str) -> dict[str, Any]:
        command = ["sh", "-c", script]
        one = {"name": container, "image": BUSYBOX_IMAGE, "imagePullPolicy": "Never", "command": command}
        return {"replicas": count, "restartPolicy": "Never", "template": {"spec": {"containers": [one]}}}

    roles = {"Master": replicas(1, "sleep 1"), "Worker": replicas(2, "echo rank $RANK of $WORLD_SIZE")}
    metadata = {"name": "train"}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata,
        "spec": {"pytorchReplicaSpecs": roles},
    }


def test_a_job_of_the_training_operator_runs_and_its_webhook_refuses_nonsense(testbed: Bed, api: Api) -> None:
    testbed.add(Extras.of(training_operator=True), print)
    with a_namespace(api, "training") as pods:
        jobs = "/apis/kubeflow.org/v1/namespaces/training/pytorchjobs"
        with pytest.raises(KubeTestbedError, match="must have at least one container with name pytorch"):
            api.create(jobs, pytorch_job("another"))
        api.create(jobs, pytorch_job("pytorch"))
        eventually(lambda: "Succeeded" in conditions(api, f"{jobs}/train"), "the end of the job")
        # Workers start once they have found their master's name.
        eventually(lambda: phase(api, f"{pods}/train-worker-1") == "Succeeded", "the end of the worker")
        assert testbed.kubectl("logs", "train-worker-1", "-n", "training").output.endswith("rank 2 of 3\n")
        api.delete(f"{jobs}/train")


def conditions(api: Api, path: str) -> list[str]:
    return [one["type"] for one in api.get(path).get("status", {}).get("conditions", [])]
