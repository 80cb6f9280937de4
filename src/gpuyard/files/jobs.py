"""Jobs of a file as model values, all of their tasks pending.

Place in the flow: shape ─JobSpec─▶ **jobs** ─Job─▶ cluster (or seating, for those that run); shape ─WorkSpec─▶ **jobs**
─Job─▶ work. Invariant: a job's queue is a leaf that exists, its group names are unique, and no minimum is above what
there is.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from gpuyard.errors import InputError
from gpuyard.files.durations import read_duration
from gpuyard.files.format import (
    GroupSpec,
    JobFields,
    JobSpec,
    LastEvictionSpec,
    RequestFields,
    RunningJobSpec,
    TopologySpec,
)
from gpuyard.files.nodes import HOSTNAME
from gpuyard.files.place import Place
from gpuyard.files.reasons import read_token
from gpuyard.files.requests import inherited, read_request
from gpuyard.files.suggest import did_you_mean
from gpuyard.model.job_limits import job_problem
from gpuyard.model.jobs import (
    DEFAULT_PRIORITY,
    MAX_GROUP_DEPTH,
    MAX_TASKS_PER_JOB,
    NOBODY,
    Job,
    Request,
    Task,
    TaskGroup,
    TopologyRule,
    node_rank_name,
    on_nodes,
)
from gpuyard.model.nodes import Topology
from gpuyard.model.reasons import EVICTIONS, RULE, Reason

NOW_MS: Final = 10**12
"""The moment a file describes. Files say how long ago things were, so any fixed moment will do."""

MAX_TASKS_IN_FILE: Final = 1_000_000
MAX_CHOICES_SHOWN: Final = 4


class Surroundings(msgspec.Struct, frozen=True):
    """What a job of a file may refer to."""

    queues: tuple[str, ...]
    leaves: tuple[str, ...]
    topologies: tuple[Topology, ...] = ()
    own: tuple[str, ...] | None = None
    """Leaves to choose from where a job does not say its team; None: all."""

    @property
    def choice(self) -> tuple[str, ...]:
        return self.leaves if self.own is None else self.own


class Asked(msgspec.Struct, frozen=True):
    """A job as somebody wrote it: what it says, how it is called, where it stands, what it may refer to."""

    spec: JobFields
    name: str
    place: Place
    around: Surroundings


class Role(msgspec.Struct, frozen=True):
    """A leaf group of a job: so many tasks that ask for the same."""

    name: str
    tasks: int
    fields: RequestFields
    place: Place
    labels: tuple[tuple[str, str], ...] = ()
    """Of its tasks, besides those of the job."""


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
    """A job of a cluster, with what it has behind it."""
    job = replace(
        read_form(Asked(spec, spec.job, place, around)),
        priority=_or(spec.priority, DEFAULT_PRIORITY),
        submitted_at_ms=_or(moment(spec.age, place.at("age")), NOW_MS - submitted_ago_ms),
        checkpoint_at_ms=moment(spec.last_checkpoint, place.at("last_checkpoint")),
        stale_since_ms=moment(spec.stale_for, place.at("stale_for")),
        last_evicted_at_ms=moment(spec.last_evicted, place.at("last_evicted")),
        last_eviction=_last_eviction(spec.last_eviction, place.at("last_eviction")),
    )
    _refuse_out_of_range(job, spec.job, place)
    return job


def read_form(asked: Asked) -> Job:
    """A new job as the scheduler sees it, from the fields all files share."""
    spec, place = asked.spec, asked.place
    roles: list[Role] = []
    group = _root_group(asked, roles)
    form = Job(
        id=asked.name,
        queue=_queue(asked),
        tasks=_tasks(asked, roles),
        group=group,
        preemptible=spec.preemptible is not False,
        labels=tuple(sorted((spec.labels or {}).items())),
        spread=bool(spec.spread),
        run_limit_ms=read_duration(spec.run_limit, place.at("run_limit")),
        estimate_ms=read_duration(spec.estimate, place.at("estimate")),
        restart_ms=_or(read_duration(spec.restart, place.at("restart")), 0),
        preemption_delay_ms=_or(read_duration(spec.preemption_delay, place.at("preemption_delay")), 0),
        staleness_grace_ms=read_duration(spec.staleness_grace, place.at("staleness_grace")),
        movable=spec.movable is not False,
        checkpointable=bool(spec.checkpointable),
        disruption_budget=spec.disruption_budget,
    )
    _refuse_out_of_range(form, asked.name, place)
    return form


def _refuse_out_of_range(job: Job, name: str, place: Place) -> None:
    if problem := job_problem(job):
        raise place.error(f'job "{name}" is out of range: {problem}', "check the number")


def moment(ago: str | None, place: Place) -> int | None:
    """When something was that is so long ago."""
    past = read_duration(ago, place)
    return None if past is None else NOW_MS - past


def _last_eviction(spec: str | LastEvictionSpec | None, place: Place) -> Reason | None:
    if spec is None or isinstance(spec, str):
        return None if spec is None else Reason(read_token(spec, place, EVICTIONS))
    token = read_token(spec.reason, place.at("reason"), EVICTIONS)
    return Reason(token, RULE if spec.rule else "", subject=spec.subject or "", beneficiary=spec.beneficiary or "")


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


# ------------------------------------------------------------------------------------------------------------- queue


def _queue(asked: Asked) -> str:
    spec, place, around = asked.spec, asked.place, asked.around
    if spec.team is not None and spec.queue is not None and spec.team != spec.queue:
        what = f'job "{asked.name}" names the team {spec.team} and the queue {spec.queue}'
        raise place.at("queue").error(what, "they mean the same: keep one")
    named = spec.team or spec.queue
    if isinstance(spec, RunningJobSpec) and spec.nobodys:
        if named is not None:
            raise place.at("nobodys").error(
                f'job "{asked.name}" is nobody\'s and of team {named}', "keep one of the two"
            )
        return NOBODY
    if named is None:
        return _only_queue(asked)
    here = place.at("team" if spec.team else "queue")
    if named not in around.queues:
        meant = did_you_mean(named, around.leaves)
        raise here.error(f'job "{asked.name}" is in queue "{named}", which does not exist{meant}', _queues(around))
    if named not in around.leaves:
        raise here.error(f'job "{asked.name}" is in queue "{named}", which has queues below it', _queues(around))
    return named


def _only_queue(asked: Asked) -> str:
    choice = asked.around.choice
    if len(choice) != 1:
        field = f"{asked.place.name}.team".removeprefix(".")
        raise InputError(
            f'job "{asked.name}" does not say its team',
            where=replace(asked.place.where, field=field),
            fix=f"name its team, as team in a file or with --team; {_queues(asked.around)}",
        )
    return choice[0]


def _queues(around: Surroundings) -> str:
    choice = around.choice
    shown = ", ".join(choice[:10])
    return f"queues that hold jobs: {shown}{', ...' if len(choice) > 10 else ''}"


# ------------------------------------------------------------------------------------------------------------- groups


def _root_group(asked: Asked, roles: list[Role]) -> TaskGroup:
    spec, place = asked.spec, asked.place
    topology = _topology(spec.topology, place.at("topology"), asked.around)
    if spec.nodes is not None:
        return _node_groups(asked, spec.nodes, topology, roles)
    if spec.groups is None:
        tasks, gang = _counts(spec, place, f'job "{asked.name}"')
        if not gang:
            raise place.at("gang").error("a gang of 0 never starts anything", "write at least 1")
        _refuse_min_groups(spec, place)
        roles.append(Role("", tasks, spec, place))
        return TaskGroup("", gang, topology=topology)
    for field in ("tasks", "gang"):
        if getattr(spec, field) is not None:
            fix = f"give {field} to the groups instead"
            raise InputError(f"{field} is given besides groups", where=place.at(field).where_key, fix=fix)
    children = _children(spec, place, asked, roles, depth=2)
    return TaskGroup("", min_groups=spec.min_groups, children=children, topology=topology)


def _node_groups(asked: Asked, nodes: int, topology: TopologyRule | None, roles: list[Role]) -> TaskGroup:
    """`nodes: 2` with `tasks: 4`: four tasks on each of two nodes. Such a job comes and goes by whole nodes."""
    spec, place = asked.spec, asked.place
    _refuse_beside_nodes(spec, place)
    per_node, who = spec.tasks or 1, f'job "{asked.name}"'
    if nodes * per_node > MAX_TASKS_PER_JOB:
        what = f"{who} has {nodes * per_node} tasks, more than {MAX_TASKS_PER_JOB}"
        raise place.at("nodes").error(what, "split it")
    if nodes == per_node == 1:
        roles.append(Role("", 1, spec, place))
        return TaskGroup("", topology=topology)
    if nodes > 1 and topology is not None and topology.required == HOSTNAME:
        what = f"{who} is to lie on {nodes} nodes and inside one {HOSTNAME}"
        raise place.at("topology").error(what, "nodes: 1 keeps all tasks on one node; leave topology out")
    roles += [Role(node_rank_name(rank), per_node, spec, place) for rank in range(nodes)]
    return on_nodes(nodes, per_node, _min_nodes(spec, place, nodes, per_node), topology)


def _refuse_beside_nodes(spec: JobFields, place: Place) -> None:
    for field in ("groups", "min_groups"):
        if getattr(spec, field) is not None:
            fix = "nodes: 2 with tasks: 4 means four tasks on each of two nodes, all of which ask for the same"
            raise InputError(f"{field} is given besides nodes", where=place.at(field).where_key, fix=fix)


def _min_nodes(spec: JobFields, place: Place, nodes: int, per_node: int) -> int:
    """How many nodes start together: `gang` counts tasks, and comes in whole nodes."""
    if spec.gang is None:
        return nodes
    if not 0 < spec.gang <= nodes * per_node or spec.gang % per_node:
        what = f"gang is {spec.gang}, which is not the tasks of 1 to {nodes} whole nodes"
        raise place.at("gang").error(what, f"write one of {_choices(nodes, per_node)}")
    return spec.gang // per_node


def _choices(nodes: int, per_node: int) -> str:
    """`4, 8, 12`, and of many the first and the last."""
    counts = [str(per_node * count) for count in range(1, nodes + 1)]
    return ", ".join(counts if nodes <= MAX_CHOICES_SHOWN else [*counts[:2], "...", counts[-1]])


def _children(
    owner: JobFields | GroupSpec, place: Place, asked: Asked, roles: list[Role], depth: int
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
    return tuple(_group(spec, here.at(index), asked, roles, depth) for index, spec in enumerate(groups))


def _group(spec: GroupSpec, place: Place, asked: Asked, roles: list[Role], depth: int) -> TaskGroup:
    topology = _topology(spec.topology, place.at("topology"), asked.around)
    if spec.groups is not None:
        _refuse_own_tasks(spec, place)
        children = _children(spec, place, asked, roles, depth + 1)
        return TaskGroup(spec.name, min_groups=spec.min_groups, children=children, topology=topology)
    _refuse_min_groups(spec, place)
    tasks, gang = _counts(spec, place, f'group "{spec.name}"')
    labels = tuple(sorted((spec.labels or {}).items()))
    roles.append(Role(spec.name, tasks, inherited(spec, asked.spec), place, labels))
    return TaskGroup(spec.name, gang, topology=topology)


def _refuse_own_tasks(spec: GroupSpec, place: Place) -> None:
    for field in ("tasks", "gang", "labels", *RequestFields.__struct_fields__):
        if getattr(spec, field) is not None:
            raise InputError(
                f'group "{spec.name}" has groups below it and asks for {field} itself',
                where=place.at(field).where_key,
                fix="only groups without groups below them hold tasks",
            )


def _refuse_min_groups(spec: JobFields | GroupSpec, place: Place) -> None:
    if spec.min_groups is not None:
        raise InputError(
            "min_groups is given without groups", where=place.at("min_groups").where_key, fix="leave it out"
        )


def _counts(spec: JobFields | GroupSpec, place: Place, who: str) -> tuple[int, int]:
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


def _tasks(asked: Asked, roles: list[Role]) -> tuple[Task, ...]:
    _refuse_repeated_groups(asked)
    if sum(role.tasks for role in roles) > MAX_TASKS_PER_JOB:
        raise asked.place.error(f'job "{asked.name}" has more than {MAX_TASKS_PER_JOB} tasks', "split it")
    # Roles that ask for the same by the same fields share one request, which is quicker everywhere.
    requests: dict[int, Request] = {}
    for role in roles:
        if id(role.fields) not in requests:
            requests[id(role.fields)] = read_request(role.fields, role.place)
    return tuple(task for role in roles for task in _role_tasks(asked.name, role, requests[id(role.fields)]))


def _role_tasks(job: str, role: Role, request: Request) -> list[Task]:
    stem = f"{job}/{role.name}" if role.name else job
    names = [f"{stem}/{number}" for number in range(1, role.tasks + 1)]
    return [Task(name, request, role.name, labels=role.labels) for name in names]


def _refuse_repeated_groups(asked: Asked) -> None:
    seen: set[str] = set()
    for group, here in _all_groups(asked.spec, asked.place):
        if group.name in seen:
            raise here.at("name").error(f'group "{group.name}" is defined twice in job "{asked.name}"', "rename one")
        seen.add(group.name)


def _all_groups(owner: JobFields | GroupSpec, place: Place) -> list[tuple[GroupSpec, Place]]:
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
