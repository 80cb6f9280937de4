"""The same numbers as the node states, side by side, for questions about the whole cluster at once.

Scalar reads come from the states; NumPy columns answer "which of all nodes" and "how much in all". Columns follow
lazily: a change only notes the node; the next question brings the noted rows up to date.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from gpuyard.scheduler.nodestate import NodeFrame, NodeState

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Columns:
    """One row per node. `journal` lists changed nodes in order, so that a reader can catch up from where it was."""

    free: Ints
    free_count: Ints
    gpu_milli: Ints
    cpu_milli: Ints
    memory_bytes: Ints
    slots: Ints

    def __init__(self, frames: list[NodeFrame], states: Sequence[NodeState]) -> None:
        self._frames = frames
        self._states = states
        self._devices: DeviceColumns | None = None
        self.journal: list[int] = []
        self._synced = -1
        """How much of the journal the columns reflect; -1: nothing yet."""

    def fork(self, states: Sequence[NodeState]) -> Columns:
        """A copy for a draft. The original is brought up to date first, so that it is filled only once."""
        self.sync()
        self.journal.clear()
        self._synced = 0
        copy = self._copy(states)
        copy._synced = 0
        if self._devices is not None:
            copy._devices = self._devices.fork()
        return copy

    def reframe(self, frames: list[NodeFrame]) -> None:
        """Nodes have changed; their rows follow like those of any other change."""
        self._frames = frames
        self._devices = None

    def beside(self, states: Sequence[NodeState], differing: Iterable[int]) -> Columns:
        """Columns of other states of the same nodes, which differ at some; both follow the same journal."""
        self.sync()
        copy = self._copy(states)
        copy.journal = self.journal
        copy._synced = self._synced
        for position in differing:
            copy._write(position)
        return copy

    def _copy(self, states: Sequence[NodeState]) -> Columns:
        copy = Columns(self._frames, states)
        copy.free, copy.free_count = self.free.copy(), self.free_count.copy()
        copy.gpu_milli, copy.cpu_milli = self.gpu_milli.copy(), self.cpu_milli.copy()
        copy.memory_bytes, copy.slots = self.memory_bytes.copy(), self.slots.copy()
        return copy

    def sync(self) -> None:
        """Bring every column up to date."""
        if self._synced < 0:
            self._fill()
        elif self._synced < len(self.journal):
            for position in set(self.journal[self._synced :]):
                self._write(position)
        self._synced = len(self.journal)

    def devices(self) -> DeviceColumns:
        """Per-device columns, made when first asked for."""
        self.sync()
        if self._devices is None:
            self._devices = DeviceColumns(self._frames, self._states)
        return self._devices

    def _fill(self) -> None:
        states = self._states
        self.free = _column(state.free for state in states)
        self.free_count = _column(state.free.bit_count() for state in states)
        self.gpu_milli = _column(state.gpu_milli for state in states)
        self.cpu_milli = _column(state.cpu_milli for state in states)
        self.memory_bytes = _column(state.memory_bytes for state in states)
        self.slots = _column(state.slots for state in states)

    def _write(self, position: int) -> None:
        state = self._states[position]
        self.free[position] = state.free
        self.free_count[position] = state.free.bit_count()
        self.gpu_milli[position] = state.gpu_milli
        self.cpu_milli[position] = state.cpu_milli
        self.memory_bytes[position] = state.memory_bytes
        self.slots[position] = state.slots
        if self._devices is not None:
            self._devices.write(position, self._frames[position], state)


class DeviceColumns:
    """One row per node, one column per device: what is left of each device that may be shared."""

    __slots__ = ("capacity_mib", "memory_mib", "milli", "opened", "sharing")

    def __init__(self, frames: list[NodeFrame], states: Sequence[NodeState]) -> None:
        width = max((len(frame.devices) for frame in frames), default=0)
        shape = (len(frames), max(width, 1))
        self.capacity_mib: Ints = np.zeros(shape, dtype=np.int64)
        self.milli: Ints = np.full(shape, -1, dtype=np.int64)
        self.memory_mib: Ints = np.full(shape, -1, dtype=np.int64)
        self.opened: Bools = np.zeros(shape, dtype=np.bool_)
        """Devices that tasks already share."""
        self.sharing: NDArray[np.int8] = np.zeros(shape, dtype=np.int8)
        for position, (frame, state) in enumerate(zip(frames, states, strict=True)):
            self.capacity_mib[position, : len(frame.devices)] = frame.device_memory_mib
            self.write(position, frame, state)

    def fork(self) -> DeviceColumns:
        copy = DeviceColumns.__new__(DeviceColumns)
        copy.capacity_mib = self.capacity_mib
        copy.milli, copy.memory_mib = self.milli.copy(), self.memory_mib.copy()
        copy.opened, copy.sharing = self.opened.copy(), self.sharing.copy()
        return copy

    def write(self, position: int, frame: NodeFrame, state: NodeState) -> None:
        milli, memory, opened = self.milli[position], self.memory_mib[position], self.opened[position]
        milli[:] = -1
        memory[:] = -1
        opened[:] = False
        mask = state.free & frame.share_mask
        for device in range(len(frame.devices)):
            if mask >> device & 1:
                milli[device] = 1000
                memory[device] = frame.device_memory_mib[device]
        for device, part in state.parts.items():
            milli[device] = part.milli
            memory[device] = part.memory_mib
            opened[device] = True
            self.sharing[position, device] = SHARING_CODE[part.sharing]


SHARING_CODE = {"exclusive": 0, "time-sliced": 1, "mps": 2}


def _column(values: Iterable[int]) -> Ints:
    return np.fromiter(values, dtype=np.int64)
