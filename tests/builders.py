"""Fluent builders of clusters: a test says only what it is about, everything else has a good default.

    a_cluster().nodes(4, gpus=8).queue("vision", quota=4).jobs(a_job("big").team("vision").gpus(8)).snapshot()

Each call gives a new builder, so that a half-built job or cluster can be shared between tests. What a running task
holds of a device is worked out when the snapshot is built, because a share of its memory depends on the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from gpuyard.model.jobs import (
    NOBODY,
    DeviceShare,
    Job,
    LabelRule,
    Neighbour,
    Operator,
    Request,
    Sharing,
    Spread,
    Task,
    TaskGroup,
    TaskState,
    Toleration,
    TopologyRule,
)
from gpuyard.model.nodes import Device, MigSlices, Node, Taint, Topology, mig_slice_milli
from gpuyard.model.quantities import CPU, GPU, MEMORY, MILLI, gpu_model_resource, memory_bytes, milli
from gpuyard.model.queues import AffinityScope, Queue, QueueShare
from gpuyard.model.snapshot import Snapshot

DEFAULT_TEAM: Final = "team"
DEFAULT_GPU_MIB: Final = 80_000
ROOMY_CPU_MILLI: Final = 1_000_000
ROOMY_MEMORY_BYTES: Final = 1 << 45


class Place(msgspec.Struct, frozen=True):
    """Where one task of a built job already is."""

    node: str
    devices: tuple[int, ...]
    state: TaskState


class Role(msgspec.Struct, frozen=True):
    """Some tasks of a built job that ask for the same, in one leaf of its tree."""

    name: str
    request: Request
    count: int
    gang: int
    topology: TopologyRule | None = None
    parent: str = ""


class JobBuilder(msgspec.Struct, frozen=True):
    """A job in the making."""

    base: Job
    request: Request = Request(devices=1)
    count: int = 1
    gang: int = 1
    roles: tuple[Role, ...] = ()
    places: tuple[Place, ...] = ()

    # What each task asks for

    def gpus(self, count: int) -> JobBuilder:
        return self._asks(devices=count, gpu_milli=MILLI, gpu_memory_mib=0)

    def fraction(self, share: str, devices: int = 1, sharing: Sharing = Sharing.TIME_SLICED) -> JobBuilder:
        return self._asks(devices=devices, gpu_milli=milli(share), gpu_memory_mib=0, sharing=sharing)

    def gpu_memory(self, mib: int, devices: int = 1, sharing: Sharing = Sharing.TIME_SLICED) -> JobBuilder:
        return self._asks(devices=devices, gpu_milli=0, gpu_memory_mib=mib, sharing=sharing)

    def mig(self, profile: str, count: int = 1) -> JobBuilder:
        return self._asks(devices=0, mig=((profile, count),))

    def cpu(self, cores: str | int) -> JobBuilder:
        return self._asks(cpu_milli=milli(cores))

    def memory(self, text: str) -> JobBuilder:
        return self._asks(memory_bytes=memory_bytes(text))

    def other(self, name: str, count: int) -> JobBuilder:
        return self._asks(other=((name, count),))

    # Where it may run

    def on_models(self, *models: str) -> JobBuilder:
        return self._asks(where=replace(self.request.where, gpu_models=models))

    def where(self, key: str, *values: str) -> JobBuilder:
        rules = ((LabelRule(key, Operator.IN, values),),)
        return self._asks(where=replace(self.request.where, any_of=rules))

    def tolerates(self, key: str, value: str | None = None) -> JobBuilder:
        tolerations = (*self.request.where.tolerations, Toleration(key, value))
        return self._asks(where=replace(self.request.where, tolerations=tolerations))

    def near(self, level: str, **labels: str) -> JobBuilder:
        return self._neighbour(Neighbour(tuple(sorted(labels.items())), level))

    def apart(self, level: str, **labels: str) -> JobBuilder:
        return self._neighbour(Neighbour(tuple(sorted(labels.items())), level, apart=True))

    def even(self, level: str, skew: int = 1, **labels: str) -> JobBuilder:
        """Spread evenly with all tasks that have these labels."""
        rules = tuple(LabelRule(key, Operator.IN, (value,)) for key, value in sorted(labels.items()))
        spreads = (*self.request.where.spreads, Spread(level, skew, rules))
        return self._asks(where=replace(self.request.where, spreads=spreads))

    def topology(self, name: str, required: str | None = None, preferred: str | None = None) -> JobBuilder:
        return self._is(group=replace(self.base.group, topology=TopologyRule(name, required, preferred)))

    # Whose it is

    def team(self, name: str) -> JobBuilder:
        return self._is(queue=name)

    def nobodys(self) -> JobBuilder:
        return self._is(queue=NOBODY)

    def priority(self, value: int) -> JobBuilder:
        return self._is(priority=value)

    def non_preemptible(self) -> JobBuilder:
        return self._is(preemptible=False)

    def submitted(self, at_ms: int) -> JobBuilder:
        return self._is(submitted_at_ms=at_ms)

    def lasts(self, limit_ms: int | None = None, estimate_ms: int | None = None) -> JobBuilder:
        """It is stopped after `limit_ms`, and thought to run for `estimate_ms`."""
        return self._is(run_limit_ms=limit_ms, estimate_ms=estimate_ms)

    def labels(self, **labels: str) -> JobBuilder:
        return self._is(labels=tuple(sorted(labels.items())))

    def spread(self) -> JobBuilder:
        return self._is(spread=True)

    # What it consists of

    def tasks(self, count: int, gang: int | None = None) -> JobBuilder:
        """So many tasks; without `gang` all of them start together or not at all."""
        return replace(self, count=count, gang=count if gang is None else gang)

    def role(
        self, name: str, count: int, gang: int | None = None, parent: str = "", topology: TopologyRule | None = None
    ) -> JobBuilder:
        """A leaf of the tree whose tasks ask for what this job asks at this moment."""
        role = Role(name, self.request, count, count if gang is None else gang, topology, parent)
        return replace(self, roles=(*self.roles, role))

    def min_groups(self, count: int) -> JobBuilder:
        return self._is(group=replace(self.base.group, min_groups=count))

    # Where it is

    def on(self, node: str, *devices: int, state: TaskState = TaskState.RUNNING) -> JobBuilder:
        """The next task, in order, has its place here."""
        return replace(self, places=(*self.places, Place(node, devices, state)))

    def freeing(self, node: str, *devices: int) -> JobBuilder:
        return self.on(node, *devices, state=TaskState.FREEING)

    def job(self, nodes: Mapping[str, Node] | None = None) -> Job:
        """The job; `nodes` are needed where tasks hold devices already."""
        roles = self.roles or (Role("", self.request, self.count, self.gang),)
        tasks: list[Task] = []
        for role in roles:
            for _ in range(role.count):
                tasks.append(self._task(len(tasks), role, nodes or {}))
        return replace(self.base, tasks=tuple(tasks), group=self._group())

    def _group(self) -> TaskGroup:
        if not self.roles:
            return replace(self.base.group, min_tasks=self.gang)
        parents = sorted({role.parent for role in self.roles if role.parent})
        inner = tuple(TaskGroup(parent, children=self._leaves(parent)) for parent in parents)
        return replace(self.base.group, children=(*self._leaves(""), *inner))

    def _leaves(self, parent: str) -> tuple[TaskGroup, ...]:
        return tuple(
            TaskGroup(role.name, min_tasks=role.gang, topology=role.topology)
            for role in self.roles
            if role.parent == parent
        )

    def _task(self, index: int, role: Role, nodes: Mapping[str, Node]) -> Task:
        task = Task(f"{self.base.id}-{index}", role.request, group=role.name)
        if index >= len(self.places):
            return task
        place = self.places[index]
        shares = shares_of(role.request, nodes[place.node], place.devices) if place.node in nodes else ()
        return replace(task, state=place.state, node=place.node, shares=shares)

    def _asks(self, **changes: object) -> JobBuilder:
        return replace(self, request=replace(self.request, **changes))

    def _is(self, **changes: object) -> JobBuilder:
        return replace(self, base=replace(self.base, **changes))

    def _neighbour(self, rule: Neighbour) -> JobBuilder:
        return self._asks(where=replace(self.request.where, neighbours=(*self.request.where.neighbours, rule)))


class NodeBuilder(msgspec.Struct, frozen=True):
    """A node in the making."""

    base: Node

    def gpus(self, count: int, model: str = "gpu", memory_mib: int = DEFAULT_GPU_MIB) -> NodeBuilder:
        return self._has(devices=(*self.base.devices, *(Device(model, memory_mib) for _ in range(count))))

    def mig(self, profile: str, count: int, model: str = "gpu", memory_mib: int = DEFAULT_GPU_MIB) -> NodeBuilder:
        """One more device, cut into slices of one profile."""
        device = Device(model, memory_mib, mig=(MigSlices(profile, count),))
        return self._has(devices=(*self.base.devices, device))

    def unhealthy(self, *indices: int) -> NodeBuilder:
        return self._has(
            devices=tuple(
                replace(device, healthy=False) if index in indices else device
                for index, device in enumerate(self.base.devices)
            )
        )

    def nvlink(self, *groups: int) -> NodeBuilder:
        """The link group of each device, in order."""
        pairs = zip(self.base.devices, groups, strict=True)
        return self._has(devices=tuple(replace(device, nvlink=group) for device, group in pairs))

    def cpu(self, cores: str | int) -> NodeBuilder:
        return self._has(cpu_milli=milli(cores))

    def memory(self, text: str) -> NodeBuilder:
        return self._has(memory_bytes=memory_bytes(text))

    def max_tasks(self, count: int) -> NodeBuilder:
        return self._has(max_tasks=count)

    def other(self, name: str, count: int) -> NodeBuilder:
        return self._has(other=tuple(sorted((*self.base.other, (name, count)))))

    def label(self, key: str, value: str) -> NodeBuilder:
        return self._has(labels={**self.base.labels, key: value})

    def taint(self, key: str, value: str = "") -> NodeBuilder:
        return self._has(taints=(*self.base.taints, Taint(key, value)))

    def cordoned(self) -> NodeBuilder:
        return self._has(cordoned=True)

    def not_ready(self) -> NodeBuilder:
        return self._has(ready=False)

    def node(self) -> Node:
        return self.base

    def _has(self, **changes: object) -> NodeBuilder:
        return NodeBuilder(replace(self.base, **changes))


class ClusterBuilder(msgspec.Struct, frozen=True):
    """A cluster in the making. A team that nobody declared becomes a queue without any bound."""

    given_nodes: tuple[Node, ...] = ()
    given_queues: tuple[Queue, ...] = ()
    given_jobs: tuple[JobBuilder, ...] = ()
    topologies: tuple[Topology, ...] = ()
    now_ms: int = 0
    affinity_scope: AffinityScope = AffinityScope.QUEUE

    def nodes(self, count: int, gpus: int = 8, model: str = "gpu", memory_mib: int = DEFAULT_GPU_MIB) -> ClusterBuilder:
        """So many equal nodes, named node-1, node-2, …"""
        start = len(self.given_nodes) + 1
        return self.having(*(a_node(f"node-{start + i}").gpus(gpus, model, memory_mib) for i in range(count)))

    def having(self, *nodes: NodeBuilder) -> ClusterBuilder:
        return replace(self, given_nodes=(*self.given_nodes, *(builder.node() for builder in nodes)))

    def queue(self, name: str, parent: str | None = None, priority: int = 100, **gpus: str | int) -> ClusterBuilder:
        """A queue with `quota`, `limit` and `weight` in GPUs; further resources by `ration`."""
        shares = (gpu_share(GPU, **gpus),) if gpus else ()
        queue = Queue(name, parent, shares, priority, order=len(self.given_queues), overcommit=True)
        return replace(self, given_queues=(*self.given_queues, queue))

    def ration(self, resource: str, quota: int | None = None, limit: int | None = None) -> ClusterBuilder:
        """Ration one more resource of the queue just named, in that resource's accounting unit."""
        *others, last = self.given_queues
        changed = replace(last, shares=(*last.shares, QueueShare(resource, quota, limit)))
        return replace(self, given_queues=(*others, changed))

    def ration_model(self, model: str, **gpus: str | int) -> ClusterBuilder:
        """Ration one GPU model of the queue just named, in GPUs."""
        *others, last = self.given_queues
        changed = replace(last, shares=(*last.shares, gpu_share(gpu_model_resource(model), **gpus)))
        return replace(self, given_queues=(*others, changed))

    def jobs(self, *jobs: JobBuilder) -> ClusterBuilder:
        return replace(self, given_jobs=(*self.given_jobs, *jobs))

    def levels(self, name: str, *labels: str) -> ClusterBuilder:
        return replace(self, topologies=(*self.topologies, Topology(name, labels)))

    def scope(self, scope: AffinityScope) -> ClusterBuilder:
        """How far rules of jobs reach, where no queue says it."""
        return replace(self, affinity_scope=scope)

    def at(self, now_ms: int) -> ClusterBuilder:
        return replace(self, now_ms=now_ms)

    def snapshot(self) -> Snapshot:
        by_name = {node.name: node for node in self.given_nodes}
        jobs = tuple(builder.job(by_name) for builder in self.given_jobs)
        named = {queue.name for queue in self.given_queues}
        missing = sorted({job.queue for job in jobs} - named - {NOBODY})
        queues = (*self.given_queues, *(Queue(name, order=len(named) + i) for i, name in enumerate(missing)))
        return Snapshot(
            self.given_nodes, queues, jobs, self.topologies, now_ms=self.now_ms, affinity_scope=self.affinity_scope
        )


def a_job(id: str) -> JobBuilder:
    """A job of one task that asks for one whole GPU."""
    return JobBuilder(Job(id, DEFAULT_TEAM, ()))


def a_node(name: str) -> NodeBuilder:
    """A node with plenty of CPU and memory, and no GPU yet."""
    return NodeBuilder(Node(name, cpu_milli=ROOMY_CPU_MILLI, memory_bytes=ROOMY_MEMORY_BYTES))


def a_cluster() -> ClusterBuilder:
    return ClusterBuilder()


def gpu_share(
    resource: str, quota: str | int | None = None, limit: str | int | None = None, weight: str | int = 1
) -> QueueShare:
    return QueueShare(resource, maybe_milli(quota), maybe_milli(limit), milli(weight))


def maybe_milli(amount: str | int | None) -> int | None:
    return None if amount is None else milli(amount)


def cpu_share(quota: str | int | None = None, limit: str | int | None = None) -> QueueShare:
    return gpu_share(CPU, quota, limit)


def memory_share(quota: int | None = None, limit: int | None = None) -> QueueShare:
    return QueueShare(MEMORY, quota, limit)


def shares_of(request: Request, node: Node, devices: tuple[int, ...]) -> tuple[DeviceShare, ...]:
    """What a task holds that got these devices; for MIG one device for each slice, in the order asked."""
    if request.mig:
        profiles = [profile for profile, count in request.mig for _ in range(count)]
        pairs = zip(profiles, devices, strict=True)
        return tuple(DeviceShare(device, mig_slice_milli(profile), 0, profile) for profile, device in pairs)
    return tuple(DeviceShare(index, request.gpu_milli, held_mib(request, node.devices[index])) for index in devices)


def held_mib(request: Request, device: Device) -> int:
    """The memory one task holds of a device: what it asked for, or its share of all there is, rounded down."""
    return request.gpu_memory_mib or request.gpu_milli * device.memory_mib // MILLI
