"""The part of the fake GPUs that runs on a node with a kubelet: it puts the containers of that node on its GPUs.

Place in the flow: kubelet ─who was given what─▶ **nodepart** ─▶ yard ─▶ NVML, nvidia-smi, exporter; ─▶ the node's
ConfigMap. Beside it the device plugin offers the same GPUs to the kubelet. Invariants: whoever holds a GPU is who the
kubelet says; whatever does not answer (kubelet, API server), what was known serves on and is told once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from gpuyard.errors import KubeError, KubeletError, KubeRefusedError
from gpuyard.fakegpu.fleet import part_of
from gpuyard.fakegpu.kubernetes.assign import Allocation
from gpuyard.fakegpu.kubernetes.configuration import Configuration, Draft, fleet_text
from gpuyard.fakegpu.kubernetes.fakenodes import Settled
from gpuyard.fakegpu.kubernetes.holdings import Holding, holdings
from gpuyard.fakegpu.kubernetes.mapwriter import MapWriter, Wanted
from gpuyard.fakegpu.kubernetes.names import Scope, map_of_node
from gpuyard.fakegpu.kubernetes.objects import ConfigMap, Node, Pod
from gpuyard.fakegpu.kubernetes.observed import POOL_LABELS, Kind, PodFacts, is_gpu_resource, members
from gpuyard.fakegpu.kubernetes.picture import Picture, keep, taken
from gpuyard.fakegpu.kubernetes.podreports import PodReports
from gpuyard.fakegpu.kubernetes.reports import Reports, Say
from gpuyard.fakegpu.kubernetes.statusmap import document, node_text
from gpuyard.fakegpu.kubernetes.tenancy import Tenancy
from gpuyard.fakegpu.kubernetes.works import Works
from gpuyard.fakegpu.yard import Yard
from gpuyard.kubeapi.client import NOT_FOUND, KubeClient
from gpuyard.kubeapi.events import Subject
from gpuyard.kubeapi.follow import Follower
from gpuyard.kubeapi.kubelet import DEVICE_PLUGINS, POD_RESOURCES, Given, PodResources, recorded
from gpuyard.kubeapi.outage import Outage
from gpuyard.kubeapi.paths import path_of
from gpuyard.platform.clock import monotonic_ms

LOOK_S: Final = 0.5
"""How often the kubelet is asked; sooner when a pod of the node changes."""
PAUSE_S: Final = 0.05
DOUBT_MS: Final = 30_000
"""How often a name that no node has is looked for again."""
MAX_LOOKED_FOR: Final = 20
SILENT: Final = "KubeletSilent"
SILENT_LOOKS: Final = 6
"""A kubelet that is started anew does not answer for a moment, which is nothing to tell."""

Object = TypeVar("Object")


class NodeSettings(msgspec.Struct, frozen=True):
    """Which node this is, and where its kubelet's sockets are."""

    node: str
    pod_resources: Path = POD_RESOURCES
    device_plugins: Path = DEVICE_PLUGINS


class NodePart:
    """Follows one node's kubelet and what the API server knows of its pods."""

    def __init__(self, client: KubeClient, scope: Scope, settings: NodeSettings, say: Say) -> None:
        self._client = client
        self._scope = scope
        self._node = settings.node
        self._folder = settings.device_plugins
        self._kubelet = PodResources(settings.pod_resources, is_gpu_resource)
        self._outage = Outage(say)
        self._picture = Picture()
        self._own = Picture()
        """Of ConfigMaps the one this part writes; the picture has the one people write."""
        self._configuration = Configuration(scope.config_map)
        self._works = Works()
        self._reports = Reports(client, say)
        self._pod_reports = PodReports(self._reports)
        self._maps = MapWriter(client, scope.namespace, self._own, self._reports)
        self._given: tuple[Given, ...] = ()
        self._early: tuple[Allocation, ...] = ()
        self._held: dict[str, Holding] = {}
        self._devices: tuple[object, ...] = ()
        self._is_news = True
        """Whether something is to be written that somebody may wait for."""
        self._silent = 0
        self._doubted_at_ms = 0
        self._tenancy: Tenancy

    async def run(self, yard: Yard, now_ms: Callable[[], int]) -> None:
        self._tenancy = Tenancy(yard)
        picture, own = self._picture, map_of_node(self._scope, self._node)
        async with asyncio.TaskGroup() as group:
            group.create_task(keep(self._named("nodes", Node, self._node).changes(), picture.take_node))
            group.create_task(keep(self._pods().changes(), picture.take_pod))
            group.create_task(
                keep(self._named("configmaps", ConfigMap, self._scope.config_map).changes(), picture.take_map)
            )
            group.create_task(keep(self._named("configmaps", ConfigMap, own).changes(), self._own.take_map))
            group.create_task(self._maps.writing.run())
            try:
                await self._look_for_ever(yard, now_ms)
            finally:
                await self._kubelet.close()

    def _named(self, kind: str, of: type[Object], name: str) -> Follower[Object]:
        """One object by its name."""
        namespace = self._scope.namespace if kind == "configmaps" else ""
        selectors = {"fieldSelector": f"metadata.name={name}"}
        path = path_of(kind, namespace=namespace)
        return Follower(self._client, path, of, outage=self._outage.about(f"{kind} {name}"), selectors=selectors)

    def _pods(self) -> Follower[Pod]:
        selectors = {"fieldSelector": f"spec.nodeName={self._node}"}
        return Follower(self._client, path_of("pods"), Pod, outage=self._outage.about("pods"), selectors=selectors)

    async def _look_for_ever(self, yard: Yard, now_ms: Callable[[], int]) -> None:
        while True:
            await self._picture.wait(LOOK_S)
            if self._picture.is_whole:
                await self._ask_kubelet()
                yard.engine.advance(max(now_ms(), yard.engine.now_ms))
                await self._look()
            await asyncio.sleep(PAUSE_S)

    # --------------------------------------------------------------------------------------------------------- looking

    async def _ask_kubelet(self) -> None:
        """Who was given what; as before, while it does not answer."""
        subject = Subject("Node", self._node)
        try:
            self._given = await self._kubelet.given()
            self._silent = 0
            self._reports.take_back(subject, SILENT, "the kubelet answers again")
        except KubeletError as error:
            self._silent += 1
            if self._silent == SILENT_LOOKS:
                await self._reports.tell(subject, SILENT, str(error), with_event=False)
        try:
            self._early = await self._of_init_containers()
        except KubeletError as error:
            await self._reports.tell(subject, "NoRecord", str(error), with_event=False)

    async def _of_init_containers(self) -> tuple[Allocation, ...]:
        """Of pods that have such with GPUs; for all others the kubelet's answer is enough."""
        wanted = {
            (pod.uid, container.name)
            for pod in self._pods_here.values()
            for container in pod.containers
            if container.kind is Kind.INIT and container.asks
        }
        if not wanted:
            return ()
        found = await recorded(self._folder, is_gpu_resource)
        return tuple(
            Allocation(each.pod, each.container, each.devices) for each in found if (each.pod, each.container) in wanted
        )

    async def _look(self) -> None:
        """From configuration to ConfigMap, for the one node."""
        taken(self._picture.pods_changed)
        changed = await self._read()
        fleet = self._configuration.fleet
        if fleet is None:
            return
        self._works.use(self._configuration.profiles)
        if changed:
            self._tenancy.change(part_of(fleet, [self._node]))
        await self._settle()
        if self._tenancy.let_go():
            await self._settle()
        await self._tell_whether_configured()
        self._write()

    async def _read(self) -> bool:
        """The configuration; whether it is another than before."""
        if self._configuration.kept and monotonic_ms() - self._doubted_at_ms > DOUBT_MS:
            self._configuration.doubt()
        taken(self._picture.nodes_changed)
        taken(self._picture.maps_changed)
        there = self._picture.maps.get(self._scope.config_map)
        text = fleet_text(there.data) if there else None
        draft = self._configuration.read(text, members(self._picture.nodes.values()))
        await self._tell_of_mistakes()
        return draft is not None and self._configuration.accept(draft, await self._absent(draft))

    async def _absent(self, draft: Draft) -> Collection[str]:
        """Of the names that have come when ours has gone, those that no node has."""
        if self._node not in draft.gone:
            return ()
        self._doubted_at_ms = monotonic_ms()
        return [name for name in draft.come[:MAX_LOOKED_FOR] if await self._is_absent(name)]

    async def _is_absent(self, name: str) -> bool:
        """Until we know better it counts as absent, and nothing is taken away."""
        try:
            await self._client.get(path_of("nodes", name))
        except KubeError as error:
            if not isinstance(error, KubeRefusedError) or error.status != NOT_FOUND:
                await self._reports.tell(Subject("Node", name), "NotFoundOut", str(error), with_event=False)
            return True
        return False

    # -------------------------------------------------------------------------------------------------------- settling

    @property
    def _pods_here(self) -> Mapping[str, PodFacts]:
        return self._picture.pods_on(self._node)

    async def _settle(self) -> None:
        if self._node not in self._tenancy.names:
            return
        pods = self._pods_here
        work = self._works.of(pods.values())
        allocations = (*self._early, *self._of_the_kubelet())
        wanted = holdings(allocations, pods, work)
        missing = self._tenancy.settle(self._node, wanted)
        going = self._tenancy.leaving(self._node).union(missing)
        keeping = {each.pod for each in allocations if going.intersection(each.devices)}
        left = tuple(pods[uid] for uid in sorted(keeping & pods.keys()))
        await self._pod_reports.tell(self._node, pods.values(), work, Settled(keeping=left))
        self._works.keep(pods.keys())
        self._is_news = self._is_news or wanted != self._held
        self._held = wanted

    def _of_the_kubelet(self) -> tuple[Allocation, ...]:
        """Kubelets before 1.34 also tell of pods that are over; those are not in the picture any more."""
        known = ((each, self._picture.pod_named((each.namespace, each.pod))) for each in self._given)
        return tuple(Allocation(pod.uid, each.container, each.devices) for each, pod in known if pod is not None)

    def _write(self) -> None:
        """Who holds what at once; what only goes up and down at leisure."""
        name = map_of_node(self._scope, self._node)
        if self._node not in self._tenancy.names:
            self._give_up(name)
            return
        reading = self._tenancy.reading(self._node)
        devices = tuple((device.uuid, device.memory_total_bytes, device.health) for device in reading.devices)
        self._is_news = self._is_news or devices != self._devices
        self._devices = devices
        strategy = self._configuration.mig_strategy
        text = document(strategy, [node_text(reading, strategy)])
        self._maps.want(name, Wanted(text, self._node), at_leisure=not self._is_news)
        self._is_news = False
        self._maps.look(taken(self._own.maps_changed))

    def _give_up(self, name: str) -> None:
        """The ConfigMap says that nothing is held here any more; then it is the updater's to take away."""
        if name in self._own.maps:
            self._maps.want(name, Wanted(document(self._configuration.mig_strategy, []), self._node))
        else:
            self._maps.forget(name)

    # ------------------------------------------------------------------------------------------------------- reporting

    async def _tell_of_mistakes(self) -> None:
        """In the log of this node; the updater makes an event of it, once for the cluster."""
        subject = Subject("ConfigMap", self._scope.config_map, self._scope.namespace)
        error = self._configuration.error
        if error is None:
            self._reports.take_back(subject, "InvalidConfiguration", "is as it should be again")
        else:
            note = f"{error}\n  the configuration from before counts" if self._configuration.fleet else str(error)
            await self._reports.tell(subject, "InvalidConfiguration", note, with_event=False)

    async def _tell_whether_configured(self) -> None:
        subject = Subject("Node", self._node)
        if self._node in self._tenancy.names:
            self._reports.take_back(subject, "NotConfigured", "has GPUs")
        else:
            note = f"is not in the configuration, so it has no GPUs: name it there, or label it {POOL_LABELS[0]}=POOL"
            await self._reports.tell(subject, "NotConfigured", note, with_event=False)
