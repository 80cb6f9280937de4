"""The decision log of the Kubernetes scheduler, as the demo reads it: one JSON object on each line.

Place in the flow: `gpuyard kube scheduler --decisions FILE` ─lines─▶ **decisions** ─Decision─▶ lines. Invariant: a line
that is not whole yet is not read; what a line does not say is empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

Amount = int | float


class Roomiest(msgspec.Struct, frozen=True):
    """Of the nodes it may use, the one with the most GPUs free, before anybody had to go."""

    node: str
    free: Amount
    gpus: Amount


class Why(msgspec.Struct, frozen=True):
    """Of a reason, the word programs match on."""

    token: str = ""


class Decision(msgspec.Struct, frozen=True):
    """One line of the log; which fields are set depends on the event."""

    event: str
    cycle: int = 0
    job: str = ""
    task: str = ""
    node: str = ""
    source: str = msgspec.field(name="from", default="")
    to: str = ""
    gpus: Amount = 0
    phase: str = ""
    queue: str = ""
    queue_name: str = ""
    queue_priority: int | None = None
    free_before: Amount | None = None
    """GPUs free on the node before this decision."""
    roomiest: Roomiest | None = None
    reasons: tuple[Why, ...] = ()
    beneficiary: str = ""
    text: str = ""
    why: str = ""


_LINES = msgspec.json.Decoder(Decision)


def decisions_in(text: str) -> Iterator[Decision]:
    """Those of a whole log."""
    return (_LINES.decode(line) for line in text.splitlines() if line.strip())


class LogTail:
    """A log that is still being written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def news(self) -> list[Decision]:
        """What has been written since the last time, up to the last whole line."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole, _, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + 1 if whole else 0
        return list(decisions_in(whole.decode()))
