"""What happened in a simulation, in words, and how often each kind of fault was brought about."""

from __future__ import annotations

from collections import Counter, deque

from gpuyard.platform.simulated import Timeline

KEPT_LINES = 60
"""Of a story that nobody asked for: the end of it is shown where an invariant is broken."""


class Story:
    """Told as it happens where `aloud`; else its end is kept."""

    def __init__(self, timeline: Timeline, *, aloud: bool) -> None:
        self._timeline = timeline
        self.aloud = aloud
        self.last: deque[str] = deque(maxlen=KEPT_LINES)
        self.faults: Counter[str] = Counter()
        self.deeds: Counter[str] = Counter()

    def tell(self, who: str, what: str) -> None:
        line = f"{self._timeline.now_ms / 1000:10.3f} s  {who:<10} {what}"
        self.last.append(line)
        if self.aloud:
            print(line)

    def fault(self, who: str, kind: str, detail: str = "") -> None:
        self.faults[kind] += 1
        self.tell(who, f"FAULT {kind}{' ' if detail else ''}{detail}")

    def deed(self, who: str, kind: str, detail: str) -> None:
        self.deeds[kind] += 1
        self.tell(who, f"{kind} {detail}")
