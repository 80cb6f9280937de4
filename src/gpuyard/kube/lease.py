"""Who leads: one lease, renewed in time or given up.

Place in the flow: **lease** ─holds()─▶ scheduler, writer. Invariants: whoever holds it has renewed it within
RENEW_MS by its own clock, which runs on while the machine sleeps, so that a stopped process knows it has lost before
it writes anything; somebody else's lease is over when it has not changed for its whole duration as we have watched
it, whatever times are written in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from gpuyard.errors import KubeError, KubeRefusedError
from gpuyard.kubeapi.client import CONFLICT, NOT_FOUND, KubeClient, decoded
from gpuyard.kubeapi.paths import path_of
from gpuyard.platform.chance import some_of
from gpuyard.platform.clock import boot_ms, wall_micros_text

NAME: Final = "gpuyard-scheduler"
DURATION_MS: Final = 15_000
RENEW_MS: Final = 10_000
RETRY_MS: Final = 2_000
TRY_MS: Final = 5_000
"""How long an answer is waited for: one that comes later leaves no time for another try."""
GROUP: Final = "coordination.k8s.io"
NOTHING: Final[Mapping[str, str]] = {}


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class LeaseMeta(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class Lease(msgspec.Struct, frozen=True, rename="camel"):
    metadata: LeaseMeta
    spec: LeaseSpec = LeaseSpec()


class Leadership:
    """Our part in the election."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        identity: str,
        say: Callable[[str], None],
        name: str = NAME,
        annotations: Mapping[str, str] = NOTHING,
    ) -> None:
        """`annotations` are on the lease while it is ours, and stay there."""
        self._client = client
        self._namespace = namespace
        self._identity = identity
        self._name = name
        self._annotations = dict(annotations)
        self._say = say
        self._seen: Lease | None = None
        self._seen_at_ms = 0
        self._renewed_at_ms: int | None = None
        self.gained = asyncio.Event()
        """Set while we lead, as far as the last renewal tells."""
        self.gained_at_ms = 0
        """When we last began to, by the clock of the machine's start."""
        self.tried = asyncio.Event()
        """Set once the first try is over."""
        self.holder = ""
        self._trouble = ""
        self._trying = asyncio.Lock()
        self._stood_down = False

    def holds(self) -> bool:
        """Whether we lead at this very moment."""
        return self._renewed_at_ms is not None and boot_ms() - self._renewed_at_ms < RENEW_MS

    async def run(self) -> None:
        """Until we stand down: renew while we lead, else try to."""
        while not self._stood_down:
            async with self._trying:
                await self._try_once()
            self.tried.set()
            await asyncio.sleep((RETRY_MS + some_of(RETRY_MS // 5)) / 1000)

    def stand_down(self) -> None:
        """Lead no longer, and never again; the lease stays ours until it is released or over."""
        self._stood_down = True
        self._renewed_at_ms = None

    async def release(self) -> None:
        """Let somebody else lead at once, now that nothing we have decided is still under way."""
        assert self._stood_down, "whoever still leads cannot let somebody else"
        async with self._trying:
            if self._seen is None or self._seen.spec.holder_identity != self._identity:
                return
            spec = msgspec.structs.replace(self._seen.spec, holder_identity="", lease_duration_seconds=1)
            try:
                async with asyncio.timeout(TRY_MS / 1000):
                    await self._replace(self._seen.metadata.resource_version, spec)
            except (KubeError, TimeoutError):
                return  # It ends by itself.

    async def _try_once(self) -> None:
        asked_at_ms = boot_ms()
        won = False
        try:
            async with asyncio.timeout(TRY_MS / 1000):
                won = await self._try()
            self._trouble = ""
        except KubeError as error:
            self._tell(str(error))
        except TimeoutError:
            self._tell(f"no answer within {TRY_MS // 1000} s")
        self._note(won and not self._stood_down, asked_at_ms)

    def _tell(self, trouble: str) -> None:
        """Once for as long as it lasts."""
        if self._trouble != trouble:
            self._trouble = trouble
            self._say(f"the lease {self._namespace}/{self._name} cannot be had: {trouble}")

    def _note(self, won: bool, asked_at_ms: int) -> None:
        if won:
            self._renewed_at_ms = asked_at_ms
        if self.holds() and not self.gained.is_set():
            self.gained_at_ms = boot_ms()
            self.gained.set()
            self._say(f"{self._identity} leads")
        elif not self.holds() and self.gained.is_set():
            self.gained.clear()
            self._renewed_at_ms = None
            self._say(f"{self._identity} leads no longer")

    async def _try(self) -> bool:
        if self.holds() and self._seen is not None:
            try:
                await self._replace(self._seen.metadata.resource_version, self._ours(self._seen.spec, taken=False))
                return True
            except KubeRefusedError as error:
                if error.status not in (CONFLICT, NOT_FOUND):
                    raise
        current = await self._look()
        if current is None:
            return await self._create()
        if current.spec.holder_identity not in (None, "", self._identity) and not self._is_over(current):
            self._renewed_at_ms = None
            return False
        try:
            taken = current.spec.holder_identity != self._identity
            await self._replace(current.metadata.resource_version, self._ours(current.spec, taken=taken))
        except KubeRefusedError as error:
            if error.status == CONFLICT:
                return False
            raise
        return True

    async def _look(self) -> Lease | None:
        try:
            content = await self._client.get(self._path(self._name))
        except KubeRefusedError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        found = decoded(content, Lease, self._path(self._name))
        if self._seen is None or found.spec != self._seen.spec:
            self._seen_at_ms = boot_ms()
        self._seen = found
        self.holder = found.spec.holder_identity or ""
        return found

    def _is_over(self, lease: Lease) -> bool:
        duration_ms = 1000 * (lease.spec.lease_duration_seconds or 0)
        return boot_ms() - self._seen_at_ms >= duration_ms

    def _ours(self, before: LeaseSpec, *, taken: bool) -> LeaseSpec:
        now = wall_micros_text()
        return LeaseSpec(
            holder_identity=self._identity,
            lease_duration_seconds=DURATION_MS // 1000,
            acquire_time=now if taken else before.acquire_time,
            renew_time=now,
            lease_transitions=(before.lease_transitions or 0) + taken,
        )

    async def _create(self) -> bool:
        try:
            content = await self._client.create(self._path(""), self._body(self._ours(LeaseSpec(), taken=True), ""))
        except KubeRefusedError as error:
            if error.status == CONFLICT:
                return False
            raise
        self._take(content)
        return True

    async def _replace(self, version: str, spec: LeaseSpec) -> None:
        self._take(await self._client.replace(self._path(self._name), self._body(spec, version)))

    def _take(self, content: bytes) -> None:
        self._seen = decoded(content, Lease, self._path(self._name))
        self._seen_at_ms = boot_ms()
        self.holder = self._seen.spec.holder_identity or ""

    def _body(self, spec: LeaseSpec, version: str) -> dict[str, Any]:
        metadata: dict[str, Any] = {"name": self._name, "namespace": self._namespace}
        if self._annotations:
            metadata["annotations"] = self._annotations
        if version:
            metadata["resourceVersion"] = version
        return {"apiVersion": f"{GROUP}/v1", "kind": "Lease", "metadata": metadata, "spec": spec}

    def _path(self, name: str) -> str:
        return path_of("leases", name, namespace=self._namespace, group=GROUP)


class Alone:
    """For whoever runs without an election: always leads.

    The lease it keeps where nobody else does, so that people can see who schedules, and how it was started.
    """

    def __init__(self, shown: Leadership | None = None) -> None:
        self._shown = shown
        self.gained = asyncio.Event()
        self.gained.set()
        self.gained_at_ms = 0
        self.tried = self.gained
        self.holder = ""
        self._stood_down = False

    def holds(self) -> bool:
        return not self._stood_down

    async def run(self) -> None:
        if self._shown is not None:
            await self._shown.run()

    def stand_down(self) -> None:
        self._stood_down = True
        if self._shown is not None:
            self._shown.stand_down()

    async def release(self) -> None:
        if self._shown is not None:
            await self._shown.release()


async def is_held(client: KubeClient, namespace: str, name: str) -> str:
    """Who holds somebody else's lease, watched for as long as it takes to be sure that it is kept; empty: nobody."""
    first = await read_lease(client, namespace, name)
    if first is None or not first.spec.holder_identity:
        return ""
    duration_ms = 1000 * (first.spec.lease_duration_seconds or DURATION_MS // 1000)
    until_ms = boot_ms() + duration_ms
    while boot_ms() < until_ms:
        await asyncio.sleep(0.5)
        now = await read_lease(client, namespace, name)
        if now is None or not now.spec.holder_identity:
            return ""
        if now.spec != first.spec:
            return now.spec.holder_identity
    return ""


async def read_lease(client: KubeClient, namespace: str, name: str = NAME) -> Lease | None:
    """None where there is none."""
    path = path_of("leases", name, namespace=namespace, group=GROUP)
    try:
        return decoded(await client.get(path), Lease, path)
    except KubeRefusedError as error:
        if error.status == NOT_FOUND:
            return None
        raise
