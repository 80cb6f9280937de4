"""From a pod and its owners to the job it belongs to: id, queue, tree of groups, priority, and who makes it anew.

Place in the flow: pod, owners, PodGroup ─**grouping**─▶ jobs of the snapshot. Pure. An explicit PodGroup wins over what
is worked out from owners. Labels and annotations are looked for on the owner that groups the pod, then on those above
it, those below it, and on the pod. Invariant: whatever the API server accepts has an answer; what is wrong is a note.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from gpuyard.model.jobs import TaskGroup, TopologyRule
from gpuyard.scheduler.gang import leaves
from gpuyard.worlds.kubernetes.asking import PREFERRED, REQUIRED, TOPOLOGY, Gang, called, one_leaf
from gpuyard.worlds.kubernetes.durations import duration_ms
from gpuyard.worlds.kubernetes.gangs import (
    JOB_ROLE,
    LWS_WORKER,
    RAY_NODE_TYPE,
    REPLICA_TYPE,
)
from gpuyard.worlds.kubernetes.notes import Note
from gpuyard.worlds.kubernetes.objects import Owner, Pod, PodGroup
from gpuyard.worlds.kubernetes.owners import chain_of, gang_of, grouping_owner, rule_of, word_for
from gpuyard.worlds.kubernetes.podgroups import shape_of
from gpuyard.worlds.kubernetes.priorities import TRAIN, Priorities, preemptible_by
from gpuyard.worlds.kubernetes.queues import Labelled, NamedQueue, queue_named
from gpuyard.worlds.kubernetes.raw import whole_number
from gpuyard.worlds.kubernetes.restarts import Restart, restart_of
from gpuyard.worlds.kubernetes.settings import Settings
from gpuyard.worlds.kubernetes.topologies import NO_TOPOLOGIES, Topologies, topology_rule

POD_GROUP: Final = "pod-group-name"
SUBGROUP: Final = "kai.scheduler/subgroup-name"
SKIP_GROUPING: Final = "kai.scheduler/skip-podgrouper"
PREEMPTIBILITY: Final = "kai.scheduler/preemptibility"
PRIORITY_CLASS: Final = "priorityClassName"
RAY_PRIORITY_CLASS: Final = "ray.io/priority-class-name"
TASK_PRIORITY: Final = "kai.scheduler/task-priority"
PREEMPTION_DELAY: Final = "kai.scheduler/preemption-delay"
STALENESS_GRACE: Final = "kai.scheduler/staleness-grace-period"

PREEMPTIBLE: Final = {"preemptible": True, "non-preemptible": False}
FIRST_ROLES: Final = frozenset({"master", "launcher", "chief"})


class Grouping(msgspec.Struct, frozen=True):
    """Everything about the job of a pod that does not depend on other pods."""

    job_id: str
    queue: str
    queue_from: str
    """How the queue was found."""
    group: TaskGroup
    leaf: str = ""
    """The leaf of this pod."""
    priority: int = 0
    priority_class: str = ""
    preemptible: bool = True
    task_priority: int = 0
    """Order among the tasks of the job: higher first."""
    spread: bool = False
    preemption_delay_ms: int = 0
    staleness_grace_ms: int | None = None
    """Negative: never."""
    wanted: int | None = None
    """How many pods the group will have, as far as its owner says; None: not known."""
    waves: bool = False
    """Pods that are done are followed by others, and the minimum holds for each wave anew."""
    successor_key: str = ""
    """The pod made in place of this one has the same key; empty: there will be none."""
    recreated: bool = False
    """Somebody makes the pod anew after an eviction."""
    moves_safely: bool = False
    why_not: str = ""
    """Why it is not moved."""
    goes_whole: bool = False
    """That is all: to evict its whole group is no loss."""
    evictions_left: int | None = None
    """Evictions of pods of this workload until its owner gives up; None: any number."""
    waits: str = ""
    """Why the pod cannot be placed yet, whatever is free; empty: it can."""
    created: str | None = None
    """When whatever groups the pods was made."""
    notes: tuple[Note, ...] = ()

    @property
    def costs_work(self) -> bool:
        """Whether an eviction is more than a pause: nobody makes the pod anew, or its owner may give up."""
        return not self.recreated or not (self.moves_safely or self.goes_whole)


def group_of(
    pod: Pod,
    owners: Sequence[Owner],
    podgroup: PodGroup | None,
    priorities: Priorities,
    settings: Settings,
    topologies: Topologies = NO_TOPOLOGIES,
) -> Grouping:
    """The job of a pod. `owners` is the chain as far as it has been read, nearest first."""
    cluster = _Cluster(priorities, settings, topologies)
    base = _by_owner(pod, chain_of(pod, owners), cluster)
    name = (pod.metadata.annotations or {}).get(POD_GROUP, "")
    return _explicit(pod, base, name, podgroup, cluster) if name else base


def widest(groups: Iterable[TaskGroup]) -> TaskGroup:
    """The tree of a job whose pods do not all give the same: some kinds add a part once its pods are made."""
    different = {id(group): group for group in groups}
    return max(different.values(), key=lambda group: group.fewest_tasks)


# ------------------------------------------------------------------------------------------------------------ by owner


class _Cluster(NamedTuple):
    """What of the cluster a grouping depends on."""

    priorities: Priorities
    settings: Settings
    topologies: Topologies


class _Places:
    """Where labels and annotations are looked for, first to last."""

    def __init__(self, pod: Pod, chain: Sequence[Owner], at: int | None) -> None:
        owners = [(called(owner), owner.metadata) for owner in chain]
        mine = ("the pod", pod.metadata)
        # A pod that is its own group comes before owners that only pass it through.
        places = [mine, *owners] if at is None else [*owners[at:], *reversed(owners[:at]), mine]
        self.labels = [Labelled(name, metadata.labels or {}) for name, metadata in places]
        self._annotations = [metadata.annotations or {} for _, metadata in places]

    def label(self, key: str) -> Iterator[str]:
        return (place.labels[key] for place in self.labels if key in place.labels)

    def annotation(self, key: str) -> Iterator[str]:
        return (place[key] for place in self._annotations if key in place)


def _by_owner(pod: Pod, chain: Sequence[Owner], cluster: _Cluster) -> Grouping:
    at = grouping_owner(chain)
    places = _Places(pod, chain, at)
    notes: list[Note] = []
    topology = _topology(places, cluster.topologies, notes)
    owner = None if at is None else chain[at]
    gang = _gang(owner, pod, topology, cluster.topologies)
    class_name, priority = _priority(places, pod, owner, cluster.priorities)
    restart = restart_of(pod, chain)
    too_few = _too_few_left(restart, gang)
    why_not = too_few if restart.goes_whole and too_few else restart.why_not or too_few
    queue = queue_named(places.labels, pod.metadata.labels or {}, cluster.settings.queue_label)
    return Grouping(
        job_id=_job_id(pod, owner, gang),
        queue=queue.queue,
        queue_from=queue.found,
        group=gang.group,
        leaf=gang.leaf,
        priority=priority,
        priority_class=class_name,
        preemptible=_preemptible(places, priority, notes),
        task_priority=_task_priority(pod),
        preemption_delay_ms=_delay(places, notes),
        staleness_grace_ms=_grace(places, notes),
        wanted=gang.wanted,
        successor_key=_successor(pod, chain, owner, gang),
        recreated=restart.recreated,
        moves_safely=not why_not,
        why_not=why_not,
        goes_whole=restart.goes_whole and not too_few,
        evictions_left=restart.evictions_left,
        waits=gang.waits or _left_to_others(places),
        created=(pod if owner is None or gang.alone else owner).metadata.creation_timestamp,
        waves=gang.waves,
        notes=(*gang.notes, *notes),
    )


def _gang(owner: Owner | None, pod: Pod, topology: TopologyRule | None, topologies: Topologies) -> Gang:
    if owner is None:
        return Gang(one_leaf(1, topology), wanted=1)
    return gang_of(owner, pod, topology, topologies)


def _too_few_left(restart: Restart, gang: Gang) -> str:
    """A gang goes as a whole, and each of its pods counts as a failure."""
    if restart.evictions_left is None:
        return ""
    needed = next((leaf.min_tasks for leaf in leaves(gang.group) if leaf.name == gang.leaf), 1)
    if restart.evictions_left >= needed:
        return ""
    return f"the {needed} pods of its gang would be {needed} failures, and {restart.evictions_left} are left"


def _left_to_others(places: _Places) -> str:
    if "true" not in places.annotation(SKIP_GROUPING):
        return ""
    return f"{SKIP_GROUPING} says that it belongs to a PodGroup, and the pod names none in annotation {POD_GROUP}"


def _job_id(pod: Pod, owner: Owner | None, gang: Gang) -> str:
    namespace = pod.metadata.namespace
    if owner is None or gang.alone:
        return f"{namespace}/pod/{pod.metadata.name}"
    part = f"-{gang.part}" if gang.part else ""
    return f"{namespace}/{word_for(owner)}/{owner.metadata.name}{part}"


def _successor(pod: Pod, chain: Sequence[Owner], owner: Owner | None, gang: Gang) -> str:
    """By the owner that knows its pods by index; where they are all alike, by the one next to the pod."""
    if owner is None:
        return ""
    return f"{owner.metadata.uid}/{gang.index}" if gang.index else f"{chain[0].metadata.uid}/"


# ------------------------------------------------------------------------------------------------------------ explicit


def _explicit(pod: Pod, base: Grouping, name: str, podgroup: PodGroup | None, cluster: _Cluster) -> Grouping:
    """The pod names its PodGroup: that says what starts together; owners still say who makes the pod anew."""
    job_id = f"{pod.metadata.namespace}/podgroup/{name}"
    if podgroup is None:
        waits = f'PodGroup "{name}", which annotation {POD_GROUP} names, does not exist'
        return msgspec.structs.replace(base, job_id=job_id, group=one_leaf(1, None), leaf="", wanted=None, waits=waits)
    spec = podgroup.spec
    subgroup = (pod.metadata.labels or {}).get(SUBGROUP, "")
    shape = shape_of(spec, cluster.topologies)
    leaf = shape.leaf(subgroup)
    queue = _queue_of(podgroup, base, cluster.settings.queue_label)
    known = cluster.priorities.of(spec.priority_class_name)
    priority = cluster.priorities.default if known is None else known
    notes = list(shape.notes)
    return msgspec.structs.replace(
        base,
        job_id=job_id,
        queue=queue.queue,
        queue_from=queue.found,
        group=shape.group,
        leaf=leaf or "",
        priority=priority,
        priority_class=spec.priority_class_name,
        preemptible=PREEMPTIBLE.get(spec.preemptibility, preemptible_by(priority)),
        preemption_delay_ms=_spec_delay(spec.preemption_delay, notes),
        staleness_grace_ms=_spec_grace(spec.staleness_grace_period, notes),
        wanted=None,
        waits=_unplaceable(name, subgroup, leaf) or shape.shortfall,
        created=podgroup.metadata.creation_timestamp,
        notes=tuple(notes),
    )


def _queue_of(podgroup: PodGroup, base: Grouping, key: str) -> NamedQueue:
    called_group = f"PodGroup {podgroup.metadata.name}"
    if podgroup.spec.queue:
        return NamedQueue(podgroup.spec.queue, f"spec.queue of {called_group}")
    label = (podgroup.metadata.labels or {}).get(key)
    if label:
        return NamedQueue(label, f"label {key} of {called_group}")
    return NamedQueue(base.queue, base.queue_from)


def _unplaceable(name: str, subgroup: str, leaf: str | None) -> str:
    if leaf is not None:
        return ""
    if not subgroup:
        return f'PodGroup "{name}" has subGroups, and the pod names none of them in label {SUBGROUP}'
    return f'label {SUBGROUP} names "{subgroup}", which is no subGroup of PodGroup "{name}" that holds pods'


def _spec_delay(text: str | None, notes: list[Note]) -> int:
    value = _duration("preemptionDelay", [text] if text else [], notes)
    return value if value is not None and value > 0 else 0


def _spec_grace(text: str | None, notes: list[Note]) -> int | None:
    return _duration("stalenessGracePeriod", [text] if text else [], notes)


# -------------------------------------------------------------------------------------------- labels and annotations


def _topology(places: _Places, topologies: Topologies, notes: list[Note]) -> TopologyRule | None:
    name, required, preferred = (next(places.annotation(key), "") for key in (TOPOLOGY, REQUIRED, PREFERRED))
    if (required or preferred) and not name:
        notes.append(Note("TopologyUnnamed", f"{REQUIRED} or {PREFERRED} is set without {TOPOLOGY}; not applied"))
    return topology_rule(name, required, preferred, topologies)


def _priority(places: _Places, pod: Pod, owner: Owner | None, priorities: Priorities) -> tuple[str, int]:
    """The first class named that exists, else the one its kind of owner has by default."""
    default_class = TRAIN if owner is None else rule_of(owner).default_class
    named = (*places.label(RAY_PRIORITY_CLASS), *places.label(PRIORITY_CLASS), pod.spec.priority_class_name)
    for name in (*named, default_class):
        value = priorities.of(name) if name else None
        if value is not None:
            return name, value
    return "", priorities.default


def _preemptible(places: _Places, priority: int, notes: list[Note]) -> bool:
    for text in places.label(PREEMPTIBILITY):
        if text in PREEMPTIBLE:
            return PREEMPTIBLE[text]
        if text:
            message = f'label {PREEMPTIBILITY}: "{text}" is neither preemptible nor non-preemptible; not applied'
            notes.append(Note("BadPreemptibility", message))
    return preemptible_by(priority)


def _task_priority(pod: Pod) -> int:
    """The pod's own label first; among equals the one the others look for comes first."""
    labels = pod.metadata.labels or {}
    said = whole_number(labels.get(TASK_PRIORITY, "")) or 0
    first = (
        labels.get(JOB_ROLE) in FIRST_ROLES
        or labels.get(REPLICA_TYPE) in FIRST_ROLES
        or labels.get(RAY_NODE_TYPE) == "head"
        or labels.get(LWS_WORKER) == "0"
    )
    return 2 * said + first


def _delay(places: _Places, notes: list[Note]) -> int:
    value = _duration(PREEMPTION_DELAY, places.annotation(PREEMPTION_DELAY), notes, least=0)
    return 0 if value is None else value


def _grace(places: _Places, notes: list[Note]) -> int | None:
    return _duration(STALENESS_GRACE, places.annotation(STALENESS_GRACE), notes)


def _duration(what: str, texts: Iterable[str], notes: list[Note], least: int | None = None) -> int | None:
    """The first of them that is a duration."""
    for text in texts:
        value = duration_ms(text)
        if value is not None and (least is None or value >= least):
            return value
        message = f'{what} "{text}" is no duration and is not applied; write it as 90s, 10m or 1h30m'
        notes.append(Note("BadDuration", message))
    return None
