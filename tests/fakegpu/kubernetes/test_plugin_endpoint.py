"""One endpoint on its socket."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import grpc.aio
import pytest

from gpuyard.errors import FakeGpuError
from gpuyard.fakegpu.kubernetes import deviceplugin_pb2 as pb
from gpuyard.fakegpu.kubernetes.plugin_endpoint import Endpoint, lock_of
from gpuyard.fakegpu.kubernetes.plugin_grant import NOTHING

PATH_OF_A_SOCKET = 107


def test_a_folder_may_lie_deeper_than_a_sockets_path_is_long(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 30) / "device-plugins"
    folder.mkdir(parents=True)
    assert len(str(folder)) > PATH_OF_A_SOCKET

    async def served() -> pb.DevicePluginOptions:
        endpoint = Endpoint("nvidia.com/gpu", folder, lambda ids: NOTHING)
        assert await endpoint.begin() is not None
        assert endpoint.socket.is_socket()
        handle = os.open(folder, os.O_RDONLY)
        async with grpc.aio.insecure_channel(f"unix:/proc/self/fd/{handle}/{endpoint.socket.name}") as channel:
            call = channel.unary_unary(
                "/v1beta1.DevicePlugin/GetDevicePluginOptions",
                request_serializer=pb.Empty.SerializeToString,
                response_deserializer=pb.DevicePluginOptions.FromString,
            )
            options: pb.DevicePluginOptions = await call(pb.Empty(), timeout=10)
        os.close(handle)
        await endpoint.end()
        return options

    assert asyncio.run(served()).get_preferred_allocation_available


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    endpoint_in = tmp_path / "none"

    async def begun() -> None:
        await Endpoint("nvidia.com/gpu", endpoint_in, lambda ids: NOTHING).begin()

    with pytest.raises(FakeGpuError, match="--plugin-dir"):
        asyncio.run(begun())


def test_one_plugin_of_ours_has_the_folder_at_a_time(tmp_path: Path) -> None:
    first = lock_of(tmp_path)
    assert first is not None
    assert lock_of(tmp_path) is None
    os.close(first)
    second = lock_of(tmp_path)
    assert second is not None
    os.close(second)
    assert lock_of(tmp_path / "none") is None
