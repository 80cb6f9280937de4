"""What is to happen at known instants: scripts of the file begin and end, faults run out.

Place in the flow: engine ─**agenda**─▶ engine. Invariant: what is due comes in the order of its time, and at one
instant in the order in which it was put down.
"""

from __future__ import annotations

import heapq
from collections.abc import Set as AbstractSet
from typing import TypeAlias

import msgspec

from gpuyard.fakegpu.fleet import FaultScript, TaskScript

Script: TypeAlias = TaskScript | FaultScript


class BeginTask(msgspec.Struct, frozen=True):
    script: TaskScript


class EndTask(msgspec.Struct, frozen=True):
    script: TaskScript


class BeginFault(msgspec.Struct, frozen=True):
    script: FaultScript


class EndFault(msgspec.Struct, frozen=True):
    """The time of a fault is over, whoever began it."""

    number: int


Due: TypeAlias = BeginTask | EndTask | BeginFault | EndFault


class Agenda:
    """Events to come."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, Due]] = []
        self._put = 0

    def put(self, at_ms: int, due: Due) -> None:
        self._put += 1
        heapq.heappush(self._entries, (at_ms, self._put, due))

    def next_ms(self, until_ms: int) -> int | None:
        """The instant of the next event, if there is one by then."""
        return self._entries[0][0] if self._entries and self._entries[0][0] <= until_ms else None

    def pop(self) -> Due:
        return heapq.heappop(self._entries)[2]

    def keep(self, scripts: AbstractSet[Script]) -> None:
        """Forget what scripts say that are not among these."""
        self._entries = [
            entry for entry in self._entries if isinstance(entry[2], EndFault) or entry[2].script in scripts
        ]
        heapq.heapify(self._entries)
