"""Nodes of Kubernetes as the scheduler sees them."""

from __future__ import annotations

import pytest

from gpuyard.model.nodes import MAX_DEVICES_PER_NODE, Device, MigSlices, Taint, shown_labels
from gpuyard.worlds.kubernetes import objects
from gpuyard.worlds.kubernetes.devices import PublishedDevice
from gpuyard.worlds.kubernetes.nodes import cut_devices, node_of
from gpuyard.worlds.kubernetes.selectors import CLUSTER, GPU, NAME
from tests.worlds.kubernetes.parts import a_node

MODEL = "NVIDIA-H100-80GB-HBM3"
LABELS = {"nvidia.com/gpu.product": MODEL, "nvidia.com/gpu.memory": "81559"}


def with_gpus(count: int, slices: dict[str, int] | None = None, labels: dict[str, str] = LABELS) -> objects.Node:
    allocatable = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(count)}
    allocatable |= {f"nvidia.com/mig-{profile}": str(of_it) for profile, of_it in (slices or {}).items()}
    return a_node(labels=labels, allocatable=allocatable)


def published(*healthy: bool, model: str = MODEL) -> tuple[PublishedDevice, ...]:
    return tuple(PublishedDevice(f"GPU-{at}", one, model, 81559, at // 4, 1) for at, one in enumerate(healthy))


# -------------------------------------------------------------------------------------------------------------- amounts


def test_what_there_is_is_what_the_kubelet_gives_out_rounded_down() -> None:
    allocatable = {"cpu": "7910m", "memory": "1.5Ki", "pods": "250", "ephemeral-storage": "100Gi", "hugepages-2Mi": "0"}
    node = node_of(a_node(allocatable={**allocatable, "example.com/fpga": "2", "attachable-volumes-csi": "39"}), None)
    assert (node.cpu_milli, node.memory_bytes, node.max_tasks) == (7910, 1536, 250)
    assert node.other == (("ephemeral-storage", 100 << 30), ("example.com/fpga", 2), ("hugepages-2Mi", 0))


def test_a_node_that_says_nothing_has_nothing() -> None:
    node = node_of(a_node(allocatable={}), None)
    assert (node.cpu_milli, node.memory_bytes, node.max_tasks, node.other, node.devices) == (0, 0, 0, (), ())


# ------------------------------------------------------------------------------------------------ labels, taints, state


def test_rules_about_names_find_a_label() -> None:
    node = node_of(a_node("n1", labels={"zone": "a"}), None)
    assert node.labels == {"zone": "a", "kubernetes.io/hostname": "n1", NAME: "n1", CLUSTER: "all"}


def test_a_hostname_the_kubelet_has_set_is_kept() -> None:
    node = node_of(a_node("n1", labels={"kubernetes.io/hostname": "machine-17"}), None)
    assert node.labels["kubernetes.io/hostname"] == "machine-17"


def test_taints_with_their_effects() -> None:
    taints = [
        {"key": "a", "effect": "NoSchedule"},
        {"key": "b", "value": "v", "effect": "NoExecute"},
        {"key": "c", "effect": "PreferNoSchedule"},
    ]
    assert node_of(a_node(taints=taints), None).taints == (
        Taint("a", "", "NoSchedule"),
        Taint("b", "v", "NoExecute"),
        Taint("c", "", "PreferNoSchedule", soft=True),
    )


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        ([{"type": "Ready", "status": "True"}], True),
        ([{"type": "Ready", "status": "False"}], False),
        ([{"type": "Ready", "status": "Unknown"}], False),
        ([{"type": "MemoryPressure", "status": "True"}], False),
        ([], False),
    ],
)
def test_a_node_is_ready_when_its_kubelet_says_so(conditions: list[dict[str, str]], ready: bool) -> None:
    assert node_of(a_node(conditions=conditions), None).ready is ready


def test_a_cordoned_node() -> None:
    assert node_of(a_node(unschedulable=True), None).cordoned
    assert not node_of(a_node(), None).cordoned


# -------------------------------------------------------------------------------------------------------------- devices


def test_without_the_part_on_the_node_the_labels_describe_its_gpus() -> None:
    assert node_of(with_gpus(8), None).devices == (Device(MODEL, 81559),) * 8


@pytest.mark.parametrize("memory", ["", "lots", "-"])
def test_labels_that_say_nothing_useful_are_no_error(memory: str) -> None:
    node = node_of(with_gpus(1, labels={"nvidia.com/gpu.memory": memory}), None)
    assert node.devices == (Device("gpu", 0),)


def test_published_devices_come_with_all_that_is_known_of_them() -> None:
    first, *_, last = node_of(with_gpus(8), published(*[True] * 8)).devices
    assert first == Device(MODEL, 81559, "GPU-0", True, nvlink=1, numa=0)
    assert last == Device(MODEL, 81559, "GPU-7", True, nvlink=1, numa=1)


def test_an_unhealthy_device_keeps_its_place() -> None:
    devices = node_of(with_gpus(3), published(True, False, True, True)).devices
    assert [device.healthy for device in devices] == [True, False, True, True]


def test_never_more_healthy_devices_than_the_kubelet_offers() -> None:
    devices = node_of(with_gpus(2), published(True, False, True, True)).devices
    assert [device.healthy for device in devices] == [True, False, True, False]
    assert not any(device.healthy for device in node_of(with_gpus(0), published(True, True)).devices)


def test_a_device_published_as_ill_is_not_used_although_the_kubelet_offers_it() -> None:
    devices = node_of(with_gpus(2), published(True, False)).devices
    assert [device.healthy for device in devices] == [True, False]


def test_what_the_kubelet_offers_beyond_what_is_published_has_no_name() -> None:
    devices = node_of(with_gpus(3), published(True)).devices
    assert [device.id for device in devices] == ["GPU-0", "", ""]
    assert all(device.healthy for device in devices)


def test_a_published_device_nobody_could_describe_is_described_by_the_labels() -> None:
    (device,) = node_of(with_gpus(1), (PublishedDevice("GPU-0"),)).devices
    assert (device.model, device.memory_mib) == (MODEL, 81559)


def test_more_devices_than_there_is_room_for_are_cut_and_told_of() -> None:
    node = with_gpus(70)
    assert len(node_of(node, None).devices) == MAX_DEVICES_PER_NODE
    assert len(node_of(node, published(*[True] * 70)).devices) == MAX_DEVICES_PER_NODE
    assert cut_devices(node) == 70 - MAX_DEVICES_PER_NODE
    assert cut_devices(with_gpus(8)) == 0


def test_gpus_of_amd_are_marked_so_that_pods_find_their_own_kind() -> None:
    labels = {"amd.com/gpu.product-name": "Instinct-MI300X", "amd.com/gpu.vram": "192G"}
    node = node_of(a_node(labels=labels, allocatable={"amd.com/gpu": "2"}), None)
    assert node.devices == (Device("Instinct-MI300X", 192 * 10**9 >> 20),) * 2
    assert node.labels[GPU] == "amd.com/gpu"
    assert node.taints == (Taint(GPU, "amd.com/gpu"),)
    assert shown_labels(node.labels) == {**labels, "kubernetes.io/hostname": "n"}
    assert GPU not in node_of(with_gpus(8), None).labels


# ----------------------------------------------------------------------------------------------------------- MIG slices


def test_slices_are_laid_on_as_few_gpus_as_can_hold_them() -> None:
    node = node_of(with_gpus(0, {"3g.40gb": 2, "1g.10gb": 8}), None)
    assert [device.mig for device in node.devices] == [
        (MigSlices("1g.10gb", 1), MigSlices("3g.40gb", 2)),
        (MigSlices("1g.10gb", 7),),
    ]


def test_whole_gpus_come_before_sliced_ones() -> None:
    node = node_of(with_gpus(2, {"7g.80gb": 1}), None)
    assert [bool(device.mig) for device in node.devices] == [False, False, True]


def test_published_slices_lie_on_the_gpu_they_are_of() -> None:
    resource = "nvidia.com/mig-1g.10gb"
    slices = [
        PublishedDevice(f"MIG-{at}", at != 3, "", 9728, resource=resource, gpu=f"GPU-{at % 2}") for at in range(6)
    ]
    devices = node_of(with_gpus(1, {"1g.10gb": 5}), (*published(True), *slices)).devices
    assert [(device.id, device.mig) for device in devices] == [
        ("GPU-0", ()),
        ("GPU-0", (MigSlices("1g.10gb", 3),)),
        ("GPU-1", (MigSlices("1g.10gb", 2),)),
    ]


def test_never_more_slices_than_the_kubelet_offers() -> None:
    resource = "nvidia.com/mig-1g.10gb"
    slices = [PublishedDevice(f"MIG-{at}", resource=resource, gpu="GPU-0") for at in range(7)]
    devices = node_of(with_gpus(0, {"1g.10gb": 4}), slices).devices
    assert [device.mig for device in devices] == [(MigSlices("1g.10gb", 4),)]


def test_with_the_single_strategy_slices_are_plain_devices() -> None:
    labels = {**LABELS, "nvidia.com/gpu.product": f"{MODEL}-MIG-1g.10gb", "nvidia.com/mig.strategy": "single"}
    devices = node_of(with_gpus(7, labels=labels), None).devices
    assert len(devices) == 7
    assert not any(device.mig for device in devices)


def test_a_node_that_offers_absurdly_many_slices_is_read_at_once_and_cut() -> None:
    node = node_of(with_gpus(2, {"1g.5gb": 10**12, "7g.40gb": 10**12}), None)
    assert len(node.devices) == MAX_DEVICES_PER_NODE
