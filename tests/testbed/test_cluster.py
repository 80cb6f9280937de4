"""The testbed as its users have it: pods run, components fail and come back, nodes lose their power."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.errors import KubeTestbedError
from gpuyard.testbed.api import Api
from gpuyard.testbed.bed import Bed, node_is_ready
from gpuyard.testbed.images import Image
from gpuyard.testbed.machine import find_component
from gpuyard.testbed.status import status_of
from tests.kube import a_namespace, a_pod, eventually, phase, wait_until_well

GIB = 1 << 30
SOON_MS = 180_000
"""A minute where nothing else runs (make bench-fake-kube holds it to that)."""


@pytest.fixture
def api(testbed: Bed) -> Iterator[Api]:
    with testbed.api() as api:
        yield api


@pytest.fixture
def pods(api: Api, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.originalname.removeprefix("test_").replace("_", "-")[:50].rstrip("-")
    with a_namespace(api, name) as path:
        yield path


def test_it_came_up_soon_is_healthy_and_small(testbed: Bed) -> None:
    status = status_of(testbed.record)
    assert status.problems == ()
    assert [machine.name for machine in status.machines] == ["control", "node-1", "node-2", "node-3", "node-4"]
    assert 0 < status.ready_after_ms < SOON_MS
    assert status.memory_bytes < 2 * GIB


def test_a_pod_runs_on_every_node_and_its_logs_can_be_read(testbed: Bed, api: Api, pods: str) -> None:
    for node in testbed.record.node_names():
        api.create(pods, a_pod(f"on-{node}", f"echo hello from {node}", nodeName=node))
    for node in testbed.record.node_names():
        eventually(lambda node=node: phase(api, f"{pods}/on-{node}") == "Succeeded", f"the end of the pod on {node}")
        said = testbed.kubectl("logs", f"on-{node}", "-n", pods.split("/")[-2])
        assert said.output == f"hello from {node}\n"


def test_the_scheduler_places_pods_and_they_reach_each_other_and_the_api_server(
    testbed: Bed, api: Api, pods: str
) -> None:
    api.create(pods, a_pod("server", "while :; do echo served | nc -l -p 80; done", nodeName="node-1"))
    eventually(lambda: phase(api, f"{pods}/server") == "Running", "the start of the server")
    address = api.get(f"{pods}/server")["status"]["podIP"]
    ask = (
        f"until nc -w 2 {address} 80 </dev/null; do sleep 0.2; done;"
        " wget -q -O - --no-check-certificate"
        ' --header "Authorization: Bearer $(cat /var/run/secrets/kubernetes.io/serviceaccount/token)"'
        " https://$KUBERNETES_SERVICE_HOST/version"
    )
    away = {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-1"]}]}]
    }
    required = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": away}}
    api.create(pods, a_pod("client", ask, affinity=required))
    eventually(lambda: phase(api, f"{pods}/client") == "Succeeded", "the end of the client")
    served, _, version = testbed.kubectl("logs", "client", "-n", pods.split("/")[-2]).output.partition("\n")
    assert served == "served"
    assert json.loads(version)["gitVersion"] == "v1.34.2"


def test_a_kubelet_that_is_killed_comes_back_and_pods_live_on(testbed: Bed, api: Api, pods: str) -> None:
    api.create(pods, a_pod("lasting", nodeName="node-2"))
    eventually(lambda: phase(api, f"{pods}/lasting") == "Running", "the start of the pod")
    began = api.get(f"{pods}/lasting")["status"]["containerStatuses"][0]["state"]
    before = find_component(testbed.record, "node-2", "kubelet")
    testbed.restart("kubelet", "node-2")
    eventually(lambda: find_component(testbed.record, "node-2", "kubelet") not in {None, before}, "the new kubelet")
    api.create(pods, a_pod("later", "echo later", nodeName="node-2"))
    eventually(lambda: phase(api, f"{pods}/later") == "Succeeded", "a pod on the new kubelet")
    assert api.get(f"{pods}/lasting")["status"]["containerStatuses"][0]["state"] == began


@pytest.mark.early
def test_a_node_without_power_is_noticed_and_comes_back_with_its_pods(testbed: Bed, api: Api, pods: str) -> None:
    pod = a_pod("returning", nodeName="node-3", restartPolicy="Always")
    api.create(pods, pod)
    eventually(lambda: phase(api, f"{pods}/returning") == "Running", "the start of the pod")
    testbed.power_off("node-3")
    try:
        eventually(lambda: not node_is_ready(api.get("/api/v1/nodes/node-3")), "NotReady")
        assert [one.on for one in status_of(testbed.record).machines if one.name == "node-3"] == [False]
    finally:
        testbed.power_on("node-3")
        testbed.wait_ready("node-3")
    eventually(lambda: restarts(api, f"{pods}/returning") >= 1, "the pod's second life")


def restarts(api: Api, path: str) -> int:
    """How often its container was started again, once it runs."""
    container = api.get(path)["status"]["containerStatuses"][0]
    return int(container["restartCount"]) if "running" in container["state"] else 0


def test_an_image_made_of_a_folder_runs(testbed: Bed, api: Api, pods: str, tmp_path: Path) -> None:
    program = tmp_path / "app" / "run"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho from a folder\n")
    program.chmod(0o755)
    testbed.import_image(Image("testbed.local/app:1", ("/app/run",), tmp_path), "node-4")
    pod = a_pod("folder", nodeName="node-4")
    pod["spec"]["containers"] = [{"name": "main", "image": "testbed.local/app:1", "imagePullPolicy": "Never"}]
    api.create(pods, pod)
    eventually(lambda: phase(api, f"{pods}/folder") == "Succeeded", "the end of the pod")
    assert testbed.kubectl("logs", "folder", "-n", pods.split("/")[-2]).output == "from a folder\n"


def test_what_there_is_not_is_told_with_what_there_is(testbed: Bed) -> None:
    with pytest.raises(KubeTestbedError, match='no component "kube-proxy" on node-1\n  it has containerd, kubelet'):
        testbed.restart("kube-proxy", "node-1")
    with pytest.raises(KubeTestbedError, match='no machine "node-9"\n  it has control, node-1, node-2, node-3, node-4'):
        testbed.stop("kubelet", "node-9")
    with pytest.raises(KubeTestbedError, match="node-1 is on already"):
        testbed.power_on("node-1")


def test_a_component_that_is_stopped_stays_down_until_it_is_started(testbed: Bed, api: Api) -> None:
    testbed.stop("kube-scheduler")
    try:
        control = status_of(testbed.record).machines[0]
        assert {component.name: component.state for component in control.components}["kube-scheduler"] == "stopped"
    finally:
        testbed.start("kube-scheduler")
    wait_until_well(testbed)
