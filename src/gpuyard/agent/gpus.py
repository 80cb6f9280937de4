"""Which GPUs of this machine a task gets, and how it sees them.

Place in the flow: nvml ─Gpu─▶ **gpus** ─▶ names for tasks. Invariant: shares name devices by their place, slices by
their kind.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuyard.errors import AgentError
from gpuyard.model.jobs import DeviceShare
from gpuyard.nvml.gpus import Gpu
from gpuyard.nvml.library import Nvml


def choose(gpus: tuple[Gpu, ...], shares: tuple[DeviceShare, ...], taken: frozenset[str]) -> tuple[str, ...]:
    """The ids of what these shares name; a slice is any of its kind that nobody has."""
    found: list[str] = []
    for share in shares:
        if not 0 <= share.device < len(gpus):
            raise AgentError(f"this machine has no GPU {share.device}; it has {len(gpus)}, counted from 0")
        gpu = gpus[share.device]
        if not share.mig:
            found.append(gpu.uuid)
            continue
        free = (one.uuid for one in gpu.mig if one.profile == share.mig and one.uuid not in {*taken, *found})
        chosen = next(free, None)
        if chosen is None:
            raise AgentError(f"no slice {share.mig} of GPU {share.device} is free")
        found.append(chosen)
    return tuple(found)


class Yard:
    """The GPUs as the runtime needs them: names for shares, and how tasks see fake ones."""

    def __init__(self, nvml: Nvml, variables: Mapping[str, str]) -> None:
        self.nvml = nvml
        self.gpus = nvml.gpus()
        self._variables = variables

    def choose(self, shares: tuple[DeviceShare, ...], taken: frozenset[str]) -> tuple[str, ...]:
        return choose(self.gpus, shares, taken)

    def variables(self) -> Mapping[str, str]:
        return self._variables
