"""Cluster and job files: the whole of a file as a snapshot.

Place in the flow: path ─source─▶ text ─tree─▶ Spot ─shape─▶ specs ─**cluster**─▶ Snapshot, Policy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from gpuyard.errors import InputError
from gpuyard.files.format import ClusterFileSpec, JobListSpec, JobSpec
from gpuyard.files.jobs import NOW_MS, Surroundings, read_jobs_list
from gpuyard.files.nodes import read_nodes, read_topologies, with_hostnames
from gpuyard.files.place import Place
from gpuyard.files.queues import read_queues
from gpuyard.files.seating import seat_running
from gpuyard.files.shape import shaped
from gpuyard.files.source import read_text
from gpuyard.files.tree import Kind, parse
from gpuyard.files.work import WorkFile, read_work
from gpuyard.model.jobs import Job
from gpuyard.model.snapshot import MAX_JOBS, Snapshot
from gpuyard.policies.policy import DEFAULT, Consolidation, Policy, Reservation, Step

HEAD_START_MS: Final = 1000
"""How much older the jobs of a cluster are than those planned on it, where neither says its age."""

MAY_BE_NEGATIVE: Final = frozenset({"staleness_grace_ms"})
"""Settings of a policy of which a negative value means for ever."""


class ClusterFile(msgspec.Struct, frozen=True):
    """What a cluster file says."""

    snapshot: Snapshot
    policy: Policy = DEFAULT
    summed: frozenset[str] = frozenset()
    """Queues whose GPU quota is the sum of those below them."""


def open_file(path: Path) -> Place:
    """The top of a file."""
    return Place(str(path), parse(read_text(path), str(path)))


def read_cluster(path: Path) -> ClusterFile:
    """A cluster: nodes, queues, what runs, what waits, and how it is run."""
    place = open_file(path)
    return build_cluster(shaped(place, ClusterFileSpec, "cluster"), place)


def read_jobs(path: Path, cluster: ClusterFile) -> tuple[Job, ...]:
    """The job or jobs of a file, as new jobs of a cluster: younger than all that are there."""
    place = open_file(path)
    snapshot = cluster.snapshot
    taken = frozenset(job.id for job in snapshot.jobs)
    if place.spot.kind is Kind.MAP and "command" in place.spot.fields:
        return _to_submit(read_work(place, surroundings(snapshot)), place, taken)
    jobs = read_jobs_list(_job_specs(place), surroundings(snapshot), youngest_ms=0, taken=taken)
    return tuple(jobs)


def _to_submit(file: WorkFile, place: Place, taken: frozenset[str]) -> tuple[Job, ...]:
    """The jobs of a file for `gpuyard submit`; of an array those that may run at once."""
    indices = file.array.indices[: file.array.at_once or None] if file.array else ()
    names = [f"{file.name}_{index}" for index in indices] or [file.name]
    for name in names:
        if name in taken:
            raise place.at("name").error(f'job "{name}" is in the cluster already', "give it another name")
    return tuple(_as_new(file.form, name) for name in names)


def _as_new(form: Job, name: str) -> Job:
    tasks = tuple(replace(task, id=f"{name}/{index}") for index, task in enumerate(form.tasks))
    return replace(form, id=name, tasks=tasks, submitted_at_ms=NOW_MS)


def _job_specs(place: Place) -> list[tuple[JobSpec, Place]]:
    if place.spot.kind is Kind.MAP and "jobs" in place.spot.fields:
        listed = shaped(place, JobListSpec, "job").jobs
        return [(spec, place.at("jobs", index)) for index, spec in enumerate(listed)]
    return [(shaped(place, JobSpec, "job"), place)]


def surroundings(snapshot: Snapshot) -> Surroundings:
    parents = {queue.parent for queue in snapshot.queues}
    names = tuple(queue.name for queue in snapshot.queues)
    return Surroundings(names, tuple(name for name in names if name not in parents), snapshot.topologies)


def build_cluster(spec: ClusterFileSpec, place: Place) -> ClusterFile:
    """The snapshot and policy of a checked file; scenario files share this."""
    topologies = read_topologies(spec, place)
    nodes = with_hostnames(read_nodes(spec, place), topologies)
    tree = read_queues(spec, place)
    around = Surroundings(tuple(queue.name for queue in tree.queues), tree.leaves, topologies)
    running = [(job, place.at("running", index)) for index, job in enumerate(spec.running or [])]
    pending = [(job, place.at("pending", index)) for index, job in enumerate(spec.pending or [])]
    if len(running) + len(pending) > MAX_JOBS:
        raise InputError(f"more than {MAX_JOBS} jobs", where=place.where)
    jobs = read_jobs_list([*running, *pending], around, HEAD_START_MS)
    seated = seat_running(jobs[: len(running)], running, nodes)
    everyone = (*seated, *jobs[len(running) :])
    moves = spec.moves_last_hour or 0
    snapshot = Snapshot(nodes, tree.queues, everyone, topologies, tree.usage, NOW_MS, moves)
    return ClusterFile(snapshot, _policy(spec, place.at("policy")), tree.summed)


def _policy(spec: ClusterFileSpec, place: Place) -> Policy:
    if spec.policy is None:
        return DEFAULT
    _refuse_negative(spec.policy, place)
    _refuse_negative(spec.policy.consolidation, place.at("consolidation"))
    _refuse_negative(spec.policy.reservation, place.at("reservation"))
    if Step.ALLOCATE not in spec.policy.steps:
        raise place.at("steps").error("policy.steps leaves out allocate", "without it nothing would ever start")
    for index, task in enumerate(spec.policy.typical_tasks):
        if min(task.devices, task.gpu_milli, task.cpu_milli) < 0 or task.weight < 1:
            here = place.at("typical_tasks", index)
            raise here.error(f"{here.name} has a negative amount or no weight", "write zero or more, weight from 1")
    return spec.policy


def _refuse_negative(settings: Policy | Consolidation | Reservation, place: Place) -> None:
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if isinstance(value, int) and value < 0 and name not in MAY_BE_NEGATIVE:
            raise place.at(name).error(f"{place.name}.{name} must not be negative, got {value}", "write zero or more")
