"""The messages of the kubelet's device plugins are what protoc makes of our own description of them."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from gpuyard.fakegpu.kubernetes import deviceplugin_pb2 as pb

ROOT = Path(__file__).parents[3]
PROTO = "kubelet/v1beta1/deviceplugin.proto"


@pytest.mark.slow
def test_the_messages_are_what_protoc_makes_of_the_file(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools is not installed")
    common = str(resources.files("grpc_tools") / "_proto")
    arguments = [f"-I{ROOT / 'proto'}", f"-I{common}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", PROTO]
    assert protoc.main(["protoc", *arguments]) == 0
    for suffix in ("py", "pyi"):
        made = (tmp_path / PROTO).with_name(f"deviceplugin_pb2.{suffix}").read_text(encoding="utf-8")
        kept = ROOT / "src" / "gpuyard" / "fakegpu" / "kubernetes" / f"deviceplugin_pb2.{suffix}"
        assert kept.read_text(encoding="utf-8") == made, "make it anew: see docs/fake-gpus.md"


def test_the_names_on_the_wire() -> None:
    services = pb.DESCRIPTOR.services_by_name
    assert services["Registration"].full_name == "v1beta1.Registration"
    assert [method.name for method in services["DevicePlugin"].methods] == [
        "GetDevicePluginOptions",
        "ListAndWatch",
        "GetPreferredAllocation",
        "Allocate",
        "PreStartContainer",
    ]
