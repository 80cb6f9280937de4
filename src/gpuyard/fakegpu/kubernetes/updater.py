"""The status updater: one for a cluster. It keeps labels on nodes, plays the kubelet for nodes that have none, and
writes who holds which GPU into the ConfigMap.

Place in the flow: API server ─picture─▶ **updater** ─▶ fake nodes, node writer, status texts. The decisions are in
configuration, assign, holdings and nodepatch; here they are put together. Invariants: nothing is concluded before
everything was listed once; whatever fails, what was known serves on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from gpuyard.fakegpu.fleet import MachineSpec, part_of
from gpuyard.fakegpu.kubernetes.configuration import Configuration, fleet_text
from gpuyard.fakegpu.kubernetes.fakenodes import FakeNodes, Settled
from gpuyard.fakegpu.kubernetes.mapwriter import MapWriter
from gpuyard.fakegpu.kubernetes.names import Scope
from gpuyard.fakegpu.kubernetes.nodepatch import MARK, TIMESTAMP, capacity_patch, label_patch
from gpuyard.fakegpu.kubernetes.nodewriter import NodeWriter, Patch
from gpuyard.fakegpu.kubernetes.objects import ConfigMap, Node, Pod
from gpuyard.fakegpu.kubernetes.observed import members
from gpuyard.fakegpu.kubernetes.picture import Picture, keep, taken
from gpuyard.fakegpu.kubernetes.podreports import PodReports
from gpuyard.fakegpu.kubernetes.reports import Reports, Say
from gpuyard.fakegpu.kubernetes.statustexts import StatusTexts
from gpuyard.fakegpu.kubernetes.works import Works
from gpuyard.fakegpu.yard import Yard
from gpuyard.kubeapi.client import KubeClient
from gpuyard.kubeapi.events import Subject
from gpuyard.kubeapi.follow import Changed, Follower
from gpuyard.kubeapi.outage import Outage
from gpuyard.kubeapi.paths import path_of
from gpuyard.platform.clock import monotonic_ms, wall_ms

TICK_S: Final = 0.5
"""At least this often we look whether a GPU has fallen ill, and at what moves by itself."""
PAUSE_S: Final = 0.05
"""Between two looks, so that a hundred changes that come together are one."""
PAUSE_FACTOR: Final = 2
"""A look that took long is followed by so many times its time of rest."""
SHOWN_NAMES: Final = 5

# Pods without a node have no GPU, and those that are over have given theirs back.
POD_SELECTOR: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


class Updater:
    """Follows a cluster; what it finds it writes into the model and back into the cluster."""

    def __init__(self, client: KubeClient, scope: Scope, say: Say) -> None:
        self._client = client
        self._scope = scope
        self._outage = Outage(say)
        self._picture = Picture()
        self._configuration = Configuration(scope.config_map)
        self._machines: dict[str, MachineSpec] = {}
        self._works = Works()
        self._reports = Reports(client, say)
        self._pod_reports = PodReports(self._reports)
        self._nodes = NodeWriter(
            client, self._reports, self._wanted, lambda node: self._picture.take_node(Changed(node))
        )
        self._maps = MapWriter(client, scope.namespace, self._picture, self._reports)
        self._texts = StatusTexts(scope, self._picture, self._maps)
        self._ill: dict[str, frozenset[str]] = {}
        self._fakes: FakeNodes

    async def run(self, yard: Yard, now_ms: Callable[[], int]) -> None:
        self._fakes = FakeNodes(yard)
        client, picture, about = self._client, self._picture, self._outage.about
        maps_path = path_of("configmaps", namespace=self._scope.namespace)
        nodes = Follower(client, path_of("nodes"), Node, outage=about("nodes"))
        pods = Follower(client, path_of("pods"), Pod, outage=about("pods"), selectors={"fieldSelector": POD_SELECTOR})
        maps = Follower(client, maps_path, ConfigMap, outage=about("maps"))
        async with asyncio.TaskGroup() as group:
            group.create_task(keep(nodes.changes(), picture.take_node))
            group.create_task(keep(pods.changes(), picture.take_pod))
            group.create_task(keep(maps.changes(), picture.take_map))
            group.create_task(self._nodes.writing.run())
            group.create_task(self._maps.writing.run())
            await self._look_for_ever(yard, now_ms)

    async def _look_for_ever(self, yard: Yard, now_ms: Callable[[], int]) -> None:
        while True:
            await self._picture.wait(TICK_S)
            began_ms = monotonic_ms()
            if self._picture.is_whole:
                yard.engine.advance(max(now_ms(), yard.engine.now_ms))
                await self._look(yard)
            await asyncio.sleep(max(PAUSE_S, PAUSE_FACTOR * (monotonic_ms() - began_ms) / 1000))

    # --------------------------------------------------------------------------------------------------------- looking

    async def _look(self, yard: Yard) -> None:
        """Everything that has changed since the last look, from configuration to ConfigMap."""
        picture = self._picture
        nodes, pods_on, maps = taken(picture.nodes_changed), taken(picture.pods_changed), taken(picture.maps_changed)
        changed = self._read(nodes, maps)
        await self._report_configuration()
        if self._configuration.fleet is None:
            return
        if changed:
            nodes |= picture.nodes.keys()
        restless = self._follow_fleet(nodes) if nodes else set()
        if self._works.use(self._configuration.profiles):
            restless |= set(self._fakes.names)
        settled = await self._settle(restless | pods_on.intersection(self._fakes.names))
        ill = self._fallen_ill(yard)
        self._nodes.writing.mark(nodes | restless | ill)
        self._texts.update(self._configuration.mig_strategy, self._machines, self._fakes, settled | ill, maps)
        self._maps.look(maps)

    def _read(self, nodes: Collection[str], maps: Collection[str]) -> bool:
        """The configuration, if it or the nodes of its pools may have changed."""
        name = self._scope.config_map
        if nodes:
            self._configuration.doubt()
        elif name not in maps and self._configuration.fleet is not None:
            return False
        there = self._picture.maps.get(name)
        text = fleet_text(there.data) if there else None
        draft = self._configuration.read(text, members(self._picture.nodes.values()))
        changed = draft is not None and self._configuration.accept(draft, self._absent((*draft.come, *draft.gone)))
        if changed and self._configuration.fleet is not None:
            self._machines = {machine.name: machine for machine in self._configuration.fleet.machines}
        return changed

    def _absent(self, names: Collection[str]) -> Collection[str]:
        return [name for name in names if name not in self._picture.nodes]

    def _follow_fleet(self, nodes: Collection[str]) -> set[str]:
        """The model gets the fake nodes that are in cluster and configuration; which of them are new or different."""
        for name in nodes:
            if name not in self._picture.nodes:
                self._nodes.forget(name)
        fleet = self._configuration.fleet
        assert fleet is not None
        there = [node.name for node in self._picture.nodes.values() if node.is_fake and node.name in self._machines]
        fresh = [name for name in there if name not in self._fakes.names]
        changed = self._fakes.change(part_of(fleet, there))
        for name in fresh:
            self._fakes.remember(name, self._texts.written(name))
        return changed

    async def _settle(self, names: Collection[str]) -> set[str]:
        """Pods of fake nodes get their GPUs; GPUs that are to go and were only held by somebody go with them."""
        for name in names:
            pods = self._picture.pods_on(name)
            work = self._works.of(pods.values())
            settled: Settled = self._fakes.house(name, pods, work)
            await self._pod_reports.tell(name, pods.values(), work, settled)
        self._works.keep(self._picture.pods.keys())
        let_go = self._fakes.let_go()
        return set(names) | (await self._settle(let_go) if let_go else set())

    def _fallen_ill(self, yard: Yard) -> set[str]:
        """Nodes with a GPU that has become ill, or well again."""
        before, self._ill = self._ill, yard.engine.unhealthy()
        if before == self._ill:
            return set()
        return {name for name in before.keys() | self._ill.keys() if before.get(name) != self._ill.get(name)}

    # -------------------------------------------------------------------------------------------------------- deciding

    def _wanted(self, name: str) -> list[Patch]:
        """What a node has to be given now."""
        node = self._picture.nodes.get(name)
        if node is None:
            return []
        found = []
        machine = self._machines.get(name)
        was_ours = MARK in dict(node.labels)
        resources = self._fakes.resources(name) if machine is not None and name in self._fakes.names else None
        status = capacity_patch(node, resources, was_ours=was_ours)
        if status is not None:
            found.append(Patch(status, "status", status))
        labels = label_patch(node, machine, wall_ms() // 1000)
        if labels is not None:
            said = labels["metadata"]["labels"]
            found.append(Patch(labels, "", {key: value for key, value in said.items() if key != TIMESTAMP}))
        return found

    # ------------------------------------------------------------------------------------------------------- reporting

    async def _report_configuration(self) -> None:
        there = self._picture.maps.get(self._scope.config_map)
        uid = there.metadata.uid if there else ""
        subject = Subject("ConfigMap", self._scope.config_map, self._scope.namespace, uid)
        found = self._configuration
        problems = {
            "InvalidConfiguration": _invalid(found),
            "NoSuchNode": "\n".join(str(error) for error in found.unplaced[:SHOWN_NAMES]),
            "NodeRenamed": _renamed(found, self._absent([*self._machines])),
        }
        for reason, note in problems.items():
            if note:
                await self._reports.tell(subject, reason, note)
            else:
                self._reports.take_back(subject, reason, f"is as it should be again ({reason})")


def _invalid(found: Configuration) -> str:
    if found.error is None:
        return ""
    return f"{found.error}" + ("\n  the configuration from before counts" if found.fleet is not None else "")


def _renamed(found: Configuration, strangers: Collection[str]) -> str:
    if not found.kept:
        return ""
    kept, others = ", ".join(found.kept[:SHOWN_NAMES]), ", ".join(list(strangers)[:SHOWN_NAMES])
    return f"no node is called {others}; {kept}, which it no longer names, keeps its GPUs until that is put right"
