"""Every product has what NVML is asked for."""

from __future__ import annotations

import pytest

from gpuyard.fakegpu.facts import FAMILIES, ProductFacts, product_facts
from gpuyard.fakegpu.products import Product, products

ALL = list(products().values())


@pytest.mark.parametrize("product", ALL, ids=lambda product: product.key)
def test_a_product_is_known_to_nvml(product: Product) -> None:
    facts = product_facts(product.name)
    assert facts.name == product.name
    assert facts.architecture == FAMILIES[product.architecture].number
    assert (facts.compute_major, facts.compute_minor) == product.compute_capability
    assert facts.power_min_mw <= facts.power_default_mw <= facts.power_max_mw
    assert facts.pci_device_id & 0xFFFF == 0x10DE, "the vendor is in the lower half"
    assert bool(facts.nvlink_version) == bool(product.nvlinks)


@pytest.mark.parametrize("product", [one for one in ALL if one.mig], ids=lambda product: product.key)
def test_no_two_profiles_of_a_product_share_a_number(product: Product) -> None:
    facts = product_facts(product.name)
    assert len({profile.kind for profile in facts.mig_profiles}) == len(product.mig)
    assert len({profile.id for profile in facts.mig_profiles}) == len(product.mig)


def test_a_product_nobody_knows_has_its_name_only() -> None:
    assert product_facts("Home-made 9000") == ProductFacts("Home-made 9000")
