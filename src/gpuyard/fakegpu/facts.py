"""What never changes about a product, in the shape the state file keeps it.

Place in the flow: products ─**facts**─▶ publish ─▶ state file. A zero or an empty text is something the product lacks,
which NVML answers with "not supported" and nvidia-smi with "[N/A]".
"""

from __future__ import annotations

from functools import cache
from typing import Final

import msgspec

from gpuyard.errors import InputError
from gpuyard.fakegpu.products import MIG_COMPUTE_SLICES, MigProfile, Product, product_named

MIB: Final = 1 << 20
MB_PER_GB: Final = 1000
MEMORY_MAX_C: Final = 95
"""What a memory sensor of these products is allowed to show; no sheet prints it."""
BELOW_SLOWDOWN_C: Final = 4
"""How far below the slowdown temperature a device is meant to stay; no sheet prints it."""


class MigProfileFacts(msgspec.Struct, frozen=True):
    """One way to cut a product; `kind` is NVML's number of the profile, `id` the one nvidia-smi shows."""

    name: str
    kind: int
    id: int
    slices: int
    instances_max: int
    multiprocessors: int
    memory_bytes: int
    copy_engines: int = 1
    decoders: int = 0
    encoders: int = 0
    jpegs: int = 0
    ofas: int = 0


class ProductFacts(msgspec.Struct, frozen=True):
    name: str
    family: str = ""
    vbios: str = ""
    part_number: str = ""
    brand: int = 14
    architecture: int = 0xFFFFFFFF
    compute_major: int = 0
    compute_minor: int = 0
    multiprocessors: int = 0
    cuda_cores: int = 0
    memory_bus_bits: int = 0
    bar1_bytes: int = 0
    graphics_max_mhz: int = 0
    sm_max_mhz: int = 0
    memory_max_mhz: int = 0
    video_max_mhz: int = 0
    power_min_mw: int = 0
    power_max_mw: int = 0
    power_default_mw: int = 0
    slowdown_c: int = 0
    shutdown_c: int = 0
    gpu_max_c: int = 0
    memory_max_c: int = 0
    pcie_generation: int = 0
    pcie_width: int = 0
    fans: int = 0
    ecc: int = 0
    mig: int = 0
    mig_instances_max: int = 0
    nvlinks: int = 0
    nvlink_mb_per_s: int = 0
    nvlink_version: int = 0
    pci_device_id: int = 0
    pci_subsystem_id: int = 0
    mig_profiles: tuple[MigProfileFacts, ...] = ()


class Family(msgspec.Struct, frozen=True):
    """What an architecture is to NVML: its number, its name, the form of its VBIOS, the version of its links."""

    number: int
    name: str
    vbios: str
    nvlink_version: int = 0


FAMILIES: Final = {
    "kepler": Family(2, "Kepler", "80.21.1B.00.01"),
    "maxwell": Family(3, "Maxwell", "84.00.76.00.01"),
    "pascal": Family(4, "Pascal", "86.00.4D.00.01", 1),
    "volta": Family(5, "Volta", "88.00.4F.00.09", 2),
    "turing": Family(6, "Turing", "90.04.96.00.01", 3),
    "ampere": Family(7, "Ampere", "92.00.45.00.03", 4),
    "ada-lovelace": Family(8, "Ada Lovelace", "95.02.66.00.02"),
    "hopper": Family(9, "Hopper", "96.00.74.00.01", 6),
    "blackwell": Family(10, "Blackwell", "97.00.82.00.19", 7),
}
BRANDS: Final = {"tesla": 2, "nvidia": 14}
UNKNOWN_FAMILY: Final = Family(0xFFFFFFFF, "", "")

# NVML numbers a profile by its compute slices; the other ways of cutting as many slices have numbers of their own.
KINDS: Final = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
WITH_MEDIA_KINDS: Final = {1: 7, 2: 8}
MORE_MEMORY_KINDS: Final = {1: 9}


@cache
def product_facts(name: str) -> ProductFacts:
    """The facts of a product by its name; a name nobody knows has a name and nothing else."""
    try:
        return facts_of(name, product_named(name))
    except InputError:
        return ProductFacts(name)


def facts_of(name: str, product: Product) -> ProductFacts:
    family = FAMILIES.get(product.architecture, UNKNOWN_FAMILY)
    links = max(product.nvlinks, 1)
    return ProductFacts(
        name=name,
        family=family.name,
        vbios=family.vbios,
        brand=BRANDS.get(product.brand, 0),
        architecture=family.number,
        compute_major=product.compute_capability[0],
        compute_minor=product.compute_capability[1],
        multiprocessors=product.multiprocessors,
        cuda_cores=product.cores,
        memory_bus_bits=product.memory_bus_bits,
        bar1_bytes=product.bar1_mib * MIB,
        graphics_max_mhz=product.max_clocks.graphics_mhz,
        sm_max_mhz=product.max_clocks.sm_mhz,
        memory_max_mhz=product.max_clocks.memory_mhz,
        video_max_mhz=product.max_clocks.video_mhz,
        power_min_mw=product.power_watts.min_watts * 1000,
        power_default_mw=product.power_watts.default_watts * 1000,
        power_max_mw=product.power_watts.max_watts * 1000,
        slowdown_c=product.slowdown_celsius,
        shutdown_c=product.shutdown_celsius,
        gpu_max_c=product.slowdown_celsius - BELOW_SLOWDOWN_C,
        memory_max_c=MEMORY_MAX_C if product.memory_sensor else 0,
        pcie_generation=product.pcie.generation,
        pcie_width=product.pcie.width,
        fans=int(product.fan),
        ecc=int(product.ecc),
        mig=int(bool(product.mig)),
        mig_instances_max=MIG_COMPUTE_SLICES if product.mig else 0,
        nvlinks=product.nvlinks,
        # A sheet counts both directions of all links; NVML tells one direction of one link.
        nvlink_mb_per_s=product.nvlink_gb_per_s * MB_PER_GB // links // 2,
        nvlink_version=family.nvlink_version if product.nvlinks else 0,
        pci_device_id=int(product.pci_device, 16),
        pci_subsystem_id=int(product.pci_subsystem, 16),
        mig_profiles=tuple(profile_facts(profile) for profile in product.mig),
    )


def profile_facts(profile: MigProfile) -> MigProfileFacts:
    return MigProfileFacts(
        name=profile.name,
        kind=kind_of(profile),
        id=profile.id,
        slices=profile.slices,
        instances_max=profile.max_instances,
        multiprocessors=profile.multiprocessors,
        memory_bytes=profile.memory_mib * MIB,
        copy_engines=profile.copy_engines,
        decoders=profile.decoders,
        encoders=profile.encoders,
        jpegs=profile.jpegs,
        ofas=profile.ofas,
    )


def kind_of(profile: MigProfile) -> int:
    if profile.name.endswith("+me"):
        return WITH_MEDIA_KINDS[profile.slices]
    if profile.slices == 1 and profile.memory_slices > 1:
        return MORE_MEMORY_KINDS[profile.slices]
    return KINDS[profile.slices]
