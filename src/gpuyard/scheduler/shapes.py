"""Shapes: requests that ask for the same, known by one small object.

Thousands of tasks ask for a handful of things; what can be worked out once per request is worked out here, once.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gpuyard.model.jobs import Request
from gpuyard.model.quantities import MILLI
from gpuyard.scheduler.neighbours import Neighbours
from gpuyard.scheduler.resources import Amounts, Resources, memory_milli

MAX_ALIASES: Final = 200_000
"""Request objects remembered by identity; beyond it the memory is emptied and filled anew."""


class Shape:
    """One request, with what it costs. `copies` tasks of it at once make a shape of their own."""

    __slots__ = (
        "asked",
        "at_least",
        "choosy",
        "coarse",
        "copies",
        "extra",
        "gpu",
        "id",
        "indifferent",
        "request",
        "ruled",
        "shared",
        "whole",
    )

    def __init__(self, id: int, request: Request, copies: int, asked: Amounts, at_least: Amounts) -> None:
        self.id = id
        self.request = request
        self.copies = copies
        self.whole = request.whole
        self.shared = request.shared
        self.asked = asked
        """What it counts before it is placed, for fair share: by the smallest GPU that would do."""
        self.at_least = at_least
        """The least it can count, for limits: by the largest GPU that would do."""
        self.extra = bool(request.mig or request.other)
        self.gpu = bool(request.devices or request.mig)
        self.ruled = bool(request.where.neighbours or request.where.spreads)
        """Has rules about other tasks."""
        self.choosy = bool(request.where.soft_neighbours or request.where.soft_spreads)
        """Would rather have some company than other."""
        self.indifferent = False
        """Whether it does not matter which nodes it would rather have."""
        self.coarse: Shape = self
        """The same but for CPU, memory and the like: many shapes differ in nothing else."""


class Shapes:
    """All shapes of one ledger."""

    def __init__(self, resources: Resources, memories: dict[str, tuple[int, int]], neighbours: Neighbours) -> None:
        self.resources = resources
        self.memories = memories
        """The smallest and the largest GPU memory of each model (and of all, under '')."""
        self._by_value: dict[Request, Shape] = {}
        self.any_ruled = False
        """Whether any request so far had rules about other tasks."""
        self.any_choosy = False
        """Whether any would rather have some company than other."""
        self.neighbours = neighbours
        """What rules there are about tasks with which labels: those that are alike to all of them are alike."""
        self._several: dict[tuple[int, int], Shape] = {}
        self._indifferent: dict[int, Shape] = {}
        self._by_identity: dict[int, tuple[Request, Shape]] = {}

    def fork(self, neighbours: Neighbours) -> Shapes:
        """A copy that may learn shapes of its own, so that what is only tried is not remembered for ever."""
        copy = Shapes(self.resources, self.memories, neighbours)
        copy._by_value, copy._several = self._by_value.copy(), self._several.copy()
        copy._indifferent = self._indifferent.copy()
        copy.any_ruled, copy.any_choosy = self.any_ruled, self.any_choosy
        return copy

    def of(self, request: Request) -> Shape:
        known = self._by_identity.get(id(request))
        if known is not None:
            return known[1]
        shape = self.of_value(request)
        if len(self._by_identity) >= MAX_ALIASES:
            self._by_identity.clear()
        self._by_identity[id(request)] = (request, shape)
        return shape

    def of_value(self, request: Request) -> Shape:
        """The shape of a request made up on the way, which is not worth remembering by identity."""
        shape = self._by_value.get(request)
        if shape is None:
            shape = self._by_value[request] = self._make(request, 1)
            self.any_ruled = self.any_ruled or shape.ruled
            self.any_choosy = self.any_choosy or shape.choosy
        return shape

    def smallest_memory_mib(self, model: str) -> int:
        return self.memories.get(model, (0, 0))[0]

    def several(self, one: Shape, copies: int) -> Shape:
        """The shape of `copies` such tasks on one node, where they can be asked for as one."""
        key = (one.id, copies)
        shape = self._several.get(key)
        if shape is None:
            shape = self._several[key] = self._make(one.request, copies)
        return self.indifferent(shape) if one.indifferent else shape

    def indifferent(self, shape: Shape) -> Shape:
        """The same request, where it does not matter which nodes it would rather have."""
        if shape.indifferent:
            return shape
        same = self._indifferent.get(shape.id)
        if same is None:
            same = Shape(self._next_id(), shape.request, shape.copies, shape.asked, shape.at_least)
            same.indifferent = True
            self._indifferent[shape.id] = same
        return same

    def _next_id(self) -> int:
        return len(self._by_value) + len(self._several) + len(self._indifferent)

    def _make(self, request: Request, copies: int) -> Shape:
        smallest, largest = self._memory_range(request)
        amounts = self.resources.of_request
        asked = amounts(request, self._gpu_milli(request, smallest))
        at_least = amounts(request, self._gpu_milli(request, largest))
        coarse = self._coarse(request, copies)
        shape = Shape(self._next_id(), _multiplied(request, copies), copies, asked, at_least)
        shape.coarse = coarse or shape
        return shape

    def _coarse(self, request: Request, copies: int) -> Shape | None:
        if not (request.cpu_milli or request.memory_bytes or request.other):
            return None
        one = self.of_value(msgspec.structs.replace(request, cpu_milli=0, memory_bytes=0, other=()))
        return one if copies == 1 else self.several(one, copies)

    def _memory_range(self, request: Request) -> tuple[int, int]:
        models = request.where.gpu_models or ("",)
        ranges = [self.memories[model] for model in models if model in self.memories]
        if not ranges:
            return 0, 0
        return min(low for low, _ in ranges), max(high for _, high in ranges)

    def _gpu_milli(self, request: Request, device_memory_mib: int) -> int:
        """What the GPUs of a request count in all, on devices of this memory."""
        slices = sum(self.resources.slice_milli(profile) * count for profile, count in request.mig)
        if not request.gpu_memory_mib:
            return slices + request.devices * request.gpu_milli
        if not device_memory_mib:
            return slices + request.devices * MILLI
        return slices + request.devices * min(MILLI, memory_milli(request.gpu_memory_mib, device_memory_mib))


def _multiplied(request: Request, copies: int) -> Request:
    if copies == 1:
        return request
    return msgspec.structs.replace(
        request,
        devices=request.devices * copies,
        cpu_milli=request.cpu_milli * copies,
        memory_bytes=request.memory_bytes * copies,
        other=tuple((name, amount * copies) for name, amount in request.other),
    )
