"""Objects of KAI that this scheduler does not act on: told on the objects themselves, in a condition.

Place in the flow: API server ─list─▶ **unsupported** ─condition─▶ status of SchedulingShard, Config, BindRequest; pods
that ask for NUMA placement. Invariants: conditions of others stay as they are; an object is told once, whoever leads;
of BindRequests only those about our pods are told, because KAI may serve its own beside us.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gpuyard.errors import KubeError, KubeRefusedError
from gpuyard.kubeapi.client import CONFLICT, MERGE, NOT_FOUND, STRATEGIC, KubeClient
from gpuyard.kubeapi.follow import listed
from gpuyard.kubeapi.moments import text_of
from gpuyard.kubeapi.paths import path_of
from gpuyard.platform.clock import wall_ms
from gpuyard.worlds.kubernetes.objects import Metadata, Pod
from gpuyard.worlds.kubernetes.picture import Picture
from gpuyard.worlds.kubernetes.writer import Writer

TYPE: Final = "gpuyard.io/Supported"
REASON: Final = "NotSupported"
NUMA: Final = "kai.scheduler/numa"
"""How annotations begin with which a pod asks for NUMA placement."""


class Kind(msgspec.Struct, frozen=True):
    """A kind that is not acted on, and what to do instead."""

    plural: str
    group: str
    version: str
    why: str
    field: str = "conditions"
    """Where in the status it is told: a list of conditions, or a plain text."""
    of_pods: bool = False
    """Whether each is about one pod."""


KINDS: Final = (
    Kind(
        "schedulingshards",
        "kai.scheduler",
        "v1",
        "gpuyard schedules all nodes together, in no shards; its settings are options of gpuyard kube scheduler",
    ),
    Kind(
        "configs", "kai.scheduler", "v1", "gpuyard reads no Config; its settings are options of gpuyard kube scheduler"
    ),
    Kind(
        "bindrequests",
        "scheduling.run.ai",
        "v1alpha2",
        "gpuyard binds pods itself and acts on no BindRequest",
        field="reason",
        of_pods=True,
    ),
)


class _Found(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


class Unsupported:
    """Looks for such objects now and then."""

    def __init__(self, client: KubeClient, writer: Writer, picture: Picture) -> None:
        self._client = client
        self._writer = writer
        self._picture = picture

    async def tell(self) -> None:
        """Tell those that have not been told yet."""
        for kind in KINDS:
            for found in await self._listed(kind):
                status = _told_status(kind, found.status or {})
                if status is not None and self._concerns_us(kind, found):
                    self._say(_path_of_status(kind, found.metadata), found.metadata, status)
        for record in self._picture.pods.values():
            if record.ours and not record.over and _asks_for_numa(record.pod):
                path = path_of("pods", record.pod.metadata.name, namespace=record.pod.metadata.namespace, part="status")
                status = {"conditions": [_condition("gpuyard leaves NUMA placement to the kubelet")]}
                self._say(path, record.pod.metadata, status, STRATEGIC)

    async def _listed(self, kind: Kind) -> list[_Found]:
        """Nothing where the cluster does not know the kind, or does not let us read it."""
        try:
            return await listed(self._client, path_of(kind.plural, group=kind.group, version=kind.version), _Found)
        except KubeError:
            return []

    def _concerns_us(self, kind: Kind, found: _Found) -> bool:
        if not kind.of_pods:
            return True
        record = self._picture.pods.get(f"{found.metadata.namespace}/{(found.spec or {}).get('podName')}")
        return record is not None and record.ours

    def _say(self, path: str, metadata: Metadata, status: dict[str, Any], kind: str = MERGE) -> None:
        # A merge writes the whole list of conditions: only over the very list that was read. Of pods they are joined.
        version = {} if kind == STRATEGIC else {"resourceVersion": metadata.resource_version}
        body = {"metadata": {"uid": metadata.uid, **version}, "status": status}
        self._writer.say(lambda: self._patched(path, body, kind))

    async def _patched(self, path: str, body: dict[str, Any], kind: str) -> None:
        """What is gone, or has changed since it was read, is looked at again the next time."""
        try:
            await self._writer.request(lambda: self._client.merge(path, body, kind=kind))
        except KubeRefusedError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise


def _path_of_status(kind: Kind, metadata: Metadata) -> str:
    return path_of(
        kind.plural, metadata.name, namespace=metadata.namespace, group=kind.group, version=kind.version, part="status"
    )


def _asks_for_numa(pod: Pod) -> bool:
    """And has not been told that it asks in vain."""
    told = any(one.type == TYPE for one in pod.status.conditions or ())
    return not told and any(key.startswith(NUMA) for key in pod.metadata.annotations or ())


def _told_status(kind: Kind, status: dict[str, Any]) -> dict[str, Any] | None:
    """What the status should say; None where it does."""
    if kind.field != "conditions":
        return None if status.get(kind.field) else {kind.field: f"{REASON}: {kind.why}"}
    known = status.get("conditions")
    conditions = known if isinstance(known, list) else []
    if any(isinstance(one, dict) and one.get("type") == TYPE for one in conditions):
        return None
    return {"conditions": [*conditions, _condition(kind.why)]}


def _condition(why: str) -> dict[str, Any]:
    return {
        "type": TYPE,
        "status": "False",
        "reason": REASON,
        "message": why,
        "lastTransitionTime": text_of(wall_ms()),
    }
