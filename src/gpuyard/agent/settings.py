"""What an agent is started with."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from gpuyard.agent.users import default_isolation
from gpuyard.wire.agents import Isolation

DEFAULT_FAKE_GPUS: Final = 8
DEFAULT_FAKE_PRODUCT: Final = "A100-40"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One agent."""

    home: Path
    manager: str = ""
    """Where the manager listens for agents, as host:port; empty: as joining has told."""
    node: str = ""
    """Its name; empty: as joining has told, else the machine's own."""
    labels: dict[str, str] = {}
    address: str = ""
    """Where tasks of other machines reach those of this one; empty: the address it reaches the manager from."""
    fake_gpus: int | None = None
    """None: as many as usual where there are no real ones; 0: none ever; more: so many, even beside real ones."""
    fake_product: str = DEFAULT_FAKE_PRODUCT
    isolation: Isolation | None = None
    """None: users of their own where the agent is root, else none."""
    cgroup: str = ""
    """Where it may make cgroups, as a path in each hierarchy; empty: where it finds they are its own; none: nowhere."""

    def kept_apart(self) -> Isolation:
        return self.isolation or default_isolation()
