"""What the kubelet of this node tells: which container was given which devices.

Place in the flow: kubelet ─pod-resources v1, its checkpoint─▶ **kubelet** ─▶ node part. Invariant: nothing is guessed.
The kubelet's answer has sidecars and ordinary containers. Init containers that end are not in it, though they hold
devices while they run: of those, and of those only, the kubelet's own record tells (the file beside its sockets).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import grpc
import msgspec

from gpuyard.errors import FakeGpuError
from gpuyard.fakegpu.kubernetes import podresources_pb2 as pb
from gpuyard.fakegpu.kubernetes.observed import is_gpu_resource

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


class Given(msgspec.Struct, frozen=True):
    """Devices one container was given."""

    namespace: str
    pod: str
    container: str
    devices: tuple[str, ...]


class Recorded(msgspec.Struct, frozen=True):
    """The same in the kubelet's record, which knows pods by their uid."""

    pod: str
    container: str
    devices: tuple[str, ...]


class PodResources:
    """The kubelet's answers, asked over its socket."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._channel = grpc.aio.insecure_channel(f"unix:{socket.absolute()}", options=_OPTIONS)
        self._list = self._channel.unary_unary(
            "/v1.PodResourcesLister/List",
            request_serializer=pb.ListPodResourcesRequest.SerializeToString,
            response_deserializer=pb.ListPodResourcesResponse.FromString,
        )

    async def close(self) -> None:
        await self._channel.close()

    async def given(self) -> tuple[Given, ...]:
        """All GPUs that pods of this node hold; a FakeGpuError while the kubelet does not answer."""
        try:
            answer = await self._list(pb.ListPodResourcesRequest(), timeout=ANSWER_S)
        except grpc.aio.AioRpcError as error:
            why = error.details() or str(error.code())
            fix = "what it said before counts; it is asked again"
            raise FakeGpuError(f"the kubelet does not answer at {self._socket}: {why}", fix=fix) from None
        return given_in(answer)


def given_in(answer: pb.ListPodResourcesResponse) -> tuple[Given, ...]:
    """An answer's GPUs; a resource may come in several parts, one for each group of processors."""
    return tuple(
        Given(pod.namespace, pod.name, container.name, devices)
        for pod in answer.pod_resources
        for container in pod.containers
        if (devices := _gpus((part.resource_name, part.device_ids) for part in container.devices))
    )


def _gpus(parts: Iterable[tuple[str, Iterable[str]]]) -> tuple[str, ...]:
    return tuple(sorted({device for name, devices in parts if is_gpu_resource(name) for device in devices}))


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


async def recorded(folder: Path) -> tuple[Recorded, ...]:
    """What the kubelet has written down; a FakeGpuError where that cannot be read."""
    path = folder / CHECKPOINT
    try:
        content = await asyncio.to_thread(_content, path)
        record = msgspec.json.decode(content, type=_Record)
    except (OSError, msgspec.DecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        fix = "GPUs of init containers are not told; those of all others are"
        raise FakeGpuError(f"the kubelet's record {path} cannot be read: {why}", fix=fix) from None
    return tuple(
        Recorded(entry.pod_uid, entry.container_name, devices)
        for entry in record.data.pod_device_entries or ()
        if (devices := _gpus((entry.resource_name, ids) for ids in (entry.device_ids or {}).values()))
    )


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_CHECKPOINT_BYTES)
