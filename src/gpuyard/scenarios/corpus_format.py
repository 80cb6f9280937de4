"""The format of conformance files, field by field. Whatever is not named here is an error.

Two kinds of files: scheduling situations (`scenarios`) and fair-share divisions (`vectors`). Amounts are as written;
`corpus_cluster` and `corpus_jobs` convert them. `-1` means unlimited.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

Number = int | float

UNLIMITED: Final = -1


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object of the file."""


class KubernetesEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="pascal"):
    """An object that keeps the names of the objects it was taken from."""


# ------------------------------------------------------------------------------------------------------------ words


class Kind(enum.StrEnum):
    SINGLE_CYCLE = "single_cycle"
    MULTI_CYCLE = "multi_cycle"


class ActionName(enum.StrEnum):
    ALLOCATE = "allocate"
    CONSOLIDATION = "consolidation"
    RECLAIM = "reclaim"
    PREEMPT = "preempt"
    STALE_GANGS = "stalegangeviction"


class State(enum.StrEnum):
    GATED = "Gated"
    PENDING = "Pending"
    PIPELINED = "Pipelined"
    ALLOCATED = "Allocated"
    BINDING = "Binding"
    BOUND = "Bound"
    RUNNING = "Running"
    RELEASING = "Releasing"
    STUCK = "StuckInReleasing"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Outcome(enum.StrEnum):
    KEPT = "kept"
    ALLOCATED = "allocated"
    PIPELINED = "pipelined"
    PENDING = "pending"
    EVICTED = "evicted"
    MOVED = "evicted_and_pipelined"
    BACK_TO_PENDING = "evicted_back_to_pending"


# ---------------------------------------------------------------------------------------------------- the cluster


class NodeEntry(Entry, frozen=True):
    name: str
    gpus: int = 0
    gpu_memory_mib: int | None = None
    cpu_cores: Number | None = None
    memory_bytes: Number | None = None
    labels: dict[str, str] = {}
    mig_strategy: str = ""
    mig_instances: dict[str, int] = {}


class TopologyEntry(Entry, frozen=True):
    name: str
    levels: tuple[str, ...]


class QueueEntry(Entry, frozen=True):
    """A queue; a department is one as well, and unlimited where it is `implicit`."""

    name: str
    parent: str | None = None
    implicit: bool = False
    creation_order: int = 0
    priority: int | None = None
    deserved_gpus: Number = 0
    limit_gpus: Number = UNLIMITED
    over_quota_weight_gpus: Number = 1
    deserved_cpu_millis: Number = UNLIMITED
    limit_cpu_millis: Number = UNLIMITED
    deserved_memory_mb: Number = UNLIMITED
    limit_memory_mb: Number = UNLIMITED


# ------------------------------------------------------------------------------------------------------- the jobs


class TopologyConstraint(Entry, frozen=True):
    topology: str
    required_level: str | None = None
    preferred_level: str | None = None


class SubgroupEntry(Entry, frozen=True):
    """A node of a job's tree: a leaf holds tasks, any other holds `members`."""

    name: str = ""
    leaf: bool = False
    min_available: int | None = None
    min_subgroups: int | None = None
    members: tuple[SubgroupEntry, ...] = ()
    topology_constraint: TopologyConstraint | None = None


class TaskEntry(Entry, frozen=True):
    name: str
    state: State = State.PENDING
    node: str | None = None
    gpu_groups: tuple[str, ...] = ()
    subgroup: str | None = None
    gpus: Number | None = None
    task_priority: int = 0
    mig_instances: dict[str, int] = {}
    legacy_mig: bool = False
    node_affinity_names: tuple[str, ...] = ()
    pod_labels: dict[str, str] = {}
    pod_affinity_topology_key: str | None = None
    pod_anti_affinity_topology_key: str | None = None
    resource_claims: tuple[str, ...] = ()


class JobEntry(Entry, frozen=True):
    name: str
    queue: str
    namespace: str = ""
    priority: int = 50
    preemptible: bool = True
    gpus_per_task: Number | None = None
    gpu_memory_mib_per_task: int | None = None
    fraction_devices_per_task: int | None = None
    cpu_cores_per_task: Number | None = None
    memory_bytes_per_task: Number | None = None
    min_available: int | None = None
    subgroups: SubgroupEntry | None = None
    age_minutes: Number = 0
    preemption_delay_s: Number = 0
    stale_for_s: Number | None = None
    staleness_grace_period_s: Number | None = None
    delete_in_test: bool = False
    tasks: tuple[TaskEntry, ...] = ()


# -------------------------------------------------------------------------------- objects that keep foreign names


class PluginEntry(KubernetesEntry, frozen=True):
    name: str
    arguments: dict[str, str] = {}


class TierEntry(KubernetesEntry, frozen=True):
    plugins: tuple[PluginEntry, ...] = ()


class SchedulerConf(KubernetesEntry, frozen=True):
    actions: str = ""
    tiers: tuple[TierEntry, ...] = ()


class ClaimedDevice(KubernetesEntry, frozen=True):
    device: str
    driver: str = ""
    pool: str = ""
    request: str = ""


class ClaimedDevices(KubernetesEntry, frozen=True):
    results: tuple[ClaimedDevice, ...] = ()


class ClaimAllocation(KubernetesEntry, frozen=True):
    devices: ClaimedDevices = ClaimedDevices()


class ClaimUser(KubernetesEntry, frozen=True):
    name: str
    resource: str = ""
    uid: str = msgspec.field(name="UID", default="")


class ClaimStatus(KubernetesEntry, frozen=True):
    allocation: ClaimAllocation | None = None
    reserved_for: tuple[ClaimUser, ...] = ()


class ResourceClaim(KubernetesEntry, frozen=True):
    name: str
    namespace: str = ""
    count: int = 1
    device_class_name: str = ""
    labels: dict[str, str] = {}
    claim_status: ClaimStatus | None = None


class ResourceSlice(KubernetesEntry, frozen=True):
    name: str
    node_name: str
    count: int = 1
    device_class_name: str = ""


class DraEntry(KubernetesEntry, frozen=True):
    device_classes: tuple[str, ...] = ()
    resource_claims: tuple[ResourceClaim, ...] = ()
    resource_slices: tuple[ResourceSlice, ...] = ()


# -------------------------------------------------------------------------------------------------- the situation


class InputEntry(Entry, frozen=True):
    nodes: tuple[NodeEntry, ...] = ()
    topologies: tuple[TopologyEntry, ...] = ()
    departments: tuple[QueueEntry, ...] = ()
    queues: tuple[QueueEntry, ...] = ()
    jobs: tuple[JobEntry, ...] = ()
    dra: DraEntry = DraEntry()
    scheduler_conf: SchedulerConf = SchedulerConf()


class ExpectedTask(Entry, frozen=True):
    outcome: Outcome
    node: str | None = None
    status: str = ""


class Expected(Entry, frozen=True):
    """What should come out. All but `per_task` is read and not judged."""

    per_task: dict[str, ExpectedTask] = {}
    tasks: msgspec.Raw = msgspec.Raw()
    jobs: msgspec.Raw = msgspec.Raw()
    nodes: msgspec.Raw = msgspec.Raw()
    max_calls: msgspec.Raw = msgspec.Raw()


class Scenario(Entry, frozen=True):
    id: str
    kind: Kind
    actions: tuple[ActionName, ...]
    input: InputEntry
    expected: Expected
    tags: tuple[str, ...] = ()
    cycles_until_match: int = 2
    cycles_stable_after: int = 5


class StalenessGrace(Entry, frozen=True):
    single_cycle_stale_gangs: Number = msgspec.field(name="single_cycle stalegangeviction", default=60)
    other: Number = 0


class Defaults(Entry, frozen=True):
    """What holds where a situation does not say otherwise."""

    node_cpu_cores: Number = 20_000
    node_memory_bytes: Number = 20_000_000_000
    node_gpu_memory_mib_default: int = 100
    node_max_pods: int = 110
    task_cpu_cores_default: Number = 1
    task_memory_bytes_default: Number = 1_000_000_000
    best_effort_jobs_request_nothing: bool = True
    max_consolidation_preemptees: int = UNLIMITED
    allow_consolidating_reclaim: bool = True
    use_scheduling_signatures: bool = False
    staleness_grace_period_s: StalenessGrace = StalenessGrace()
    queue_priority_default: int = 100
    # Sentences for people; what they say is what `corpus_cluster` and `corpus_jobs` do.
    units: str = ""
    queue_cpu_memory_quota_default: str = "unlimited"
    running_job_last_start: str = "1 minute before now"


# ------------------------------------------------------------------------------------------------- fair-share cases


class Demand(Entry, frozen=True):
    """What a queue of a fair-share case is owed and asks, of one resource."""

    deserved: Number = 0
    limit: Number = UNLIMITED
    weight: Number = 1
    request: Number = 0
    usage: Number = 0
    priority: int = 100
    order: int = 0


class Vector(Entry, frozen=True):
    """One division. A queue maps `parent` to a name and every resource to a demand."""

    id: str
    total: dict[str, Number]
    queues: dict[str, dict[str, str | Demand | None]]
    expected: dict[str, dict[str, Number]]
    k: Number = 0
    expected_remaining: msgspec.Raw = msgspec.Raw()


class CorpusFile(Entry, frozen=True):
    """A whole file. Entries stay raw until their id is known, so that an error can name it."""

    format: int
    defaults: Defaults = Defaults()
    scenarios: tuple[msgspec.Raw, ...] | None = None
    vectors: tuple[msgspec.Raw, ...] | None = None
