"""What is known of a cluster: pods in their groups, nodes, queues, and everything they are read together with.

Place in the flow: follow ─changes─▶ **picture** ─which jobs, nodes and queues have changed─▶ world. What one object
says about another (an owner about its pods, a claim about its users) is worked out again for just those it touches.
Invariant: a change that means nothing to the scheduler marks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from gpuyard.kubeapi.follow import Change, Changed, Gone, Listed
from gpuyard.kubeapi.moments import ms_of
from gpuyard.worlds.kubernetes import objects
from gpuyard.worlds.kubernetes.devices import NodeDevices, read_devices
from gpuyard.worlds.kubernetes.membership import Membership, OwnerKind
from gpuyard.worlds.kubernetes.nodes import cut_devices
from gpuyard.worlds.kubernetes.objects import Owner, Pod
from gpuyard.worlds.kubernetes.podrecord import (
    OVER,
    PodRecord,
    asks_the_same,
    belonging,
    given,
    is_mirror,
    key_of,
    standing,
)
from gpuyard.worlds.kubernetes.queues import QueueTree, read_queues
from gpuyard.worlds.kubernetes.settings import Settings
from gpuyard.worlds.kubernetes.surroundings import Surroundings

Put = Callable[[Any], None]
Drop = Callable[[str], None]
Known = Callable[[], Iterable[str]]


class Picture:
    """The newest of everything, and which parts of it nobody has looked at yet."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pods: dict[str, PodRecord] = {}
        """By namespace/name."""
        self.on_node: dict[str, dict[str, None]] = {}
        """Pods by their node."""
        self.membership = Membership(settings, self.pods, self.mark)
        self.surroundings = Surroundings(self.pods, self.mark)
        self.nodes: dict[str, objects.Node] = {}
        self.cut: dict[str, int] = {}
        """Nodes with more GPUs than a node of the model has room for, and how many are left out."""
        self.broken: dict[str, Exception] = {}
        """Objects that cannot be read, by kind and key, and why."""
        self.devices: dict[str, NodeDevices] = {}
        self._maps: dict[str, str] = {}
        """ConfigMaps about devices, and the node of each."""
        self.queues: dict[str, objects.KaiQueue] = {}
        self.tree: QueueTree = read_queues(())
        self.jobs_changed: dict[str, None] = {}
        self.nodes_changed: dict[str, None] = {}
        self.queues_changed = False
        self.topologies_changed = False
        self.gone_pods: list[PodRecord] = []
        """Pods that are there no more, or were bound, for whoever has plans with them."""
        self._classes: dict[str, objects.PriorityClass] = {}
        self._listed: set[str] = set()
        self._now_ms = 0
        around, members = self.surroundings, self.membership
        self._kinds: dict[str, tuple[Put, Drop, Known]] = {
            "pods": (self._put_pod, self._drop_pod, lambda: self.pods),
            "nodes": (self._put_node, self._drop_node, lambda: self.nodes),
            "queues": (self._put_queue, self._drop_queue, lambda: self.queues),
            "topologies": (self._put_topology, self._drop_topology, lambda: members.topologies),
            "devices": (self._put_devices, self._drop_devices, lambda: self._maps),
            "priorityclasses": (self._put_class, self._drop_class, lambda: self._classes),
            "podgroups": (members.put_podgroup, members.drop_podgroup, lambda: members.podgroups),
            "namespaces": (around.put_namespace, around.drop_namespace, lambda: around.namespaces),
            "budgets": (around.put_budget, around.drop_budget, lambda: around.budgets),
            "claims": (around.put_claim, around.drop_claim, lambda: around.claims),
            "volumes": (around.put_volume, around.drop_volume, lambda: around.volumes),
            "storageclasses": (around.put_class, around.drop_class, lambda: around.classes),
        }

    @property
    def groups(self) -> dict[str, dict[str, PodRecord]]:
        """Pods by job and key."""
        return self.membership.groups

    @property
    def podgroups(self) -> dict[str, objects.PodGroup]:
        return self.membership.podgroups

    @property
    def topologies(self) -> dict[str, objects.KaiTopology]:
        return self.membership.topologies

    @property
    def priority_classes(self) -> Collection[str]:
        """The names of those that are objects of the cluster."""
        return self._classes.keys()

    # --------------------------------------------------------------------------------------------------------- taking

    def take(self, kind: str, change: Change[Any], now_ms: int) -> None:
        """What has been heard about the objects of one kind."""
        self._tell_time(now_ms)
        put, drop, known = self._kinds[kind]
        match change:
            case Listed(found):
                self._listed.add(kind)
                for key in set(known()) - {key_of(each.metadata) for each in found}:
                    drop(key)
                for each in found:
                    self._put(kind, put, each)
            case Changed(found):
                self._put(kind, put, found)
            case Gone(found):
                self.broken.pop(f"{kind} {key_of(found.metadata)}", None)
                drop(key_of(found.metadata))

    def _put(self, kind: str, put: Put, found: Any) -> None:  # noqa: ANN401 - an object of any kind
        """One object that cannot be read as it is stops no other."""
        item = f"{kind} {key_of(found.metadata)}"
        try:
            put(found)
        except Exception as error:
            self.broken[item] = error
        else:
            self.broken.pop(item, None)

    def take_owner(self, kind: OwnerKind, change: Change[Owner], now_ms: int) -> None:
        """The same for kinds that make pods."""
        self._tell_time(now_ms)
        match change:
            case Listed(found):
                self._listed.add(owner_source(kind))
                self.membership.list_owners(kind, found)
            case Changed(found):
                self.membership.put_owner(kind, found)
            case Gone(found):
                self.membership.drop_owner(found.metadata.uid)

    def is_whole(self, kinds: Iterable[str]) -> bool:
        """Whether all of these have been listed once; before that nothing may be concluded from an absence."""
        return self._listed.issuperset(kinds)

    def look_again(self, now_ms: int) -> None:
        """Decide what was put off for a while, and is due."""
        self._tell_time(now_ms)
        self.membership.look_again()

    def _tell_time(self, now_ms: int) -> None:
        self._now_ms = self.membership.now_ms = now_ms

    @property
    def changed(self) -> bool:
        return bool(self.jobs_changed or self.nodes_changed or self.queues_changed or self.topologies_changed)

    def looked_at(self) -> None:
        """Somebody has taken over all that was marked, or nobody wants it."""
        self.jobs_changed, self.nodes_changed = {}, {}
        self.queues_changed = self.topologies_changed = False

    def mark(self, job: str) -> None:
        self.jobs_changed[job] = None

    # ----------------------------------------------------------------------------------------------------------- pods

    def _put_pod(self, pod: Pod) -> None:
        key = key_of(pod.metadata)
        known = self.pods.get(key)
        if known is not None and known.uid != pod.metadata.uid:
            self._drop_pod(key)
            known = None
        ours = pod.spec.scheduler_name in self.settings.schedulers and not is_mirror(pod)
        if not ours and (not pod.spec.node_name or pod.status.phase in OVER):
            self._drop_pod(key)
        elif known is None:
            self._enter(PodRecord(pod, ours))
        else:
            self._update(known, pod)

    def _enter(self, record: PodRecord) -> None:
        self.pods[record.key] = record
        if record.node:
            record.since_ms = ms_of(record.pod.status.start_time) or self._now_ms
            self.on_node.setdefault(record.node, {})[record.key] = None
        self.surroundings.translate(record)
        self.membership.regroup(record)

    def _update(self, record: PodRecord, pod: Pod) -> None:
        before, record.pod = record.pod, pod
        if pod.spec.node_name and not before.spec.node_name:
            record.since_ms = self._now_ms
            self.on_node.setdefault(record.node, {})[record.key] = None
            self.gone_pods.append(record)
        if not asks_the_same(pod.spec, before.spec) or pod.metadata.labels != before.metadata.labels:
            self.surroundings.translate(record)
            self.membership.regroup(record)
        elif belonging(pod) != belonging(before):
            if not record.node:
                # Parts of GPUs are asked for by annotation.
                self.surroundings.translate(record)
            self.membership.regroup(record)
        elif record.node and given(pod) != given(before):
            self.surroundings.translate(record)
        if standing(pod) != standing(before):
            self.mark(record.job)
            self.surroundings.look_at_claims_of(record)

    def _drop_pod(self, key: str) -> None:
        record = self.pods.pop(key, None)
        if record is None:
            return
        self.gone_pods.append(record)
        self._leave_node(record)
        self.membership.leave(record)
        self.surroundings.look_at_claims_of(record)

    def _leave_node(self, record: PodRecord) -> None:
        there = self.on_node.get(record.node)
        if there is not None:
            there.pop(record.key, None)
            if not there:
                del self.on_node[record.node]

    # ------------------------------------------------------------------------------------------------- nodes and queues

    def _put_node(self, node: objects.Node) -> None:
        """Most news of a node is that it lives, which is no news."""
        known = self.nodes.get(node.metadata.name)
        self.nodes[node.metadata.name] = node
        if known is None or _faces(known) != _faces(node):
            self.nodes_changed[node.metadata.name] = None
            self._note_cut(node)

    def _note_cut(self, node: objects.Node) -> None:
        left_out = cut_devices(node)
        if left_out:
            self.cut[node.metadata.name] = left_out
        else:
            self.cut.pop(node.metadata.name, None)

    def _drop_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.cut.pop(name, None)
        self.nodes_changed[name] = None

    def _put_devices(self, found: objects.ConfigMap) -> None:
        read = read_devices(found)
        if not isinstance(read, NodeDevices):
            return
        self._maps[key_of(found.metadata)] = read.node
        before = self.devices.get(read.node)
        self.devices[read.node] = read
        if before is None or before.devices != read.devices:
            self.nodes_changed[read.node] = None
        self._mark_node(read.node)

    def _drop_devices(self, key: str) -> None:
        node = self._maps.pop(key, "")
        if self.devices.pop(node, None) is not None:
            self.nodes_changed[node] = None
            self._mark_node(node)

    def _mark_node(self, node: str) -> None:
        """Its pods may have other devices than was known."""
        for key in self.on_node.get(node, ()):
            self.mark(self.pods[key].job)

    def _put_queue(self, queue: objects.KaiQueue) -> None:
        known = self.queues.get(queue.metadata.name)
        self.queues[queue.metadata.name] = queue
        if known is None or known.spec != queue.spec or known.metadata.annotations != queue.metadata.annotations:
            self.queues_changed = True

    def _drop_queue(self, name: str) -> None:
        self.queues.pop(name, None)
        self.queues_changed = True

    def read_tree(self) -> QueueTree:
        """The queues as they are now; jobs of queues that are new, gone or closed are looked at again."""
        before, self.tree = self.tree, read_queues(self.queues.values())
        if before.namespaces != self.tree.namespaces:
            for job in self.groups:
                self.mark(job)
        return self.tree

    def _put_topology(self, topology: objects.KaiTopology) -> None:
        known = self.topologies.get(topology.metadata.name)
        self.topologies[topology.metadata.name] = topology
        if known is None or known.spec != topology.spec:
            self._other_topologies()

    def _drop_topology(self, name: str) -> None:
        self.topologies.pop(name, None)
        self._other_topologies()

    def _other_topologies(self) -> None:
        """Groups may name levels by names that are explained there."""
        self.topologies_changed = True
        self.membership.regroup_ours()

    def _put_class(self, found: objects.PriorityClass) -> None:
        if self._classes.get(found.metadata.name) != found:
            self._classes[found.metadata.name] = found
            self.membership.set_priorities(self._classes.values())

    def _drop_class(self, name: str) -> None:
        self._classes.pop(name, None)
        self.membership.set_priorities(self._classes.values())


def owner_source(kind: OwnerKind) -> str:
    return f"{kind[0]}/{kind[1]}"


def _faces(node: objects.Node) -> tuple[object, ...]:
    ready = [condition.status for condition in node.status.conditions or () if condition.type == "Ready"]
    return node.spec, node.status.allocatable, node.status.capacity, node.metadata.labels, ready
