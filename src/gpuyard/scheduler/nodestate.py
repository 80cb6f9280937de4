"""What is free on one node, device by device.

Place in the flow: the ledger keeps one state per node; a draft replaces states as it places work, so undoing a
placement is putting the old state back. Invariant: a state that others can see is never changed in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from gpuyard.model.jobs import DeviceShare, Request, Sharing
from gpuyard.model.nodes import Node
from gpuyard.model.quantities import MILLI

Booked = tuple[Request, Iterable[DeviceShare]]
"""What a task takes up on a node."""


class Part(msgspec.Struct, gc=False, eq=False):
    """A device that tasks share: what is left of it, and in which class they share."""

    milli: int
    memory_mib: int
    sharing: Sharing
    tasks: int

    def less(self, share: DeviceShare) -> Part:
        return Part(self.milli - share.gpu_milli, self.memory_mib - share.memory_mib, self.sharing, self.tasks + 1)

    def plus(self, share: DeviceShare) -> Part:
        return Part(self.milli + share.gpu_milli, self.memory_mib + share.memory_mib, self.sharing, self.tasks - 1)

    def facts(self) -> tuple[int, int, str, int]:
        return self.milli, self.memory_mib, self.sharing.value, self.tasks


class NodeFrame:
    """What never changes while a node stays the same: its devices as masks, its links, its slices."""

    __slots__ = ("device_memory_mib", "devices", "links", "models", "node", "share_mask", "whole_mask")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.devices = node.devices
        self.device_memory_mib: list[int] = []
        self.models: dict[str, int] = {}
        self.whole_mask = self.share_mask = 0
        linked = False
        bit = 1
        for device in node.devices:
            self.device_memory_mib.append(device.memory_mib)
            if device.healthy and not device.mig:
                self.whole_mask |= bit
                self.models[device.model] = self.models.get(device.model, 0) | bit
                if device.shareable:
                    self.share_mask |= bit
            linked = linked or device.nvlink != 0 or device.numa != 0
            bit <<= 1
        self.links = _link_masks(node) if linked else ()
        """Groups of devices that are close, the closest kind first; empty where all are alike."""

    def memory_ranges(self) -> dict[str, tuple[int, int]]:
        """Of each model the memory of the smallest and of the largest GPU that may be handed out whole."""
        ranges: dict[str, tuple[int, int]] = {}
        for model, mask in self.models.items():
            memories = [self.device_memory_mib[device] for device in bits(mask)]
            ranges[model] = min(memories), max(memories)
        return ranges


class NodeState(msgspec.Struct, gc=False, eq=False):
    """What is free on a node. `free` has one bit per device nobody touches; `parts` the devices tasks share."""

    free: int
    gpu_milli: int
    cpu_milli: int
    memory_bytes: int
    slots: int
    parts: dict[int, Part]
    mig: dict[tuple[str, int], int]
    other: dict[str, int]

    @classmethod
    def empty(cls, frame: NodeFrame) -> NodeState:
        """The node with nothing on it."""
        node = frame.node
        mig = {(s.profile, i): s.count for i, device in enumerate(node.devices) if device.healthy for s in device.mig}
        free = frame.whole_mask
        gpu_milli = MILLI * free.bit_count()
        return cls(free, gpu_milli, node.cpu_milli, node.memory_bytes, node.max_tasks, {}, mig, dict(node.other))

    def less(self, request: Request, shares: Iterable[DeviceShare], frame: NodeFrame) -> NodeState:
        """A new state with one more task on the node."""
        free, gpu_milli = self.free, self.gpu_milli
        in_parts = request.mig or (request.devices and request.gpu_milli != MILLI)
        if request.devices and not in_parts:
            for share in shares:
                free &= ~(1 << share.device)
                gpu_milli -= MILLI
        state = NodeState(
            free,
            gpu_milli,
            self.cpu_milli - request.cpu_milli,
            self.memory_bytes - request.memory_bytes,
            self.slots - 1,
            self.parts,
            self.mig,
            self.other,
        )
        if in_parts:
            state.parts = dict(self.parts)
            state.mig = dict(self.mig)
            for share in shares:
                state.take(share, request.sharing, frame)
        if request.other:
            state.other = dict(self.other)
            state.take_other(request)
        return state

    def plus(self, request: Request, shares: Iterable[DeviceShare], frame: NodeFrame) -> NodeState:
        """A new state with one task less on the node: undoes `less` with the same request and shares."""
        return self.without(((request, shares),), frame)

    def without(self, tasks: Iterable[Booked], frame: NodeFrame) -> NodeState:
        """A new state with several tasks less on the node."""
        free, gpu_milli = self.free, self.gpu_milli
        cpu_milli, memory_bytes, slots = self.cpu_milli, self.memory_bytes, self.slots
        special: list[Booked] = []
        for request, shares in tasks:
            cpu_milli += request.cpu_milli
            memory_bytes += request.memory_bytes
            slots += 1
            in_parts = request.mig or (request.devices and request.gpu_milli != MILLI)
            if in_parts or request.other:
                special.append((request, shares))
            if request.devices and not in_parts:
                for share in shares:
                    bit = 1 << share.device & frame.whole_mask
                    if bit:
                        free |= bit
                        gpu_milli += MILLI
        state = NodeState(free, gpu_milli, cpu_milli, memory_bytes, slots, self.parts, self.mig, self.other)
        if special:
            state.give_back(special, frame)
        return state

    def give_back(self, tasks: list[Booked], frame: NodeFrame) -> None:
        """Parts of devices, slices and named resources of tasks that are gone, on a state nobody has seen yet."""
        self.parts, self.mig, self.other = dict(self.parts), dict(self.mig), dict(self.other)
        for request, shares in tasks:
            if request.mig or (request.devices and request.gpu_milli != MILLI):
                for share in shares:
                    self.give(share, frame)
            for name, amount in request.other:
                self.other[name] = self.other.get(name, 0) + amount

    def add(self, request: Request, shares: Iterable[DeviceShare], frame: NodeFrame) -> None:
        """One more task, in place: only while a ledger is being built."""
        self.cpu_milli -= request.cpu_milli
        self.memory_bytes -= request.memory_bytes
        self.slots -= 1
        for share in shares:
            self.take(share, request.sharing, frame)
        if request.other:
            self.take_other(request)

    def take_other(self, request: Request) -> None:
        for name, amount in request.other:
            self.other[name] = self.other.get(name, 0) - amount

    def take(self, share: DeviceShare, sharing: Sharing, frame: NodeFrame) -> None:
        """Book one share. A share of a device the node no longer has holds nothing."""
        device = share.device
        if share.mig:
            key = (share.mig, device)
            if key in self.mig:
                self.mig[key] -= 1
            return
        bit = 1 << device
        if not frame.whole_mask & bit:
            return
        part = self.parts.get(device)
        if part is not None:
            self.parts[device] = part.less(share)
            self.gpu_milli -= _weight(share, frame)
        elif share.gpu_milli == MILLI:
            if self.free & bit:
                self.gpu_milli -= MILLI
            self.free &= ~bit
        else:
            self._open_part(device, share, sharing, frame)

    def holds(self, request: Request, shares: Iterable[DeviceShare]) -> bool:
        """Whether exactly these devices, and the rest of a request, are free."""
        if self.slots < 1 or 0 < request.cpu_milli > self.cpu_milli or 0 < request.memory_bytes > self.memory_bytes:
            return False
        if any(self.other.get(name, 0) < amount for name, amount in request.other):
            return False
        slices: dict[tuple[str, int], int] = {}
        for share in shares:
            if share.mig:
                key = (share.mig, share.device)
                slices[key] = slices.get(key, 0) + 1
                if self.mig.get(key, 0) < slices[key]:
                    return False
            elif not self._device_holds(request, share):
                return False
        return True

    def _device_holds(self, request: Request, share: DeviceShare) -> bool:
        if self.free >> share.device & 1:
            return True
        part = self.parts.get(share.device)
        if part is None or share.gpu_milli == MILLI or part.sharing is not request.sharing:
            return False
        return share.gpu_milli <= part.milli and share.memory_mib <= part.memory_mib

    def give(self, share: DeviceShare, frame: NodeFrame) -> None:
        """Hand one share back. A device nobody shares any more is whole again."""
        device = share.device
        if share.mig:
            key = (share.mig, device)
            if key in self.mig:
                self.mig[key] += 1
            return
        part = self.parts.get(device)
        if part is None:
            return
        self.gpu_milli += _weight(share, frame)
        if part.tasks > 1:
            self.parts[device] = part.plus(share)
        else:
            del self.parts[device]
            self.free |= 1 << device

    def _open_part(self, device: int, share: DeviceShare, sharing: Sharing, frame: NodeFrame) -> None:
        if not self.free & (1 << device):
            return
        self.free &= ~(1 << device)
        self.gpu_milli -= _weight(share, frame)
        memory_mib = frame.device_memory_mib[device]
        self.parts[device] = Part(MILLI - share.gpu_milli, memory_mib - share.memory_mib, sharing, 1)

    def free_slices(self, profile: str) -> int:
        return sum(count for (name, _), count in self.mig.items() if name == profile and count > 0)

    def facts(self) -> tuple[object, ...]:
        """A comparable value of the whole state."""
        return (
            self.free,
            self.gpu_milli,
            self.cpu_milli,
            self.memory_bytes,
            self.slots,
            tuple(sorted((device, part.facts()) for device, part in self.parts.items())),
            tuple(sorted(self.mig.items())),
            tuple(sorted(self.other.items())),
        )


def _weight(share: DeviceShare, frame: NodeFrame) -> int:
    """How much less of a GPU is left for others, for choosing between nodes: the larger of its two bounds."""
    capacity = frame.device_memory_mib[share.device]
    return max(share.gpu_milli, share.memory_mib * MILLI // capacity) if capacity else share.gpu_milli


def bits(mask: int) -> Iterator[int]:
    """The positions of the bits that are set, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _link_masks(node: Node) -> tuple[tuple[int, ...], ...]:
    kinds = []
    for attribute in ("nvlink", "numa"):
        masks: dict[int, int] = {}
        for position, device in enumerate(node.devices):
            group: int = getattr(device, attribute)
            masks[group] = masks.get(group, 0) | 1 << position
        if len(masks) > 1:
            kinds.append(tuple(masks[group] for group in sorted(masks)))
    return tuple(kinds)
