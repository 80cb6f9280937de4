"""The labels that GPU feature discovery gives a node.

Place in the flow: reading ─**labels**─▶ `gpuyard fake labels`, and later a node object. Pure: a reading in, texts out.
Invariant: the same reading gives the same labels. Where a machine mixes products the most frequent one is named (the
real thing names whichever was written last), and all GPUs are counted.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from gpuyard.fakegpu.products import Product, product_named
from gpuyard.fakegpu.reading import DeviceReading, MachineReading, MigInstance

PREFIX: Final = "nvidia.com/"
SEED_LABELS: Final = ("gpu.memory", "gpu.count", "mig.strategy", "gpu.product")
"""What the design of the GPU mock asks for, and many tools read nothing else."""
MACHINE_TYPE: Final = "gpuyard-fake"
OLDEST_WITH_MPS: Final = (3, 5)
MIB_SHIFT: Final = 20

_FAMILIES: Final = (
    ((13, 0), "rubin"),
    ((10, 0), "blackwell"),
    ((9, 0), "hopper"),
    ((8, 9), "ada-lovelace"),
    ((8, 0), "ampere"),
    ((7, 5), "turing"),
    ((7, 0), "volta"),
    ((6, 0), "pascal"),
    ((5, 0), "maxwell"),
    ((3, 0), "kepler"),
)

Labels = dict[str, str]


def labels_of(machine: MachineReading) -> Labels:
    """The full set, sorted by name."""
    machine = machine.staying
    found = {"gfd.timestamp": str(machine.taken_at_ms // 1000), "gpu.machine": MACHINE_TYPE}
    if machine.devices:
        model = _model(machine)
        found |= _versions(machine) | _capabilities(machine, model) | _gpus(machine, model)
    return _named(found)


def seed_labels_of(machine: MachineReading) -> Labels:
    """The four labels of the seed; the strategy is told here also where it is none."""
    everything = {PREFIX + "mig.strategy": machine.mig_strategy, **labels_of(machine)}
    return {PREFIX + name: everything[PREFIX + name] for name in SEED_LABELS if PREFIX + name in everything}


def sanitised(text: str) -> str:
    """A text as a label may hold it."""
    return re.sub(r"[^A-Za-z0-9\-_. ]", "", text).strip().replace(" ", "-")


def family_of(compute_capability: tuple[int, int]) -> str:
    return next((name for oldest, name in _FAMILIES if compute_capability >= oldest), "undefined")


def _named(found: Labels) -> Labels:
    return {PREFIX + name: found[name] for name in sorted(found)}


def _model(machine: MachineReading) -> DeviceReading:
    """The first device of the most frequent product."""
    counts = Counter(device.product for device in machine.devices)
    return max(machine.devices, key=lambda device: (counts[device.product], -device.index))


def _versions(machine: MachineReading) -> Labels:
    driver = [*machine.driver_version.split("."), "", ""]
    cuda = [*machine.cuda_version.split("."), "0"]
    return {
        "cuda.driver.major": driver[0],
        "cuda.driver.minor": driver[1],
        "cuda.driver.rev": driver[2],
        "cuda.driver-version.major": driver[0],
        "cuda.driver-version.minor": driver[1],
        "cuda.driver-version.revision": driver[2],
        "cuda.driver-version.full": machine.driver_version,
        "cuda.runtime.major": cuda[0],
        "cuda.runtime.minor": cuda[1],
        "cuda.runtime-version.major": cuda[0],
        "cuda.runtime-version.minor": cuda[1],
        "cuda.runtime-version.full": f"{cuda[0]}.{cuda[1]}",
    }


def _capabilities(machine: MachineReading, model: DeviceReading) -> Labels:
    product = product_named(model.product)
    major, minor = product.compute_capability
    cut = any(device.mig_enabled for device in machine.devices)
    shares = not cut and product.compute_capability >= OLDEST_WITH_MPS
    found = {
        "gpu.family": family_of(product.compute_capability),
        "gpu.compute.major": str(major),
        "gpu.compute.minor": str(minor),
        "gpu.mode": "compute",
        "mig.capable": _yes(any(product_named(device.product).mig for device in machine.devices)),
        "mps.capable": _yes(shares),
        "vgpu.present": "false",
    }
    return found if machine.mig_strategy == "none" else {**found, "mig.strategy": machine.mig_strategy}


def _yes(answer: bool) -> str:
    return "true" if answer else "false"


def _gpus(machine: MachineReading, model: DeviceReading) -> Labels:
    cut = [device for device in machine.devices if device.mig_enabled]
    if machine.mig_strategy == "single" and cut:
        return _single(machine, model)
    whole = _resource("gpu", sanitised(model.product), len(machine.devices), model.memory_total_bytes)
    return whole | _mixed(cut) if machine.mig_strategy == "mixed" else whole


def _resource(name: str, product: str, count: int, memory_bytes: int) -> Labels:
    return {
        f"{name}.count": str(count),
        f"{name}.product": product,
        f"{name}.memory": str(memory_bytes >> MIB_SHIFT),
        f"{name}.replicas": "1" if count else "0",
        f"{name}.sharing-strategy": "none",
    }


def _single(machine: MachineReading, model: DeviceReading) -> Labels:
    """Slices shown as if they were GPUs, which needs every GPU to be cut, and all slices to be alike."""
    instances = [instance for device in machine.devices for instance in device.mig]
    alike = len({instance.profile for instance in instances}) == 1
    if not alike or not all(device.mig for device in machine.devices):
        return _resource("gpu", f"{sanitised(model.product)}-MIG-INVALID", 0, 0)
    return _slices("gpu", model, instances)


def _mixed(cut: list[DeviceReading]) -> Labels:
    """Each profile by its own name, beside the whole GPUs."""
    found: Labels = {}
    profiles = sorted({instance.profile for device in cut for instance in device.mig})
    for profile in profiles:
        instances = [instance for device in cut for instance in device.mig if instance.profile == profile]
        model = next(device for device in cut if any(instance.profile == profile for instance in device.mig))
        found |= _slices(f"mig-{resource_name(profile)}", model, instances)
    return found


def resource_name(profile: str) -> str:
    """A profile as names of resources hold it: a plus sign may not stand there."""
    return profile.replace("+", ".")


def _slices(name: str, model: DeviceReading, instances: list[MigInstance]) -> Labels:
    one = instances[0]
    product = f"{sanitised(model.product)}-MIG-{resource_name(one.profile)}"
    return {
        **_resource(name, product, len(instances), one.memory_total_bytes),
        f"{name}.multiprocessors": str(one.multiprocessors),
        f"{name}.slices.gi": str(one.slices),
        f"{name}.slices.ci": str(one.slices),
        **_engines(name, product_named(model.product), one.profile),
    }


def _engines(name: str, product: Product, profile_name: str) -> Labels:
    profile = product.mig_profile(profile_name)
    if profile is None:
        return {}
    return {
        f"{name}.engines.copy": str(profile.copy_engines),
        f"{name}.engines.decoder": str(profile.decoders),
        f"{name}.engines.encoder": str(profile.encoders),
        f"{name}.engines.jpeg": str(profile.jpegs),
        f"{name}.engines.ofa": str(profile.ofas),
    }
