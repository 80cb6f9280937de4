"""What never changes about a product, in the shape the state file keeps it.

Place in the flow: products ─**facts**─▶ publish ─▶ state file. A zero or an empty text is something the product lacks,
which NVML answers with "not supported" and nvidia-smi with "[N/A]".
"""

from __future__ import annotations

import msgspec


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


def product_facts(name: str) -> ProductFacts:
    """The facts of a product by its name; a name nobody knows has a name and nothing else."""
    return ProductFacts(name)
