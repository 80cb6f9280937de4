"""How the GPUs of a machine are wired: which processor and switch each hangs on, and how close two of them are.

Place in the flow: MachineSpec ─seats─▶ **links** ─▶ reading ─▶ NVML, nvidia-smi topo, preferred allocations. Pure.
Invariant: a seat follows from index, number of GPUs and NUMA nodes alone, so that every face wires a machine alike.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

GPUS_PER_SWITCH: Final = 2
GPUS_OF_ONE_PROCESSOR: Final = 4
"""A machine with more than these has two processors, unless its file says otherwise."""
MAX_NUMA_NODES: Final = 8
NVLINK_WORTH: Final = 100
"""What one NVLink counts beside the way over PCIe: more than any of those."""


class Seat(msgspec.Struct, frozen=True, gc=False):
    """Where a GPU sits: the processor it is near to, and the PCIe switch of the machine it hangs on."""

    numa_node: int
    pcie_switch: int


class Level(IntEnum):
    """What two GPUs have in common on the way over PCIe; the numbers are NVML's."""

    SAME_GPU = 0
    ONE_SWITCH = 10
    ONE_PROCESSOR = 40
    MACHINE = 50


def usual_numa_nodes(gpus: int) -> int:
    return 1 if gpus <= GPUS_OF_ONE_PROCESSOR else 2


def seats(gpus: int, numa_nodes: int) -> tuple[Seat, ...]:
    """Of all GPUs of a machine: as even a part as can be at each processor, two at a switch."""
    found: list[Seat] = []
    switch = 0
    for node in range(numa_nodes):
        own = (gpus * (node + 1)) // numa_nodes - (gpus * node) // numa_nodes
        found += (Seat(node, switch + at // GPUS_PER_SWITCH) for at in range(own))
        switch += -(-own // GPUS_PER_SWITCH)
    return tuple(found)


def level(one: Seat, other: Seat) -> Level:
    """Of two different GPUs."""
    if one.pcie_switch == other.pcie_switch:
        return Level.ONE_SWITCH
    return Level.ONE_PROCESSOR if one.numa_node == other.numa_node else Level.MACHINE


def closeness(way: Level, nvlinks: int) -> int:
    """One number for how well two devices talk to each other; the closest is the largest."""
    return Level.MACHINE - way + 10 + nvlinks * NVLINK_WORTH
