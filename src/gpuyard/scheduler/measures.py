"""What a shape asks of a node, measure by measure, beside what every node has and what is free of it.

Place in the flow: `diagnose` compares the columns to say which measure is the one that fails, and by how much.
What is promised to others does not count as free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gpuyard.model.jobs import Request
from gpuyard.model.quantities import CPU, GPU, MEMORY, MILLI, gpu_model_resource
from gpuyard.model.reasons import GPU_MEMORY, MIG_PREFIX, TASKS
from gpuyard.scheduler.columns import SHARING_CODE, Ints
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.nodestate import NodeFrame, NodeState
from gpuyard.scheduler.shapes import Shape


class Measure(NamedTuple):
    """One thing a task needs. `each` is what one node must have for one task; the totals are for adding up."""

    resource: str
    each: int
    free: Ints
    capacity: Ints
    total_each: int
    total_free: Ints
    total_capacity: Ints
    places: Ints
    """How many such tasks each node would take now, as far as this goes."""
    all_places: Ints
    """How many it would take were it empty."""

    @classmethod
    def plain(cls, resource: str, each: int, free: Ints, capacity: Ints) -> Measure:
        """A measure that adds up over nodes as it stands."""
        return cls(resource, each, free, capacity, each, free, capacity, np.maximum(free, 0) // each, capacity // each)


def measures(draft: Draft, shape: Shape) -> list[Measure]:
    """Everything the shape asks for, GPUs first."""
    request, columns, most = shape.request, draft.nodes.columns, draft.eligibility
    columns.sync()
    found: list[Measure] = []
    if request.whole:
        found.append(_whole(draft, shape))
    elif request.devices:
        found.append(_parts(draft, shape))
    for profile, count in request.mig:
        found.append(_counted(draft, f"{MIG_PREFIX}{profile}", count, _slices_of(profile, request.where.gpu_models)))
    if request.cpu_milli:
        free = _unpromised(draft, columns.cpu_milli, lambda state: state.cpu_milli)
        found.append(Measure.plain(CPU, request.cpu_milli, free, most.cpu_all))
    if request.memory_bytes:
        free = _unpromised(draft, columns.memory_bytes, lambda state: state.memory_bytes)
        found.append(Measure.plain(MEMORY, request.memory_bytes, free, most.memory_all))
    for name, amount in request.other:
        found.append(_counted(draft, name, amount, _named(name)))
    slots = _unpromised(draft, columns.slots, lambda state: state.slots)
    found.append(Measure.plain(TASKS, 1, slots, most.slots_all))
    return found


Count = Callable[[NodeFrame, NodeState], int]


def _unpromised(draft: Draft, now: Ints, read: Callable[[NodeState], int]) -> Ints:
    """What is free now and will not be wanted by somebody it was promised to."""
    if not draft.nodes.later:
        return now
    free = now.copy()
    for position, later in draft.nodes.later.items():
        free[position] = min(int(now[position]), read(later))
    return free


def _counted(draft: Draft, resource: str, each: int, count: Count) -> Measure:
    """A measure that is asked of every node in turn."""
    nodes = draft.nodes
    free = [count(frame, state) for frame, state in zip(nodes.frames, nodes.now, strict=True)]
    for position, later in nodes.later.items():
        free[position] = min(free[position], count(nodes.frames[position], later))
    capacity = [count(frame, NodeState.empty(frame)) for frame in nodes.frames]
    return Measure.plain(resource, each, np.array(free, dtype=np.int64), np.array(capacity, dtype=np.int64))


def _whole(draft: Draft, shape: Shape) -> Measure:
    masks, mask = draft.eligibility.devices(shape.request.where.gpu_models)
    free = np.bitwise_count(draft.nodes.columns.free & mask).astype(np.int64)
    for position, later in draft.nodes.later.items():
        free[position] = (draft.nodes.now[position].free & later.free & masks[position]).bit_count()
    capacity = np.bitwise_count(mask).astype(np.int64)
    return Measure.plain(_gpus(shape.request), shape.request.devices * MILLI, free * MILLI, capacity * MILLI)


def _gpus(request: Request) -> str:
    """GPUs, or those of the one model a request names."""
    models = request.where.gpu_models
    return gpu_model_resource(models[0]) if len(models) == 1 else GPU


def _named(name: str) -> Count:
    return lambda _, state: state.other.get(name, 0)


def _slices_of(profile: str, models: tuple[str, ...]) -> Count:
    def count(frame: NodeFrame, state: NodeState) -> int:
        return sum(
            max(left, 0)
            for (name, device), left in state.mig.items()
            if name == profile and (not models or frame.devices[device].model in models)
        )

    return count


def _parts(draft: Draft, shape: Shape) -> Measure:
    """A part of each of several devices: one node must have that many devices with so much left."""
    request = shape.request
    columns = draft.nodes.columns.devices()
    mask = draft.eligibility.devices(request.where.gpu_models)[1]
    usable = (mask[:, None] >> np.arange(columns.milli.shape[1]) & 1).astype(np.bool_)
    open_to_it = usable & (~columns.opened | (columns.sharing == SHARING_CODE[request.sharing]))
    by_memory = request.gpu_memory_mib > 0
    each = request.gpu_memory_mib if by_memory else request.gpu_milli
    left = np.where(usable, np.maximum(columns.memory_mib if by_memory else columns.milli, 0), 0)
    joinable = np.where(open_to_it, left, 0)
    whole = np.where(usable, columns.capacity_mib if by_memory else MILLI, 0)
    return Measure(
        GPU_MEMORY if by_memory else _gpus(request),
        each,
        _nth_largest(joinable, request.devices),
        _nth_largest(whole, request.devices),
        each * request.devices,
        left.sum(axis=1),
        whole.sum(axis=1),
        (joinable // each).sum(axis=1) // request.devices,
        (whole // each).sum(axis=1) // request.devices,
    )


def _nth_largest(values: Ints, count: int) -> Ints:
    if values.shape[1] < count:
        return np.zeros(len(values), dtype=np.int64)
    return np.sort(values, axis=1)[:, -count]
