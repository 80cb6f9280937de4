"""`gpuyard kube node` as a process, and what it would publish without being one.

Place in the flow: cli ─NodeSettings─▶ **node_process** ─▶ node. Invariant: it ends on SIGTERM and SIGINT, and what it
has published stays: whoever reads it is served on while it is replaced by another.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import TypeVar

import msgspec

from gpuyard.errors import InputError
from gpuyard.kube.node import NodePart, NodeSettings, map_of, node_named, past_of, pods_of, sight_of
from gpuyard.kube.node_around import node_seen, pod_seen
from gpuyard.kube.node_devices import holders, next_past
from gpuyard.kube.node_kubelet import Kubelet, look_at_gpus
from gpuyard.kubeapi.access import Access
from gpuyard.kubeapi.client import KubeClient
from gpuyard.platform.clock import wall_text
from gpuyard.worlds.kubernetes.devices import NodeDevices
from gpuyard.worlds.kubernetes.objects import ConfigMap, Node, Pod

Object = TypeVar("Object")


def run(settings: NodeSettings, access: Access) -> None:
    """Be the part of this node, until it is ended."""
    asyncio.run(_live(settings, access))


async def _live(settings: NodeSettings, access: Access) -> None:
    client = KubeClient(access)
    running = asyncio.create_task(NodePart(client, settings, say).run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    try:
        with suppress(asyncio.CancelledError):
            await running
    finally:
        await client.close()


def say(text: str) -> None:
    """One entry of the log."""
    print(f"{wall_text()} {text}", flush=True)


# ---------------------------------------------------------------------------------------------------------------- once


def published_now(settings: NodeSettings, access: Access) -> NodeDevices:
    """What would be published, without doing so."""
    return asyncio.run(_look_once(settings, access))


async def _look_once(settings: NodeSettings, access: Access) -> NodeDevices:
    client = KubeClient(access)
    kubelet = Kubelet(settings.pod_resources, settings.device_plugins)
    try:
        nodes = await _listed(client, Node, *node_named(settings))
        if not nodes:
            raise InputError(f'the cluster has no node "{settings.node}"', fix="kubectl get nodes lists them")
        pods = await _listed(client, Pod, *pods_of(settings))
        published = await _listed(client, ConfigMap, *map_of(settings))
        await kubelet.ask()
        await kubelet.read_record()
    finally:
        await kubelet.close()
        await client.close()
    gpus = await asyncio.to_thread(look_at_gpus)
    by_uid = {pod.metadata.uid: pod_seen(pod) for pod in pods}
    sight = sight_of(kubelet, gpus, by_uid, node_seen(nodes[0]).capacity)
    held = holders(sight)
    past = next_past(past_of(published[0] if published else None), sight, held)
    return NodeDevices(settings.node, past.devices, held, wall_text())


class _List(msgspec.Struct):
    items: list[msgspec.Raw]


async def _listed(client: KubeClient, kind: type[Object], path: str, which: str) -> list[Object]:
    """By a list alone, so that it takes no other rights than to follow."""
    answer = msgspec.json.decode(await client.get(path, {"fieldSelector": which}), type=_List)
    return [msgspec.json.decode(raw, type=kind) for raw in answer.items]
