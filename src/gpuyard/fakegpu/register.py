"""Names of a fleet: which machine and which GPU is meant, and where it is in the columns.

Place in the flow: engine ─name─▶ **register** ─place in the columns─▶ devices, load. Invariant: the GPUs of a machine
stand next to each other, in file order; a name that is not there is an InputError that says what is.
"""

from __future__ import annotations

from typing import Final

from gpuyard.errors import InputError
from gpuyard.fakegpu.fleet import Fleet, MachineSpec
from gpuyard.fakegpu.links import seats
from gpuyard.fakegpu.render import Identity, identity
from gpuyard.files.suggest import did_you_mean

SHOWN_NAMES: Final = 8


class Register:
    """Machines and GPUs of one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.names: Final = tuple(machine.name for machine in fleet.machines)
        self.identities: Final[list[Identity]] = []
        self.places: Final[dict[tuple[str, str], int]] = {}
        """Where a GPU is, by its machine and id."""
        self._gpus: dict[str, range] = {}
        self._machines: dict[str, MachineSpec] = {}
        for machine in fleet.machines:
            self._add(machine)

    def _add(self, machine: MachineSpec) -> None:
        first = len(self.identities)
        self._machines[machine.name] = machine
        self._gpus[machine.name] = range(first, first + len(machine.gpus))
        places = seats(len(machine.gpus), machine.numa_nodes)
        for index, gpu in enumerate(machine.gpus):
            self.identities.append(identity(gpu, index, places[index]))
            self.places[machine.name, gpu.uuid] = first + index

    def gpus(self, machine: str) -> range:
        """The places of a machine's GPUs."""
        if machine not in self._gpus:
            shown = ", ".join(self.names[:SHOWN_NAMES]) + (", ..." if len(self.names) > SHOWN_NAMES else "")
            what = f'no machine "{machine}"{did_you_mean(machine, self.names)}'
            raise InputError(what, fix=f"machines: {shown}" if shown else "the fleet has no machine")
        return self._gpus[machine]

    def machine(self, name: str) -> MachineSpec:
        self.gpus(name)
        return self._machines[name]

    def gpu(self, machine: str, gpu: int | str) -> int:
        """The place of one GPU, meant by its index or its id."""
        own = self.gpus(machine)
        if isinstance(gpu, str):
            return self._by_id(machine, gpu)
        if not 0 <= gpu < len(own):
            raise InputError(f"{machine} has no GPU {gpu}", fix=f"it has {len(own)}, counted from 0")
        return own[gpu]

    def _by_id(self, machine: str, uuid: str) -> int:
        if (machine, uuid) not in self.places:
            ids = [gpu.uuid for gpu in self._machines[machine].gpus]
            raise InputError(f'{machine} has no GPU "{uuid}"{did_you_mean(uuid, ids)}', fix="name its index or its id")
        return self.places[machine, uuid]
