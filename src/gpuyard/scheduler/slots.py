"""A bound that needs no trial: how many tasks could fit, at the very most, once certain blocks are gone."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gpuyard.model.quantities import MILLI
from gpuyard.scheduler.draft import Draft, Holding
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.shapes import Shape


class SlotBound:
    """Counts whole places for the largest tasks of a chunk. Optimistic: what it refuses cannot be placed."""

    def __init__(self, draft: Draft, waiter: Waiter) -> None:
        shape = max(waiter.shapes, key=_size)
        self.need = waiter.shapes.count(shape)
        self.each_milli = 0 if shape.request.mig else shape.request.devices * shape.request.gpu_milli
        self.places = 0
        if not self.each_milli:
            return
        columns = draft.nodes.later_columns()
        columns.sync()
        self._eligible = draft.eligibility.as_lists(shape.request.where)
        free = np.maximum(columns.gpu_milli, 0)
        self._free = free.tolist()
        mask = draft.eligibility.nodes(shape.request.where)
        self.places = int((free[mask] // self.each_milli).sum())

    def free(self, holdings: Iterable[Holding]) -> None:
        """Count on these being gone, too."""
        if not self.each_milli:
            return
        for task, position, shares, amounts, _ in holdings:
            if self._eligible[position]:
                before = self._free[position]
                # A memory request may count for less than the device it keeps others from.
                milli = MILLI * len(shares) if task.request.gpu_memory_mib else amounts[0]
                self._free[position] = before + milli
                self.places += (before + milli) // self.each_milli - before // self.each_milli

    def enough(self) -> bool:
        return not self.each_milli or self.places >= self.need


def _size(shape: Shape) -> tuple[int, ...]:
    return shape.asked
