"""The device plugin of one node: follows the model on one side and the kubelet on the other.

Place in the flow: daemon ─MachineStatus─▶ **plugin** ─Offer─▶ endpoints ◀─gRPC─▶ kubelet. The shell around
plugin_offer, plugin_life and plugin_grant: it looks, waits and tells. Invariant: whatever becomes of the model or of
its file, what was offered last is served on; a problem is told once, and when it is over that is told too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from gpuyard.errors import FakeGpuError, GpuyardError
from gpuyard.fakegpu.control import DaemonStatus, MachineStatus, Show, Status, asked
from gpuyard.fakegpu.kubernetes.plugin_endpoint import (
    KUBELET_SOCKET,
    UNKNOWN_VERSION,
    VERSION,
    Endpoint,
    lock_of,
    stamp,
)
from gpuyard.fakegpu.kubernetes.plugin_grant import (
    NOTHING,
    Grant,
    Tools,
    grant,
    keep_directory,
    placed_tools,
    written_list,
)
from gpuyard.fakegpu.kubernetes.plugin_life import Attempt, Past, Sight, Step, failed, heard, next_step, succeeded
from gpuyard.fakegpu.kubernetes.plugin_offer import Failures, Offer, change, offer_of
from gpuyard.platform.clock import monotonic_ms

PLUGIN_DIR: Final = Path("/var/lib/kubelet/device-plugins")
LOOK_MS: Final = 100
"""How often the sockets are looked at."""
ASK_MS: Final = 250
"""How often the model is."""

Say = Callable[[str], None]


class PluginSettings(msgspec.Struct, frozen=True):
    """Whose plugin, where, and what containers get."""

    home: Path
    node: str | None = None
    """The first machine of the model, if none is named."""
    folder: Path = PLUGIN_DIR
    inject: bool = True
    numa: bool = False
    alone: bool = False
    """The model has this machine or none at all: where it has none, that is meant, and nothing is offered any more."""


class Troubles:
    """Tells a problem when it begins or becomes another, and once more when it is over."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._told: dict[str, str] = {}

    def begins(self, subject: str, text: str) -> None:
        if self._told.get(subject) != text:
            self._say(text)
        self._told[subject] = text

    def is_over(self, subject: str, text: str) -> None:
        if self._told.pop(subject, None) is not None:
            self._say(text)


class DevicePlugin:
    """One node's plugin."""

    def __init__(self, settings: PluginSettings, say: Say) -> None:
        self._settings = settings
        self._say = say
        self._troubles = Troubles(say)
        self._node = settings.node
        self._tools: Tools | None = None
        self._offer: Offer | None = None
        self._endpoints: dict[str, Endpoint] = {}
        self._pasts: dict[str, Past] = {}
        self._lock: int | None = None

    async def run(self) -> None:
        """Until it is cancelled; then the kubelet is left alone, and containers keep what they have."""
        if self._settings.inject:
            self._tools = await asyncio.to_thread(placed_tools, self._settings.home)
        self._say(f"waiting for a kubelet in {self._settings.folder}")
        try:
            await asyncio.gather(_always(self._look_at_model, ASK_MS), _always(self._look_at_kubelet, LOOK_MS))
        finally:
            for endpoint in self._endpoints.values():
                await endpoint.end()
            if self._lock is not None:
                os.close(self._lock)

    # ------------------------------------------------------------------------------------------------------ the model

    async def _look_at_model(self) -> None:
        try:
            machine = await self._machine()
            offer = offer_of(machine) if machine else Offer(self._node or "", {})
        except GpuyardError as error:
            served_on = "\n  what was offered before is served on" if self._offer else ""
            self._troubles.begins("model", f"the model cannot be followed: {error}{served_on}")
            return
        self._troubles.is_over("model", "the model is followed again")
        self._node = offer.node
        self._show(offer)

    async def _machine(self) -> MachineStatus | None:
        home, alone = self._settings.home, self._settings.alone
        status = await asked(home, Status(None if alone else self._node, limit=1), DaemonStatus)
        if alone and not status.machines:
            return None
        if not status.machines:
            raise FakeGpuError("the fleet has no machine", fix="put some into its file")
        machine = status.machines[0]
        if self._tools and machine.state is None:
            state = await asked(home, Show(machine.reading.machine), str)
            machine = msgspec.structs.replace(machine, state=state)
        return machine

    def _show(self, offer: Offer) -> None:
        """To the kubelet, resource by resource; one that has lost all its devices stays, with none."""
        if offer == self._offer:
            return
        if offer.failures != (self._offer.failures if self._offer else Failures()):
            self._say(f"as it was told to, the plugin {offer.failures}")
        self._offer = offer
        if offer.problem:
            self._troubles.begins("offer", f"{offer.node}: {offer.problem}")
        else:
            self._troubles.is_over("offer", f"{offer.node}: its MIG instances can be offered again")
        for resource in [name for name, devices in offer.resources.items() if devices]:
            if resource not in self._endpoints:
                settings = self._settings
                self._endpoints[resource] = Endpoint(resource, settings.folder, self._give, numa=settings.numa)
                self._pasts[resource] = Past()
        for resource, endpoint in self._endpoints.items():
            before, devices = endpoint.devices, offer.resources.get(resource, ())
            endpoint.show(devices, offer.failures)
            if devices != before:
                self._say(f"{resource}: {change(before, devices)}")

    def _give(self, ids: Sequence[str]) -> Grant:
        if self._tools is None or self._offer is None or self._offer.state is None:
            return NOTHING
        state = Path(self._offer.state)
        keep_directory(state)
        return grant(ids, self._tools, state, written_list(ids, self._settings.home))

    # ---------------------------------------------------------------------------------------------------- the kubelet

    async def _look_at_kubelet(self) -> None:
        if not self._has_folder():
            return
        for resource, endpoint in list(self._endpoints.items()):
            past, seen = self._pasts[resource], self._sight(endpoint)
            if seen.listening:
                past = heard(past, seen.now_ms)
            self._pasts[resource] = past
            match next_step(past, seen):
                case Step.BEGIN if seen.kubelet is not None:
                    await self._begin(endpoint, Attempt(seen.kubelet, seen.version))
                case Step.END:
                    await endpoint.end()
                    self._pasts[resource] = Past()

    def _has_folder(self) -> bool:
        """Two plugins of ours in one folder would take each other's sockets away, again and again."""
        if self._lock is None:
            self._lock = lock_of(self._settings.folder)
        if self._lock is None:
            where = f"{self._settings.folder} is not there, or another plugin of ours is in it"
            self._troubles.begins("folder", f"waiting: {where}")
            return False
        self._troubles.is_over("folder", f"waiting no longer: {self._settings.folder} is ours")
        return True

    def _sight(self, endpoint: Endpoint) -> Sight:
        assert self._offer is not None, "there are endpoints only after an offer"
        failures = self._offer.failures
        return Sight(
            now_ms=monotonic_ms(),
            kubelet=stamp(self._settings.folder / KUBELET_SOCKET),
            own=stamp(endpoint.socket),
            listening=endpoint.listening,
            version=UNKNOWN_VERSION if failures.unregistrable else VERSION,
            wanted=not failures.crashed,
            hanging=failures.hanging,
        )

    async def _begin(self, endpoint: Endpoint, attempt: Attempt) -> None:
        resource = endpoint.resource
        bound = None
        try:
            bound = await endpoint.begin()
            await endpoint.register(attempt.version)
        except GpuyardError as error:
            self._pasts[resource] = failed(self._pasts[resource], attempt, bound, monotonic_ms())
            self._troubles.begins(resource, f"{error}; it is tried again")
            return
        self._pasts[resource] = succeeded(attempt, bound, monotonic_ms())
        self._troubles.is_over(resource, f"{resource}: the kubelet takes it again")
        self._say(f"{resource}: registered with the kubelet, {len(endpoint.devices)} devices")


async def _always(look: Callable[[], Awaitable[None]], pause_ms: int) -> None:
    while True:
        await look()
        await asyncio.sleep(pause_ms / 1000)
