"""The state as the scheduler sees it: nodes, queues and jobs of the model.

Place in the flow: State ─**snapshot**─▶ changes ─▶ ledger. Pure. What is being moved is in two places for a while: the
task has its new place promised, and a shadow of it, a job of its own that asks for nothing, still frees the old one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from gpuyard.model.jobs import Job, Task, TaskGroup, TaskState
from gpuyard.model.nodes import Node, Topology
from gpuyard.model.snapshot import Change, JobGone, JobSeen, Snapshot
from gpuyard.worlds.standalone.fold import HOUR_MS
from gpuyard.worlds.standalone.lifecycle import OVER, JobState, TaskPhase
from gpuyard.worlds.standalone.records import JobRecord, NodeRecord, State, TaskRecord, done_per_leaf

SHADOW: Final = "~leaving"
MACHINES: Final = Topology("machines", ("hostname",))
"""The one topology every cluster has: each machine is a domain."""

STUCK_AFTER_MS: Final = 60_000
"""Beyond its grace: a task that has still not ended is not counted on."""

RECLAIMABLE_PRIORITY: Final = 0
"""Of a job that was warned and still does not use its GPUs: anybody of its team comes before it."""

_MAY_START: Final = frozenset({JobState.WAITING, JobState.STARTING, JobState.RUNNING})


def snapshot_of(state: State, now_ms: int) -> Snapshot:
    jobs = [seen for record in state.jobs.values() if record.state not in OVER for seen in seen_as(record, now_ms)]
    return Snapshot(
        nodes=tuple(node_seen_as(node) for node in state.nodes.values() if node.seen),
        queues=state.queues,
        jobs=tuple(jobs),
        topologies=(MACHINES,),
        now_ms=now_ms,
        moves_last_hour=moves_last_hour(state, now_ms),
    )


def moves_last_hour(state: State, now_ms: int) -> int:
    """Counted at that moment: the log notes moves, not that an hour has passed since."""
    return sum(moment_ms > now_ms - HOUR_MS for moment_ms in state.moves)


def changes_of(id: str, record: JobRecord | None, now_ms: int) -> Iterator[Change]:
    """What the ledger is told about a job that has changed, or is there no more."""
    seen = {} if record is None or record.state in OVER else {job.id: job for job in seen_as(record, now_ms)}
    for name in (id, f"{id}{SHADOW}"):
        yield JobSeen(seen[name]) if name in seen else JobGone(name)


def seen_as(record: JobRecord, now_ms: int) -> Iterator[Job]:
    """The job, and its shadow where something of it is being moved."""
    tasks = tuple(_task(record, index, task, now_ms) for index, task in enumerate(record.tasks))
    job = replace(
        record.form,
        tasks=tasks,
        group=_left_of(record),
        last_evicted_at_ms=record.last_evicted_at_ms,
        last_eviction=record.last_eviction,
        stale_since_ms=record.stale_since_ms,
        checkpoint_at_ms=max((task.checkpoint_at_ms for task in record.tasks), default=0) or None,
    )
    if record.reclaimable:
        job = replace(job, preemptible=True, priority=RECLAIMABLE_PRIORITY)
    yield job
    leaving = [
        Task(f"{form.id}{SHADOW}", form.request, state=_freeing(record, task, now_ms), node=old.node, shares=old.shares)
        for form, task in zip(record.form.tasks, record.tasks, strict=True)
        if task.next is not None and (old := task.place) is not None
    ]
    if leaving:
        yield Job(f"{record.id}{SHADOW}", record.team, tuple(leaving))


def _left_of(record: JobRecord) -> TaskGroup:
    """The groups of a job with what is still to be done: what is done counts for its gang and needs no place."""
    done = done_per_leaf(record)
    return _without(record.form.group, done) if done else record.form.group


def _without(group: TaskGroup, done: dict[str, int]) -> TaskGroup:
    if group.leaf:
        return replace(group, min_tasks=max(group.min_tasks - done.get(group.name, 0), 0))
    return replace(group, children=tuple(_without(child, done) for child in group.children))


def _task(record: JobRecord, index: int, task: TaskRecord, now_ms: int) -> Task:
    form = record.form.tasks[index]
    place = task.next or task.place
    state = _state(record, task, now_ms)
    if place is None or state in (TaskState.PENDING, TaskState.GATED, TaskState.SUCCEEDED):
        return form if state is TaskState.PENDING else replace(form, state=state)
    return replace(
        form,
        state=state,
        node=place.node,
        shares=place.shares,
        started_at_ms=task.started_at_ms or task.assigned_at_ms,
        leaving=task.next is not None,
    )


def _state(record: JobRecord, task: TaskRecord, now_ms: int) -> TaskState:
    match task.phase:
        case TaskPhase.WAITING:
            return TaskState.PENDING if record.state in _MAY_START else TaskState.GATED
        case TaskPhase.PROMISED:
            return TaskState.PROMISED
        case TaskPhase.ASSIGNED | TaskPhase.RUNNING:
            return TaskState.RUNNING
        case TaskPhase.STOPPING:
            return TaskState.PROMISED if task.next is not None else _freeing(record, task, now_ms)
        case TaskPhase.DONE:
            return TaskState.SUCCEEDED


def _freeing(record: JobRecord, task: TaskRecord, now_ms: int) -> TaskState:
    late_ms = now_ms - task.stopping_since_ms - record.work.grace_ms
    return TaskState.STUCK if late_ms > STUCK_AFTER_MS else TaskState.FREEING


def node_seen_as(node: NodeRecord) -> Node:
    labels = {**node.facts.labels, "hostname": node.name, **dict(node.labels)}
    return Node(
        name=node.name,
        devices=node.facts.devices,
        cpu_milli=node.facts.cpu_milli,
        memory_bytes=node.facts.memory_bytes,
        labels=labels,
        cordoned=node.drained,
        ready=node.silent_since_ms is None and not node.lost and not node.unhealthy,
    )
