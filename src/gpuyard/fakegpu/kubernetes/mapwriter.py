"""Keeps ConfigMaps as they should be: who holds what at once, how busy a GPU is at leisure.

Place in the flow: updater, node part ─want─▶ **mapwriter** ─server-side apply─▶ API server. Invariants: we own one key
of each ConfigMap and touch no other; what somebody else writes there is put right; a ConfigMap is not written more
often than the API server can bear.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from gpuyard.errors import KubeError, KubeRefusedError
from gpuyard.fakegpu.kubernetes.configuration import STATUS_KEY
from gpuyard.fakegpu.kubernetes.nodepatch import MANAGER
from gpuyard.fakegpu.kubernetes.picture import Picture
from gpuyard.fakegpu.kubernetes.reports import Reports
from gpuyard.fakegpu.kubernetes.writing import Writing
from gpuyard.kubeapi.client import CONFLICT, KubeClient
from gpuyard.kubeapi.events import Subject
from gpuyard.kubeapi.paths import path_of
from gpuyard.platform.clock import monotonic_ms

WORKERS: Final = 8
LEISURE_MS: Final = 10_000
"""Between two writes of a ConfigMap in which only utilisation and memory have changed."""
PAUSE_MS: Final = 100
"""Between any two writes of a ConfigMap."""
LARGE_BYTES: Final = 64 << 10
LARGE_PAUSE_MS: Final = 1_000
"""The same for one with more text than that."""

ROLE: Final = "gpuyard.io/fake-gpus"
"""The label of ConfigMaps that we make."""
NODE: Final = "gpuyard.io/node"
"""The annotation that says of which node one is."""


class Wanted(msgspec.Struct, frozen=True):
    """What one ConfigMap should hold under our key; without a text, not even the key."""

    text: str | None
    node: str = ""
    """Of which node it is, where it is ours as a whole."""


class MapWriter:
    """Writes what is wanted, and nothing else."""

    def __init__(self, client: KubeClient, namespace: str, picture: Picture, reports: Reports) -> None:
        self._client = client
        self._namespace = namespace
        self._picture = picture
        self._reports = reports
        self._wanted: dict[str, Wanted] = {}
        self._unwanted: set[str] = set()
        self._written: dict[str, tuple[int, int]] = {}
        """When each was last written, or first wanted, and how long it was."""
        self._urgent: set[str] = set()
        self.writing: Final = Writing(self._write, self._refused, WORKERS)

    def want(self, name: str, wanted: Wanted, *, at_leisure: bool = False) -> None:
        """What somebody waits for is written at once, what merely goes up and down when there is time."""
        if self._wanted.get(name) != wanted:
            self._written.setdefault(name, (monotonic_ms() if at_leisure else 0, 0))
            if not at_leisure:
                self._urgent.add(name)
            self._wanted[name] = wanted
            self._unwanted.discard(name)
            self.writing.mark([name])

    def remove(self, name: str) -> None:
        """One that is ours as a whole goes."""
        self._wanted.pop(name, None)
        self._unwanted.add(name)
        self.writing.mark([name])

    def forget(self, name: str) -> None:
        """It is no longer ours to write."""
        self._wanted.pop(name, None)

    def look(self, names: Iterable[str]) -> None:
        """These have changed; if it was not by us, they are put right at once."""
        for name in names:
            wanted = self._wanted.get(name)
            if wanted is not None and not self._is_so(name, wanted):
                self._urgent.add(name)
                self.writing.mark([name])

    # -------------------------------------------------------------------------------------------------------- writing

    async def _write(self, name: str) -> int:
        path = path_of("configmaps", name, namespace=self._namespace)
        if name in self._unwanted:
            if name in self._picture.maps:
                await self._client.delete(path)
            self._written.pop(name, None)
            self._unwanted.discard(name)
            return 0
        wanted = self._wanted.get(name)
        if wanted is None or self._is_so(name, wanted):
            return 0
        wait_ms = self._wait_ms(name, wanted)
        if wait_ms:
            return wait_ms
        await self._client.apply(path, self._body(name, wanted), MANAGER)
        self._written[name] = (monotonic_ms(), len(wanted.text or ""))
        if self._wanted.get(name) == wanted:
            self._urgent.discard(name)
        return 0

    def _is_so(self, name: str, wanted: Wanted) -> bool:
        there = self._picture.maps.get(name)
        if there is None:
            return wanted.text is None or not wanted.node
        return (there.data or {}).get(STATUS_KEY) == wanted.text

    def _wait_ms(self, name: str, wanted: Wanted) -> int:
        at_ms, size = self._written.get(name, (0, 0))
        pause_ms = LARGE_PAUSE_MS if size > LARGE_BYTES else PAUSE_MS
        return max(0, at_ms + (pause_ms if name in self._urgent else LEISURE_MS) - monotonic_ms())

    def _body(self, name: str, wanted: Wanted) -> dict[str, Any]:
        """A ConfigMap of a person's is never made by us: with its uid, one that was deleted stays so."""
        metadata: dict[str, Any] = {"name": name, "namespace": self._namespace}
        if wanted.node:
            metadata |= {"labels": {ROLE: "node"}, "annotations": {NODE: wanted.node}}
        else:
            metadata |= {"uid": self._picture.maps[name].metadata.uid}
        data = {} if wanted.text is None else {STATUS_KEY: wanted.text}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    async def _refused(self, name: str, error: KubeError) -> None:
        if isinstance(error, KubeRefusedError) and error.status != CONFLICT:
            subject = Subject("ConfigMap", name, self._namespace)
            await self._reports.tell(subject, "NotWritten", str(error), with_event=False)
