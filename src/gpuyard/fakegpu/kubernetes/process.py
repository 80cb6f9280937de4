"""The processes of `gpuyard fake kube`: the daemon of fake GPUs, driven by a cluster instead of a file.

Place in the flow: cli ─settings─▶ **process** ─▶ daemon with updater, or with node part and device plugin beside it.
Invariant: both have everything the daemon has (exporter, commands), so that faults and looks work as without a cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from gpuyard.fakegpu import daemon
from gpuyard.fakegpu.daemon import Settings, say
from gpuyard.fakegpu.fleet import Fleet
from gpuyard.fakegpu.kubernetes.names import Scope
from gpuyard.fakegpu.kubernetes.nodepart import NodePart, NodeSettings
from gpuyard.fakegpu.kubernetes.overview import ClusterView, overview
from gpuyard.fakegpu.kubernetes.plugin import PluginSettings
from gpuyard.fakegpu.kubernetes.plugin_process import PluginCompanion
from gpuyard.fakegpu.kubernetes.updater import Updater
from gpuyard.fakegpu.launch import refuse_second
from gpuyard.fakegpu.yard import Yard
from gpuyard.kubeapi.access import find_access
from gpuyard.kubeapi.client import KubeClient

NOBODY: Final = Fleet(())
"""Before the cluster has told of its nodes there are none."""


class Where(msgspec.Struct, frozen=True):
    """Which cluster, and where in it."""

    scope: Scope
    kubeconfig: Path | None = None
    context: str | None = None


class _Closing:
    """A companion whose connection is closed with it."""

    def __init__(self, where: Where, make: Callable[[KubeClient], daemon.Companion]) -> None:
        self._access = find_access(where.kubeconfig, where.context)
        self._make = make

    async def run(self, yard: Yard, now_ms: Callable[[], int]) -> None:
        client = KubeClient(self._access)
        try:
            await self._make(client).run(yard, now_ms)
        finally:
            await client.close()


def run_node(settings: Settings, where: Where, node: NodeSettings, plugin: PluginSettings) -> None:
    """Be the fake GPUs of one node, until it is ended."""
    refuse_second(settings.home)
    own = msgspec.structs.replace(settings, only=node.node)
    part = _Closing(where, lambda client: NodePart(client, where.scope, node, say))
    daemon.run(own, NOBODY, [part, PluginCompanion(msgspec.structs.replace(plugin, alone=True))])


def look(where: Where) -> ClusterView:
    """Who holds what, as a cluster's ConfigMaps say."""

    async def ask() -> ClusterView:
        client = KubeClient(find_access(where.kubeconfig, where.context))
        try:
            return await overview(client, where.scope)
        finally:
            await client.close()

    return asyncio.run(ask())


def run_updater(settings: Settings, where: Where) -> None:
    """Be the updater of a cluster, until it is ended."""
    refuse_second(settings.home)
    # No program runs on the nodes it models, so none of them needs a directory.
    unshown = msgspec.structs.replace(settings, max_shown=0)
    daemon.run(unshown, NOBODY, [_Closing(where, lambda client: Updater(client, where.scope, say))])
