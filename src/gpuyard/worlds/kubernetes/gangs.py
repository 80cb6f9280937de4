"""How many pods of each kind of owner start together, and which of them a pod is.

Place in the flow: owner and pod ─**gangs**─▶ grouping. The rules are KAI's where it has one; the table of kinds is in
`owners`. Invariants: whatever an owner's spec is, there is an answer; pods of one owner share one tree; a gang never
waits for more pods than its owner makes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from gpuyard.model.jobs import MAX_TASKS_PER_JOB, TaskGroup, TopologyRule
from gpuyard.worlds.kubernetes.asking import Asking, Gang, called
from gpuyard.worlds.kubernetes.notes import Note
from gpuyard.worlds.kubernetes.objects import Owner, Pod
from gpuyard.worlds.kubernetes.raw import count_at, inner, items_at, mapping_at, text_at, whole_number
from gpuyard.worlds.kubernetes.segments import even_sizes, segment_name, segmented, segments_of

BATCH_MIN_MEMBER: Final = "kai.scheduler/batch-min-member"
MIN_MEMBER: Final = "kai.scheduler/min-member"

COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
REPLICA_TYPE: Final = "training.kubeflow.org/replica-type"
REPLICA_INDEX: Final = "training.kubeflow.org/replica-index"
JOB_ROLE: Final = "training.kubeflow.org/job-role"
REPLICATED_JOB: Final = "jobset.sigs.k8s.io/replicatedjob-name"
JOB_INDEX: Final = "jobset.sigs.k8s.io/job-index"
EXCLUSIVE: Final = "alpha.jobset.sigs.k8s.io/exclusive-topology"
NODES_ARE_LABELLED: Final = "alpha.jobset.sigs.k8s.io/node-selector"
RAY_GROUP: Final = "ray.io/group"
RAY_NODE_TYPE: Final = "ray.io/node-type"
LWS_SIZE: Final = "leaderworkerset.sigs.k8s.io/size"
LWS_GROUP: Final = "leaderworkerset.sigs.k8s.io/group-index"
LWS_WORKER: Final = "leaderworkerset.sigs.k8s.io/worker-index"
LWS_EXCLUSIVE: Final = "leaderworkerset.sigs.k8s.io/exclusive-topology"

HEAD_GROUP: Final = "headgroup"
LEADER: Final = "leader"
WORKERS: Final = "workers"
MAX_LEAVES: Final = 10_000


Shape = Callable[[Asking], Gang]


Leaf = tuple[str, int, TopologyRule | None]
"""Name, minimum, rule."""


@lru_cache(maxsize=1024)
def some_leaves(leaves: tuple[Leaf, ...], topology: TopologyRule | None) -> TaskGroup:
    """Several leaves that are all needed."""
    children = tuple(TaskGroup(name, min_tasks=minimum, topology=rule) for name, minimum, rule in leaves)
    return TaskGroup(children=children, topology=topology)


# ------------------------------------------------------------------------------------------------------- plain owners


def any_number(asking: Asking) -> Gang:
    """One group for all pods of the owner, of which one is enough."""
    return Gang(asking.plain(1))


def each_alone(asking: Asking) -> Gang:
    return Gang(asking.plain(1), wanted=1, alone=True)


def stateful_set(asking: Asking) -> Gang:
    """One pod is enough, unless the set starts its pods together and says how many are needed."""
    spec = asking.owner.spec
    wanted = _or(count_at(spec, "replicas"), 1)
    minimum, notes = _annotated(asking.owner, MIN_MEMBER, wanted)
    if minimum > 1 and text_at(spec, "podManagementPolicy") != "Parallel":
        message = f"{MIN_MEMBER} needs podManagementPolicy: Parallel, or the second pod would wait for the first"
        minimum, notes = 1, (Note("MinimumIgnored", message),)
    return Gang(asking.plain(minimum), wanted=wanted, index=asking.pod.metadata.name, notes=notes)


def job(asking: Asking) -> Gang:
    """One pod is enough, unless the Job says how many; never more than it still has to make."""
    spec = asking.owner.spec
    at_once = job_parallelism(spec)
    left = at_once if count_at(spec, "completions") is None else max(1, pods_left(asking.owner))
    minimum, notes = _annotated(asking.owner, BATCH_MIN_MEMBER, max(1, at_once))
    wanted = min(at_once, left)
    index = completion_index(asking.pod)
    return Gang(asking.plain(max(1, min(minimum, wanted))), wanted=wanted, index=index, waves=True, notes=notes)


def job_parallelism(spec: object) -> int:
    """How many pods a Job runs at once."""
    completions = count_at(spec, "completions")
    at_once = _or(count_at(spec, "parallelism"), 1)
    return at_once if completions is None else min(at_once, completions)


def pods_left(job: Owner) -> int:
    """How many pods a Job has still to see done: for what is done it makes no others."""
    succeeded = _or(count_at(job.status, "succeeded"), 0)
    completions = count_at(job.spec, "completions")
    if text_at(job.status, "completionTime") or (completions is None and succeeded):
        return 0
    return MAX_TASKS_PER_JOB if completions is None else max(0, completions - succeeded)


def completion_index(pod: Pod) -> str:
    """The index of a pod of an Indexed Job; older clusters have it as an annotation only."""
    labels, annotations = pod.metadata.labels or {}, pod.metadata.annotations or {}
    return labels.get(COMPLETION_INDEX) or annotations.get(COMPLETION_INDEX) or ""


# ------------------------------------------------------------------------------------------------------------- JobSet


class _Replicated(NamedTuple):
    """One replicated job of a JobSet."""

    name: str
    jobs: int
    minimum: int
    """Pods of each of its Jobs that start together; of those made one after the other: the first."""
    topology: TopologyRule | None
    """Of each of its Jobs."""


def job_set(asking: Asking) -> Gang:
    """A group for each replicated job, in it one for each of its Jobs; all are needed, or one after the other."""
    raw = [one for one in items_at(asking.owner.spec, "replicatedJobs") if _or(count_at(one, "replicas"), 1)]
    replicated = {one.name: one for one in (_replicated(asking, one) for one in raw)}
    name, at = asking.labels.get(REPLICATED_JOB, ""), asking.labels.get(JOB_INDEX, "")
    index = f"{name}/{at}/{completion_index(asking.pod)}"
    wanted = sum(_or(count_at(one, "replicas"), 1) * job_parallelism(inner(one, "template", "spec")) for one in raw)
    if not raw or sum(one.jobs for one in replicated.values()) > MAX_LEAVES or wanted > MAX_TASKS_PER_JOB:
        return Gang(asking.plain(max(1, min(wanted, MAX_TASKS_PER_JOB))), index=index, waits=asking.unread)
    needed, notes = _replicated_jobs_needed(asking.owner, raw)
    tree = _job_set_tree(tuple(replicated.values()), needed, asking.topology)
    mine = replicated.get(name)
    known = mine is not None and at in _indices(mine.jobs)
    waits = (
        ""
        if known
        else f'{called(asking.owner)} has no Job "{name}" with the index {at or "none"} that its labels name'
    )
    return Gang(tree, f"{name}/{at}", wanted, index, notes=notes, waits=waits)


def job_of_set(job: Owner) -> str:
    """The leaf that the pods of a Job belong to, where a JobSet has made it; empty: none has."""
    labels = job.metadata.labels or {}
    name, at = labels.get(REPLICATED_JOB), labels.get(JOB_INDEX)
    return f"{name}/{at}" if name and at else ""


@lru_cache(maxsize=64)
def _indices(count: int) -> frozenset[str]:
    return frozenset(map(str, range(count)))


def _replicated(asking: Asking, one: object) -> _Replicated:
    at_once = job_parallelism(inner(one, "template", "spec"))
    annotations = inner(one, "template", "metadata", "annotations")
    minimum = whole_number(text_at(annotations, BATCH_MIN_MEMBER)) or at_once
    if follows_its_first(asking.owner.metadata.annotations, annotations) and not _follows(asking.pod):
        minimum = min(minimum, 1)
    jobs = _or(count_at(one, "replicas"), 1)
    return _Replicated(text_at(one, "name"), jobs, max(0, min(minimum, at_once)), asking.rule_in(annotations))


def follows_its_first(*places: object) -> bool:
    """Whether each Job has a domain of its own: no other pod of it is made before the first one has a place there."""
    said = [place for place in map(mapping_at, places) if EXCLUSIVE in place]
    return bool(said) and not any(NODES_ARE_LABELLED in place for place in said)


def _follows(pod: Pod) -> bool:
    """Once there is such a pod, all of them are made."""
    return follows_its_first(pod.metadata.annotations) and completion_index(pod) != "0"


def _replicated_jobs_needed(owner: Owner, raw: list[object]) -> tuple[int | None, tuple[Note, ...]]:
    """How many of the replicated jobs start together; None: all of them."""
    if BATCH_MIN_MEMBER in (owner.metadata.annotations or {}):
        needed, notes = _annotated(owner, BATCH_MIN_MEMBER, len(raw))
        return (needed if needed < len(raw) else None), notes
    in_order = text_at(owner.spec, "startupPolicy", "startupPolicyOrder") == "InOrder"
    # Jobs that depend on others are made only when those are ready or done: to wait for all would be to wait for ever.
    in_order = in_order or any(items_at(one, "dependsOn") for one in raw)
    return (1 if in_order and len(raw) > 1 else None), ()


@lru_cache(maxsize=256)
def _job_set_tree(replicated: tuple[_Replicated, ...], needed: int | None, topology: TopologyRule | None) -> TaskGroup:
    children = tuple(
        TaskGroup(
            one.name,
            children=tuple(
                TaskGroup(f"{one.name}/{at}", min_tasks=one.minimum, topology=one.topology) for at in range(one.jobs)
            ),
        )
        for one in replicated
    )
    return TaskGroup(min_groups=needed, children=children, topology=topology)


# ----------------------------------------------------------------------------------------------------------- Kubeflow


def pytorch_job(asking: Asking) -> Gang:
    """All replicas; of an elastic one the master and as many workers as it cannot do without."""
    spec = asking.owner.spec
    counts = _replicas(spec, "pytorchReplicaSpecs")
    workers = counts.get("worker", 0)
    template = mapping_at(spec, "pytorchReplicaSpecs", "Worker", "template")
    segments = segments_of(asking, template, workers)
    if segments is None:
        return _kubeflow(asking, counts, count_at(spec, "elasticPolicy", "minReplicas"))
    masters = counts.get("master", 0)
    master = TaskGroup("master", min_tasks=masters) if masters else None
    tree = segmented(master, even_sizes(workers, segments.size), segments.rule, asking.topology)
    at = whole_number(asking.labels.get(REPLICA_INDEX, "")) or 0
    leads = masters > 0 and _role(asking) == "master"
    leaf = "master" if leads else segment_name(segments.of(max(0, at)))
    stray = not leads and at >= workers
    waits = f"{called(asking.owner)} has {workers} workers, and this is number {at}" if stray else ""
    return Gang(tree, leaf, workers + masters, _replica_index(asking), waits=waits)


def tf_job(asking: Asking) -> Gang:
    return _kubeflow(asking, _replicas(asking.owner.spec, "tfReplicaSpecs"))


def xgboost_job(asking: Asking) -> Gang:
    return _kubeflow(asking, _replicas(asking.owner.spec, "xgbReplicaSpecs"))


def jax_job(asking: Asking) -> Gang:
    return _kubeflow(asking, _replicas(asking.owner.spec, "jaxReplicaSpecs"))


def paddle_job(asking: Asking) -> Gang:
    return _kubeflow(asking, _replicas(asking.owner.spec, "paddleReplicaSpecs"))


def mpi_job(asking: Asking) -> Gang:
    """Launcher and workers; a launcher that is made only once the workers are up does not belong to their gang yet."""
    spec = asking.owner.spec
    counts = _replicas(spec, "mpiReplicaSpecs")
    if text_at(spec, "launcherCreationPolicy") != "WaitForWorkersReady" or not counts.get("worker"):
        return _kubeflow(asking, counts)
    total, launchers = sum(counts.values()), counts.get("launcher", 0)
    minimum = min(_or(count_at(spec, "runPolicy", "schedulingPolicy", "minAvailable"), total), total)
    workers = ("worker", max(0, minimum - launchers), None)
    mine = _role(asking)
    leaves = (("launcher", launchers, None), workers) if mine == "launcher" else (workers,)
    wanted = total if mine == "launcher" else counts["worker"]
    return Gang(some_leaves(leaves, asking.topology), mine, wanted, _replica_index(asking))


def _kubeflow(asking: Asking, counts: dict[str, int], elastic: int | None = None) -> Gang:
    spec = asking.owner.spec
    total = min(sum(counts.values()), MAX_TASKS_PER_JOB)
    if not total:
        return Gang(asking.plain(1), index=_replica_index(asking), waits=asking.unread)
    said = count_at(spec, "runPolicy", "schedulingPolicy", "minAvailable")
    minimum = max(1, min(_or(said, _or(elastic, total)), total))
    index, first = _replica_index(asking), counts.get("master", 0)
    if minimum == total or not 0 < first < total or not counts.get("worker"):
        return Gang(asking.plain(minimum), "", total, index)
    leaves = (("master", first, None), ("worker", max(0, minimum - first), None))
    return Gang(some_leaves(leaves, asking.topology), _role(asking), total, index)


def _replicas(spec: object, field: str) -> dict[str, int]:
    """How many pods of each type of replica, by its name in lower case, as the labels of pods have it."""
    types = mapping_at(spec, field)
    return {str(name).lower(): min(_or(count_at(one, "replicas"), 1), MAX_TASKS_PER_JOB) for name, one in types.items()}


def _role(asking: Asking) -> str:
    """The type of replica of a pod; the launcher of MPI v2 has it as its role only."""
    labels = asking.labels
    kind = (labels.get(REPLICA_TYPE) or labels.get(JOB_ROLE) or "worker").lower()
    return kind if kind in ("master", "launcher") else "worker"


def _replica_index(asking: Asking) -> str:
    labels = asking.labels
    kind = (labels.get(REPLICA_TYPE) or labels.get(JOB_ROLE) or "").lower()
    return f"{kind}/{labels.get(REPLICA_INDEX, '')}"


# ---------------------------------------------------------------------------------------------------------------- Ray


def ray_cluster(asking: Asking) -> Gang:
    """The head, and of each group of workers as many as it cannot do without."""
    spec = asking.owner.spec
    leaves: dict[str, Leaf] = {HEAD_GROUP: (HEAD_GROUP, 1, _ray_rule(asking, mapping_at(spec, "headGroupSpec")))}
    wanted = 1
    for position, group in enumerate(items_at(spec, "workerGroupSpecs")[:MAX_LEAVES]):
        name = text_at(group, "groupName") or f"worker-group-{position}"
        minimum, there = _ray_workers(group)
        leaves[name] = (name, minimum, _ray_rule(asking, group))
        wanted += there
    mine = asking.labels.get(RAY_GROUP, "")
    if mine not in leaves:
        mine = HEAD_GROUP if asking.labels.get(RAY_NODE_TYPE) == "head" else next(reversed(leaves))
    tree = some_leaves(tuple(leaves.values()), asking.topology)
    return Gang(tree, mine, min(wanted, MAX_TASKS_PER_JOB), index=mine, waits=asking.unread)


def _ray_workers(group: object) -> tuple[int, int]:
    """Pods of a group that start with the cluster, and pods it has."""
    if mapping_at(group).get("suspend") is True or mapping_at(group).get("suspended") is True:
        return 0, 0
    hosts = max(1, _or(count_at(group, "numOfHosts"), 1))
    # Whatever the others say, the operator makes no more than this.
    most = _or(count_at(group, "maxReplicas"), MAX_TASKS_PER_JOB)
    least = min(_or(count_at(group, "minReplicas"), 0), most)
    replicas = min(max(_or(count_at(group, "replicas"), 0), least), most)
    return min((least or replicas) * hosts, MAX_TASKS_PER_JOB), min(replicas * hosts, MAX_TASKS_PER_JOB)


def _ray_rule(asking: Asking, group: object) -> TopologyRule | None:
    return asking.rule_in(mapping_at(group, "template", "metadata", "annotations"))


# ---------------------------------------------------------------------------------------------------- LeaderWorkerSet


def leader_worker_set(asking: Asking) -> Gang:
    """A group for each replica: the leader and its workers, or the leader alone until its workers may be made."""
    labels, annotations = asking.labels, asking.pod.metadata.annotations or {}
    size = whole_number(annotations.get(LWS_SIZE, "")) or count_at(asking.owner.spec, "leaderWorkerTemplate", "size")
    waits = asking.unread if size is None else ""
    size = max(1, min(_or(size, 1), MAX_TASKS_PER_JOB))
    at = labels.get(LWS_WORKER, "")
    part = labels.get(LWS_GROUP, "")
    index = f"{part}/{at}" if at else asking.pod.metadata.name
    divided = _lws_segments(asking, size, whole_number(at) or 0)
    if divided is not None:
        tree, leaf = divided
        return Gang(tree, leaf, size, index, part)
    if not _leader_first(asking.owner) or size == 1:
        return Gang(asking.plain(size), "", size, index, part, waits=waits)
    leader: Leaf = (LEADER, 1, None)
    if at == "0":
        return Gang(some_leaves((leader,), asking.topology), LEADER, 1, index, part)
    tree = some_leaves((leader, (WORKERS, size - 1, None)), asking.topology)
    return Gang(tree, WORKERS, size, index, part)


def _leader_first(owner: Owner) -> bool:
    """Whether workers are made only once the leader is ready, or has the domain that they all lie in."""
    exclusive = LWS_EXCLUSIVE in (owner.metadata.annotations or {})
    return exclusive or text_at(owner.spec, "startupPolicy") == "LeaderReady"


def _lws_segments(asking: Asking, size: int, at: int) -> tuple[TaskGroup, str] | None:
    """The tree of a replica that is divided, and the leaf of the pod with this index; None where it is not."""
    template = mapping_at(asking.owner.spec, "leaderWorkerTemplate")
    said = count_at(template, "subGroupPolicy", "subGroupSize")
    segments = segments_of(asking, mapping_at(template, "workerTemplate"), size, said)
    if segments is None or size == 1:
        return None
    apart = text_at(template, "subGroupPolicy", "subGroupPolicyType") == "LeaderExcluded"
    # Where the workers alone fill whole segments, the leader is one more in the first of them.
    extra = not apart and (size - 1) % segments.size == 0
    counted = size - 1 if apart or extra else size
    sizes = even_sizes(counted, segments.size)
    if extra:
        sizes = (sizes[0] + 1, *sizes[1:])
    first = TaskGroup(LEADER, min_tasks=1) if apart else None
    position = segments.of(max(0, at - 1 if apart or extra else at))
    leaf = LEADER if apart and at == 0 else segment_name(min(position, len(sizes) - 1))
    if at == 0 and _leader_first(asking.owner):
        first, sizes = (first, ()) if apart else (None, (1,))
    return segmented(first, sizes, segments.rule, asking.topology), leaf


# ------------------------------------------------------------------------------------------------------------ helpers


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _annotated(owner: Owner, key: str, most: int) -> tuple[int, tuple[Note, ...]]:
    """The minimum an owner's annotation asks for, at most as many as there are; 1 where it says none."""
    text = (owner.metadata.annotations or {}).get(key)
    if text is None:
        return 1, ()
    minimum = whole_number(text)
    if minimum is None or minimum < 1:
        return 1, (Note("MinimumIgnored", f'{key}: "{text}" is no whole number above 0; one pod at a time starts'),)
    if minimum > most:
        message = f"{key} asks for {minimum} together, and there are never more than {most} at once; {most} it is"
        return most, (Note("MinimumTooHigh", message),)
    return minimum, ()
