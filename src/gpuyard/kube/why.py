"""Why a pod runs or waits: all the core says of its job, and all the world itself holds against it.

Place in the flow: a word and a Cluster ─**why**─▶ PodAnswer ─▶ cli. Pure. Invariants: whoever may not be offered to
the scheduler says why, before anything the core says of the others; a pod of another scheduler is never called ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from gpuyard.errors import InputError, NotFoundError
from gpuyard.files.suggest import did_you_mean
from gpuyard.kube.ask import Cluster
from gpuyard.kube.leading import leads
from gpuyard.kubeapi.moments import ms_of, text_of
from gpuyard.model.explanation import EXIT_NEVER, EXIT_RUNS, EXIT_WAITS, Explanation, Standing, exit_code
from gpuyard.model.text import standing_text
from gpuyard.scheduler.explain import explain_on
from gpuyard.worlds.kubernetes.grouping import Grouping
from gpuyard.worlds.kubernetes.objects import Condition, Pod
from gpuyard.worlds.kubernetes.podrecord import OVER, PodRecord
from gpuyard.worlds.kubernetes.settings import KAI_SCHEDULER, QUEUE_LABEL

MAX_NAMED: Final = 10
GATED: Final = "Gated"
OTHER: Final = "OtherScheduler"
NEVER: Final = frozenset({"GpuSharing", "ResourceClaims", "NotUnderstood", "QueueClosed"})
"""Words for what no waiting changes."""

FIXES: Final = {
    GATED: "whoever set a gate takes it off; to see who: kubectl describe pod",
    OTHER: "set spec.schedulerName (of the pod template) to one of ours, and make the pod anew",
    "GpuSharing": "ask for whole GPUs (nvidia.com/gpu), or for a MIG slice (nvidia.com/mig-...)",
    "ResourceClaims": "ask for GPUs as a resource (nvidia.com/gpu)",
    "NotUnderstood": "correct it, and make the pod anew",
    "QueueClosed": "name another queue, or add the namespace to annotation gpuyard.io/namespaces of the Queue",
    "VolumeNotReady": "see it: kubectl get pvc,pv,storageclass",
    "NotReady": "make what is missing; the pod is taken up at once",
}


class Hold(msgspec.Struct, frozen=True):
    """Why pods are not offered to the scheduler: a stable word, a sentence, and what to do."""

    word: str
    text: str
    pods: tuple[str, ...] = ()
    fix: str = ""
    never: bool = False


class PodState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One pod of the job."""

    name: str
    phase: str
    node: str = ""
    gpus: tuple[int, ...] = ()
    """Which of its node's it has, where the node tells."""


class Said(msgspec.Struct, frozen=True):
    """What the scheduler has written into the pod's condition PodScheduled."""

    word: str
    text: str
    at: str


class PodAnswer(msgspec.Struct, frozen=True):
    """Everything there is to say about a pod and the job it is part of."""

    job: str
    """namespace/kind/name of what groups the pods."""
    standing: str
    """Where it stands, as the end of a sentence that begins with its name."""
    exit_code: int
    """0 runs or can run, 10 waits, 11 never."""
    at: str
    pod: str = ""
    """The pod that was asked about, as namespace/name; empty: the job was."""
    explanation: Explanation | None = None
    """None where the scheduler has no part in it."""
    holds: tuple[Hold, ...] = ()
    facts: tuple[str, ...] = ()
    """How it is read: queue, gang, priority."""
    pods: tuple[PodState, ...] = ()
    said: Said | None = None
    notes: tuple[str, ...] = ()
    """What may not be as somebody meant it, and what the answer takes for granted."""


def why(cluster: Cluster, word: str) -> PodAnswer:
    """Say everything about the pod or job that a word names: pod, namespace/pod, kind/name, namespace/kind/name."""
    pod, job = find(cluster, word)
    if pod is not None and not _is_ours(cluster, pod):
        return _of_another(cluster, pod)
    return _Case(cluster, job, pod).answer()


# ------------------------------------------------------------------------------------------------------- what is meant


def find(cluster: Cluster, word: str) -> tuple[Pod | None, str]:
    """The pod, if it is one, and the id of its job."""
    namespace = cluster.namespace
    parts = word.strip("/").split("/")
    for key in _keys(parts, namespace):
        if key in cluster.pods:
            record = cluster.picture.pods.get(key)
            return cluster.pods[key], record.job if record else f"{namespace}/pod/{parts[-1]}"
    jobs = _jobs_called(cluster, parts)
    if len(jobs) > 1:
        raise InputError(f'"{word}" may be {" or ".join(jobs[:MAX_NAMED])}', fix="name one of these")
    if jobs:
        return None, jobs[0]
    raise _unknown(cluster, word)


def _keys(parts: list[str], namespace: str) -> Iterator[str]:
    """How pods may be meant by it, the likeliest first."""
    if len(parts) == 1:
        yield f"{namespace}/{parts[0]}"
    elif len(parts) == 2:
        yield "/".join(parts)
        if parts[0] in ("pod", "pods", "po"):
            yield f"{namespace}/{parts[1]}"
    elif len(parts) == 3 and parts[1] == "pod":
        yield f"{parts[0]}/{parts[2]}"


def _jobs_called(cluster: Cluster, parts: list[str]) -> list[str]:
    known = cluster.picture.groups
    if len(parts) == 3:
        return ["/".join(parts)] if "/".join(parts) in known else []
    if len(parts) == 2:
        kind = parts[0].lower().partition(".")[0]
        wanted = [(cluster.namespace, one, parts[1]) for one in (kind, kind.removesuffix("s"))]
        wanted.append((parts[0], "", parts[1]))
    else:
        wanted = [(cluster.namespace, "", parts[0])] if len(parts) == 1 else []
    return sorted(id for id in known if any(_is_called(id, *one) for one in wanted))


def _is_called(id: str, namespace: str, kind: str, name: str) -> bool:
    parts = id.split("/", 2)
    return parts[0] == namespace and kind in ("", parts[1]) and parts[2] == name


def _unknown(cluster: Cluster, word: str) -> NotFoundError:
    name = word.rpartition("/")[2]
    here = [key.partition("/")[2] for key in cluster.pods if key.startswith(f"{cluster.namespace}/")]
    jobs = [id.split("/", 2)[2] for id in cluster.picture.groups if id.startswith(f"{cluster.namespace}/")]
    elsewhere = sorted(key for key in cluster.pods if key.endswith(f"/{name}"))
    what = f'there is no pod or job "{word}" in namespace {cluster.namespace}{did_you_mean(name, [*here, *jobs])}'
    if elsewhere:
        return NotFoundError(what, fix=f"elsewhere there is: {', '.join(elsewhere[:MAX_NAMED])}")
    return NotFoundError(what, fix="another namespace: -n NAMESPACE, or name it as NAMESPACE/POD")


def _is_ours(cluster: Cluster, pod: Pod) -> bool:
    return pod.spec.scheduler_name in cluster.settings.schedulers


# --------------------------------------------------------------------------------------------- pods of other schedulers


UNNAMED_SCHEDULER: Final = "default-scheduler"


def other_scheduler(cluster: Cluster, pod: Pod) -> Hold:
    """Why a pod is not ours to place."""
    ours = " or ".join(cluster.settings.schedulers)
    name = pod.spec.scheduler_name
    # The default is what a pod has that names none: nobody has mistyped it.
    close = did_you_mean(name, cluster.settings.schedulers) if name != UNNAMED_SCHEDULER else ""
    text = f'its schedulerName is "{name}", and this scheduler places pods that say {ours}{close}'
    also = f", or start the scheduler with --also {KAI_SCHEDULER}" if name == KAI_SCHEDULER else ""
    return Hold(OTHER, text, (pod.metadata.name,), f"{FIXES[OTHER]}{also}")


def _of_another(cluster: Cluster, pod: Pod) -> PodAnswer:
    phase, node = pod.status.phase, pod.spec.node_name
    waits = not node and phase not in OVER
    if waits:
        standing = f"waits for the scheduler {pod.spec.scheduler_name}"
    else:
        standing = f"is over ({phase})" if phase in OVER else f"runs on {node}, where {pod.spec.scheduler_name} put it"
    labels = pod.metadata.labels or {}
    meant = [f"it has the label {QUEUE_LABEL}, which that scheduler does not read"] if QUEUE_LABEL in labels else []
    return PodAnswer(
        job=f"{pod.metadata.namespace}/pod/{pod.metadata.name}",
        standing=standing,
        exit_code=EXIT_WAITS if waits else EXIT_RUNS,
        at=text_of(cluster.now_ms),
        pod=f"{pod.metadata.namespace}/{pod.metadata.name}",
        holds=(other_scheduler(cluster, pod),) if waits else (),
        pods=(_state(pod),),
        notes=(*meant, *cluster.notes()) if waits else (),
    )


# ------------------------------------------------------------------------------------------------------------ our pods


class _Case:
    """One job of ours, and the pod that was asked about."""

    def __init__(self, cluster: Cluster, job: str, pod: Pod | None) -> None:
        self.cluster = cluster
        self.job = job
        self.asked = pod
        self.records = sorted(cluster.picture.groups.get(job, {}).values(), key=lambda record: record.key)

    def answer(self) -> PodAnswer:
        cluster = self.cluster
        holds = tuple(holds_of(cluster, self.job))
        explanation = self._explanation()
        return PodAnswer(
            job=self.job,
            standing=self._standing(explanation, holds),
            exit_code=self._exit_code(explanation, holds),
            at=text_of(cluster.now_ms),
            pod=f"{self.asked.metadata.namespace}/{self.asked.metadata.name}" if self.asked else "",
            explanation=explanation,
            holds=holds,
            facts=tuple(facts_of(self.records)),
            pods=tuple(_state(record.pod, self._gpus(record)) for record in self.records),
            said=self._said(),
            notes=tuple(self._notes()),
        )

    def _explanation(self) -> Explanation:
        ledger = self.cluster.ledger
        if self.job not in ledger.jobs:
            queue = next((record.grouping.queue for record in self.records if record.grouping), "")
            return Explanation(self.job, queue, Standing.FINISHED)
        return explain_on(ledger, self.job, self.cluster.policy)

    def _standing(self, explanation: Explanation, holds: tuple[Hold, ...]) -> str:
        if explanation.standing is not Standing.GATED or not holds:
            return standing_text(explanation)
        held = {name for hold in holds for name in hold.pods}
        if any(hold.never for hold in holds):
            return "is not offered to the scheduler, and waiting alone cannot help"
        return f"is not offered to the scheduler yet: {len(held)} of {_pods(len(self.records))} held back"

    def _exit_code(self, explanation: Explanation, holds: tuple[Hold, ...]) -> int:
        code = exit_code(explanation)
        mine = [hold for hold in holds if self.asked is None or self.asked.metadata.name in hold.pods]
        if explanation.standing is Standing.GATED or (self.asked is not None and mine):
            return EXIT_NEVER if any(hold.never for hold in mine or holds) else EXIT_WAITS
        if code == EXIT_RUNS and self._lacks_a_place() and explanation.blockers:
            return EXIT_WAITS
        return code

    def _lacks_a_place(self) -> bool:
        """The pod that was asked about waits, while others of its job run."""
        pod = self.asked
        return pod is not None and not pod.spec.node_name and pod.status.phase not in OVER

    def _gpus(self, record: PodRecord) -> tuple[int, ...]:
        job = self.cluster.ledger.jobs.get(self.job)
        tasks = job.tasks if job else ()
        name = record.pod.metadata.name
        return tuple(share.device for task in tasks if task.id == name for share in task.shares)

    def _said(self) -> Said | None:
        """The newest condition of those that have no place; also what only a running scheduler can know."""
        pods = [self.asked] if self.asked else [record.pod for record in self.records]
        found = [condition for pod in pods if not pod.spec.node_name for condition in _unscheduled(pod)]
        newest = max(found, key=lambda one: ms_of(one.last_transition_time), default=None)
        return Said(newest.reason, newest.message, newest.last_transition_time or "") if newest else None

    def _notes(self) -> Iterator[str]:
        groupings = {id(record.grouping): record.grouping for record in self.records if record.grouping}
        yield from dict.fromkeys(note.message for one in groupings.values() for note in one.notes)
        for queue in {one.queue for one in groupings.values()}:
            yield from queue_notes(self.cluster, queue)
        if not leads(self.cluster.lease, self.cluster.now_ms):
            yield "no scheduler leads this cluster now: this is what one would do; see gpuyard doctor"
        yield from self.cluster.notes()


def holds_of(cluster: Cluster, job: str) -> Iterator[Hold]:
    """Why pods of a job are not offered to the scheduler; the same of several pods once."""
    found: dict[tuple[str, str], list[str]] = {}
    records = cluster.picture.groups.get(job, {}).values()
    for record in sorted(records, key=lambda record: record.key):
        if record.ours and not record.node and not record.over:
            for held in _held(cluster, job, record):
                found.setdefault(held, []).append(record.pod.metadata.name)
    for (word, text), names in found.items():
        yield Hold(word, text, tuple(names), FIXES.get(word, ""), never=word in NEVER)


def _held(cluster: Cluster, job: str, record: PodRecord) -> Iterator[tuple[str, str]]:
    if record.gated:
        gates = ", ".join(gate.name for gate in record.pod.spec.scheduling_gates or ())
        yield GATED, f"has scheduling gates: {gates}"
    if job in cluster.world.closed:
        word, text = cluster.world.closed[job]
        yield word, text
    if record.held is not None:
        yield record.held.word, record.held.text
    if record.grouping is not None and record.grouping.waits:
        yield "NotReady", record.grouping.waits


def queue_notes(cluster: Cluster, name: str) -> Iterator[str]:
    """Why a queue that is named may not be what somebody meant."""
    tree = cluster.picture.tree
    if name not in cluster.picture.queues:
        meant = did_you_mean(name, tree.leaves)
        if meant:
            yield f'there is no queue "{name}"{meant}'
    elif name in tree.children:
        below = ", ".join(tree.children[name][:MAX_NAMED])
        yield f'queue "{name}" has queues below it and holds no pods itself; name one of those: {below}'
    yield from (f'queue "{note.queue}": {note.message}' for note in tree.notes if note.queue == name)


def facts_of(records: Iterable[PodRecord]) -> Iterator[str]:
    """How a job is read off its pods and their owners."""
    known = [record.grouping for record in records if record.grouping is not None]
    if not known:
        return
    first = known[0]
    yield f'queue "{first.queue}" ({first.queue_from})'
    yield _together(known)
    named = f" (class {first.priority_class})" if first.priority_class else ""
    yield f"priority {first.priority}{named}, {'preemptible' if first.preemptible else 'never preempted'}"
    stuck = next((one.why_not for one in known if one.why_not), "")
    if stuck:
        yield f"it is never moved: {stuck}"


def _together(known: list[Grouping]) -> str:
    least = max(one.group.fewest_tasks for one in known)
    wanted = known[0].wanted
    there = f"{len(known)} of {wanted} are there" if wanted and wanted > len(known) else f"{_pods(len(known))} there"
    if least <= 1:
        return f"each pod starts by itself; {there}"
    return f"{least} pods start together or not at all; {there}"


def _unscheduled(pod: Pod) -> Iterator[Condition]:
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False" and condition.message:
            yield condition


def _state(pod: Pod, gpus: tuple[int, ...] = ()) -> PodState:
    phase = "Terminating" if pod.metadata.deletion_timestamp else pod.status.phase
    return PodState(pod.metadata.name, phase, pod.spec.node_name, gpus)


def _pods(count: int) -> str:
    return "1 pod is" if count == 1 else f"{count} pods are"
