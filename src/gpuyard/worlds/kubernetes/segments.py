"""Segments: so many workers of a gang that lie close to each other, by index, whatever the place of the others.

Place in the flow: gangs ─**segments**─▶ a tree with one leaf for each segment. Segments matter for their place alone:
all of them are needed, so without a rule about their place there is nothing to divide.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from gpuyard.model.jobs import TaskGroup, TopologyRule
from gpuyard.worlds.kubernetes.asking import TOPOLOGY, Asking
from gpuyard.worlds.kubernetes.raw import mapping_at, text_at, whole_number

SEGMENT_SIZE: Final = "kai.scheduler/segment-size"
SEGMENT_REQUIRED: Final = "kai.scheduler/segment-topology-required-placement"
SEGMENT_PREFERRED: Final = "kai.scheduler/segment-topology-preferred-placement"
MAX_SEGMENTS: Final = 10_000


class Segments(NamedTuple):
    """How the workers of a gang are divided."""

    size: int
    rule: TopologyRule

    def of(self, index: int) -> int:
        return index // self.size


def segments_of(asking: Asking, template: object, count: int, size: int | None = None) -> Segments | None:
    """How workers of this template are divided; None where they are not. `size`: what their owner's spec says."""
    annotations = mapping_at(template, "metadata", "annotations")
    mine = asking.pod.metadata.annotations or {}
    above = asking.owner.metadata.annotations or {}

    def said(key: str) -> str:
        return mine.get(key) or text_at(annotations, key)

    size = size or whole_number(said(SEGMENT_SIZE) or above.get(SEGMENT_SIZE, ""))
    name = said(TOPOLOGY) or above.get(TOPOLOGY, "")
    rule = asking.rule_by(name, said(SEGMENT_REQUIRED), said(SEGMENT_PREFERRED))
    if rule is None or size is None or size < 1 or count > MAX_SEGMENTS * size:
        return None
    return Segments(size, rule)


def segment_name(index: int) -> str:
    return f"segment-{index}"


@lru_cache(maxsize=512)
def segmented(
    first: TaskGroup | None, sizes: tuple[int, ...], rule: TopologyRule, topology: TopologyRule | None
) -> TaskGroup:
    """A leaf for each segment, after one for whoever stands outside of them; all are needed."""
    leaves = tuple(TaskGroup(segment_name(at), min_tasks=size, topology=rule) for at, size in enumerate(sizes))
    return TaskGroup(children=leaves if first is None else (first, *leaves), topology=topology)


def even_sizes(count: int, size: int) -> tuple[int, ...]:
    """Whole segments, and a last one of what is left."""
    rest = count % size
    return (size,) * (count // size) + ((rest,) if rest else ())
