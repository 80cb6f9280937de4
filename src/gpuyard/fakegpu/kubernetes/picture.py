"""What is known of the cluster: nodes, pods that ask for GPUs, and our ConfigMaps, as the API server last told.

Place in the flow: follow ─changes─▶ **picture** ─what has changed─▶ updater, node part. Invariant: a change that means
nothing to the fake GPUs marks nothing, so that a cluster at rest costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TypeVar

from gpuyard.fakegpu.kubernetes.objects import ConfigMap, Node, Pod
from gpuyard.fakegpu.kubernetes.observed import NodeFacts, PodFacts, PodKey, node_facts, pod_facts
from gpuyard.kubeapi.follow import Change, Changed, Gone, Listed

Object = TypeVar("Object")


class Picture:
    """The newest of everything, and which parts of it nobody has looked at yet."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeFacts] = {}
        self.pods: dict[str, PodFacts] = {}
        """By uid."""
        self.on_node: dict[str, dict[str, PodFacts]] = {}
        """By node and uid."""
        self.maps: dict[str, ConfigMap] = {}
        self.changed = asyncio.Event()
        """Set whenever anything below is marked."""
        self.nodes_changed: set[str] = set()
        self.pods_changed: set[str] = set()
        """Nodes on which pods have changed."""
        self.maps_changed: set[str] = set()
        self._seen: set[str] = set()
        self._uids: dict[PodKey, str] = {}

    @property
    def is_whole(self) -> bool:
        """Whether everything there is has been listed once; before that nothing may be concluded from an absence."""
        return {"nodes", "pods", "maps"} <= self._seen

    # --------------------------------------------------------------------------------------------------------- taking

    def take_node(self, change: Change[Node]) -> None:
        match change:
            case Listed(objects):
                found = {node.metadata.name: node_facts(node) for node in objects}
                for name in self.nodes.keys() - found.keys():
                    self._drop_node(name)
                for facts in found.values():
                    self._put_node(facts)
                self._whole("nodes")
            case Changed(node):
                self._put_node(node_facts(node))
            case Gone(node):
                self._drop_node(node.metadata.name)

    def _put_node(self, facts: NodeFacts) -> None:
        if self.nodes.get(facts.name) != facts:
            self.nodes[facts.name] = facts
            self._mark(self.nodes_changed, facts.name)

    def _drop_node(self, name: str) -> None:
        if self.nodes.pop(name, None) is not None:
            self._mark(self.nodes_changed, name)

    def pods_on(self, node: str) -> dict[str, PodFacts]:
        """As they are now: whoever waits in between still has these, whatever comes or goes meanwhile."""
        return dict(self.on_node.get(node, {}))

    def take_pod(self, change: Change[Pod]) -> None:
        match change:
            case Listed(objects):
                listed = {pod.metadata.uid for pod in objects}
                for uid in self.pods.keys() - listed:
                    self._drop_pod(uid)
                for pod in objects:
                    self._put_pod(pod)
                self._whole("pods")
            case Changed(pod):
                self._put_pod(pod)
            case Gone(pod):
                self._drop_pod(pod.metadata.uid)

    def _put_pod(self, pod: Pod) -> None:
        facts = pod_facts(pod)
        known = self.pods.get(pod.metadata.uid)
        if facts is None:
            self._drop_pod(pod.metadata.uid)
        elif facts != known:
            # One that was made anew under the same name: the end of the one before may come later, or never.
            before = self._uids.get(facts.key)
            if before is not None and before != facts.uid:
                self._drop_pod(before)
            self._uids[facts.key] = facts.uid
            self.pods[facts.uid] = facts
            self.on_node.setdefault(facts.node, {})[facts.uid] = facts
            self._mark(self.pods_changed, facts.node)

    def _drop_pod(self, uid: str) -> None:
        facts = self.pods.pop(uid, None)
        if facts is None:
            return
        there = self.on_node[facts.node]
        del there[uid]
        if not there:
            del self.on_node[facts.node]
        if self._uids.get(facts.key) == uid:
            del self._uids[facts.key]
        self._mark(self.pods_changed, facts.node)

    def take_map(self, change: Change[ConfigMap]) -> None:
        match change:
            case Listed(objects):
                found = {each.metadata.name: each for each in objects}
                for name in self.maps.keys() - found.keys():
                    self._drop_map(name)
                for each in objects:
                    self._put_map(each)
                self._whole("maps")
            case Changed(each):
                self._put_map(each)
            case Gone(each):
                self._drop_map(each.metadata.name)

    def _put_map(self, config_map: ConfigMap) -> None:
        name = config_map.metadata.name
        if self.maps.get(name) != config_map:
            self.maps[name] = config_map
            self._mark(self.maps_changed, name)

    def _drop_map(self, name: str) -> None:
        if self.maps.pop(name, None) is not None:
            self._mark(self.maps_changed, name)

    def _mark(self, marks: set[str], name: str) -> None:
        marks.add(name)
        self.changed.set()

    def _whole(self, kind: str) -> None:
        self._seen.add(kind)
        self.changed.set()

    # -------------------------------------------------------------------------------------------------------- looking

    async def wait(self, at_most_s: float) -> None:
        """Until something has changed, or it is time to look anyway."""
        # Not wait_for, which forgets to be cancelled when what it waits for happens at that moment.
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self.changed.wait()
        self.changed.clear()

    def pod_named(self, key: PodKey) -> PodFacts | None:
        uid = self._uids.get(key)
        return None if uid is None else self.pods.get(uid)


def taken(marks: set[str]) -> set[str]:
    """What is marked, once."""
    found = set(marks)
    marks.clear()
    return found


async def keep(changes: AsyncIterator[Change[Object]], take: Callable[[Change[Object]], None]) -> None:
    """Let a picture follow, for ever."""
    async for change in changes:
        take(change)
