"""deploy/scheduler in a real cluster: its own manifests, its own accounts, on real kubelets.

Instead of the image the containers use this machine's interpreter and this checkout, mounted from the nodes, as in the
tests of deploy/fakegpu; nothing else of the manifests is different.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from gpuyard.kube.install import definitions
from gpuyard.testbed.api import Api
from gpuyard.testbed.bed import Bed
from gpuyard.testbed.node_files import BUSYBOX_IMAGE
from tests.fakegpu.kubernetes.deployed import host_paths, must
from tests.kube import eventually

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "deploy" / "scheduler"
NAMESPACE = "gpuyard-system"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/gpuyard-scheduler"
READY_S = 240.0
FORGOTTEN_S = 300.0
"""A definition goes after its objects, which takes its time where many are made at once."""
CONTAINERS = (
    ("apps/v1", "Deployment", "gpuyard-scheduler", "scheduler"),
    ("apps/v1", "DaemonSet", "gpuyard-node", "node"),
    ("batch/v1", "Job", "gpuyard-install", "install"),
)


def overlay(folder: Path, manifests: Path = MANIFESTS) -> Path:
    """The manifests with what stands for the image."""
    mounts = [{"name": f"host-{at}", "mountPath": path, "readOnly": True} for at, path in enumerate(host_paths())]
    volumes = [{"name": f"host-{at}", "hostPath": {"path": path}} for at, path in enumerate(host_paths())]
    command = [sys.executable, "-m", "gpuyard"]
    variables = [{"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}]

    def patch(version: str, kind: str, name: str, container: str) -> dict[str, Any]:
        image = {"image": BUSYBOX_IMAGE, "imagePullPolicy": "Never", "command": command}
        whole = {"name": container, **image, "env": variables, "volumeMounts": mounts}
        template = {"spec": {"dnsPolicy": "Default", "containers": [whole], "volumes": volumes}}
        return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": {"template": template}}

    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(manifests, folder)],
        "patches": [{"patch": yaml.safe_dump(patch(*each))} for each in CONTAINERS],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return folder


@contextmanager
def deployed(bed: Bed, api: Api, folder: Path) -> Iterator[None]:
    """Until the end, when nothing of it is left but the kinds that were there before."""
    eventually(lambda: not api.answers(f"/api/v1/namespaces/{NAMESPACE}"), "the end of the namespace")
    try:
        must(bed, "apply", "--server-side", "--validate=strict", "-k", str(folder))
        yield
    finally:
        must(bed, "delete", "-n", NAMESPACE, "--cascade=foreground", "daemonset,deployment,job", "--all")
        must(bed, "delete", "--ignore-not-found", "-k", str(folder))
        forget(api)


def forget(api: Api) -> None:
    """A cluster that has never heard of KAI."""
    for one in definitions():
        if api.answers(one.path):
            api.delete(one.path)

    def left() -> list[str]:
        return [str(one) for one in definitions() if api.answers(one.path)]

    eventually(lambda: not left(), lambda: f"the end of {', '.join(left())}", FORGOTTEN_S)


def pods(api: Api, component: str) -> list[dict[str, Any]]:
    return [
        pod
        for pod in api.get(PODS)["items"]
        if pod["metadata"]["labels"].get("app.kubernetes.io/component") == component
        and "deletionTimestamp" not in pod["metadata"]
    ]


def are_ready(api: Api, component: str, count: int) -> bool:
    conditions = [
        condition
        for pod in pods(api, component)
        for condition in pod["status"].get("conditions", ())
        if condition["type"] == "Ready" and condition["status"] == "True"
    ]
    return len(conditions) == count


def leader(api: Api) -> str:
    """The name of the pod that leads."""
    holder = str(api.get(LEASE)["spec"].get("holderIdentity") or "")
    return holder.rpartition("_")[0]
