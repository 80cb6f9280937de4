"""One resource of a node, served to its kubelet: the gRPC service DevicePlugin on a socket of its own.

Place in the flow: Offer ─show─▶ **plugin_endpoint** ◀─gRPC─▶ kubelet. It knows what it serves and how it shall fail;
when it is served and registered is decided in plugin_life. Invariant: every open stream gets the newest list.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from gpuyard.errors import FakeGpuError
from gpuyard.fakegpu.kubernetes import deviceplugin_pb2 as pb
from gpuyard.fakegpu.kubernetes.plugin_grant import Grant
from gpuyard.fakegpu.kubernetes.plugin_life import SocketStamp
from gpuyard.fakegpu.kubernetes.plugin_offer import Devices, Failures, PluginDevice
from gpuyard.fakegpu.kubernetes.plugin_preference import preferred

VERSION: Final = "v1beta1"
UNKNOWN_VERSION: Final = "v0"
"""What no kubelet takes."""
KUBELET_SOCKET: Final = "kubelet.sock"
PREFIX: Final = "gpuyard-"
SERVICE: Final = pb.DESCRIPTOR.services_by_name["DevicePlugin"]
REGISTER: Final = "/v1beta1.Registration/Register"
REGISTER_S: Final = 10.0
"""As long as the kubelet itself tries to call back."""
OPTIONS: Final = (("grpc.enable_http_proxy", 0), ("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1))

Give = Callable[[Sequence[str]], Grant]
Context = Any  # What grpc hands to a call has no type of its own.


class Endpoint(grpc.GenericRpcHandler):
    """The devices of one resource. Use `show` for what they are, `begin` and `end` for the socket."""

    def __init__(self, resource: str, folder: Path, give: Give, *, numa: bool = False) -> None:
        self.resource: Final = resource
        self.socket: Final = folder / f"{PREFIX}{resource.replace('/', '-')}.sock"
        self._folder = folder
        self._give = give
        self._numa = numa
        self.devices: Devices = ()
        self._failures = Failures()
        self._changed = asyncio.Event()
        self._answering = asyncio.Event()
        self._answering.set()
        self._streams = 0
        self._server: grpc.aio.Server | None = None
        self._handle = -1

    # -------------------------------------------------------------------------------------------------- what it shows

    def show(self, devices: Devices, failures: Failures) -> None:
        """From now on."""
        changed = devices != self.devices
        self.devices, self._failures = devices, failures
        if failures.hanging:
            self._answering.clear()
        else:
            self._answering.set()
        if changed:
            before, self._changed = self._changed, asyncio.Event()
            before.set()

    @property
    def listening(self) -> bool:
        return self._streams > 0

    # ----------------------------------------------------------------------------------------------------- its socket

    async def begin(self) -> SocketStamp | None:
        """Serve on a fresh socket; what it looks like."""
        await self.end()
        self._handle = _open_folder(self._folder)
        self._server = grpc.aio.server(handlers=(self,))
        try:
            # A socket's path has 107 bytes at most; by way of the open folder it is short, however deep that lies.
            self._server.add_insecure_port(f"unix:/proc/self/fd/{self._handle}/{self.socket.name}")
        except RuntimeError:
            await self.end()
            raise FakeGpuError(
                f"{self.socket} cannot be made", fix="may we write there, and is the disk full?"
            ) from None
        await self._server.start()
        return stamp(self.socket)

    async def end(self) -> None:
        """Cut everybody off."""
        if self._server is not None:
            await self._server.stop(None)
        if self._handle >= 0:
            os.close(self._handle)
        self._server, self._handle = None, -1

    async def register(self, version: str) -> None:
        """Tell the kubelet; it has called us back when this returns. FakeGpuError if it does not take us."""
        request = pb.RegisterRequest(
            version=version, endpoint=self.socket.name, resource_name=self.resource, options=self._options()
        )
        async with grpc.aio.insecure_channel(
            f"unix:/proc/self/fd/{self._handle}/{KUBELET_SOCKET}", options=OPTIONS
        ) as channel:
            call = channel.unary_unary(
                REGISTER,
                request_serializer=pb.RegisterRequest.SerializeToString,
                response_deserializer=pb.Empty.FromString,
            )
            try:
                await call(request, timeout=REGISTER_S)
            except grpc.aio.AioRpcError as error:
                raise FakeGpuError(f"the kubelet does not take {self.resource}: {error.details()}") from None

    # -------------------------------------------------------------------------------------------------------- serving

    def service(self, details: grpc.HandlerCallDetails) -> Any:  # noqa: ANN401
        name = details.method.removeprefix(f"/{SERVICE.full_name}/")
        match name:
            case "GetDevicePluginOptions":
                return _unary(self._get_options, pb.Empty, pb.DevicePluginOptions)
            case "ListAndWatch":
                return grpc.unary_stream_rpc_method_handler(
                    self._list_and_watch,
                    request_deserializer=pb.Empty.FromString,
                    response_serializer=pb.ListAndWatchResponse.SerializeToString,
                )
            case "GetPreferredAllocation":
                return _unary(self._prefer, pb.PreferredAllocationRequest, pb.PreferredAllocationResponse)
            case "Allocate":
                return _unary(self._allocate, pb.AllocateRequest, pb.AllocateResponse)
            case "PreStartContainer":
                return _unary(self._pre_start, pb.PreStartContainerRequest, pb.PreStartContainerResponse)
        return None

    async def _get_options(self, _request: pb.Empty, _context: Context) -> pb.DevicePluginOptions:
        await self._answering.wait()
        return self._options()

    def _options(self) -> pb.DevicePluginOptions:
        """All that a container needs is ready before it is created, so nobody needs to ask before it starts."""
        return pb.DevicePluginOptions(pre_start_required=False, get_preferred_allocation_available=True)

    async def _list_and_watch(self, _request: pb.Empty, _context: Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        self._streams += 1
        try:
            sent: Devices | None = None
            while True:
                await self._answering.wait()
                changed = self._changed
                if self.devices != sent:
                    sent = self.devices
                    yield pb.ListAndWatchResponse(devices=[self._message(device) for device in sent])
                else:
                    await changed.wait()
        finally:
            self._streams -= 1

    def _message(self, device: PluginDevice) -> pb.Device:
        message = pb.Device(ID=device.id, health="Healthy" if device.healthy else "Unhealthy")
        if self._numa:
            message.topology.nodes.add(ID=device.seat.numa_node)
        return message

    async def _prefer(
        self, request: pb.PreferredAllocationRequest, _context: Context
    ) -> pb.PreferredAllocationResponse:
        """A hint: what was taken away a moment ago is left out of it, and no reason to fail a pod."""
        await self._answering.wait()
        answer = pb.PreferredAllocationResponse()
        for asked in request.container_requests:
            meant = {*asked.must_include_deviceIDs, *asked.available_deviceIDs}
            available = [device for device in self.devices if device.id in meant]
            ids = preferred(available, asked.must_include_deviceIDs, asked.allocation_size)
            answer.container_responses.add(deviceIDs=ids)
        return answer

    async def _allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        await self._answering.wait()
        known = {device.id: device for device in self.devices}
        answer = pb.AllocateResponse()
        for asked in request.container_requests:
            await _refuse_unknown(asked.devices_ids, known, context)
            refused = [id for id in asked.devices_ids if known[id].gpu in self._failures.refused_gpus]
            if refused:
                await context.abort(grpc.StatusCode.UNAVAILABLE, f"a fault of {refused[0]}: it is not handed out")
            # In our order: the kubelet's changes from call to call.
            ids = [device.id for device in self.devices if device.id in asked.devices_ids]
            try:
                _add_grant(answer, self._give(ids))
            except FakeGpuError as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return answer

    async def _pre_start(
        self, _request: pb.PreStartContainerRequest, _context: Context
    ) -> pb.PreStartContainerResponse:
        await self._answering.wait()
        return pb.PreStartContainerResponse()


def _unary(handle: Any, request: Any, response: Any) -> Any:  # noqa: ANN401 - grpc's own, untyped
    return grpc.unary_unary_rpc_method_handler(
        handle, request_deserializer=request.FromString, response_serializer=response.SerializeToString
    )


async def _refuse_unknown(ids: Sequence[str], known: dict[str, PluginDevice], context: Context) -> None:
    strange = next((id for id in ids if id not in known), None)
    if strange is not None:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no device {strange} is on this node")


def _add_grant(answer: pb.AllocateResponse, given: Grant) -> None:
    added = answer.container_responses.add(envs=given.variables)
    for mount in given.mounts:
        added.mounts.add(container_path=mount.container_path, host_path=mount.host_path, read_only=True)


def stamp(path: Path) -> SocketStamp | None:
    """Of a socket; None where there is none."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return SocketStamp(found.st_ino, found.st_ctime_ns)


def lock_of(folder: Path) -> int | None:
    """The folder, for one plugin of ours at a time, until the handle is closed; None if it is not to be had."""
    try:
        handle = _open_folder(folder)
    except FakeGpuError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _open_folder(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        what = f"the kubelet's folder {folder} cannot be opened: {error.strerror}"
        raise FakeGpuError(what, fix="name it: --plugin-dir") from None
