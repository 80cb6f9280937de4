"""GPUs as NVML shows them, and what follows from that alone.

Place in the flow: library ─**gpus**─▶ facts for the manager, names for tasks, what a node publishes. Pure.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gpuyard.errors import InputError
from gpuyard.fakegpu.products import product_named
from gpuyard.model.nodes import Device, MigSlices

SWITCH: Final = "switch"


class MigInstance(msgspec.Struct, frozen=True):
    """One slice of a GPU that a task can be given."""

    profile: str
    uuid: str


class Gpu(msgspec.Struct, frozen=True):
    """One GPU. `links` names whom it reaches directly: bus ids of other GPUs, or a switch."""

    uuid: str
    model: str
    memory_mib: int
    bus_id: str = ""
    numa: int = 0
    healthy: bool = True
    is_cut: bool = False
    mig: tuple[MigInstance, ...] = ()
    links: frozenset[str] = frozenset()
    name: str = ""
    """The product, in NVML's own words."""


def devices(gpus: tuple[Gpu, ...]) -> tuple[Device, ...]:
    """As the scheduler counts them."""
    groups = link_groups(gpus)
    return tuple(
        Device(
            model=gpu.model,
            memory_mib=gpu.memory_mib,
            id=gpu.uuid,
            healthy=gpu.healthy,
            nvlink=groups[gpu.bus_id] if gpu.bus_id else 0,
            numa=gpu.numa,
            mig=_slices(gpu),
            shareable=not gpu.is_cut,
        )
        for gpu in gpus
    )


def _slices(gpu: Gpu) -> tuple[MigSlices, ...]:
    profiles = [instance.profile for instance in gpu.mig]
    return tuple(MigSlices(profile, profiles.count(profile)) for profile in sorted(set(profiles)))


def link_groups(gpus: tuple[Gpu, ...]) -> dict[str, int]:
    """A number for each bus id: those who reach each other, directly or through a switch, have the same; 0 is alone."""
    groups: dict[str, int] = {}
    for number, gpu in enumerate(gpus, start=1):
        reached = {gpu.bus_id, *gpu.links}
        known = {groups[name] for name in reached if name in groups}
        joined = min(known, default=number if gpu.links else 0)
        groups.update((name, joined) for name, group in tuple(groups.items()) if group in known and group)
        groups.update((name, joined) for name in reached)
    return groups


def model_name(name: str) -> str:
    """The short name of a product we know, else NVML's own in one word."""
    try:
        return product_named(name).key
    except InputError:
        return name.removeprefix("NVIDIA ").replace(" ", "-") or "gpu"
