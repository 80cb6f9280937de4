"""A situation's jobs in our own values; which devices a running task holds is worked out in `corpus_devices`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuyard.errors import InputError
from gpuyard.model.jobs import (
    Job,
    LabelRule,
    Neighbour,
    Operator,
    Request,
    Sharing,
    Task,
    TaskGroup,
    TaskState,
    TopologyRule,
    Where,
)
from gpuyard.model.quantities import MILLI, cpu_milli, memory_bytes, milli
from gpuyard.scenarios.corpus_cluster import LEGACY_MIG, NODE_TYPE, mig_profile
from gpuyard.scenarios.corpus_format import (
    ActionName,
    Defaults,
    InputEntry,
    JobEntry,
    Kind,
    Number,
    ResourceClaim,
    Scenario,
    State,
    SubgroupEntry,
    TaskEntry,
    TopologyConstraint,
)

NOW_MS: Final = 1_000_000_000_000
MINUTE_MS: Final = 60_000
RAN_FOR_MS: Final = MINUTE_MS
"""How long a task that runs at the beginning has been running."""

QUEUE_LABEL: Final = "kai.scheduler/queue"

STATES: Final = {
    State.GATED: TaskState.GATED,
    State.PENDING: TaskState.PENDING,
    State.PIPELINED: TaskState.PROMISED,
    State.ALLOCATED: TaskState.RUNNING,
    State.BINDING: TaskState.RUNNING,
    State.BOUND: TaskState.RUNNING,
    State.RUNNING: TaskState.RUNNING,
    State.RELEASING: TaskState.FREEING,
    State.STUCK: TaskState.STUCK,
    State.SUCCEEDED: TaskState.SUCCEEDED,
    State.FAILED: TaskState.FAILED,
}
HOLDING: Final = frozenset({TaskState.PROMISED, TaskState.RUNNING, TaskState.FREEING, TaskState.STUCK})
"""States in which a task has a place."""

NOWHERE: Final = LabelRule(NODE_TYPE, Operator.IN, ())


def jobs_of(scenario: Scenario, defaults: Defaults) -> tuple[Job, ...]:
    """The jobs of a situation; tasks that run have a node, and as yet no devices."""
    claims = _claims(scenario.input)
    grace_s = _default_grace_s(scenario, defaults)
    return tuple(_job(entry, defaults, claims, grace_s) for entry in scenario.input.jobs)


def _job(entry: JobEntry, defaults: Defaults, claims: dict[str, ResourceClaim], grace_s: Number) -> Job:
    if entry.staleness_grace_period_s is not None:
        grace_s = entry.staleness_grace_period_s
    group = _root_group(entry)
    labels = {name: value for task in entry.tasks for name, value in task.pod_labels.items()}
    return Job(
        id=entry.name,
        queue=entry.queue,
        tasks=tuple(_task(task, entry, _group_name(task, group), defaults, claims) for task in entry.tasks),
        group=group,
        priority=entry.priority,
        preemptible=entry.preemptible,
        submitted_at_ms=NOW_MS - round(entry.age_minutes * MINUTE_MS),
        labels=tuple(sorted(labels.items())),
        preemption_delay_ms=_ms(entry.preemption_delay_s),
        staleness_grace_ms=_ms(grace_s),
        stale_since_ms=None if entry.stale_for_s is None else NOW_MS - _ms(entry.stale_for_s),
    )


def _default_grace_s(scenario: Scenario, defaults: Defaults) -> Number:
    grace = defaults.staleness_grace_period_s
    about_stale_gangs = ActionName.STALE_GANGS in scenario.actions and scenario.kind is Kind.SINGLE_CYCLE
    return grace.single_cycle_stale_gangs if about_stale_gangs else grace.other


def _ms(seconds: Number) -> int:
    return round(seconds * 1000)


# ------------------------------------------------------------------------------------------------------------ groups


def _root_group(entry: JobEntry) -> TaskGroup:
    """Without subgroups a job is one gang: of `min_available` tasks, else of all of them."""
    if entry.subgroups is None:
        return TaskGroup(min_tasks=len(entry.tasks) if entry.min_available is None else entry.min_available)
    return _group(entry.subgroups, entry)


def _group(entry: SubgroupEntry, job: JobEntry) -> TaskGroup:
    members = sum(task.subgroup == entry.name for task in job.tasks)
    return TaskGroup(
        name=entry.name,
        min_tasks=members if entry.min_available is None else entry.min_available,
        min_groups=entry.min_subgroups,
        children=tuple(_group(member, job) for member in entry.members),
        topology=_topology_rule(entry.topology_constraint),
    )


def _topology_rule(entry: TopologyConstraint | None) -> TopologyRule | None:
    return None if entry is None else TopologyRule(entry.topology, entry.required_level, entry.preferred_level)


def _group_name(task: TaskEntry, root: TaskGroup) -> str:
    """A task that names no subgroup belongs to the first leaf."""
    return next(leaves(root)).name if task.subgroup is None else task.subgroup


def leaves(group: TaskGroup) -> Iterator[TaskGroup]:
    """The groups of a tree that hold tasks."""
    if group.leaf:
        yield group
    for child in group.children:
        yield from leaves(child)


# ------------------------------------------------------------------------------------------------------------- tasks


def _task(task: TaskEntry, job: JobEntry, group: str, defaults: Defaults, claims: dict[str, ResourceClaim]) -> Task:
    state = STATES[task.state]
    has_place = state in HOLDING and task.node is not None
    return Task(
        id=task.name,
        request=_request(task, job, defaults, claims),
        group=group,
        state=state,
        node=task.node if has_place and task.node else "",
        priority=task.task_priority,
        started_at_ms=NOW_MS - RAN_FOR_MS if has_place else 0,
    )


def _request(task: TaskEntry, job: JobEntry, defaults: Defaults, claims: dict[str, ResourceClaim]) -> Request:
    devices, gpu_milli, gpu_memory_mib = _gpus(task, job)
    cores, memory = job.cpu_cores_per_task, job.memory_bytes_per_task
    if not _best_effort(job, defaults):
        cores = defaults.task_cpu_cores_default if cores is None else cores
        memory = defaults.task_memory_bytes_default if memory is None else memory
    return Request(
        devices=devices + _claimed(task, job, claims),
        gpu_milli=gpu_milli,
        gpu_memory_mib=gpu_memory_mib,
        mig=tuple((mig_profile(name), count) for name, count in sorted(task.mig_instances.items())),
        cpu_milli=cpu_milli(cores or 0),
        memory_bytes=memory_bytes(memory or 0),
        sharing=Sharing.TIME_SLICED if gpu_milli < MILLI else Sharing.EXCLUSIVE,
        where=_where(task, job, claims),
    )


def _gpus(task: TaskEntry, job: JobEntry) -> tuple[int, int, int]:
    """Devices, thousandths of each, MiB of each."""
    parts = job.fraction_devices_per_task or 1
    if task.gpus is None and job.gpu_memory_mib_per_task:
        return parts, 0, job.gpu_memory_mib_per_task
    wanted = milli((task.gpus if task.gpus is not None else job.gpus_per_task) or 0, "gpus")
    if 0 < wanted < MILLI:
        return parts, wanted, 0
    if wanted % MILLI:
        raise InputError(
            f"task {task.name} asks for {wanted / MILLI} GPUs", fix="ask for a part of one, or for whole ones"
        )
    return wanted // MILLI, MILLI, 0


def _best_effort(job: JobEntry, defaults: Defaults) -> bool:
    """A job that names no resource at all, in no task, asks for none; any other has the usual CPU and memory."""
    amounts = (job.gpus_per_task, job.gpu_memory_mib_per_task, job.cpu_cores_per_task, job.memory_bytes_per_task)
    if not defaults.best_effort_jobs_request_nothing or any(amount is not None for amount in amounts):
        return False
    return not any(t.gpus or t.mig_instances or t.legacy_mig or t.resource_claims for t in job.tasks)


def _where(task: TaskEntry, job: JobEntry, claims: dict[str, ResourceClaim]) -> Where:
    rules = tuple(_node_rules(task, job, claims))
    return Where(any_of=(rules,) if rules else (), neighbours=tuple(_neighbours(task)))


def _node_rules(task: TaskEntry, job: JobEntry, claims: dict[str, ResourceClaim]) -> Iterator[LabelRule]:
    if task.node_affinity_names:
        yield LabelRule(NODE_TYPE, Operator.IN, task.node_affinity_names)
    if task.mig_instances:
        yield LabelRule(LEGACY_MIG, Operator.MISSING)
    if task.legacy_mig or any(not _usable(claims.get(name), job) for name in task.resource_claims):
        yield NOWHERE


def _neighbours(task: TaskEntry) -> Iterator[Neighbour]:
    """Together with, or apart from, tasks that carry this task's own labels."""
    labels = tuple(sorted(task.pod_labels.items()))
    if task.pod_affinity_topology_key:
        yield Neighbour(labels, task.pod_affinity_topology_key)
    if task.pod_anti_affinity_topology_key:
        yield Neighbour(labels, task.pod_anti_affinity_topology_key, apart=True)


# ------------------------------------------------------------------------------------------------------------ claims


def _claims(situation: InputEntry) -> dict[str, ResourceClaim]:
    return {claim.name: claim for claim in situation.dra.resource_claims}


def _claimed(task: TaskEntry, job: JobEntry, claims: dict[str, ResourceClaim]) -> int:
    """Devices asked for by claims, as if they were GPUs of this task alone."""
    return sum(claims[name].count for name in task.resource_claims if name in claims)


def _usable(claim: ResourceClaim | None, job: JobEntry) -> bool:
    """Only a claim that carries its queue's label may be used, and only by that queue."""
    return claim is not None and claim.labels.get(QUEUE_LABEL) == job.queue
