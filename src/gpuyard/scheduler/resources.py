"""Amounts of everything that is rationed, as tuples of integers over one fixed list of resources.

GPUs, CPU and host memory always lead; then whatever further resource or GPU model some queue mentions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import add
from typing import Final

from gpuyard.model.jobs import DeviceShare, Request
from gpuyard.model.nodes import Device, Node, mig_slice_milli
from gpuyard.model.quantities import CPU, GPU, MEMORY, MILLI
from gpuyard.model.queues import Queue

Amounts = tuple[int, ...]
"""One amount per resource, in the order of a `Resources` list."""

GPU_AT: Final = 0
CPU_AT: Final = 1
MEMORY_AT: Final = 2


class Resources:
    """The list of rationed resources of one cluster, and what a task counts against a queue for each."""

    def __init__(self, queues: Iterable[Queue], nodes: Iterable[Node]) -> None:
        further = {share.resource for queue in queues for share in queue.shares} - {GPU, CPU, MEMORY}
        self.names: tuple[str, ...] = (GPU, CPU, MEMORY, *sorted(further))
        self.at = {name: position for position, name in enumerate(self.names)}
        self.zero: Amounts = (0,) * len(self.names)
        self.by_model = {name.removeprefix("gpu/"): at for name, at in self.at.items() if name.startswith("gpu/")}
        self._slices: dict[str, int] = {}
        for node in nodes:
            for device in node.devices:
                for slices in device.mig:
                    if slices.gpu_milli is not None:
                        most = max(slices.gpu_milli, self._slices.get(slices.profile, 0))
                        self._slices[slices.profile] = most

    def slice_milli(self, profile: str) -> int:
        """What one MIG slice of this profile counts; where nodes say different things, the most any says."""
        return self._slices[profile] if profile in self._slices else mig_slice_milli(profile)

    def unit(self, position: int) -> int:
        """What is not split further when a surplus is divided: a whole GPU, a thousandth of a core, a byte."""
        name = self.names[position]
        return MILLI if name == GPU or name.startswith("gpu/") else 1

    def of_request(self, request: Request, gpu_milli: int) -> Amounts:
        """What a task counts whose GPUs count `gpu_milli` in all; a GPU model only where the request names just one."""
        amounts = [gpu_milli, request.cpu_milli, request.memory_bytes, *self.zero[3:]]
        for name, amount in request.other:
            if name in self.at:
                amounts[self.at[name]] = amount
        models = request.where.gpu_models
        if len(models) == 1 and models[0] in self.by_model:
            amounts[self.by_model[models[0]]] = gpu_milli
        return tuple(amounts)

    def of_task(self, request: Request, shares: Sequence[DeviceShare], node: Node | None) -> Amounts:
        """What a placed task counts: by the devices it holds."""
        devices = node.devices if node else ()
        amounts = [0, request.cpu_milli, request.memory_bytes, *self.zero[3:]]
        for name, amount in request.other:
            if name in self.at:
                amounts[self.at[name]] = amount
        for share in shares:
            device = devices[share.device] if share.device < len(devices) else None
            charged = self.share_milli(request, share, device)
            amounts[GPU_AT] += charged
            if device and device.model in self.by_model:
                amounts[self.by_model[device.model]] += charged
        return tuple(amounts)

    def of_node(self, node: Node) -> Amounts:
        """What a node adds to the whole."""
        amounts = [0, node.cpu_milli, node.memory_bytes, *self.zero[3:]]
        for name, amount in node.other:
            if name in self.at:
                amounts[self.at[name]] = amount
        for device in node.devices:
            charged = MILLI if device.healthy and not device.mig else self._sliced_milli(device)
            amounts[GPU_AT] += charged
            if self.by_model and device.model in self.by_model:
                amounts[self.by_model[device.model]] += charged
        return tuple(amounts)

    def share_milli(self, request: Request, share: DeviceShare, device: Device | None) -> int:
        """What one share counts against a quota; memory counts by the size of the device it lies on, rounded up."""
        if share.mig:
            return self.slice_milli(share.mig)
        if request.gpu_memory_mib and device and device.memory_mib:
            return memory_milli(request.gpu_memory_mib, device.memory_mib)
        return share.gpu_milli

    def _sliced_milli(self, device: Device) -> int:
        """What the slices of a device add to the GPUs of the cluster; nothing while it is unhealthy."""
        return sum(self.slice_milli(slices.profile) * slices.count for slices in device.mig) if device.healthy else 0


def memory_milli(memory_mib: int, device_memory_mib: int) -> int:
    return -(-MILLI * memory_mib // device_memory_mib)


def plus(a: Amounts, b: Amounts) -> Amounts:
    return tuple(map(add, a, b))


def times(a: Amounts, factor: int) -> Amounts:
    return tuple([x * factor for x in a])
