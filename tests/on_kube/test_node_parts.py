"""The parts of `gpuyard kube node` by themselves: what the driver shows, what the API server tells, its pages."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuyard.errors import KubeletError, NvmlError
from gpuyard.kube import node_kubelet
from gpuyard.kube.node_around import Around, NodeSeen
from gpuyard.kube.node_devices import PodSeen
from gpuyard.kube.node_kubelet import Kubelet, look_at_gpus
from gpuyard.kube.node_page import STUCK_MS, Figures, page
from gpuyard.kubeapi.follow import Changed, Gone, Listed
from gpuyard.kubeapi.kubelet import CHECKPOINT, Recorded
from gpuyard.nvml.gpus import Gpu
from gpuyard.worlds.kubernetes.devices import GPU, Held, NodeDevices, PublishedDevice
from gpuyard.worlds.kubernetes.objects import ConfigMap, Metadata, Node, NodeStatus, Pod, PodStatus

# -------------------------------------------------------------------------------------------------------------- driver


class Library:
    """NVML with these GPUs, or none at all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shown: list[str] | None = []
        self.opened = 0
        monkeypatch.setattr(node_kubelet, "RealNvml", self.open)

    def open(self) -> Library:
        if self.shown is None:
            raise NvmlError("NVML cannot be used: driver not loaded")
        self.opened += 1
        return self

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(Gpu(uuid, "T4", 15_360) for uuid in self.shown or ())

    def close(self) -> None:
        self.opened -= 1


def test_a_gpu_the_driver_shows_no_longer_keeps_its_place_and_is_ill(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(monkeypatch)
    library.shown = ["a", "b", "c"]
    seen = look_at_gpus()
    library.shown = ["c", "a", "new"]
    after = look_at_gpus(seen)
    assert [(gpu.uuid, gpu.healthy) for gpu in after] == [("a", True), ("b", False), ("c", True), ("new", True)]
    library.shown = ["a", "b", "c"]
    assert look_at_gpus(after)[:3] == seen
    assert library.opened == 0, "whoever keeps the driver open stands in the way of the next one"


@pytest.mark.parametrize("shown", [None, []])
def test_a_driver_that_is_gone_says_nothing_about_any_gpu(
    monkeypatch: pytest.MonkeyPatch, shown: list[str] | None
) -> None:
    library = Library(monkeypatch)
    library.shown = ["a"]
    seen = look_at_gpus()
    library.shown = shown
    assert look_at_gpus(seen) == ()


# ------------------------------------------------------------------------------------------------------------- kubelet


def entry(device: str) -> str:
    pod = f'{{"PodUID": "u", "ContainerName": "c", "ResourceName": "{GPU}", "DeviceIDs": {{"0": ["{device}"]}}}}'
    return f'{{"Data": {{"PodDeviceEntries": [{pod}]}}}}'


def test_the_record_is_read_again_when_it_is_another(tmp_path: Path) -> None:
    kubelet, record = Kubelet(tmp_path / "none.sock", tmp_path), tmp_path / CHECKPOINT

    def read(content: str | None) -> list[Recorded]:
        if content is not None:
            record.write_text(content)
        asyncio.run(kubelet.read_record())
        return list(kubelet.recorded)

    assert read(None) == [], "a kubelet that has never had a device plugin has none"
    assert read(entry("GPU-0")) == [Recorded("u", "c", GPU, ("GPU-0",))]
    with pytest.raises(KubeletError, match="cannot be read"):
        read("{}")
    assert kubelet.recorded == (Recorded("u", "c", GPU, ("GPU-0",)),), "what was known serves on"
    assert read(entry("GPU-11")) == [Recorded("u", "c", GPU, ("GPU-11",))]


def test_a_kubelet_that_is_not_there_is_not_called_new_over_and_over(tmp_path: Path) -> None:
    kubelet = Kubelet(tmp_path / "none.sock", tmp_path)

    async def ask() -> None:
        for _ in range(2):
            with pytest.raises(KubeletError):
                await kubelet.ask()
            assert not kubelet.is_new
        (tmp_path / "none.sock").touch()
        assert kubelet.is_new
        await kubelet.close()

    asyncio.run(ask())
    assert not kubelet.has_answered


# ---------------------------------------------------------------------------------------------------------- API server


def a_node(**capacity: str) -> Node:
    named = {name.replace("__", "/").replace("_", "."): count for name, count in capacity.items()}
    return Node(Metadata(name="n", uid="u"), status=NodeStatus(capacity=named))


def a_pod(uid: str, phase: str = "Running") -> Pod:
    return Pod(Metadata(name="p", namespace="a", uid=uid), status=PodStatus(phase=phase))


def test_it_is_whole_when_everything_was_listed_once() -> None:
    around = Around()
    around.take_node(Listed((a_node(nvidia_com__gpu="8", cpu="64", amd_com__gpu="x"),)))
    around.take_pod(Listed((a_pod("u1"),)))
    before = around.is_whole
    around.take_published(Listed(()))
    assert (before, around.is_whole) == (False, True)
    assert around.node == NodeSeen("n", "u", {"nvidia.com/gpu": 8, "amd.com/gpu": 0})
    assert around.pods == {"u1": PodSeen("a", "p")}


def test_what_goes_is_gone_and_what_is_over_is_over() -> None:
    around = Around()
    around.take_node(Changed(a_node()))
    around.take_pod(Changed(a_pod("u1")))
    around.take_pod(Changed(a_pod("u2", "Succeeded")))
    around.take_published(Changed(ConfigMap(Metadata(name="m"))))
    assert around.pods["u2"].is_over
    around.take_node(Gone(a_node()))
    around.take_pod(Gone(a_pod("u1")))
    around.take_published(Gone(ConfigMap(Metadata(name="m"))))
    assert (around.node, list(around.pods), around.published) == (None, ["u2"], None)


def test_a_node_that_only_lives_is_no_news() -> None:
    async def follow() -> list[bool]:
        around = Around()
        around.take_node(Changed(a_node()))
        first = await around.wait(0.01)
        around.take_node(Changed(a_node(cpu="1")))
        return [first, await around.wait(0.01)]

    assert asyncio.run(follow()) == [True, False]


# --------------------------------------------------------------------------------------------------------------- pages


def test_it_is_ill_only_when_it_no_longer_looks() -> None:
    nothing = NodeDevices("n")
    assert page("/healthz", Figures(nothing)).status == 200
    assert page("/healthz", Figures(nothing, idle_ms=STUCK_MS + 1)).status == 503
    assert page("/elsewhere", Figures(nothing)).status == 404


def test_the_numbers() -> None:
    devices = (PublishedDevice("GPU-0"), PublishedDevice("GPU-1", healthy=False))
    held = (Held("a", "p", "x", ("GPU-0",)), Held("a", "p", "y", ("GPU-0",)))
    shown = "".join(page("/metrics", Figures(NodeDevices("n", devices, held), kubelet_answers=True, writes=3)).body)
    numbers = dict(line.rsplit(" ", 1) for line in shown.splitlines() if not line.startswith("#"))
    assert numbers == {
        'gpuyard_kube_node_devices{resource="nvidia.com/gpu",healthy="true"}': "1",
        'gpuyard_kube_node_devices{resource="nvidia.com/gpu",healthy="false"}': "1",
        "gpuyard_kube_node_held_devices": "1",
        "gpuyard_kube_node_kubelet_up": "1",
        "gpuyard_kube_node_published": "0",
        "gpuyard_kube_node_writes_total": "3",
    }
