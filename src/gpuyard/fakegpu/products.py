"""The GPUs that can be faked: what never changes about each product, looked up by name.

Place in the flow: products.toml ─**products**─▶ config, engine and every face. Invariant: a product is found under its
short name (`A100-80`), the name NVML shows (`NVIDIA A100-SXM4-80GB`) and the form labels use (`NVIDIA-A100-SXM4-80GB`),
in any case; each form names one product.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib import resources
from typing import Final

import msgspec

from gpuyard.errors import InputError
from gpuyard.files.suggest import did_you_mean

MIG_COMPUTE_SLICES: Final = 7
MIG_MEMORY_SLICES: Final = 8


class MigProfile(msgspec.Struct, frozen=True):
    """One way of cutting an instance out of a GPU."""

    name: str
    id: int
    max_instances: int
    slices: int
    memory_slices: int
    multiprocessors: int
    memory_mib: int
    copy_engines: int
    decoders: int
    encoders: int
    jpegs: int
    ofas: int


class MaxClocks(msgspec.Struct, frozen=True, array_like=True):
    """Megahertz of the four clock domains."""

    graphics_mhz: int
    sm_mhz: int
    memory_mhz: int
    video_mhz: int


class PowerRange(msgspec.Struct, frozen=True, array_like=True):
    """What the power limit may be set to, and what it is by default."""

    min_watts: int
    default_watts: int
    max_watts: int


class Pcie(msgspec.Struct, frozen=True, array_like=True):
    generation: int
    width: int


class Product(msgspec.Struct, frozen=True, kw_only=True):
    """One product. `key` is its short name here, `name` what NVML shows; the units are in the names."""

    key: str
    name: str
    aliases: tuple[str, ...] = ()
    source: str
    brand: str
    architecture: str
    compute_capability: tuple[int, int]
    memory_mib: int
    reserved_mib: int
    memory_bus_bits: int
    bar1_mib: int
    multiprocessors: int
    cores: int
    max_clocks: MaxClocks
    idle_clocks: MaxClocks
    idle_state: int
    power_watts: PowerRange
    idle_watts: int
    busy_celsius: int
    """Temperature it settles at, fully busy at its default limit."""
    slowdown_celsius: int
    shutdown_celsius: int
    pcie: Pcie
    pci_device: str
    """Device and vendor as NVML joins them: eight hexadecimal digits."""
    pci_subsystem: str
    nvlinks: int
    nvlink_gb_per_s: int
    ecc: bool
    fan: bool
    memory_sensor: bool
    driver: str
    cuda: str
    mig: tuple[MigProfile, ...] = ()

    @property
    def label(self) -> str:
        """Its name as labels of Kubernetes nodes hold it."""
        return self.name.replace(" ", "-")

    def mig_profile(self, name: str) -> MigProfile | None:
        return next((profile for profile in self.mig if profile.name == name), None)


@cache
def products() -> dict[str, Product]:
    """All products by their short name, in the order of the data file."""
    text = resources.files("gpuyard.fakegpu").joinpath("products.toml").read_text(encoding="utf-8")
    return {key: _product(key, fields) for key, fields in tomllib.loads(text).items()}


def product_named(name: str) -> Product:
    """The product of that name, or an error that lists the names there are."""
    found = _by_any_name().get(_plain(name))
    if found is None:
        known = [form for product in products().values() for form in (product.key, product.label)]
        raise InputError(f'unknown product "{name}"{did_you_mean(name, known)}', fix=f"one of: {', '.join(products())}")
    return found


@cache
def _by_any_name() -> dict[str, Product]:
    return {
        _plain(form): product
        for product in products().values()
        for form in (product.key, product.name, *product.aliases)
    }


def _plain(name: str) -> str:
    """A name without what people write differently: case, blanks and dashes, the maker, `GB` behind the memory."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"gb$", "", plain.removeprefix("nvidia").removeprefix("tesla"))


def _product(key: str, fields: dict[str, object]) -> Product:
    profiles = fields.get("mig", {})
    assert isinstance(profiles, dict)
    names = MigProfile.__struct_fields__
    mig = [dict(zip(names, (name, *numbers), strict=True)) for name, numbers in profiles.items()]
    return msgspec.convert({**fields, "key": key, "mig": mig}, Product)
