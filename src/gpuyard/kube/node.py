"""The part of gpuyard that runs on every node with a kubelet: it publishes which container holds which device.

Place in the flow: kubelet, driver, API server ─▶ **node** ─ConfigMap─▶ scheduler. It decides nothing and is asked
nothing: without it everything runs, only nobody beyond the node knows which device is whose, or ill. Invariants:
nothing is written that has not changed; whatever does not answer (kubelet, driver, API server), what was known serves
on, is told once, and is put right when it is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from gpuyard.errors import KubeError, KubeletError
from gpuyard.kube.node_around import Around, keep
from gpuyard.kube.node_devices import Past, PodSeen, Sight, holders, next_past
from gpuyard.kube.node_kubelet import Driver, Kubelet
from gpuyard.kube.node_news import news
from gpuyard.kube.node_page import Figures, page
from gpuyard.kubeapi.client import KubeClient
from gpuyard.kubeapi.follow import Changed, Follower
from gpuyard.kubeapi.kubelet import DEVICE_PLUGINS, POD_RESOURCES
from gpuyard.kubeapi.outage import Outage, Say
from gpuyard.kubeapi.paths import path_of
from gpuyard.nvml.gpus import Gpu
from gpuyard.platform.chance import some_of
from gpuyard.platform.clock import monotonic_ms, wall_text
from gpuyard.platform.web import Page, WebServer
from gpuyard.worlds.kubernetes.devices import (
    KEY,
    LABEL,
    LABEL_VALUE,
    MAX_DEVICES,
    MAX_DOCUMENT_BYTES,
    NAMESPACE,
    NODE_ANNOTATION,
    NodeDevices,
    document_of,
    map_name,
    read_devices,
)
from gpuyard.worlds.kubernetes.objects import ConfigMap, Node, Pod

MANAGER: Final = "gpuyard-node"
"""Whose fields these are, as the API server keeps account of it."""
LOOK_S: Final = 0.5
"""How often the kubelet is asked; sooner when a pod of the node changes, or the kubelet is another."""
GLANCE_S: Final = 0.1
"""How often it is looked whether the kubelet is another."""
PAUSE_S: Final = 0.05
"""Between any two looks: a kubelet takes a hundred questions a second, from all who ask it."""
SILENT_LOOKS: Final = 6
"""A kubelet that is started anew does not answer for a moment, which is nothing to tell."""
DRIVER_WAIT_MS: Final = 5_000
"""How long nothing is published because the driver has not answered yet."""
FIRST_RETRY_MS: Final = 500
MOST_RETRY_MS: Final = 15_000

Object = TypeVar("Object")


class NodeSettings(msgspec.Struct, frozen=True):
    """Which node this is, and where everything is."""

    node: str
    namespace: str = NAMESPACE
    pod_resources: Path = POD_RESOURCES
    device_plugins: Path = DEVICE_PLUGINS
    """The folder in which the kubelet keeps its record."""
    listen: tuple[str, int] | None = None


def node_named(settings: NodeSettings) -> tuple[str, str]:
    """Where the API server has it, and which of those there it is."""
    return path_of("nodes"), f"metadata.name={settings.node}"


def pods_of(settings: NodeSettings) -> tuple[str, str]:
    return path_of("pods"), f"spec.nodeName={settings.node}"


def map_of(settings: NodeSettings) -> tuple[str, str]:
    return path_of("configmaps", namespace=settings.namespace), f"metadata.name={map_name(settings.node)}"


class NodePart:
    """Follows one node, for ever."""

    def __init__(self, client: KubeClient, settings: NodeSettings, say: Say) -> None:
        self._client = client
        self._settings = settings
        self._say = say
        self._outage = Outage(say)
        self._around = Around()
        self._kubelet = Kubelet(settings.pod_resources, settings.device_plugins)
        self._gpus: tuple[Gpu, ...] | None = None
        """None until the driver has answered, or is not there."""
        self._past: Past | None = None
        """None until what was published before us has been read."""
        self._devices = NodeDevices(settings.node)
        self._to_write = asyncio.Event()
        self._wrong: set[str] = set()
        """What people were told is wrong, and was not put right since."""
        self._silent = 0
        self._began_ms = self._looked_at_ms = monotonic_ms()
        self._writes = 0

    async def run(self) -> None:
        web = WebServer(self._page)
        if self._settings.listen:
            port = await web.start(*self._settings.listen)
            self._say(f"listens on port {port}: /healthz, /metrics")
        Driver(self._see_gpus).start()
        try:
            async with asyncio.TaskGroup() as group:
                node = self._follower(Node, *node_named(self._settings))
                pods = self._follower(Pod, *pods_of(self._settings))
                published = self._follower(ConfigMap, *map_of(self._settings))
                group.create_task(keep(node.changes(), self._around.take_node))
                group.create_task(keep(pods.changes(), self._around.take_pod))
                group.create_task(keep(published.changes(), self._around.take_published))
                group.create_task(self._write_for_ever())
                group.create_task(self._look_for_ever())
        finally:
            await self._kubelet.close()
            await web.close()

    # ------------------------------------------------------------------------------------------------------- following

    def _follower(self, kind: type[Object], path: str, which: str) -> Follower[Object]:
        return Follower(self._client, path, kind, outage=self._outage.about(path), selectors={"fieldSelector": which})

    def _see_gpus(self, gpus: tuple[Gpu, ...]) -> None:
        self._gpus = gpus
        self._around.wake()

    # --------------------------------------------------------------------------------------------------------- looking

    async def _look_for_ever(self) -> None:
        while True:
            await self._wait()
            await self._ask_kubelet()
            if self._around.is_whole and self._kubelet.has_answered and self._has_driver_answered():
                self._look()
            self._looked_at_ms = monotonic_ms()
            await asyncio.sleep(PAUSE_S)

    def _has_driver_answered(self) -> bool:
        """Or has had the time to."""
        return self._gpus is not None or monotonic_ms() - self._began_ms > DRIVER_WAIT_MS

    async def _wait(self) -> None:
        """Until it is time, or there is news."""
        until_ms = monotonic_ms() + LOOK_S * 1000
        while monotonic_ms() < until_ms and not self._kubelet.is_new:
            if await self._around.wait(GLANCE_S):
                return

    async def _ask_kubelet(self) -> None:
        """While it does not answer, everything is as before."""
        try:
            await self._kubelet.ask()
            self._silent = 0
            self._is_right("kubelet", "the kubelet answers again")
        except KubeletError as error:
            self._silent += 1
            if self._silent >= SILENT_LOOKS:
                self._is_wrong("kubelet", str(error))
        try:
            await self._kubelet.read_record()
            self._is_right("record", "the kubelet's record can be read again")
        except KubeletError as error:
            self._is_wrong("record", str(error))

    def _look(self) -> None:
        """From what is known to what is to be published."""
        capacity = self._around.node.capacity if self._around.node else {}
        sight = sight_of(self._kubelet, self._gpus or (), self._around.pods, capacity)
        held = holders(sight)
        is_first = self._past is None
        self._past = next_past(self._past or past_of(self._around.published), sight, held)
        found = NodeDevices(self._settings.node, self._past.devices, held)
        if found != self._devices or is_first:
            self._say(news(self._devices, found))
            self._devices = found
        if not self._is_published():
            self._to_write.set()

    # --------------------------------------------------------------------------------------------------------- writing

    async def _write_for_ever(self) -> None:
        """What has not changed is not written; what was refused is tried again, and told once."""
        heard = self._outage.about("what is published")
        failed = 0
        while True:
            await self._to_write.wait()
            self._to_write.clear()
            try:
                await self._write()
                heard(None)
                failed = 0
            except KubeError as error:
                heard(error)
                failed += 1
                await asyncio.sleep(some_of(min(FIRST_RETRY_MS << min(failed, 16), MOST_RETRY_MS)) / 1000)

    async def _write(self) -> None:
        node = self._around.node
        if node is None or self._is_published():
            return
        text = document_of(msgspec.structs.replace(self._devices, at=wall_text()))
        if len(self._devices.devices) > MAX_DEVICES or len(text.encode()) > MAX_DOCUMENT_BYTES:
            self._is_wrong("size", f"more than {MAX_DEVICES} devices or {MAX_DOCUMENT_BYTES} bytes are not published")
            return
        self._is_right("size", "everything is published again")
        path = path_of("configmaps", map_name(node.name), namespace=self._settings.namespace)
        body = config_map_of(self._settings.namespace, node.name, node.uid, text)
        answer = await self._client.apply(path, body, MANAGER)
        self._writes += 1
        self._around.take_published(Changed(msgspec.json.decode(answer, type=ConfigMap)))

    def _is_published(self) -> bool:
        """Also what others may have changed in it counts: whoever reads it finds it by its label."""
        there, node = self._around.published, self._around.node
        if there is None or node is None:
            return False
        found = read_devices(there)
        marks = there.metadata
        return (
            isinstance(found, NodeDevices)
            and msgspec.structs.replace(found, at="") == self._devices
            and (marks.labels or {}).get(LABEL) == LABEL_VALUE
            and any(owner.uid == node.uid for owner in marks.owner_references or ())
        )

    # --------------------------------------------------------------------------------------------------------- telling

    def _is_wrong(self, what: str, note: str) -> None:
        """Once, in whatever words it comes up again."""
        if what not in self._wrong:
            self._wrong.add(what)
            self._say(note)

    def _is_right(self, what: str, note: str) -> None:
        if what in self._wrong:
            self._wrong.discard(what)
            self._say(note)

    def _page(self, path: str, _: Mapping[str, str]) -> Page:
        idle_ms = monotonic_ms() - self._looked_at_ms
        answers = self._kubelet.has_answered and self._silent == 0
        return page(path, Figures(self._devices, idle_ms, answers, self._is_published(), self._writes))


def sight_of(
    kubelet: Kubelet, gpus: tuple[Gpu, ...], pods: Mapping[str, PodSeen], capacity: Mapping[str, int]
) -> Sight:
    """All that is known now."""
    return Sight(monotonic_ms(), kubelet.offered, kubelet.given, kubelet.recorded, gpus, pods, capacity)


def past_of(published: ConfigMap | None) -> Past:
    """What was known here before this process began."""
    found = read_devices(published) if published else None
    return Past(found.devices) if isinstance(found, NodeDevices) else Past()


def config_map_of(namespace: str, node: str, node_uid: str, text: str) -> dict[str, Any]:
    """It goes with its node."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}
    metadata = {
        "name": map_name(node),
        "namespace": namespace,
        "labels": {LABEL: LABEL_VALUE},
        "annotations": {NODE_ANNOTATION: node},
        "ownerReferences": [owner],
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: text}}
