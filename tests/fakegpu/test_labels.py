"""Labels of feature discovery: the seed's four, the full set, and the MIG strategies."""

from __future__ import annotations

import pytest

from gpuyard.fakegpu.labels import PREFIX, family_of, labels_of, sanitised, seed_labels_of
from gpuyard.fakegpu.products import products
from gpuyard.fakegpu.reading import MachineReading
from tests.fakegpu.idle import MIB, a_device, a_machine, an_instance

SLICES = (an_instance(0), an_instance(1))
CUT = {"mig_enabled": True, "mig": SLICES}


def short(machine: MachineReading) -> dict[str, str]:
    return {name.removeprefix(PREFIX): value for name, value in labels_of(machine).items()}


def starting(machine: MachineReading, prefix: str) -> dict[str, str]:
    return {name: value for name, value in short(machine).items() if name.startswith(prefix)}


def test_the_full_set_of_a_machine_with_whole_gpus() -> None:
    machine = a_machine(a_device(0), a_device(1))
    assert short(machine) == {
        "cuda.driver-version.full": "550.54.15",
        "cuda.driver-version.major": "550",
        "cuda.driver-version.minor": "54",
        "cuda.driver-version.revision": "15",
        "cuda.driver.major": "550",
        "cuda.driver.minor": "54",
        "cuda.driver.rev": "15",
        "cuda.runtime-version.full": "12.4",
        "cuda.runtime-version.major": "12",
        "cuda.runtime-version.minor": "4",
        "cuda.runtime.major": "12",
        "cuda.runtime.minor": "4",
        "gfd.timestamp": "1700000000",
        "gpu.compute.major": "8",
        "gpu.compute.minor": "0",
        "gpu.count": "2",
        "gpu.family": "ampere",
        "gpu.machine": "gpuyard-fake",
        "gpu.memory": "81920",
        "gpu.mode": "compute",
        "gpu.product": "NVIDIA-A100-SXM4-80GB",
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
        "mig.capable": "true",
        "mps.capable": "true",
        "vgpu.present": "false",
    }


def test_the_seeds_four() -> None:
    device = a_device(product="Tesla K80", memory_total_bytes=11441 * MIB)
    machine = a_machine(device, a_device(1, product="Tesla K80"), mig_strategy="mixed")
    assert seed_labels_of(machine) == {
        "nvidia.com/gpu.memory": "11441",
        "nvidia.com/gpu.count": "2",
        "nvidia.com/mig.strategy": "mixed",
        "nvidia.com/gpu.product": "Tesla-K80",
    }


def test_the_strategy_is_a_label_only_where_there_is_one() -> None:
    assert "mig.strategy" not in short(a_machine())
    assert short(a_machine(mig_strategy="single"))["mig.strategy"] == "single"
    assert seed_labels_of(a_machine())["nvidia.com/mig.strategy"] == "none"


def test_without_a_strategy_cut_gpus_count_whole() -> None:
    machine = a_machine(a_device(0, **CUT), a_device(1, **CUT))
    assert short(machine)["gpu.count"] == "2"
    assert short(machine)["gpu.product"] == "NVIDIA-A100-SXM4-80GB"
    assert short(machine)["mps.capable"] == "false"
    assert starting(machine, "mig-") == {}


def test_single_shows_slices_as_gpus() -> None:
    machine = a_machine(a_device(0, **CUT), a_device(1, **CUT), mig_strategy="single")
    expected = {
        "gpu.count": "4",
        "gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
        "gpu.memory": "9728",
        "gpu.multiprocessors": "14",
        "gpu.slices.gi": "1",
        "gpu.slices.ci": "1",
        "gpu.engines.copy": "1",
    }
    assert expected.items() <= short(machine).items()
    assert {f"gpu.engines.{name}" for name in ("decoder", "encoder", "jpeg", "ofa")} <= set(short(machine))


@pytest.mark.parametrize(
    "machine",
    [
        a_machine(a_device(0, **CUT), a_device(1), mig_strategy="single"),
        a_machine(
            a_device(0, mig_enabled=True, mig=(an_instance(0), an_instance(1, profile="2g.20gb"))),
            mig_strategy="single",
        ),
        a_machine(a_device(0, mig_enabled=True), mig_strategy="single"),
    ],
    ids=["one is whole", "two profiles", "no instance"],
)
def test_single_cannot_show_what_is_not_alike(machine: MachineReading) -> None:
    found = short(machine)
    assert found["gpu.product"] == "NVIDIA-A100-SXM4-80GB-MIG-INVALID"
    assert (found["gpu.count"], found["gpu.replicas"], found["gpu.memory"]) == ("0", "0", "0")


def test_single_without_a_cut_gpu_is_like_none() -> None:
    found = short(a_machine(a_device(), mig_strategy="single"))
    assert (found["gpu.product"], found["gpu.count"]) == ("NVIDIA-A100-SXM4-80GB", "1")


def test_mixed_shows_each_profile_beside_the_gpus() -> None:
    instances = (an_instance(0), an_instance(1), an_instance(2, profile="3g.40gb", slices=3, multiprocessors=42))
    machine = a_machine(a_device(0, mig_enabled=True, mig=instances), a_device(1), mig_strategy="mixed")
    found = short(machine)
    assert (found["gpu.count"], found["gpu.product"]) == ("2", "NVIDIA-A100-SXM4-80GB")
    assert (found["mig-1g.10gb.count"], found["mig-3g.40gb.count"]) == ("2", "1")
    assert found["mig-1g.10gb.product"] == "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"
    assert (found["mig-3g.40gb.slices.gi"], found["mig-3g.40gb.multiprocessors"]) == ("3", "42")


def test_a_plus_in_a_profile_is_a_dot_in_a_label() -> None:
    instances = (an_instance(0, profile="1g.10gb+me"),)
    machine = a_machine(a_device(0, mig_enabled=True, mig=instances), mig_strategy="mixed")
    assert short(machine)["mig-1g.10gb.me.product"].endswith("-MIG-1g.10gb.me")


def test_of_several_products_the_most_frequent_is_named_and_all_are_counted() -> None:
    machine = a_machine(a_device(0, product="Tesla T4"), a_device(1), a_device(2))
    assert (short(machine)["gpu.product"], short(machine)["gpu.count"]) == ("NVIDIA-A100-SXM4-80GB", "3")
    even = a_machine(a_device(0, product="Tesla T4"), a_device(1))
    assert short(even)["gpu.product"] == "Tesla-T4"


def test_a_machine_without_gpus_has_no_labels_of_gpus() -> None:
    machine = MachineReading("empty", 5000, "550.54.15", "12.4", "none", ())
    assert short(machine) == {"gfd.timestamp": "5", "gpu.machine": "gpuyard-fake"}


def test_every_product_has_a_family() -> None:
    families = {key: family_of(product.compute_capability) for key, product in products().items()}
    assert families["K80"] == "kepler"
    assert families["T4"] == "turing"
    assert families["L40S"] == "ada-lovelace"
    assert families["H200"] == "hopper"
    assert families["B200"] == "blackwell"
    assert "undefined" not in families.values()


def test_what_a_label_may_not_hold_is_dropped() -> None:
    assert sanitised("NVIDIA (R) A100/80 GB_x.1-") == "NVIDIA-R-A10080-GB_x.1-"
