"""Whose group is asked for, and the answer.

Place in the flow: grouping ─Asking─▶ gangs, segments ─Gang─▶ grouping.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec

from gpuyard.model.jobs import TaskGroup, TopologyRule
from gpuyard.worlds.kubernetes.notes import Note
from gpuyard.worlds.kubernetes.objects import Owner, Pod
from gpuyard.worlds.kubernetes.raw import text_at
from gpuyard.worlds.kubernetes.topologies import NO_TOPOLOGIES, Topologies, topology_rule

TOPOLOGY: Final = "kai.scheduler/topology"
REQUIRED: Final = "kai.scheduler/topology-required-placement"
PREFERRED: Final = "kai.scheduler/topology-preferred-placement"


class Gang(msgspec.Struct, frozen=True, gc=False):
    """The group of one pod, as its owner shapes it."""

    group: TaskGroup
    leaf: str = ""
    """The leaf this pod belongs to."""
    wanted: int | None = None
    """How many pods its owner makes for the group as it stands; None: not known."""
    index: str = ""
    """Which of the owner's pods it is: the pod made in its place has the same. Empty: any of them will do."""
    part: str = ""
    """Which of the owner's groups, where it has several."""
    alone: bool = False
    """Each pod of the owner is a group by itself."""
    waves: bool = False
    """Pods that are done are followed by others, and the minimum holds for each wave anew."""
    notes: tuple[Note, ...] = ()
    waits: str = ""
    """Why the pod cannot be placed yet; empty: it can."""


class Asking(msgspec.Struct, frozen=True):
    """Whose group is asked for."""

    owner: Owner
    pod: Pod
    topology: TopologyRule | None = None
    """Of the whole group."""
    topologies: Topologies = NO_TOPOLOGIES

    @property
    def labels(self) -> Mapping[str, str]:
        return self.pod.metadata.labels or {}

    def rule_in(self, annotations: object) -> TopologyRule | None:
        """The rule that the annotations of a template ask for."""
        return self.rule_by(*(text_at(annotations, key) for key in (TOPOLOGY, REQUIRED, PREFERRED)))

    def rule_by(self, name: str, required: str, preferred: str) -> TopologyRule | None:
        return topology_rule(name, required, preferred, self.topologies)

    @property
    def unread(self) -> str:
        """Why a gang must wait whose owner has not been read; empty: it has."""
        if self.owner.spec is not None:
            return ""
        return f"{called(self.owner)} has not been read, so how many pods start together is not known"

    def plain(self, minimum: int) -> TaskGroup:
        return one_leaf(minimum, self.topology)


def called(owner: Owner) -> str:
    return f"{owner.kind} {owner.metadata.name}"


@lru_cache(maxsize=4096)
def one_leaf(minimum: int, topology: TopologyRule | None) -> TaskGroup:
    """A plain gang; the same object for all that are alike."""
    return TaskGroup(min_tasks=minimum, topology=topology)
