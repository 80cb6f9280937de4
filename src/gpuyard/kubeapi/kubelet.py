"""What the kubelet of this node tells: which devices it has to give, and which container was given which.

Place in the flow: kubelet ─pod-resources v1, its checkpoint─▶ **kubelet** ─▶ node parts. Invariant: nothing is guessed.
The kubelet's answer has sidecars and ordinary containers. Init containers that end are not in it, though they hold
devices while they run: of those, and of those only, the kubelet's own record tells (the file beside its sockets).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import msgspec

from gpuyard.errors import KubeletError
from gpuyard.kubeapi import podresources_pb2 as pb

POD_RESOURCES: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
DEVICE_PLUGINS: Final = Path("/var/lib/kubelet/device-plugins")
CHECKPOINT: Final = "kubelet_internal_checkpoint"
ANSWER_S: Final = 2.0
MAX_ANSWER_BYTES: Final = 16 << 20
MAX_CHECKPOINT_BYTES: Final = 64 << 20

_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.enable_http_proxy", 0),
)

Wanted = Callable[[str], bool]
"""Whether a resource of this name is one of those somebody asks about."""


class Offered(msgspec.Struct, frozen=True):
    """A device the kubelet would give, or has given already."""

    resource: str
    id: str
    numa: int = 0
    """The group of processors it is near to; the first, where there are several or none is told."""


class Given(msgspec.Struct, frozen=True):
    """Devices of one resource that one container was given."""

    namespace: str
    pod: str
    container: str
    resource: str
    devices: tuple[str, ...]


class Recorded(msgspec.Struct, frozen=True):
    """The same in the kubelet's record, which knows pods by their uid."""

    pod: str
    container: str
    resource: str
    devices: tuple[str, ...]


class PodResources:
    """The kubelet's answers, asked over its socket; a KubeletError while there are none."""

    def __init__(self, socket: Path, wanted: Wanted) -> None:
        self._socket = socket
        self._wanted = wanted
        self._channel = grpc.aio.insecure_channel(f"unix:{socket.absolute()}", options=_OPTIONS)
        self._list = self._channel.unary_unary(
            "/v1.PodResourcesLister/List",
            request_serializer=pb.ListPodResourcesRequest.SerializeToString,
            response_deserializer=pb.ListPodResourcesResponse.FromString,
        )
        self._allocatable = self._channel.unary_unary(
            "/v1.PodResourcesLister/GetAllocatableResources",
            request_serializer=pb.AllocatableResourcesRequest.SerializeToString,
            response_deserializer=pb.AllocatableResourcesResponse.FromString,
        )

    async def close(self) -> None:
        await self._channel.close()

    async def given(self) -> tuple[Given, ...]:
        """All devices that pods of this node hold."""
        return given_in(await self._ask(self._list, pb.ListPodResourcesRequest()), self._wanted)

    async def offered(self) -> tuple[Offered, ...]:
        """All devices that are healthy, as far as their plugins say."""
        return offered_in(await self._ask(self._allocatable, pb.AllocatableResourcesRequest()), self._wanted)

    async def _ask(self, method: Callable[..., Any], request: object) -> Any:  # noqa: ANN401 - each has its own answer
        try:
            return await method(request, timeout=ANSWER_S)
        except grpc.aio.AioRpcError as error:
            why = error.details() or str(error.code())
            fix = "what it said before counts; it is asked again"
            raise KubeletError(f"the kubelet does not answer at {self._socket}: {why}", fix=fix) from None


def given_in(answer: pb.ListPodResourcesResponse, wanted: Wanted) -> tuple[Given, ...]:
    """An answer's devices; a resource may come in several parts, one for each group of processors."""
    return tuple(
        Given(pod.namespace, pod.name, container.name, resource, devices)
        for pod in answer.pod_resources
        for container in pod.containers
        for resource, devices in _joined(((part.resource_name, part.device_ids) for part in container.devices), wanted)
    )


def offered_in(answer: pb.AllocatableResourcesResponse, wanted: Wanted) -> tuple[Offered, ...]:
    """By resource and id; a device that is near to several groups of processors comes once for each."""
    found: dict[tuple[str, str], int] = {}
    for part in answer.devices:
        if wanted(part.resource_name):
            numa = min((max(node.ID, 0) for node in part.topology.nodes), default=0)
            for device in part.device_ids:
                key = (part.resource_name, device)
                found[key] = min(found.get(key, numa), numa)
    return tuple(Offered(resource, device, numa) for (resource, device), numa in sorted(found.items()))


def _joined(parts: Iterable[tuple[str, Iterable[str]]], wanted: Wanted) -> Iterator[tuple[str, tuple[str, ...]]]:
    found: dict[str, set[str]] = {}
    for resource, devices in parts:
        if wanted(resource):
            found.setdefault(resource, set()).update(devices)
    return ((resource, tuple(sorted(devices))) for resource, devices in sorted(found.items()) if devices)


# ------------------------------------------------------------------------------------------------------- its record


class _Entry(msgspec.Struct, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID", default="")
    container_name: str = ""
    resource_name: str = ""
    device_ids: dict[str, list[str]] | None = msgspec.field(name="DeviceIDs", default=None)


class _Data(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[_Entry] | None = None


class _Record(msgspec.Struct, rename="pascal"):
    data: _Data


async def recorded(folder: Path, wanted: Wanted) -> tuple[Recorded, ...]:
    """What the kubelet has written down; a KubeletError where that cannot be read."""
    path = folder / CHECKPOINT
    try:
        content = await asyncio.to_thread(_content, path)
        record = msgspec.json.decode(content, type=_Record)
    except (OSError, msgspec.DecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        fix = "devices of init containers are not told; those of all others are"
        raise KubeletError(f"the kubelet's record {path} cannot be read: {why}", fix=fix) from None
    return tuple(
        Recorded(entry.pod_uid, entry.container_name, resource, devices)
        for entry in record.data.pod_device_entries or ()
        for resource, devices in _joined(
            ((entry.resource_name, ids) for ids in (entry.device_ids or {}).values()), wanted
        )
    )


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_CHECKPOINT_BYTES)
