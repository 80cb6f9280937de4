"""Nodes that have no kubelet, as if they had one: which pod gets which of their GPUs.

Place in the flow: configuration, picture ─**fakenodes**─▶ tenancy; resources ─▶ updater. Invariant: the model has
exactly the fake nodes of the cluster that are in the configuration, and on each GPU whoever was given it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gpuyard.fakegpu.kubernetes.assign import Allocation, Shortage, assign
from gpuyard.fakegpu.kubernetes.holdings import holdings
from gpuyard.fakegpu.kubernetes.nodepatch import Resources, resources_of
from gpuyard.fakegpu.kubernetes.observed import PodFacts
from gpuyard.fakegpu.kubernetes.tenancy import Tenancy
from gpuyard.fakegpu.kubernetes.workload import Work
from gpuyard.fakegpu.yard import Yard


class Settled(msgspec.Struct, frozen=True):
    """Pods that have no devices, and pods that have one which is no longer wanted."""

    short: tuple[Shortage, ...] = ()
    keeping: tuple[PodFacts, ...] = ()


class FakeNodes(Tenancy):
    """Who was given what, node by node."""

    def __init__(self, yard: Yard) -> None:
        super().__init__(yard)
        self._given: dict[str, tuple[Allocation, ...]] = {}

    def remember(self, name: str, given: tuple[Allocation, ...]) -> None:
        """What was given out on a node before we were there."""
        self._given[name] = given

    def house(self, name: str, pods: Mapping[str, PodFacts], work: Mapping[str, Work]) -> Settled:
        """Give the pods of a node their devices."""
        leaving = self.leaving(name)
        offered = dict(self.resources(name).devices)
        assigned = assign(offered, pods.values(), self._given.get(name, ()), leaving)
        self._given[name] = assigned.allocations
        self.settle(name, holdings(assigned.allocations, pods, work))
        keeping = {each.pod for each in assigned.allocations if leaving.intersection(each.devices)}
        return Settled(assigned.short, tuple(pods[uid] for uid in sorted(keeping)))

    def resources(self, name: str) -> Resources:
        """What a node offers now."""
        return resources_of(self.reading(name))

    def let_go(self) -> set[str]:
        changed = super().let_go()
        for gone in self._given.keys() - self.names:
            del self._given[gone]
        return changed
