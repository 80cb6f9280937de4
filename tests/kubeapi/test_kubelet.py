"""What the kubelet tells of devices, and what its record tells of init containers."""

from __future__ import annotations

import asyncio
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from gpuyard.errors import KubeletError
from gpuyard.kubeapi import podresources_pb2 as pb
from gpuyard.kubeapi.kubelet import Given, Offered, PodResources, Recorded, given_in, offered_in, recorded

ROOT = Path(__file__).parents[2]
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


GPU = "nvidia.com/gpu"
MIG = "nvidia.com/mig-1g.10gb"


def is_wanted(resource: str) -> bool:
    return resource.startswith("nvidia.com/")


def test_gpus_of_every_container_and_nothing_else() -> None:
    pods = [
        pb.PodResources(
            name="p",
            namespace="a",
            containers=[container("x", (GPU, ["g1"]), (MIG, ["m1"]), (GPU, ["g0"])), container("y")],
        ),
        pb.PodResources(name="q", namespace="b", containers=[container("z", ("vendor.com/nic", ["n"]))]),
        pb.PodResources(name="r", namespace="b", containers=[container("m", (MIG, ["m0"]))]),
    ]
    assert given_in(pb.ListPodResourcesResponse(pod_resources=pods), is_wanted) == (
        Given("a", "p", "x", GPU, ("g0", "g1")),
        Given("a", "p", "x", MIG, ("m1",)),
        Given("b", "r", "m", MIG, ("m0",)),
    )


def offer(resource: str, ids: list[str], *numa: int) -> pb.ContainerDevices:
    nodes = [pb.NUMANode(ID=node) for node in numa]
    return pb.ContainerDevices(resource_name=resource, device_ids=ids, topology=pb.TopologyInfo(nodes=nodes))


def test_every_device_comes_once_with_the_first_processors_it_is_near_to() -> None:
    parts = [
        offer(GPU, ["g2", "g1"], 1),
        offer(GPU, ["g0"], 1),
        offer(GPU, ["g0"], 0),
        offer(MIG, ["m"], 3, 2),
        offer(GPU, ["g3"]),
        offer(GPU, ["g4"], -1),
        offer("vendor.com/nic", ["n"], 0),
    ]
    assert offered_in(pb.AllocatableResourcesResponse(devices=parts), is_wanted) == (
        Offered(GPU, "g0", 0),
        Offered(GPU, "g1", 1),
        Offered(GPU, "g2", 1),
        Offered(GPU, "g3", 0),
        Offered(GPU, "g4", 0),
        Offered(MIG, "m", 2),
    )


def test_fields_nobody_reads_are_skipped() -> None:
    # A kubelet also tells of processors (field 3) and memory (field 4) of a container.
    content = bytes.fromhex("0a0f 0a0170 12016e 1a07 0a0178 1a020102".replace(" ", ""))
    assert given_in(pb.ListPodResourcesResponse.FromString(content), is_wanted) == ()


@pytest.mark.parametrize("question", [PodResources.given, PodResources.offered])
def test_a_kubelet_that_is_not_there_is_a_named_error(tmp_path: Path, question: Any) -> None:
    async def ask() -> None:
        kubelet = PodResources(tmp_path / "none.sock", is_wanted)
        try:
            await question(kubelet)
        finally:
            await kubelet.close()

    with pytest.raises(KubeletError, match="the kubelet does not answer"):
        asyncio.run(ask())


def test_the_record(tmp_path: Path) -> None:
    (tmp_path / "kubelet_internal_checkpoint").write_text(RECORD)
    assert asyncio.run(recorded(tmp_path, is_wanted)) == (Recorded("u1", "init", GPU, ("g0", "g1", "g2")),)


@pytest.mark.parametrize("content", [None, "", "[]", '{"Data": 7}'])
def test_a_record_that_cannot_be_read_is_a_named_error(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "kubelet_internal_checkpoint").write_text(content)
    with pytest.raises(KubeletError, match=r"record .* cannot be read"):
        asyncio.run(recorded(tmp_path, is_wanted))


@pytest.mark.slow
def test_the_messages_are_what_protoc_makes_of_the_file(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools is not installed")
    common = str(resources.files("grpc_tools") / "_proto")
    arguments = [f"-I{ROOT / 'proto'}", f"-I{common}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", PROTO]
    assert protoc.main(["protoc", *arguments]) == 0
    for suffix in ("py", "pyi"):
        made = (tmp_path / PROTO).with_name(f"podresources_pb2.{suffix}").read_text(encoding="utf-8")
        kept = ROOT / "src" / "gpuyard" / "kubeapi" / f"podresources_pb2.{suffix}"
        assert kept.read_text(encoding="utf-8") == made, "make it anew: see docs/fake-gpus-kubernetes.md"
