"""Jobs of a file as model values, all of their tasks pending.

Place in the flow: shape ─JobSpec─▶ **jobs** ─Job─▶ cluster (or seating, for those that run). Invariant: a job's queue
is a leaf that exists, its group names are unique, and no minimum is above what there is.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gpuyard.errors import InputError
from gpuyard.files.durations import read_duration
from gpuyard.files.format import GroupSpec, JobSpec, LastEvictionSpec, RequestFields, TopologySpec
from gpuyard.files.place import Place
from gpuyard.files.reasons import read_token
from gpuyard.files.requests import inherited, read_request
from gpuyard.files.suggest import did_you_mean
from gpuyard.model.jobs import (
    DEFAULT_PRIORITY,
    MAX_GROUP_DEPTH,
    MAX_TASKS_PER_JOB,
    Job,
    Task,
    TaskGroup,
    TopologyRule,
)
from gpuyard.model.nodes import Topology
from gpuyard.model.reasons import EVICTIONS, Reason

NOW_MS: Final = 10**12
"""The moment a file describes. Files say how long ago things were, so any fixed moment will do."""

MAX_TASKS_IN_FILE: Final = 1_000_000


class Surroundings(msgspec.Struct, frozen=True):
    """What a job of a file may refer to."""

    queues: tuple[str, ...]
    leaves: tuple[str, ...]
    topologies: tuple[Topology, ...] = ()


class Role(msgspec.Struct, frozen=True):
    """A leaf group of a job: so many tasks that ask for the same."""

    name: str
    tasks: int
    fields: RequestFields
    place: Place


def read_jobs_list(
    specs: list[tuple[JobSpec, Place]], around: Surroundings, youngest_ms: int, taken: frozenset[str] = frozenset()
) -> list[Job]:
    """Jobs in the order of the file: the first is the oldest and the last `youngest_ms` old, unless they say."""
    jobs: list[Job] = []
    seen = set(taken)
    tasks = 0
    for position, (spec, place) in enumerate(specs):
        if spec.job in seen:
            how = "is in the cluster already" if spec.job in taken else "is defined twice"
            raise place.at("job").error(f'job "{spec.job}" {how}', "give it another name")
        seen.add(spec.job)
        job = _job(spec, place, around, submitted_ago_ms=youngest_ms + len(specs) - 1 - position)
        tasks += len(job.tasks)
        if tasks > MAX_TASKS_IN_FILE:
            raise place.error(f"more than {MAX_TASKS_IN_FILE} tasks in one file", "check the counts")
        jobs.append(job)
    return jobs


def _job(spec: JobSpec, place: Place, around: Surroundings, submitted_ago_ms: int) -> Job:
    roles: list[Role] = []
    group = _root_group(spec, place, around, roles)
    return Job(
        id=spec.job,
        queue=_queue(spec, place, around),
        tasks=_tasks(spec, roles, place),
        group=group,
        priority=_or(spec.priority, DEFAULT_PRIORITY),
        preemptible=spec.preemptible is not False,
        submitted_at_ms=_or(moment(spec.age, place.at("age")), NOW_MS - submitted_ago_ms),
        labels=tuple(sorted((spec.labels or {}).items())),
        spread=bool(spec.spread),
        run_limit_ms=read_duration(spec.run_limit, place.at("run_limit")),
        estimate_ms=read_duration(spec.estimate, place.at("estimate")),
        checkpoint_at_ms=moment(spec.last_checkpoint, place.at("last_checkpoint")),
        restart_ms=_or(read_duration(spec.restart, place.at("restart")), 0),
        preemption_delay_ms=_or(read_duration(spec.preemption_delay, place.at("preemption_delay")), 0),
        staleness_grace_ms=read_duration(spec.staleness_grace, place.at("staleness_grace")),
        stale_since_ms=moment(spec.stale_for, place.at("stale_for")),
        last_evicted_at_ms=moment(spec.last_evicted, place.at("last_evicted")),
        movable=spec.movable is not False,
        disruption_budget=spec.disruption_budget,
        last_eviction=_last_eviction(spec.last_eviction, place.at("last_eviction")),
    )


def moment(ago: str | None, place: Place) -> int | None:
    """When something was that is so long ago."""
    past = read_duration(ago, place)
    return None if past is None else NOW_MS - past


def _last_eviction(spec: str | LastEvictionSpec | None, place: Place) -> Reason | None:
    if spec is None or isinstance(spec, str):
        return None if spec is None else Reason(read_token(spec, place, EVICTIONS))
    token = read_token(spec.reason, place.at("reason"), EVICTIONS)
    return Reason(token, subject=spec.subject or "", beneficiary=spec.beneficiary or "")


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


# ------------------------------------------------------------------------------------------------------------- queue


def _queue(spec: JobSpec, place: Place, around: Surroundings) -> str:
    if spec.team is not None and spec.queue is not None and spec.team != spec.queue:
        raise InputError(
            f'job "{spec.job}" names the team {spec.team} and the queue {spec.queue}',
            where=place.at("queue").where,
            fix="they mean the same: keep one",
        )
    named = spec.team or spec.queue
    if named is None:
        return _only_queue(spec, place, around)
    here = place.at("team" if spec.team else "queue")
    if named not in around.queues:
        meant = did_you_mean(named, around.leaves)
        raise here.error(f'job "{spec.job}" is in queue "{named}", which does not exist{meant}', _queues(around))
    if named not in around.leaves:
        raise here.error(f'job "{spec.job}" is in queue "{named}", which has queues below it', _queues(around))
    return named


def _only_queue(spec: JobSpec, place: Place, around: Surroundings) -> str:
    if len(around.leaves) != 1:
        raise place.error(f'job "{spec.job}" does not say its team', _queues(around))
    return around.leaves[0]


def _queues(around: Surroundings) -> str:
    shown = ", ".join(around.leaves[:10])
    return f"queues that hold jobs: {shown}{', ...' if len(around.leaves) > 10 else ''}"


# ------------------------------------------------------------------------------------------------------------- groups


def _root_group(spec: JobSpec, place: Place, around: Surroundings, roles: list[Role]) -> TaskGroup:
    topology = _topology(spec.topology, place.at("topology"), around)
    if spec.groups is None:
        tasks, gang = _counts(spec, place, f'job "{spec.job}"')
        if not gang:
            raise place.at("gang").error("a gang of 0 never starts anything", "write at least 1")
        _refuse_min_groups(spec, place)
        roles.append(Role("", tasks, spec, place))
        return TaskGroup("", gang, topology=topology)
    for field in ("tasks", "gang"):
        if getattr(spec, field) is not None:
            fix = f"give {field} to the groups instead"
            raise InputError(f"{field} is given besides groups", where=place.at(field).where_key, fix=fix)
    children = _children(spec, spec, place, around, roles, depth=2)
    return TaskGroup("", min_groups=spec.min_groups, children=children, topology=topology)


def _children(
    owner: JobSpec | GroupSpec, job: JobSpec, place: Place, around: Surroundings, roles: list[Role], depth: int
) -> tuple[TaskGroup, ...]:
    groups = owner.groups or []
    here = place.at("groups")
    if not groups:
        raise here.error("groups is empty", "list at least one, or leave it out")
    if depth > MAX_GROUP_DEPTH:
        raise here.error(f"groups are nested more than {MAX_GROUP_DEPTH} deep", "flatten them")
    if owner.min_groups is not None and owner.min_groups > len(groups):
        raise place.at("min_groups").error(
            f"min_groups is {owner.min_groups}, there are {len(groups)} groups", "lower it"
        )
    return tuple(_group(spec, job, here.at(index), around, roles, depth) for index, spec in enumerate(groups))


def _group(
    spec: GroupSpec, job: JobSpec, place: Place, around: Surroundings, roles: list[Role], depth: int
) -> TaskGroup:
    topology = _topology(spec.topology, place.at("topology"), around)
    if spec.groups is not None:
        _refuse_own_tasks(spec, place)
        children = _children(spec, job, place, around, roles, depth + 1)
        return TaskGroup(spec.name, min_groups=spec.min_groups, children=children, topology=topology)
    _refuse_min_groups(spec, place)
    tasks, gang = _counts(spec, place, f'group "{spec.name}"')
    roles.append(Role(spec.name, tasks, inherited(spec, job), place))
    return TaskGroup(spec.name, gang, topology=topology)


def _refuse_own_tasks(spec: GroupSpec, place: Place) -> None:
    for field in ("tasks", "gang", *RequestFields.__struct_fields__):
        if getattr(spec, field) is not None:
            raise InputError(
                f'group "{spec.name}" has groups below it and asks for {field} itself',
                where=place.at(field).where_key,
                fix="only groups without groups below them hold tasks",
            )


def _refuse_min_groups(spec: JobSpec | GroupSpec, place: Place) -> None:
    if spec.min_groups is not None:
        raise InputError(
            "min_groups is given without groups", where=place.at("min_groups").where_key, fix="leave it out"
        )


def _counts(spec: JobSpec | GroupSpec, place: Place, who: str) -> tuple[int, int]:
    """How many tasks there are and how many start together."""
    tasks = spec.tasks if spec.tasks is not None else max(spec.gang or 1, 1)
    gang = tasks if spec.gang is None else spec.gang
    if tasks > MAX_TASKS_PER_JOB:
        here = place.at("gang" if spec.tasks is None else "tasks")
        raise here.error(f"{who} has {tasks} tasks, more than {MAX_TASKS_PER_JOB}", "split it")
    if gang > tasks:
        fix = f"lower gang to {tasks}, or raise tasks"
        raise place.at("gang").error(f"{who} starts {gang} tasks together but has only {tasks}", fix)
    return tasks, gang


def _tasks(spec: JobSpec, roles: list[Role], place: Place) -> tuple[Task, ...]:
    _refuse_repeated_groups(spec, roles, place)
    if sum(role.tasks for role in roles) > MAX_TASKS_PER_JOB:
        raise place.error(f'job "{spec.job}" has more than {MAX_TASKS_PER_JOB} tasks', "split it")
    return tuple(task for role in roles for task in _role_tasks(spec.job, role))


def _role_tasks(job: str, role: Role) -> list[Task]:
    request = read_request(role.fields, role.place)
    stem = f"{job}/{role.name}" if role.name else job
    return [Task(f"{stem}/{number}", request, role.name) for number in range(1, role.tasks + 1)]


def _refuse_repeated_groups(spec: JobSpec, roles: list[Role], place: Place) -> None:
    seen: set[str] = set()
    for group, here in _all_groups(spec, place):
        if group.name in seen:
            raise here.at("name").error(f'group "{group.name}" is defined twice in job "{spec.job}"', "rename one")
        seen.add(group.name)


def _all_groups(owner: JobSpec | GroupSpec, place: Place) -> list[tuple[GroupSpec, Place]]:
    found = []
    for index, group in enumerate(owner.groups or []):
        here = place.at("groups", index)
        found += [(group, here), *_all_groups(group, here)]
    return found


def _topology(spec: TopologySpec | None, place: Place, around: Surroundings) -> TopologyRule | None:
    if spec is None:
        return None
    topology = _named_topology(spec, place, around)
    for field, level in (("required", spec.required), ("preferred", spec.preferred)):
        if level is not None and level not in topology.levels:
            raise place.at(field).error(
                f'topology "{topology.name}" has no level "{level}"', f"its levels: {', '.join(topology.levels)}"
            )
    if spec.required is None and spec.preferred is None:
        raise place.error("topology names no level", "write required: LEVEL or preferred: LEVEL")
    return TopologyRule(topology.name, spec.required, spec.preferred)


def _named_topology(spec: TopologySpec, place: Place, around: Surroundings) -> Topology:
    names = [topology.name for topology in around.topologies]
    if not names:
        raise place.error("the cluster has no topology", "add topologies: {default: [zone, rack]} to the cluster")
    if spec.name is None and len(names) > 1:
        raise place.error("topology does not say which one", f"add name: one of {', '.join(names)}")
    for topology in around.topologies:
        if spec.name in (None, topology.name):
            return topology
    raise place.at("name").error(f'there is no topology "{spec.name}"', f"topologies: {', '.join(names)}")
