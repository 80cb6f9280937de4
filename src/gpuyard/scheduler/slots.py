"""A bound that needs no trial: how many tasks could fit, at the very most, once certain blocks are gone.

Place in the flow: a search asks before every look. Counted node by node in whole places for the largest tasks of the
chunk, and where the chunk must stay inside one topology domain, domain by domain. Optimistic: what it refuses cannot be
placed, whatever is tried.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from gpuyard.model.quantities import MILLI
from gpuyard.scheduler.columns import Ints
from gpuyard.scheduler.draft import Draft, Holding
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.resources import GPU_AT
from gpuyard.scheduler.shapes import Shape

ANYWHERE: Final = 0
NOWHERE: Final = -1


class SlotBound:
    """Places for the largest tasks of a chunk, per domain; without a required level the whole cluster is one."""

    def __init__(self, draft: Draft, waiter: Waiter) -> None:
        shape = max(waiter.shapes, key=_size)
        self.need = waiter.shapes.count(shape)
        self.each_milli = 0 if shape.request.mig else shape.request.devices * shape.request.gpu_milli
        if not self.each_milli:
            return
        columns = draft.nodes.later_columns()
        columns.sync()
        domains = _domains(draft, waiter)
        domains[~draft.eligibility.nodes(shape.request.where)] = NOWHERE
        free = np.maximum(columns.gpu_milli, 0)
        inside = domains != NOWHERE
        places = np.bincount(domains[inside], weights=free[inside] // self.each_milli, minlength=1)
        self._domain: list[int] = domains.tolist()
        self._free: list[int] = free.tolist()
        self._places: list[int] = places.astype(np.int64).tolist()
        self._most = max(self._places)

    def free(self, holdings: Iterable[Holding]) -> None:
        """Count on these being gone, too."""
        if not self.each_milli:
            return
        for one in holdings:
            position = one.position
            domain = self._domain[position]
            if domain == NOWHERE:
                continue
            before = self._free[position]
            # A memory request may count for less than the device it keeps others from.
            after = before + (MILLI * len(one.shares) if one.task.request.gpu_memory_mib else one.amounts[GPU_AT])
            self._free[position] = after
            gained = after // self.each_milli - before // self.each_milli
            if gained:
                self._places[domain] += gained
                self._most = max(self._most, self._places[domain])

    def enough(self) -> bool:
        return not self.each_milli or self._most >= self.need


def _domains(draft: Draft, waiter: Waiter) -> Ints:
    """The number of the domain each node lies in, at the level the whole chunk must stay inside."""
    nodes = len(draft.nodes.frames)
    rule = waiter.chunk.group.topology
    levels = draft.domains.levels(rule) if rule is not None and rule.required is not None else None
    if rule is None or not levels:
        return np.full(nodes, ANYWHERE, dtype=np.int64)
    domains = np.full(nodes, NOWHERE, dtype=np.int64)
    for number, mask in enumerate(draft.domains.at(rule.topology, levels[-1]).values()):
        domains[mask] = number
    return domains


def _size(shape: Shape) -> tuple[int, ...]:
    return shape.asked
