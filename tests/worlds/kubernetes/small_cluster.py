"""A cluster in memory: an API server that keeps objects, controllers that make pods anew, kubelets that end them.

The scheduler's picture, world and loop run on it as they do on a real one; in the place of the writer its errands are
carried out here, at once, late, or not at all. What the scheduler hears may lag behind what is true.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from gpuyard.kubeapi.follow import Changed, Gone, Listed
from gpuyard.kubeapi.moments import text_of
from gpuyard.loop.containment import Trouble
from gpuyard.loop.loop import Loop
from gpuyard.policies.policy import DEFAULT, Policy
from gpuyard.worlds.kubernetes import objects
from gpuyard.worlds.kubernetes.intents import Intents
from gpuyard.worlds.kubernetes.objects import Owner, Pod
from gpuyard.worlds.kubernetes.picture import Picture
from gpuyard.worlds.kubernetes.settings import Settings
from gpuyard.worlds.kubernetes.world import Kubernetes
from gpuyard.worlds.kubernetes.writes import BindPod, Errand, EvictPod, NominateNode, SavePlaces

GPU = "nvidia.com/gpu"
START_MS = 1_700_000_000_000
QUEUE = "team"
KINDS = {
    "Job": "batch/v1",
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "StatefulSet": "apps/v1",
    "ReplicaSet": "apps/v1",
    "Widget": "example.com/v1",
}

Fate = Callable[[object], str]
"""What becomes of a write: "done", "refused" (and not done), "forbidden" (by a budget), "held" (not yet)."""


def all_done(write: object) -> str:
    return "done"


def is_a_bug(trouble: Trouble) -> None:
    raise AssertionError(f"{trouble.text}\n{trouble.fault.trace}")


class SmallCluster:
    """What is true, and the scheduler that follows it."""

    def __init__(self, nodes: int = 2, gpus: int = 8, policy: Policy = DEFAULT) -> None:
        self.now_ms = START_MS
        self.policy = policy
        self.fate: Fate = all_done
        self.nodes: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        """By name; all in one namespace."""
        self.owners: dict[str, dict[str, Any]] = {}
        self.groups: dict[str, dict[str, Any]] = {}
        self.budgets: dict[str, dict[str, Any]] = {}
        self.queues: dict[str, dict[str, Any]] = {}
        self.claims: dict[str, dict[str, Any]] = {}
        self.volumes: dict[str, dict[str, Any]] = {}
        self.classes: dict[str, dict[str, Any]] = {}
        self.saved = SavePlaces((), ())
        self.grace_ms = 0
        """How long a pod takes to end."""
        self.contained: Callable[[Trouble], None] = is_a_bug
        """What becomes of an exception that the scheduler would survive."""
        self.said: list[str] = []
        """What was done, in order."""
        self.written: list[BindPod] = []
        self.texts: dict[str, str] = {}
        """What evicted pods were told."""
        self.held: deque[object] = deque()
        self._news: deque[tuple[str, Any]] = deque()
        self._made = 0
        for number in range(1, nodes + 1):
            self.add_node(f"n{number}", gpus)
        self.add_queue(QUEUE)
        self.start()

    # ------------------------------------------------------------------------------------------------------- scheduler

    def start(self) -> None:
        """A scheduler that knows nothing but what the cluster says."""
        self.picture = Picture(Settings())
        self._news.clear()
        self.held.clear()
        listed: tuple[tuple[str, type[Any], Iterable[dict[str, Any]]], ...] = (
            ("nodes", objects.Node, self.nodes.values()),
            ("queues", objects.KaiQueue, self.queues.values()),
            ("podgroups", objects.PodGroup, self.groups.values()),
            ("budgets", objects.DisruptionBudget, self.budgets.values()),
            ("claims", objects.VolumeClaim, self.claims.values()),
            ("volumes", objects.PersistentVolume, self.volumes.values()),
            ("storageclasses", objects.StorageClass, self.classes.values()),
            ("pods", Pod, self.pods.values()),
        )
        for kind, struct, found in listed:
            self.picture.take(kind, Listed(tuple(decoded(struct, one) for one in found)), self.now_ms)
        for kind, version in KINDS.items():
            known = tuple(decoded(Owner, one) for one in self.owners.values() if one["kind"] == kind)
            self.picture.take_owner((version, kind), Listed(known), self.now_ms)
        self.world = Kubernetes(self.picture, Intents(), lambda: self.now_ms)
        self.world.adopt(self.saved)
        self.loop: Loop | None = None

    def hear(self, count: int | None = None) -> None:
        """What has happened, told to the scheduler in its order; all of it, or so much."""
        while self._news and count != 0:
            kind, change = self._news.popleft()
            if kind in KINDS:
                self.picture.take_owner((KINDS[kind], kind), change, self.now_ms)
            else:
                self.picture.take(kind, change, self.now_ms)
            count = None if count is None else count - 1

    def cycle(self) -> list[str]:
        """One cycle of the scheduler and what it writes; what was done in it."""
        before = len(self.said)
        if self.loop is None:
            self.loop = Loop(self.world, self.policy)
            self.loop.containment.reports.listen(self.contained)
        self.loop.cycle()
        while self.world.errands:
            self._carry_out(self.world.errands.popleft())
        return self.said[before:]

    def settle(self, cycles: int = 12) -> list[str]:
        """Hear, plan, act, let controllers and kubelets do their part, until nothing more happens."""
        before = len(self.said)
        for _ in range(cycles):
            self.hear()
            done = self.cycle()
            moved = self.controllers() + self.kubelets()
            if not (done or moved or self._news or self.picture.changed):
                break
        return self.said[before:]

    def pass_time(self, after_ms: int) -> None:
        self.now_ms += after_ms

    def kinds_done(self) -> list[str]:
        return [line.split()[0] for line in self.said]

    # ----------------------------------------------------------------------------------------------------------- writes

    def _carry_out(self, errand: Errand) -> None:
        """As the writer does: notes first; deeds only where their notes stand."""
        unnoted: set[str] = set()
        for note in errand.notes:
            if self.fate(note) == "done":
                self.write(note)
            elif isinstance(note, NominateNode):
                unnoted.add(note.job)
                self.world.note_failed(note, "refused")
            else:
                unnoted.add("")
        for deed in errand.deeds:
            if isinstance(deed, EvictPod) and ("" in unnoted or deed.reason.beneficiary in unnoted):
                self.world.eviction_failed(deed, "not noted", forbidden=False)
            else:
                self._deed(deed)

    def _deed(self, deed: BindPod | EvictPod) -> None:
        match self.fate(deed), deed:
            case "done", _:
                self.write(deed)
            case "held", _:
                self.held.append(deed)
            case _, BindPod():
                self.world.bind_failed(deed, "refused")
            case fate, EvictPod():
                self.world.eviction_failed(deed, "refused", forbidden=fate == "forbidden")

    def write(self, write: object) -> None:
        """What the API server does with it."""
        match write:
            case SavePlaces():
                self.saved = write
            case NominateNode():
                pod = self._same(write.pod.name, write.pod.uid)
                if pod is None:
                    self.world.note_failed(write, "gone")
                else:
                    pod["status"]["nominatedNodeName"] = write.node
                    self.said.append(f"nominate {write.pod.name} {write.node}")
                    self._tell("pods", pod)
            case BindPod():
                self._bind(write)
            case EvictPod():
                self._evict(write)

    def _bind(self, write: BindPod) -> None:
        pod = self._same(write.pod.name, write.pod.uid)
        if pod is None or "deletionTimestamp" in pod["metadata"] or pod["spec"].get("nodeName"):
            self.world.bind_failed(write, "gone or bound")
            return
        pod["spec"]["nodeName"] = write.node
        self.written.append(write)
        for given in write.given:
            self.bind_claim(given.claim, given.volume)
        self.said.append(f"bind {write.pod.name} {write.node}")
        self._tell("pods", pod)

    def _evict(self, write: EvictPod) -> None:
        pod = self._same(write.pod.name, write.pod.uid)
        self.texts[write.pod.name] = write.text
        if pod is not None:
            self.said.append(f"evict {write.pod.name} {write.reason.token.value}")
            self.delete(write.pod.name)

    def _same(self, name: str, uid: str) -> dict[str, Any] | None:
        pod = self.pods.get(name)
        return pod if pod is not None and pod["metadata"]["uid"] == uid else None

    # ---------------------------------------------------------------------------------------------------------- objects

    def _tell(self, kind: str, one: dict[str, Any], *, gone: bool = False) -> None:
        structs: dict[str, type[Any]] = {
            "pods": Pod,
            "nodes": objects.Node,
            "podgroups": objects.PodGroup,
            "budgets": objects.DisruptionBudget,
            "queues": objects.KaiQueue,
            "claims": objects.VolumeClaim,
            "volumes": objects.PersistentVolume,
            "storageclasses": objects.StorageClass,
        }
        found = decoded(structs.get(kind, Owner), one)
        self._news.append((kind, Gone(found) if gone else Changed(found)))

    def add_node(self, name: str, gpus: int = 8, **allocatable: str) -> None:
        size = {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: str(gpus), **allocatable}
        status = {"allocatable": size, "capacity": size, "conditions": [{"type": "Ready", "status": "True"}]}
        labels = {"kubernetes.io/hostname": name}
        self.nodes[name] = {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}
        self._tell("nodes", self.nodes[name])

    def remove_node(self, name: str) -> None:
        """And, as the garbage collector does some time later, its pods."""
        self._tell("nodes", self.nodes.pop(name), gone=True)

    def add_queue(self, name: str, **spec: Any) -> None:
        unbounded = {kind: {"quota": -1, "limit": -1, "overQuotaWeight": 1} for kind in ("gpu", "cpu", "memory")}
        self.queues[name] = {"metadata": {"name": name}, "spec": {"resources": unbounded, **spec}}
        self._tell("queues", self.queues[name])

    def add_group(self, name: str, minimum: int) -> None:
        metadata = {"name": name, "namespace": "a", "creationTimestamp": text_of(self.now_ms)}
        self.groups[name] = {"metadata": metadata, "spec": {"minMember": minimum, "queue": QUEUE}}
        self._tell("podgroups", self.groups[name])

    def remove_group(self, name: str) -> None:
        self._tell("podgroups", self.groups.pop(name), gone=True)

    def add_budget(self, name: str, allowed: int, **labels: str) -> None:
        spec = {"selector": {"matchLabels": labels}}
        metadata = {"name": name, "namespace": "a"}
        self.budgets[name] = {"metadata": metadata, "spec": spec, "status": {"disruptionsAllowed": allowed}}
        self._tell("budgets", self.budgets[name])

    def add_class(self, name: str, provisioner: str, mode: str = "WaitForFirstConsumer") -> None:
        self.classes[name] = {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode}
        self._tell("storageclasses", self.classes[name])

    def add_claim(self, name: str, storage_class: str, mode: str = "ReadWriteOnce") -> None:
        spec = {"storageClassName": storage_class, "accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}}
        metadata = {"name": name, "namespace": "a", "uid": f"uid-of-{name}"}
        self.claims[name] = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
        self._tell("claims", self.claims[name])

    def add_volume(self, name: str, storage_class: str, node: str) -> None:
        expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        spec = {
            "storageClassName": storage_class,
            "accessModes": ["ReadWriteOnce", "ReadWriteOncePod"],
            "capacity": {"storage": "10Gi"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
        }
        metadata = {"name": name, "resourceVersion": "7"}
        self.volumes[name] = {"metadata": metadata, "spec": spec, "status": {"phase": "Available"}}
        self._tell("volumes", self.volumes[name])

    def bind_claim(self, claim: str, volume: str) -> None:
        """As the volume controller does."""
        one = self.claims[claim]
        one["spec"]["volumeName"] = volume
        one["metadata"]["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
        one["status"]["phase"] = "Bound"
        self._tell("claims", one)
        self.volumes[volume]["spec"]["claimRef"] = {"namespace": "a", "name": claim, "uid": one["metadata"]["uid"]}
        self.volumes[volume]["status"]["phase"] = "Bound"
        self._tell("volumes", self.volumes[volume])

    def add_pod(
        self,
        name: str,
        gpus: int = 1,
        *,
        owner: str = "",
        group: str = "",
        priority: str = "train",
        queue: str = QUEUE,
        labels: dict[str, str] | None = None,
        claims: tuple[str, ...] = (),
        requests: dict[str, str] | None = None,
        apart: dict[str, Any] | None = None,
        port: int = 0,
    ) -> None:
        """`apart`: the selector of a required anti-affinity by node, to pods of all namespaces."""
        self._made += 1
        metadata: dict[str, Any] = {
            "name": name,
            "namespace": "a",
            "uid": f"{name}-{self._made}",
            "creationTimestamp": text_of(self.now_ms),
            "labels": {"kai.scheduler/queue": queue, "priorityClassName": priority, **(labels or {})},
        }
        if group:
            metadata["annotations"] = {"pod-group-name": group}
        if owner:
            metadata["ownerReferences"] = [reference_to(self.owners[owner])]
        asked = {GPU: str(gpus), **(requests or {})}
        container: dict[str, Any] = {"name": "c", "resources": {"limits": asked, "requests": asked}}
        if port:
            container["ports"] = [{"containerPort": port, "hostPort": port}]
        volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
        spec: dict[str, Any] = {"schedulerName": "gpuyard", "containers": [container], "volumes": volumes}
        if apart is not None:
            term = {"labelSelector": apart, "namespaceSelector": {}, "topologyKey": "kubernetes.io/hostname"}
            spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        self.pods[name] = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
        self._tell("pods", self.pods[name])

    def add_owner(self, kind: str, name: str, replicas: int, gpus: int, **spec: Any) -> None:
        """Its controller makes its pods."""
        metadata = {
            "name": name,
            "namespace": "a",
            "uid": f"{kind}-{name}",
            "creationTimestamp": text_of(self.now_ms),
            "annotations": spec.pop("annotations", {}),
        }
        counts = {"parallelism": replicas, "completions": replicas} if kind == "Job" else {"replicas": replicas}
        self.put_owner(kind, name, metadata, {**counts, **spec}, gpus=gpus, replicas=replicas)
        self.controllers()

    def put_owner(
        self, kind: str, name: str, metadata: dict[str, Any], spec: dict[str, Any], *, gpus: int = 0, replicas: int = 0
    ) -> None:
        """One whose controller makes so many pods; by default none."""
        body = {"kind": kind, "apiVersion": KINDS[kind], "metadata": metadata, "spec": spec}
        self.owners[name] = {**body, "gpus": gpus, "replicas": replicas}
        self._tell(kind, self.owners[name])

    def succeed(self, owner: str, succeeded: int, **status: str) -> None:
        """An owner says how many of its pods are done."""
        self.owners[owner]["status"] = {"succeeded": succeeded, **status}
        self._tell(self.owners[owner]["kind"], self.owners[owner])

    def remove_owner(self, name: str) -> None:
        owner = self.owners.pop(name)
        self._tell(owner["kind"], owner, gone=True)

    def controllers(self) -> int:
        """Make pods anew: by index for a StatefulSet, under a new name for the others; how many."""
        made = 0
        for name, owner in self.owners.items():
            mine = [pod for pod in self.pods.values() if _is_of(pod, owner)]
            if owner["kind"] == "StatefulSet":
                there = {pod["metadata"]["name"] for pod in mine}
                wanted = [f"{name}-{at}" for at in range(owner["replicas"]) if f"{name}-{at}" not in there]
            else:
                alive = [pod for pod in mine if "deletionTimestamp" not in pod["metadata"] and not _is_over(pod)]
                wanted = [f"{name}-x{self._made + 1 + at}" for at in range(owner["replicas"] - len(alive))]
            for pod in wanted:
                self.add_pod(pod, owner["gpus"], owner=name)
                made += 1
        return made

    def kubelets(self) -> int:
        """Pods start, and end when their time has come; how many."""
        moved = 0
        for name, pod in list(self.pods.items()):
            over_ms = pod.get("over_ms")
            if over_ms is not None and over_ms <= self.now_ms:
                self._tell("pods", self.pods.pop(name), gone=True)
                moved += 1
            elif pod["spec"].get("nodeName") in self.nodes and pod["status"]["phase"] == "Pending":
                pod["status"]["phase"] = "Running"
                self._tell("pods", pod)
                moved += 1
        return moved

    def delete(self, name: str) -> None:
        """A pod without a node goes at once, others take their grace."""
        pod = self.pods[name]
        if not pod["spec"].get("nodeName"):
            self._tell("pods", self.pods.pop(name), gone=True)
        elif "deletionTimestamp" not in pod["metadata"]:
            pod["metadata"]["deletionTimestamp"] = text_of(self.now_ms + self.grace_ms)
            pod["over_ms"] = self.now_ms + self.grace_ms
            self._tell("pods", pod)

    def end(self, name: str, phase: str = "Succeeded", reason: str = "") -> None:
        self.pods[name]["status"] |= {"phase": phase, "reason": reason}
        self._tell("pods", self.pods[name])

    # ------------------------------------------------------------------------------------------------------------ sight

    def node_of(self, name: str) -> str:
        return str(self.pods[name]["spec"].get("nodeName", "")) if name in self.pods else "gone"

    def places(self) -> dict[str, str]:
        """Every pod that is on a node."""
        return {name: node for name in self.pods if (node := self.node_of(name))}

    def overbooked(self) -> list[str]:
        """Nodes whose pods ask for more GPUs than there are."""
        held: dict[str, int] = {}
        for pod in self.pods.values():
            node = pod["spec"].get("nodeName")
            if node and not _is_over(pod):
                held[node] = held.get(node, 0) + gpus_of(pod)
        return [
            node
            for node, count in held.items()
            if node in self.nodes and count > int(self.nodes[node]["status"]["allocatable"][GPU])
        ]


def gpus_of(pod: dict[str, Any]) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["limits"][GPU])


def decoded(struct: type[Any], one: dict[str, Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(one), type=struct)


def reference_to(owner: dict[str, Any]) -> dict[str, Any]:
    about = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": about["name"],
        "uid": about["uid"],
        "controller": True,
    }


def _is_of(pod: dict[str, Any], owner: dict[str, Any]) -> bool:
    return any(one["uid"] == owner["metadata"]["uid"] for one in pod["metadata"].get("ownerReferences", ()))


def _is_over(pod: dict[str, Any]) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")
