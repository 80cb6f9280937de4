"""A process runtime without the rest of an agent."""

from __future__ import annotations

from gpuyard.agent.process_runtime import ProcessRuntime
from gpuyard.wire.agents import AttemptId


class NoDevices:
    """A machine without GPUs."""

    def choose(self, shares: object, taken: object) -> tuple[str, ...]:
        return ()

    def variables(self) -> dict[str, str]:
        return {}


def has_ended(runtime: ProcessRuntime, id: AttemptId) -> bool:
    runtime.refresh()
    return runtime.has_ended(id)
