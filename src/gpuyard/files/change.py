"""Change files: what somebody thinks of doing to a cluster, as changes of its snapshot.

Place in the flow: path ─▶ **change** ─Change─▶ scheduler.what_if. Invariants: whatever a change names exists, whatever
it adds does not, and the tree of queues it leads to has no contradiction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuyard.errors import InputError
from gpuyard.files.cluster import ClusterFile, open_file
from gpuyard.files.format import ChangeFileSpec, NodeChangesSpec
from gpuyard.files.jobs import Surroundings, read_jobs_list
from gpuyard.files.nodes import names_in, read_added, with_hostnames
from gpuyard.files.place import Place
from gpuyard.files.queues import QueueTree, changed_queues
from gpuyard.files.shape import shaped
from gpuyard.files.suggest import did_you_mean
from gpuyard.model.jobs import Job
from gpuyard.model.nodes import Node
from gpuyard.model.snapshot import MAX_NODES, Change, JobGone, JobSeen, NodeSeen, QueuesSet, Snapshot
from gpuyard.scheduler.what_if import drained, removed


def read_change(path: Path, cluster: ClusterFile) -> tuple[Change, ...]:
    """The changes of a file, in an order in which they can follow one another."""
    return changes_in(open_file(path), cluster)


def changes_in(place: Place, cluster: ClusterFile) -> tuple[Change, ...]:
    """The same from the top of a file or body."""
    spec = shaped(place, ChangeFileSpec, "change")
    if spec == ChangeFileSpec():
        raise place.error("nothing changes", "write queues, nodes, jobs or cancel: queues: {vision: {quota: 8}}")
    snapshot = cluster.snapshot
    cancelled = _cancelled(spec.cancel or [], place.at("cancel"), snapshot)
    staying = [job for job in snapshot.jobs if job.id not in cancelled]
    tree = _queues(spec, place.at("queues"), cluster, staying)
    return (
        *((QueuesSet(tree.queues),) if spec.queues else ()),
        *(_nodes(spec.nodes, place.at("nodes"), snapshot, staying) if spec.nodes else ()),
        *map(JobGone, sorted(cancelled)),
        *_jobs(spec, place, snapshot, tree, staying),
    )


def _cancelled(names: list[str], place: Place, snapshot: Snapshot) -> frozenset[str]:
    known = {job.id for job in snapshot.jobs}
    for index, name in enumerate(names):
        if name not in known:
            raise _missing(f'there is no job "{name}"', name, known, place.at(index))
    return frozenset(names)


def _missing(what: str, name: str, known: Iterable[str], place: Place) -> InputError:
    return place.error(f"{what}{did_you_mean(name, known)}", "name something that is in the cluster")


def _queues(spec: ChangeFileSpec, place: Place, cluster: ClusterFile, staying: list[Job]) -> QueueTree:
    snapshot = cluster.snapshot
    tree = QueueTree(snapshot.queues, snapshot.usage, cluster.summed)
    busy = frozenset(job.queue for job in staying)
    return changed_queues(spec.queues, place, tree, busy) if spec.queues else tree


def _jobs(
    spec: ChangeFileSpec, place: Place, snapshot: Snapshot, tree: QueueTree, staying: list[Job]
) -> Iterator[JobSeen]:
    around = Surroundings(tuple(queue.name for queue in tree.queues), tree.leaves, snapshot.topologies)
    specs = [(job, place.at("jobs", index)) for index, job in enumerate(spec.jobs or [])]
    taken = frozenset(job.id for job in staying)
    return map(JobSeen, read_jobs_list(specs, around, youngest_ms=0, taken=taken))


# -------------------------------------------------------------------------------------------------------------- nodes


def _nodes(spec: NodeChangesSpec, place: Place, snapshot: Snapshot, staying: list[Job]) -> Iterator[Change]:
    nodes = {node.name: node for node in snapshot.nodes}
    draining = _named(spec.drain or [], place.at("drain"), nodes)
    going = _named(spec.remove or [], place.at("remove"), nodes)
    for name in going:
        if name in draining:
            where, fix = place.at("remove").where_key, "keep one of the two"
            raise InputError(f'node "{name}" is drained and removed', where=where, fix=fix)
    added = read_added(spec.add or [], place.at("add"), frozenset(nodes.keys() - going.keys()))
    # Jobs with tasks on a drained and on a removed node are sent away from both.
    leaving = removed(staying, going.values(), snapshot.now_ms)
    sent = {change.job.id: change.job for change in leaving if isinstance(change, JobSeen)}
    yield from leaving
    yield from drained([sent.get(job.id, job) for job in staying], draining.values(), snapshot.now_ms)
    # Last, so that a node may come back as another.
    yield from map(NodeSeen, with_hostnames(added, snapshot.topologies))


def _named(names: list[str], place: Place, nodes: dict[str, Node]) -> dict[str, Node]:
    """The nodes of these names, in which there may be ranges."""
    found: dict[str, Node] = {}
    for index, written in enumerate(names):
        for name in names_in(written, place.at(index), MAX_NODES):
            if name not in nodes:
                raise _missing(f'there is no node "{name}"', name, nodes, place.at(index))
            found[name] = nodes[name]
    return found
