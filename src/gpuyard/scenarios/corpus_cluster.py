"""A situation's nodes, queues and policy in our own values.

Units of the format: CPU of nodes and jobs in cores, of queues in thousandths; memory of queues in millions of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuyard.model.nodes import Device, MigSlices, Node, Topology
from gpuyard.model.quantities import CPU, GPU, MEMORY, cpu_milli, memory_bytes, milli
from gpuyard.model.queues import DEFAULT_WEIGHT_MILLI, Queue, QueueShare
from gpuyard.policies.policy import Consolidation, DevicePlacement, NodePlacement, Policy, Step
from gpuyard.scenarios.corpus_format import (
    UNLIMITED,
    ActionName,
    Defaults,
    InputEntry,
    NodeEntry,
    Number,
    QueueEntry,
    Scenario,
    SchedulerConf,
)

NODE_TYPE: Final = "kai.scheduler/type"
"""The label node affinity is written against; a node that does not set it carries its own name."""
HOSTNAME: Final = "kubernetes.io/hostname"
LEGACY_MIG: Final = "gpuyard.io/legacy-mig"
"""Marks a node where a task holds slices in the old way, which nobody accounts for: no slice is given out there."""

MIG_PREFIX: Final = "nvidia.com/mig-"
BYTES_PER_MB: Final = 10**6

STEPS: Final = {
    ActionName.ALLOCATE: Step.ALLOCATE,
    ActionName.CONSOLIDATION: Step.CONSOLIDATE,
    ActionName.RECLAIM: Step.RECLAIM,
    ActionName.PREEMPT: Step.PREEMPT,
    ActionName.STALE_GANGS: Step.STALE_GANGS,
}


# ------------------------------------------------------------------------------------------------------------ nodes


def nodes_of(situation: InputEntry, defaults: Defaults) -> tuple[Node, ...]:
    legacy = {task.node for job in situation.jobs for task in job.tasks if task.legacy_mig}
    claimable = {slices.node_name: 0 for slices in situation.dra.resource_slices}
    for slices in situation.dra.resource_slices:
        claimable[slices.node_name] += slices.count
    return tuple(
        _node(entry, defaults, claimable.get(entry.name, 0), entry.name in legacy) for entry in situation.nodes
    )


def _node(entry: NodeEntry, defaults: Defaults, claimable: int, legacy_mig: bool) -> Node:
    cores = defaults.node_cpu_cores if entry.cpu_cores is None else entry.cpu_cores
    memory = defaults.node_memory_bytes if entry.memory_bytes is None else entry.memory_bytes
    return Node(
        name=entry.name,
        devices=_devices(entry, defaults, claimable),
        cpu_milli=cpu_milli(cores),
        memory_bytes=memory_bytes(memory),
        max_tasks=defaults.node_max_pods,
        labels={
            NODE_TYPE: entry.name,
            HOSTNAME: entry.name,
            **({LEGACY_MIG: "true"} if legacy_mig else {}),
            **entry.labels,
        },
    )


def _devices(entry: NodeEntry, defaults: Defaults, claimable: int) -> tuple[Device, ...]:
    """The whole GPUs, then one device that carries all slices. A node in MIG mode does not split whole GPUs.

    GPUs of different memory are different models, because a request for memory counts less on a larger one.
    """
    memory_mib = defaults.node_gpu_memory_mib_default if entry.gpu_memory_mib is None else entry.gpu_memory_mib
    model = f"gpu-{memory_mib}mib"
    whole = Device(model, memory_mib, shareable=not entry.mig_strategy)
    slices = tuple(_slices(mig_profile(name), count) for name, count in sorted(entry.mig_instances.items()))
    sliced = (Device(model, memory_mib, mig=slices),) if slices else ()
    return (whole,) * (entry.gpus + claimable) + sliced


def _slices(profile: str, count: int) -> MigSlices:
    """The corpus counts a slice by its compute slices, each as a whole GPU."""
    compute = profile.split("g", 1)[0]
    return MigSlices(profile, count, gpu_milli=1000 * int(compute) if compute.isdigit() else 1000)


def mig_profile(resource: str) -> str:
    return resource.removeprefix(MIG_PREFIX)


def topologies_of(situation: InputEntry) -> tuple[Topology, ...]:
    return tuple(Topology(entry.name, entry.levels) for entry in situation.topologies)


# ----------------------------------------------------------------------------------------------------------- queues


def queues_of(situation: InputEntry, defaults: Defaults) -> tuple[Queue, ...]:
    entries = (*situation.departments, *situation.queues)
    return tuple(_queue(entry, defaults) for entry in entries)


def _queue(entry: QueueEntry, defaults: Defaults) -> Queue:
    return Queue(
        name=entry.name,
        parent=entry.parent,
        shares=() if entry.implicit else _shares(entry),
        priority=defaults.queue_priority_default if entry.priority is None else entry.priority,
        order=entry.creation_order,
        overcommit=True,
    )


def _shares(entry: QueueEntry) -> tuple[QueueShare, ...]:
    """The weight is for GPUs; CPU and memory beyond a quota are shared evenly."""
    weight = entry.over_quota_weight_gpus
    return (
        QueueShare(
            GPU,
            quota=_amount(entry.deserved_gpus, milli(1)),
            limit=_amount(entry.limit_gpus, milli(1)),
            weight_milli=DEFAULT_WEIGHT_MILLI if weight == UNLIMITED else milli(weight),
        ),
        QueueShare(CPU, quota=_amount(entry.deserved_cpu_millis, 1), limit=_amount(entry.limit_cpu_millis, 1)),
        QueueShare(
            MEMORY,
            quota=_amount(entry.deserved_memory_mb, BYTES_PER_MB),
            limit=_amount(entry.limit_memory_mb, BYTES_PER_MB),
        ),
    )


def _amount(value: Number, factor: int) -> int | None:
    return None if value == UNLIMITED else milli(value) * factor // milli(1)


# ----------------------------------------------------------------------------------------------------------- policy


def policy_of(scenario: Scenario) -> Policy:
    """The shipped policy, but for the steps and what the files set: no bound on moves, reclaim may move jobs."""
    conf = scenario.input.scheduler_conf
    return Policy(
        steps=tuple(STEPS[action] for action in scenario.actions),
        node_placement=_node_placement(conf),
        device_placement=_device_placement(conf),
        consolidation=Consolidation(max_moves_per_cycle=None),
    )


def _node_placement(conf: SchedulerConf) -> NodePlacement:
    wishes = [_arguments(conf, "nodeplacement").get(resource) for resource in ("gpu", "cpu")]
    return NodePlacement.SPREAD if next(filter(None, wishes), "") == "spread" else NodePlacement.BIN_PACK


def _device_placement(conf: SchedulerConf) -> DevicePlacement:
    return DevicePlacement.SPREAD if "gpuspread" in _plugins(conf) else DevicePlacement.PACK


def _plugins(conf: SchedulerConf) -> Sequence[str]:
    return [plugin.name for tier in conf.tiers for plugin in tier.plugins]


def _arguments(conf: SchedulerConf, name: str) -> dict[str, str]:
    found = [plugin.arguments for tier in conf.tiers for plugin in tier.plugins if plugin.name == name]
    return found[0] if found else {}
