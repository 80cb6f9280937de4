"""KAI's Queue objects as a tree the core can share out by, and which queue a workload names.

Place in the flow: Queue objects ─**queues**─▶ the snapshot, and notes that become events on the Queue. Numbers mean
what they mean to KAI: `-1` is unlimited, and what is not written is 0, which for a limit is nothing at all; whoever
left it out is told. Invariant: the tree handed over has no contradiction (`model.queue_rules`); a queue that cannot be
part of a tree is left out with all below it, and the others work.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Final, Literal, NamedTuple

import msgspec

from gpuyard.model.limits import MAX_AMOUNT
from gpuyard.model.quantities import CPU, GPU, MEMORY, MILLI
from gpuyard.model.queues import DEFAULT_QUEUE_PRIORITY, MAX_QUEUE_DEPTH, MAX_QUEUES, Queue, QueueShare
from gpuyard.model.text import amount_text
from gpuyard.worlds.kubernetes.durations import duration_ms
from gpuyard.worlds.kubernetes.notes import Note
from gpuyard.worlds.kubernetes.objects import KaiQueue, QueueResource, QueueResources
from gpuyard.worlds.kubernetes.settings import QUEUE_LABEL

FORMER_QUEUE_LABEL: Final = "runai/queue"
PROJECT_LABEL: Final = "project"
NODE_POOL_LABEL: Final = "kai.scheduler/node-pool"
DEFAULT_QUEUE: Final = "default-queue"

NAMESPACES: Final = "gpuyard.io/namespaces"
"""Annotation of a Queue: the namespaces whose workloads it takes, with commas between them."""

UNIT: Final = {GPU: MILLI, CPU: 1, MEMORY: 10**6}
"""How many of our units one of KAI's is: a GPU, a thousandth of a core, 10^6 bytes."""

MAX_SHOWN: Final = 8


class QueueNote(msgspec.Struct, frozen=True, gc=False):
    """Something whoever wrote a Queue should know."""

    queue: str
    reason: str
    message: str
    kind: Literal["Warning"] = "Warning"


class QueueTree(msgspec.Struct, frozen=True):
    """The queues that count, and what else their objects say."""

    queues: tuple[Queue, ...] = ()
    notes: tuple[QueueNote, ...] = ()
    namespaces: dict[str, frozenset[str]] = {}
    """Of queues that list who may use them."""
    display_names: dict[str, str] = {}
    """Of queues that have one."""
    children: dict[str, tuple[str, ...]] = {}
    """Of queues that have some, oldest first."""
    parents: dict[str, str] = {}
    """Of queues that have one."""

    @property
    def leaves(self) -> tuple[str, ...]:
        """Queues that may hold jobs."""
        return tuple(queue.name for queue in self.queues if queue.name not in self.children)

    def closed_to(self, queue: str, namespace: str) -> str | None:
        """The queue, this one or one above it, whose list lacks the namespace; None where it may be used."""
        name: str | None = queue
        while name is not None:
            if name in self.namespaces and namespace not in self.namespaces[name]:
                return name
            name = self.parents.get(name)
        return None


def read_queues(queues: Iterable[KaiQueue]) -> QueueTree:
    """The tree of a cluster's queues, oldest first."""
    objects, notes = _part_of_a_tree(queues)
    read = [_queue(one, order) for order, one in enumerate(objects)]
    for one, (_, told) in zip(objects, read, strict=True):
        notes += [QueueNote(one.metadata.name, note.reason, note.message) for note in told]
    settled, overcommitted = _settled([queue for queue, _ in read])
    return QueueTree(
        queues=settled,
        notes=(*notes, *overcommitted),
        namespaces={one.metadata.name: listed for one in objects if (listed := _namespaces(one)) is not None},
        display_names={one.metadata.name: one.spec.display_name for one in objects if one.spec.display_name},
        children=_children(settled),
        parents={queue.name: queue.parent for queue in settled if queue.parent is not None},
    )


# ------------------------------------------------------------------------------------------------------ shape of a tree


def _part_of_a_tree(queues: Iterable[KaiQueue]) -> tuple[list[KaiQueue], list[QueueNote]]:
    """The queues with a sound way up to a root, oldest first, and why the others are left out."""
    known: dict[str, KaiQueue] = {}
    notes: list[QueueNote] = []
    for one in sorted(queues, key=_age):
        if known.setdefault(one.metadata.name, one) is not one:
            notes.append(
                QueueNote(one.metadata.name, "NameTaken", "an older queue has this name; this one is left out")
            )
    reached = _reached(known)
    looped = _looped({name: one.spec.parent_queue for name, one in known.items() if name not in reached})
    for name, one in known.items():
        if name not in reached:
            notes.append(_left_out(name, one.spec.parent_queue, known, reached, looped))
    return [one for name, one in known.items() if name in reached], notes


def _age(one: KaiQueue) -> tuple[str, str]:
    return one.metadata.creation_timestamp or "", one.metadata.name


def _reached(known: Mapping[str, KaiQueue]) -> set[str]:
    """Queues that lie below a root, level by level from the top, as far and as many as the core takes."""
    below: defaultdict[str, list[str]] = defaultdict(list)
    for name, one in known.items():
        below[one.spec.parent_queue].append(name)
    reached: set[str] = set()
    level = below[""]
    for _ in range(MAX_QUEUE_DEPTH):
        level = level[: MAX_QUEUES - len(reached)]
        reached.update(level)
        level = [child for name in level for child in below[name]]
    return reached


def _looped(parents: Mapping[str, str]) -> set[str]:
    """Of queues that no root leads to, those that are above themselves: what remains when the ends are cut off."""
    above = Counter(parents.values())
    ends = [name for name in parents if not above[name]]
    looped = set(parents)
    while ends:
        name = ends.pop()
        looped.discard(name)
        parent = parents[name]
        above[parent] -= 1
        if parent in parents and not above[parent]:
            ends.append(parent)
    return looped


def _left_out(name: str, parent: str, known: Mapping[str, KaiQueue], reached: set[str], looped: set[str]) -> QueueNote:
    if parent and parent not in known:
        reason, why = "ParentMissing", f'its parent "{parent}" does not exist; create it, or name another parentQueue'
    elif name in looped:
        reason, why = "ParentLoop", f'its parent "{parent}" lies below it; give one of them another parent'
    elif parent and parent not in reached:
        reason, why = "ParentLeftOut", f'its parent "{parent}" is left out itself; see the events of that Queue'
    elif len(reached) == MAX_QUEUES:
        reason, why = "TooManyQueues", f"there are more than {MAX_QUEUES}; remove some"
    else:
        reason, why = "TooDeep", f"it lies deeper than {MAX_QUEUE_DEPTH} levels; take out a level above it"
    return QueueNote(name, reason, f"this queue takes no part: {why}")


def _children(queues: Sequence[Queue]) -> dict[str, tuple[str, ...]]:
    children: defaultdict[str, list[str]] = defaultdict(list)
    for queue in queues:
        if queue.parent is not None:
            children[queue.parent].append(queue.name)
    return {parent: tuple(names) for parent, names in children.items()}


# ------------------------------------------------------------------------------------------------------------ one queue


def _queue(one: KaiQueue, order: int) -> tuple[Queue, tuple[Note, ...]]:
    spec = one.spec
    shares, told = _shares(spec.resources)
    preempt, bad_preempt = _runtime("preemptMinRuntime", spec.preempt_min_runtime)
    reclaim, bad_reclaim = _runtime("reclaimMinRuntime", spec.reclaim_min_runtime)
    queue = Queue(
        name=one.metadata.name,
        parent=spec.parent_queue or None,
        shares=shares,
        priority=DEFAULT_QUEUE_PRIORITY if spec.priority is None else spec.priority,
        order=order,
        preempt_min_runtime_ms=preempt,
        reclaim_min_runtime_ms=reclaim,
    )
    return queue, (*told, *bad_preempt, *bad_reclaim, *_namespace_notes(one))


def _shares(resources: QueueResources | None) -> tuple[tuple[QueueShare, ...], tuple[Note, ...]]:
    if resources is None:
        nothing = tuple(QueueShare(resource, quota=0, limit=0, weight_milli=0) for resource in UNIT)
        message = (
            "spec.resources is missing, so every quota and limit is 0 and nothing starts in this queue; "
            "write quota, limit and overQuotaWeight for gpu, cpu and memory (-1: unlimited)"
        )
        return nothing, (Note("ResourcesUnset", message),)
    sections = {GPU: resources.gpu, CPU: resources.cpu, MEMORY: resources.memory}
    read = [_share(resource, section or QueueResource()) for resource, section in sections.items()]
    notes = [note for _, told in read for note in told]
    return tuple(share for share, _ in read), (*_unset(sections), *notes)


def _share(resource: str, section: QueueResource) -> tuple[QueueShare, list[Note]]:
    notes: list[Note] = []
    quota, told = _amount(resource, "quota", section.quota)
    notes += told
    limit, told = _amount(resource, "limit", section.limit)
    notes += told
    weight, told = _weight(resource, section.over_quota_weight)
    notes += told
    if quota is not None and limit is not None and quota > limit:
        if section.limit is not None:
            asked, most = amount_text(resource, quota), amount_text(resource, limit)
            message = f"{resource}: the quota of {asked} is more than the limit of {most}; only the limit can be had"
            notes.append(Note("QuotaAboveLimit", message))
        quota = limit
    return QueueShare(resource, quota, limit, weight), notes


def _amount(resource: str, field: str, value: float | None) -> tuple[int | None, list[Note]]:
    """In our unit; None: unlimited."""
    if value is None:
        return 0, []
    where = f"{resource}.{field}"
    if value < 0:
        message = f"{where} is {value:g}; only -1 means unlimited, and it is read as -1"
        return None, [] if value == -1 else [Note("NegativeAmount", message)]
    exact = Decimal(repr(value)) * UNIT[resource]
    amount = int(exact.to_integral_value(ROUND_HALF_EVEN)) if exact <= MAX_AMOUNT else None
    if amount is None:
        return None, [Note("AbsurdAmount", f"{where} is {value:g}, more than any cluster has; it is read as unlimited")]
    if amount != exact:
        message = f"{where} is {value!r}, finer than is counted; it is read as {amount_text(resource, amount)}"
        return amount, [Note("RoundedAmount", message)]
    return amount, []


def _weight(resource: str, value: float | None) -> tuple[int, list[Note]]:
    if value is None:
        return 0, []
    exact = Decimal(repr(value)) * MILLI
    if 0 <= exact <= MAX_AMOUNT and exact == int(exact):
        return int(exact), []
    weight = max(0, min(MAX_AMOUNT, int(exact.to_integral_value(ROUND_HALF_EVEN))))
    message = f"{resource}.overQuotaWeight is {value!r}; it is read as {Decimal(weight) / MILLI:f}"
    return weight, [Note("RoundedAmount", message)]


_MEANING: Final = {
    "limit": (
        "LimitUnset",
        "nothing of this queue that asks for it starts; write -1 for no limit",
    ),
    "quota": (
        "QuotaUnset",
        "nothing of it is owed to this queue; write what is owed, 0 to say so, or -1 for all it asks for",
    ),
    "overQuotaWeight": (
        "WeightUnset",
        "this queue is given no part of what others leave over; write 1 for an equal part",
    ),
}


def _unset(sections: Mapping[str, QueueResource | None]) -> Iterator[Note]:
    """One note for each field that somebody left out, with every resource it is left out of."""
    for field, (reason, meaning) in _MEANING.items():
        without = [name for name, section in sections.items() if _is_unset(section, field)]
        if without:
            fields = ", ".join(f"{name}.{field}" for name in without)
            yield Note(reason, f"{fields}: not set, which counts as 0; {meaning}")


def _is_unset(section: QueueResource | None, field: str) -> bool:
    if section is None:
        return True
    values = {"quota": section.quota, "limit": section.limit, "overQuotaWeight": section.over_quota_weight}
    return values[field] is None


def _runtime(field: str, text: str | None) -> tuple[int | None, tuple[Note, ...]]:
    if not text:
        return None, ()
    value = duration_ms(text)
    if value is None or value < 0:
        message = f'{field} "{text}" is no duration and is not applied; write it as 90s, 10m or 1h30m'
        return None, (Note("BadDuration", message),)
    return value, ()


def _namespaces(one: KaiQueue) -> frozenset[str] | None:
    text = (one.metadata.annotations or {}).get(NAMESPACES)
    return None if text is None else frozenset(filter(None, (name.strip() for name in text.split(","))))


def _namespace_notes(one: KaiQueue) -> Iterator[Note]:
    if _namespaces(one) == frozenset():
        message = f"{NAMESPACES} is empty, so no namespace may use this queue; list some, or remove the annotation"
        yield Note("NoNamespaces", message)


# --------------------------------------------------------------------------------------------------- parents and quotas


def _settled(queues: list[Queue]) -> tuple[tuple[Queue, ...], tuple[QueueNote, ...]]:
    """As KAI does, let queues owe those below them more than they are owed themselves; but say so."""
    below: defaultdict[str | None, list[Queue]] = defaultdict(list)
    for queue in queues:
        below[queue.parent].append(queue)
    settled: list[Queue] = []
    notes: list[QueueNote] = []
    for queue in queues:
        told = tuple(_owed_too_much(queue, below[queue.name]))
        notes += told
        settled.append(msgspec.structs.replace(queue, overcommit=True) if told else queue)
    return tuple(settled), tuple(notes)


def _owed_too_much(parent: Queue, children: list[Queue]) -> Iterator[QueueNote]:
    for share in parent.shares:
        owed = [(child.name, child.share(share.resource).quota or 0) for child in children]
        total = sum(amount for _, amount in owed)
        if share.quota is None or total <= share.quota:
            continue
        asking = [f"{name} {amount_text(share.resource, amount)}" for name, amount in owed if amount]
        more = f" and {len(asking) - MAX_SHOWN} more" if len(asking) > MAX_SHOWN else ""
        message = (
            f"{share.resource}: its children are owed {amount_text(share.resource, total)} "
            f"({', '.join(asking[:MAX_SHOWN])}{more}), itself only {amount_text(share.resource, share.quota)}; "
            "not all of them get what they are owed while all of them ask"
        )
        yield QueueNote(parent.name, "ChildrenOwedMore", message)


# --------------------------------------------------------------------------------------------------- which queue it is


class Labelled(NamedTuple):
    """Something that may carry labels: an owner or a pod, and how to call it."""

    called: str
    labels: Mapping[str, str]


class NamedQueue(NamedTuple):
    queue: str
    found: str
    """How it was found, for people."""


def queue_named(places: Sequence[Labelled], pod_labels: Mapping[str, str], key: str = QUEUE_LABEL) -> NamedQueue:
    """The queue a workload names, looked for on its owner first and on the pod last."""
    for label in dict.fromkeys((key, FORMER_QUEUE_LABEL)):
        for place in places:
            if place.labels.get(label):
                return NamedQueue(place.labels[label], f"label {label} of {place.called}")
    for place in places:
        project = place.labels.get(PROJECT_LABEL)
        if project:
            pool = pod_labels.get(NODE_POOL_LABEL)
            return NamedQueue(f"{project}-{pool}" if pool else project, f"label {PROJECT_LABEL} of {place.called}")
    return NamedQueue(DEFAULT_QUEUE, f"no label {key}: the default")
