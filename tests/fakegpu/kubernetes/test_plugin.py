"""The device plugin against the plugin side of a kubelet: everything that needs no container."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from gpuyard.fakegpu.control import Break, DaemonStatus, Heal, Request, Shutdown, Status, ask
from gpuyard.fakegpu.kubernetes import deviceplugin_pb2 as pb
from tests.fakegpu.daemons import eventually, running
from tests.fakegpu.kubernetes.kubelet import FakeKubelet
from tests.fakegpu.kubernetes.plugins import Plugin, plugged

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("device-plugin")]

FLEET = "nodes: {{n: {{gpu-product: {product}, gpus: [{gpus}]}}}}\n"
GPU = "nvidia.com/gpu"
SOON_S = 60.0


def fleet(*ids: str, product: str = "T4") -> str:
    return FLEET.format(product=product, gpus=", ".join(f"{{id: {id}}}" for id in ids))


class Node:
    """A model, a plugin and a kubelet on one folder."""

    def __init__(self, home: Path, file: Path, plugin: Plugin, kubelet: FakeKubelet) -> None:
        self.home = home
        self.file = file
        self.plugin = plugin
        self.kubelet = kubelet
        self._said_before = 0

    def tell(self, request: Request) -> None:
        ask(self.home, request, type(None))

    def said(self) -> list[str]:
        """Since the test began."""
        return self.plugin.said()[self._said_before :]

    def begin(self) -> None:
        """With the GPUs GPU-0 to GPU-3, all well, and a kubelet that has just started."""
        self.file.write_text(fleet("GPU-0", "GPU-1", "GPU-2", "GPU-3"))
        assert eventually(lambda: ask(self.home, Status(), DaemonStatus).gpu_count == 4, within_s=SOON_S)
        self.tell(Heal("n", "all"))
        self.kubelet.restart()
        self.kubelet.until(lambda: len(self.kubelet.healthy()) == 4)
        self._said_before = len(self.plugin.said())


@contextmanager
def a_node(root: Path) -> Iterator[Node]:
    kubelet = FakeKubelet(root / "plugins")
    file = root / "fleet.yaml"
    file.write_text(fleet("GPU-0", "GPU-1", "GPU-2", "GPU-3"))
    kubelet.start()
    home = root / "home"
    with running(home, config=file), plugged(home, kubelet.folder, "--node", "n") as plugin:
        yield Node(home, file, plugin, kubelet)
        kubelet.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with a_node(tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture
def node(shared: Node) -> Node:
    shared.begin()
    return shared


def test_what_the_kubelet_is_told(node: Node) -> None:
    client = node.kubelet.clients[GPU]
    assert list(node.kubelet.shown()[GPU]) == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    assert not client.options.pre_start_required
    assert client.options.get_preferred_allocation_available
    assert not any(device.HasField("topology") for device in client.last.devices)
    client.call("PreStartContainer", pb.PreStartContainerRequest(devices_ids=["GPU-0"]), pb.PreStartContainerResponse)
    asked = pb.ContainerPreferredAllocationRequest(available_deviceIDs=["GPU-1", "GPU-2", "GPU-3"], allocation_size=2)
    wanted = client.call(
        "GetPreferredAllocation",
        pb.PreferredAllocationRequest(container_requests=[asked]),
        pb.PreferredAllocationResponse,
    )
    assert list(wanted.container_responses[0].deviceIDs) == ["GPU-2", "GPU-3"]


def test_health_goes_both_ways(node: Node) -> None:
    for fault in ("xid:79", "ecc:uncorrected"):
        node.tell(Break("n", 1, fault))
        node.kubelet.until(lambda: node.kubelet.shown()[GPU]["GPU-1"] == "Unhealthy")
        node.tell(Heal("n", 1))
        node.kubelet.until(lambda: node.kubelet.shown()[GPU]["GPU-1"] == "Healthy")
    assert len(node.kubelet.registrations) == 1


def test_a_changed_file_reaches_the_kubelet_and_nonsense_does_not(node: Node) -> None:
    node.file.write_text(fleet("GPU-0", "GPU-2", "GPU-new"))
    node.kubelet.until(lambda: list(node.kubelet.shown()[GPU]) == ["GPU-0", "GPU-2", "GPU-new"])
    told = f"{GPU}: 3 devices; new: GPU-new; no longer offered: GPU-1, GPU-3"
    assert eventually(lambda: node.said()[-1:] == [told], within_s=SOON_S)
    node.file.write_text(fleet("GPU-0", product="T5"))
    lists = len(node.kubelet.clients[GPU].lists)
    with pytest.raises(AssertionError):
        node.kubelet.until(lambda: len(node.kubelet.clients[GPU].lists) > lists, within_s=1)
    node.file.write_text(fleet("GPU-0"))
    node.kubelet.until(lambda: list(node.kubelet.shown()[GPU]) == ["GPU-0"])


def test_a_node_that_is_renamed_in_the_file_keeps_its_devices(node: Node) -> None:
    node.file.write_text(fleet("GPU-0", "GPU-1").replace("{n:", "{m:"))
    assert eventually(lambda: any('no machine is called "n"' in line for line in node.said()), within_s=SOON_S)
    assert len(node.kubelet.healthy()) == 4
    node.file.write_text(fleet("GPU-0", "GPU-1"))
    node.kubelet.until(lambda: len(node.kubelet.healthy()) == 2)


def test_a_kubelet_that_goes_away_for_long_finds_it_waiting(node: Node) -> None:
    node.kubelet.stop()
    (node.kubelet.folder / "kubelet.sock").unlink(missing_ok=True)
    assert not eventually(lambda: node.plugin.process.poll() is not None, within_s=1.5)
    node.kubelet.start()
    node.kubelet.until(lambda: len(node.kubelet.healthy()) == 4)


def test_its_own_socket_may_be_taken_away(node: Node) -> None:
    (node.kubelet.folder / "gpuyard-nvidia.com-gpu.sock").unlink()
    node.kubelet.until(lambda: len(node.kubelet.registrations) == 2)
    node.kubelet.until(lambda: len(node.kubelet.healthy()) == 4)


def test_a_kubelet_that_lets_go_is_asked_again(node: Node) -> None:
    node.kubelet.clients[GPU].close()
    node.kubelet.until(lambda: len(node.kubelet.registrations) == 2)
    node.kubelet.until(lambda: len(node.kubelet.healthy()) == 4)


def test_what_was_taken_away_a_moment_ago_is_only_left_out_of_a_preference(node: Node) -> None:
    asked = pb.ContainerPreferredAllocationRequest(available_deviceIDs=["GPU-9", "GPU-1", "GPU-0"], allocation_size=2)
    answer = node.kubelet.clients[GPU].call(
        "GetPreferredAllocation",
        pb.PreferredAllocationRequest(container_requests=[asked]),
        pb.PreferredAllocationResponse,
    )
    assert list(answer.container_responses[0].deviceIDs) == ["GPU-0", "GPU-1"]


def test_what_is_not_there_is_not_allocated(node: Node) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        node.kubelet.allocate(["GPU-0", "GPU-9"])
    assert (refused.value.code(), refused.value.details()) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "no device GPU-9 is on this node",
    )


def test_a_second_plugin_in_the_same_folder_waits(node: Node, tmp_path: Path) -> None:
    with plugged(tmp_path / "home", node.kubelet.folder, "--no-inject") as second:
        assert eventually(lambda: any("another plugin of ours" in line for line in second.said()), within_s=SOON_S)
    assert len(node.kubelet.registrations) == 1


# ----------------------------------------------------------------------------------------------------------- failures


def test_while_it_hangs_nothing_is_answered_and_then_everything(node: Node) -> None:
    node.tell(Break("n", 0, "plugin:hang"))
    assert eventually(lambda: "as it was told to, the plugin hangs" in node.said(), within_s=SOON_S)
    assert hangs(node)
    node.tell(Break("n", 1, "unhealthy"))
    assert len(node.kubelet.healthy()) == 4
    node.tell(Heal("n", 0))
    node.kubelet.until(lambda: len(node.kubelet.healthy()) == 3)
    assert node.kubelet.allocate(["GPU-0"]).mounts


def hangs(node: Node) -> bool:
    try:
        node.kubelet.allocate(["GPU-0"], within_s=0.3)
    except grpc.RpcError as error:
        return bool(error.code() is grpc.StatusCode.DEADLINE_EXCEEDED)
    return False


def test_one_gpu_is_refused_and_the_others_are_not(node: Node) -> None:
    node.tell(Break("n", 2, "plugin:fail-allocation", for_ms=60_000))
    assert eventually(lambda: refused(node, "GPU-2"), within_s=SOON_S)
    assert not refused(node, "GPU-1")
    node.tell(Heal("n", 2))
    assert eventually(lambda: not refused(node, "GPU-2"), within_s=SOON_S)


def refused(node: Node, id: str) -> bool:
    try:
        node.kubelet.allocate([id])
    except grpc.RpcError:
        return True
    return False


def test_a_registration_that_fails_is_told_once_and_recovers(node: Node) -> None:
    node.tell(Break("n", 0, "plugin:fail-registration"))
    assert eventually(lambda: len(node.kubelet.refused) >= 2, within_s=SOON_S)
    node.tell(Heal("n", 0))
    node.kubelet.until(lambda: len(node.kubelet.registrations) == 2)
    assert sum("version v0 is not supported" in line for line in node.said()) == 1


# ---------------------------------------------------------------------------------------------------- other ways to run


def test_without_the_model_what_was_offered_is_served_on(tmp_path: Path) -> None:
    with a_node(tmp_path) as node:
        node.begin()
        ask(node.home, Shutdown(), int)
        assert eventually(lambda: any("the model cannot be followed" in line for line in node.said()), within_s=SOON_S)
        node.kubelet.restart()
        node.kubelet.until(lambda: len(node.kubelet.healthy()) == 4)
        assert node.kubelet.allocate(["GPU-1"]).envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
        with running(node.home, config=node.file):
            node.tell(Break("n", 1, "unhealthy"))
            node.kubelet.until(lambda: len(node.kubelet.healthy()) == 3)
            assert sum("no fake GPUs are up" in line for line in node.said()) == 1
            assert node.said().count("the model is followed again") == 1


def test_with_a_file_of_its_own_only_its_machine_is_modelled(tmp_path: Path) -> None:
    kubelet = FakeKubelet(tmp_path / "plugins")
    kubelet.start()
    file = tmp_path / "fleet.yaml"
    file.write_text("{mig-strategy: mixed, pools: {a: {nodes: 3, gpus: 2, product: A100, mig: {1g.10gb: 7}}}}")
    home = tmp_path / "home"
    options = ("--node", "a-2", "--config", file, "--port", "0", "--no-inject", "--numa")
    with plugged(home, kubelet.folder, *options) as plugin:
        kubelet.until(lambda: kubelet.shown())
        ids = list(kubelet.shown()["nvidia.com/mig-1g.10gb"])
        assert len(ids) == 14
        assert kubelet.allocate(ids[:2], "nvidia.com/mig-1g.10gb") == pb.ContainerAllocateResponse()
        assert all(device.HasField("topology") for device in kubelet.clients["nvidia.com/mig-1g.10gb"].last.devices)
        ask(home, Break("a-2", 0, "unhealthy"), type(None))
        kubelet.until(lambda: len(kubelet.healthy("nvidia.com/mig-1g.10gb")) == 7)
        file.write_text("{mig-strategy: mixed, pools: {a: {nodes: 3, gpus: 2, product: A100}}}")
        kubelet.until(lambda: kubelet.shown().get(GPU) and kubelet.shown()["nvidia.com/mig-1g.10gb"] == {})
        file.write_text("pools: {a: {nodes: 1, gpus: 2, product: A100}}")
        assert eventually(lambda: any('no machine is called "a-2"' in line for line in plugin.said()), within_s=SOON_S)
        assert plugin.end() == 0
    kubelet.stop()


def test_a_second_model_in_the_same_home_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(fleet("GPU-0"))
    with (
        running(tmp_path / "home", config=file),
        plugged(tmp_path / "home", tmp_path, "--config", file, "--port", "0") as plugin,
    ):
        assert plugin.process.wait(30) == 2
        assert "already up" in plugin.said()[0]
