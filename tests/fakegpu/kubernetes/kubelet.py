"""The plugin side of a kubelet in a thread, for what needs no containers: it takes registrations and watches devices.

As the real one it calls back before it accepts, and a restart deletes every socket in its folder.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import grpc

from gpuyard.fakegpu.kubernetes import deviceplugin_pb2 as pb

SECONDS = 60.0
SUPPORTED = "v1beta1"


class Client:
    """One registered plugin: its channel, and the lists it has sent."""

    def __init__(self, socket: str, heard: threading.Condition) -> None:
        self.lists: list[dict[str, str]] = []
        self.ended = False
        self._heard = heard
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=[("grpc.use_local_subchannel_pool", 1)])
        self.options = self.call("GetDevicePluginOptions", pb.Empty(), pb.DevicePluginOptions)

    def call(self, name: str, request: Any, answer: Any, within_s: float = SECONDS) -> Any:
        method = self._channel.unary_unary(
            f"/v1beta1.DevicePlugin/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return method(request, timeout=within_s)

    def watch(self) -> None:
        stream = self._channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=pb.Empty.SerializeToString,
            response_deserializer=pb.ListAndWatchResponse.FromString,
        )(pb.Empty())
        try:
            for message in stream:
                self._note(partial(self.lists.append, {one.ID: one.health for one in message.devices}))
                self.last = message
        except grpc.RpcError:
            pass
        self._note(lambda: setattr(self, "ended", True))

    def _note(self, change: Callable[[], object]) -> None:
        with self._heard:
            change()
            self._heard.notify_all()

    def close(self) -> None:
        self._channel.close()


class FakeKubelet:
    """Listens on kubelet.sock of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clients: dict[str, Client] = {}
        self.registrations: list[tuple[str, float]] = []
        self.refused: list[str] = []
        self._heard = threading.Condition()
        folder.mkdir(parents=True, exist_ok=True)
        # The folder of a test may lie deeper than the path of a socket is long.
        self._sockets = f"/proc/self/fd/{os.open(folder, os.O_RDONLY)}"

    def start(self) -> None:
        """As the real one: nothing in the folder is left, then it listens."""
        for left in self.folder.iterdir():
            left.unlink()
        self.registrations.clear()
        self.refused.clear()
        self._server = grpc.server(ThreadPoolExecutor(4))
        handler = grpc.unary_unary_rpc_method_handler(
            self._register,
            request_deserializer=pb.RegisterRequest.FromString,
            response_serializer=pb.Empty.SerializeToString,
        )
        service = grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler})
        self._server.add_generic_rpc_handlers((service,))
        self._server.add_insecure_port(f"unix:{self._sockets}/kubelet.sock")
        self._server.start()
        self.started_at = monotonic()

    def stop(self) -> None:
        for client in self.clients.values():
            client.close()
        self.clients.clear()
        self._server.stop(None).wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    def _register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:
        if request.version != SUPPORTED:
            self.refused.append(request.version)
            context.abort(grpc.StatusCode.UNKNOWN, f"version {request.version} is not supported")
        client = Client(f"{self._sockets}/{request.endpoint}", self._heard)
        assert client.options == request.options
        threading.Thread(target=client.watch, daemon=True).start()
        with self._heard:
            self.clients[request.resource_name] = client
            self.registrations.append((request.resource_name, monotonic()))
            self._heard.notify_all()
        return pb.Empty()

    def until(self, holds: Callable[[], object], within_s: float = SECONDS) -> None:
        with self._heard:
            assert self._heard.wait_for(holds, within_s), f"not within {within_s} s; now {self.shown()}"

    def shown(self) -> dict[str, dict[str, str]]:
        """What each resource has last sent."""
        return {name: client.lists[-1] for name, client in self.clients.items() if client.lists}

    def healthy(self, resource: str = "nvidia.com/gpu") -> list[str]:
        return [id for id, health in self.shown().get(resource, {}).items() if health == "Healthy"]

    def allocate(self, ids: Iterable[str], resource: str = "nvidia.com/gpu", within_s: float = SECONDS) -> Any:
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        answer = self.clients[resource].call("Allocate", request, pb.AllocateResponse, within_s)
        (one,) = answer.container_responses
        return one
