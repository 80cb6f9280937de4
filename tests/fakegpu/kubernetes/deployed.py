"""deploy/fakegpu in a real cluster: its own manifests, its own accounts, on real kubelets.

Instead of the image, which takes minutes to be built (`test_image.py` does that), the containers use this machine's
interpreter and this checkout, mounted from the nodes; nothing else of the manifests is different.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import yaml

from gpuyard.fakegpu.build import cache_directory
from gpuyard.fakegpu.launch import build_native
from gpuyard.testbed.api import Api
from gpuyard.testbed.bed import Bed
from gpuyard.testbed.node_files import BUSYBOX_IMAGE
from tests.fakegpu.kubernetes.rig import forget_devices
from tests.kube import a_pod, eventually, holds_now

ROOT = Path(__file__).parents[3]
MANIFESTS = ROOT / "deploy" / "fakegpu"
NAMESPACE = "gpuyard-fake"
NODES = ("node-3", "node-4")
HERE = "test.gpuyard.io/fake-gpus"
"""The label of the nodes these tests may use."""
GPU = "nvidia.com/gpu"
SOON_S = 120.0
READY_S = 240.0
MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"


# ------------------------------------------------------------------------------------------------------ the manifests


def overlay(folder: Path) -> Path:
    """The manifests with what stands for the image, on two nodes."""
    mounts = [{"name": f"host-{at}", "mountPath": path, "readOnly": True} for at, path in enumerate(host_paths())]
    volumes = [{"name": f"host-{at}", "hostPath": {"path": path}} for at, path in enumerate(host_paths())]
    command = [sys.executable, "-m", "gpuyard"]
    variables = [
        {"name": "XDG_CACHE_HOME", "value": str(cache_directory().parents[1])},
        {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
    ]

    def patch(kind: str, name: str, container: str) -> dict[str, Any]:
        image = {"image": BUSYBOX_IMAGE, "imagePullPolicy": "Never", "command": command}
        whole = {"name": container, **image, "env": variables, "volumeMounts": mounts}
        pod = {"nodeSelector": {HERE: "yes"}, "terminationGracePeriodSeconds": 2, "dnsPolicy": "Default"}
        template = {"spec": {**pod, "containers": [whole], "volumes": volumes}}
        return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": {"template": template}}

    patches = [
        patch("DaemonSet", "fake-gpus-node", "node"),
        patch("Deployment", "fake-gpus-updater", "updater"),
    ]
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(MANIFESTS, folder)],
        "patches": [{"patch": yaml.safe_dump(each)} for each in patches],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return folder


def host_paths() -> list[str]:
    """Where this interpreter finds itself, its libraries, our source and what was built of it."""
    wanted = [
        ROOT,
        Path(sys.base_prefix),
        Path(sys.prefix),
        cache_directory(),
        *map(Path, ("/lib", "/lib64", "/usr/lib")),
    ]
    kept: list[Path] = []
    for path in wanted:
        if path.exists() and not any(path.is_relative_to(other) for other in kept):
            kept.append(path)
    return [str(path) for path in kept]


@contextmanager
def deployed(bed: Bed, api: Api, scratch: Path, configuration: str) -> Iterator[Deployed]:
    """On two nodes, from this checkout."""
    build_native(print)
    for node in NODES:
        bed.kubectl("label", "node", node, f"{HERE}=yes", "--overwrite")
    try:
        with applied(Deployed(bed, api, NODES, (sys.executable, "-m", "gpuyard")), overlay(scratch)) as cluster:
            cluster.configure(configuration)
            cluster.wait_ready()
            yield cluster
    finally:
        for node in NODES:
            bed.kubectl("label", "node", node, f"{HERE}-")


@contextmanager
def applied(cluster: Deployed, folder: Path) -> Iterator[Deployed]:
    """Until the end; nodes are then as they were."""
    bed = cluster.bed
    # What was deployed before may still be going.
    eventually(lambda: not cluster.api.answers(f"/api/v1/namespaces/{NAMESPACE}"), "the end of the namespace")
    try:
        must(bed, "apply", "--server-side", "--validate=strict", "-k", str(folder))
        yield cluster
    finally:
        # First who would put things back, then the rest, for which nobody has to wait.
        must(bed, "delete", "-n", NAMESPACE, "--cascade=foreground", "daemonset,deployment", "--all")
        must(bed, "delete", "--ignore-not-found", "--wait=false", "-k", str(folder))
        for node in cluster.nodes:
            strip(bed, node)
            bed.kubectl("label", "node", node, "gpuyard.io/gpu-pool-")
            forget_devices(bed, node)


def strip(bed: Bed, node: str) -> None:
    """Take our labels off a node, as the updater itself would have done."""
    patch = json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    file = bed.record.folder / f"{node}-strip.json"
    file.write_text(patch)
    bed.kubectl("apply", "--server-side", "--force-conflicts", "--field-manager=gpuyard-fake-gpus", "-f", str(file))
    file.unlink()


def must(bed: Bed, *words: str) -> str:
    done = bed.kubectl(*words)
    assert done.code == 0, done.output
    return done.output


# -------------------------------------------------------------------------------------------------------- the cluster


class Deployed:
    """The updater and the parts of some nodes, running as pods."""

    def __init__(self, bed: Bed, api: Api, nodes: Sequence[str], program: tuple[str, ...]) -> None:
        self.bed = bed
        self.api = api
        self.nodes = nodes
        self._program = program

    def configure(self, text: str) -> None:
        """As a person does with kubectl apply."""
        path = self.bed.record.folder / "fake-gpus.json"
        about = {"name": "fake-gpus", "namespace": NAMESPACE}
        content = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": {"fleet.yaml": text}}
        path.write_text(json.dumps(content))
        must(self.bed, "apply", "--server-side", "--force-conflicts", "-f", str(path))

    def wait_ready(self) -> None:
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"

        def ready() -> bool:
            found = [pod for pod in self.api.get(pods)["items"] if "deletionTimestamp" not in pod["metadata"]]
            conditions = [one for pod in found for one in pod["status"].get("conditions", ()) if one["type"] == "Ready"]
            wanted = len(self.nodes) + 1
            return len(found) == len(conditions) == wanted and all(one["status"] == "True" for one in conditions)

        eventually(ready, "readiness of updater and node parts", READY_S)

    # ------------------------------------------------------------------------------------------------------- looking

    def pod(self, component: str, node: str = "") -> dict[str, Any]:
        wanted = {"app.kubernetes.io/component": component}
        found = self.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        (one,) = [
            each
            for each in found
            if wanted.items() <= each["metadata"]["labels"].items()
            and (not node or each["spec"]["nodeName"] == node)
            and "deletionTimestamp" not in each["metadata"]
        ]
        return dict(one)

    def exporter(self, component: str, node: str = "") -> str:
        return f"http://{self.pod(component, node)['status']['podIP']}:9400/metrics"

    def shown(self, exporter: str, node: str) -> dict[str, tuple[str, int]]:
        """By GPU: its holder as namespace/pod/container, and its utilisation."""
        return {
            found["UUID"]: ("/".join((found["namespace"], found["pod"], found["container"])).strip("/"), value)
            for found, value in samples(exporter, "DCGM_FI_DEV_GPU_UTIL")
            if found["Hostname"] == node
        }

    def status(self) -> dict[str, Any]:
        """The document in the ConfigMap."""
        text = self.api.get(f"{MAPS}/fake-gpus")["data"].get("status.yaml", "")
        found = yaml.safe_load(text) if text else {}
        return {**found, "nodes": found.get("nodes") or {}}

    def written(self, node: str) -> dict[str, tuple[str, int]]:
        """The same as `shown`, of the ConfigMap."""
        gpus = (self.status().get("nodes") or {}).get(node, {}).get("gpus", [])
        return {gpu["id"]: (holder(gpu["metrics"]), gpu["metrics"]["utilization"]) for gpu in gpus}

    def labels(self, node: str) -> dict[str, str]:
        return dict(self.api.get(f"/api/v1/nodes/{node}")["metadata"].get("labels", {}))

    def gpus(self, node: str, resource: str = GPU) -> tuple[str | None, str | None]:
        """Capacity and allocatable."""
        status = self.api.get(f"/api/v1/nodes/{node}")["status"]
        return status.get("capacity", {}).get(resource), status.get("allocatable", {}).get(resource)

    def command(self, *words: str) -> tuple[str, ...]:
        """A command of ours, as the containers have it."""
        return (*self._program, *words)

    def logs(self, component: str, node: str = "") -> str:
        return must(self.bed, "logs", "-n", NAMESPACE, self.pod(component, node)["metadata"]["name"])

    def events(self, reason: str, namespace: str) -> list[dict[str, Any]]:
        found = self.api.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
        return [event for event in found if event["reason"] == reason]


def holder(metrics: dict[str, Any]) -> str:
    said = metrics.get("metadata", {})
    return "/".join(str(said.get(name, "")) for name in ("namespace", "pod", "container")).strip("/")


def samples(exporter: str, metric: str) -> Iterator[tuple[dict[str, str], int]]:
    with urllib.request.urlopen(exporter, timeout=20) as page:
        text = page.read().decode()
    for line in text.splitlines():
        if line.startswith(metric + "{"):
            yield dict(re.findall(r'(\w+)="([^"]*)"', line)), int(line.rpartition(" ")[2])


def took_s(holds: Callable[[], bool], what: str, within_s: float = SOON_S) -> float:
    """How long it takes until it is so."""
    began = monotonic()
    while not holds_now(holds):
        assert monotonic() - began < within_s, f"{what} did not happen within {within_s:g} s"
        sleep(0.02)
    return monotonic() - began


# ---------------------------------------------------------------------------------------------------------- objects


def asking(name: str, gpus: int, script: str = "sleep 1000", **fields: Any) -> dict[str, Any]:
    """A container that asks for GPUs."""
    (container,) = a_pod("x", script)["spec"]["containers"]
    return {**container, "name": name, "resources": {"limits": {GPU: gpus} if gpus else {}}, **fields}


def gpu_pod(name: str, node: str, *containers: dict[str, Any], **about: Any) -> dict[str, Any]:
    pod = a_pod(name, nodeName=node, containers=list(containers) or [asking("main", 1)], **about.pop("spec", {}))
    pod["metadata"] |= about
    return pod


def fake_node(name: str, **labels: str) -> dict[str, Any]:
    """A node that nobody is."""
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [{"key": "test.gpuyard.io/nobody", "effect": "NoSchedule"}]},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def running_now(*containers: str) -> dict[str, Any]:
    """The status a kubelet would give a pod whose containers run."""
    state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    about = {"image": "x", "imageID": "x", "ready": True, "restartCount": 0, "state": state}
    return {"status": {"phase": "Running", "containerStatuses": [{"name": name, **about} for name in containers]}}
