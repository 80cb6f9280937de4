"""What a node offers: its devices by MIG strategy, their health, and the faults of the plugin itself."""

from __future__ import annotations

from gpuyard.fakegpu.config import fleet_of
from gpuyard.fakegpu.control import FaultStatus, MachineStatus
from gpuyard.fakegpu.engine import Engine
from gpuyard.fakegpu.faults import read_fault
from gpuyard.fakegpu.kubernetes.plugin_offer import Failures, Offer, change, offer_of

CUT = "mig: [3g.40gb, 1g.10gb+me, 1g.10gb]"


def offer(file: str, *faults: tuple[int, str]) -> Offer:
    engine = Engine(fleet_of(file))
    node = engine.machines[0]
    for gpu, fault in faults:
        engine.fault(node, gpu, read_fault(fault))
    told = tuple(FaultStatus(active.gpu, str(active.fault), None) for active in engine.faults(node))
    return offer_of(MachineStatus("/state", engine.reading(node), told))


def counts(found: Offer) -> dict[str, int]:
    return {name: len(devices) for name, devices in found.resources.items()}


def test_ids_are_those_of_the_model() -> None:
    found = offer("nodes: {n: {gpu-product: K80, gpus: [{id: GPU-one}, {id: GPU-two}]}}")
    assert [device.id for device in found.resources["nvidia.com/gpu"]] == ["GPU-one", "GPU-two"]
    assert (found.node, found.state, found.problem) == ("n", "/state", "")


def test_without_a_strategy_a_cut_gpu_is_a_gpu() -> None:
    assert counts(offer(f"pools: {{a: {{nodes: 1, gpus: 2, product: A100, {CUT}}}}}")) == {"nvidia.com/gpu": 2}


def test_mixed_offers_each_profile_by_its_name_beside_whole_gpus() -> None:
    file = f"""
mig-strategy: mixed
nodes: {{n: {{gpu-product: A100, gpus: [{{}}, {{{CUT}}}, {{{CUT}}}, {{mig: []}}]}}}}
"""
    found = offer(file)
    assert counts(found) == {
        "nvidia.com/gpu": 1,
        "nvidia.com/mig-3g.40gb": 2,
        "nvidia.com/mig-1g.10gb.me": 2,
        "nvidia.com/mig-1g.10gb": 2,
    }
    assert all(device.id.startswith("MIG-") for device in found.resources["nvidia.com/mig-3g.40gb"])


def test_single_offers_instances_as_gpus() -> None:
    found = offer("{mig-strategy: single, pools: {a: {nodes: 1, gpus: 2, product: A100, mig: {1g.10gb: 7}}}}")
    assert counts(found) == {"nvidia.com/gpu": 14}
    assert len({device.gpu for device in found.resources["nvidia.com/gpu"]}) == 2


def test_single_without_a_cut_offers_gpus() -> None:
    assert counts(offer("{mig-strategy: single, pools: {a: {nodes: 1, product: A100}}}")) == {"nvidia.com/gpu": 8}


def test_single_with_unlike_instances_offers_nothing_and_says_why() -> None:
    found = offer(f"{{mig-strategy: single, pools: {{a: {{nodes: 1, product: A100, {CUT}}}}}}}")
    assert counts(found) == {"nvidia.com/gpu": 0}
    assert "one profile" in found.problem


def test_health_is_that_of_the_reading_also_of_instances() -> None:
    file = "{mig-strategy: single, pools: {a: {nodes: 1, gpus: 2, product: A100, mig: {3g.40gb: 2}}}}"
    found = offer(file, (1, "xid:79"), (0, "throttle"))
    assert [device.healthy for device in found.resources["nvidia.com/gpu"]] == [True, True, False, False]


def test_faults_of_the_plugin_leave_the_gpus_healthy() -> None:
    file = "pools: {a: {nodes: 1, gpus: 2, product: T4}}"
    found = offer(file, (0, "plugin:hang"), (1, "plugin:fail-allocation"), (1, "unhealthy"))
    second = found.resources["nvidia.com/gpu"][1].id
    assert found.failures == Failures(hanging=True, refused_gpus=frozenset({second}))
    assert [device.healthy for device in found.resources["nvidia.com/gpu"]] == [True, False]
    assert offer(file, (0, "plugin:crash")).failures == Failures(crashed=True)
    assert offer(file, (1, "plugin:fail-registration")).failures == Failures(unregistrable=True)


def test_a_log_says_what_has_changed() -> None:
    two = offer("nodes: {n: {gpu-product: T4, gpus: [{id: a}, {id: b}]}}").resources["nvidia.com/gpu"]
    others = offer("nodes: {n: {gpu-product: T4, gpus: [{id: b}, {id: c}]}}", (1, "unhealthy"))
    other = others.resources["nvidia.com/gpu"]
    assert change((), two) == "2 devices"
    assert change(two, other) == "2 devices; new: c; no longer offered: a; unhealthy: c"
    assert str(Failures(hanging=True, refused_gpus=frozenset({"b", "a"}))) == "hangs and refuses a, b"
