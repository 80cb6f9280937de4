"""A cluster with GPUs, our scheduler, and an operator: what a test does there, and what it looks at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import sleep
from typing import Any

from gpuyard.testbed.api import Api
from gpuyard.testbed.bed import Bed
from gpuyard.worlds.kubernetes.writer import GIVES_WAY
from tests.kube import eventually
from tests.on_kube.faults.cluster import TEAM
from tests.on_kube.faults.schedulers import Inside
from tests.on_kube.test_real_nodes import GPUS as NODE_GPUS
from tests.on_kube.test_real_nodes import a_pod

Pod = dict[str, Any]
GPUS = NODE_GPUS
HALF = GPUS // 2
KILLED = 128 + 15
"""What a program ends with that does nothing about being told to go."""
A_WHILE_S = 2.0
"""Long enough for a scheduler that starts too much to have done so."""


class Yard:
    """One namespace, for one test."""

    def __init__(self, bed: Bed, api: Api, scheduler: Inside, namespace: str) -> None:
        self.bed = bed
        self.api = api
        self.scheduler = scheduler
        self.namespace = namespace
        self.pod_path = f"/api/v1/namespaces/{namespace}/pods"
        self._made: list[str] = []

    def make(self, plural: str, version: str, kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> str:
        """An object of an operator; the path of it."""
        path = f"/apis/{version}/namespaces/{self.namespace}/{plural}"
        about = {"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}}
        self.api.create(path, {**about, "spec": spec})
        self._made.append(f"{path}/{name}")
        return f"{path}/{name}"

    def fill(self, *names: str, gpus: int = GPUS, **about: Any) -> None:
        """Pods that keep GPUs busy, and are there."""
        for name in names:
            self.add(name, gpus, **about)
        self.run(lambda pod: name_of(pod) in names, len(names))

    def add(self, name: str, gpus: int, **about: Any) -> None:
        self.api.create(self.pod_path, a_pod(name, gpus=gpus, **about))

    def end(self, *names: str) -> None:
        for name in names:
            self.api.delete(f"{self.pod_path}/{name}")

    def clear(self) -> None:
        """Objects first, or their pods would come back."""
        for path in self._made:
            if self.api.answers(path):
                self.api.delete(path, propagationPolicy="Background")

        def gone() -> bool:
            self.api.delete(self.pod_path, gracePeriodSeconds="0")
            return not any(map(self.api.answers, self._made)) and not self.pods()

        eventually(gone, "the end of everything")

    # ------------------------------------------------------------------------------------------------------------ looks

    def pods(self, which: Callable[[Pod], bool] = lambda pod: True) -> list[Pod]:
        """Those that are not ending."""
        found = self.api.get(self.pod_path)["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"] and which(pod)]

    def run(self, which: Callable[[Pod], bool], count: int) -> list[Pod]:
        """Wait until so many of these pods run, and no other of them is there."""

        def all_run() -> bool:
            found = self.pods(which)
            return len(found) == count and all(pod["status"].get("phase") == "Running" for pod in found)

        eventually(all_run, lambda: f"the start of {count} pods ({self.told(which)})")
        return self.pods(which)

    def some_run(self, which: Callable[[Pod], bool], count: int) -> list[Pod]:
        """Wait until so many of these pods run; those are all that do, after a while, too."""

        def running() -> list[Pod]:
            return [pod for pod in self.pods(which) if pod["status"].get("phase") == "Running"]

        eventually(lambda: len(running()) == count, lambda: f"the start of {count} pods ({self.told(which)})")
        sleep(A_WHILE_S)
        assert len(running()) == count
        return running()

    def wait(self, which: Callable[[Pod], bool], count: int, word: str = "") -> list[Pod]:
        """So many of these pods are there, say why they wait, and not one of them starts."""

        def all_wait() -> bool:
            found = self.pods(which)
            return len(found) == count and all(why(pod) and word in why(pod) for pod in found)

        eventually(all_wait, lambda: f"that {count} pods wait ({self.told(which)})")
        sleep(A_WHILE_S)
        found = self.pods(which)
        assert [name_of(pod) for pod in found if pod["spec"].get("nodeName")] == []
        return found

    def told(self, which: Callable[[Pod], bool]) -> str:
        return "; ".join(f"{name_of(pod)} {pod['status'].get('phase')} {why(pod)}" for pod in self.pods(which))

    def jobs(self, event: str = "submitted") -> set[str]:
        """Everything our scheduler took for one job, in this namespace."""
        return {str(line["job"]).removeprefix(f"{self.namespace}/") for line in self.lines(event)}

    def lines(self, event: str) -> list[dict[str, object]]:
        return [line for line in self.scheduler.lines(event) if str(line["job"]).startswith(f"{self.namespace}/")]


def name_of(pod: Pod) -> str:
    return str(pod["metadata"]["name"])


def why(pod: Pod) -> str:
    """What it is told while it has no place."""
    conditions = pod["status"].get("conditions") or []
    told = (one for one in conditions if one["type"] == "PodScheduled" and one["status"] == "False")
    return next((f"{one.get('reason')}: {one.get('message')}" for one in told), "")


def gives_way(pod: Pod) -> bool:
    return any(one["type"] == GIVES_WAY for one in pod["status"].get("conditions") or [])


def nodes_of(pods: list[Pod]) -> Counter[str]:
    return Counter(pod["spec"]["nodeName"] for pod in pods)


def labelled(key: str, value: str = "") -> Callable[[Pod], bool]:
    """Pods with this label, of this value if one is given."""

    def holds(pod: Pod) -> bool:
        found = (pod["metadata"].get("labels") or {}).get(key)
        return found is not None and value in ("", found)

    return holds


def template(
    gpus: int,
    *,
    script: str = "sleep 1000",
    container: str = "main",
    queue: str = TEAM,
    told_to_go: int = KILLED,
    **spec: Any,
) -> dict[str, Any]:
    """What an operator makes its pods of."""
    pod = a_pod("x", gpus=gpus, script=script, told_to_go=told_to_go, **spec)
    pod["spec"]["containers"][0]["name"] = container
    labels = {"kai.scheduler/queue": queue} if queue else {}
    return {"metadata": {"labels": labels}, "spec": pod["spec"]}
