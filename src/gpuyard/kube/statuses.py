"""What queues and groups say of themselves: held, asked for, fair share, conditions.

Place in the flow: ledger, plan ─**statuses**─▶ writer ─▶ status of Queue and PodGroup. Invariant: a status is written
when it differs from the one written last, and not more often than every WRITE_MS; other numbers in the sentence about
who waits are no difference for a while, or everybody who waits would be written about whenever anybody starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from gpuyard.errors import KubeError, KubeRefusedError
from gpuyard.kubeapi.client import CONFLICT, NOT_FOUND, KubeClient
from gpuyard.kubeapi.moments import text_of
from gpuyard.kubeapi.paths import path_of
from gpuyard.loop.loop import Loop
from gpuyard.model.jobs import Job, Task, TaskState
from gpuyard.model.quantities import MILLI
from gpuyard.model.text import waiting_text
from gpuyard.platform.clock import monotonic_ms
from gpuyard.scheduler.draft import Draft
from gpuyard.worlds.kubernetes.newest import Newest
from gpuyard.worlds.kubernetes.picture import Picture
from gpuyard.worlds.kubernetes.telling import AGAIN_MS, word_for
from gpuyard.worlds.kubernetes.writer import Writer, is_final

WRITE_MS: Final = 1_000
GPU_RESOURCE: Final = "nvidia.com/gpu"
GROUP: Final = "scheduling.run.ai"
PODGROUP_KIND: Final = "podgroup"
DEFAULT_POOL: Final = "default"

Status = dict[str, Any]


class Statuses:
    """Remembers what was written."""

    def __init__(
        self, client: KubeClient, writer: Writer, picture: Picture, instance: str, now_ms: Callable[[], int]
    ) -> None:
        self._client = client
        self._writer = writer
        self._picture = picture
        self._now_ms = now_ms
        self._written: dict[str, Status] = {}
        """By subject, and which object of that name it was."""
        self._since: dict[tuple[str, str], tuple[Status, str]] = {}
        self._texts: dict[str, tuple[str, str, int]] = {}
        """Of groups: the word, the sentence, and when that was first said."""
        self._newest = Newest(writer.say)
        self._at_ms = 0

    def forget(self) -> None:
        """Somebody else may have written since: whoever begins to lead writes everything anew."""
        self._written.clear()
        self._newest.forget()

    def write(self, loop: Loop) -> bool:
        """Write what has changed; False where it is too early for that."""
        now_ms = monotonic_ms()
        if now_ms - self._at_ms < WRITE_MS:
            return False
        self._at_ms = now_ms
        there = {*self._write_queues(loop), *self._write_groups(loop)}
        self._written = {subject: status for subject, status in self._written.items() if subject in there}
        self._since = {key: since for key, since in self._since.items() if key[0] in there}
        self._texts = {subject: said for subject, said in self._texts.items() if subject in there}
        return True

    # ---------------------------------------------------------------------------------------------------------- queues

    def _write_queues(self, loop: Loop) -> Iterator[str]:
        """Which there are."""
        draft = Draft(loop.ledger, loop.policy)
        books = loop.ledger.queues
        for name, queue in self._picture.queues.items():
            subject = f"queue/{name}/{queue.metadata.uid}"
            yield subject
            at = books.by_name.get(name)
            conditions = [self._accepted(subject, name, known=at is not None)]
            status: Status = {"childQueues": sorted(self._picture.tree.children.get(name, ()))}
            if at is not None:
                asked = [a + b for a, b in zip(books.held[at], books.asked[at], strict=True)]
                status |= {
                    "allocated": amounts(books.held[at]),
                    "allocatedNonPreemptible": amounts(books.firm[at]),
                    "requested": amounts(asked),
                    "fairShare": amounts(draft.shares[at]),
                }
                conditions.append(self._fair_share(subject, status))
            status["conditions"] = conditions
            path = path_of("queues", name, group=GROUP, version="v2", part="status")
            self._say(subject, path, status)

    def _accepted(self, subject: str, name: str, *, known: bool) -> Status:
        notes = [note for note in self._picture.tree.notes if note.queue == name]
        text = "; ".join(note.message for note in notes) or "it is read as it is written"
        reason = notes[0].reason if notes else "Accepted"
        return self._condition(subject, "Accepted", known, reason, text)

    def _fair_share(self, subject: str, status: Status) -> Status:
        """A kind of Queue that does not know the field keeps the sentence."""
        share, held = status["fairShare"][GPU_RESOURCE], status["allocated"][GPU_RESOURCE]
        text = f"its fair share now is {share} GPUs; it holds {held}"
        return self._condition(subject, "FairShare", True, "Divided", text)

    # ---------------------------------------------------------------------------------------------------------- groups

    def _write_groups(self, loop: Loop) -> Iterator[str]:
        for key, group in self._picture.podgroups.items():
            namespace, name = key.split("/", 1)
            id = f"{namespace}/{PODGROUP_KIND}/{name}"
            job = loop.ledger.jobs.get(id)
            if job is None and (group.status or {}) == {}:
                continue
            subject = f"{id}/{group.metadata.uid}"
            yield subject
            status = self._group_status(id, subject, job, loop)
            path = path_of("podgroups", name, namespace=namespace, group=GROUP, version="v2alpha2", part="status")
            self._say(subject, path, status)

    def _group_status(self, id: str, subject: str, job: Job | None, loop: Loop) -> Status:
        tasks = job.tasks if job else ()
        counts = {state: sum(task.state is state for task in tasks) for state in TaskState}
        running, pending = counts[TaskState.RUNNING], counts[TaskState.PENDING] + counts[TaskState.PROMISED]
        held = _sum(task for task in tasks if task.state is TaskState.RUNNING)
        reasons = loop.why_waiting.get(id, ())
        text = waiting_text(reasons) if reasons else "all of it that can run has its place"
        word = word_for(reasons) if reasons else "Scheduled"
        text = self._calm(subject, word, text)
        condition = self._condition(subject, "Scheduled", not reasons, word, text)
        blocked = self._condition(subject, "UnschedulableOnNodePool", bool(reasons), word, text)
        return {
            "phase": "Running" if running and not reasons else "Pending" if pending or reasons else "Unknown",
            "running": running,
            "pending": pending,
            "succeeded": counts[TaskState.SUCCEEDED],
            "failed": counts[TaskState.FAILED],
            "conditions": [condition],
            "schedulingConditions": [blocked | {"nodePool": DEFAULT_POOL}] if reasons else [],
            "resourcesStatus": {
                "allocated": held,
                "allocatedNonPreemptible": held if job and not job.preemptible else {},
                "requested": _sum(task for task in tasks if task.state not in (TaskState.SUCCEEDED, TaskState.FAILED)),
            },
        }

    # --------------------------------------------------------------------------------------------------------- writing

    def _calm(self, subject: str, word: str, text: str) -> str:
        """The sentence that was said last of the same word, unless that was a while ago."""
        now_ms = self._now_ms()
        said_word, said, at_ms = self._texts.get(subject, ("", "", 0))
        if said_word == word and now_ms - at_ms < AGAIN_MS:
            return said
        self._texts[subject] = (word, text, now_ms)
        return text

    def _condition(self, subject: str, kind: str, holds: bool, reason: str, message: str) -> Status:
        """With the moment since when it has said the same, whatever its numbers."""
        condition = {"type": kind, "status": "True" if holds else "False", "reason": reason}
        known = self._since.get((subject, kind))
        since = known[1] if known and known[0] == condition else text_of(self._now_ms())
        self._since[subject, kind] = (condition, since)
        return condition | {"message": message, "lastTransitionTime": since}

    def _say(self, subject: str, path: str, status: Status) -> None:
        if self._written.get(subject) == status:
            return
        self._written[subject] = status
        self._newest.say(subject, lambda: self._merge(subject, path, status))

    async def _merge(self, subject: str, path: str, status: Status) -> None:
        try:
            await self._writer.request(lambda: self._client.merge(path, {"status": status}))
        except KubeError as error:
            if not is_final(error) or (isinstance(error, KubeRefusedError) and error.status == CONFLICT):
                self._written.pop(subject, None)
            if not isinstance(error, KubeRefusedError) or error.status not in (NOT_FOUND, CONFLICT):
                raise


def amounts(values: Iterable[int]) -> dict[str, str]:
    """As Kubernetes writes quantities: GPUs, CPU, memory; what else is rationed is not told here."""
    gpu, cpu, memory, *_ = values
    whole = str(gpu // MILLI) if gpu % MILLI == 0 else f"{gpu}m"
    return {GPU_RESOURCE: whole, "cpu": f"{cpu}m", "memory": str(memory)}


def _sum(tasks: Iterable[Task]) -> dict[str, str]:
    totals = [0, 0, 0]
    for task in tasks:
        request = task.request
        totals[0] += request.devices * request.gpu_milli
        totals[1] += request.cpu_milli
        totals[2] += request.memory_bytes
    return amounts(totals)
