"""A real cluster for schedulers under test: queues, nodes with GPUs that nobody really has, and hands to make trouble.

Two sorts of nodes, both without a machine. KWOK's start and end their pods by themselves; on the *quiet* ones a pod is
bound and ends only when the test says so, as with a long grace.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpuyard.errors import KubeTestbedError
from gpuyard.kubeapi.access import Access
from gpuyard.policies.policy import DEFAULT, Policy
from gpuyard.testbed.api import Api
from gpuyard.testbed.bed import Bed
from gpuyard.testbed.credentials import pki_folder, server_url
from gpuyard.testbed.node_files import BUSYBOX_IMAGE
from gpuyard.testbed.record import Extras
from tests.kube import eventually
from tests.on_kube.faults.faulty import Proxy, anything, drop
from tests.on_kube.faults.schedulers import Inside, Outside
from tests.on_kube.faults.witness import GPU, Witness

KWOK_NODES, QUIET_NODES, GPUS = 4, 2, 8
SYSTEM = "faults-system"
QUEUES = "/apis/scheduling.run.ai/v2/queues"
TEAM = "team"
HEARTBEAT_S = 1.5
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
UNBOUNDED = {kind: {"quota": -1, "limit": -1, "overQuotaWeight": 1} for kind in ("gpu", "cpu", "memory")}
QUIET = "test.gpuyard.io/quiet"


class Cluster:
    """One namespace of it, for one test."""

    def __init__(self, bed: Bed, api: Api, namespace: str, folder: Path) -> None:
        self.bed = bed
        self.api = api
        self.namespace = namespace
        self.folder = folder
        self.pods = f"/api/v1/namespaces/{namespace}/pods"
        self.proxies: list[Proxy] = []
        self._cut_off: list[Proxy] = []
        self.schedulers: list[Inside | Outside] = []
        capacity = dict.fromkeys((*kwok_names(), *quiet_names()), GPUS)
        self.witness = Witness(bed, namespace, capacity)

    # ------------------------------------------------------------------------------------------------------- schedulers

    def proxy(self) -> Proxy:
        """Another way to the API server, with faults of its own."""
        where = urlsplit(server_url(self.bed.record))
        pki = pki_folder(self.bed.record)
        trust = ssl.create_default_context(cafile=str(pki / "ca.pem"))
        token = (pki / "admin.token").read_text(encoding="ascii")
        assert where.hostname is not None
        proxy = Proxy(where.hostname, where.port or 443, trust, token)
        proxy.start()
        self.proxies.append(proxy)
        return proxy

    def inside(self, proxy: Proxy | None = None, *, policy: Policy = DEFAULT) -> Inside:
        """One that leads alone, once it has seen everything."""
        found = Inside(Access(server=(proxy or self.proxy()).url), SYSTEM, policy=policy)
        self.schedulers.append(found)
        found.ready()
        return found

    def cut_off(self, proxy: Proxy) -> None:
        """As if whoever is behind it had been killed: nothing of it reaches the API server any more."""
        self._cut_off.append(proxy)
        proxy.rules.insert(0, drop(anything))
        proxy.cut("")

    def outside(self, proxy: Proxy, name: str, *options: str) -> Outside:
        found = Outside(proxy.url, SYSTEM, self.folder, name, options)
        self.schedulers.append(found)
        return found

    def close(self) -> None:
        """Whatever went wrong: schedulers first, then their pods."""
        for proxy in self.proxies:
            proxy.rules[:] = [drop(anything)] if proxy in self._cut_off else []
        try:
            for scheduler in self.schedulers:
                scheduler.stop()
        finally:
            for proxy in self.proxies:
                proxy.stop()
            self.clear()
            self.witness.stop()
        assert self.witness.wrong == []

    def clear(self) -> None:
        for kind in ("batch/v1/{}/jobs", "apps/v1/{}/statefulsets", "apps/v1/{}/replicasets"):
            path = "/apis/" + kind.format(f"namespaces/{self.namespace}")
            if self.api.get(path)["items"]:
                self.api.delete(path, propagationPolicy="Background")
        self.api.delete(self.pods, gracePeriodSeconds="0")
        eventually(lambda: not self.api.get(self.pods)["items"], "the end of all pods")

    # ---------------------------------------------------------------------------------------------------------- objects

    def add(self, *names: str, **about: Any) -> None:
        for name in names:
            self.api.create(self.pods, a_gpu_pod(name, **about))

    def gang(self, name: str, size: int, gpus: int = 8, **about: Any) -> list[str]:
        """A PodGroup and its pods, all but those that are to come later."""
        spec = {"minMember": size, "queue": about.get("queue", TEAM)}
        group = {"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup", "metadata": {"name": name}}
        self.api.create(
            f"/apis/scheduling.run.ai/v2alpha2/namespaces/{self.namespace}/podgroups", {**group, "spec": spec}
        )
        self.witness.minimum[name] = size
        names = [f"{name}-{at}" for at in range(size)]
        self.add(*names, gpus=gpus, group=name, **about)
        return names

    def owner(self, kind: str, name: str, replicas: int, **about: Any) -> None:
        """A Job, StatefulSet or ReplicaSet of GPU pods."""
        pod = a_gpu_pod(name, **about)
        labels = {**pod["metadata"]["labels"], "app": name}
        metadata = {"labels": labels, "annotations": pod["metadata"]["annotations"]}
        template: dict[str, Any] = {"metadata": metadata, "spec": pod["spec"]}
        if kind == "Job":
            spec = {"parallelism": replicas, "completions": replicas, "template": template}
            spec |= about.get("spec", {})
        else:
            template["spec"]["restartPolicy"] = "Always"
            spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
            if kind == "StatefulSet":
                spec |= {"serviceName": name, "podManagementPolicy": "Parallel"}
        version = "batch/v1" if kind == "Job" else "apps/v1"
        body = {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": labels}, "spec": spec}
        self.api.create(f"/apis/{version}/namespaces/{self.namespace}/{kind.lower()}s", body)

    def patch(self, path: str, body: dict[str, Any]) -> None:
        headers = {"Content-Type": "application/strategic-merge-patch+json"}
        self.api._sent("PATCH", path, headers=headers, content=json.dumps(body).encode())

    def make_ready(self, *names: str) -> None:
        """As a kubelet does: it runs, and is ready."""
        for name in names:
            conditions = [{"type": "Ready", "status": "True"}]
            self.patch(f"{self.pods}/{name}/status", {"status": {"phase": "Running", "conditions": conditions}})

    def finish(self, *names: str) -> None:
        """As a kubelet does once the containers have ended."""
        for name in names:
            self.api.delete(f"{self.pods}/{name}", gracePeriodSeconds="0")

    # ------------------------------------------------------------------------------------------------------------ sight

    def pod(self, name: str) -> dict[str, Any]:
        """Empty where there is none."""
        try:
            return dict(self.api.get(f"{self.pods}/{name}"))
        except KubeTestbedError:
            return {}

    def node_of(self, name: str) -> str:
        return str(self.pod(name).get("spec", {}).get("nodeName", ""))

    def places(self) -> dict[str, str]:
        found = self.api.get(self.pods)["items"]
        return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in found if pod["spec"].get("nodeName")}

    def all_bound(self, names: Sequence[str] | int, within_s: float = 60.0) -> None:
        def bound() -> bool:
            places = self.places()
            return len(places) == names if isinstance(names, int) else all(name in places for name in names)

        eventually(bound, lambda: f"a place for all ({self.places()} of {names})", within_s)

    def why(self, name: str) -> str:
        """Why it waits, as its condition says: a word and a sentence."""
        said = self.condition(name, "PodScheduled")
        return f"{said.get('reason', '')}: {said.get('message', '')}"

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        found = self.pod(name).get("status", {}).get("conditions") or []
        return next((one for one in found if one["type"] == kind), {})

    def events(self, reason: str, name: str = "") -> list[dict[str, Any]]:
        found = self.api.get(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")["items"]
        return [one for one in found if one["reason"] == reason and name in one["regarding"]["name"]]

    def nominated(self, name: str) -> str:
        return str(self.pod(name).get("status", {}).get("nominatedNodeName", ""))


def a_gpu_pod(
    name: str,
    *,
    gpus: int = 1,
    group: str = "",
    queue: str = TEAM,
    priority: str = "train",
    quiet: bool = False,
    labels: dict[str, str] | None = None,
    scheduler: str = "gpuyard",
    grace_s: int = 30,
    **more: Any,
) -> dict[str, Any]:
    about = {"kai.scheduler/queue": queue, "priorityClassName": priority, **(labels or {})}
    if group:
        about["gang"] = group
    container = {
        "name": "main",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "resources": {"limits": {GPU: str(gpus)}} if gpus else {},
    }
    spec = {
        "schedulerName": scheduler,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_s,
        "containers": [container],
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {QUIET: "yes"} if quiet else {"type": "kwok"},
    }
    annotations = {"pod-group-name": group} if group else {}
    metadata = {"name": name, "labels": about, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def add_queue(api: Api, name: str, **spec: Any) -> None:
    """One that may have everything, unless something else is said."""
    about = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name}}
    api.create(QUEUES, {**about, "spec": {"resources": UNBOUNDED, **spec}})


# --------------------------------------------------------------------------------------------------------------- nodes


def kwok_names() -> list[str]:
    return [f"kwok-{number}" for number in range(1, KWOK_NODES + 1)]


def quiet_names() -> list[str]:
    return [f"quiet-{number}" for number in range(1, QUIET_NODES + 1)]


@contextmanager
def nodes_with_gpus(bed: Bed, api: Api) -> Iterator[None]:
    remove_nodes(api)
    bed.add(Extras.of(kwok=KWOK_NODES, kwok_gpus=GPUS), print)
    over = threading.Event()
    heart = threading.Thread(target=_keep_alive, args=(bed, over), daemon=True)
    for name in quiet_names():
        make_quiet_node(api, name)
    heart.start()
    try:
        yield
    finally:
        over.set()
        heart.join(30)
        remove_nodes(api)


def remove_nodes(api: Api) -> None:
    for label in ("type=kwok", QUIET):
        for node in api.get(f"/api/v1/nodes?labelSelector={label}")["items"]:
            api.delete(f"/api/v1/nodes/{node['metadata']['name']}")


def make_quiet_node(api: Api, name: str) -> None:
    """Ready, and nobody is there."""
    size = {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: str(GPUS)}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {QUIET: "yes", "kubernetes.io/hostname": name}},
        "status": {"capacity": size, "allocatable": size, "conditions": [_ready()]},
    }
    api.create("/api/v1/nodes", node)


def _ready() -> dict[str, Any]:
    return {"type": "Ready", "status": "True", "reason": "Quiet", "message": "", "lastHeartbeatTime": _now("s")}


def _keep_alive(bed: Bed, over: threading.Event) -> None:
    """A node is well whose lease is renewed; one that was doubted meanwhile says itself that it is."""
    with bed.api() as api:
        while not over.wait(HEARTBEAT_S):
            for name in quiet_names():
                try:
                    _beat(api, name)
                except (KubeTestbedError, OSError, ValueError):
                    continue  # The API server is being restarted.


def _beat(api: Api, name: str) -> None:
    spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _now("us")}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}}
    api.apply(f"{LEASES}/{name}", {**lease, "spec": spec})
    if not is_ready(api, name):
        body = json.dumps({"status": {"conditions": [_ready()]}}).encode()
        headers = {"Content-Type": "application/strategic-merge-patch+json"}
        api._sent("PATCH", f"/api/v1/nodes/{name}/status", headers=headers, content=body)


def is_ready(api: Api, name: str) -> bool:
    conditions = api.get(f"/api/v1/nodes/{name}")["status"]["conditions"]
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _now(precision: str) -> str:
    form = "%Y-%m-%dT%H:%M:%S.%fZ" if precision == "us" else "%Y-%m-%dT%H:%M:%SZ"
    return datetime.now(UTC).strftime(form)
