"""One of our snapshots as KAI's: the Kubernetes objects its snapshot tool loads, zipped with its configuration.

Invariant: what the two schedulers see is the same. What this translation does not know (a part of a GPU, a tree of
groups, a rule of where to run) it refuses, so that no benchmark compares two different clusters.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuyard.model.jobs import ANYWHERE, Job, Task, TaskState
from gpuyard.model.nodes import Node
from gpuyard.model.quantities import GPU, MILLI
from gpuyard.model.queues import Queue, QueueShare
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import Policy, Step

Object = dict[str, Any]

FILE_IN_ZIP: Final = "snapshot.json"
NAMESPACE: Final = "bench"
SCHEDULER: Final = "kai-scheduler"
GPU_RESOURCE: Final = "nvidia.com/gpu"
POD_GROUP_ANNOTATION: Final = "pod-group-name"
QUEUE_LABEL: Final = "kai.scheduler/queue"
NODE_POOL_LABEL: Final = "kai.scheduler/node-pool"
PODS_PER_NODE: Final = "110"
UNLIMITED: Final = -1
EPOCH: Final = datetime(2020, 1, 1, tzinfo=UTC)
ONE_SECOND_NS: Final = 1_000_000_000
DEFAULT_PREEMPTEES: Final = 16
"""How many jobs KAI considers moving for another, unless told otherwise."""

ACTIONS: Final = {
    Step.ALLOCATE: "allocate",
    Step.CONSOLIDATE: "consolidation",
    Step.RECLAIM: "reclaim",
    Step.PREEMPT: "preempt",
    Step.STALE_GANGS: "stalegangeviction",
}
PLUGINS: Final = (
    "predicates",
    "proportion",
    "priority",
    "elastic",
    "kubeflow",
    "ray",
    "nodeavailability",
    "gpusharingorder",
    "gpupack",
    "resourcetype",
    "subgrouporder",
    "taskorder",
    "nominatednode",
    "dynamicresources",
    "nodeplacement",
    "minruntime",
    "topology",
)
"""KAI's own default set, in its order."""
PLUGIN_ARGUMENTS: Final[Mapping[str, Mapping[str, str]]] = {"nodeplacement": {"cpu": "binpack", "gpu": "binpack"}}


class Settings(msgspec.Struct, frozen=True):
    """What KAI is told beyond its defaults."""

    max_preemptees: int = DEFAULT_PREEMPTEES
    """How many jobs it may move for one job; -1 means any number."""
    consolidated_per_queue: int | None = None
    """For how many jobs of each queue it may look for moves in one cycle; None means all."""


class UntranslatableError(Exception):
    """The peer would see another cluster than we do."""


def write_zip(path: Path, snapshot: Snapshot, policy: Policy, settings: Settings) -> None:
    content = msgspec.json.encode(kai_snapshot(snapshot, policy, settings))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(FILE_IN_ZIP, content)


def kai_snapshot(snapshot: Snapshot, policy: Policy, settings: Settings) -> Object:
    return {
        "config": configuration(policy, settings),
        "schedulerParams": parameters(settings),
        "rawObjects": {
            "nodes": [kai_node(node) for node in snapshot.nodes],
            "queues": [kai_queue(queue) for queue in snapshot.queues],
            "podGroups": [pod_group(job) for job in snapshot.jobs],
            "pods": [pod(job, task) for job in snapshot.jobs for task in job.tasks],
            "priorityClasses": priority_classes(snapshot.jobs),
        },
    }


# --------------------------------------------------------------------------------------------------- configuration


def configuration(policy: Policy, settings: Settings) -> Object:
    """KAI's default configuration with the steps of the policy."""
    plugins = [{"name": name, "arguments": PLUGIN_ARGUMENTS.get(name, {})} for name in PLUGINS]
    actions = ", ".join(ACTIONS[step] for step in policy.steps)
    depth = settings.consolidated_per_queue
    bounded = {} if depth is None else {"queueDepthPerAction": {ACTIONS[Step.CONSOLIDATE]: depth}}
    return {"actions": actions, "tiers": [{"plugins": plugins}], **bounded}


def parameters(settings: Settings) -> Object:
    """The defaults of KAI's own command line, but for what the settings say."""
    return {
        "schedulerName": SCHEDULER,
        "partitionParams": {"NodePoolLabelKey": NODE_POOL_LABEL, "NodePoolLabelValue": ""},
        "maxNumberConsolidationPreemptees": settings.max_preemptees,
        "useSchedulingSignatures": True,
        "fullHierarchyFairness": True,
        "allowConsolidatingReclaim": True,
        "numOfStatusRecordingWorkers": 5,
        "globalDefaultStalenessGracePeriod": 60 * ONE_SECOND_NS,
        "schedulePeriod": ONE_SECOND_NS,
    }


# --------------------------------------------------------------------------------------------------------- objects


def kai_node(node: Node) -> Object:
    amounts = {
        "cpu": f"{node.cpu_milli}m",
        "memory": str(node.memory_bytes),
        "pods": PODS_PER_NODE,
        GPU_RESOURCE: str(len(node.devices)),
    }
    labels = {
        "kubernetes.io/hostname": node.name,
        "nvidia.com/gpu.count": str(len(node.devices)),
        "nvidia.com/gpu.memory": str(min((device.memory_mib for device in node.devices), default=0)),
    }
    return {
        "metadata": {"name": node.name, "uid": node.name, "labels": labels},
        "status": {
            "allocatable": amounts,
            "capacity": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def kai_queue(queue: Queue) -> Object:
    if any(share.resource != GPU for share in queue.shares):
        raise UntranslatableError(f"queue {queue.name} rations more than GPUs")
    unlimited = {"quota": UNLIMITED, "limit": UNLIMITED, "overQuotaWeight": 1}
    return {
        "metadata": {"name": queue.name, "uid": queue.name, "creationTimestamp": created(queue.order)},
        "spec": {
            "parentQueue": queue.parent or "",
            "priority": queue.priority,
            "resources": {"gpu": gpu_share(queue.share(GPU)), "cpu": unlimited, "memory": unlimited},
        },
    }


def gpu_share(share: QueueShare) -> Object:
    return {"quota": gpus(share.quota), "limit": gpus(share.limit), "overQuotaWeight": share.weight_milli / MILLI}


def gpus(milli: int | None) -> float:
    return UNLIMITED if milli is None else milli / MILLI


def pod_group(job: Job) -> Object:
    if not job.group.leaf or job.group.topology:
        raise UntranslatableError(f"job {job.id} is more than a plain gang")
    return {
        "metadata": metadata(job, job.id),
        "spec": {
            "queue": job.queue,
            "minMember": job.group.min_tasks,
            "priorityClassName": priority_name(job.priority),
            "preemptibility": "preemptible" if job.preemptible else "non-preemptible",
        },
    }


def pod(job: Job, task: Task) -> Object:
    amounts = requests(task)
    container = {"name": "main", "image": "none", "resources": {"requests": amounts, "limits": amounts}}
    return {
        "metadata": {**metadata(job, task.id), "annotations": {POD_GROUP_ANNOTATION: job.id}},
        "spec": {"schedulerName": SCHEDULER, "nodeName": task.node, "containers": [container]},
        "status": {"phase": phase(task)},
    }


def requests(task: Task) -> Object:
    request = task.request
    if request.shared or request.mig or request.other or request.where != ANYWHERE:
        raise UntranslatableError(f"task {task.id} asks for more than whole GPUs, CPU and memory")
    return {"cpu": f"{request.cpu_milli}m", "memory": str(request.memory_bytes), GPU_RESOURCE: str(request.devices)}


def phase(task: Task) -> str:
    match task.state:
        case TaskState.PENDING:
            return "Pending"
        case TaskState.RUNNING:
            return "Running"
        case other:
            raise UntranslatableError(f"task {task.id} is {other}")


def metadata(job: Job, name: str) -> Object:
    return {
        "name": name,
        "namespace": NAMESPACE,
        "uid": name,
        "labels": {QUEUE_LABEL: job.queue},
        "creationTimestamp": created(job.submitted_at_ms),
    }


def created(order: int) -> str:
    """Kubernetes counts in seconds: each of our milliseconds becomes one, so that the order of ages stays."""
    return (EPOCH + timedelta(seconds=order)).strftime("%Y-%m-%dT%H:%M:%SZ")


def priority_classes(jobs: Iterable[Job]) -> list[Object]:
    return [
        {"metadata": {"name": priority_name(value), "uid": priority_name(value)}, "value": value}
        for value in sorted({job.priority for job in jobs})
    ]


def priority_name(priority: int) -> str:
    return f"priority-{priority}"
