"""Events of Kubernetes: what has happened to an object, in words.

Place in the flow: fake GPUs, scheduler ─**events**─▶ client ─▶ API server. Pure. Invariant: the same words about the
same object make an event of the same name, so that what is told twice, also by a process started anew, is told once.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from gpuyard.kubeapi.paths import path_of

MAX_NOTE: Final = 1_000
"""Characters of an event's note; the API server takes a few more."""
MAX_INSTANCE: Final = 128
CLUSTER_EVENTS: Final = "default"
"""Where events of objects live that have no namespace."""


class Subject(msgspec.Struct, frozen=True):
    """What an event is about."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    api_version: str = "v1"

    def __str__(self) -> str:
        where = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind} {where}{self.name}"


class Author(msgspec.Struct, frozen=True):
    """Who tells it, and which of its processes."""

    controller: str
    instance: str


def event_of(
    subject: Subject, reason: str, note: str, author: Author, at: str, action: str = "Reporting", kind: str = "Warning"
) -> dict[str, Any]:
    """The object; `at` is the time to the microsecond."""
    words = "\0".join((subject.uid, subject.name, reason, note))
    digest = hashlib.blake2b(words.encode(), digest_size=8).hexdigest()
    regarding = {"apiVersion": subject.api_version, "kind": subject.kind, "name": subject.name, "uid": subject.uid}
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"{subject.name[:200].rstrip('-.')}.{digest}",
            "namespace": subject.namespace or CLUSTER_EVENTS,
        },
        "eventTime": at,
        "reportingController": author.controller,
        "reportingInstance": author.instance[:MAX_INSTANCE],
        "action": action,
        "reason": reason,
        "regarding": {**regarding, "namespace": subject.namespace} if subject.namespace else regarding,
        "type": kind,
        "note": note[:MAX_NOTE],
    }


def path_of_event(event: dict[str, Any]) -> str:
    """The collection it is made in."""
    return path_of("events", group="events.k8s.io", namespace=event["metadata"]["namespace"])
