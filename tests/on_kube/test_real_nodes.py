"""Being a good scheduler of real kubelets: what it starts they take, to the last thousandth of a processor.

The GPUs are numbers that a node says it has; the kubelets count them as they count any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from gpuyard.kubeapi.access import read_kubeconfig
from gpuyard.testbed.api import Api
from gpuyard.testbed.bed import Bed
from gpuyard.testbed.node_files import BUSYBOX_IMAGE
from gpuyard.testbed.record import Extras
from gpuyard.worlds.kubernetes.quantities import milli_up
from tests.kube import a_namespace, eventually, phase
from tests.on_kube.faults.cluster import TEAM
from tests.on_kube.faults.conftest import a_team
from tests.on_kube.faults.schedulers import Inside

GPU = "nvidia.com/gpu"
GPUS = 8
SYSTEM = "real-nodes-system"
HOST = "kubernetes.io/hostname"
_numbers = count(1)


@pytest.fixture(scope="module")
def scheduler(testbed: Bed) -> Iterator[Inside]:
    with a_scheduler_of_real_nodes(testbed) as running:
        yield running


@contextmanager
def a_scheduler_of_real_nodes(testbed: Bed) -> Iterator[Inside]:
    """Queues, GPUs on all four nodes, and ours beside the cluster's own scheduler."""
    with testbed.api() as api, a_team(testbed, api), a_namespace(api, SYSTEM), gpus_on(testbed, api):
        running = Inside(read_kubeconfig(testbed.kubeconfig), SYSTEM)
        try:
            running.ready()
            yield running
        finally:
            running.stop()


@contextmanager
def gpus_on(bed: Bed, api: Api) -> Iterator[None]:
    for node in bed.record.node_names():
        offer(api, node, str(GPUS))
    try:
        yield
    finally:
        for node in bed.record.node_names():
            offer(api, node, None)


def offer(api: Api, node: str, gpus: str | None) -> None:
    path, number = f"/api/v1/nodes/{node}/status", {GPU: gpus}
    patch(api, path, {"status": {"capacity": number, "allocatable": number}})


def patch(api: Api, path: str, body: dict[str, Any]) -> None:
    headers = {"Content-Type": "application/merge-patch+json"}
    api._sent("PATCH", path, headers=headers, content=json.dumps(body).encode())


class Place:
    """A namespace of real nodes."""

    def __init__(self, api: Api, name: str) -> None:
        self.api = api
        self.name = name
        self.pods = f"/api/v1/namespaces/{name}/pods"

    def add(self, name: str, **about: Any) -> None:
        self.api.create(self.pods, a_pod(name, **about))

    def node_of(self, name: str) -> str:
        return str(self.api.get(f"{self.pods}/{name}")["spec"].get("nodeName", ""))

    def runs(self, *names: str) -> None:
        for name in names:
            self._run(name)

    def _run(self, name: str) -> None:
        eventually(lambda: phase(self.api, f"{self.pods}/{name}") == "Running", lambda: self.state(name))

    def waits(self, name: str, word: str) -> None:
        eventually(lambda: word in self.why(name), lambda: f"that {name} waits for {word} ({self.why(name)})")
        assert self.node_of(name) == ""

    def why(self, name: str) -> str:
        found = self.api.get(f"{self.pods}/{name}")["status"].get("conditions") or []
        return next((f"{one.get('reason')} {one.get('message')}" for one in found if one["type"] == "PodScheduled"), "")

    def state(self, name: str) -> str:
        status = self.api.get(f"{self.pods}/{name}")["status"]
        return f"the start of {name} ({status.get('phase')}, {status.get('reason')}, {self.why(name)})"


@pytest.fixture
def place(testbed: Bed, scheduler: Inside) -> Iterator[Place]:
    name = f"real-{next(_numbers)}"
    with testbed.api() as api, a_namespace(api, name) as pods:
        yield Place(api, name)
        # Jobs first, or they would make their pods again.
        api.delete(f"/apis/batch/v1/namespaces/{name}/jobs", propagationPolicy="Background")
        api.delete(pods, gracePeriodSeconds="0")
        eventually(lambda: not api.get(pods)["items"], "the end of all pods")


def a_pod(
    name: str,
    *,
    gpus: int = 0,
    cpu: str = "",
    labels: dict[str, str] | None = None,
    script: str = "sleep 1000",
    node: str = "",
    told_to_go: int = 0,
    **spec: Any,
) -> dict[str, Any]:
    requests = {**({"cpu": cpu} if cpu else {})}
    limits = {GPU: str(gpus)} if gpus else {}
    program = a_container("main", script, told_to_go=told_to_go)
    main = {**program, "resources": {"requests": {**requests, **limits}, "limits": limits}}
    main |= spec.pop("container", {})
    whole = {
        "schedulerName": "gpuyard",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [main],
        **({"nodeSelector": {HOST: node}} if node else {}),
        **spec,
    }
    metadata = {"name": name, "labels": {"kai.scheduler/queue": TEAM, **(labels or {})}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": whole}


def a_container(name: str, script: str = "sleep 1000", cpu: str = "", *, told_to_go: int = 0) -> dict[str, Any]:
    """`told_to_go`: what it ends with when it has to."""
    return {
        "name": name,
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", f"trap 'exit {told_to_go}' TERM; {script} & wait"],
        "resources": {"requests": {"cpu": cpu}} if cpu else {},
    }


# ------------------------------------------------------------------------------------------------------------ workloads


def test_jobs_run_to_their_end_a_gang_starts_as_a_whole_and_gated_pods_wait(place: Place, scheduler: Inside) -> None:
    place.add("gated", schedulingGates=[{"name": "example.com/later"}])
    template = a_pod("x", gpus=2, script="sleep 1")
    pods = {"metadata": {"labels": template["metadata"]["labels"]}, "spec": template["spec"]}
    spec = {"parallelism": 3, "completions": 3, "template": pods}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}
    place.api.create(f"/apis/batch/v1/namespaces/{place.name}/jobs", job)
    group = {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "g"},
        "spec": {"minMember": 2, "queue": TEAM},
    }
    place.api.create(f"/apis/scheduling.run.ai/v2alpha2/namespaces/{place.name}/podgroups", group)
    for name in ("g-0", "g-1"):
        pod = a_pod(name, gpus=GPUS)
        pod["metadata"]["annotations"] = {"pod-group-name": "g"}
        place.api.create(place.pods, pod)
    place.runs("g-0", "g-1")
    assert place.node_of("g-0") != place.node_of("g-1")
    path = f"/apis/batch/v1/namespaces/{place.name}/jobs/train"
    eventually(lambda: place.api.get(path)["status"].get("succeeded") == 3, "the end of the Job")
    assert place.node_of("gated") == ""
    patch(place.api, f"{place.pods}/gated", {"spec": {"schedulingGates": None}})
    place.runs("gated")
    groups = f"/apis/scheduling.run.ai/v2alpha2/namespaces/{place.name}/podgroups/g"
    eventually(lambda: place.api.get(groups).get("status", {}).get("running") == 2, "the status of the group")


# The demo, which is tested, too, has one.
@pytest.mark.long
def test_a_pytorch_job_of_the_real_operator_is_one_gang(testbed: Bed, place: Place, scheduler: Inside) -> None:
    testbed.add(Extras.of(training_operator=True), print)

    def replicas(number: int, script: str) -> dict[str, Any]:
        pod = a_pod("x", gpus=4, script=script)
        pod["spec"]["containers"][0]["name"] = "pytorch"
        template = {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]}
        return {"replicas": number, "restartPolicy": "Never", "template": template}

    roles = {"Master": replicas(1, "sleep 2"), "Worker": replicas(2, "sleep 1")}
    body = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "train"}}
    path = f"/apis/kubeflow.org/v1/namespaces/{place.name}/pytorchjobs"
    place.api.create(path, {**body, "spec": {"pytorchReplicaSpecs": roles}})

    def succeeded() -> bool:
        found = place.api.get(f"{path}/train").get("status", {}).get("conditions", [])
        return any(one["type"] == "Succeeded" and one["status"] == "True" for one in found)

    eventually(succeeded, "the end of the PyTorchJob")
    (line,) = [line for line in scheduler.lines("submitted") if str(line["job"]).startswith(f"{place.name}/")]
    assert line["job"] == f"{place.name}/pytorchjob/train"
    place.api.delete(f"{path}/train")


# ------------------------------------------------------------------------------------------------ as the kubelet counts


def test_a_node_is_filled_to_the_last_thousandth_and_no_kubelet_refuses(testbed: Bed, place: Place) -> None:
    """Init containers, sidecars, overhead: what is asked for at the worst moment of each pod."""
    node = testbed.record.node_names()[0]
    kind = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": place.name}}
    overhead = {"handler": "runc", "overhead": {"podFixed": {"cpu": "70m"}}}
    place.api.create("/apis/node.k8s.io/v1/runtimeclasses", {**kind, **overhead})
    try:
        free = free_cpu_milli(place.api, node)
        sidecar = {**a_container("side", cpu="50m"), "restartPolicy": "Always"}
        quick = a_container("first", "true", cpu="300m")
        # The sidecar beside the init container that comes after it: 350; beside the main one: 150.
        place.add("sidecar", cpu="100m", node=node, initContainers=[sidecar, quick])
        # The init container alone: 300; then 120.
        place.add("init", cpu="120m", node=node, initContainers=[quick])
        place.add("overhead", cpu="30m", node=node, runtimeClassName=place.name)
        rest = free - 350 - 300 - 100
        place.add("rest", cpu=f"{rest}m", node=node)
        place.runs("sidecar", "init", "overhead", "rest")
        place.add("more", cpu="1m", node=node)
        place.waits("more", "Unschedulable")
    finally:
        place.api.delete(f"/apis/node.k8s.io/v1/runtimeclasses/{place.name}")


def free_cpu_milli(api: Api, node: str) -> int:
    total = milli_up(api.get(f"/api/v1/nodes/{node}")["status"]["allocatable"]["cpu"])
    pods = api.get(f"/api/v1/pods?fieldSelector=spec.nodeName={node}")["items"]
    containers = [one for pod in pods for one in pod["spec"]["containers"]]
    return total - sum(milli_up(one.get("resources", {}).get("requests", {}).get("cpu", "0")) for one in containers)


def test_gpus_of_pods_that_the_other_scheduler_has_placed_are_taken(testbed: Bed, place: Place) -> None:
    for number, node in enumerate(testbed.record.node_names()):
        place.add(f"theirs-{number}", gpus=5, node=node, schedulerName="default-scheduler")
    place.runs(*[f"theirs-{number}" for number in range(4)])
    place.add("large", gpus=4)
    place.add("small", gpus=3)
    place.runs("small")
    place.waits("large", "Unschedulable")
    place.api.delete(f"{place.pods}/theirs-0")
    place.runs("large")


def test_two_pods_do_not_share_a_port_of_a_node(testbed: Bed, place: Place) -> None:
    first, second, *_ = testbed.record.node_names()
    port = {"ports": [{"containerPort": 7070, "hostPort": 7070}]}
    place.add("one", node=first, container=port)
    place.runs("one")
    place.add("two", node=first, container=port)
    place.add("three", node=second, container=port)
    place.runs("three")
    place.waits("two", "Unschedulable")
    place.api.delete(f"{place.pods}/one")
    place.runs("two")


def test_pods_keep_apart_and_spread_as_they_ask(testbed: Bed, place: Place) -> None:
    apart = {"labelSelector": {"matchLabels": {"app": "apart"}}, "topologyKey": HOST}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    spread = {
        "maxSkew": 1,
        "topologyKey": HOST,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "spread"}},
    }
    nodes = testbed.record.node_names()
    for number in range(len(nodes)):
        place.add(f"apart-{number}", labels={"app": "apart"}, affinity=affinity)
        place.add(f"spread-{number}", labels={"app": "spread"}, topologySpreadConstraints=[spread])
    place.runs(*[f"{word}-{number}" for word in ("apart", "spread") for number in range(len(nodes))])
    for word in ("apart", "spread"):
        assert sorted(place.node_of(f"{word}-{number}") for number in range(len(nodes))) == sorted(nodes)
    place.add("apart-too-many", labels={"app": "apart"}, affinity=affinity)
    place.waits("apart-too-many", "Unschedulable")


def test_pods_go_where_they_would_rather_be_and_wait_for_none_of_it(testbed: Bed, place: Place) -> None:
    apart = {"labelSelector": {"matchLabels": {"app": "apart"}}, "topologyKey": HOST}
    affinity = {"podAntiAffinity": preferred(apart)}
    spread = {
        "maxSkew": 1,
        "topologyKey": HOST,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "spread"}},
    }
    nodes = testbed.record.node_names()
    for number in range(len(nodes) + 1):
        place.add(f"apart-{number}", labels={"app": "apart"}, affinity=affinity)
        place.add(f"spread-{number}", labels={"app": "spread"}, topologySpreadConstraints=[spread])
    place.runs(*[f"{word}-{number}" for word in ("apart", "spread") for number in range(len(nodes) + 1)])
    for word in ("apart", "spread"):
        assert {place.node_of(f"{word}-{number}") for number in range(len(nodes) + 1)} == set(nodes)
    place.add("friend", labels={"app": "friend"}, node=nodes[-1])
    place.runs("friend")
    near = {"labelSelector": {"matchLabels": {"app": "friend"}}, "topologyKey": HOST}
    place.add("near", affinity={"podAffinity": preferred(near)})
    place.runs("near")
    assert place.node_of("near") == nodes[-1]


def preferred(term: dict[str, Any]) -> dict[str, Any]:
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}


# ----------------------------------------------------------------------------------------------------------------- long


@pytest.mark.long
def test_a_gang_goes_on_elsewhere_when_a_node_loses_its_power(testbed: Bed, place: Place) -> None:
    soon = [
        {"key": f"node.kubernetes.io/{word}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
        for word in ("unreachable", "not-ready")
    ]
    template = a_pod("x", gpus=GPUS, tolerations=soon)
    pods = {"metadata": {"labels": template["metadata"]["labels"]}, "spec": template["spec"]}
    spec = {"parallelism": 2, "completions": 2, "template": pods}
    metadata = {"name": "train", "annotations": {"kai.scheduler/batch-min-member": "2"}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    place.api.create(f"/apis/batch/v1/namespaces/{place.name}/jobs", job)

    def nodes() -> list[str]:
        found = place.api.get(place.pods)["items"]
        running = [pod for pod in found if pod["status"].get("phase") == "Running"]
        return [pod["spec"]["nodeName"] for pod in running if "deletionTimestamp" not in pod["metadata"]]

    eventually(lambda: len(nodes()) == 2, "the start of the gang")
    lost = nodes()[0]
    testbed.power_off(lost)
    try:
        eventually(lambda: len(nodes()) == 2 and lost not in nodes(), "a gang without that node", 180)
    finally:
        testbed.power_on(lost)
        testbed.wait_ready(lost)
        with testbed.api() as api:
            offer(api, lost, str(GPUS))
