"""Keeps labels and capacity of nodes as they should be, also against others who change them.

Place in the flow: updater ─mark─▶ **nodewriter** ─server-side apply─▶ API server. Invariant: what somebody took away is
applied again at once, and more and more slowly if somebody keeps taking it away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from gpuyard.errors import KubeError, KubeRefusedError
from gpuyard.fakegpu.kubernetes.nodepatch import MANAGER
from gpuyard.fakegpu.kubernetes.objects import Node
from gpuyard.fakegpu.kubernetes.reports import Reports
from gpuyard.fakegpu.kubernetes.writing import Writing
from gpuyard.kubeapi.client import CONFLICT, NOT_FOUND, KubeClient
from gpuyard.kubeapi.events import Subject
from gpuyard.kubeapi.paths import path_of
from gpuyard.platform.clock import monotonic_ms

WORKERS: Final = 16
ECHO_MS: Final = 1_000
"""How long after a patch we wait for the watch to tell of it, before the same is applied again."""
FIGHT_MS: Final = 60_000
"""Patches within this time of each other are one struggle over the same node."""
MOST_PAUSE_MS: Final = 60_000
STRUGGLES: Final = 5
"""So many times the same is applied before anybody is told."""

_NODES: Final = msgspec.json.Decoder(Node)


class Patch(msgspec.Struct, frozen=True):
    """What a node should be given, and what of it counts as the same when it is given again."""

    body: dict[str, Any]
    part: str
    """The subresource; empty for the node itself."""
    essence: object


class _Past(msgspec.Struct):
    essence: object
    at_ms: int
    times: int


class NodeWriter:
    """`wanted` tells what a node needs now; `seen` is told of every node as the API server gives it back."""

    def __init__(
        self, client: KubeClient, reports: Reports, wanted: Callable[[str], list[Patch]], seen: Callable[[Node], None]
    ) -> None:
        self._client = client
        self._reports = reports
        self._wanted = wanted
        self._seen = seen
        self._past: dict[tuple[str, str], _Past] = {}
        self.writing: Final = Writing(self._write, self._refused, WORKERS)

    async def _write(self, name: str) -> int:
        again_ms = 0
        for patch in self._wanted(name):
            wait_ms = self._wait_ms(name, patch)
            if wait_ms:
                again_ms = max(again_ms, wait_ms)
                continue
            answer = await self._client.apply(path_of("nodes", name, part=patch.part), patch.body, MANAGER)
            await self._remember(name, patch)
            self._seen(_NODES.decode(answer))
        return again_ms

    def _wait_ms(self, name: str, patch: Patch) -> int:
        """How long until this may be applied: at once if it is new, later and later if it never lasts."""
        past = self._past.get((name, patch.part))
        if past is None or past.essence != patch.essence:
            return 0
        pause_ms = min(ECHO_MS << max(0, past.times - 2), MOST_PAUSE_MS)
        return max(0, past.at_ms + pause_ms - monotonic_ms())

    async def _remember(self, name: str, patch: Patch) -> None:
        now_ms = monotonic_ms()
        past = self._past.get((name, patch.part))
        same = past is not None and past.essence == patch.essence and now_ms - past.at_ms < FIGHT_MS
        times = past.times + 1 if past is not None and same else 1
        self._past[name, patch.part] = _Past(patch.essence, now_ms, times)
        if times == STRUGGLES:
            note = "somebody else keeps changing its GPU labels or capacity; they are put back ever more slowly"
            await self._reports.tell(Subject("Node", name), "ContestedGPUs", note)

    async def _refused(self, name: str, error: KubeError) -> None:
        """A server that is gone is told of by whoever follows it; a node that is gone meanwhile needs nothing."""
        is_gone = isinstance(error, KubeRefusedError) and error.status in (NOT_FOUND, CONFLICT)
        if isinstance(error, KubeRefusedError) and not is_gone and self._wanted(name):
            await self._reports.tell(Subject("Node", name), "NotPatched", str(error), with_event=False)

    def forget(self, name: str) -> None:
        for part in ("", "status"):
            self._past.pop((name, part), None)
