"""A reading as the bytes of one body of the state file.

Place in the flow: MachineReading ─**pack**─▶ body ─publish─▶ state file. Pure: no file is touched here.
Invariant: every number of the reading arrives unchanged; nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from operator import attrgetter

import msgspec

from gpuyard.fakegpu import layout
from gpuyard.fakegpu.facts import ProductFacts
from gpuyard.fakegpu.layout import DEVICE, MACHINE, MIG, MIG_PROFILE, MIG_PROFILES, NONE, PROCESS, PRODUCT
from gpuyard.fakegpu.reading import Clocks, DeviceReading, Ecc, Health, MachineReading, MigInstance, ProcessReading


def same_named(names: Iterable[str]) -> Callable[[object], dict[str, int | str]]:
    """Reads those fields off a value; most records keep them under the name and in the unit they have there."""
    listed = tuple(names)
    read = attrgetter(*listed)
    return lambda value: dict(zip(listed, read(value), strict=True))


# What a device's record takes as it is; the rest of it is said otherwise there.
OTHERWISE = {"product", "health", "mig_enabled", "fan_percent", "memory_temperature_c"}
OF_A_DEVICE = same_named(name for name in DEVICE.fields if name in {*DeviceReading.__struct_fields__} - OTHERWISE)
OF_CLOCKS = same_named(Clocks.__struct_fields__)
OF_A_PRODUCT = same_named(name for name in PRODUCT.fields if name != "mig_profile_count")
OF_A_PROFILE = same_named(MIG_PROFILE.fields)
OF_AN_INSTANCE = same_named(name for name in MIG.fields if name not in {"device", "profile", "profile_name"})
OF_A_PROCESS = same_named(
    name for name in PROCESS.fields if name in ProcessReading.__struct_fields__ and name != "kind"
)

HEALTH = {Health.OK: 0, Health.UNHEALTHY: 1, Health.OFF_THE_BUS: 2}
NO_ECC = Ecc(0, 0, 0, 0)


class Capacity(msgspec.Struct, frozen=True):
    """How many records of each kind a file has room for."""

    products: int
    devices: int
    migs: int
    processes: int

    def holds(self, other: Capacity) -> bool:
        return (
            self.products >= other.products
            and self.devices >= other.devices
            and self.migs >= other.migs
            and self.processes >= other.processes
        )

    def offsets(self) -> tuple[int, int, int, int, int]:
        """Where products, devices, MIG instances and processes start in a body, and where the body ends."""
        products = layout.MACHINE_SIZE
        devices = products + self.products * layout.PRODUCT_SIZE
        migs = devices + self.devices * DEVICE.size
        processes = migs + self.migs * MIG.size
        return products, devices, migs, processes, processes + self.processes * PROCESS.size


class Body(msgspec.Struct, frozen=True):
    """The records of one reading, packed, but for the events, which outlive a reading."""

    machine: dict[str, int | str]
    products: list[bytes]
    devices: list[bytes]
    migs: list[bytes]
    processes: list[bytes]

    @property
    def needs(self) -> Capacity:
        return Capacity(len(self.products), len(self.devices), len(self.migs), len(self.processes))

    def placed(self, capacity: Capacity, event_count: int, events: bytes) -> bytes:
        """The whole body, each kind of record at its offset."""
        products, devices, migs, processes, end = capacity.offsets()
        machine = MACHINE.pack({**self.machine, "event_count": event_count})
        return b"".join(
            (
                (machine + events).ljust(products, b"\0"),
                b"".join(self.products).ljust(devices - products, b"\0"),
                b"".join(self.devices).ljust(migs - devices, b"\0"),
                b"".join(self.migs).ljust(processes - migs, b"\0"),
                b"".join(self.processes).ljust(end - processes, b"\0"),
            )
        )


def pack(reading: MachineReading, facts_of: Callable[[str], ProductFacts]) -> Body:
    facts = {name: facts_of(name) for name in dict.fromkeys(device.product for device in reading.devices)}
    positions = {name: position for position, name in enumerate(facts)}
    devices: list[bytes] = []
    migs: list[bytes] = []
    processes: list[bytes] = []
    for position, device in enumerate(reading.devices):
        product = facts[device.product]
        devices.append(pack_device(device, positions[device.product], len(migs), len(processes)))
        migs += (pack_mig(instance, position, product) for instance in device.mig)
        processes += (pack_process(process, position, device) for process in device.processes)
    products = [pack_product(product) for product in facts.values()]
    return Body(machine_values(reading, products, devices, migs, processes), products, devices, migs, processes)


def machine_values(
    reading: MachineReading, products: list[bytes], devices: list[bytes], migs: list[bytes], processes: list[bytes]
) -> dict[str, int | str]:
    major, _, minor = reading.cuda_version.partition(".")
    return {
        "taken_at_ms": reading.taken_at_ms,
        "product_count": len(products),
        "device_count": len(devices),
        "mig_count": len(migs),
        "process_count": len(processes),
        "cuda_major": int(major or 0),
        "cuda_minor": int(minor.partition(".")[0] or 0),
        "name": reading.machine,
        "driver_version": reading.driver_version,
        "mig_strategy": reading.mig_strategy,
    }


def pack_device(device: DeviceReading, product: int, first_mig: int, first_process: int) -> bytes:
    ecc = device.ecc or NO_ECC
    domain, bus, slot = pci_address(device.pci_bus_id)
    return DEVICE.pack(
        {
            **OF_A_DEVICE(device),
            **OF_CLOCKS(device.clocks),
            "ecc_volatile_corrected": ecc.volatile_corrected,
            "ecc_volatile_uncorrected": ecc.volatile_uncorrected,
            "ecc_aggregate_corrected": ecc.aggregate_corrected,
            "ecc_aggregate_uncorrected": ecc.aggregate_uncorrected,
            "memory_free_bytes": device.memory_free_bytes,
            "memory_temperature_c": or_none(device.memory_temperature_c),
            "fan_percent": or_none(device.fan_percent),
            "has_ecc": int(device.ecc is not None),
            "mig_enabled": int(device.mig_enabled),
            "health": HEALTH[device.health],
            "product": product,
            "pci_domain": domain,
            "pci_bus": bus,
            "pci_device": slot,
            "first_mig": first_mig,
            "mig_count": len(device.mig),
            "first_process": first_process,
            "process_count": len(device.processes),
        }
    )


def or_none(value: int | None) -> int:
    return NONE if value is None else value


def pci_address(bus_id: str) -> tuple[int, int, int]:
    """Domain, bus and device of "00000000:07:00.0"."""
    domain, bus, rest = bus_id.split(":")
    return int(domain, 16), int(bus, 16), int(rest.partition(".")[0], 16)


def pack_mig(instance: MigInstance, device: int, product: ProductFacts) -> bytes:
    names = [profile.name for profile in product.mig_profiles]
    return MIG.pack(
        {
            **OF_AN_INSTANCE(instance),
            "device": device,
            "profile": names.index(instance.profile) if instance.profile in names else NONE,
            "profile_name": instance.profile,
        }
    )


def pack_process(process: ProcessReading, device: int, on: DeviceReading) -> bytes:
    instance = next((one for one in on.mig if one.index == process.mig_instance), None)
    return PROCESS.pack(
        {
            **OF_A_PROCESS(process),
            "kind": ord(process.kind),
            "device": device,
            "mig": or_none(process.mig_instance),
            "gpu_instance": instance.gpu_instance if instance else NONE,
            "compute_instance": instance.compute_instance if instance else NONE,
        }
    )


@cache
def pack_product(product: ProductFacts) -> bytes:
    profiles = product.mig_profiles[:MIG_PROFILES]
    fixed = PRODUCT.pack({**OF_A_PRODUCT(product), "mig_profile_count": len(profiles)})
    packed = (MIG_PROFILE.pack(OF_A_PROFILE(profile)) for profile in profiles)
    return (fixed + b"".join(packed)).ljust(layout.PRODUCT_SIZE, b"\0")
