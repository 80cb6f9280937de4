"""What the kubelet tells, and what its record tells of init containers."""

from __future__ import annotations

import asyncio
from importlib import resources
from pathlib import Path

import pytest

from gpuyard.errors import FakeGpuError
from gpuyard.fakegpu.kubernetes import podresources_pb2 as pb
from gpuyard.fakegpu.kubernetes.kubelet import Given, PodResources, Recorded, given_in, recorded

ROOT = Path(__file__).parents[3]
PROTO = "kubelet/v1/podresources.proto"
RECORD = """{"Data": {"PodDeviceEntries": [
  {"PodUID": "u1", "ContainerName": "init", "ResourceName": "nvidia.com/gpu",
   "DeviceIDs": {"-1": ["g1", "g0"], "1": ["g2"]}, "AllocResp": "CgA="},
  {"PodUID": "u2", "ContainerName": "main", "ResourceName": "vendor.com/nic", "DeviceIDs": {"0": ["n0"]}}
 ], "RegisteredDevices": {"nvidia.com/gpu": ["g0", "g1", "g2"]}}, "Checksum": 4242}"""


def container(name: str, *devices: tuple[str, list[str]]) -> pb.ContainerResources:
    return pb.ContainerResources(
        name=name, devices=[pb.ContainerDevices(resource_name=r, device_ids=i) for r, i in devices]
    )


def test_gpus_of_every_container_and_nothing_else() -> None:
    gpu = "nvidia.com/gpu"
    pods = [
        pb.PodResources(
            name="p", namespace="a", containers=[container("x", (gpu, ["g1"]), (gpu, ["g0"])), container("y")]
        ),
        pb.PodResources(name="q", namespace="b", containers=[container("z", ("vendor.com/nic", ["n"]))]),
        pb.PodResources(name="r", namespace="b", containers=[container("m", ("nvidia.com/mig-1g.10gb", ["m0"]))]),
    ]
    assert given_in(pb.ListPodResourcesResponse(pod_resources=pods)) == (
        Given("a", "p", "x", ("g0", "g1")),
        Given("b", "r", "m", ("m0",)),
    )


def test_fields_nobody_reads_are_skipped() -> None:
    # A kubelet also tells of processors (field 3) and memory (field 4) of a container.
    content = bytes.fromhex("0a0f 0a0170 12016e 1a07 0a0178 1a020102".replace(" ", ""))
    assert given_in(pb.ListPodResourcesResponse.FromString(content)) == ()


def test_a_kubelet_that_is_not_there_is_a_named_error(tmp_path: Path) -> None:
    async def ask() -> None:
        kubelet = PodResources(tmp_path / "none.sock")
        try:
            await kubelet.given()
        finally:
            await kubelet.close()

    with pytest.raises(FakeGpuError, match="the kubelet does not answer"):
        asyncio.run(ask())


def test_the_record(tmp_path: Path) -> None:
    (tmp_path / "kubelet_internal_checkpoint").write_text(RECORD)
    assert asyncio.run(recorded(tmp_path)) == (Recorded("u1", "init", ("g0", "g1", "g2")),)


@pytest.mark.parametrize("content", [None, "", "[]", '{"Data": 7}'])
def test_a_record_that_cannot_be_read_is_a_named_error(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "kubelet_internal_checkpoint").write_text(content)
    with pytest.raises(FakeGpuError, match=r"record .* cannot be read"):
        asyncio.run(recorded(tmp_path))


@pytest.mark.slow
def test_the_messages_are_what_protoc_makes_of_the_file(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools is not installed")
    common = str(resources.files("grpc_tools") / "_proto")
    arguments = [f"-I{ROOT / 'proto'}", f"-I{common}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", PROTO]
    assert protoc.main(["protoc", *arguments]) == 0
    for suffix in ("py", "pyi"):
        made = (tmp_path / PROTO).with_name(f"podresources_pb2.{suffix}").read_text(encoding="utf-8")
        kept = ROOT / "src" / "gpuyard" / "fakegpu" / "kubernetes" / f"podresources_pb2.{suffix}"
        assert kept.read_text(encoding="utf-8") == made, "make it anew: see docs/fake-gpus-kubernetes.md"
