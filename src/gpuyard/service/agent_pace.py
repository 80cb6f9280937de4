"""How fast an agent may speak. What comes faster is read later: the stream itself then holds the agent back.

Place in the flow: agents' door ─▶ **agent_pace**. Invariant: a node can slow down its own session, and nothing else.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gpuyard.platform.clock import monotonic_ms
from gpuyard.wire.agents import AgentMessage, Hello, LogPiece, ReadParcel, Report

REPORTS_PER_S: Final = 50
"""An agent reports on every change, all changes of a moment together, and every few seconds."""
PARCELS_PER_S: Final = 16
"""Pieces of artifacts: each is read from the database."""
PIECES_PER_S: Final = 1_000
"""Of logs: at 256 KiB each, more than an agent can read."""
BYTES_PER_S: Final = 8 << 20
"""Of all but logs."""
BURST_S: Final = 4
"""So many seconds' worth may come at once."""
SESSIONS_PER_MINUTE: Final = 30
"""Of one node. An agent that is refused comes back ever more slowly, at last every 5 s."""
MINUTE_S: Final = 60


class Allowance:
    """So much in a second, and some at once. What is taken beyond it is owed."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_ms, self._burst = per_s / 1000, burst
        self._left, self._at_ms = burst, monotonic_ms()

    def take(self, amount: float) -> float:
        """Take it, and return for how many milliseconds to wait until nothing is owed."""
        self._refill()
        self._left -= amount
        return max(-self._left / self._per_ms, 0)

    def take_if_left(self) -> bool:
        """Take one, if there is one."""
        self._refill()
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def _refill(self) -> None:
        now_ms = monotonic_ms()
        self._left = min(self._left + (now_ms - self._at_ms) * self._per_ms, self._burst)
        self._at_ms = now_ms


class Pace:
    """Of one session."""

    def __init__(self) -> None:
        self._of: dict[type[AgentMessage], Allowance] = {
            Hello: Allowance(1, 1),
            Report: Allowance(REPORTS_PER_S, BURST_S * REPORTS_PER_S),
            LogPiece: Allowance(PIECES_PER_S, BURST_S * PIECES_PER_S),
            ReadParcel: Allowance(PARCELS_PER_S, BURST_S * PARCELS_PER_S),
        }
        self._bytes = Allowance(BYTES_PER_S, BURST_S * BYTES_PER_S)

    async def keep(self, message: AgentMessage, size: int) -> None:
        """Wait until this message may be taken in."""
        wait_ms = self._of[type(message)].take(1)
        if not isinstance(message, LogPiece):
            wait_ms = max(wait_ms, self._bytes.take(size))
        if wait_ms:
            await asyncio.sleep(wait_ms / 1000)


class Sessions:
    """How often each node may open one."""

    def __init__(self) -> None:
        self._of: dict[str, Allowance] = {}

    def may_open(self, node: str) -> bool:
        known = self._of.setdefault(node, Allowance(SESSIONS_PER_MINUTE / MINUTE_S, SESSIONS_PER_MINUTE))
        return known.take_if_left()
