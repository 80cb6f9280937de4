"""What is in order in a Kubernetes cluster and what is not: the way to it, rights, kinds, scheduler, nodes, queues.

Place in the flow: Target ─look─▶ Seen ─**doctor**─▶ findings; pods that wait: `doctor_pods`. Invariants: every check
says what it saw, in numbers where there are some, and what to do where it fails; what needs a failed thing is not
looked at; nothing is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final

import msgspec

from gpuyard import __version__
from gpuyard.errors import GpuyardError, KubeError
from gpuyard.kube.ask import INSTALL, KINDS_OF_OURS, UNREAD, Cluster, Target, read_cluster, with_client
from gpuyard.kube.doctor_pods import pod_findings
from gpuyard.kube.leading import leads, renewed
from gpuyard.kube.lease import Lease, read_lease
from gpuyard.kube.rights import granting
from gpuyard.kube.views import GpuObject, gpu_objects
from gpuyard.kubeapi.client import KubeClient
from gpuyard.kubeapi.moments import ms_of
from gpuyard.model.findings import FAIL, OK, WARN, Finding
from gpuyard.model.quantities import GPU, MILLI, format_milli
from gpuyard.model.text import duration_text
from gpuyard.worlds.kubernetes.nodes import CUT_FIX, cut_text
from gpuyard.worlds.kubernetes.priorities import BUILT_IN
from gpuyard.worlds.kubernetes.quantities import units_down
from gpuyard.worlds.kubernetes.queues import DEFAULT_QUEUE
from gpuyard.worlds.kubernetes.requests import GPUS, MIG
from gpuyard.worlds.kubernetes.selectors import accepts, label_rules
from gpuyard.worlds.kubernetes.settings import KAI_SCHEDULER

MAX_NAMED: Final = 5
MAX_NOTES: Final = 12
OLDEST: Final = (1, 27)
"""From here on scheduling gates are there without being switched on."""
SELF: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
START: Final = "run it in the cluster: kubectl apply -k deploy/scheduler; or here: gpuyard kube scheduler"
NODE_PART: Final = "run gpuyard kube node on every node with GPUs (a DaemonSet: deploy/scheduler)"
PLUGIN: Final = (
    "install the device plugin of the GPUs' maker (for NVIDIA's: nvidia-device-plugin) on nodes that have some; "
    "where there are none: gpuyard fake kube"
)


class Seen(msgspec.Struct, frozen=True):
    """What a look at a cluster brings, beside the cluster itself."""

    cluster: Cluster
    version: tuple[int, int]
    version_text: str
    who: str
    leads: bool
    kai: str
    """Who leads KAI's own scheduler, where ours is told to take the same pods."""


class _Version(msgspec.Struct, rename="camel"):
    git_version: str = ""
    major: str = ""
    minor: str = ""


def examine(target: Target, pod: str = "") -> Iterator[Finding]:
    """Everything, in the order in which one thing needs the other; of pods those that wait, or the one named."""
    try:
        seen = with_client(target, lambda client: look(client, target))
    except GpuyardError as error:
        first, _, fix = str(error).partition("\n")
        about = "server" if isinstance(error, KubeError) else "settings"
        yield Finding(FAIL, about, first, fix.strip())
        return
    yield from findings(seen, pod)


async def look(client: KubeClient, target: Target) -> Seen:
    told, who, cluster = await asyncio.gather(_version(client), _who(client), read_cluster(client, target))
    lease = cluster.lease
    kai = ""
    if KAI_SCHEDULER in cluster.settings.schedulers:
        kai = await _leader_of(client, KAI_SCHEDULER, KAI_SCHEDULER, cluster.now_ms)
    return Seen(
        cluster=cluster,
        version=(_number(told.major), _number(told.minor)),
        version_text=told.git_version,
        who=who,
        leads=lease is not None and await _is_kept(client, lease, target.system_namespace, cluster.now_ms),
        kai=kai,
    )


async def _version(client: KubeClient) -> _Version:
    return msgspec.json.decode(await client.get("/version"), type=_Version)


async def _who(client: KubeClient) -> str:
    """Whom the API server takes us for; empty where it does not say."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer: dict[str, Any] = msgspec.json.decode(await client.create(SELF, body, tries=1))
        return str(answer["status"]["userInfo"]["username"])
    except (KubeError, msgspec.DecodeError, KeyError, TypeError):
        return ""


async def _leader_of(client: KubeClient, namespace: str, name: str, now_ms: int) -> str:
    try:
        lease = await read_lease(client, namespace, name)
    except KubeError:
        return ""
    if lease is None or not await _is_kept(client, lease, namespace, now_ms, name):
        return ""
    return lease.spec.holder_identity or ""


async def _is_kept(client: KubeClient, lease: Lease, namespace: str, now_ms: int, name: str = "") -> bool:
    if not lease.spec.holder_identity:
        return False
    return leads(lease, now_ms) or await renewed(client, lease, namespace, name or lease.metadata.name)


def _number(text: str) -> int:
    digits = text.rstrip("+")
    return int(digits) if digits.isdecimal() else 0


# ------------------------------------------------------------------------------------------------------------ findings


def findings(seen: Seen, pod: str = "") -> Iterator[Finding]:
    """The same from what was seen. Pure."""
    cluster = seen.cluster
    yield from _server(seen)
    yield from _rights(cluster)
    yield from _kinds(cluster)
    if cluster.absent or any(not right.namespace for right in cluster.denied):
        return
    yield from _scheduler(seen)
    yield from _nodes(cluster)
    yield from _gpus(cluster)
    yield from _queues(cluster)
    yield from _classes(cluster)
    yield from _budgets(cluster)
    yield from pod_findings(cluster, pod)


def _server(seen: Seen) -> Iterator[Finding]:
    who = f", and takes you for {seen.who}" if seen.who else ""
    yield Finding(OK, "server", f"{seen.cluster.server} answers: Kubernetes {seen.version_text}{who}")
    if seen.version < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        yield Finding(
            WARN, "server", f"the scheduler needs Kubernetes {oldest} or newer", "bring the cluster up to date"
        )


def _rights(cluster: Cluster) -> Iterator[Finding]:
    everywhere = sorted({right for right in cluster.denied if not right.namespace})
    for right in everywhere:
        yield Finding(FAIL, "rights", f"you may not {right}", granting(everywhere) if right == everywhere[-1] else "")
    for right in sorted({right for right in cluster.denied if right.namespace}):
        yield Finding(WARN, "rights", f"you may not {right}: {UNREAD.get(right.resource, '')}", granting([right]))
    if not cluster.denied:
        yield Finding(OK, "rights", "you may read all that the scheduler reads")


def _kinds(cluster: Cluster) -> Iterator[Finding]:
    for kind in cluster.absent:
        yield Finding(FAIL, "kinds", f"the cluster has no kind {KINDS_OF_OURS[kind]}", INSTALL)
    if not cluster.absent:
        yield Finding(OK, "kinds", "Queue and PodGroup are there")


def _scheduler(seen: Seen) -> Iterator[Finding]:
    cluster, lease = seen.cluster, seen.cluster.lease
    where = f"{cluster.system_namespace}/gpuyard-scheduler"
    if any(right.resource == "leases" for right in cluster.denied):
        yield Finding(WARN, "scheduler", f"whether one leads is not known: you may not read its lease {where}")
    elif lease is None:
        other = "if it is elsewhere: --system-namespace"
        yield Finding(FAIL, "scheduler", f"none has ever led: there is no lease {where}", f"{START}; {other}")
    elif not seen.leads:
        yield Finding(FAIL, "scheduler", _not_led(lease, where, cluster.now_ms), START)
    else:
        yield Finding(OK, "scheduler", _led(cluster, lease))
    yield from _version_of(cluster)
    if seen.kai:
        what = f"KAI's own scheduler leads, too ({seen.kai}), and both take pods of {KAI_SCHEDULER}"
        yield Finding(FAIL, "scheduler", what, "scale one of the two to 0: they would put two pods on one GPU")


def _led(cluster: Cluster, lease: Lease) -> str:
    since = duration_text(max(cluster.now_ms - ms_of(lease.spec.acquire_time), 0))
    return (
        f"{lease.spec.holder_identity} has led for {since}; it takes pods of {', '.join(cluster.settings.schedulers)}"
    )


def _not_led(lease: Lease, where: str, now_ms: int) -> str:
    if not lease.spec.holder_identity:
        return f"none leads: the lease {where} was given back"
    ago = duration_text(max(now_ms - ms_of(lease.spec.renew_time), 0))
    return f"none leads: {lease.spec.holder_identity} renewed the lease {where} last {ago} ago"


def _version_of(cluster: Cluster) -> Iterator[Finding]:
    told = cluster.published
    if told is not None and told.version != __version__:
        what = f"it is version {told.version} and this is {__version__}: answers here may differ from what it does"
        yield Finding(WARN, "scheduler", what, "use the same version on both sides")
    elif told is None and cluster.lease is not None:
        what = "how it was started is not known; the defaults are assumed"
        yield Finding(WARN, "scheduler", what, "use the same version on both sides")


# --------------------------------------------------------------------------------------------------------------- nodes


def _nodes(cluster: Cluster) -> Iterator[Finding]:
    nodes = cluster.snapshot.nodes
    lost = [node.name for node in nodes if not node.ready]
    closed = [node.name for node in nodes if node.ready and node.cordoned]
    if not nodes:
        yield Finding(FAIL, "nodes", "the cluster has no node", "add one")
    elif lost:
        what = f"{len(lost)} of {len(nodes)} are not ready and take no pod: {_named(lost)}"
        yield Finding(FAIL if len(lost) == len(nodes) else WARN, "nodes", what, f"kubectl describe node {lost[0]}")
    else:
        yield Finding(OK, "nodes", f"all {len(nodes)} are ready")
    if closed:
        fix = f"kubectl uncordon {closed[0]}"
        what = f"{len(closed)} are cordoned and take no pod that does not tolerate it: {_named(closed)}"
        yield Finding(WARN, "nodes", what, fix)


LEFT_OUT_FIX: Final = "correct the object; what runs of it goes on, and nothing new starts"


def _gpus(cluster: Cluster) -> Iterator[Finding]:
    offered: list[str] = []
    idle: list[str] = []
    for name, node in cluster.picture.nodes.items():
        has, gives = _count(node.status.capacity), _count(node.status.allocatable)
        if has or gives:
            (offered if gives else idle).append(name)
    if not offered and not idle:
        yield Finding(FAIL, "gpus", f"no node offers {' or '.join(GPUS)}", PLUGIN)
        return
    if idle:
        what = f"{len(idle)} with GPUs offer none of them: {_named(idle)}; their device plugin does not run"
        yield Finding(WARN if offered else FAIL, "gpus", what, f"kubectl describe node {idle[0]}")
    for name, left_out in list(cluster.picture.cut.items())[:MAX_NAMED]:
        yield Finding(WARN, "gpus", f"{name} {cut_text(left_out)}", CUT_FIX)
    for one in islice(cluster.left, MAX_NAMED):
        yield Finding(WARN, str(one.subject.kind), f"{one.subject} is {one.text}", LEFT_OUT_FIX)
    for item, error in islice(chain(cluster.world.broken.items(), cluster.picture.broken.items()), MAX_NAMED):
        what = f"{item} cannot be read: {type(error).__name__}: {error}"
        yield Finding(WARN, item.partition(" ")[0], what, LEFT_OUT_FIX)
    gpus = list(gpu_objects(cluster))
    yield from _free(gpus)
    yield from _told(cluster, offered, gpus)


def _count(quantities: dict[str, str] | None) -> int:
    """GPUs and slices of GPUs."""
    found = (quantities or {}).items()
    return sum(units_down(text) for name, text in found if name in GPUS or name.startswith(MIG))


def _free(gpus: list[GpuObject]) -> Iterator[Finding]:
    sound = [gpu for gpu in gpus if gpu.healthy]
    whole: dict[str, int] = {}
    for gpu in sound:
        whole[gpu.node] = whole.get(gpu.node, 0) + (gpu.free_milli == MILLI)
    free = format_milli(sum(gpu.free_milli for gpu in sound))
    yield Finding(
        OK, "gpus", f"{len(gpus)}, of which {free} are free; at most {max(whole.values(), default=0)} on one node"
    )
    broken = [f"{gpu.node} GPU {gpu.index}" for gpu in gpus if not gpu.healthy]
    if broken:
        yield Finding(
            WARN, "gpus", f"{len(broken)} are broken and given to nobody: {_named(broken)}", "see: gpuyard gpu ls"
        )


def _told(cluster: Cluster, offered: list[str], gpus: list[GpuObject]) -> Iterator[Finding]:
    if any(right.resource == "configmaps" and not right.name for right in cluster.denied):
        return
    silent = [name for name in offered if name not in cluster.picture.devices]
    if silent:
        what = f"which pod has which GPU, and which are broken, is not told by {len(silent)} of {len(offered)} nodes"
        yield Finding(WARN, "node part", f"{what}: {_named(silent)}", NODE_PART)
    elif offered:
        yield Finding(OK, "node part", f"all {len(offered)} nodes with GPUs tell which pod has which")


# -------------------------------------------------------------------------------------------------------------- queues


def _queues(cluster: Cluster) -> Iterator[Finding]:
    tree = cluster.picture.tree
    if not cluster.picture.queues:
        fix = "make some: kubectl apply -f examples/kai-demo/1-queues.yaml; or gpuyard kube install --default-queues"
        yield Finding(FAIL, "queues", "there is no Queue, so no pod has a place to wait in", fix)
        return
    known = {queue.name for queue in tree.queues}
    for note in tree.notes[:MAX_NOTES]:
        yield Finding(WARN if note.queue in known else FAIL, "queues", f'"{note.queue}": {note.message}')
    if len(tree.notes) > MAX_NOTES:
        yield Finding(WARN, "queues", f"and {len(tree.notes) - MAX_NOTES} more notes", "kubectl describe queues")
    yield from _owed(cluster)
    if DEFAULT_QUEUE not in known:
        fix = "gpuyard kube install --default-queues"
        yield Finding(WARN, "queues", f'there is no "{DEFAULT_QUEUE}": pods that name no queue cannot start', fix)
    if not tree.notes:
        yield Finding(
            OK, "queues", f"{len(tree.leaves)} that may hold pods, {len(known) - len(tree.leaves)} above them"
        )


def _owed(cluster: Cluster) -> Iterator[Finding]:
    owed = sum(queue.share(GPU).quota or 0 for queue in cluster.picture.tree.queues if queue.parent is None)
    there = MILLI * sum(len(node.devices) for node in cluster.snapshot.nodes)
    if 0 < there < owed:
        what = f"they are owed {format_milli(owed)} GPUs in all, and the cluster has {format_milli(there)}"
        yield Finding(WARN, "queues", what, "while all of them ask, not everybody gets what they are owed")


def _classes(cluster: Cluster) -> Iterator[Finding]:
    missing = [name for name in BUILT_IN if name not in cluster.picture.priority_classes]
    if missing:
        what = f"no PriorityClass {', '.join(missing)}: pods that name one in their spec are refused by the API server"
        yield Finding(WARN, "priorities", what, "gpuyard kube install")
    else:
        yield Finding(OK, "priorities", f"the classes {', '.join(BUILT_IN)} are there")


def _budgets(cluster: Cluster) -> Iterator[Finding]:
    """Pods that can neither give way nor be moved, whoever is owed their place."""
    running = [record for record in cluster.picture.pods.values() if record.ours and record.node and not record.over]
    for key, budget in sorted(cluster.picture.surroundings.budgets.items()):
        if budget.status.disruptions_allowed > 0:
            continue
        rules = label_rules(budget.spec.selector)
        here = [record for record in running if record.pod.metadata.namespace == budget.metadata.namespace]
        count = sum(accepts(rules, record.pod.metadata.labels or {}) for record in here)
        if count:
            what = f"PodDisruptionBudget {key} allows no eviction now: {count} of our pods give way to nobody"
            yield Finding(WARN, "budgets", what, f"kubectl describe pdb -n {budget.metadata.namespace}")


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - MAX_NAMED} more" if len(listed) > MAX_NAMED else ""
    return f"{', '.join(listed[:MAX_NAMED])}{more}"
