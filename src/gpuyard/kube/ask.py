"""A cluster read once, for one question, with the eyes of its scheduler and the rights of whoever asks.

Place in the flow: API server ─lists─▶ **ask** ─picture, world─▶ Snapshot ─▶ why, views, doctor, what-if. Invariants:
nothing is written; the picture is made by the code the scheduler itself uses, and by the settings it was started with;
what may not be read is named, and never taken for absent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from gpuyard.errors import KubeError, KubeRefusedError
from gpuyard.kube.lease import Lease, read_lease
from gpuyard.kube.published import ANNOTATION, Published, read_published
from gpuyard.kube.rights import Right, right_of, rights_error
from gpuyard.kube.sources import Source, sources
from gpuyard.kubeapi.access import find_access
from gpuyard.kubeapi.client import FORBIDDEN, NOT_FOUND, KubeClient
from gpuyard.kubeapi.follow import Listed, listed
from gpuyard.loop.disabled import Left
from gpuyard.model.snapshot import Snapshot
from gpuyard.platform.clock import wall_ms
from gpuyard.policies.policy import Policy
from gpuyard.scheduler.ledger import Ledger
from gpuyard.worlds.kubernetes.intents import Intents
from gpuyard.worlds.kubernetes.membership import DOUBT_MS, OwnerKind
from gpuyard.worlds.kubernetes.objects import Owner, Pod
from gpuyard.worlds.kubernetes.owners import owner_path
from gpuyard.worlds.kubernetes.picture import Picture
from gpuyard.worlds.kubernetes.places import NAME as PLACES
from gpuyard.worlds.kubernetes.places import saved_places
from gpuyard.worlds.kubernetes.podrecord import key_of
from gpuyard.worlds.kubernetes.settings import SYSTEM_NAMESPACE, Settings
from gpuyard.worlds.kubernetes.world import Kubernetes
from gpuyard.worlds.kubernetes.writes import SavePlaces

PODS: Final = "pods"
KINDS_OF_OURS: Final = {"queues": "Queue", "podgroups": "PodGroup"}
"""Kinds a cluster has only once somebody has installed them."""

INSTALL: Final = "give it what the scheduler reads: gpuyard kube install"

Answer = TypeVar("Answer")


class Target(msgspec.Struct, frozen=True):
    """Which cluster is asked, and about which namespace."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str = ""
    """Empty: the one of the kubeconfig's context."""
    system_namespace: str = SYSTEM_NAMESPACE


class Cluster:
    """What was read, and what the scheduler would make of it."""

    def __init__(self, reading: Reading, target: Target, server: str, namespace: str, now_ms: int) -> None:
        self.server = server
        self.namespace = target.namespace or namespace
        self.system_namespace = target.system_namespace
        self.now_ms = now_ms
        self.pods = reading.pods
        self.lease = reading.lease
        self.published = reading.published
        self.denied = tuple(reading.denied)
        self.absent = tuple(reading.absent)
        self.picture = reading.picture
        self.world = Kubernetes(reading.picture, Intents(), lambda: now_ms)
        self.world.adopt(reading.saved)
        self.left = Left()
        """What the scheduler leaves out of planning as it is out of range."""
        self.snapshot: Snapshot = self.left.snapshot(self.world.snapshot())

    @property
    def settings(self) -> Settings:
        return self.picture.settings

    @property
    def policy(self) -> Policy:
        return (self.published or Published()).policy

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger.of(self.snapshot)

    def notes(self) -> tuple[str, ...]:
        """What an answer takes for granted, because it could not be read."""
        unread = [right for right in self.denied if right.namespace]
        assumed = f"how the scheduler was started is not known ({self._unknown()}); the defaults are assumed"
        return (
            *([] if self.published else [assumed]),
            *(f"you may not {right}: {UNREAD.get(right.resource, 'it is as if there were none')}" for right in unread),
        )

    def _unknown(self) -> str:
        where = f"{self.system_namespace}/gpuyard-scheduler"
        if any(right.resource == "leases" for right in self.denied):
            return f"you may not read its lease {where}"
        return f"its lease {where} does not say" if self.lease else f"there is no lease {where}"


UNREAD: Final = {
    "configmaps": "which GPUs pods have, and places that are kept for pods that move, are left out",
    "leases": "nothing is known of the scheduler",
}


# ------------------------------------------------------------------------------------------------------------- asking


def ask(target: Target) -> Cluster:
    """The cluster as it is now; an error that says what is missing where it cannot be understood without."""
    cluster = with_client(target, lambda client: read_cluster(client, target))
    refuse_half(cluster)
    return cluster


def with_client(target: Target, use: Callable[[KubeClient], Awaitable[Answer]]) -> Answer:
    async def talk() -> Answer:
        client = KubeClient(find_access(target.kubeconfig, target.context))
        try:
            return await use(client)
        finally:
            await client.close()

    return asyncio.run(talk())


def refuse_half(cluster: Cluster) -> None:
    """An answer from half a cluster would be wrong, and nobody would see it."""
    if cluster.absent:
        kinds = " and ".join(KINDS_OF_OURS[kind] for kind in cluster.absent)
        raise KubeError(f"this cluster has no kind {kinds}", fix=INSTALL)
    lacking = [right for right in cluster.denied if not right.namespace]
    if lacking:
        raise rights_error(lacking)


async def read_cluster(client: KubeClient, target: Target) -> Cluster:
    """Everything the scheduler follows, listed once."""
    reading = Reading(client, target.system_namespace)
    await reading.read()
    return Cluster(reading, target, client.access.server, client.access.namespace, wall_ms())


class Reading:
    """One pass over a cluster: lists side by side, then the owners that pods name."""

    def __init__(self, client: KubeClient, system_namespace: str) -> None:
        self._client = client
        self._namespace = system_namespace
        self.denied: list[Right] = []
        self.absent: list[str] = []
        self.pods: dict[str, Pod] = {}
        self.lease: Lease | None = None
        self.published: Published | None = None
        self.saved = SavePlaces((), ())
        self.picture = Picture(Settings())

    async def read(self) -> None:
        followed = sources(self._namespace)
        found, _, _ = await asyncio.gather(
            asyncio.gather(*(self._list(source) for source in followed)), self._read_lease(), self._read_places()
        )
        settings = (self.published or Published()).settings
        self.picture = Picture(msgspec.structs.replace(settings, namespace=self._namespace))
        now_ms = wall_ms()
        # Pods last: what they refer to is then known, and each is worked out once.
        for source, objects in sorted(zip(followed, found, strict=True), key=lambda pair: pair[0].kind == PODS):
            self.picture.take(source.kind, Listed(tuple(objects)), now_ms)
            if source.kind == PODS:
                self.pods = {key_of(pod.metadata): pod for pod in objects}
        await self._read_owners(now_ms)

    async def _read_owners(self, now_ms: int) -> None:
        """Level by level: an owner names the kind of its own."""
        known: set[OwnerKind] = set()
        while new := [kind for kind in self.picture.membership.wanted_kinds if kind not in known]:
            known.update(new)
            for kind, owners in zip(new, await asyncio.gather(*map(self._owners, new)), strict=True):
                self.picture.take_owner(kind, Listed(tuple(owners)), now_ms)
        # An owner that is in no list now will be in none later.
        self.picture.look_again(now_ms + DOUBT_MS)

    async def _owners(self, kind: OwnerKind) -> Sequence[Owner]:
        path = owner_path(*kind)
        assert path is not None
        return await self._list(Source("/".join(kind), path, Owner, optional=True))

    async def _list(self, source: Source) -> Sequence[Any]:
        try:
            return await listed(self._client, source.path, source.object, dict(source.selectors))
        except KubeRefusedError as error:
            if error.status == FORBIDDEN:
                self.denied.append(right_of(source.path))
            elif error.status != NOT_FOUND:
                raise
            elif not source.optional:
                self.absent.append(source.kind)
            return ()

    async def _read_lease(self) -> None:
        try:
            self.lease = await read_lease(self._client, self._namespace)
        except KubeRefusedError as error:
            self._note_denied(error, Right("get", "leases", "coordination.k8s.io", self._namespace))
        if self.lease is not None:
            self.published = read_published((self.lease.metadata.annotations or {}).get(ANNOTATION))

    async def _read_places(self) -> None:
        try:
            self.saved = await saved_places(self._client, self._namespace)
        except KubeRefusedError as error:
            self._note_denied(error, Right("get", "configmaps", "", self._namespace, PLACES))

    def _note_denied(self, error: KubeRefusedError, right: Right) -> None:
        if error.status != FORBIDDEN:
            raise error
        self.denied.append(right)
