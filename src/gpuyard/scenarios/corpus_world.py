"""The cluster of a situation, playing along between cycles.

What was bound runs, what was ending has ended, and whatever was evicted or only promised a place waits again. A job
that is `delete_in_test` keeps ending for ever instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Final

from msgspec.structs import replace

from gpuyard.model.jobs import DeviceShare, Job, Request, Task, TaskState
from gpuyard.model.plan import Action, Bind, Evict, Move, Plan, Promise
from gpuyard.model.queues import AffinityScope
from gpuyard.model.snapshot import Snapshot
from gpuyard.scenarios.corpus_cluster import nodes_of, queues_of, topologies_of
from gpuyard.scenarios.corpus_devices import with_devices
from gpuyard.scenarios.corpus_format import Defaults, Kind, Outcome, Scenario
from gpuyard.scenarios.corpus_jobs import HOLDING, NOW_MS, jobs_of, leaves

CYCLE_MS: Final = 1000


def snapshot_of(scenario: Scenario, defaults: Defaults) -> Snapshot:
    """The cluster as the situation begins."""
    nodes = nodes_of(scenario.input, defaults)
    jobs = with_devices(jobs_of(scenario, defaults), nodes, scenario.input)
    if scenario.kind is Kind.SINGLE_CYCLE:
        jobs = (*jobs, *_being_freed(jobs))
    return Snapshot(
        nodes=nodes,
        queues=queues_of(scenario.input, defaults),
        jobs=jobs,
        topologies=topologies_of(scenario.input),
        now_ms=NOW_MS,
        affinity_scope=AffinityScope.CLUSTER,
    )


def _being_freed(jobs: tuple[Job, ...]) -> Iterator[Job]:
    """Whoever leaves the places that tasks were promised, where the file names only those who wait for them."""
    tasks = [task for job in jobs for task in job.tasks if task.state is TaskState.FREEING]
    known = {(task.node, share.device) for task in tasks for share in task.shares}
    for job in jobs:
        for task in job.tasks:
            if task.state is TaskState.PROMISED and task.shares:
                held = [share.device for share in task.shares if not share.mig]
                devices = [device for device in held if (task.node, device) not in known]
                if not devices:
                    continue
                leaving = Task(
                    f"{task.id} (its place)",
                    Request(devices=len(devices)),
                    state=TaskState.FREEING,
                    node=task.node,
                    shares=tuple(DeviceShare(device) for device in devices),
                )
                yield Job(leaving.id, job.queue, (leaving,))


# --------------------------------------------------------------------------------------------------- between cycles


def played(world: Snapshot, plan: Plan, ending_for_ever: Set[str]) -> Snapshot:
    """The cluster one cycle later, after the plan was carried out. `ending_for_ever` names jobs."""
    actions = _by_task(plan)
    now_ms = world.now_ms + CYCLE_MS
    jobs = (_job_later(job, actions, job.id in ending_for_ever, world.now_ms) for job in world.jobs)
    return replace(world, jobs=tuple(_marked_stale(job, now_ms) for job in jobs), now_ms=now_ms)


def _by_task(plan: Plan) -> dict[tuple[str, str], list[Action]]:
    actions: dict[tuple[str, str], list[Action]] = {}
    for action in plan.actions:
        actions.setdefault((action.job, action.task), []).append(action)
    return actions


def _job_later(job: Job, actions: dict[tuple[str, str], list[Action]], ends_for_ever: bool, now_ms: int) -> Job:
    tasks = []
    evicted = False
    for task in job.tasks:
        mine = actions.get((job.id, task.id), [])
        evicted |= any(isinstance(action, Evict | Move) for action in mine)
        tasks.append(_task_later(task, mine, ends_for_ever, now_ms))
    return replace(job, tasks=tuple(tasks), last_evicted_at_ms=now_ms if evicted else job.last_evicted_at_ms)


def _task_later(task: Task, actions: list[Action], ends_for_ever: bool, now_ms: int) -> Task:
    for action in actions:
        if isinstance(action, Bind):
            return replace(task, state=TaskState.RUNNING, node=action.node, shares=action.shares, started_at_ms=now_ms)
    ends = task.state is TaskState.FREEING or any(isinstance(action, Evict | Move) for action in actions)
    if ends and ends_for_ever:
        return replace(task, state=TaskState.FREEING)
    if ends or task.state is TaskState.PROMISED:
        return replace(task, state=TaskState.PENDING, node="", shares=(), started_at_ms=0)
    return task


def _marked_stale(job: Job, now_ms: int) -> Job:
    """Keep the moment since which a started gang has been incomplete."""
    if not _stale(job):
        return replace(job, stale_since_ms=None)
    return job if job.stale_since_ms is not None else replace(job, stale_since_ms=now_ms)


def _stale(job: Job) -> bool:
    states = [task.state for task in job.tasks]
    if TaskState.SUCCEEDED in states or not any(state in HOLDING for state in states):
        return False
    active = [task.group for task in job.tasks if task.state in HOLDING]
    return any(active.count(leaf.name) < leaf.min_tasks for leaf in leaves(job.group))


# ---------------------------------------------------------------------------------------------------------- outcomes


def planned_outcome(task: Task, actions: list[Action]) -> tuple[Outcome, str]:
    """What one plan does to a task, and the node it then has; '' where it has none."""
    evicted = any(isinstance(action, Evict | Move) for action in actions)
    for action in actions:
        if isinstance(action, Move) or (isinstance(action, Bind | Promise) and evicted):
            return Outcome.MOVED, action.node
        if isinstance(action, Bind):
            return Outcome.ALLOCATED, action.node
        if isinstance(action, Promise):
            return Outcome.PIPELINED, action.node
    if evicted:
        return Outcome.EVICTED, task.node
    return (Outcome.PENDING if task.state is TaskState.PENDING else Outcome.KEPT), task.node


def lived_outcome(before: Task, after: Task) -> tuple[Outcome, str]:
    """What became of a task over several cycles, and the node it then has."""
    if after.state is TaskState.PENDING:
        had_place = before.state in HOLDING
        return (Outcome.BACK_TO_PENDING if had_place else Outcome.PENDING), ""
    if after.state is TaskState.FREEING and before.state is TaskState.RUNNING:
        return Outcome.EVICTED, after.node
    if after.state is TaskState.RUNNING and before.state is not TaskState.RUNNING:
        return Outcome.ALLOCATED, after.node
    return Outcome.KEPT, after.node


def planned_outcomes(world: Snapshot, plan: Plan) -> dict[str, tuple[Outcome, str]]:
    actions = _by_task(plan)
    return {
        task.id: planned_outcome(task, actions.get((job.id, task.id), [])) for job in world.jobs for task in job.tasks
    }


def lived_outcomes(before: Snapshot, after: Snapshot) -> dict[str, tuple[Outcome, str]]:
    first = {task.id: task for job in before.jobs for task in job.tasks}
    return {task.id: lived_outcome(first[task.id], task) for job in after.jobs for task in job.tasks}
