"""Objects of KAI that this scheduler does not act on: told on the objects themselves, in a condition.

Place in the flow: API server ─list─▶ **unsupported** ─condition─▶ status of SchedulingShard, Config, BindRequest; pods
that ask for NUMA placement. Invariant: conditions of others stay as they are; an object is told once.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gpuyard.errors import KubeError, KubeRefusedError
from gpuyard.kubeapi.client import NOT_FOUND, STRATEGIC, KubeClient
from gpuyard.kubeapi.follow import listed
from gpuyard.kubeapi.moments import text_of
from gpuyard.kubeapi.paths import path_of
from gpuyard.platform.clock import wall_ms
from gpuyard.worlds.kubernetes.objects import Metadata
from gpuyard.worlds.kubernetes.picture import Picture
from gpuyard.worlds.kubernetes.raw import items_at
from gpuyard.worlds.kubernetes.world import pod_name
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
    ),
)


class _Told(msgspec.Struct, frozen=True):
    metadata: Metadata
    status: dict[str, Any] | None = None


class Unsupported:
    """Looks for such objects now and then."""

    def __init__(self, client: KubeClient, writer: Writer, picture: Picture) -> None:
        self._client = client
        self._writer = writer
        self._picture = picture
        self._pods: set[str] = set()

    async def tell(self) -> None:
        """Tell those that have not been told yet."""
        for kind in KINDS:
            for found in await self._listed(kind):
                status = _told_status(kind, found.status or {})
                if status is not None:
                    self._writer.say(lambda kind=kind, found=found, status=status: self._write(kind, found, status))  # type: ignore[misc]
        self._tell_pods()

    async def _listed(self, kind: Kind) -> list[_Told]:
        """None where the cluster does not know the kind, or does not let us read it."""
        try:
            return await listed(self._client, path_of(kind.plural, group=kind.group, version=kind.version), _Told)
        except KubeError:
            return []

    async def _write(self, kind: Kind, found: _Told, status: dict[str, Any]) -> None:
        metadata = found.metadata
        path = path_of(
            kind.plural,
            metadata.name,
            namespace=metadata.namespace,
            group=kind.group,
            version=kind.version,
            part="status",
        )
        await self._patched(path, {"status": status})

    def _tell_pods(self) -> None:
        self._pods &= {record.uid for record in self._picture.pods.values()}
        for record in self._picture.pods.values():
            asks = any(key.startswith(NUMA) for key in record.pod.metadata.annotations or ())
            if record.ours and asks and record.uid not in self._pods:
                self._pods.add(record.uid)
                name = pod_name(record)
                condition = _condition("gpuyard leaves NUMA placement to the kubelet")
                body = {"metadata": {"uid": name.uid}, "status": {"conditions": [condition]}}
                path = path_of("pods", name.name, namespace=name.namespace, part="status")
                self._writer.say(lambda path=path, body=body: self._patched(path, body, STRATEGIC))  # type: ignore[misc]

    async def _patched(self, path: str, body: dict[str, Any], kind: str = "application/merge-patch+json") -> None:
        try:
            await self._writer.request(lambda: self._client.merge(path, body, kind=kind))
        except KubeRefusedError as error:
            if error.status != NOT_FOUND:
                raise


def _told_status(kind: Kind, status: dict[str, Any]) -> dict[str, Any] | None:
    """What the status should say; None where it does."""
    if kind.field != "conditions":
        text = f"{REASON}: {kind.why}"
        return None if status.get(kind.field) else {kind.field: text}
    conditions = [one for one in items_at(status, "conditions") if isinstance(one, dict)]
    if any(one.get("type") == TYPE for one in conditions):
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
