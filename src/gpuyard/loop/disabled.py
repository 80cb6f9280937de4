"""Which nodes, jobs and queues are left out of planning, and why; and the world as it is planned on without them.

Place in the flow: world ─changes─▶ **disabled** ─changes that can be planned on─▶ ledger. No I/O: time is an argument.
Invariant: nothing out of range reaches a ledger, whichever world it comes from; an object that made planning fail
stays out until it changes, or until its time to be tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from gpuyard.loop.stand_ins import Kind, Subject, bare_job, below, closed_node, held_job, sound_queues
from gpuyard.model.job_limits import job_problem
from gpuyard.model.jobs import Job, TaskState
from gpuyard.model.limits import node_problem, queue_problem
from gpuyard.model.nodes import Node
from gpuyard.model.queues import Queue
from gpuyard.model.reasons import Reason, Token
from gpuyard.model.snapshot import Change, JobGone, JobSeen, NodeGone, NodeSeen, QueuesSet, Snapshot

RETRY_MS: Final = 60_000
"""After so long an object that made planning fail is tried again; after each further failure twice as long."""
MAX_RETRY_MS: Final = 3_600_000
CHANGED_MS: Final = 10_000
"""An object that has changed is tried again at once, but not more often than this."""


class Fault(msgspec.Struct, frozen=True):
    """An exception that ended a cycle."""

    id: str
    """The same for the same exception from the same line: it is logged once."""
    why: str
    step: str
    """During what: follow, plan, verify, act."""
    trace: str
    """Where it came from, for the log."""


class Disabled(msgspec.Struct, frozen=True):
    """An object that is left out of planning."""

    subject: Subject
    why: str
    """Out of range: which value; else the exception that planning with it raised."""
    fault: str = ""
    """The number under which the server's log has the traceback; empty: a value is out of range."""
    since_ms: int = 0
    retry_ms: int = 0
    """When it is tried again; an object out of range is as soon as it is in range."""
    failures: int = 0
    stripped: bool = False
    essence: object = None
    """What it was then, but for what changes while it runs."""

    @property
    def text(self) -> str:
        """As a sentence about the object."""
        if not self.fault:
            return f"left out of planning: {self.why}"
        return f"left out of planning, which failed with it: {self.why} ({self.fault} in the log); report it"

    @property
    def reason(self) -> Reason:
        """Why a job waits that is left out, or whose queue is."""
        return Reason(Token.PLANNING_FAILED, subject=f"{self.subject}: {self.short}")

    @property
    def short(self) -> str:
        """Why, without what an exception says: that may be about somebody else."""
        return f"{self.why.partition(':')[0]} ({self.fault} in the server's log)" if self.fault else self.why


class Left:
    """What is left out, and what the world says of it."""

    def __init__(self) -> None:
        self.failing: dict[Subject, Disabled] = {}
        """Objects that made planning fail."""
        self.out_of_range: dict[Subject, Disabled] = {}
        self._nodes: dict[str, Node] = {}
        self._jobs: dict[str, Job] = {}
        """Objects as they are of which the ledger has a stand-in."""
        self._queues: tuple[Queue, ...] = ()
        self._closed: frozenset[str] = frozenset()
        """Queues that are left out, and those below them."""
        self._on_trial: dict[Subject, Disabled] = {}
        """Objects that are tried again."""

    def __iter__(self) -> Iterator[Disabled]:
        yield from sorted((*self.out_of_range.values(), *self.failing.values()), key=lambda one: one.subject)

    def of(self, kind: Kind, name: str) -> Disabled | None:
        """Why an object is left out; None where it is not."""
        subject = Subject(kind, name)
        return self.out_of_range.get(subject) or self.failing.get(subject)

    def why_job(self, job: Job) -> Disabled | None:
        """Why nothing of a job is planned: it is left out itself, or its queue is."""
        own = self.of(Kind.JOB, job.id)
        if own is not None or job.queue not in self._closed:
            return own
        above: str | None = job.queue
        parents = {queue.name: queue.parent for queue in self._queues}
        for _ in range(len(parents)):
            if above is None or (found := self.failing.get(Subject(Kind.QUEUE, above))) is not None:
                return None if above is None else found
            above = parents.get(above)
        return None

    def reasons(self) -> dict[str, tuple[Reason, ...]]:
        """Per job that would wait, that it is left out."""
        waiting = (job for job in self._jobs.values() if any(task.state is TaskState.PENDING for task in job.tasks))
        return {job.id: (why.reason,) for job in waiting if (why := self.why_job(job)) is not None}

    # ---------------------------------------------------------------------------------------------- what is planned on

    def snapshot(self, real: Snapshot) -> Snapshot:
        """A world as it is planned on. What was known of other worlds is forgotten."""
        self._nodes, self._jobs, self.out_of_range = {}, {}, {}
        self._take_queues(real.queues)
        nodes = (self._node(node) for node in real.nodes)
        return replace(
            real,
            nodes=tuple(node for node in nodes if node is not None),
            queues=sound_queues(real.queues, self._gone_queues()),
            jobs=tuple(self._job(job) for job in real.jobs),
        )

    def real(self, planned: Snapshot) -> Snapshot:
        """The world as it is, from one as it is planned on."""
        nodes = {node.name: node for node in planned.nodes} | self._nodes
        return replace(
            planned,
            nodes=tuple(nodes.values()),
            queues=self._queues,
            jobs=tuple(self._jobs.get(job.id, job) for job in planned.jobs),
        )

    def admit(self, changes: Iterable[Change], now_ms: int) -> list[Change]:
        """The changes as they are planned on, with those that follow from objects being tried again."""
        admitted: list[Change] = []
        for change in changes:
            if self.failing:
                self._try_changed(change, now_ms)
            admitted.extend(self._admitted(change))
        if self.failing:
            admitted.extend(one for change in list(self._try_due(now_ms)) for one in self._admitted(change))
        return admitted

    def as_planned(self, changes: Iterable[Change]) -> tuple[Change, ...]:
        """Changes that are only asked about, as they would be planned on. What is left out stays as it is."""
        return tuple(map(self._as_planned, changes))

    def _as_planned(self, change: Change) -> Change:
        match change:
            case NodeSeen(node) if self.of(Kind.NODE, node.name) is not None or node_problem(node):
                return NodeSeen(closed_node(node))
            case JobSeen(job) if self.why_job(job) is not None or job_problem(job):
                return JobSeen(held_job(job))
            case QueuesSet(queues):
                return QueuesSet(sound_queues(queues, self._gone_queues()))
        return change

    def _admitted(self, change: Change) -> Iterator[Change]:
        match change:
            case NodeSeen(node):
                stands = self._node(node)
                yield NodeGone(node.name) if stands is None else NodeSeen(stands)
            case JobSeen(job):
                yield JobSeen(self._job(job))
            case QueuesSet(queues):
                yield from self._queues_set(queues)
            case NodeGone(name):
                self._drop(Subject(Kind.NODE, name))
                self._nodes.pop(name, None)
                yield change
            case JobGone(id):
                self._drop(Subject(Kind.JOB, id))
                self._jobs.pop(id, None)
                yield change
            case _:
                yield change

    def _queues_set(self, queues: tuple[Queue, ...]) -> Iterator[Change]:
        """A new tree. Jobs of which the queue was left out, or is now, are others than before."""
        closed = self._closed
        self._take_queues(queues)
        yield QueuesSet(sound_queues(queues, self._gone_queues()))
        if closed != self._closed:
            for job in list(self._jobs.values()):
                yield JobSeen(self._job(job))

    def _take_queues(self, queues: tuple[Queue, ...]) -> None:
        names = {queue.name for queue in queues}
        self._queues = queues
        for subject in [one for one in self.failing if one.kind is Kind.QUEUE and one.name not in names]:
            self._drop(subject)
        self.out_of_range = {one: why for one, why in self.out_of_range.items() if one.kind is not Kind.QUEUE}
        for queue in queues:
            self._note(Subject(Kind.QUEUE, queue.name), queue_problem(queue))
        self._close()

    def _close(self) -> None:
        self._closed = below(self._queues, {one.name for one in self.failing if one.kind is Kind.QUEUE})

    def _gone_queues(self) -> set[str]:
        return {one.name for one, why in self.failing.items() if one.kind is Kind.QUEUE and why.stripped}

    def _drop(self, subject: Subject) -> None:
        for held in (self.failing, self.out_of_range, self._on_trial):
            held.pop(subject, None)

    def _node(self, node: Node) -> Node | None:
        subject = Subject(Kind.NODE, node.name)
        self._note(subject, node_problem(node))
        failing = self.failing.get(subject)
        if failing is None and subject not in self.out_of_range:
            self._nodes.pop(node.name, None)
            return node
        self._nodes[node.name] = node
        return None if failing is not None and failing.stripped else closed_node(node)

    def _job(self, job: Job) -> Job:
        subject = Subject(Kind.JOB, job.id)
        self._note(subject, job_problem(job))
        failing = self.failing.get(subject)
        if failing is None and subject not in self.out_of_range and job.queue not in self._closed:
            self._jobs.pop(job.id, None)
            return job
        self._jobs[job.id] = job
        return bare_job(job) if failing is not None and failing.stripped else held_job(job)

    def _note(self, subject: Subject, problem: str) -> None:
        if problem:
            self.out_of_range[subject] = Disabled(subject, problem)
        elif self.out_of_range:
            self.out_of_range.pop(subject, None)

    # -------------------------------------------------------------------------------------------------- leaving out

    def leave_out(self, found: Iterable[Subject], fault: Fault, real: Snapshot, now_ms: int, *, stripped: bool) -> None:
        """Leave objects of a world out of planning. The ledger has to be made again, of what is planned on then."""
        essences = essences_of(real, found := tuple(found))
        for subject in found:
            before = self._on_trial.pop(subject, None)
            failures = before.failures + 1 if before is not None else 1
            retry_ms = now_ms + min(RETRY_MS << min(failures - 1, 10), MAX_RETRY_MS)
            essence = essences.get(subject)
            self.failing[subject] = Disabled(
                subject, fault.why, fault.id, now_ms, retry_ms, failures, stripped=stripped, essence=essence
            )
        self._close()

    def settled(self) -> list[Disabled]:
        """Return the objects that were tried again and have not failed."""
        tried, self._on_trial = list(self._on_trial.values()), {}
        return tried

    def _try_changed(self, change: Change, now_ms: int) -> None:
        """An object that is another than it was when it failed is tried again, but not with every change of it."""
        match change:
            case NodeSeen(node):
                changed = [(Subject(Kind.NODE, node.name), essence_of(node))]
            case JobSeen(job):
                changed = [(Subject(Kind.JOB, job.id), essence_of(job))]
            case QueuesSet(queues):
                changed = [(Subject(Kind.QUEUE, queue.name), essence_of(queue)) for queue in queues]
            case _:
                return
        for subject, essence in changed:
            known = self.failing.get(subject)
            if known is not None and known.essence != essence:
                soon_ms = max(now_ms, known.since_ms + CHANGED_MS)
                self.failing[subject] = replace(known, retry_ms=min(known.retry_ms, soon_ms))

    def _try_due(self, now_ms: int) -> Iterator[Change]:
        """Put back what is due, and say so to the ledger."""
        due = [subject for subject, one in self.failing.items() if one.retry_ms <= now_ms]
        for subject in due:
            self._on_trial[subject] = self.failing.pop(subject)
        if any(subject.kind is Kind.QUEUE for subject in due):
            yield QueuesSet(self._queues)
        for subject in due:
            if subject.kind is Kind.NODE and subject.name in self._nodes:
                yield NodeSeen(self._nodes[subject.name])
            elif subject.kind is Kind.JOB and subject.name in self._jobs:
                yield JobSeen(self._jobs[subject.name])


def essences_of(real: Snapshot, subjects: Iterable[Subject]) -> dict[Subject, object]:
    """The essence of each of these objects."""
    wanted = set(subjects)
    named: tuple[tuple[Subject, Node | Job | Queue], ...] = (
        *((Subject(Kind.NODE, node.name), node) for node in real.nodes),
        *((Subject(Kind.JOB, job.id), job) for job in real.jobs),
        *((Subject(Kind.QUEUE, queue.name), queue) for queue in real.queues),
    )
    return {subject: essence_of(one) for subject, one in named if subject in wanted}


def essence_of(one: Node | Job | Queue) -> object:
    """What an object is, but for what changes while it is there."""
    match one:
        case Node():
            return replace(one, ready=True, cordoned=False)
        case Job():
            return one.queue, one.group, one.priority, one.labels, tuple(task.request for task in one.tasks)
        case Queue():
            return one
