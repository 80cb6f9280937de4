"""KAI's Topology objects as hierarchies of node labels.

Place in the flow: Topology objects ─**topologies**─▶ the snapshot, and the rules of groups. Invariant: a level is
named by its node label from here on, whatever alias a workload used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from gpuyard.model.jobs import TopologyRule
from gpuyard.model.nodes import Topology
from gpuyard.worlds.kubernetes.objects import KaiTopology

Topologies = Mapping[str, KaiTopology]
"""By name."""

NO_TOPOLOGIES: Final[Topologies] = {}


def read_topologies(topologies: Iterable[KaiTopology]) -> tuple[Topology, ...]:
    """Each hierarchy from its widest level to its narrowest; one without levels is left out."""
    ordered = sorted(topologies, key=lambda topology: topology.metadata.name)
    read = (Topology(topology.metadata.name, _labels(topology)) for topology in ordered)
    return tuple(topology for topology in read if topology.levels)


def _labels(topology: KaiTopology) -> tuple[str, ...]:
    return tuple(dict.fromkeys(level.node_label for level in topology.spec.levels or () if level.node_label))


def level_name(topology: KaiTopology, level: str) -> str:
    """The node label of a level that is named by label or by alias; what is neither stays as it is."""
    levels = topology.spec.levels or ()
    if any(one.node_label == level for one in levels):
        return level
    return next((one.node_label for one in levels if one.alias and one.alias == level), level)


def topology_rule(name: str, required: str, preferred: str, topologies: Topologies) -> TopologyRule | None:
    """The rule of a group, its levels by node label; None where it asks for nothing.

    A topology or a level that does not exist stays in the rule: the core then says which name it does not know.
    """
    if not name or not (required or preferred):
        return None
    known = topologies.get(name)
    if known is not None:
        required, preferred = level_name(known, required), level_name(known, preferred)
    return TopologyRule(name, required=required or None, preferred=preferred or None)
