"""Domains: the sets of nodes a group may be kept inside, the tightest that will do first; and those that rules between
tasks are about."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from gpuyard.model.jobs import Job, TaskGroup, TopologyRule
from gpuyard.model.nodes import Topology
from gpuyard.scheduler.columns import Bools, Ints
from gpuyard.scheduler.gang import leaves
from gpuyard.scheduler.nodestate import NodeFrame

HOSTNAME: Final = "hostname"

Domain = tuple[str, ...]
"""The labels of a domain and of all that contain it, widest first."""


class Domains:
    """The domains of every level of every topology, worked out when first asked for."""

    def __init__(self, topologies: tuple[Topology, ...], frames: list[NodeFrame]) -> None:
        self.topologies = {topology.name: topology for topology in topologies}
        self._frames = frames
        self._masks: dict[tuple[str, int], dict[Domain, Bools]] = {}

    def levels(self, rule: TopologyRule) -> list[int] | None:
        """The levels to try, narrowest first, where -1 stands for the whole cluster; None where a name is unknown."""
        topology = self.topologies.get(rule.topology)
        if topology is None:
            return None
        names = topology.levels
        if any(name is not None and name not in names for name in (rule.required, rule.preferred)):
            return None
        widest = names.index(rule.required) if rule.required is not None else -1
        narrowest = names.index(rule.preferred) if rule.preferred is not None else widest
        return list(range(max(narrowest, widest), widest - 1, -1))

    def at(self, topology: str, level: int) -> dict[Domain, Bools]:
        """The domains of one level: for each, which nodes lie in it. A node without the label lies in none."""
        key = (topology, level)
        known = self._masks.get(key)
        if known is None:
            known = self._masks[key] = self._build(self.topologies[topology].levels[: level + 1])
        return known

    def holding(self, topology: str, level: int, positions: Collection[int]) -> set[Domain]:
        """The domains of a level that hold all of these nodes: one at most, unless there are none of them."""
        return {domain for domain, mask in self.at(topology, level).items() if all(mask[at] for at in positions)}

    def _build(self, labels: tuple[str, ...]) -> dict[Domain, Bools]:
        members: dict[Domain, list[int]] = {}
        for position, frame in enumerate(self._frames):
            values = tuple(node_label(frame, label) for label in labels)
            if all(values):
                members.setdefault(values, []).append(position)
        return {domain: self._mask(members[domain]) for domain in sorted(members)}

    def _mask(self, positions: list[int]) -> Bools:
        mask = np.zeros(len(self._frames), dtype=np.bool_)
        mask[positions] = True
        return mask


class Level:
    """The domains that one node label draws, for rules between tasks."""

    __slots__ = ("domain", "domains", "inside")

    def __init__(self, values: Sequence[str]) -> None:
        numbers: dict[str, int] = {"": 0}
        self.domain: Ints = np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)
        """The number of each node's domain; 0 where it lies in none."""
        self.domains = len(numbers)
        """How many numbers there are, that one included."""
        self.inside: Bools = self.domain > 0

    def holding(self, counts: Ints) -> Bools:
        """Nodes in whose domain something is, where it is counted per node."""
        if not counts.any():
            return np.zeros(len(counts), dtype=np.bool_)
        found: Bools = (self.sums(counts) > 0)[self.domain] & self.inside
        return found

    def sums(self, counts: Ints) -> Ints:
        """Per domain what is counted per node."""
        return np.bincount(self.domain, weights=counts, minlength=self.domains).astype(np.int64)


class Levels:
    """Every node label that a rule between tasks names, worked out when first asked for."""

    def __init__(self, frames: list[NodeFrame]) -> None:
        self._frames = frames
        self._known: dict[str, Level] = {}

    @property
    def nodes(self) -> int:
        return len(self._frames)

    def of(self, label: str) -> Level:
        known = self._known.get(label)
        if known is None:
            known = self._known[label] = Level([node_label(frame, label) for frame in self._frames])
        return known


def node_label(frame: NodeFrame, label: str) -> str:
    if label in (HOSTNAME, "kubernetes.io/hostname"):
        return frame.node.labels.get(label, frame.node.name)
    return frame.node.labels.get(label, "")


def within(masks: dict[Domain, Bools], outer: Bools | None) -> Iterator[tuple[Domain, Bools]]:
    """The parts of domains that lie inside another set of nodes."""
    for domain, mask in masks.items():
        inner = mask if outer is None else mask & outer
        if inner.any():
            yield domain, inner


def level_left(domains: Domains, at: Mapping[str, int], job: Job, node_of: Mapping[str, str]) -> str:
    """The level that a group of the job requires, and no one domain of which holds all its tasks; else empty.

    Where each child of a group is to have a node of its own, and has not, that level is the node.
    """
    for group in _required_groups(job.group):
        rule = group.topology
        assert rule is not None
        names = {leaf.name for leaf in leaves(group)}
        mine = [task.id for task in job.tasks if job.group.leaf or task.group in names]
        nodes = {node_of[id] for id in mine if id in node_of}
        if nodes and not _one_domain(domains, rule, [at[node] for node in nodes if node in at]):
            return rule.required or ""
    return "" if all(_have_a_node_each(group, job, node_of) for group in _groups(job.group)) else HOSTNAME


def _required_groups(group: TaskGroup) -> Iterator[TaskGroup]:
    return (one for one in _groups(group) if one.topology is not None and one.topology.required is not None)


def _groups(group: TaskGroup) -> Iterator[TaskGroup]:
    yield group
    for child in group.children:
        yield from _groups(child)


def _have_a_node_each(group: TaskGroup, job: Job, node_of: Mapping[str, str]) -> bool:
    """Whether the children of a group that asks for it lie on one node each, and no two of them on the same."""
    if not group.node_each:
        return True
    children = {child.name for child in group.children}
    pairs = {(task.group, node_of[task.id]) for task in job.tasks if task.group in children and task.id in node_of}
    return len({group for group, _ in pairs}) == len(pairs) == len({node for _, node in pairs})


def _one_domain(domains: Domains, rule: TopologyRule, positions: Sequence[int]) -> bool:
    levels = domains.levels(rule)
    if levels is None:
        return False
    return bool(domains.holding(rule.topology, levels[-1], positions))
