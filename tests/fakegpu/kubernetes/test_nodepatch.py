"""What nodes are given: our labels and, where no kubelet is, their capacity; nothing twice, nothing of others."""

from __future__ import annotations

from typing import Any

import pytest

from gpuyard.fakegpu.config import fleet_of
from gpuyard.fakegpu.engine import Engine
from gpuyard.fakegpu.faults import read_fault
from gpuyard.fakegpu.fleet import MachineSpec
from gpuyard.fakegpu.kubernetes.nodepatch import (
    MARK,
    TIMESTAMP,
    Resources,
    capacity_patch,
    label_patch,
    resources_of,
    wanted_labels,
)
from gpuyard.fakegpu.kubernetes.observed import node_facts
from tests.fakegpu.kubernetes.sights import GPU, a_node_object

SEED_LABELS = {
    "nvidia.com/gpu.memory": "11441",
    "nvidia.com/gpu.count": "2",
    "nvidia.com/mig.strategy": "none",
    "nvidia.com/gpu.product": "Tesla-K80",
}


def machine(text: str = "nodes: {n: {gpu-product: K80, gpu-memory: 11441, gpus: 2}}") -> MachineSpec:
    return fleet_of(text).machines[0]


def patched(labels: dict[str, str], spec: MachineSpec | None) -> dict[str, str] | None:
    patch = label_patch(node_facts(a_node_object(labels=labels)), spec, now_s=7)
    return None if patch is None else patch["metadata"]["labels"]


def test_the_labels_of_the_design_and_those_of_feature_discovery() -> None:
    labels = patched({}, machine())
    assert labels is not None
    assert SEED_LABELS.items() <= labels.items()
    assert {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.family": "kepler",
        TIMESTAMP: "7",
    }.items() <= labels.items()


def test_a_node_that_has_them_is_left_alone() -> None:
    labels = patched({}, machine())
    assert labels is not None
    assert patched({**labels, TIMESTAMP: "3", "zone": "a", "nvidia.com/gpu.deploy.driver": "true"}, machine()) is None


@pytest.mark.parametrize("touch", [{"nvidia.com/gpu.count": "9"}, {MARK: "other"}, None])
def test_a_label_that_was_changed_or_taken_away_is_put_back(touch: dict[str, str] | None) -> None:
    labels = patched({}, machine())
    assert labels is not None
    there = {**labels, **touch} if touch else {name: value for name, value in labels.items() if "memory" not in name}
    assert patched(there, machine()) == labels


def test_a_node_that_is_no_longer_ours_is_rid_of_them_and_another_is_not_touched() -> None:
    labels = patched({}, machine())
    assert labels is not None
    assert patched(labels, None) == {}
    assert patched({"nvidia.com/gpu.count": "8"}, None) is None


def test_a_gpu_that_is_leaving_is_not_counted() -> None:
    from msgspec.structs import replace

    spec = machine()
    leaving = replace(spec, gpus=(spec.gpus[0], replace(spec.gpus[1], leaving=True)))
    assert wanted_labels(leaving)["nvidia.com/gpu.count"] == "1"
    reading = Engine(fleet_of("nodes: {n: {gpu-product: K80, gpus: 2}}")).reading("n")
    gone = replace(reading, devices=(reading.devices[0], replace(reading.devices[1], leaving=True)))
    assert dict(resources_of(gone).allocatable) == {GPU: 1}


# ---------------------------------------------------------------------------------------------------------- capacity


def offered(text: str, *faults: int) -> Resources:
    engine = Engine(fleet_of(text))
    for gpu in faults:
        engine.fault("n", gpu, read_fault("xid:79"))
    return resources_of(engine.reading("n"))


def status(resources: Resources | None, was_ours: bool = True, **node: Any) -> dict[str, Any] | None:
    facts = node_facts(a_node_object(**{"capacity": {"pods": "110"}, **node}))
    patch = capacity_patch(facts, resources, was_ours=was_ours)
    return None if patch is None else patch["status"]


EIGHT = "nodes: {n: {gpu-product: A100, gpus: 8}}"


def test_a_node_without_a_kubelet_gets_its_gpus() -> None:
    assert status(offered(EIGHT)) == {"capacity": {GPU: "8"}, "allocatable": {GPU: "8"}}


def test_a_gpu_that_is_ill_counts_but_cannot_be_had() -> None:
    assert status(offered(EIGHT, 3, 4)) == {"capacity": {GPU: "8"}, "allocatable": {GPU: "6"}}


def test_instances_by_their_profile() -> None:
    text = "mig-strategy: mixed\nnodes: {n: {gpu-product: A100, gpus: [{id: a}, {id: b, mig: {1g.10gb: 7}}]}}"
    assert status(offered(text)) == {
        "capacity": {GPU: "1", "nvidia.com/mig-1g.10gb": "7"},
        "allocatable": {GPU: "1", "nvidia.com/mig-1g.10gb": "7"},
    }


def test_nothing_is_said_of_a_node_with_a_kubelet_or_one_that_is_not_complete() -> None:
    assert status(offered(EIGHT), nodeInfo={"kubeletVersion": "v1.34.2"}) is None
    assert status(offered(EIGHT), capacity={}) is None


def test_what_is_so_already_is_not_said_again() -> None:
    gpus = {GPU: "8"}
    assert status(offered(EIGHT), capacity={"pods": "1", **gpus}, allocatable=gpus) is None
    assert status(offered(EIGHT), capacity={"pods": "1", **gpus}, allocatable={GPU: "7"}) is not None


def test_a_node_that_is_no_longer_ours_loses_them_and_another_keeps_its_own() -> None:
    there = {"pods": "1", GPU: "8"}
    assert status(None, capacity=there) == {"capacity": {}, "allocatable": {}}
    assert status(None, was_ours=False, capacity=there) is None
