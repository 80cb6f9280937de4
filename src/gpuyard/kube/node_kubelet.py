"""The kubelet of a node as it was last heard, and the GPUs as the driver last showed them.

Place in the flow: kubelet, its record, NVML ─▶ **node_kubelet** ─▶ node. Invariants: what was heard stays until there
is something newer; a kubelet that is started anew is asked at once; a driver that hangs holds nothing up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Final

import msgspec

from gpuyard.errors import NvmlError
from gpuyard.kubeapi.kubelet import CHECKPOINT, Given, Offered, PodResources, Recorded, recorded
from gpuyard.nvml.gpus import Gpu
from gpuyard.nvml.library import RealNvml
from gpuyard.platform.clock import sleep_ms
from gpuyard.worlds.kubernetes.devices import is_gpu_resource

DRIVER_MS: Final = 30_000
"""How often the driver is asked: it may take seconds. Most of what makes a GPU ill the kubelet tells at once."""

Stamp = tuple[int, int, int]
"""What tells one file of a name from the next: the number of a deleted file is given away again."""


class Kubelet:
    """One kubelet, through all its lives."""

    def __init__(self, socket: Path, device_plugins: Path) -> None:
        self.given: tuple[Given, ...] = ()
        self.offered: tuple[Offered, ...] = ()
        self.recorded: tuple[Recorded, ...] = ()
        self.has_answered = False
        """At least once."""
        self._socket = socket
        self._folder = device_plugins
        self._resources: PodResources | None = None
        self._life: Stamp | None = None
        self._record: Stamp | None = None

    @property
    def is_new(self) -> bool:
        """Whether it is another one than the one that was last asked."""
        return stamp(self._socket) != self._life

    async def ask(self) -> None:
        """Both answers, or neither: a KubeletError while there are none."""
        if self._resources is None or self.is_new:
            # A channel to the one before would wait for a while before it tries again.
            await self.close()
            self._life = stamp(self._socket)
            self._resources = PodResources(self._socket, is_gpu_resource)
        self.given, self.offered = await self._resources.given(), await self._resources.offered()
        self.has_answered = True

    async def read_record(self) -> None:
        """Where it has changed; a KubeletError where it cannot be read."""
        newest = stamp(self._folder / CHECKPOINT)
        if newest != self._record:
            self.recorded = await recorded(self._folder, is_gpu_resource) if newest else ()
            self._record = newest

    async def close(self) -> None:
        if self._resources is not None:
            await self._resources.close()
            self._resources = None


def stamp(path: Path) -> Stamp | None:
    """None where there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns, found.st_size


# -------------------------------------------------------------------------------------------------------------- driver


def look_at_gpus(seen: tuple[Gpu, ...] = ()) -> tuple[Gpu, ...]:
    """The GPUs as the driver shows them now, in the order they were first seen; one it shows no longer is ill.

    It is opened for each look: whoever keeps it open stands in the way of its upgrade. None where there is no driver.
    """
    try:
        nvml = RealNvml()
    except NvmlError:
        return ()
    try:
        found = {gpu.uuid: gpu for gpu in nvml.gpus()}
    finally:
        nvml.close()
    lost = {gpu.uuid: msgspec.structs.replace(gpu, healthy=False) for gpu in seen}
    return tuple((lost | found).values()) if found else ()


class Driver:
    """Looks at the GPUs again and again, in a thread of its own that nobody waits for."""

    def __init__(self, news: Callable[[tuple[Gpu, ...]], None]) -> None:
        self._news = news
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        Thread(target=self._watch, name="nvml", daemon=True).start()

    def _watch(self) -> None:
        """Until the loop is gone; a driver may be installed while we run."""
        seen: tuple[Gpu, ...] = ()
        with suppress(RuntimeError):
            while True:
                seen = look_at_gpus(seen)
                self._loop.call_soon_threadsafe(self._news, seen)
                sleep_ms(DRIVER_MS)
