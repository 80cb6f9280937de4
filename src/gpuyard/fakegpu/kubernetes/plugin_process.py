"""The process of `gpuyard fake device-plugin`: a plugin beside a daemon, or with a model of its own.

Place in the flow: cli ─PluginSettings─▶ **plugin_process** ─▶ plugin, and with a fleet file the daemon beside it.
Invariant: it lives until it is told to end, or until its own daemon cannot go on.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gpuyard.fakegpu import daemon
from gpuyard.fakegpu.daemon import Settings, say
from gpuyard.fakegpu.kubernetes.plugin import DevicePlugin, PluginSettings
from gpuyard.fakegpu.yard import Yard

LOOK_S: Final = 0.05
"""How often it is looked whether the model has a machine yet."""


class PluginCompanion:
    """The device plugin in the process of the model; it follows it through the daemon's socket, as from outside."""

    def __init__(self, settings: PluginSettings) -> None:
        self._plugin = DevicePlugin(settings, say)

    async def run(self, yard: Yard, _now_ms: Callable[[], int]) -> None:
        while not yard.engine.machines:
            await asyncio.sleep(LOOK_S)
        await self._plugin.run()


def run(plugin: PluginSettings, model: Settings | None = None) -> None:
    """Be the plugin, until it is ended."""
    if model is None:
        asyncio.run(_beside_a_daemon(plugin))
    else:
        daemon.run(model, companions=[PluginCompanion(plugin)])


async def _beside_a_daemon(plugin: PluginSettings) -> None:
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(DevicePlugin(plugin, say).run())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    with suppress(asyncio.CancelledError):
        await running
