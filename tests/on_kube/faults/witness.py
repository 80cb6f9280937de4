"""An eyewitness of pods that trusts nobody: its own watch of the API server, and what must never be seen there."""

from __future__ import annotations

import json
import ssl
import threading
from time import monotonic
from typing import Any

import httpx2

from gpuyard.testbed.bed import Bed
from gpuyard.testbed.credentials import pki_folder, server_url

GPU = "nvidia.com/gpu"


class Witness:
    """Follows all pods of one namespace from now on."""

    def __init__(self, bed: Bed, namespace: str, capacity: dict[str, int]) -> None:
        self._url = server_url(bed.record)
        self._token = (pki_folder(bed.record) / "admin.token").read_text(encoding="ascii")
        self._trust = ssl.create_default_context(cafile=str(pki_folder(bed.record) / "ca.pem"))
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self.capacity = capacity
        self.pods: dict[str, dict[str, Any]] = {}
        self.wrong: list[str] = []
        """What must not have happened."""
        self.bound: dict[str, str] = {}
        """By uid, where each was bound."""
        self.half_since: dict[str, float] = {}
        self.longest_half_s: dict[str, float] = {}
        """By gang, for how long at most less of it ran than it needs."""
        self.minimum: dict[str, int] = {}
        """Gangs, by the label `gang` of their pods, and how many they cannot do without."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(30)

    def _run(self) -> None:
        headers = {"Authorization": f"Bearer {self._token}"}
        timeout = httpx2.Timeout(10, read=0.5)
        with httpx2.Client(base_url=self._url, headers=headers, verify=self._trust, timeout=timeout) as http:
            version = ""
            while not self._over.is_set():
                try:
                    version = self._follow(http, version) if version else self._list(http)
                except (httpx2.HTTPError, KeyError, ValueError):
                    self._over.wait(0.2)

    def _list(self, http: httpx2.Client) -> str:
        answer = http.get(self._path)
        answer.raise_for_status()
        found = answer.json()
        there = {pod["metadata"]["uid"]: pod for pod in found["items"]}
        for uid in set(self.pods) - set(there):
            self._see("DELETED", self.pods[uid])
        for pod in there.values():
            self._see("MODIFIED", pod)
        return str(found["metadata"]["resourceVersion"])

    def _follow(self, http: httpx2.Client, version: str) -> str:
        query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "30"}
        try:
            with http.stream("GET", self._path, params=query) as answer:
                if answer.status_code != 200:
                    return ""
                for line in answer.iter_lines():
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return ""
                    version = event["object"]["metadata"]["resourceVersion"]
                    self._see(event["type"], event["object"])
                    if self._over.is_set():
                        break
        except httpx2.ReadTimeout:
            pass
        return version

    def _see(self, kind: str, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            self.pods.pop(uid, None)
        else:
            self.pods[uid] = pod
            node = pod["spec"].get("nodeName")
            if node and self.bound.setdefault(uid, node) != node:
                self.wrong.append(f"{pod['metadata']['name']} was bound to {self.bound[uid]} and then to {node}")
        self._count_gpus()
        self._count_gangs()

    def _count_gpus(self) -> None:
        held: dict[str, int] = {}
        for pod in self.pods.values():
            node = pod["spec"].get("nodeName")
            if node and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                held[node] = held.get(node, 0) + gpus_of(pod)
        for node, count in held.items():
            if count > self.capacity.get(node, 1 << 30):
                self.wrong.append(f"{count} GPUs of {node} were given, which has {self.capacity[node]}")

    def _count_gangs(self) -> None:
        now = monotonic()
        running = dict.fromkeys(self.minimum, 0)
        for pod in self.pods.values():
            gang = pod["metadata"].get("labels", {}).get("gang")
            if gang in running and pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]:
                running[gang] += 1
        for gang, count in running.items():
            if 0 < count < self.minimum[gang]:
                self.half_since.setdefault(gang, now)
            since = self.half_since.get(gang)
            if since is not None:
                self.longest_half_s[gang] = max(self.longest_half_s.get(gang, 0.0), now - since)
                if count == 0 or count >= self.minimum[gang]:
                    del self.half_since[gang]


def gpus_of(pod: dict[str, Any]) -> int:
    limits = (one.get("resources", {}).get("limits", {}) for one in pod["spec"]["containers"])
    return sum(int(one.get(GPU, 0)) for one in limits)
