"""An API server of pods alone, for writers: binds, evictions, statuses, and whatever goes wrong with them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from tests.kubeapi.scripted import NOTHING, Answer, Asked, Script, refused

POD = re.compile(r"/api/v1/namespaces/(?P<namespace>[^/]+)/pods/(?P<name>[^/]+)(/(?P<part>\w+))?")

Fault = Callable[[Callable[[], Answer]], Answer]
"""Is given what would happen, and decides what does."""


def no(status: int, reason: str = "", message: str = "no") -> Fault:
    """Refused, and not done."""
    return lambda do: refused(status, reason, message)


def lost(do: Callable[[], Answer]) -> Answer:
    """Done, but nobody hears of it."""
    do()
    return NOTHING


def unheard(do: Callable[[], Answer]) -> Answer:
    """Neither done nor answered."""
    return NOTHING


class PodServer(Script):
    """Faults are used up one by one, by what they are about: binding, eviction, status, get."""

    def __init__(self) -> None:
        super().__init__(Answer())
        self.pods: dict[str, dict[str, Any]] = {}
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        self.done: list[str] = []
        """What was really done."""
        self.maps: dict[str, Any] = {}

    def add(self, name: str, uid: str = "", node: str = "") -> None:
        metadata = {"name": name, "namespace": "a", "uid": uid or f"uid-{name}"}
        spec = {"nodeName": node} if node else {}
        self.pods[f"a/{name}"] = {"metadata": metadata, "spec": spec, "status": {}}

    def node_of(self, name: str) -> str:
        return str(self.pods[f"a/{name}"]["spec"].get("nodeName", ""))

    def asked_for(self, what: str) -> int:
        return sum(_about(asked) == what for asked in self.asked)

    def next(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        about = _about(asked)
        faults = self.faults[about]
        return faults.pop(0)(lambda: self._do(asked, about)) if faults else self._do(asked, about)

    def _do(self, asked: Asked, about: str) -> Answer:
        found = POD.fullmatch(asked.path)
        if found is None:
            self.done.append(about)
            self.maps[asked.path] = asked.body
            return Answer(200, asked.body)
        pod = self.pods.get(f"{found['namespace']}/{found['name']}")
        if pod is None:
            return refused(404, "NotFound")
        if about == "get":
            return Answer(200, pod)
        return self._write(asked, about, found["name"], pod)

    def _write(self, asked: Asked, about: str, name: str, pod: dict[str, Any]) -> Answer:
        meant = asked.body.get("deleteOptions", {}).get("preconditions", {}) if about == "eviction" else asked.body
        uid = meant.get("uid") or meant.get("metadata", {}).get("uid")
        if uid != pod["metadata"]["uid"]:
            return refused(409, "Conflict")
        match about:
            case "binding":
                if pod["spec"].get("nodeName"):
                    return refused(409, "Conflict", "already assigned")
                pod["spec"]["nodeName"] = asked.body["target"]["name"]
            case "eviction":
                del self.pods[f"a/{name}"]
            case "status":
                pod["status"] |= asked.body["status"]
        self.done.append(f"{about} {name}")
        return Answer(201, {"kind": "Status"})


def _about(asked: Asked) -> str:
    found = POD.fullmatch(asked.path)
    if found is None:
        return asked.path.rsplit("/", 2)[-2] if asked.method == "PATCH" else asked.path.rsplit("/", 1)[-1]
    return found["part"] or asked.method.lower()
