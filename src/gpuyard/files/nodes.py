"""Nodes of a cluster file as model values: counts, ranges and defaults written out.

Place in the flow: shape ─NodeFields─▶ **nodes** ─Node─▶ cluster. Invariant: node names are unique and every device
index a file mentions exists.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from gpuyard.errors import InputError, Where
from gpuyard.files.format import ClusterFileSpec, ClusterSpec, NodeFields, NodeSpec
from gpuyard.files.place import Place
from gpuyard.model.limits import node_problem
from gpuyard.model.nodes import MAX_DEVICES_PER_NODE, MIG_SLICES_PER_GPU, Device, MigSlices, Node, Taint, Topology
from gpuyard.model.quantities import cpu_milli, memory_bytes, memory_mib
from gpuyard.model.snapshot import MAX_NODES

DEFAULT_GPUS: Final = 8
DEFAULT_MODEL: Final = "gpu"
DEFAULT_GPU_MEMORY: Final = "80Gi"
DEFAULT_CPU: Final = 128
DEFAULT_RAM: Final = "1Ti"
DEFAULT_MAX_TASKS: Final = 110
SOFT_EFFECT: Final = "PreferNoSchedule"
"""The effect of taints that keep nobody away."""

HOSTNAME: Final = "hostname"
"""The level that means the node itself."""

_RANGE: Final = re.compile(r"\[([0-9]{1,9})-([0-9]{1,9})\]")


def read_nodes(spec: ClusterFileSpec, place: Place) -> tuple[Node, ...]:
    """All nodes of a file, in file order."""
    if spec.cluster is not None and spec.nodes is not None:
        fix = "keep one: `cluster` for the short form, `nodes` for a list or a map"
        raise InputError("both `cluster` and `nodes` are given", where=place.at("nodes").where_key, fix=fix)
    if spec.cluster is not None:
        return _cluster_nodes(spec.cluster, place.at("cluster"))
    return _cluster_nodes(ClusterSpec(nodes=spec.nodes), place)


def read_added(
    entries: list[NodeSpec] | dict[str, NodeFields | int | None], place: Place, taken: frozenset[str]
) -> tuple[Node, ...]:
    """Nodes that join a cluster in which these names are taken."""
    return _written_out(_listed_entries(entries, place), NodeFields(), taken)


def read_topologies(spec: ClusterFileSpec, place: Place) -> tuple[Topology, ...]:
    topologies = []
    for name, levels in (spec.topologies or {}).items():
        here = place.at("topologies", name)
        if not levels:
            raise here.error(f'topology "{name}" has no level', "name node labels, widest first: [zone, rack]")
        _refuse_repeats(levels, here, "level")
        topologies.append(Topology(name, tuple(levels)))
    return tuple(topologies)


def with_hostnames(nodes: tuple[Node, ...], topologies: tuple[Topology, ...]) -> tuple[Node, ...]:
    """Nodes that carry their own name as a label, where a topology goes down to the node itself."""
    if not any(HOSTNAME in topology.levels for topology in topologies):
        return nodes
    return tuple(msgspec.structs.replace(node, labels={HOSTNAME: node.name, **node.labels}) for node in nodes)


def _cluster_nodes(spec: ClusterSpec, place: Place) -> tuple[Node, ...]:
    return _written_out(_entries(spec, place), spec, frozenset())


def _written_out(
    entries: list[tuple[str, NodeFields, Place]], defaults: NodeFields, taken: frozenset[str]
) -> tuple[Node, ...]:
    nodes: dict[str, Node] = {}
    for name, fields, here in entries:
        merged = _merged(fields, defaults)
        template = _node(name, merged, here)
        if problem := node_problem(template):
            raise here.error(f'node "{name}" is out of range: {problem}', "check the number and its unit")
        for each in names_in(name, here, MAX_NODES - len(nodes) - len(taken)):
            if each in nodes or each in taken:
                how = "is defined twice" if each in nodes else "is in the cluster already"
                fix = "rename one of them" if each in nodes else "give it another name, or remove the other"
                raise InputError(f'node "{each}" {how}', where=_name_where(here), fix=fix)
            nodes[each] = msgspec.structs.replace(template, name=each)
    return tuple(nodes.values())


def _entries(spec: ClusterSpec, place: Place) -> list[tuple[str, NodeFields, Place]]:
    """Each entry with its name, which may still hold ranges."""
    here = place.at("nodes")
    match spec.nodes:
        case None:
            return [("node-1", NodeFields(), place)]
        case int(count):
            if count > MAX_NODES:
                raise here.error(f"{count} nodes are more than {MAX_NODES}", "check the number")
            return [(f"node-[1-{count}]", NodeFields(), place)]
        case entries:
            return _listed_entries(entries, here)


def _listed_entries(
    entries: list[NodeSpec] | dict[str, NodeFields | int | None], place: Place
) -> list[tuple[str, NodeFields, Place]]:
    if isinstance(entries, list):
        return [(entry.name, entry, place.at(index)) for index, entry in enumerate(entries)]
    return [(name, _from_short(fields), place.at(name)) for name, fields in entries.items()]


def _from_short(fields: NodeFields | int | None) -> NodeFields:
    if fields is None:
        return NodeFields()
    return NodeFields(gpus=fields) if isinstance(fields, int) else fields


def _merged(fields: NodeFields, defaults: NodeFields) -> NodeFields:
    """What a node says itself, and of the rest what the cluster says for all."""
    names = NodeFields.__struct_fields__
    values = {name: getattr(fields, name) for name in names}
    return NodeFields(**{name: getattr(defaults, name) if value is None else value for name, value in values.items()})


def names_in(name: str, place: Place, room: int) -> list[str]:
    """`a-[1-3]` → a-1, a-2, a-3; `a-[01-12]` keeps the zeros; several ranges multiply."""
    names = [""]
    rest = name
    while found := _RANGE.search(rest):
        numbers = _numbers(found.group(1), found.group(2), name, place)
        if len(numbers) * len(names) > room:
            raise _too_many(name, place)
        names = [f"{start}{rest[: found.start()]}{number}" for start in names for number in numbers]
        rest = rest[found.end() :]
    if "[" in rest or "]" in rest:
        raise InputError(
            f'"{name}" is not a range', where=_name_where(place), fix="write whole numbers in brackets: node-[1-4]"
        )
    if room < 1:
        raise _too_many(name, place)
    return [start + rest for start in names]


def _numbers(first: str, last: str, name: str, place: Place) -> range | list[str]:
    if int(first) > int(last):
        raise InputError(f'"{name}" counts down', where=_name_where(place), fix=f"write [{last}-{first}]")
    if int(last) - int(first) >= MAX_NODES:
        raise _too_many(name, place)
    numbers = range(int(first), int(last) + 1)
    width = len(first) if first.startswith("0") and len(first) > 1 else 0
    return [f"{number:0{width}d}" for number in numbers]


def _too_many(name: str, place: Place) -> InputError:
    what = f'"{name}" makes the cluster larger than {MAX_NODES} nodes'
    return InputError(what, where=_name_where(place), fix="check the ranges and counts")


def _name_where(place: Place) -> Where:
    """Where the name of a node stands: in a map it is the key, in a list a field."""
    return place.at("name").where if "name" in place.spot.fields else place.where_key


def _node(name: str, fields: NodeFields, place: Place) -> Node:
    return Node(
        name=name,
        devices=_devices(fields, place),
        cpu_milli=place.at("cpu").read(cpu_milli, DEFAULT_CPU if fields.cpu is None else fields.cpu, "cpu"),
        memory_bytes=place.at("ram").read(memory_bytes, DEFAULT_RAM if fields.ram is None else fields.ram, "ram"),
        max_tasks=_or(fields.max_tasks, DEFAULT_MAX_TASKS),
        other=tuple(sorted((fields.other or {}).items())),
        labels=dict(fields.labels or {}),
        taints=tuple(_taint(text) for text in fields.taints or ()),
        cordoned=bool(fields.cordoned),
        ready=fields.ready is not False,
    )


def _devices(fields: NodeFields, place: Place) -> tuple[Device, ...]:
    count = _or(fields.gpus, DEFAULT_GPUS)
    if count > MAX_DEVICES_PER_NODE:
        raise place.at("gpus").error(
            f"{count} GPUs on one node are more than {MAX_DEVICES_PER_NODE}", "check the number"
        )
    written = DEFAULT_GPU_MEMORY if fields.memory is None else fields.memory
    memory = place.at("memory").read(memory_mib, written, "GPU memory")
    if count and not memory:
        raise place.at("memory").error("a GPU needs some memory", "write it as 80Gi, or leave it out")
    nvlink = _islands(fields.nvlink, count, place.at("nvlink"))
    numa = _islands(fields.numa, count, place.at("numa"))
    unhealthy = _indices(fields.unhealthy or [], count, place.at("unhealthy"))
    slices = _slices(fields, count, memory, place.at("mig"))
    model = fields.model or DEFAULT_MODEL
    return tuple(
        Device(model, memory, healthy=i not in unhealthy, nvlink=nvlink[i], numa=numa[i], mig=slices[i])
        for i in range(count)
    )


def _islands(groups: list[list[int]] | None, count: int, place: Place) -> list[int]:
    """The number of each device's group; a device in no group stands alone."""
    if groups is None:
        return [0] * count
    numbers = [len(groups) + index for index in range(count)]
    seen: set[int] = set()
    for number, group in enumerate(groups):
        for index in _indices(group, count, place.at(number)):
            if index in seen:
                raise place.at(number).error(f"GPU {index} is in two groups", "a GPU belongs to one group")
            seen.add(index)
            numbers[index] = number
    return numbers


def _indices(indices: list[int], count: int, place: Place) -> list[int]:
    for position, index in enumerate(indices):
        if index >= count:
            raise place.at(position).error(f"there is no GPU {index}: the node has {count}", "GPUs are counted from 0")
    _refuse_repeats(indices, place, "GPU")
    return indices


def _refuse_repeats(values: list[int] | list[str], place: Place, what: str) -> None:
    for position, value in enumerate(values):
        if value in values[:position]:
            raise place.at(position).error(f"{what} {value} is listed twice", "keep one")


def _slices(fields: NodeFields, count: int, memory: int, place: Place) -> list[tuple[MigSlices, ...]]:
    if fields.mig is None:
        return [()] * count
    if isinstance(fields.mig, dict):
        return [_cut(fields.mig, memory, place)] * count
    if len(fields.mig) != count:
        raise place.error(
            f"mig lists {len(fields.mig)} GPUs, the node has {count}", "one entry per GPU; {} stays whole"
        )
    return [_cut(profiles, memory, place.at(index)) for index, profiles in enumerate(fields.mig)]


def _cut(profiles: dict[str, int], memory: int, place: Place) -> tuple[MigSlices, ...]:
    """The slices of one GPU, once it is known that they fit on it."""
    compute = sum(int(profile[0]) * count for profile, count in profiles.items())
    if compute > MIG_SLICES_PER_GPU:
        raise place.error(
            f"{_listed(profiles)} need {compute} compute slices, a GPU has {MIG_SLICES_PER_GPU}", "ask for fewer"
        )
    needed = sum(_profile_gb(profile) * count for profile, count in profiles.items())
    # Profiles are named in decimal gigabytes, and less than a GPU's nominal size is usable.
    if needed * 10**9 > memory << 20:
        raise place.error(
            f"{_listed(profiles)} need {needed} GB, the GPU has {memory} MiB", "ask for fewer, or give its memory"
        )
    return tuple(MigSlices(profile, count) for profile, count in sorted(profiles.items()))


def _profile_gb(profile: str) -> int:
    return int(profile.split(".")[1].split("gb")[0])


def _listed(profiles: dict[str, int]) -> str:
    return " and ".join(f"{count} x {profile}" for profile, count in profiles.items())


def _taint(text: str) -> Taint:
    mark, _, effect = text.partition(":")
    key, _, value = mark.partition("=")
    return Taint(key, value, effect, soft=effect == SOFT_EFFECT)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
