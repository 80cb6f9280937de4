"""Objects of Kubernetes from the text a user would write, with what the API server and the controllers add."""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from gpuyard.worlds.kubernetes.grouping import Grouping, group_of
from gpuyard.worlds.kubernetes.objects import KaiQueue, KaiTopology, Owner, OwnerReference, Pod, PodGroup, PriorityClass
from gpuyard.worlds.kubernetes.priorities import Priorities
from gpuyard.worlds.kubernetes.queues import QueueTree, read_queues
from gpuyard.worlds.kubernetes.settings import Settings
from gpuyard.worlds.kubernetes.topologies import NO_TOPOLOGIES, Topologies

MADE = "2025-03-01T10:00:00Z"


def objects_in(text: str) -> list[dict[str, Any]]:
    """Every document of a manifest, as the API server would give it back."""
    return [_stored(one) for one in yaml.safe_load_all(text) if one]


def _stored(one: dict[str, Any]) -> dict[str, Any]:
    metadata = {"namespace": "default", "creationTimestamp": MADE, **one.get("metadata", {})}
    metadata.setdefault("uid", f"{one.get('kind', '')}-{metadata['name']}")
    return {**one, "metadata": metadata}


def queues_in(text: str) -> QueueTree:
    return read_queues(msgspec.convert(one, KaiQueue) for one in objects_in(text))


def topologies_in(text: str) -> dict[str, KaiTopology]:
    return {one["metadata"]["name"]: msgspec.convert(one, KaiTopology) for one in objects_in(text)}


def classes_in(text: str) -> list[PriorityClass]:
    return [msgspec.convert(one, PriorityClass) for one in objects_in(text)]


def an_owner(text: str, **status: Any) -> Owner:
    one = objects_in(text)[0]
    return msgspec.convert({**one, "status": status or None}, Owner)


def owned_by(above: Owner, one: Owner) -> Owner:
    return msgspec.structs.replace(
        one, metadata=msgspec.structs.replace(one.metadata, owner_references=[_reference(above)])
    )


def _reference(owner: Owner) -> OwnerReference:
    return OwnerReference(owner.kind, owner.metadata.name, owner.metadata.uid, owner.api_version, controller=True)


def a_pod(
    name: str = "p",
    owner: Owner | None = None,
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> Pod:
    """A pod as its owner's controller makes it."""
    pod = msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"Pod-{name}",
                "creationTimestamp": MADE,
                "labels": labels,
                "annotations": annotations,
            },
            "spec": spec,
        },
        Pod,
    )
    if owner is None:
        return pod
    metadata = msgspec.structs.replace(pod.metadata, owner_references=[_reference(owner)])
    return msgspec.structs.replace(pod, metadata=metadata)


def a_pod_group(text: str) -> PodGroup:
    return msgspec.convert(objects_in(text)[0], PodGroup)


def grouped(
    pod: Pod,
    *owners: Owner,
    podgroup: PodGroup | None = None,
    classes: str = "",
    settings: Settings | None = None,
    topologies: Topologies = NO_TOPOLOGIES,
) -> Grouping:
    return group_of(pod, owners, podgroup, Priorities(classes_in(classes)), settings or Settings(), topologies)
