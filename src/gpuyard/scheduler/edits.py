"""Edits as changes: the same job with another value, the same tree of queues with another bound.

Place in the flow: ways_out ─Edit─▶ **edits** ─Change─▶ ledger. Whoever applies the edits of a way out in earnest gets
the same changes that were tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Final

from msgspec.structs import replace

from gpuyard.model.explanation import Edit, Field
from gpuyard.model.jobs import Job, Request, Task, TaskGroup, TaskState
from gpuyard.model.quantities import CPU, GPU, MEMORY, MILLI
from gpuyard.model.queues import Queue
from gpuyard.model.reasons import GPU_MEMORY, MIG_PREFIX
from gpuyard.model.snapshot import Change, JobGone, JobSeen, QueuesSet

OF_QUEUES: Final = frozenset({Field.QUOTA, Field.LIMIT})


def changes_of(edits: Iterable[Edit], jobs: Mapping[str, Job], queues: tuple[Queue, ...]) -> tuple[Change, ...]:
    """What the edits come to, given the jobs and queues as they are."""
    listed = tuple(edits)
    edited: dict[str, Job] = {}
    gone: list[Change] = []
    tree = edited_queues(queues, listed)
    for edit in listed:
        if edit.field in OF_QUEUES:
            continue
        if edit.field is Field.ENDS:
            gone.append(JobGone(edit.subject))
        else:
            edited[edit.subject] = edited_job(edited.get(edit.subject, jobs[edit.subject]), (edit,))
    seen = [JobSeen(job) for job in edited.values()]
    return (*((QueuesSet(tree),) if tree != queues else ()), *gone, *seen)


def leaf_of(job: Job, task: Task) -> str:
    """The name of the group a task is edited with: its leaf; all of the job where it lies on nodes of equal tasks."""
    return job.group.name if job.group.leaf or job.group.node_each else task.group


# Queues ----------------------------------------------------------------------------------------------------------


def edited_queues(queues: tuple[Queue, ...], edits: Iterable[Edit]) -> tuple[Queue, ...]:
    """The tree with other bounds."""
    by_queue: dict[str, list[Edit]] = {}
    for edit in edits:
        if edit.field in OF_QUEUES:
            by_queue.setdefault(edit.subject, []).append(edit)
    return tuple(reduce(_edited_queue, by_queue.get(queue.name, ()), queue) for queue in queues)


def _edited_queue(queue: Queue, edit: Edit) -> Queue:
    shares = [share for share in queue.shares if share.resource != edit.resource]
    share = replace(queue.share(edit.resource), **{edit.field.value: edit.after})
    position = next((at for at, old in enumerate(queue.shares) if old.resource == edit.resource), len(shares))
    return replace(queue, shares=(*shares[:position], share, *shares[position:]))


# Jobs ------------------------------------------------------------------------------------------------------------


def edited_job(job: Job, edits: Iterable[Edit]) -> Job:
    for edit in edits:
        match edit.field:
            case Field.ASKS | Field.MODEL:
                job = _asking(job, edit)
            case Field.GANG:
                job = replace(job, group=_with_minimum(job.group, edit.group, edit.after))
            case Field.TASKS:
                job = _with_tasks(job, edit)
            case Field.NODES:
                job = _on_fewer_nodes(job, edit.after)
            case Field.PREEMPTIBLE:
                job = replace(job, preemptible=bool(edit.after))
    return job


def _asking(job: Job, edit: Edit) -> Job:
    """Every waiting task of the group with another request; equal requests stay one object, which is quicker later."""
    changed: dict[Request, Request] = {}
    tasks = []
    for task in job.tasks:
        if task.state is TaskState.PENDING and leaf_of(job, task) == edit.group:
            request = changed.get(task.request)
            if request is None:
                request = changed[task.request] = _edited_request(task.request, edit)
            task = replace(task, request=request)
        tasks.append(task)
    return replace(job, tasks=tuple(tasks))


def _edited_request(request: Request, edit: Edit) -> Request:
    if edit.field is Field.MODEL:
        return replace(request, where=replace(request.where, gpu_models=edit.models))
    most = asked_amounts(request).get(edit.resource, 0)
    return with_amount(request, edit.resource, min(most, edit.after))


def asked_amounts(request: Request) -> dict[str, int]:
    """What one task asks for, by resource; a part of a GPU is counted for one device."""
    amounts: dict[str, int] = {}
    if request.whole:
        amounts[GPU] = request.devices * MILLI
    elif request.gpu_memory_mib:
        amounts[GPU_MEMORY] = request.gpu_memory_mib
    elif request.devices:
        amounts[GPU] = request.gpu_milli
    amounts |= {f"{MIG_PREFIX}{profile}": count for profile, count in request.mig}
    amounts |= {CPU: request.cpu_milli, MEMORY: request.memory_bytes, **dict(request.other)}
    return {resource: amount for resource, amount in amounts.items() if amount}


def with_amount(request: Request, resource: str, amount: int) -> Request:
    """The request with another amount of one resource that it asks for."""
    if resource == GPU:
        whole = request.whole
        return replace(request, devices=amount // MILLI) if whole else replace(request, gpu_milli=amount)
    if resource == GPU_MEMORY:
        return replace(request, gpu_memory_mib=amount)
    if resource == CPU:
        return replace(request, cpu_milli=amount)
    if resource == MEMORY:
        return replace(request, memory_bytes=amount)
    if resource.startswith(MIG_PREFIX):
        profile = resource.removeprefix(MIG_PREFIX)
        return replace(request, mig=tuple((name, amount if name == profile else n) for name, n in request.mig))
    return replace(request, other=tuple((name, amount if name == resource else n) for name, n in request.other))


def _with_tasks(job: Job, edit: Edit) -> Job:
    """Without the last waiting tasks of a group, all of whose tasks then start together."""
    surplus = edit.before - edit.after
    kept: list[Task] = []
    for task in reversed(job.tasks):
        if surplus > 0 and task.state is TaskState.PENDING and leaf_of(job, task) == edit.group:
            surplus -= 1
        else:
            kept.append(task)
    return replace(job, tasks=tuple(reversed(kept)), group=_with_minimum(job.group, edit.group, edit.after))


def _on_fewer_nodes(job: Job, nodes: int) -> Job:
    """The first of its nodes, all of which then start together."""
    children = job.group.children[:nodes]
    names = {child.name for child in children}
    group = replace(job.group, children=children, min_groups=None)
    return replace(job, tasks=tuple(task for task in job.tasks if task.group in names), group=group)


def _with_minimum(group: TaskGroup, name: str, minimum: int) -> TaskGroup:
    if group.leaf:
        return replace(group, min_tasks=minimum) if group.name == name else group
    return replace(group, children=tuple(_with_minimum(child, name, minimum) for child in group.children))
