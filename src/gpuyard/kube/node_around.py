"""What the API server knows of one node: itself, its pods, and what was published of it.

Place in the flow: follow ─changes─▶ **node_around** ─▶ node. Invariant: before everything was listed once nothing is
concluded from an absence.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from gpuyard.kube.node_devices import PodSeen
from gpuyard.kubeapi.follow import Change, Changed, Gone, Listed
from gpuyard.worlds.kubernetes.devices import is_gpu_resource
from gpuyard.worlds.kubernetes.objects import ConfigMap, Node, Pod

OVER: Final = frozenset({"Succeeded", "Failed"})
KINDS: Final = frozenset({"node", "pods", "published"})

Object = TypeVar("Object")


class NodeSeen(msgspec.Struct, frozen=True):
    """Of the node what matters here: most of what changes in it does not."""

    name: str
    uid: str
    capacity: dict[str, int]


def node_seen(node: Node) -> NodeSeen:
    capacity = {name: _count(text) for name, text in (node.status.capacity or {}).items() if is_gpu_resource(name)}
    return NodeSeen(node.metadata.name, node.metadata.uid, capacity)


def _count(text: str) -> int:
    """Devices are whole numbers."""
    return int(text) if text.isascii() and text.isdigit() else 0


def pod_seen(pod: Pod) -> PodSeen:
    return PodSeen(pod.metadata.namespace, pod.metadata.name, pod.status.phase in OVER)


class Around:
    """The newest of it all."""

    def __init__(self) -> None:
        self.node: NodeSeen | None = None
        self.pods: dict[str, PodSeen] = {}
        """By uid."""
        self.published: ConfigMap | None = None
        self._news = asyncio.Event()
        self._listed: set[str] = set()

    @property
    def is_whole(self) -> bool:
        return self._listed == KINDS

    async def wait(self, at_most_s: float) -> bool:
        """Whether something has changed by then."""
        # Not wait_for, which forgets to be cancelled when what it waits for happens at that moment.
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self._news.wait()
        has_news = self._news.is_set()
        self._news.clear()
        return has_news

    def wake(self) -> None:
        self._news.set()

    def take_node(self, change: Change[Node]) -> None:
        before = self.node
        match change:
            case Listed(objects):
                self.node = node_seen(objects[0]) if objects else None
                self._has_listed("node")
            case Changed(node):
                self.node = node_seen(node)
            case Gone():
                self.node = None
        if self.node != before:
            self.wake()

    def take_pod(self, change: Change[Pod]) -> None:
        """Any change of a pod may be one the kubelet has just given devices to."""
        match change:
            case Listed(objects):
                self.pods = {pod.metadata.uid: pod_seen(pod) for pod in objects}
                self._has_listed("pods")
            case Changed(pod):
                self.pods[pod.metadata.uid] = pod_seen(pod)
            case Gone(pod):
                self.pods.pop(pod.metadata.uid, None)
        self.wake()

    def take_published(self, change: Change[ConfigMap]) -> None:
        match change:
            case Listed(objects):
                self.published = objects[0] if objects else None
                self._has_listed("published")
            case Changed(config_map):
                self.published = config_map
            case Gone():
                self.published = None
        self.wake()

    def _has_listed(self, kind: str) -> None:
        self._listed.add(kind)
        self.wake()


async def keep(changes: AsyncIterator[Change[Object]], take: Callable[[Change[Object]], None]) -> None:
    """Follow, for ever."""
    async for change in changes:
        take(change)
