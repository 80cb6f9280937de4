"""A fleet file as a Fleet: names, ids, products and times checked, defaults written out.

Place in the flow: path ─source, tree, shape─▶ FleetFileSpec ─**config**─▶ Fleet ─▶ engine. What is wrong is one
InputError with line, column and what may stand there. Invariant: what is returned the engine runs without an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from gpuyard.errors import InputError
from gpuyard.fakegpu.faults import read_fault
from gpuyard.fakegpu.fleet import (
    MAX_GPUS_PER_MACHINE,
    MAX_ID_LENGTH,
    MAX_MACHINES,
    MIB,
    FaultScript,
    Fleet,
    Given,
    GpuSpec,
    MachineSpec,
    TaskScript,
    gpu_uuid,
)
from gpuyard.fakegpu.format import (
    FaultEntry,
    FleetFileSpec,
    GpuEntry,
    HolderSpec,
    MachineFields,
    MetricsSpec,
    MigSpec,
    MigStrategy,
    OnGpuFields,
    PhaseSpec,
    ProfileSpec,
    TaskEntry,
)
from gpuyard.fakegpu.links import MAX_NUMA_NODES, usual_numa_nodes
from gpuyard.fakegpu.products import MIG_COMPUTE_SLICES, MIG_MEMORY_SLICES, MigProfile, Product, product_named, products
from gpuyard.fakegpu.profile import ACCEPTED, BUSY, Memory, Profile, memory_amount, profile_of, repeated
from gpuyard.fakegpu.reading import Holder
from gpuyard.files.durations import read_duration
from gpuyard.files.format import Amount
from gpuyard.files.place import Place
from gpuyard.files.shape import shaped
from gpuyard.files.source import read_text
from gpuyard.files.suggest import did_you_mean
from gpuyard.files.tree import parse

EXAMPLE: Final = "pools: {a100: {nodes: 1, gpus: 8, product: A100}}"
DEFAULT_GPUS: Final = 8
STANDING: Final = "profile"
"""The task a profile of a machine or pool makes on each GPU."""

_ID: Final = re.compile(rf"[!-+\--~]{{1,{MAX_ID_LENGTH}}}")
_VERSION: Final = re.compile(r"[0-9]+(\.[0-9]+){1,2}")

OnGpu = TypeVar("OnGpu", bound=OnGpuFields)


def read_fleet(path: Path) -> Fleet:
    """The fleet a file describes."""
    return fleet_of(read_text(path), str(path))


def fleet_of(text: str, file: str = "fleet.yaml") -> Fleet:
    """The same from text; `file` is what errors call it."""
    return _reader(text, file, None).fleet()


class ClusterFleet(NamedTuple):
    """The fleet of a cluster, and what of the file is about nodes that are not there (yet)."""

    fleet: Fleet
    mig_strategy: MigStrategy
    """That of the file, which counts for all nodes that do not say otherwise."""
    unplaced: tuple[InputError, ...]


def fleet_of_cluster(text: str, file: str, members: Mapping[str, Sequence[str]]) -> ClusterFleet:
    """The fleet of a cluster whose nodes say themselves to which pool they belong; nodes come and go there, so tasks
    and faults of nodes that are not there are left out, not refused."""
    reader = _reader(text, file, members)
    strategy = reader.spec.mig_strategy or MigStrategy.NONE
    return ClusterFleet(reader.fleet(), strategy, tuple(reader.unplaced))


def _reader(text: str, file: str, members: Mapping[str, Sequence[str]] | None) -> _Reader:
    try:
        place = Place(file, parse(text, file, EXAMPLE))
    except InputError as error:
        raise _about_profile(error, text) from None
    return _Reader(shaped(place, FleetFileSpec, "fleet"), place, members)


def _about_profile(error: InputError, text: str) -> InputError:
    """An error in the syntax of a profile shows what one looks like."""
    line = error.where.line if error.where else 0
    around = "\n".join(text.split("\n")[max(0, line - 4) : line + 4])
    if line and "utilization" in around and "time" in around:
        return InputError(f"not a profile: {error.what}", where=error.where, fix=ACCEPTED)
    return error


class _Kind(NamedTuple):
    """What holds for all GPUs of a node or pool, and where it is written."""

    product: Product
    memory_bytes: int
    fields: MachineFields
    place: Place


class _Slot(NamedTuple):
    """A place for a GPU: all about it but the id it has where none is written."""

    gpu: GpuSpec
    place: Place
    standing: Profile | None


class _Reader:
    """Reads one file; keeps what must be unique in all of it."""

    def __init__(self, spec: FleetFileSpec, place: Place, members: Mapping[str, Sequence[str]] | None) -> None:
        self.spec = spec
        self.place = place
        self.members = members
        self.unplaced: list[InputError] = []
        self.taken: dict[str, str] = {}
        self.machines: dict[str, MachineSpec] = {}
        self.standing: list[TaskScript] = []
        self.profiles: dict[str, Profile] = {}

    def fleet(self) -> Fleet:
        for name, spec in (self.spec.profiles or {}).items():
            self.profiles[name] = self._profile(spec, None, self.place.at("profiles", name))
        self._nodes()
        self._pools()
        tasks = tuple(self._task(number, *entry) for number, entry in self._entries("tasks", self.spec.tasks))
        faults = tuple(self._fault(*entry) for _, entry in self._entries("faults", self.spec.faults))
        _refuse_twice(tasks, self.place.at("tasks"))
        machines = tuple(self.machines.values())
        return Fleet(machines, (*self.standing, *tasks), faults, tuple(self.profiles.items()))

    def _entries(self, field: str, entries: list[OnGpu] | None) -> Iterator[tuple[int, tuple[OnGpu, Place]]]:
        here = self.place.at(field)
        for index, entry in enumerate(entries or []):
            if self.members is None or entry.node in self.machines:
                yield index + 1, (entry, here.at(index))
            else:
                self.unplaced.append(self._no_node(entry.node, here.at(index)))

    # -------------------------------------------------------------------------------------------------- machines

    def _nodes(self) -> None:
        for name, node in (self.spec.nodes or {}).items():
            here = self.place.at("nodes", name)
            product = _product(node.gpu_product, here.at("gpu-product"))
            memory = _gpu_memory(node.gpu_memory, product, here.at("gpu-memory"))
            kind = _Kind(product, memory, node, here)
            if isinstance(node.gpus, int):
                self._machine(name, [self._slot(GpuEntry(), here, kind)] * node.gpus, kind)
            else:
                listed = [self._slot(gpu, here.at("gpus", index), kind) for index, gpu in enumerate(node.gpus)]
                self._machine(name, _literal(listed), kind)

    def _pools(self) -> None:
        for pool, spec in (self.spec.pools or {}).items():
            here = self.place.at("pools", pool)
            named = self._members(pool, here) if spec.nodes is None else range(1, spec.nodes + 1)
            if len(self.machines) + len(named) > MAX_MACHINES:
                raise here.at("nodes").error(f"more than {MAX_MACHINES} nodes", f"at most {MAX_MACHINES} in a file")
            product = _product(spec.product, here.at("product"))
            kind = _Kind(product, _gpu_memory(spec.memory, product, here.at("memory")), spec, here)
            slots = [self._slot(GpuEntry(), here, kind)] * (DEFAULT_GPUS if spec.gpus is None else spec.gpus)
            for name in named:
                self._machine(name if isinstance(name, str) else f"{pool}-{name}", slots, kind, pool)

    def _members(self, pool: str, place: Place) -> Sequence[str]:
        """The nodes that say they belong to a pool, but for those the file itself describes."""
        if self.members is None:
            raise place.error(f'pool "{pool}" does not say how many nodes it has', "nodes: 4, or any other number")
        return [name for name in self.members.get(pool, ()) if name not in self.machines]

    def _machine(self, name: str, slots: list[_Slot], kind: _Kind, pool: str = "") -> None:
        place, fields = kind.place, kind.fields
        if name in self.machines:
            raise InputError(
                f'node "{name}" is defined twice', where=place.where_key, fix="rename the node or the pool"
            )
        if len(slots) > MAX_GPUS_PER_MACHINE:
            what = f"{len(slots)} GPUs on one node are more than {MAX_GPUS_PER_MACHINE}"
            raise place.at("gpus").error(what, f"at most {MAX_GPUS_PER_MACHINE}")
        gpus = tuple(self._named(name, index, slot) for index, slot in enumerate(slots))
        for index, slot in enumerate(slots):
            self.standing.extend(_standing(name, index, slot))
        self.machines[name] = MachineSpec(
            name=name,
            gpus=gpus,
            mig_strategy=fields.mig_strategy or self.spec.mig_strategy or MigStrategy.NONE,
            driver_version=_version(fields.driver, kind.product.driver, place.at("driver")),
            cuda_version=_version(fields.cuda, kind.product.cuda, place.at("cuda")),
            pool=pool,
            numa_nodes=_numa_nodes(fields.numa_nodes, len(slots), place.at("numa-nodes")),
        )

    def _slot(self, entry: GpuEntry, place: Place, kind: _Kind) -> _Slot:
        """What a GPU says itself, and of the rest what its node or pool says."""
        kind = _kind_of(entry, place, kind)
        product = kind.product
        power = _power_watts(kind.fields.power_limit, product, kind.place.at("power-limit"))
        mig, mig_place = (entry.mig, place) if entry.mig is not None else (kind.fields.mig, kind.place)
        gpu = GpuSpec(
            uuid=_id(entry.id, place.at("id")),
            product=product,
            memory_bytes=kind.memory_bytes,
            reserved_bytes=min(product.reserved_mib * MIB, kind.memory_bytes),
            power_limit_mw=_power_watts(entry.power_limit, product, place.at("power-limit"), power) * 1000,
            mig=_mig(mig, product, mig_place.at("mig")),
            mig_enabled=mig is not None,
            given=_given(entry.metrics, kind.memory_bytes, place.at("metrics")),
        )
        return _Slot(gpu, place, self._standing_profile(entry, place, kind))

    def _standing_profile(self, entry: GpuEntry, place: Place, kind: _Kind) -> Profile | None:
        fields, here = (kind.fields, kind.place) if entry.profile is None else (entry, place)
        if fields.profile is None:
            return None
        return self._profile(fields.profile, fields.repeat, here.at("profile"), here.at("repeat"))

    def _named(self, machine: str, index: int, slot: _Slot) -> GpuSpec:
        """The GPU of a slot under an id nobody else has."""
        uuid = slot.gpu.uuid or gpu_uuid(machine, index)
        if uuid in self.taken:
            what = f'the id "{uuid}" is given twice (also to a GPU of {self.taken[uuid]})'
            raise slot.place.at("id").error(what, "ids are unique in a file; leave it out to have one made")
        self.taken[uuid] = machine
        return msgspec.structs.replace(slot.gpu, uuid=uuid)

    # ------------------------------------------------------------------------------------------ tasks and faults

    def _task(self, number: int, entry: TaskEntry, place: Place) -> TaskScript:
        machine, index, gpu = self._where(entry, place)
        profile = BUSY
        if entry.profile is not None:
            profile = self._profile(entry.profile, entry.repeat, place.at("profile"), place.at("repeat"))
        memory = None if entry.memory is None else place.at("memory").read(memory_amount, entry.memory, "memory")
        room = _room(gpu, entry.mig, machine, index, place.at("mig"))
        asked = max([memory or 0, *(_most_bytes(phase.memory) for phase in profile.phases)])
        if asked > room:
            at_fault = "memory" if asked == memory else "profile"
            what = f"memory used ({asked // MIB} MiB) is above what the GPU has for it ({room // MIB} MiB)"
            raise place.at(at_fault).error(what, f"at most {room // MIB} MiB")
        return TaskScript(
            machine=machine,
            gpu=index,
            task=entry.task or f"task-{number}",
            profile=profile,
            at_ms=read_duration(entry.at, place.at("at")) or 0,
            for_ms=_lasting(entry.for_, place.at("for")),
            pid=entry.pid,
            name=entry.command or "",
            memory_bytes=memory,
            holder=_holder(entry.metadata),
            mig=entry.mig,
        )

    def _fault(self, entry: FaultEntry, place: Place) -> FaultScript:
        machine, index, _ = self._where(entry, place)
        return FaultScript(
            machine=machine,
            gpu=index,
            fault=place.at("fault").read(lambda text, _: read_fault(text), entry.fault, "fault"),
            at_ms=read_duration(entry.at, place.at("at")) or 0,
            for_ms=_lasting(entry.for_, place.at("for")),
        )

    def _where(self, entry: OnGpuFields, place: Place) -> tuple[str, int, GpuSpec]:
        machine = self.machines.get(entry.node)
        if machine is None:
            raise self._no_node(entry.node, place)
        for index, gpu in enumerate(machine.gpus):
            if entry.gpu in (index, gpu.uuid):
                return machine.name, index, gpu
        fix = f"0 to {len(machine.gpus) - 1}, or an id" if machine.gpus else "the node has none"
        raise place.at("gpu").error(f"{machine.name} has no GPU {entry.gpu}", fix)

    def _no_node(self, name: str, place: Place) -> InputError:
        names = list(self.machines)
        some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        what = f'no node "{name}"{did_you_mean(name, names)}'
        return place.at("node").error(what, f"nodes of this file: {some or 'none'}")

    def _profile(
        self,
        spec: str | list[PhaseSpec] | ProfileSpec,
        repeat: int | str | None,
        place: Place,
        repeat_place: Place | None = None,
    ) -> Profile:
        if not isinstance(spec, str):
            return profile_of(spec, place, repeat, repeat_place)
        if spec not in self.profiles:
            names = list(self.profiles)
            fix = f"profiles of this file: {', '.join(names)}" if names else "define it under profiles"
            raise place.error(f'no profile "{spec}"{did_you_mean(spec, names)}', fix)
        named = self.profiles[spec]
        if repeat is None:
            return named
        return repeated(named.phases, repeat, repeat_place or place)


# --------------------------------------------------------------------------------------------------------- values


def _product(name: str, place: Place) -> Product:
    try:
        return product_named(name)
    except InputError as error:
        raise place.error(error.what, error.fix) from None


def _kind_of(entry: GpuEntry, place: Place, kind: _Kind) -> _Kind:
    """What a GPU is that says another product or memory than its node."""
    if entry.gpu_product is not None:
        product = _product(entry.gpu_product, place.at("gpu-product"))
        kind = kind._replace(product=product, memory_bytes=product.memory_mib * MIB)
    if entry.gpu_memory is not None:
        kind = kind._replace(memory_bytes=_gpu_memory(entry.gpu_memory, kind.product, place.at("gpu-memory")))
    return kind


def _gpu_memory(amount: Amount | None, product: Product, place: Place) -> int:
    if amount is None:
        return product.memory_mib * MIB
    memory = 0 if isinstance(amount, int) and amount < 0 else place.read(memory_amount, amount, place.name)
    if memory < MIB:
        fix = f"{product.key} has {product.memory_mib} MiB; leave it out for that"
        raise place.error(f"{place.name} must be at least 1 MiB, not {amount}", fix)
    return memory


def _id(text: str | None, place: Place) -> str:
    """The id that is written, or none."""
    if text is None:
        return ""
    if not _ID.fullmatch(text):
        fix = f"1 to {MAX_ID_LENGTH} characters: letters, digits and signs, no blank and no comma"
        raise place.error(f"{place.spot.shown()} cannot be the id of a GPU ({len(text)} characters)", fix)
    return text


def _power_watts(watts: int | None, product: Product, place: Place, default: int | None = None) -> int:
    limits = product.power_watts
    if watts is None:
        return limits.default_watts if default is None else default
    if not limits.min_watts <= watts <= limits.max_watts:
        what = f"the power limit of {product.key} cannot be {watts} W"
        raise place.error(what, f"from {limits.min_watts} to {limits.max_watts} W")
    return watts


def _mig(spec: MigSpec | None, product: Product, place: Place) -> tuple[MigProfile, ...]:
    """The instances of one GPU, once it is known that they fit on it."""
    if spec is None:
        return ()
    if not product.mig:
        able = ", ".join(each.key for each in products().values() if each.mig)
        raise place.error(f"{product.key} cannot be cut into MIG instances", f"leave mig out; these can: {able}")
    if isinstance(spec, dict):
        asked = [(name, count, place.at(name)) for name, count in spec.items()]
    else:
        asked = [(name, 1, place.at(position)) for position, name in enumerate(spec)]
    cut: list[MigProfile] = []
    for name, count, here in asked:
        profile = _mig_profile(name, product, here)
        cut.extend([profile] * count)
        if cut.count(profile) > profile.max_instances:
            what = f"{cut.count(profile)} instances of {name} do not fit on one {product.key}"
            raise here.error(what, f"at most {profile.max_instances}")
    _refuse_too_large(cut, product, place)
    return tuple(cut)


def _mig_profile(name: str, product: Product, place: Place) -> MigProfile:
    profile = product.mig_profile(name)
    if profile is None:
        names = [each.name for each in product.mig]
        what = f'{product.key} has no MIG profile "{name}"{did_you_mean(name, names)}'
        raise InputError(what, where=place.where_key, fix=f"one of: {', '.join(names)}")
    return profile


def _refuse_too_large(cut: list[MigProfile], product: Product, place: Place) -> None:
    compute = sum(profile.slices for profile in cut)
    memory = sum(profile.memory_slices for profile in cut)
    media = sum(profile.name.endswith("+me") for profile in cut)
    if compute > MIG_COMPUTE_SLICES or memory > MIG_MEMORY_SLICES or media > 1:
        what = f"{', '.join(profile.name for profile in cut)} do not fit on one {product.key} together"
        fix = (
            f"they need {compute} slices of compute and {memory} of memory;"
            f" there are {MIG_COMPUTE_SLICES} and {MIG_MEMORY_SLICES}, and one +me"
        )
        raise place.error(what, fix)


def _given(metrics: MetricsSpec | None, total_bytes: int, place: Place) -> Given | None:
    if metrics is None:
        return None
    if metrics.utilization > 100:
        raise place.at("utilization").error(
            f"utilization cannot be {metrics.utilization}", "a whole number from 0 to 100"
        )
    used = place.at("fb-used").read(memory_amount, metrics.fb_used, "fb-used")
    if used > total_bytes:
        what = f"memory used ({used // MIB} MiB) is above the total ({total_bytes // MIB} MiB)"
        raise place.at("fb-used").error(what, f"from 0 to {total_bytes // MIB}, in MiB")
    return Given(metrics.utilization, used, _holder(metrics.metadata))


def _holder(spec: HolderSpec | None) -> Holder | None:
    return None if spec is None else Holder(spec.namespace, spec.pod, spec.container)


def _lasting(text: str | None, place: Place) -> int | None:
    """How long something lasts; for good where nothing is said."""
    lasting_ms = read_duration(text, place)
    if lasting_ms == 0:
        raise place.error("for must be some time, not 0", "write it as 90s, 10m or 1h30m; leave it out for good")
    return lasting_ms


def _version(text: str | None, default: str, place: Place) -> str:
    if text is None:
        return default
    if not _VERSION.fullmatch(text):
        raise place.error(f'"{text}" is not a version', f'numbers with points between, in quotes: "{default}"')
    return text


def _numa_nodes(asked: int | None, gpus: int, place: Place) -> int:
    if asked is None:
        return usual_numa_nodes(gpus)
    if asked > MAX_NUMA_NODES:
        raise place.error(f"{asked} NUMA nodes are more than {MAX_NUMA_NODES}", f"at most {MAX_NUMA_NODES}")
    return asked


def _literal(slots: list[_Slot]) -> list[_Slot]:
    """Where states are written down, free is total - used: nothing is reserved on such a machine."""
    if all(slot.gpu.given is None for slot in slots):
        return slots
    return [slot._replace(gpu=msgspec.structs.replace(slot.gpu, reserved_bytes=0)) for slot in slots]


def _standing(machine: str, index: int, slot: _Slot) -> Iterator[TaskScript]:
    """What a profile of the node or pool makes: a task on the GPU, or one on each of its instances."""
    if slot.standing is None:
        return
    instances: list[int | None] = list(range(len(slot.gpu.mig))) if slot.gpu.mig else [None]
    for mig in instances:
        task = STANDING if mig is None else f"{STANDING}-{mig}"
        yield TaskScript(machine=machine, gpu=index, task=task, profile=slot.standing, mig=mig)


def _room(gpu: GpuSpec, mig: int | None, machine: str, index: int, place: Place) -> int:
    """Bytes a task can have there."""
    count = len(gpu.mig)
    if mig is None and gpu.mig_enabled:
        fix = f"add mig: 0 to {count - 1}" if count else "cut it into instances, or leave its mig out"
        raise place.error(f"GPU {index} of {machine} is in MIG mode: say on which instance the task runs", fix)
    if mig is None:
        return gpu.memory_bytes - gpu.reserved_bytes
    if mig >= count:
        fix = f"0 to {count - 1}" if count else "the GPU is not cut; leave mig out"
        raise place.error(f"GPU {index} of {machine} has no MIG instance {mig}", fix)
    return gpu.mig[mig].memory_mib * MIB


def _most_bytes(memory: Memory | None) -> int:
    return 0 if memory is None or memory.relative else memory.high


def _refuse_twice(tasks: tuple[TaskScript, ...], place: Place) -> None:
    seen: set[tuple[str, int, str]] = set()
    for index, task in enumerate(tasks):
        key = (task.machine, task.gpu, task.task)
        if key in seen:
            what = f'task "{task.task}" is on GPU {task.gpu} of {task.machine} twice'
            raise place.at(index).error(what, "give each its own name")
        seen.add(key)
