"""Queues of a cluster file as model values.

Place in the flow: shape ─QueueSpec─▶ **queues** ─Queue─▶ cluster. The rules of the tree are in `model.queue_rules`;
here nesting, short forms and defaults are written out. Invariant: what is returned has no contradiction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Final

import msgspec

from gpuyard.errors import InputError, QuantityError, QueueTreeError, Where
from gpuyard.files.durations import read_duration
from gpuyard.files.format import Amount, ClusterFileSpec, QueueChangeSpec, QueueFields, QueueSpec, RationSpec, TeamSpec
from gpuyard.files.place import Place
from gpuyard.files.suggest import did_you_mean
from gpuyard.model.quantities import CPU, GPU, MEMORY, MILLI, cpu_milli, gpu_model_resource, memory_bytes, milli
from gpuyard.model.queue_rules import validate_queues
from gpuyard.model.queues import (
    DEFAULT_QUEUE_PRIORITY,
    DEFAULT_WEIGHT_MILLI,
    MAX_QUEUE_DEPTH,
    Queue,
    QueueShare,
    QueueUsage,
)

UNLIMITED: Final = "unlimited"
DEFAULT_QUEUE: Final = "default"
PPM: Final = 10**6

Convert = Callable[[Amount, str], int]


class QueueTree(msgspec.Struct, frozen=True):
    """The queues of a file and what they have used."""

    queues: tuple[Queue, ...]
    usage: tuple[QueueUsage, ...] = ()
    summed: frozenset[str] = frozenset()
    """Queues that say no GPU quota: they are owed what those below them are owed together."""

    @property
    def leaves(self) -> tuple[str, ...]:
        parents = {queue.parent for queue in self.queues}
        return tuple(queue.name for queue in self.queues if queue.name not in parents)


class Entry(msgspec.Struct, frozen=True):
    """One queue as written, and where."""

    name: str
    parent: str | None
    spec: QueueSpec | TeamSpec
    place: Place

    def queue(self, order: int) -> Queue:
        return _queue(self.name, self.parent, self.spec, self.place, order)


def read_queues(spec: ClusterFileSpec, place: Place) -> QueueTree:
    """The tree of a file; without one, a single queue that is owed all it asks for."""
    if not spec.queues:
        return QueueTree((Queue(DEFAULT_QUEUE, shares=(QueueShare(GPU),)),))
    entries = queue_entries(spec.queues, None, place.at("queues"))
    return msgspec.structs.replace(read_tree(entries), usage=_past_use(entries))


def read_tree(entries: list[Entry]) -> QueueTree:
    """The queues of these entries, sums written out and every rule of the tree checked."""
    summed = frozenset(entry.name for entry in entries if entry.spec.quota is None)
    queues = with_sums([entry.queue(order) for order, entry in enumerate(entries)], summed)
    problems = validate_queues(queues, _locator(entries))
    if problems:
        raise QueueTreeError(tuple(sorted(problems, key=_line)))
    return QueueTree(queues, summed=summed)


def _line(problem: InputError) -> tuple[int, int]:
    return (problem.where.line, problem.where.column) if problem.where else (0, 0)


def queue_entries(
    specs: Mapping[str, QueueSpec | TeamSpec | Amount | None], parent: str | None, place: Place
) -> list[Entry]:
    """All queues, parents before their children."""
    entries = []
    for name, short in specs.items():
        here = place.at(name)
        spec = _from_short(short)
        if parent is not None and spec.parent is not None and spec.parent != parent:
            raise here.at("parent").error(
                f'queue "{name}" stands under "{parent}" and names the parent "{spec.parent}"', "keep one of the two"
            )
        entries.append(Entry(name, parent or spec.parent, spec, here))
        entries += queue_entries(spec.children or {}, name, here.at("children"))
    return entries


def _from_short(short: QueueSpec | TeamSpec | Amount | None) -> QueueSpec | TeamSpec:
    if short is None:
        return QueueSpec()
    return short if isinstance(short, QueueSpec | TeamSpec) else QueueSpec(quota=short)


def _locator(entries: list[Entry]) -> Callable[[int, str, str], Where | None]:
    def locate(position: int, field: str, resource: str) -> Where | None:
        place = entries[position].place
        found = place.at(*_steps(resource), field) if field else place
        return place.where_key if found is place else found.where

    return locate


def _steps(resource: str) -> tuple[str, ...]:
    """Where in a queue a resource is written."""
    if resource in ("", GPU):
        return ()
    if resource in (CPU, MEMORY):
        return (resource,)
    if resource.startswith(f"{GPU}/"):
        return ("models", resource.removeprefix(f"{GPU}/"))
    return ("other", resource)


def _queue(name: str, parent: str | None, spec: QueueFields, place: Place, order: int) -> Queue:
    return Queue(
        name=name,
        parent=parent,
        shares=_shares(spec, place),
        priority=DEFAULT_QUEUE_PRIORITY if spec.priority is None else spec.priority,
        order=order,
        reclaim_min_runtime_ms=read_duration(spec.reclaim_min_runtime, place.at("reclaim_min_runtime")),
        preempt_min_runtime_ms=read_duration(spec.preempt_min_runtime, place.at("preempt_min_runtime")),
        disruption_budget=spec.disruption_budget,
        overcommit=bool(spec.overcommit),
        affinity_scope=spec.affinity_scope,
    )


def _shares(spec: QueueFields, place: Place) -> tuple[QueueShare, ...]:
    return tuple(_share(*ration) for ration in _rations(spec, place))


def _rations(spec: QueueFields, place: Place) -> Iterator[tuple[str, RationSpec | Amount, Convert, Place]]:
    """Every resource a queue speaks of, GPUs first, and how amounts of it are read."""
    yield GPU, RationSpec(quota=spec.quota, limit=spec.limit, weight=spec.weight), milli, place
    if spec.cpu is not None:
        yield CPU, spec.cpu, cpu_milli, place.at("cpu")
    if spec.memory is not None:
        yield MEMORY, spec.memory, memory_bytes, place.at("memory")
    for model, ration in (spec.models or {}).items():
        yield gpu_model_resource(model), ration, milli, place.at("models", model)
    for name, ration in (spec.other or {}).items():
        yield name, ration, _whole_units, place.at("other", name)


def _share(resource: str, ration: RationSpec | Amount, convert: Convert, place: Place) -> QueueShare:
    spec = ration if isinstance(ration, RationSpec) else RationSpec(quota=ration)
    weight = DEFAULT_WEIGHT_MILLI
    if spec.weight is not None:
        weight = place.at("weight").read(milli, spec.weight, "weight")
    return QueueShare(
        resource,
        quota=_amount(spec.quota, convert, place.at("quota"), "quota"),
        limit=_amount(spec.limit, convert, place.at("limit"), "limit"),
        weight_milli=weight,
        priority=spec.priority,
    )


def _amount(value: Amount | None, convert: Convert, place: Place, what: str) -> int | None:
    return None if value is None or value == UNLIMITED else place.read(convert, value, what)


def _whole_units(value: Amount, what: str) -> int:
    """A resource that is counted in pieces; thousandths are read first, so that every error reads the same."""
    thousandths = milli(value, what)
    if thousandths % MILLI:
        raise QuantityError(f"{what} {value} must be a whole number", fix="this resource is counted in pieces")
    return thousandths // MILLI


def with_sums(queues: list[Queue], summed: frozenset[str]) -> tuple[Queue, ...]:
    """A queue that says no GPU quota is owed what its children are owed together: without children nothing."""
    below: dict[str | None, int | None] = {}
    for at in _deepest_first(queues):
        queue = queues[at]
        if queue.name in summed:
            queue = queues[at] = _owing(queue, below.get(queue.name, 0))
        below[queue.parent] = _sum(below.get(queue.parent, 0), queue.share(GPU).quota)
    return tuple(queues)


def _owing(queue: Queue, quota: int | None) -> Queue:
    gpus, *others = queue.shares
    return msgspec.structs.replace(queue, shares=(msgspec.structs.replace(gpus, quota=quota), *others))


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _deepest_first(entries: Sequence[Entry | Queue]) -> list[int]:
    """Positions of all queues, children before their parents."""
    parents = {entry.name: entry.parent for entry in entries}
    return sorted(range(len(entries)), key=lambda at: -_depth(entries[at].name, parents))


def _depth(name: str, parents: dict[str, str | None]) -> int:
    """How far below its root a queue lies. A loop ends the count; the rules of the tree will name it."""
    depth, above = 0, parents[name]
    while above is not None and depth <= MAX_QUEUE_DEPTH:
        depth, above = depth + 1, parents.get(above)
    return depth


# ------------------------------------------------------------------------------------------------------------ changes


def changed_queues(
    specs: Mapping[str, QueueChangeSpec | Amount | None], place: Place, tree: QueueTree, busy: frozenset[str]
) -> QueueTree:
    """The tree after the changes a file asks for; `busy` are the queues that hold jobs."""
    queues = {queue.name: queue for queue in tree.queues}
    summed = set(tree.summed)
    for name, short in specs.items():
        here = place.at(name)
        spec = short if isinstance(short, QueueChangeSpec) else QueueChangeSpec(quota=short)
        if spec.parent in busy:
            what = f'queue "{spec.parent}" holds jobs, so no queue can be below it'
            raise here.at("parent").error(what, "name another parent, or cancel its jobs")
        known = queues.get(name)
        queues[name] = _changed(known, spec, here) if known else _newcomer(name, spec, here, queues)
        summed = summed - {name} if spec.quota is not None else summed if known else summed | {name}
    changed = with_sums(list(queues.values()), frozenset(summed))
    problems = validate_queues(changed, _change_locator(changed, place))
    if problems:
        raise QueueTreeError(tuple(sorted(problems, key=_line)))
    return QueueTree(changed, tree.usage, frozenset(summed))


def _newcomer(name: str, spec: QueueChangeSpec, place: Place, queues: dict[str, Queue]) -> Queue:
    """A new queue, which has to be called new: else a slip of the pen would make one."""
    if not spec.new and spec.parent is None:
        what = f'there is no queue "{name}"{did_you_mean(name, queues)}'
        fix = "name one that exists; a new queue says its parent, or new: true"
        raise InputError(what, where=place.where_key, fix=fix)
    return _queue(name, spec.parent, spec, place, order=1 + max((queue.order for queue in queues.values()), default=-1))


def _changed(queue: Queue, spec: QueueChangeSpec, place: Place) -> Queue:
    """A queue with other values where some are given."""
    if spec.new:
        fix = "leave new out to change it, or give the new queue another name"
        raise InputError(f'queue "{queue.name}" exists already', where=place.at("new").where_key, fix=fix)
    if spec == QueueChangeSpec():
        fix = f"write what changes: {queue.name}: {{quota: 8}}"
        raise InputError(f'nothing about queue "{queue.name}" changes', where=place.where_key, fix=fix)
    written = _queue(queue.name, spec.parent, spec, place, queue.order)
    given = {
        "parent": spec.parent,
        "priority": spec.priority,
        "reclaim_min_runtime_ms": written.reclaim_min_runtime_ms,
        "preempt_min_runtime_ms": written.preempt_min_runtime_ms,
        "disruption_budget": spec.disruption_budget,
        "overcommit": spec.overcommit,
        "affinity_scope": spec.affinity_scope,
    }
    values = {name: value for name, value in given.items() if value is not None}
    return msgspec.structs.replace(queue, shares=_changed_shares(queue, spec, place), **values)


def _changed_shares(queue: Queue, spec: QueueFields, place: Place) -> tuple[QueueShare, ...]:
    shares = {share.resource: share for share in queue.shares}
    for resource, ration, convert, here in _rations(spec, place):
        asked = ration if isinstance(ration, RationSpec) else RationSpec(quota=ration)
        written = _share(resource, asked, convert, here)
        fields = {"quota": "quota", "limit": "limit", "weight": "weight_milli", "priority": "priority"}
        given = {to: getattr(written, to) for name, to in fields.items() if getattr(asked, name) is not None}
        if given or resource not in shares:
            shares[resource] = msgspec.structs.replace(shares.get(resource, QueueShare(resource)), **given)
    return tuple(shares.values())


def _change_locator(queues: Sequence[Queue], place: Place) -> Callable[[int, str, str], Where | None]:
    """Where a change is written; what is wrong about a queue it does not name came about by the queue above it."""

    def locate(position: int, field: str, resource: str) -> Where | None:
        queue = queues[position]
        named = place.at(queue.name)
        if named is place:
            return place.at(queue.parent or "").where_key
        found = named.at(*_steps(resource), field) if field else named
        return named.where_key if found is named else found.where

    return locate


# ----------------------------------------------------------------------------------------------------------- past use


def _past_use(entries: list[Entry]) -> tuple[QueueUsage, ...]:
    """What each queue has used of all GPUs. One that does not say has used what the queues below it have."""
    used: dict[str, int] = {}
    below: dict[str | None, int] = {}
    for at in _deepest_first(entries):
        entry = entries[at]
        used[entry.name] = _used_ppm(entry, below.get(entry.name, 0))
        below[entry.parent] = below.get(entry.parent, 0) + used[entry.name]
    if below.get(None, 0) > PPM:
        first = next(entry for entry in entries if used[entry.name])
        what = f"the queues have used {_percent(below[None])} of the cluster together"
        raise first.place.at("used").error(what, "lower them to 100% or less in all")
    return tuple(QueueUsage(entry.name, GPU, used[entry.name]) for entry in entries if used[entry.name])


def _used_ppm(entry: Entry, below: int) -> int:
    written = entry.spec.used if isinstance(entry.spec, QueueSpec) else None
    if written is None:
        return below
    place = entry.place.at("used")
    used = int(Decimal(written.rstrip("%")) * PPM / 100)
    if used > PPM:
        raise place.error(f"used {written} is more than the whole cluster", "write a part of 100%, e.g. 40%")
    if used < below:
        what = f'queue "{entry.name}" has used {written}, the queues below it {_percent(below)}'
        raise place.error(what, "raise it, or leave it out: then it is their sum")
    return used


def _percent(ppm: int) -> str:
    return f"{(Decimal(ppm) * 100 / PPM).normalize():f}%"
