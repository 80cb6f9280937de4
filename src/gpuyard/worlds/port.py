"""What the loop asks of a world: to say what has changed, and to do what was decided.

Two verbs, observe and act. Invariant: what `act` was given is recorded before any of it is done, and doing it again
after a crash does it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpuyard.model.plan import Action
from gpuyard.model.snapshot import Change, Snapshot


class World(Protocol):
    """A cluster."""

    def snapshot(self) -> Snapshot:
        """Everything, as it is now; `observe` goes on from here."""

    def observe(self) -> Sequence[Change]:
        """What has changed since the last call, the time among it."""

    def act(self, actions: Sequence[Action]) -> None:
        """Record what was decided, and see to it that it is done."""
