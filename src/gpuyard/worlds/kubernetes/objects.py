"""Of the objects of Kubernetes the few fields the scheduler needs; everything else of the JSON is skipped.

Place in the flow: API server ─follow─▶ **objects** ─▶ picture. Invariants: a field that is missing reads as empty, so
that no object the API server accepts is refused here; nothing large (environment, images, managed fields) is kept.
"""

from __future__ import annotations

from typing import Any

import msgspec

Quantities = dict[str, str]


class _Object(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """What all of them have in common."""


class OwnerReference(_Object, frozen=True, gc=False):
    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool = False


class Metadata(_Object, frozen=True, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None


class Condition(_Object, frozen=True, gc=False):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


# ------------------------------------------------------------------------------------------------------------ selectors


class Expression(_Object, frozen=True, gc=False):
    """One condition of a selector, on labels or on fields."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class LabelSelector(_Object, frozen=True, gc=False):
    match_labels: dict[str, str] | None = None
    match_expressions: list[Expression] | None = None


class NodeTerm(_Object, frozen=True, gc=False):
    match_expressions: list[Expression] | None = None
    match_fields: list[Expression] | None = None


class NodeSelector(_Object, frozen=True, gc=False):
    node_selector_terms: list[NodeTerm] | None = None


class PreferredNodeTerm(_Object, frozen=True, gc=False):
    weight: int = 0
    preference: NodeTerm | None = None


class NodeAffinity(_Object, frozen=True, gc=False):
    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)
    preferred: list[PreferredNodeTerm] | None = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=None
    )


class PodAffinityTerm(_Object, frozen=True, gc=False):
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None
    topology_key: str = ""
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class WeightedPodAffinityTerm(_Object, frozen=True, gc=False):
    weight: int = 0
    pod_affinity_term: PodAffinityTerm | None = None


class PodAffinity(_Object, frozen=True, gc=False):
    required: list[PodAffinityTerm] | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )
    preferred: list[WeightedPodAffinityTerm] | None = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=None
    )


class Affinity(_Object, frozen=True, gc=False):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class SpreadConstraint(_Object, frozen=True, gc=False):
    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: list[str] | None = None


class PodToleration(_Object, frozen=True, gc=False):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


# ----------------------------------------------------------------------------------------------------------------- pods


class Resources(_Object, frozen=True, gc=False):
    limits: Quantities | None = None
    requests: Quantities | None = None


class Port(_Object, frozen=True, gc=False):
    host_port: int = 0
    host_ip: str = msgspec.field(name="hostIP", default="")
    protocol: str = "TCP"


class Container(_Object, frozen=True, gc=False):
    name: str = ""
    resources: Resources | None = None
    restart_policy: str = ""
    ports: list[Port] | None = None


class Gate(_Object, frozen=True, gc=False):
    name: str = ""


class ClaimSource(_Object, frozen=True, gc=False):
    claim_name: str = ""


class Volume(_Object, frozen=True, gc=False):
    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: dict[str, Any] | None = None


class PodSpec(_Object, frozen=True, gc=False):
    scheduler_name: str = ""
    node_name: str = ""
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    resources: Resources | None = None
    overhead: Quantities | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[PodToleration] | None = None
    topology_spread_constraints: list[SpreadConstraint] | None = None
    scheduling_gates: list[Gate] | None = None
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    host_network: bool = False
    volumes: list[Volume] | None = None
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    resource_claims: list[dict[str, Any]] | None = None


class ResourcesInForce(_Object, frozen=True, gc=False):
    requests: Quantities | None = None


class ContainerStatus(_Object, frozen=True, gc=False):
    """What a running container has been given, which differs from its spec while that is being changed."""

    name: str = ""
    allocated_resources: Quantities | None = None
    resources: ResourcesInForce | None = None


class PodStatus(_Object, frozen=True, gc=False):
    phase: str = ""
    reason: str = ""
    start_time: str | None = None
    nominated_node_name: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class Pod(_Object, frozen=True, gc=False):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


# ---------------------------------------------------------------------------------------------------------------- nodes


class NodeTaint(_Object, frozen=True, gc=False):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(_Object, frozen=True, gc=False):
    unschedulable: bool = False
    taints: list[NodeTaint] | None = None


class NodeStatus(_Object, frozen=True, gc=False):
    capacity: Quantities | None = None
    allocatable: Quantities | None = None
    conditions: list[Condition] | None = None


class Node(_Object, frozen=True, gc=False):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Namespace(_Object, frozen=True, gc=False):
    metadata: Metadata


class PriorityClass(_Object, frozen=True, gc=False):
    metadata: Metadata
    value: int = 0
    global_default: bool = False
    preemption_policy: str | None = None


class DisruptionBudgetSpec(_Object, frozen=True, gc=False):
    selector: LabelSelector | None = None


class DisruptionBudgetStatus(_Object, frozen=True, gc=False):
    disruptions_allowed: int = 0


class DisruptionBudget(_Object, frozen=True, gc=False):
    """A PodDisruptionBudget."""

    metadata: Metadata
    spec: DisruptionBudgetSpec = DisruptionBudgetSpec()
    status: DisruptionBudgetStatus = DisruptionBudgetStatus()


class ConfigMap(_Object, frozen=True, gc=False):
    metadata: Metadata
    data: dict[str, str] | None = None


# -------------------------------------------------------------------------------------------------------------- volumes


class ClaimSpec(_Object, frozen=True, gc=False):
    volume_name: str = ""
    storage_class_name: str | None = None
    access_modes: list[str] | None = None
    resources: Resources | None = None
    selector: LabelSelector | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None


class ClaimStatus(_Object, frozen=True, gc=False):
    phase: str = ""


class VolumeClaim(_Object, frozen=True, gc=False):
    """A PersistentVolumeClaim."""

    metadata: Metadata
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class VolumeNodeAffinity(_Object, frozen=True, gc=False):
    required: NodeSelector | None = None


class ClaimReference(_Object, frozen=True, gc=False):
    namespace: str = ""
    name: str = ""
    uid: str = ""


class PersistentVolumeSpec(_Object, frozen=True, gc=False):
    node_affinity: VolumeNodeAffinity | None = None
    storage_class_name: str = ""
    capacity: Quantities | None = None
    access_modes: list[str] | None = None
    claim_ref: ClaimReference | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None


class PersistentVolumeStatus(_Object, frozen=True, gc=False):
    phase: str = ""


class PersistentVolume(_Object, frozen=True, gc=False):
    metadata: Metadata
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


class TopologyTerm(_Object, frozen=True, gc=False):
    match_label_expressions: list[Expression] | None = None


class StorageClass(_Object, frozen=True, gc=False):
    metadata: Metadata
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: list[TopologyTerm] | None = None


# ---------------------------------------------------------------------------------------------------------------- KAI's


class QueueResource(_Object, frozen=True, gc=False):
    """GPUs in devices, CPU in thousandths of a core, memory in 10^6 bytes; -1: no bound; not there: None."""

    quota: float | None = None
    limit: float | None = None
    over_quota_weight: float | None = None


class QueueResources(_Object, frozen=True, gc=False):
    gpu: QueueResource | None = None
    cpu: QueueResource | None = None
    memory: QueueResource | None = None


class QueueSpec(_Object, frozen=True, gc=False):
    display_name: str = ""
    parent_queue: str = ""
    priority: int | None = None
    preempt_min_runtime: str | None = None
    reclaim_min_runtime: str | None = None
    resources: QueueResources | None = None


class KaiQueue(_Object, frozen=True, gc=False):
    """A Queue of scheduling.run.ai/v2."""

    metadata: Metadata
    spec: QueueSpec = QueueSpec()
    status: dict[str, Any] | None = None


class TopologyConstraint(_Object, frozen=True, gc=False):
    topology: str = ""
    required_topology_level: str = ""
    preferred_topology_level: str = ""


class SubGroup(_Object, frozen=True, gc=False):
    name: str = ""
    min_member: int | None = None
    min_sub_group: int | None = None
    parent: str | None = None
    topology_constraint: TopologyConstraint | None = None


class PodGroupSpec(_Object, frozen=True, gc=False):
    min_member: int | None = None
    min_sub_group: int | None = None
    queue: str = ""
    priority_class_name: str = ""
    preemptibility: str = ""
    topology_constraint: TopologyConstraint | None = None
    sub_groups: list[SubGroup] | None = None
    preemption_delay: str | None = None
    staleness_grace_period: str | None = None


class PodGroup(_Object, frozen=True, gc=False):
    """A PodGroup of scheduling.run.ai/v2alpha2."""

    metadata: Metadata
    spec: PodGroupSpec = PodGroupSpec()
    status: dict[str, Any] | None = None


class TopologyLevel(_Object, frozen=True, gc=False):
    node_label: str = ""
    alias: str = ""


class TopologySpec(_Object, frozen=True, gc=False):
    levels: list[TopologyLevel] | None = None


class KaiTopology(_Object, frozen=True, gc=False):
    """A Topology of kai.scheduler/v1alpha1."""

    metadata: Metadata
    spec: TopologySpec = TopologySpec()


# --------------------------------------------------------------------------------------------------------------- owners


class Owner(_Object, frozen=True, gc=False):
    """Whatever makes pods: its place in the chain of owners, and its own fields as they are."""

    metadata: Metadata
    kind: str = ""
    api_version: str = ""
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None
