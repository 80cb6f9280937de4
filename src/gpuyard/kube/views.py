"""A cluster as lists: queues with what they are owed and hold, nodes, and every GPU with who holds it.

Place in the flow: Cluster ─**views**─▶ objects of the REST API, with what only Kubernetes has ─▶ cli. Pure. Invariant:
a GPU has no more holders than there is room for; which GPU of its node a pod has is only said where the node tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gpuyard.kube.ask import Cluster
from gpuyard.model.difference import Difference
from gpuyard.model.explanation import QueueStanding
from gpuyard.model.jobs import DeviceShare, Job, Task
from gpuyard.model.lending import lending
from gpuyard.model.nodes import OWN_LABEL, Device, Node, mig_slice_milli, shown_labels
from gpuyard.model.quantities import GPU, MILLI, format_milli
from gpuyard.model.queues import Queue
from gpuyard.model.text import names_text
from gpuyard.scheduler.explain import standings
from gpuyard.scheduler.gang import IN_PLACE
from gpuyard.wire.rest import DeviceObject, HolderObject, NodeObject, TeamObject
from gpuyard.worlds.kubernetes.jobs import HEIR


class QueueObject(TeamObject, frozen=True):
    """A Queue of the cluster."""

    display_name: str = ""
    namespaces: tuple[str, ...] | None = None
    """Whose pods may use it; null: everybody's."""


class PodHolder(HolderObject, frozen=True, omit_defaults=True):
    """A pod that has a part of a GPU."""

    pod: str = ""
    """namespace/name"""


class GpuObject(DeviceObject, frozen=True):
    """One GPU of a node."""

    holders: tuple[PodHolder, ...] = ()
    named: bool = True
    """False: that its holders have just this one of their node's GPUs is assumed; nobody has told."""


# -------------------------------------------------------------------------------------------------------------- queues


class _Counts(NamedTuple):
    running: int = 0
    waiting: int = 0


def queue_objects(cluster: Cluster) -> list[QueueObject]:
    """The whole tree, parents before their children."""
    known = {standing.name: standing for standing in standings(cluster.ledger, cluster.policy)}
    tree = cluster.picture.tree
    quotas = {queue.name: queue.share(GPU).quota for queue in tree.queues if queue.name not in tree.children}
    lent = lending(quotas, {name: known[name].held_milli for name in quotas})
    counts = _job_counts(cluster)
    return [_queue(cluster, queue, known[queue.name], lent, counts) for queue in tree.queues]


def _queue(
    cluster: Cluster, queue: Queue, standing: QueueStanding, lent: dict[str, int], counts: dict[str, _Counts]
) -> QueueObject:
    tree, share = cluster.picture.tree, queue.share(GPU)
    counted = counts.get(queue.name, _Counts())
    allowed = tree.namespaces.get(queue.name)
    return QueueObject(
        name=queue.name,
        parent=queue.parent,
        leaf=queue.name not in tree.children,
        quota=None if share.quota is None else format_milli(share.quota),
        limit=None if share.limit is None else format_milli(share.limit),
        weight=format_milli(share.weight_milli),
        priority=queue.priority,
        held=format_milli(standing.held_milli),
        borrowed=format_milli(max(standing.held_milli - share.quota, 0) if share.quota is not None else 0),
        lent=format_milli(lent.get(queue.name, 0)),
        waiting=format_milli(standing.asked_milli),
        fair_share=format_milli(standing.fair_share_milli),
        running_jobs=counted.running,
        waiting_jobs=counted.waiting,
        display_name=tree.display_names.get(queue.name, ""),
        namespaces=None if allowed is None else tuple(sorted(allowed)),
    )


def _job_counts(cluster: Cluster) -> dict[str, _Counts]:
    """Jobs of each queue and all below it."""
    parents = cluster.picture.tree.parents
    counts: dict[str, _Counts] = {}
    for job in cluster.snapshot.jobs:
        in_place = any(task.state in IN_PLACE for task in job.tasks)
        name: str | None = job.queue or None
        while name is not None:
            running, waiting = counts.get(name, _Counts())
            counts[name] = _Counts(running + in_place, waiting + (not in_place))
            name = parents.get(name)
    return counts


# ------------------------------------------------------------------------------------------------------ GPUs and nodes


def gpu_objects(cluster: Cluster, only: str = "") -> Iterator[GpuObject]:
    """Every GPU, node by node; `only`: of one node."""
    placed = _placed(cluster)
    for node in sorted(cluster.snapshot.nodes, key=lambda node: _natural(node.name)):
        if only in ("", node.name):
            told = node.name in cluster.picture.devices
            yield from _Map(node, placed.get(node.name, []), named=told).objects()


def _placed(cluster: Cluster) -> dict[str, list[tuple[Job, Task]]]:
    found: dict[str, list[tuple[Job, Task]]] = {}
    for job in cluster.snapshot.jobs:
        for task in job.tasks:
            if task.state in IN_PLACE and task.node and not task.id.endswith(HEIR):
                found.setdefault(task.node, []).append((job, task))
    return found


class _Map:
    """The GPUs of one node, and who is put on which of them."""

    def __init__(self, node: Node, placed: list[tuple[Job, Task]], *, named: bool) -> None:
        self._node = node
        self._named = named
        self._holders: list[list[PodHolder]] = [[] for _ in node.devices]
        self._slices = [{slices.profile: slices.count for slices in device.mig} for device in node.devices]
        # Whoever is known to have certain ones comes first, so that nobody else is assumed there.
        for job, task in sorted(placed, key=lambda pair: not pair[1].shares):
            for share in task.shares or self._assumed(task):
                self._holders[share.device].append(_holder(job, task, share))

    def objects(self) -> Iterator[GpuObject]:
        for index, device in enumerate(self._node.devices):
            # Which slice of which GPU a pod has is not followed: there are as many on the node as it says.
            named = self._named and not device.mig
            yield _gpu(self._node.name, index, device, tuple(self._holders[index]), named)

    def _assumed(self, task: Task) -> Iterator[DeviceShare]:
        """The lowest that are free, as the scheduler reckons while nobody tells."""
        wanted = task.request.devices
        for index, device in enumerate(self._node.devices):
            if wanted and device.healthy and not device.mig and not self._holders[index]:
                wanted -= 1
                yield DeviceShare(index)
        for profile, count in task.request.mig:
            yield from self._assumed_slices(profile, count)

    def _assumed_slices(self, profile: str, count: int) -> Iterator[DeviceShare]:
        for index, left in enumerate(self._slices):
            taken = min(count, left.get(profile, 0))
            left[profile] = left.get(profile, 0) - taken
            count -= taken
            for _ in range(taken):
                yield DeviceShare(index, 0, mig=profile)


def _holder(job: Job, task: Task, share: DeviceShare) -> PodHolder:
    milli = mig_slice_milli(share.mig) if share.mig else share.gpu_milli
    namespace = job.id.partition("/")[0]
    return PodHolder(team=job.queue, gpu_milli=milli, memory_mib=0, job=job.id, pod=f"{namespace}/{task.id}")


def _gpu(node: str, index: int, device: Device, holders: tuple[PodHolder, ...], named: bool) -> GpuObject:
    held = sum(holder.gpu_milli for holder in holders)
    return GpuObject(
        node=node,
        index=index,
        id=device.id,
        model=device.model,
        memory_mib=device.memory_mib,
        healthy=device.healthy,
        free_milli=max(MILLI - held, 0),
        free_memory_mib=max(MILLI - held, 0) * device.memory_mib // MILLI,
        holders=holders,
        named=named,
    )


def node_objects(cluster: Cluster) -> list[NodeObject]:
    """Every node, with how much of it is free."""
    gpus: dict[str, list[GpuObject]] = {}
    for gpu in gpu_objects(cluster):
        gpus.setdefault(gpu.node, []).append(gpu)
    ordered = sorted(cluster.snapshot.nodes, key=lambda node: _natural(node.name))
    return [_node(cluster, node, gpus.get(node.name, [])) for node in ordered]


def _node(cluster: Cluster, node: Node, gpus: list[GpuObject]) -> NodeObject:
    return NodeObject(
        name=node.name,
        state="not ready" if not node.ready else "cordoned" if node.cordoned else "ready",
        gpus=len(gpus),
        free_gpus=format_milli(sum(gpu.free_milli for gpu in gpus if gpu.healthy)),
        models=tuple(sorted({gpu.model for gpu in gpus})),
        cpu_milli=node.cpu_milli,
        memory_bytes=node.memory_bytes,
        tasks=sum(not cluster.picture.pods[key].over for key in cluster.picture.on_node.get(node.name, ())),
        fake=False,
        isolation="",
        labels=shown_labels(node.labels),
        trouble=tuple(_troubles(node)),
    )


def _troubles(node: Node) -> Iterator[str]:
    given = [taint for taint in node.taints if not taint.key.startswith(OWN_LABEL)]
    hard = [f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}" for taint in given]
    if hard:
        yield f"taints {', '.join(hard)}"
    broken = [str(index) for index, device in enumerate(node.devices) if not device.healthy]
    if broken:
        yield f"GPU {', '.join(broken)} broken"


def _natural(name: str) -> tuple[str, int, str]:
    """node-2 before node-10."""
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return stem, int(digits or 0), name


# --------------------------------------------------------------------------------------------------------- differences


def lost_work(cluster: Cluster, difference: Difference) -> Iterator[str]:
    """What the plans do not know: pods that would have to go, and that nobody makes anew."""
    jobs = cluster.ledger.jobs
    going = dict.fromkeys(entry.job for entry in (*difference.stopped, *difference.moved) if entry.job in jobs)
    lost = tuple(job for job in going if jobs[job].restart_ms and _runs(jobs[job]))
    if lost:
        whose = "its work is" if len(lost) == 1 else "their work is"
        yield f"nobody makes {names_text(lost, len(lost))} anew: once stopped, {whose} lost"


def _runs(job: Job) -> bool:
    return any(task.state in IN_PLACE for task in job.tasks)
