"""The model of some nodes and the containers on it: GPUs come and go as configured, but not under anybody's hands.

Place in the flow: Fleet and Holding ─**tenancy**─▶ yard. Invariant: the model has what is wanted, and of what is no
longer wanted exactly the GPUs that somebody holds.
"""

from __future__ import annotations

from collections.abc import KeysView, Mapping

from gpuyard.fakegpu.fleet import Fleet, MachineSpec
from gpuyard.fakegpu.kubernetes.configuration import with_held
from gpuyard.fakegpu.kubernetes.holdings import Holding
from gpuyard.fakegpu.kubernetes.occupy import Occupancy, seats_of
from gpuyard.fakegpu.reading import MachineReading
from gpuyard.fakegpu.yard import Yard


class Tenancy:
    """Who is on which GPU of the yard."""

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self._occupancy = Occupancy()
        self._wanted = Fleet(())
        self._machines: dict[str, MachineSpec] = {}
        self.moving: set[str] = set()
        """Nodes on which something changes without a pod coming or going."""

    @property
    def names(self) -> KeysView[str]:
        return self._machines.keys()

    def machine(self, name: str) -> MachineSpec:
        return self._machines[name]

    def reading(self, name: str) -> MachineReading:
        return self._yard.engine.reading(name)

    def change(self, fleet: Fleet) -> set[str]:
        """Another fleet is wanted; the answer is which nodes are other than before."""
        self._wanted = fleet
        return self.let_go()

    def let_go(self) -> set[str]:
        """Take away what is no longer wanted and nobody holds any more; which nodes are different by that."""
        engine = self._yard.engine
        kept = with_held(self._wanted, engine.fleet, self._occupancy.held)
        if kept == engine.fleet:
            return set()
        self._yard.change(kept)
        before, self._machines = self._machines, {machine.name: machine for machine in kept.machines}
        for gone in before.keys() - self._machines.keys():
            self._occupancy.forget(gone)
            self.moving.discard(gone)
        return {name for name, machine in self._machines.items() if before.get(name) != machine}

    def held(self, name: str) -> frozenset[str]:
        """The GPUs of a node that somebody holds."""
        return self._occupancy.held(name)

    def leaving(self, name: str) -> frozenset[str]:
        """Devices of a node that are only there for whoever holds them."""
        machine = self._machines[name]
        gpus = {gpu.uuid for gpu in machine.gpus if gpu.leaving}
        if not gpus:
            return frozenset()
        return frozenset(
            device for device, seats in seats_of(machine).items() if any(seat.gpu in gpus for seat in seats)
        )

    def settle(self, name: str, wanted: Mapping[str, Holding]) -> tuple[str, ...]:
        """Let these hold devices of a node, and nobody else; the answer is which devices it does not have."""
        missing = self._occupancy.settle(self._yard.engine, self._machines[name], wanted)
        (self.moving.add if self._occupancy.moves(name) else self.moving.discard)(name)
        return missing
