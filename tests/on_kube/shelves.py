"""Clusters of literal objects, read as a real one is: an API server that keeps what it is given and answers lists."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml

from gpuyard.kube.ask import Cluster, Target, read_cluster
from gpuyard.kube.doctor import Seen, look
from gpuyard.kubeapi.client import KubeClient
from gpuyard.kubeapi.moments import micros_text_of
from gpuyard.platform.clock import wall_ms
from tests.kubeapi.scripted import Answer, Asked, Script, refused, serving

Object = dict[str, Any]
Answered = TypeVar("Answered")
COLLECTIONS = {
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/pods",
    "Namespace": "/api/v1/namespaces",
    "PersistentVolumeClaim": "/api/v1/persistentvolumeclaims",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "ConfigMap": "/api/v1/namespaces/gpuyard-system/configmaps",
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "PodDisruptionBudget": "/apis/policy/v1/poddisruptionbudgets",
    "Queue": "/apis/scheduling.run.ai/v2/queues",
    "PodGroup": "/apis/scheduling.run.ai/v2alpha2/podgroups",
    "Topology": "/apis/kai.scheduler/v1alpha1/topologies",
    "Job": "/apis/batch/v1/jobs",
    "Lease": "/apis/coordination.k8s.io/v1/namespaces/gpuyard-system/leases",
}
QUEUES, PODS = COLLECTIONS["Queue"], COLLECTIONS["Pod"]
LEASES = COLLECTIONS["Lease"]
MAPS = COLLECTIONS["ConfigMap"]
TOLD = {"gitVersion": "v1.34.2", "major": "1", "minor": "34"}


class Shelf(Script):
    """All there is, by collection."""

    def __init__(self, *objects: Object, denied: tuple[str, ...] = (), absent: tuple[str, ...] = ()) -> None:
        super().__init__(Answer())
        self.objects: dict[str, list[Object]] = {path: [] for path in COLLECTIONS.values()}
        for one in objects:
            self.objects[COLLECTIONS[one["kind"]]].append(stored(one))
        self.denied = denied
        self.absent = absent

    def next(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        collection, _, name = asked.path.rpartition("/")
        if asked.path in self.denied or collection in self.denied:
            return refused(403, "Forbidden", "it is forbidden")
        if asked.path == "/version":
            return Answer(200, TOLD)
        if asked.method == "POST":
            return Answer(201, {"status": {"userInfo": {"username": "ann"}}})
        if asked.path in self.objects and asked.path not in self.absent:
            return Answer(200, {"metadata": {"resourceVersion": "1"}, "items": self.objects[asked.path]})
        found = [one for one in self.objects.get(collection, ()) if one["metadata"]["name"] == name]
        return Answer(200, found[0]) if found else refused(404, "NotFound")


def stored(one: Object) -> Object:
    """As an API server would give it back."""
    metadata = {"creationTimestamp": "2025-03-01T10:00:00Z", **one["metadata"]}
    if one["kind"] in ("Pod", "PodGroup", "Job", "PersistentVolumeClaim", "PodDisruptionBudget"):
        metadata.setdefault("namespace", "default")
    metadata.setdefault("uid", f"uid-{one['kind']}-{metadata['name']}".lower())
    return {**one, "metadata": metadata}


# ------------------------------------------------------------------------------------------------------------- objects


def in_yaml(text: str) -> list[Object]:
    return [one for one in yaml.safe_load_all(text) if one]


def a_node(name: str = "node-1", gpus: int = 8, *, ready: bool = True, **spec: Any) -> Object:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    ready_is = [{"type": "Ready", "status": "True" if ready else "False"}]
    status = {"capacity": amounts, "allocatable": amounts, "conditions": ready_is}
    return {"kind": "Node", "metadata": {"name": name}, "spec": spec, "status": status}


def a_queue(name: str, quota: float = 8, limit: float = -1, parent: str = "", **metadata: Any) -> Object:
    unbounded = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    resources = {"gpu": {"quota": quota, "limit": limit, "overQuotaWeight": 1}, "cpu": unbounded, "memory": unbounded}
    spec = {"resources": resources, **({"parentQueue": parent} if parent else {})}
    return {"kind": "Queue", "metadata": {"name": name, **metadata}, "spec": spec}


def a_pod(
    name: str,
    gpus: int = 1,
    queue: str = "team",
    *,
    node: str = "",
    scheduler: str = "gpuyard",
    annotations: dict[str, str] | None = None,
    owner: Object | None = None,
    namespace: str = "default",
    phase: str = "",
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> Object:
    metadata: Object = {"name": name, "namespace": namespace, "annotations": annotations}
    metadata["labels"] = {**({"kai.scheduler/queue": queue} if queue else {}), **(labels or {})}
    if owner is not None:
        whole = stored(owner)["metadata"]
        kind = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True}
        metadata["ownerReferences"] = [{**kind, "name": whole["name"], "uid": whole["uid"]}]
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    whole_spec = {"schedulerName": scheduler, "nodeName": node, "containers": [container], **spec}
    status = {"phase": phase or ("Running" if node else "Pending")}
    return {"kind": "Pod", "metadata": metadata, "spec": whole_spec, "status": status}


def a_job(name: str, parallelism: int, **annotations: str) -> Object:
    about = {"apiVersion": "batch/v1", "kind": "Job"}
    return {**about, "metadata": {"name": name, "annotations": annotations}, "spec": {"parallelism": parallelism}}


def a_lease(holder: str = "me", *, age_ms: int = 0, annotations: dict[str, str] | None = None) -> Object:
    renewed = micros_text_of(wall_ms() - age_ms)
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed, "acquireTime": renewed}
    return {"kind": "Lease", "metadata": {"name": "gpuyard-scheduler", "annotations": annotations}, "spec": spec}


def a_namespace(name: str = "default") -> Object:
    return {"kind": "Namespace", "metadata": {"name": name}}


def a_team(*, limit: float = -1) -> list[Object]:
    """A namespace, and one queue below another."""
    return [a_namespace(), a_queue("all", quota=-1), a_queue("team", limit=limit, parent="all")]


# ------------------------------------------------------------------------------------------------------------- reading


def read(*objects: Object, target: Target | None = None, shelf: Shelf | None = None) -> Cluster:
    chosen = target or Target()
    return _with(shelf or Shelf(*objects), lambda client: read_cluster(client, chosen))


def seen(*objects: Object, target: Target | None = None, shelf: Shelf | None = None) -> Seen:
    chosen = target or Target()
    return _with(shelf or Shelf(*objects), lambda client: look(client, chosen))


def _with(script: Script, use: Callable[[KubeClient], Awaitable[Answered]]) -> Answered:
    async def talk() -> Answered:
        async with serving(script) as client:
            return await use(client)

    return asyncio.run(talk())


@contextmanager
def served(script: Script, folder: Path, namespace: str = "") -> Iterator[Path]:
    """A kubeconfig for a server that answers as long as this lasts."""
    ready, ports, ends = threading.Event(), [""], asyncio.Event()
    loop = asyncio.new_event_loop()

    async def live() -> None:
        async with serving(script) as client:
            ports[0] = client.access.server
            ready.set()
            await ends.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(live()))
    thread.start()
    try:
        assert ready.wait(30)
        path = folder / "kubeconfig"
        path.write_text(json.dumps(a_kubeconfig(ports[0], namespace)), encoding="utf-8")
        yield path
    finally:
        loop.call_soon_threadsafe(ends.set)
        thread.join()
        loop.close()


def a_kubeconfig(server: str, namespace: str = "") -> Object:
    return {
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
