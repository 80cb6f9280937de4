"""What the scheduler plans with in the place of an object that cannot be planned on.

Place in the flow: containment ─disabled objects─▶ **stand_ins** ─▶ ledger. Pure. Invariant: a stand-in takes nothing
new and gives nothing up, and what runs stays booked: on its devices, and against its queue.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import Final, NamedTuple

from msgspec.structs import replace

from gpuyard.model.job_limits import job_problem, shares_problem
from gpuyard.model.jobs import ANYWHERE, Job, Request, Task, TaskGroup, TaskState
from gpuyard.model.limits import (
    MAX_NODE_CPU_MILLI,
    MAX_NODE_MEMORY_BYTES,
    MAX_OTHER_AMOUNT,
    MAX_TIME_MS,
    device_problem,
    node_problem,
    queue_problem,
)
from gpuyard.model.nodes import MAX_DEVICES_PER_NODE, Device, Node
from gpuyard.model.queues import Queue
from gpuyard.model.snapshot import Snapshot

HOSTNAME: Final = "hostname"
BROKEN: Final = Device(healthy=False, shareable=False)
"""In the place of a device whose facts are out of range: it keeps the numbers of those after it."""
IN_PLACE: Final = frozenset({TaskState.RUNNING, TaskState.FREEING, TaskState.STUCK})
_STARTS: Final = frozenset({TaskState.PENDING, TaskState.PROMISED})


class Kind(enum.StrEnum):
    """What can be left out of planning."""

    NODE = "node"
    JOB = "job"
    QUEUE = "queue"


class Subject(NamedTuple):
    """One node, job or queue."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def without(planned: Snapshot, subjects: Collection[Subject], *, stripped: bool) -> Snapshot:
    """A world in which these objects are left out.

    `stripped`: nothing is left of a node or queue, and of a job no more than what its running tasks take up.
    """
    out = {kind: {subject.name for subject in subjects if subject.kind is kind} for kind in Kind}
    nodes = (closed_node(node) if node.name in out[Kind.NODE] else node for node in planned.nodes)
    leave_job = bare_job if stripped else held_job
    closed = below(planned.queues, out[Kind.QUEUE])
    return replace(
        planned,
        nodes=tuple(node for node in nodes if not (stripped and node.name in out[Kind.NODE])),
        queues=sound_queues(planned.queues, out[Kind.QUEUE] if stripped else ()),
        jobs=tuple(
            leave_job(job) if job.id in out[Kind.JOB] else held_job(job) if job.queue in closed else job
            for job in planned.jobs
        ),
    )


def below(queues: tuple[Queue, ...], names: Collection[str]) -> frozenset[str]:
    """These queues and all below them."""
    found, size = set(names), -1
    while found and size != len(found):
        size = len(found)
        found |= {queue.name for queue in queues if queue.parent in found}
    return frozenset(found)


def closed_node(node: Node) -> Node:
    """A node that is not ready. Values out of range are cut to what can be counted with."""
    if not node_problem(node):
        return replace(node, ready=False)
    devices = tuple(BROKEN if device_problem(device) else device for device in node.devices[:MAX_DEVICES_PER_NODE])
    return Node(
        name=node.name,
        devices=devices,
        cpu_milli=_within(node.cpu_milli, MAX_NODE_CPU_MILLI),
        memory_bytes=_within(node.memory_bytes, MAX_NODE_MEMORY_BYTES),
        labels={HOSTNAME: node.name},
        ready=False,
    )


def held_job(job: Job) -> Job:
    """A job of which nothing starts, and that gives nothing up; what runs of it keeps its place."""
    if job_problem(job):
        return bare_job(job)
    return replace(
        job,
        tasks=tuple(_held(task) for task in job.tasks),
        protected=True,
        movable=False,
        run_limit_ms=None,
        estimate_ms=None,
        stale_since_ms=None,
    )


def bare_job(job: Job) -> Job:
    """No more of a job than what its running tasks take up: no labels, no rules, no groups."""
    tasks = tuple(_bare(task) for task in job.tasks if task.state in IN_PLACE)
    return Job(
        id=job.id,
        queue=job.queue,
        tasks=tasks,
        group=TaskGroup(min_tasks=0),
        preemptible=job.preemptible,
        protected=True,
        movable=False,
    )


def bare_queue(queue: Queue) -> Queue:
    """No more of a queue than its place in the tree."""
    return Queue(queue.name, queue.parent)


def sound_queues(queues: tuple[Queue, ...], gone: Collection[str]) -> tuple[Queue, ...]:
    """The tree without some queues and those below them; of a queue that is out of range only its place in the tree."""
    gone = below(queues, gone)
    return tuple(bare_queue(one) if queue_problem(one) else one for one in queues if one.name not in gone)


def _held(task: Task) -> Task:
    if task.state not in _STARTS:
        return task
    if task.state is TaskState.PROMISED:
        return replace(task, state=TaskState.GATED, node="", shares=(), started_at_ms=0, leaving=False)
    return replace(task, state=TaskState.GATED)


def _bare(task: Task) -> Task:
    asked = task.request
    request = Request(
        devices=_within(asked.devices, MAX_DEVICES_PER_NODE),
        gpu_milli=_within(asked.gpu_milli, 1000),
        gpu_memory_mib=max((share.memory_mib for share in task.shares), default=0) if asked.gpu_memory_mib else 0,
        mig=asked.mig,
        cpu_milli=_within(asked.cpu_milli, MAX_NODE_CPU_MILLI),
        memory_bytes=_within(asked.memory_bytes, MAX_NODE_MEMORY_BYTES),
        other=tuple((name, _within(amount, MAX_OTHER_AMOUNT)) for name, amount in asked.other),
        sharing=asked.sharing,
        where=ANYWHERE,
    )
    shares = tuple(share for share in task.shares if not shares_problem((share,)))
    started_at_ms = _within(task.started_at_ms, MAX_TIME_MS)
    return Task(task.id, request, state=task.state, node=task.node, shares=shares, started_at_ms=started_at_ms)


def _within(amount: int, most: int) -> int:
    return min(max(amount, 0), most)
