"""What people are told of pods and groups: conditions and events, from the reasons of the plan.

Place in the flow: Plan, world ─**telling**─▶ writer ─▶ API server. Invariants: a condition is written when the kind of
reason changes, or when its numbers have and a while has passed; one that changes to and fro is written now and then
only; of each kind a pod has one event: a busy cluster's waiting pods cost no storm. A pod that waits for its queue is
not called unschedulable, so that no autoscaler adds nodes that could not help.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import msgspec

from gpuyard.errors import KubeError, KubeRefusedError
from gpuyard.kubeapi.client import CONFLICT, NOT_FOUND, STRATEGIC, KubeClient
from gpuyard.kubeapi.events import Author, Subject, event_of, path_of_event
from gpuyard.kubeapi.moments import micros_text_of, text_of
from gpuyard.kubeapi.paths import path_of
from gpuyard.model.plan import Plan
from gpuyard.model.reasons import Reason, Token
from gpuyard.model.text import waiting_text
from gpuyard.worlds.kubernetes.newest import Newest
from gpuyard.worlds.kubernetes.nodes import CUT_FIX, cut_text
from gpuyard.worlds.kubernetes.notes import Note
from gpuyard.worlds.kubernetes.picture import Picture
from gpuyard.worlds.kubernetes.podrecord import Held, PodRecord
from gpuyard.worlds.kubernetes.queues import QueueTree
from gpuyard.worlds.kubernetes.world import pod_name
from gpuyard.worlds.kubernetes.writer import Writer, is_final
from gpuyard.worlds.kubernetes.writes import BindPod, EvictPod, PodName

CONTROLLER: Final = "gpuyard.io/scheduler"
SCHEDULED: Final = "PodScheduled"
UNSCHEDULABLE: Final = "Unschedulable"
"""The word autoscalers look for."""
MORE_NODES_HELP: Final = frozenset(
    {Token.NO_MATCHING_NODE, Token.TOO_LARGE, Token.NOT_ENOUGH, Token.FRAGMENTED, Token.NO_DOMAIN}
)
AGAIN_MS: Final = 30_000
"""How soon other numbers of the same reason are written."""
QUICK_CHANGES: Final = 3
"""So many times a pod is told of another kind of reason at once; after that it is told every AGAIN_MS."""
RETRY_MS: Final = 5_000
"""How soon a condition is written again that could not be written."""
EVENT_TRIES: Final = 5
EVENT_WAIT_S: Final = 1.0
MAX_EVENTS_PER_JOB: Final = 8
"""Pods of one job that get an event of their own about the same thing."""
MAX_MESSAGE: Final = 4_000


class _Told(msgspec.Struct, frozen=True, gc=False):
    word: str = ""
    text: str = ""
    at_ms: int = 0
    changes: int = 0
    """How often it was another word."""
    events: frozenset[str] = frozenset()
    """Words it had an event about."""


class Teller:
    """Remembers what was said, and says what is new."""

    def __init__(
        self, client: KubeClient, writer: Writer, picture: Picture, instance: str, now_ms: Callable[[], int]
    ) -> None:
        self._client = client
        self._writer = writer
        self._picture = picture
        self._author = Author(CONTROLLER, instance)
        self._now_ms = now_ms
        self._told: dict[str, _Told] = {}
        """By uid of the pod."""
        self._queues_told: set[tuple[str, str]] = set()
        """By uid of the queue, and what it was told."""
        self._nodes_told: set[tuple[str, str]] = set()
        self._conditions = Newest(writer.say)

    def forget(self) -> None:
        """Somebody else may have said something since: whoever begins to lead says everything anew."""
        self._told.clear()
        self._conditions.forget()

    # --------------------------------------------------------------------------------------------------------- waiting

    def waiting(self, plan: Plan, held: Mapping[str, Held], held_pods: Iterable[tuple[PodRecord, Held]] = ()) -> None:
        """Tell pods why they wait: by the plan, or because the world holds their job, or just them."""
        now_ms = self._now_ms()
        apart: dict[tuple[str, Held], list[PodRecord]] = {}
        for record, why in held_pods:
            apart.setdefault((record.job, why), []).append(record)
        single = {record.uid for records in apart.values() for record in records}
        for entry in plan.waiting:
            why = Held(word_for(entry.reasons), waiting_text(entry.reasons))
            for job in entry.jobs:
                if job not in held:
                    self._tell(self._members(job, single), why, now_ms)
        for job, why in held.items():
            self._tell(self._members(job, single), why, now_ms)
        for (_, why), records in apart.items():
            self._tell(records, why, now_ms)
        if len(self._told) > 2 * len(self._picture.pods) + 1000:
            alive = {record.uid for record in self._picture.pods.values()}
            self._told = {uid: told for uid, told in self._told.items() if uid in alive}

    def _members(self, job: str, but: Collection[str]) -> list[PodRecord]:
        return [record for record in self._picture.groups.get(job, {}).values() if record.uid not in but]

    def _tell(self, records: Iterable[PodRecord], why: Held, now_ms: int) -> None:
        """Tell pods of one job what is new to them."""
        with_event = 0
        for record in records:
            if not record.ours or record.node or record.over or record.gated or record.leaving:
                continue
            told = self._told.get(record.uid, _Told())
            if not _is_news(told, why, now_ms):
                continue
            changes = told.changes + (told.word != why.word)
            self._told[record.uid] = _Told(why.word, why.text, now_ms, changes, told.events | {why.word})
            name = pod_name(record)
            self._conditions.say(record.uid, lambda name=name: self._condition(name, why))  # type: ignore[misc]
            if why.word not in told.events and with_event < MAX_EVENTS_PER_JOB:
                with_event += 1
                self.event(name, "FailedScheduling", "Scheduling", why.text, warning=True)

    async def _condition(self, pod: PodName, why: Held) -> None:
        record = self._picture.pods.get(f"{pod.namespace}/{pod.name}")
        if record is None or record.uid != pod.uid or record.node:
            return
        condition = {
            "type": SCHEDULED,
            "status": "False",
            "reason": why.word,
            "message": why.text[:MAX_MESSAGE],
            "lastProbeTime": None,
            "lastTransitionTime": _waits_since(record) or text_of(self._now_ms()),
        }
        path = path_of("pods", pod.name, namespace=pod.namespace, part="status")
        # Of the pod as we know it: one that was bound since does not wait any more.
        known = {"uid": pod.uid, "resourceVersion": record.pod.metadata.resource_version}
        body = {"metadata": known, "status": {"conditions": [condition]}}
        try:
            await self._writer.request(lambda: self._client.merge(path, body, kind=STRATEGIC))
        except KubeError as error:
            told = self._told.get(pod.uid)
            if told is not None:
                # It is to be said again, soon, and without another event.
                at_ms = self._now_ms() - AGAIN_MS + RETRY_MS
                self._told[pod.uid] = msgspec.structs.replace(told, text="", at_ms=at_ms)
            if not isinstance(error, KubeRefusedError) or error.status not in (NOT_FOUND, CONFLICT):
                raise

    # ----------------------------------------------------------------------------------------------------------- notes

    def job_notes(self, job: str) -> None:
        """What of a workload was read otherwise than its author may think."""
        for record in self._picture.groups.get(job, {}).values():
            if record.grouping is not None:
                self._job_notes(record, record.grouping.notes)
                return

    def _job_notes(self, record: PodRecord, notes: Iterable[Note]) -> None:
        for note in notes:
            self.event(pod_name(record), note.reason, "Reading", note.message, warning=True)

    def queue_notes(self, tree: QueueTree) -> None:
        """The same for queues: a limit that was forgotten is 0, as KAI reads it."""
        queues = self._picture.queues
        self._queues_told = self._said_once(
            self._queues_told,
            (
                # Made anew under its name it is another.
                (
                    Subject("Queue", note.queue, "", queue.metadata.uid, "scheduling.run.ai/v2"),
                    note.reason,
                    note.message,
                )
                for note in tree.notes
                if (queue := queues.get(note.queue)) is not None
            ),
        )

    def node_notes(self, left_out: Mapping[str, str]) -> None:
        """And for nodes, of whose GPUs some are left out, or which are left out of planning, and why."""
        nodes = self._picture.nodes
        notes = [
            (Subject("Node", name, "", nodes[name].metadata.uid), "GpusLeftOut", f"{cut_text(count)}; {CUT_FIX}")
            for name, count in self._picture.cut.items()
        ]
        notes += [
            (Subject("Node", name, "", nodes[name].metadata.uid), "LeftOutOfPlanning", text)
            for name, text in left_out.items()
            if name in nodes
        ]
        self._nodes_told = self._said_once(self._nodes_told, notes)

    def _said_once(self, told: set[tuple[str, str]], notes: Iterable[tuple[Subject, str, str]]) -> set[tuple[str, str]]:
        """Say what is new, and give what holds now: what has ceased to may be said again."""
        now: set[tuple[str, str]] = set()
        for subject, reason, text in notes:
            now.add((subject.uid, text))
            if (subject.uid, text) not in told:
                at = micros_text_of(self._now_ms())
                self._say_event(event_of(subject, reason, text, self._author, at, "Reading"))
        return now

    # ---------------------------------------------------------------------------------------------------------- events

    def bound(self, write: BindPod) -> None:
        self._told.pop(write.pod.uid, None)
        note = f"Successfully assigned {write.pod.namespace}/{write.pod.name} to {write.node}"
        self.event(write.pod, "Scheduled", "Binding", note)

    def bind_failed(self, write: BindPod, why: str) -> None:
        self.event(write.pod, "FailedBinding", "Binding", f"could not be bound to {write.node}: {why}", warning=True)

    def evicted(self, write: EvictPod) -> None:
        self.event(write.pod, write.reason.token.value, "Evicting", write.text, related=write.reason.beneficiary)

    def eviction_failed(self, write: EvictPod, why: str) -> None:
        self.event(write.pod, "EvictionRefused", "Evicting", f"was asked to go and stays: {why}", warning=True)

    def event(
        self, pod: PodName, reason: str, action: str, note: str, *, warning: bool = False, related: str = ""
    ) -> None:
        subject = Subject("Pod", pod.name, pod.namespace, pod.uid)
        kind, at = "Warning" if warning else "Normal", micros_text_of(self._now_ms())
        body = event_of(subject, reason, note, self._author, at, action, kind)
        if related:
            body["metadata"]["annotations"] = {"gpuyard.io/beneficiary": related}
        self._say_event(body)

    def _say_event(self, body: dict[str, Any], tries: int = EVENT_TRIES) -> None:
        self._writer.say(lambda: self._create(body, tries))

    async def _create(self, body: dict[str, Any], tries: int) -> None:
        """An event is all that is left of an eviction: a server that cannot take it is asked again, not at once."""
        try:
            await self._writer.request(lambda: self._client.create(path_of_event(body), body))
        except KubeError as error:
            if isinstance(error, KubeRefusedError) and error.status in (CONFLICT, NOT_FOUND):
                return  # It was said already, or the namespace goes.
            if is_final(error) or tries <= 1:
                raise
            wait_s = EVENT_WAIT_S * (EVENT_TRIES - tries + 1)
            asyncio.get_running_loop().call_later(wait_s, self._say_event, body, tries - 1)


def _is_news(told: _Told, why: Held, now_ms: int) -> bool:
    if told.word == why.word:
        return told.text != why.text and now_ms - told.at_ms >= AGAIN_MS
    return told.changes < QUICK_CHANGES or now_ms - told.at_ms >= AGAIN_MS


def _waits_since(record: PodRecord) -> str | None:
    """Since when the pod has said that it waits, whatever for."""
    said = next((one for one in record.pod.status.conditions or () if one.type == SCHEDULED), None)
    return said.last_transition_time if said is not None and said.status == "False" else None


def word_for(reasons: Iterable[Reason]) -> str:
    """The condition's reason: `Unschedulable` only where a node more would help."""
    tokens = [reason.token for reason in reasons]
    blocked = [token for token in tokens if token not in MORE_NODES_HELP]
    if tokens and not blocked:
        return UNSCHEDULABLE
    return blocked[0].value if blocked else "Waiting"
