"""Questions the properties ask of a plan, answered with the simple bookkeeper of `tests.replay`."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from gpuyard.model.jobs import Job, Task, TaskGroup, TaskState
from gpuyard.model.plan import Bind
from gpuyard.model.queues import QueueShare
from gpuyard.model.reasons import Reason, Token
from gpuyard.model.snapshot import Snapshot
from gpuyard.scheduler.ledger import Ledger
from tests.company_by_force import staying, unwanted
from tests.replay import (
    COUNTED,
    HELD_LATER,
    HOSTNAME,
    Books,
    charge,
    counted,
    counted_firm,
    leaves,
    path,
    queue_charges,
    subgroups,
)


def changed_jobs(cluster: Snapshot, books: Books) -> Iterator[tuple[Job, Job]]:
    """Every job the plan starts something of: as it was, and as it will be."""
    for job in cluster.jobs:
        after = books.jobs[job.id]
        if any(new.state in COUNTED and new != old for old, new in zip(job.tasks, after.tasks, strict=True)):
            yield job, after


def started_in(group: TaskGroup, before: Job, after: Job) -> bool:
    """Whether the plan started any task of a group."""
    names = {leaf.name for leaf in leaves(group)}
    pairs = zip(before.tasks, after.tasks, strict=True)
    return any(new.group in names and new.state is not old.state for old, new in pairs)


def started_plain_gangs(cluster: Snapshot, books: Books) -> Iterator[Job]:
    """Gangs of one leaf, free of rules about their place, that the plan has started now and whole."""
    for job in cluster.jobs:
        waits = all(task.state is TaskState.PENDING for task in job.tasks)
        plain = job.group.leaf and not job.group.topology and not job.spread and not neighbourly(job)
        plain = plain and not would_rather_part(job)
        runs = all(task.state is TaskState.RUNNING for task in books.jobs[job.id].tasks)
        if waits and plain and runs and job.group.min_tasks == len(job.tasks) > 1:
            yield books.jobs[job.id]


def without(books: Books, job: Job) -> Books:
    """The books as if the job had never been started."""
    waiting = replace(
        job, tasks=tuple(replace(task, state=TaskState.PENDING, node="", shares=()) for task in job.tasks)
    )
    snapshot = books.snapshot()
    return Books(replace(snapshot, jobs=tuple(waiting if one.id == job.id else one for one in snapshot.jobs)))


def next_plain_chunk(job: Job) -> list[Task]:
    """What a job of one leaf and equal tasks would start next, where no rule about its place confuses the matter."""
    waiting = [task for task in job.tasks if task.state is TaskState.PENDING]
    required = job.group.topology is not None and job.group.topology.required is not None
    if not job.group.leaf or required or neighbourly(job):
        return []
    running = sum(task.state in COUNTED for task in job.tasks)
    size = max(1, job.group.min_tasks - running)
    return waiting[:size] if len(waiting) >= size else []


def neighbourly(job: Job) -> bool:
    return any(task.request.where.neighbours or task.request.where.spreads for task in job.tasks)


def would_rather_part(job: Job) -> bool:
    """Whether there is company its tasks would rather be apart from: that may be each other."""
    wheres = [task.request.where for task in job.tasks]
    return any(where.soft_spreads or any(one.weight < 0 for one in where.soft_neighbours) for where in wheres)


def one_node_for(job: Job, books: Books, chunk: list[Task] | None = None) -> str | None:
    """A node that would take these tasks together, in idle places, within what the job's queues allow."""
    for node in books.nodes:
        trial = Books(books.snapshot())
        fits = all(started_on(trial, job, task, node) for task in chunk or job.tasks)
        if fits and within_bounds(trial, job) and not unwelcome(trial, job):
            return node
    return None


def unwelcome(books: Books, job: Job) -> bool:
    """Whether a task that lies near one of the job's wants no such company."""
    snapshot = books.snapshot()
    return any(
        True
        for task in books.jobs[job.id].tasks
        if task.node in books.nodes
        for _ in unwanted(snapshot, staying(snapshot, task), job, task, books.nodes[task.node])
    )


def started_on(books: Books, job: Job, task: Task, node: str) -> bool:
    shares = books.room(task.request, node)
    if shares is None:
        return False
    books.step(Bind(job.id, task.id, node, shares, Reason(Token.PLACED)))
    return True


def within_bounds(books: Books, job: Job) -> bool:
    """Whether every queue above the job is within its limits, and within its quotas for what may not be preempted."""
    snapshot = books.snapshot()
    held, firm = queue_charges(snapshot, counted), queue_charges(snapshot, counted_firm)
    for queue in path(snapshot, job.queue):
        for resource in resources_of(books, job):
            share = share_of(snapshot, queue, resource)
            if share.limit is not None and held[queue][resource] > share.limit:
                return False
            if not job.preemptible and share.quota is not None and firm[queue][resource] > share.quota:
                return False
    return True


def resources_of(books: Books, job: Job) -> set[str]:
    """The resources a job holds any of."""
    return {
        resource
        for task in books.jobs[job.id].tasks
        if task.state in COUNTED
        for resource in charge(task.request, task.shares, books.nodes.get(task.node))
    }


def touched(cluster: Snapshot, books: Books) -> Iterator[tuple[str, str, Job]]:
    """Every queue and resource the plan has taken more of, with the job that did."""
    nodes = {node.name: node for node in cluster.nodes}
    for before in cluster.jobs:
        after = books.jobs[before.id]
        for old, new in zip(before.tasks, after.tasks, strict=True):
            if old != new and new.state in COUNTED:
                for resource in charge(new.request, new.shares, nodes.get(new.node)):
                    yield from ((queue, resource, after) for queue in path(cluster, after.queue))


def share_of(cluster: Snapshot, queue: str, resource: str) -> QueueShare:
    (found,) = (one for one in cluster.queues if one.name == queue)
    return found.share(resource)


def leaf_queues(cluster: Snapshot) -> set[str]:
    return {queue.name for queue in cluster.queues} - {queue.parent for queue in cluster.queues if queue.parent}


def newly_placed(cluster: Snapshot, books: Books) -> Iterator[tuple[Job, Task]]:
    for before in cluster.jobs:
        after = books.jobs[before.id]
        for old, new in zip(before.tasks, after.tasks, strict=True):
            if old != new and new.state in HELD_LATER:
                yield after, new


def domain_of(books: Books, task: Task, levels: tuple[str, ...]) -> tuple[str, ...] | None:
    """The labels that draw the domain a task lies in; None where its node lacks one, or is gone."""
    node = books.nodes.get(task.node)
    if node is None:
        return None
    values = tuple(node.labels.get(level, node.name if level == HOSTNAME else "") for level in levels)
    return values if all(values) else None


def required_groups(cluster: Snapshot, job: Job) -> Iterator[tuple[TaskGroup, tuple[str, ...]]]:
    """The groups of a job that must lie in one domain, with the labels that draw it."""
    for group in subgroups(job.group):
        if group.topology is not None and group.topology.required is not None:
            (topology,) = (one for one in cluster.topologies if one.name == group.topology.topology)
            yield group, topology.levels[: topology.levels.index(group.topology.required) + 1]


def tasks_in(group: TaskGroup, job: Job) -> list[Task]:
    names = {leaf.name for leaf in leaves(group)}
    return [task for task in job.tasks if task.group in names and task.state in COUNTED]


def ledger_charges(cluster: Snapshot) -> dict[tuple[str, str], int]:
    """What a ledger says each queue holds of each resource that is rationed."""
    book = Ledger.of(cluster).queues
    return {
        (frame.name, resource): amount
        for frame in book.frames
        for resource, amount in zip(book.resources.names, book.held[frame.at], strict=True)
    }
