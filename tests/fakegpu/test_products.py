"""The built-in products: what the data sheets say, and under which names each is found."""

import pytest

from gpuyard.errors import InputError
from gpuyard.fakegpu.products import MIG_COMPUTE_SLICES, MIG_MEMORY_SLICES, Product, product_named, products

ALL = list(products().values())


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Tesla-K80", "K80"),
        ("Tesla K80", "K80"),
        ("k80", "K80"),
        ("T4", "T4"),
        ("A100", "A100-80"),
        ("A100-40", "A100-40"),
        ("A100-40GB", "A100-40"),
        ("NVIDIA-A100-SXM4-80GB", "A100-80"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("h200", "H200"),
        ("B200", "B200"),
        ("NVIDIA-L40S", "L40S"),
    ],
)
def test_a_product_is_found_under_every_name_people_use(name: str, key: str) -> None:
    assert product_named(name).key == key


def test_an_unknown_product_is_told_with_those_there_are() -> None:
    with pytest.raises(InputError) as caught:
        product_named("V100")
    assert str(caught.value).endswith("one of: K80, T4, A100-40, A100-80, H100, H200, B200, L40S")


@pytest.mark.parametrize(
    ("key", "memory_mib", "capability", "watts", "multiprocessors"),
    [
        ("K80", 11441, (3, 7), 149, 13),
        ("T4", 15360, (7, 5), 70, 40),
        ("A100-40", 40960, (8, 0), 400, 108),
        ("A100-80", 81920, (8, 0), 400, 108),
        ("H100", 81559, (9, 0), 700, 132),
        ("H200", 143771, (9, 0), 700, 132),
        ("B200", 183359, (10, 0), 1000, 148),
        ("L40S", 46068, (8, 9), 350, 142),
    ],
)
def test_the_figures_of_the_data_sheets(
    key: str, memory_mib: int, capability: tuple[int, int], watts: int, multiprocessors: int
) -> None:
    product = products()[key]
    assert product.memory_mib == memory_mib
    assert product.compute_capability == capability
    assert product.power_watts.default_watts == watts
    assert product.multiprocessors == multiprocessors
    assert product.source


@pytest.mark.parametrize("product", ALL, ids=lambda product: product.key)
def test_the_figures_of_a_product_do_not_contradict_each_other(product: Product) -> None:
    limits = product.power_watts
    assert 0 < product.idle_watts < limits.min_watts <= limits.default_watts <= limits.max_watts
    assert product.idle_clocks.sm_mhz < product.max_clocks.sm_mhz
    assert product.busy_celsius < product.slowdown_celsius < product.shutdown_celsius
    assert product.reserved_mib < product.memory_mib
    assert len(product.pci_device) == len(product.pci_subsystem) == 8


@pytest.mark.parametrize("product", ALL, ids=lambda product: product.key)
def test_the_largest_cut_of_each_mig_profile_fits(product: Product) -> None:
    for profile in product.mig:
        assert profile.max_instances * profile.slices <= MIG_COMPUTE_SLICES
        assert profile.max_instances * profile.memory_slices <= MIG_MEMORY_SLICES
        assert profile.max_instances * profile.memory_mib <= product.memory_mib
        assert profile.max_instances * profile.multiprocessors <= product.multiprocessors
        assert profile.name.startswith(f"{profile.slices}g.")


def test_profile_ids_are_those_of_the_driver() -> None:
    ids = {profile.name: profile.id for profile in products()["A100-80"].mig}
    assert ids == {
        "1g.10gb": 19,
        "1g.10gb+me": 20,
        "1g.20gb": 15,
        "2g.20gb": 14,
        "3g.40gb": 9,
        "4g.40gb": 5,
        "7g.80gb": 0,
    }
