"""Where a task may run at all: labels, taints, GPU models. Worked out once per rule, for all nodes."""

from __future__ import annotations

import numpy as np

from gpuyard.model.jobs import Toleration, Where
from gpuyard.model.nodes import Node, Taint
from gpuyard.scheduler.columns import Bools, Ints
from gpuyard.scheduler.nodestate import NodeFrame


class Eligibility:
    """Answers per rule, remembered until a node changes."""

    def __init__(self, frames: list[NodeFrame]) -> None:
        self._frames = frames
        self._nodes: dict[tuple[object, object], Bools] = {}
        self._lists: dict[tuple[object, object], list[bool]] = {}
        self._devices: dict[tuple[str, ...], tuple[list[int], Ints]] = {}
        self.gpu_all: Ints = np.array([max(1, 1000 * f.whole_mask.bit_count()) for f in frames], dtype=np.int64)
        self.most_gpu_milli = int(self.gpu_all.max(initial=0))
        self.cpu_all: Ints = np.array([max(1, frame.node.cpu_milli) for frame in frames], dtype=np.int64)
        self.memory_all: Ints = np.array([frame.node.memory_bytes for frame in frames], dtype=np.int64)
        self.slots_all: Ints = np.array([frame.node.max_tasks for frame in frames], dtype=np.int64)
        self.models: tuple[str, ...] = tuple(sorted({device.model for frame in frames for device in frame.devices}))

    def nodes(self, where: Where) -> Bools:
        """Which nodes a task with these rules may use, as far as labels, taints and being open go."""
        key = (where.any_of, where.tolerations)
        known = self._nodes.get(key)
        if known is None:
            known = np.array([may_use(frame.node, where) for frame in self._frames], dtype=np.bool_)
            self._nodes[key] = known
        return known

    def as_lists(self, where: Where) -> list[bool]:
        """The same as a list, which is quicker to read one by one."""
        key = (where.any_of, where.tolerations)
        known = self._lists.get(key)
        if known is None:
            known = self._lists[key] = self.nodes(where).tolist()
        return known

    def devices(self, models: tuple[str, ...]) -> tuple[list[int], Ints]:
        """The devices of each node that are of one of these models (no model: all), as masks: a list and a column."""
        known = self._devices.get(models)
        if known is None:
            masks = [_device_mask(frame, models) for frame in self._frames]
            known = self._devices[models] = (masks, np.array(masks, dtype=np.int64))
        return known


def may_use(node: Node, where: Where) -> bool:
    if not node.open:
        return False
    if node.taints and not all(_tolerated(taint, where.tolerations) for taint in node.taints):
        return False
    if not where.any_of:
        return True
    return any(all(rule.accepts(node.labels) for rule in rules) for rules in where.any_of)


def _tolerated(taint: Taint, tolerations: tuple[Toleration, ...]) -> bool:
    return any(
        (not toleration.key or toleration.key == taint.key) and toleration.value in (None, taint.value)
        for toleration in tolerations
    )


def _device_mask(frame: NodeFrame, models: tuple[str, ...]) -> int:
    if not models:
        return frame.whole_mask
    mask = 0
    for model in models:
        mask |= frame.models.get(model, 0)
    return mask
