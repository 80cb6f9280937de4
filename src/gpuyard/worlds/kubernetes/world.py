"""A Kubernetes cluster as a world: what its objects change for the scheduler, and plans as writes to the API server.

Place in the flow: picture ─changes─▶ **world** ─▶ loop ─actions─▶ **world** ─errands─▶ writer ─how it went─▶ **world**.
The API server is the store: binds are in the pods, promises in their status, places of moved pods in one ConfigMap.
Invariants: nobody is told to go before it is noted for whom; what was decided counts as done until it is seen or fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from gpuyard.errors import NotRecordedError
from gpuyard.model.jobs import Job
from gpuyard.model.nodes import Node
from gpuyard.model.plan import Action, Bind, Evict, Move, Promise, Resize
from gpuyard.model.queues import AffinityScope
from gpuyard.model.reasons import Reason
from gpuyard.model.snapshot import (
    Change,
    JobGone,
    JobSeen,
    MovesCounted,
    NodeGone,
    NodeSeen,
    QueuesSet,
    Snapshot,
    TimePassed,
)
from gpuyard.model.text import reason_text
from gpuyard.worlds.kubernetes.alarms import Alarms
from gpuyard.worlds.kubernetes.intents import (
    PLACE_MS,
    PROTECTED_MS,
    Backoff,
    Binding,
    Eviction,
    Intents,
    Place,
    form_of,
)
from gpuyard.worlds.kubernetes.jobs import HEIR, STUCK_MS, JobReader, backoff_of, heirs_of, kin_of
from gpuyard.worlds.kubernetes.kept import KeptPlaces
from gpuyard.worlds.kubernetes.nodes import HOSTNAME, node_of
from gpuyard.worlds.kubernetes.notes import Note
from gpuyard.worlds.kubernetes.picture import Picture
from gpuyard.worlds.kubernetes.podrecord import Held, PodRecord
from gpuyard.worlds.kubernetes.staleness import has_lost_a_part, most_together
from gpuyard.worlds.kubernetes.topologies import read_topologies
from gpuyard.worlds.kubernetes.volumes import MustWait
from gpuyard.worlds.kubernetes.writes import BindPod, Errand, EvictPod, NominateNode, PodName, SavePlaces

REJECTIONS: Final = frozenset({"UnexpectedAdmissionError", "TopologyAffinityError", "NodeAffinity", "NodePorts"})
"""A kubelet's words for a pod it was given and did not take; where it has too little of something, OutOf that."""
SAY_AGAIN_MS: Final = 5_000
LOSS: Final = "; nobody makes it anew, so that its work is lost"


class Kubernetes:
    """The port of the loop on a picture."""

    def __init__(self, picture: Picture, intents: Intents, now_ms: Callable[[], int]) -> None:
        self.picture = picture
        self.intents = intents
        self.now_ms = now_ms
        self.errands: deque[Errand] = deque()
        self.held_pods: dict[str, PodRecord] = {}
        """Pods that are not offered to the scheduler, by uid."""
        self.closed: dict[str, Held] = {}
        """Jobs that may not use the queue they name, and why."""
        self._kept = KeptPlaces(picture, intents, self.errands)
        self._reader = JobReader(intents, picture.devices, picture.pods)
        self._known: set[str] = set()
        self._read: dict[str, Job] = {}
        """Jobs as they were last read."""
        self.broken: dict[str, Exception] = {}
        """Nodes and jobs whose objects raise when they are read, and what; such a job stays as it was last read."""
        self._alarms = Alarms()
        self._held_back: dict[str, Backoff] = {}
        """Jobs that could not be started, and wait before they are tried again."""
        self._unsaid: dict[str, tuple[int, NominateNode]] = {}
        """By uid: places that were taken back, which pods still say they have, and when that is to be said again."""
        self._moves = -1
        self.new_jobs: list[str] = []
        self.gone_jobs: list[str] = []
        """What came and went since somebody last looked."""
        self.noted_jobs: list[str] = []
        """Jobs of which something else is to be told to their authors than before."""
        self._notes: dict[str, tuple[Note, ...]] = {}
        self.on_act: Callable[[Sequence[Action]], None] = lambda actions: None
        """Told of what is being done, before it is."""

    # -------------------------------------------------------------------------------------------------------- observe

    def snapshot(self) -> Snapshot:
        now_ms = self.now_ms()
        self._catch_up(now_ms)
        picture = self.picture
        self._note_rejections(picture.groups, now_ms)
        tree = picture.read_tree()
        jobs = [job for id in self._ids() if (job := self._job(id, now_ms)) is not None]
        self.new_jobs += [job.id for job in jobs if job.id not in self._known]
        self._known = {job.id for job in jobs}
        picture.looked_at()
        self._moves = self._kept.moves_last_hour
        return Snapshot(
            nodes=tuple(self._node(name) for name in picture.nodes),
            queues=tree.queues,
            jobs=tuple(jobs),
            topologies=read_topologies(picture.topologies.values()),
            now_ms=now_ms,
            moves_last_hour=self._moves,
            # Which pods a term is about is said by namespaces, whatever queues they are in.
            affinity_scope=AffinityScope.CLUSTER,
        )

    def observe(self) -> Sequence[Change]:
        now_ms = self.now_ms()
        self._catch_up(now_ms)
        picture = self.picture
        self._note_rejections(tuple(picture.jobs_changed), now_ms)
        changes: list[Change] = [TimePassed(now_ms)]
        if picture.queues_changed:
            changes.append(QueuesSet(picture.read_tree().queues))
        for name in picture.nodes_changed:
            changes.append(NodeSeen(self._node(name)) if name in picture.nodes else NodeGone(name))
        if self._kept.moves_last_hour != self._moves:
            self._moves = self._kept.moves_last_hour
            changes.append(MovesCounted(self._moves))
        for id in picture.jobs_changed:
            job = self._job(id, now_ms)
            if job is not None:
                if id not in self._known:
                    self._known.add(id)
                    self.new_jobs.append(id)
                changes.append(JobSeen(job))
            elif id in self._known:
                self._known.discard(id)
                self.gone_jobs.append(id)
                changes.append(JobGone(id))
        picture.looked_at()
        return changes

    @property
    def changed(self) -> bool:
        """Whether there is anything new to plan for."""
        return self.picture.changed

    def held_jobs(self) -> dict[str, Held]:
        """Jobs that are not offered to the scheduler at all."""
        now_ms = self.now_ms()
        held: dict[str, Held] = {}
        for id, backoff in self._held_back.items():
            if backoff.until_ms > now_ms:
                text = (
                    f"could not be started ({backoff.why}); it is tried again in a moment, try {backoff.failures + 1}"
                )
                held[id] = Held("BackOff", text)
        return held | self.closed

    def pods_held(self) -> list[tuple[PodRecord, Held]]:
        """Pods that are not, whatever is said of the others of their job."""
        return [(record, _why_held(record)) for record in self.held_pods.values()]

    @property
    def next_look_ms(self) -> int | None:
        """When something is to be looked at although nothing is heard."""
        moments = [self._alarms.next_ms, self.picture.membership.next_doubt_ms]
        moments += [place.until_ms for place in self.intents.places]
        moments += [again_ms for again_ms, _ in self._unsaid.values()]
        return min((moment_ms for moment_ms in moments if moment_ms is not None), default=None)

    def _node(self, name: str) -> Node:
        """A node as the scheduler sees it; one that cannot be read is not ready."""
        item = f"node {name}"
        try:
            node = self._node_as_it_is(name)
        except Exception as error:
            self.broken[item] = error
            return Node(name, labels={HOSTNAME: name}, ready=False)
        self.broken.pop(item, None)
        return node

    def _node_as_it_is(self, name: str) -> Node:
        published = self.picture.devices.get(name)
        return node_of(self.picture.nodes[name], published.devices if published else None)

    def _ids(self) -> Iterable[str]:
        """Also jobs of which nothing is there but a place for a pod to come."""
        return dict.fromkeys((*self.picture.groups, *(place.job for place in self.intents.places)))

    def _catch_up(self, now_ms: int) -> None:
        """What follows from pods that came or went, and from time that has passed."""
        self.picture.look_again(now_ms)
        gone, self.picture.gone_pods = self.picture.gone_pods, []
        for record in gone:
            self._settled(record, now_ms)
        for job in self._alarms.due(now_ms):
            self.picture.mark(job)
        self._kept.look_again(now_ms)
        self._say_again(now_ms)

    def _say_again(self, now_ms: int) -> None:
        """Others count on what a pod says of its place."""
        for uid, (again_ms, write) in list(self._unsaid.items()):
            record = self.picture.pods.get(f"{write.pod.namespace}/{write.pod.name}")
            if record is None or record.uid != uid or record.node or uid in self.intents.promised:
                del self._unsaid[uid]
            elif again_ms <= now_ms:
                del self._unsaid[uid]
                self.errands.append(Errand(notes=(write,)))

    def _settled(self, record: PodRecord, now_ms: int) -> None:
        """A pod is on its node, or is there no more: what was meant for it has happened or cannot happen."""
        eviction = self.intents.evicting.get(record.uid)
        current = self.picture.pods.get(record.key)
        if current is record:
            self.intents.binding.pop(record.uid, None)
            self.intents.promised.pop(record.uid, None)
            return
        if eviction is not None:
            self.intents.remember(record.job, last_evicted_at_ms=now_ms, last_eviction=eviction.reason)
        self.intents.forget_pod(record.uid)
        self.held_pods.pop(record.uid, None)
        for place in self.intents.places:
            if place.left == record.uid:
                self.picture.mark(place.job)
        if record.job not in self.picture.groups and not self.intents.places_of(record.job):
            self.intents.forget_job(record.job)

    def _job(self, id: str, now_ms: int) -> Job | None:
        """A job as the scheduler sees it; one that cannot be read is as it was, and is never taken for gone."""
        item = f"job {id}"
        try:
            job = self._job_as_it_is(id, now_ms)
        except Exception as error:
            self.broken[item] = error
            return self._read.get(id)
        self.broken.pop(item, None)
        if job is None:
            self._read.pop(id, None)
        else:
            self._read[id] = job
        return job

    def _job_as_it_is(self, id: str, now_ms: int) -> Job | None:
        records = tuple(self.picture.groups.get(id, {}).values())
        self._close(id, records)
        self._note_held(records)
        protected = self._is_protected(records, now_ms)
        left = self.picture.membership.jobs_left(id)
        job = self._reader.job(id, records, id in self.closed, protected, left, now_ms)
        if job is None:
            self._forget(id)
            return None
        self._set_alarms(id, records, now_ms)
        self._look_for_notes(id, records)
        return self._with_staleness(job, records, now_ms)

    def _look_for_notes(self, id: str, records: Iterable[PodRecord]) -> None:
        notes = next((record.grouping.notes for record in records if record.grouping is not None), ())
        if notes != self._notes.get(id, ()):
            self._notes[id] = notes
            self.noted_jobs.append(id)

    def _forget(self, id: str) -> None:
        """Nothing of it runs or waits; what is over of it still tells that it could not be started."""
        self._held_back.pop(id, None)
        self._notes.pop(id, None)
        if id not in self.picture.groups:
            self.intents.forget_job(id)

    def _with_staleness(self, job: Job, records: Iterable[PodRecord], now_ms: int) -> Job:
        before = self.intents.together_of(job.id)
        together = most_together(job, before)
        asked = (record.grouping.group for record in records if record.node and record.grouping is not None)
        since_ms = None
        if has_lost_a_part(job, asked, together):
            since_ms = now_ms if job.stale_since_ms is None else job.stale_since_ms
        if (since_ms, together) == (job.stale_since_ms, before):
            return job
        self.intents.remember(job.id, stale_since_ms=since_ms, together=together)
        return replace(job, stale_since_ms=since_ms)

    def _note_rejections(self, jobs: Iterable[str], now_ms: int) -> None:
        """A kubelet that does not take a pod would be given the next one at once: the job waits a while first."""
        for id in jobs:
            for record in self.picture.groups.get(id, {}).values():
                if record.ours and _was_rejected(record) and not record.rejected:
                    record.rejected = True
                    why = f"{record.node} did not take it: {record.pod.status.reason}"
                    kin = kin_of(id, (record,))
                    self.intents.failed(kin, why, now_ms)
                    if kin != id:
                        self.picture.membership.mark_siblings(record)

    def _note_held(self, records: Iterable[PodRecord]) -> None:
        for record in records:
            if record.ours and not record.node and not record.over and _why_held(record).text:
                self.held_pods[record.uid] = record
            else:
                self.held_pods.pop(record.uid, None)

    def _close(self, id: str, records: Sequence[PodRecord]) -> None:
        """Whether the job's namespace may use its queue."""
        self.closed.pop(id, None)
        form = next((record.grouping for record in records if record.grouping is not None), None)
        if form is None:
            return
        tree, namespace = self.picture.tree, id.partition("/")[0]
        closed = tree.closed_to(form.queue, namespace)
        if closed is not None:
            names = ", ".join(sorted(tree.namespaces[closed])) or "none"
            text = f'queue "{closed}" is not open to namespace "{namespace}"; it is to: {names}'
            self.closed[id] = Held("QueueClosed", text)

    def _is_protected(self, records: Iterable[PodRecord], now_ms: int) -> bool:
        """Whether somebody forbids that anything of it goes; half a gang would go for nothing."""
        placed = [one for one in records if one.ours and one.node and not one.over]
        if any(self._was_refused(one, now_ms) for one in placed):
            return True
        if not placed or not self.picture.surroundings.budgets:
            return False
        staying = [one for one in placed if not one.leaving and one.uid not in self.intents.evicting]
        least = max((one.grouping.group.fewest_tasks for one in placed if one.grouping is not None), default=1)
        return not self.picture.surroundings.allows_disruption(staying, together=len(staying) <= least)

    def _was_refused(self, record: PodRecord, now_ms: int) -> bool:
        """Whether somebody has just forbidden that it goes."""
        return self.intents.protected.get(record.uid, 0) > now_ms

    def _set_alarms(self, id: str, records: Sequence[PodRecord], now_ms: int) -> None:
        self._held_back.pop(id, None)
        backoff = backoff_of(id, records, self.intents, now_ms)
        if backoff is not None:
            self._held_back[id] = backoff
            self._alarms.set(backoff.until_ms, id, now_ms)
        for record in records:
            if record.leaving and record.node and not record.over:
                self._alarms.set(record.deleted_ms + STUCK_MS + 1, id, now_ms)
            self._alarms.set(self.intents.protected.get(record.uid, 0), id, now_ms)

    # ------------------------------------------------------------------------------------------------------------ act

    def act(self, actions: Sequence[Action]) -> None:
        """Note what was decided, and queue what is to be written about it.

        An action that raises stops no other; the job of the first is named once all others are queued.
        """
        now_ms = self.now_ms()
        self.on_act(actions)
        failed: list[NotRecordedError] = []
        notes: list[NominateNode | SavePlaces] = []
        binds: list[BindPod] = []
        evictions: list[EvictPod] = []
        places_before = list(self.intents.places)
        for action in actions:
            try:
                self._note(action, now_ms, notes, binds, evictions)
            except Exception as error:
                word = type(action).__name__.lower()
                found = NotRecordedError(word, f"{type(error).__name__}: {error}", action.job)
                found.__cause__ = error
                failed.append(found)
        if self.intents.places != places_before:
            notes.append(self._kept.saved())
        if binds:
            self.errands.append(Errand(deeds=tuple(binds)))
        if notes or evictions:
            self.errands.append(Errand(tuple(notes), tuple(evictions)))
        if failed:
            raise failed[0]

    def _note(
        self,
        action: Action,
        now_ms: int,
        notes: list[NominateNode | SavePlaces],
        binds: list[BindPod],
        evictions: list[EvictPod],
    ) -> None:
        match action:
            case Bind():
                binds.extend(self._bind(action, now_ms))
            case Promise():
                notes.extend(self._promise(action))
            case Move():
                evictions.extend(self._move(action, now_ms))
            case Evict():
                self._evict(action, now_ms, notes, evictions)
            case Resize():
                raise AssertionError("nothing is resized in place on Kubernetes")

    def _record(self, job: str, task: str) -> PodRecord | None:
        return self.picture.groups.get(job, {}).get(f"{job.partition('/')[0]}/{task}")

    def _bind(self, action: Bind, now_ms: int) -> Iterable[BindPod]:
        record = self._record(action.job, action.task)
        if record is None or record.node:
            return
        place = heirs_of(action.job, self.picture.groups[action.job].values(), self.intents).get(record.uid)
        if place is not None:
            self.intents.drop_places([place])
        was_promised = self.intents.promised.pop(record.uid, None) is not None
        self.intents.binding[record.uid] = Binding(action.node, now_ms, was_promised)
        self.picture.mark(action.job)
        backoff = self.intents.backoff.get(action.job)
        failures = backoff.failures if backoff else 0
        bind = BindPod(action.job, pod_name(record), action.node, failures=failures)
        yield from self._with_volumes(bind, record) if record.claims else (bind,)

    def _with_volumes(self, bind: BindPod, record: PodRecord) -> Iterable[BindPod]:
        """With what its claims are told and given first; none where they cannot have a volume on that node any more."""
        labels = self._node(bind.node).labels if bind.node in self.picture.nodes else {}
        found = self.picture.surroundings.settled(record.pod, labels)
        if isinstance(found, MustWait):
            self.bind_failed(bind, found.why)
        else:
            yield replace(bind, claims=found.told, given=found.given)

    def _promise(self, action: Promise) -> Iterable[NominateNode]:
        record = self._record(action.job, action.task)
        if record is None:
            return
        self.intents.promised[record.uid] = action.node
        self.picture.mark(action.job)
        yield NominateNode(action.job, pod_name(record), action.node)

    def _move(self, action: Move, now_ms: int) -> Iterable[EvictPod]:
        record = self._record(action.job, action.task)
        if record is None or record.grouping is None:
            return
        place = Place(
            job=action.job,
            heir=record.grouping.successor_key,
            node=action.node,
            left=record.uid,
            name=record.pod.metadata.name,
            source=action.source,
            leaf=record.grouping.leaf,
            form=form_of(record.grouping),
            request=record.request,
            reason=action.reason,
            until_ms=now_ms + PLACE_MS,
        )
        self._kept.keep(place, now_ms)
        yield self._going(record, action.job, action.source, action.reason, now_ms)

    def _evict(
        self, action: Evict, now_ms: int, notes: list[NominateNode | SavePlaces], evictions: list[EvictPod]
    ) -> None:
        """Stop a pod, or take back a place that was promised or kept."""
        if action.task.endswith(HEIR):
            name = action.task.removesuffix(HEIR)
            self._kept.end([place for place in self.intents.places_of(action.job) if place.name == name])
            return
        record = self._record(action.job, action.task)
        if record is None:
            return
        if record.node:
            if action.reason.beneficiary or not self._was_refused(record, now_ms):
                evictions.append(self._going(record, action.job, action.node, action.reason, now_ms))
            return
        heirs = heirs_of(action.job, self.picture.groups[action.job].values(), self.intents)
        if record.uid in heirs:
            self._kept.end([heirs[record.uid]])
        if self.intents.promised.pop(record.uid, None) is not None:
            notes.append(NominateNode(action.job, pod_name(record), ""))
        self.picture.mark(action.job)

    def _going(self, record: PodRecord, job: str, node: str, reason: Reason, now_ms: int) -> EvictPod:
        self.intents.evicting[record.uid] = Eviction(reason, now_ms)
        self.picture.mark(job)
        return EvictPod(job, pod_name(record), node, reason, reason_text(reason) + _loss(record))

    # ------------------------------------------------------------------------------------------------- how it went

    def adopt(self, saved: SavePlaces) -> None:
        """Go on from what was noted before: by ourselves before a restart, or by who led before us."""
        self._kept.adopt(saved)
        for record in self.picture.pods.values():
            nominated = record.pod.status.nominated_node_name
            if record.ours and nominated and not record.node:
                self.intents.promised[record.uid] = nominated
                self.picture.mark(record.job)

    def bind_failed(self, write: BindPod, why: str) -> None:
        """It is not on that node: others may have the place, and the job waits a while before it is tried again."""
        binding = self.intents.binding.pop(write.pod.uid, None)
        if binding is None:
            return
        now_ms = self.now_ms()
        if binding.was_promised:
            self._unsaid[write.pod.uid] = (now_ms, NominateNode(write.job, write.pod, ""))
        self.intents.failed(write.job, why, now_ms)
        self.picture.mark(write.job)

    def note_failed(self, write: NominateNode, why: str) -> None:
        """The place is not kept for it, and the job waits a while before it is promised one again."""
        now_ms = self.now_ms()
        if not write.node:
            self._unsaid[write.pod.uid] = (now_ms + SAY_AGAIN_MS, write)
        elif self.intents.promised.pop(write.pod.uid, None) is not None:
            self.intents.failed(write.job, why, now_ms)
        self.picture.mark(write.job)

    def eviction_failed(self, write: EvictPod, why: str, *, forbidden: bool) -> None:
        """It stays, and is left alone for a while; where it was not even asked, those it was for wait a while."""
        if self.intents.evicting.pop(write.pod.uid, None) is None:
            return
        if forbidden:
            self.intents.protected[write.pod.uid] = self.now_ms() + PROTECTED_MS
        elif write.reason.beneficiary and self.intents.holds_back(write.reason.beneficiary, self.now_ms()) is None:
            self.intents.failed(write.reason.beneficiary, why, self.now_ms())
            self.picture.mark(write.reason.beneficiary)
        self._kept.end([place for place in self.intents.places if place.left == write.pod.uid])
        self.picture.mark(write.job)


def _was_rejected(record: PodRecord) -> bool:
    status = record.pod.status
    return status.phase == "Failed" and (status.reason in REJECTIONS or status.reason.startswith("OutOf"))


def _loss(record: PodRecord) -> str:
    """What is lost with the pod, beside the time until it is made anew."""
    grouping = record.grouping
    if grouping is None or not grouping.costs_work:
        return ""
    return f"; {grouping.why_not}" if grouping.recreated else LOSS


def _why_held(record: PodRecord) -> Held:
    """Why a pod is not offered to the scheduler; without a text where it is."""
    if record.held is not None:
        return record.held
    return Held("NotReady", record.grouping.waits if record.grouping else "")


def pod_name(record: PodRecord) -> PodName:
    metadata = record.pod.metadata
    return PodName(metadata.namespace, metadata.name, metadata.uid)
