"""A fleet of fake machines as values: what a file describes and the engine runs.

Place in the flow: file ─config─▶ **Fleet** ─engine─▶ MachineReading. Invariants, kept by whoever builds one: machine
names are unique, GPU ids are unique in the whole fleet, no starting state uses more memory than there is, and every
cut into MIG instances fits the product.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from hashlib import sha1
from typing import Final
from uuid import UUID

import msgspec

from gpuyard.errors import InputError
from gpuyard.fakegpu.faults import Fault
from gpuyard.fakegpu.format import MigStrategy
from gpuyard.fakegpu.links import usual_numa_nodes
from gpuyard.fakegpu.products import MigProfile, Product, product_named
from gpuyard.fakegpu.profile import Profile
from gpuyard.fakegpu.reading import Holder
from gpuyard.files.suggest import did_you_mean

MAX_GPUS_PER_MACHINE: Final = 62
MAX_MACHINES: Final = 50_000
MAX_ID_LENGTH: Final = 63
MIB: Final = 1 << 20
SHOWN_NAMES: Final = 5

_NAMESPACE: Final = UUID("a5f1d2c6-2f6e-4f0e-9a57-3b1d6f6a7c01").bytes


class Given(msgspec.Struct, frozen=True):
    """A state that was written down: shown as it is until something is observed on the GPU."""

    gpu_percent: int
    memory_used_bytes: int
    holder: Holder | None = None


class GpuSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One GPU of a machine."""

    uuid: str
    product: Product
    memory_bytes: int
    reserved_bytes: int
    power_limit_mw: int
    mig: tuple[MigProfile, ...] = ()
    mig_enabled: bool = False
    given: Given | None = None
    leaving: bool = False
    """It is no longer wanted, and only there until whoever holds it lets go."""


class MachineSpec(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    gpus: tuple[GpuSpec, ...]
    mig_strategy: MigStrategy = MigStrategy.NONE
    driver_version: str
    cuda_version: str
    pool: str = ""
    numa_nodes: int = 1


class TaskScript(msgspec.Struct, frozen=True, kw_only=True):
    """Something that runs on one GPU for a while, counted from the engine's beginning."""

    machine: str
    gpu: int
    task: str
    profile: Profile
    at_ms: int = 0
    for_ms: int | None = None
    pid: int | None = None
    name: str = ""
    memory_bytes: int | None = None
    holder: Holder | None = None
    mig: int | None = None


class FaultScript(msgspec.Struct, frozen=True, kw_only=True):
    """Something that goes wrong with one GPU, counted from the engine's beginning; for ever without `for_ms`."""

    machine: str
    gpu: int
    fault: Fault
    at_ms: int = 0
    for_ms: int | None = None


class Fleet(msgspec.Struct, frozen=True):
    machines: tuple[MachineSpec, ...]
    tasks: tuple[TaskScript, ...] = ()
    faults: tuple[FaultScript, ...] = ()
    profiles: tuple[tuple[str, Profile], ...] = ()
    """Profiles that have a name, for whoever starts something later."""


def gpu_uuid(machine: str, index: int) -> str:
    """The id of a GPU nobody named: the same in every run."""
    return f"GPU-{_uuid5(f'{machine}/{index}')}"


def mig_uuid(gpu: str, index: int) -> str:
    """The id of an instance: the same in every run."""
    return f"MIG-{_uuid5(f'{gpu}/mig/{index}')}"


def _uuid5(name: str) -> str:
    """As `uuid.uuid5` writes it, in a third of the time: a large fleet that changes needs tens of thousands at once."""
    digits = sha1(_NAMESPACE + name.encode(), usedforsecurity=False).hexdigest()
    variant = "89ab"[int(digits[16], 16) % 4]
    return f"{digits[:8]}-{digits[8:12]}-5{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"


def a_gpu(
    machine: str, index: int, product: Product, *, memory_mib: int | None = None, mig: tuple[MigProfile, ...] = ()
) -> GpuSpec:
    """A GPU as the product is sold."""
    return GpuSpec(
        uuid=gpu_uuid(machine, index),
        product=product,
        memory_bytes=(product.memory_mib if memory_mib is None else memory_mib) * MIB,
        reserved_bytes=product.reserved_mib * MIB,
        power_limit_mw=product.power_watts.default_watts * 1000,
        mig=mig,
        mig_enabled=bool(mig),
    )


def a_machine(name: str, product: Product, gpus: int, *, memory_mib: int | None = None) -> MachineSpec:
    """A machine with some GPUs of one product."""
    return MachineSpec(
        name=name,
        gpus=tuple(a_gpu(name, index, product, memory_mib=memory_mib) for index in range(gpus)),
        driver_version=product.driver,
        cuda_version=product.cuda,
        numa_nodes=usual_numa_nodes(gpus),
    )


def reduced(fleet: Fleet, machine: str | None) -> Fleet:
    """A fleet to one of its machines, with what happens there; all of it if no machine is named."""
    if machine is None:
        return fleet
    found = part_of(fleet, [machine])
    if not found.machines:
        raise no_machine(machine, [spec.name for spec in fleet.machines])
    return found


def part_of(fleet: Fleet, names: Collection[str]) -> Fleet:
    """A fleet to some of its machines, with what happens there."""
    wanted = frozenset(names)
    return msgspec.structs.replace(
        fleet,
        machines=tuple(machine for machine in fleet.machines if machine.name in wanted),
        tasks=tuple(task for task in fleet.tasks if task.machine in wanted),
        faults=tuple(fault for fault in fleet.faults if fault.machine in wanted),
    )


def no_machine(name: str, machines: Sequence[str]) -> InputError:
    more = f" and {len(machines) - SHOWN_NAMES} more" if len(machines) > SHOWN_NAMES else ""
    there_are = f"there are: {', '.join(machines[:SHOWN_NAMES])}{more}" if machines else "the fleet has no machine"
    return InputError(f'no machine is called "{name}"{did_you_mean(name, machines)}', fix=there_are)


def a_fleet(product: str = "A100-80", gpus: int = 8, machines: Iterable[str] = ("node-1",)) -> Fleet:
    """Machines of one kind, without a file."""
    found = product_named(product)
    return Fleet(tuple(a_machine(name, found, gpus) for name in machines))
