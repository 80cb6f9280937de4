"""KAI's topologies as levels of node labels."""

from __future__ import annotations

from gpuyard.model.jobs import TopologyRule
from gpuyard.model.nodes import Topology
from gpuyard.worlds.kubernetes.topologies import level_name, read_topologies, topology_rule
from tests.worlds.kubernetes.manifests import topologies_in

RACKS = """
apiVersion: kai.scheduler/v1alpha1
kind: Topology
metadata: {name: racks}
spec:
  levels:
    - {nodeLabel: topology.kubernetes.io/zone, alias: zone}
    - {nodeLabel: cloud.provider.com/rack}
    - {nodeLabel: kubernetes.io/hostname, alias: node}
---
apiVersion: kai.scheduler/v1alpha1
kind: Topology
metadata: {name: empty}
spec: {}
"""


def test_levels_are_node_labels_widest_first() -> None:
    levels = ("topology.kubernetes.io/zone", "cloud.provider.com/rack", "kubernetes.io/hostname")
    assert read_topologies(topologies_in(RACKS).values()) == (Topology("racks", levels),)


def test_a_level_may_be_named_by_its_alias() -> None:
    racks = topologies_in(RACKS)["racks"]
    assert level_name(racks, "zone") == "topology.kubernetes.io/zone"
    assert level_name(racks, "cloud.provider.com/rack") == "cloud.provider.com/rack"
    assert level_name(racks, "block") == "block", "the core says that it does not know it"


def test_a_rule_names_its_levels_by_label() -> None:
    known = topologies_in(RACKS)
    rule = topology_rule("racks", "zone", "node", known)
    assert rule == TopologyRule("racks", "topology.kubernetes.io/zone", "kubernetes.io/hostname")
    assert topology_rule("racks", "", "", known) is None
    assert topology_rule("", "zone", "", known) is None
    assert topology_rule("others", "zone", "", known) == TopologyRule("others", "zone")
