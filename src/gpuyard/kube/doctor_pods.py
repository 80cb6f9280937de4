"""Pods that wait, asked what people ask first: namespace, queue, scheduler, quota, nodes, and for gangs all of it.

Place in the flow: Cluster ─**doctor_pods**─▶ findings about one job each. Pure. Invariants: what is judged is what the
next plan of the scheduler says, so that a pod whose every check is well does start; each check gives its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from functools import cached_property
from typing import Final

from gpuyard.errors import GpuyardError
from gpuyard.files.suggest import did_you_mean
from gpuyard.kube.ask import Cluster
from gpuyard.kube.why import find, holds_of, other_scheduler
from gpuyard.model.explanation import QueueStanding, Standing
from gpuyard.model.findings import FAIL, OK, WARN, Finding
from gpuyard.model.jobs import Job, TaskState
from gpuyard.model.quantities import GPU, MILLI
from gpuyard.model.reasons import CLUSTER, NODES, TASKS, Reason, Token
from gpuyard.model.text import amount_text, queue_text, rank_text, reason_text
from gpuyard.scheduler.explain import JobStand, rank_of, standings, stands_on
from gpuyard.worlds.kubernetes.grouping import PRIORITY_CLASS, Grouping
from gpuyard.worlds.kubernetes.objects import Pod
from gpuyard.worlds.kubernetes.podrecord import OVER, PodRecord
from gpuyard.worlds.kubernetes.priorities import BUILT_IN
from gpuyard.worlds.kubernetes.queues import DEFAULT_QUEUE, FORMER_QUEUE_LABEL
from gpuyard.worlds.kubernetes.requests import asked_by

MAX_JOBS: Final = 20
MAX_CHILDREN_NAMED: Final = 5
NEARLY: Final = 0.85
"""How much alike a label must be to one that is read, of 1, to have been meant as that."""
UNNAMED: Final = "no label"
"""How it is said that nothing names the queue of a job."""
QUOTA: Final = frozenset({Token.OVER_LIMIT, Token.OVER_QUOTA})
ROOM: Final = frozenset(
    {Token.NO_MATCHING_NODE, Token.TOO_LARGE, Token.NOT_ENOUGH, Token.FRAGMENTED, Token.NO_DOMAIN, Token.RESERVED}
)
SOON: Final = frozenset({Standing.STARTING, Standing.PROMISED})


def pod_findings(cluster: Cluster, word: str = "") -> Iterator[Finding]:
    """About the job of the pod that is named; else about every job of the namespace that waits."""
    if word:
        yield from _about_one(cluster, word)
        return
    if cluster.namespace not in cluster.picture.surroundings.namespaces:
        fix = f"kubectl create namespace {cluster.namespace}; or name another: -n NAMESPACE"
        yield Finding(FAIL, "namespace", f'there is no namespace "{cluster.namespace}"', fix)
        return
    jobs, others = _waiting_jobs(cluster), list(_waiting_elsewhere(cluster))
    if not jobs and not others:
        yield Finding(OK, "pods", f"no pod of namespace {cluster.namespace} waits for a scheduler")
    for pod in others[:MAX_JOBS]:
        yield _not_ours(cluster, pod)
    doctor = _Doctor(cluster, jobs[:MAX_JOBS])
    for job in jobs[:MAX_JOBS]:
        yield from doctor.findings(job)
    if len(jobs) > MAX_JOBS:
        yield Finding(WARN, "pods", f"{len(jobs) - MAX_JOBS} more jobs wait here", "look at one: --pod NAME")


def _about_one(cluster: Cluster, word: str) -> Iterator[Finding]:
    try:
        pod, job = find(cluster, word)
    except GpuyardError as error:
        first, _, fix = str(error).partition("\n")
        yield Finding(FAIL, "pods", first, fix.strip())
        return
    if pod is not None and pod.spec.scheduler_name not in cluster.settings.schedulers:
        yield _not_ours(cluster, pod)
        return
    records = cluster.picture.groups.get(job, {}).values()
    if not any(_waits(record) for record in records):
        states = ", ".join(sorted({f"{record.pod.status.phase} on {record.node}" for record in records}))
        yield Finding(OK, "pods", f"it has its place: {states}", subject=job)
        return
    yield from _Doctor(cluster, [job]).findings(job)


def _waiting_jobs(cluster: Cluster) -> list[str]:
    """Of the namespace, oldest first."""
    since: dict[str, int] = {}
    for record in cluster.picture.pods.values():
        if record.pod.metadata.namespace == cluster.namespace and _waits(record):
            since[record.job] = min(since.get(record.job, record.created_ms), record.created_ms)
    return sorted(since, key=lambda job: (since[job], job))


def _waits(record: PodRecord) -> bool:
    return record.ours and not record.node and not record.over and not record.leaving


def _waiting_elsewhere(cluster: Cluster) -> Iterator[Pod]:
    """Pods of other schedulers that look as if they were meant for ours."""
    labels = (cluster.settings.queue_label, FORMER_QUEUE_LABEL)
    for key, pod in sorted(cluster.pods.items()):
        if pod.metadata.namespace != cluster.namespace or key in cluster.picture.pods:
            continue
        waits = not pod.spec.node_name and pod.status.phase not in OVER and not pod.metadata.deletion_timestamp
        meant = any(label in (pod.metadata.labels or {}) for label in labels)
        if waits and (meant or asks_for_gpus(pod)):
            yield pod


def asks_for_gpus(pod: Pod) -> bool:
    try:
        asked = asked_by(pod)
    except GpuyardError:
        return False
    return bool(asked.devices or asked.mig)


def _not_ours(cluster: Cluster, pod: Pod) -> Finding:
    hold = other_scheduler(cluster, pod)
    verdict = FAIL if not pod.spec.node_name and pod.status.phase not in OVER else OK
    fix = hold.fix if verdict == FAIL else ""
    return Finding(verdict, "scheduler", hold.text, fix, subject=f"{pod.metadata.namespace}/pod/{pod.metadata.name}")


# ------------------------------------------------------------------------------------------------------- the questions


class _Doctor:
    """Several jobs of one cluster, judged by one plan."""

    def __init__(self, cluster: Cluster, jobs: list[str]) -> None:
        self._cluster = cluster
        known = [job for job in jobs if job in cluster.ledger.jobs]
        self._stands = stands_on(cluster.ledger, known, cluster.policy) if known else {}

    @cached_property
    def _queues(self) -> dict[str, QueueStanding]:
        return {one.name: one for one in standings(self._cluster.ledger, self._cluster.policy)}

    def findings(self, id: str) -> Iterator[Finding]:
        for finding in self._checks(id):
            yield finding._replace(subject=id)

    def _checks(self, id: str) -> Iterator[Finding]:
        records = list(self._cluster.picture.groups[id].values())
        form = next((record.grouping for record in records if record.grouping is not None), None)
        job, stand = self._cluster.ledger.jobs.get(id), self._stands.get(id)
        if form is None or job is None or stand is None:
            yield Finding(WARN, "pods", "its owners are still being read", "ask again in a moment")
            return
        yield from self._held(id)
        yield from self._namespace(id, form)
        yield from self._queue(form)
        if form.queue_from.startswith(UNNAMED):
            yield from self._meant_as_queue(records)
        yield self._scheduler(records)
        yield from self._priority(records)
        yield from self._quota(form, job, stand)
        yield from self._room(job, stand)
        yield from self._gang(form, job, stand)
        yield from self._turn(id, stand)

    def _held(self, id: str) -> Iterator[Finding]:
        for hold in holds_of(self._cluster, id):
            if hold.word != "QueueClosed":
                yield Finding(FAIL, "held back", f"{', '.join(hold.pods[:MAX_CHILDREN_NAMED])}: {hold.text}", hold.fix)
        for record in self._cluster.picture.groups[id].values():
            said = next((one for one in record.pod.status.conditions or () if one.reason == "BackOff"), None)
            if said is not None and _waits(record):
                yield Finding(WARN, "held back", f"{record.pod.metadata.name}: {said.message}")

    def _namespace(self, id: str, form: Grouping) -> Iterator[Finding]:
        """Question 1: it exists, and may use the queue."""
        namespace, closed = id.partition("/")[0], self._cluster.world.closed.get(id)
        if closed is not None:
            fix = "name another queue, or add the namespace to annotation gpuyard.io/namespaces of the Queue"
            yield Finding(FAIL, "namespace", closed.text, fix)
            return
        picture = self._cluster.picture
        whom = "lists it" if form.queue in picture.tree.namespaces else "is open to every namespace"
        open_to = f', and queue "{form.queue}" {whom}' if form.queue in picture.queues else ""
        yield Finding(OK, "namespace", f'"{namespace}" exists{open_to}')
        if namespace != form.queue and namespace in picture.tree.leaves:
            what = f'there is a queue "{namespace}", as the namespace is called, and it is in queue "{form.queue}"'
            yield Finding(WARN, "namespace", what, "if that is not meant, change the label that names its queue")

    def _queue(self, form: Grouping) -> Iterator[Finding]:
        """Question 2: it is named, exists, may hold pods, and stands in a tree."""
        picture, name = self._cluster.picture, form.queue
        tree = picture.tree
        if name not in picture.queues:
            what = f'there is no queue "{name}" ({form.queue_from}){did_you_mean(name, tree.leaves)}'
            yield Finding(FAIL, "queue", what, _label_it(self._cluster.settings.queue_label))
            return
        notes = [note for note in tree.notes if note.queue == name]
        if name not in tree.leaves and name not in tree.children:
            yield Finding(
                FAIL, "queue", f'"{name}" ({form.queue_from}): {notes[0].message if notes else "takes no part"}'
            )
            return
        if name in tree.children:
            below = ", ".join(tree.children[name][:MAX_CHILDREN_NAMED])
            what = f'"{name}" ({form.queue_from}) has queues below it and holds no pods itself'
            yield Finding(FAIL, "queue", what, f"name one of those: {below}")
            return
        above = " below ".join(_above(tree.parents, name))
        yield Finding(OK, "queue", f'"{name}" ({form.queue_from}){f", below {above}" if above else ""}')
        if name == DEFAULT_QUEUE and form.queue_from.startswith(UNNAMED):
            yield Finding(WARN, "queue", "it names no queue", _label_it(self._cluster.settings.queue_label))
        yield from (Finding(WARN, "queue", f'"{note.queue}": {note.message}') for note in notes)

    def _meant_as_queue(self, records: list[PodRecord]) -> Iterator[Finding]:
        """Of pods that name no queue: what looks as if it was to name one."""
        known = (self._cluster.settings.queue_label, FORMER_QUEUE_LABEL)
        said: dict[str, str] = {}
        for record in records:
            metadata = record.pod.metadata
            for key in known:
                if key in (metadata.annotations or {}):
                    said[f"{key} is an annotation of it, and is read as a label only"] = f"make {key} a label"
            for key in metadata.labels or {}:
                if key.rpartition("/")[2] == "queue" or get_close_matches(key, known, n=1, cutoff=NEARLY):
                    said[f'its label "{key}" is not one that names a queue'] = f"call it {' or '.join(known)}"
        yield from (Finding(WARN, "queue", what, fix) for what, fix in said.items())

    def _scheduler(self, records: list[PodRecord]) -> Finding:
        """Question 3."""
        names = sorted({record.pod.spec.scheduler_name for record in records})
        return Finding(OK, "scheduler", f"schedulerName is {' and '.join(names)}, which this scheduler takes")

    def _priority(self, records: list[PodRecord]) -> Iterator[Finding]:
        named = {(record.pod.metadata.labels or {}).get(PRIORITY_CLASS, "") for record in records}
        for name in sorted(named - {"", *BUILT_IN, *self._cluster.picture.priority_classes}):
            what = f'label {PRIORITY_CLASS} names the class "{name}", which does not exist; another one is taken'
            yield Finding(WARN, "priority", what, f"there are: {', '.join(sorted({*BUILT_IN}))}")

    def _quota(self, form: Grouping, job: Job, stand: JobStand) -> Iterator[Finding]:
        """Question 4: what it asks for against what its queues may still take."""
        over = [reason for reason in stand.blockers if reason.token in QUOTA]
        yield from (Finding(FAIL, "quota", reason_text(reason), self._numbers(reason)) for reason in over)
        if not over and form.queue in self._queues:
            asks = f"asks for {amount_text(GPU, _asked(job))}"
            yield Finding(OK, "quota", f"{asks}; queue {form.queue} {queue_text(self._queues[form.queue])}")

    def _numbers(self, reason: Reason) -> str:
        standing = self._queues.get(reason.subject)
        return f"queue {standing.name} {queue_text(standing)}" if standing and reason.resource == GPU else ""

    def _room(self, job: Job, stand: JobStand) -> Iterator[Finding]:
        """Question 5: whether nodes have room for it."""
        short = [reason for reason in stand.blockers if reason.token in ROOM and not _of_gang(reason, job)]
        yield from (Finding(FAIL, "nodes", reason_text(reason), self._free()) for reason in short)
        if short:
            return
        if stand.standing in SOON:
            yield Finding(OK, "nodes", f"there is room for it; {self._free()}")
        elif not stand.blockers and all(task.state is TaskState.GATED for task in job.tasks):
            yield Finding(OK, "nodes", f"not looked for while it is held back; {self._free()}")
        else:
            yield Finding(OK, "nodes", f"nothing about nodes is in its way; {self._free()}")

    def _free(self) -> str:
        whole = [state.gpu_milli // MILLI for state in self._cluster.ledger.nodes.now]
        return f"free now: {amount_text(GPU, sum(whole) * MILLI)}, at most {max(whole, default=0)} on one node"

    def _gang(self, form: Grouping, job: Job, stand: JobStand) -> Iterator[Finding]:
        """Question 6: whether all of it is there, and fits at once."""
        least = job.group.fewest_tasks
        if least <= 1:
            return
        lacking = [reason for reason in stand.blockers if _of_gang(reason, job)]
        incomplete = [reason for reason in lacking if reason.token is Token.GANG_INCOMPLETE]
        if incomplete:
            yield from (Finding(FAIL, "gang", reason_text(reason)) for reason in incomplete)
            return
        at_once = f"{least} pods start together, {amount_text(GPU, _asked(job, least))} at once"
        there = f"{at_once}; {len(job.tasks)}{f' of {form.wanted}' if form.wanted else ''} are there"
        crowded = bool(lacking) or any(reason.token in ROOM for reason in stand.blockers)
        # What is missing in all says more than how many pods would find a place.
        told = sorted(lacking, key=lambda reason: reason.resource in (TASKS, NODES))[:1]
        what = "; ".join([there, *map(reason_text, told)])
        yield Finding(FAIL if crowded else OK, "gang", what, self._free() if crowded else "")

    def _turn(self, id: str, stand: JobStand) -> Iterator[Finding]:
        others = [one for one in stand.blockers if one.token not in QUOTA | ROOM | {Token.GANG_INCOMPLETE}]
        known = Token.QUEUE_MISSING
        yield from (Finding(WARN, "turn", reason_text(reason)) for reason in others if reason.token is not known)
        rank = rank_of(self._cluster.ledger, id)
        if stand.standing in SOON:
            yield Finding(OK, "turn", "the next plan gives it a place")
        elif rank is not None:
            yield Finding(OK, "turn", rank_text(rank))


def _label_it(label: str) -> str:
    return f"label the workload (and its pod template) {label}: QUEUE; there are: kubectl get queues"


def _above(parents: dict[str, str], name: str) -> Iterator[str]:
    while name in parents:
        name = parents[name]
        yield name


def _of_gang(reason: Reason, job: Job) -> bool:
    """Whether it is about all of a gang at once; each of its pods might have a place."""
    if reason.token is Token.GANG_INCOMPLETE or reason.resource in (TASKS, NODES):
        return True
    in_all = reason.token is Token.NOT_ENOUGH or (reason.token is Token.TOO_LARGE and reason.subject == CLUSTER)
    return in_all and job.group.fewest_tasks > 1


def _asked(job: Job, least: int = 0) -> int:
    """GPUs of the tasks that wait; of the first `least` of them where that is given. In thousandths."""
    waiting = [task.request for task in job.tasks if task.state in (TaskState.PENDING, TaskState.GATED)]
    return sum(request.devices * request.gpu_milli for request in waiting[: least or None])
