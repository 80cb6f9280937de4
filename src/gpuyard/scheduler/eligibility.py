"""Where a task may run at all, and where it would rather: labels, taints, GPU models. Worked out once per rule, for all
nodes."""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np

from gpuyard.model.jobs import DESPITE_CORDON, LabelRule, Preference, Toleration, Where
from gpuyard.model.nodes import Node, Taint
from gpuyard.model.quantities import MILLI
from gpuyard.scheduler.columns import Bools, Ints
from gpuyard.scheduler.nodestate import NodeFrame

SOFT_TAINT: Final = 100
"""What a soft taint weighs against preferences: as much as the strongest that Kubernetes knows."""

MAX_RANK: Final = 500
"""Nodes that are wanted even less are all alike."""

Alternatives = tuple[tuple[LabelRule, ...], ...]
Column = TypeVar("Column", Bools, Ints)


class Eligibility:
    """Answers per rule, remembered until a node changes."""

    def __init__(self, frames: list[NodeFrame]) -> None:
        self._frames = frames
        self._nodes: dict[tuple[Alternatives, tuple[Toleration, ...]], Bools] = {}
        self._taking_in: dict[tuple[Toleration, ...], Bools] = {}
        self._as_wished: dict[Alternatives, Bools] = {}
        self._lists: dict[tuple[object, object], list[bool]] = {}
        self._wishes: dict[tuple[tuple[Preference, ...], tuple[Toleration, ...]], Ints] = {}
        self._ranks: dict[tuple[object, object], Ints] = {}
        self._any_soft = _any_soft(frames)
        self._devices: dict[tuple[str, ...], tuple[list[int], Ints]] = {}
        self.gpu_all: Ints = np.array([_gpu_milli(frame) for frame in frames], dtype=np.int64)
        self.most_gpu_milli = int(self.gpu_all.max(initial=0))
        self.cpu_all: Ints = np.array([max(1, frame.node.cpu_milli) for frame in frames], dtype=np.int64)
        self.memory_all: Ints = np.array([frame.node.memory_bytes for frame in frames], dtype=np.int64)
        self.slots_all: Ints = np.array([frame.node.max_tasks for frame in frames], dtype=np.int64)
        self.models = _models(frames)

    def with_frame(self, frames: list[NodeFrame], position: int) -> Eligibility:
        """The same answers with another node in one place: only that one is asked anew."""
        node, before = frames[position].node, self._frames[position].node
        copy = Eligibility.__new__(Eligibility)
        copy._frames, copy._lists, copy._ranks = frames, {}, {}
        copy._wishes = {key: _with(known, position, wish_for(node, *key)) for key, known in self._wishes.items()}
        copy._any_soft = self._any_soft if node.taints == before.taints else _any_soft(frames)
        copy._nodes = {key: _with(known, position, may_use(node, Where(*key))) for key, known in self._nodes.items()}
        copy._taking_in = {key: _with(known, position, takes_in(node, key)) for key, known in self._taking_in.items()}
        copy._as_wished = {key: _with(k, position, is_as_wished(node, key)) for key, k in self._as_wished.items()}
        copy._devices = {
            models: _with_mask(known, frames[position], position, models) for models, known in self._devices.items()
        }
        copy.gpu_all = _with(self.gpu_all, position, _gpu_milli(frames[position]))
        copy.most_gpu_milli = int(copy.gpu_all.max(initial=0))
        copy.cpu_all = _with(self.cpu_all, position, max(1, node.cpu_milli))
        copy.memory_all = _with(self.memory_all, position, node.memory_bytes)
        copy.slots_all = _with(self.slots_all, position, node.max_tasks)
        same = {device.model for device in node.devices} == {device.model for device in before.devices}
        copy.models = self.models if same else _models(frames)
        return copy

    def nodes(self, where: Where) -> Bools:
        """Which nodes a task with these rules may use, as far as labels, taints and being open go."""
        key = (where.any_of, where.tolerations)
        known = self._nodes.get(key)
        if known is None:
            known = self._nodes[key] = self.taking_in(where.tolerations) & self.as_wished(where.any_of)
        return known

    def taking_in(self, tolerations: tuple[Toleration, ...]) -> Bools:
        """Which nodes are open to tasks with these tolerations."""
        known = self._taking_in.get(tolerations)
        if known is None:
            known = np.array([takes_in(frame.node, tolerations) for frame in self._frames], dtype=np.bool_)
            self._taking_in[tolerations] = known
        return known

    def as_wished(self, any_of: Alternatives) -> Bools:
        """Which nodes have the labels that one of these alternatives asks for."""
        known = self._as_wished.get(any_of)
        if known is None:
            known = np.array([is_as_wished(frame.node, any_of) for frame in self._frames], dtype=np.bool_)
            self._as_wished[any_of] = known
        return known

    def as_lists(self, where: Where) -> list[bool]:
        """The same as a list, which is quicker to read one by one."""
        key = (where.any_of, where.tolerations)
        known = self._lists.get(key)
        if known is None:
            known = self._lists[key] = self.nodes(where).tolist()
        return known

    def ranks(self, where: Where) -> Ints | None:
        """How much rather a task would have other nodes: 0 for those it wants most; None where it does not mind."""
        if not where.preferences and not self._any_soft:
            return None
        key = (where.preferences, where.tolerations)
        known = self._ranks.get(key)
        if known is None:
            _, rising = np.unique(-self.wishes(where), return_inverse=True)
            known = self._ranks[key] = np.minimum(rising, MAX_RANK).astype(np.int64)
        return known

    def wishes(self, where: Where) -> Ints:
        """How much a task wants each node, whoever is there."""
        key = (where.preferences, where.tolerations)
        known = self._wishes.get(key)
        if known is None:
            known = np.array([wish_for(frame.node, *key) for frame in self._frames], dtype=np.int64)
            self._wishes[key] = known
        return known

    def devices(self, models: tuple[str, ...]) -> tuple[list[int], Ints]:
        """The devices of each node that are of one of these models (no model: all), as masks: a list and a column."""
        known = self._devices.get(models)
        if known is None:
            masks = [_device_mask(frame, models) for frame in self._frames]
            known = self._devices[models] = (masks, np.array(masks, dtype=np.int64))
        return known


def _with(column: Column, position: int, value: int) -> Column:
    changed = column.copy()
    changed[position] = value
    return changed


def _with_mask(
    known: tuple[list[int], Ints], frame: NodeFrame, position: int, models: tuple[str, ...]
) -> tuple[list[int], Ints]:
    masks, column = known
    mask = _device_mask(frame, models)
    return [*masks[:position], mask, *masks[position + 1 :]], _with(column, position, mask)


def _gpu_milli(frame: NodeFrame) -> int:
    return max(1, MILLI * frame.whole_mask.bit_count())


def _models(frames: list[NodeFrame]) -> tuple[str, ...]:
    return tuple(sorted({device.model for frame in frames for device in frame.devices}))


def _any_soft(frames: list[NodeFrame]) -> bool:
    return any(taint.soft for frame in frames for taint in frame.node.taints)


def may_use(node: Node, where: Where) -> bool:
    return takes_in(node, where.tolerations) and is_as_wished(node, where.any_of)


def takes_in(node: Node, tolerations: tuple[Toleration, ...]) -> bool:
    """Whether a node is open, and has no taint that keeps a task with these tolerations away."""
    return is_open_to(node, tolerations) and all(taint.soft or tolerated(taint, tolerations) for taint in node.taints)


def is_open_to(node: Node, tolerations: tuple[Toleration, ...]) -> bool:
    """Whether a node takes new tasks with these tolerations, whatever its taints."""
    return node.open or (node.ready and DESPITE_CORDON in tolerations)


def is_as_wished(node: Node, any_of: Alternatives) -> bool:
    """Whether the labels of a node fulfil one of the alternatives; without any, every node will do."""
    return not any_of or any(all(rule.accepts(node.labels) for rule in rules) for rules in any_of)


def wish_for(node: Node, preferences: tuple[Preference, ...], tolerations: tuple[Toleration, ...]) -> int:
    """How much a task wants a node: what it prefers, less the marks that would rather keep it away."""
    wanted = sum(one.weight for one in preferences if all(rule.accepts(node.labels) for rule in one.rules))
    unwanted = sum(taint.soft and not tolerated(taint, tolerations) for taint in node.taints)
    return wanted - SOFT_TAINT * unwanted


def tolerated(taint: Taint, tolerations: tuple[Toleration, ...]) -> bool:
    return any(
        (not toleration.key or toleration.key == taint.key)
        and toleration.value in (None, taint.value)
        and toleration.effect in ("", taint.effect)
        for toleration in tolerations
    )


def _device_mask(frame: NodeFrame, models: tuple[str, ...]) -> int:
    if not models:
        return frame.whole_mask
    mask = 0
    for model in models:
        mask |= frame.models.get(model, 0)
    return mask
