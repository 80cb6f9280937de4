"""What the manager cannot plan on or do at the moment, and how people are told.

Place in the flow: loop, tick ─what failed─▶ **issues** ─▶ status, doctor, /readyz, metrics, nodes. Pure.
Invariant: what an exception says is told to those only who may see the whole cluster; others are told its number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from gpuyard.loop.containment import Pause
from gpuyard.loop.disabled import Disabled
from gpuyard.loop.stand_ins import Kind, Subject
from gpuyard.wire.rest import NodeObject

UNHEALTHY: Final = "unhealthy"
"""The state of a node that is heard of and left out of planning."""
MAX_WARNINGS: Final = 20
"""Objects that a status names; of more it says how many."""


class Issues(msgspec.Struct, frozen=True):
    """What fails, as of now."""

    pause: Pause | None = None
    """Set while nothing can be planned."""
    left_out: tuple[Disabled, ...] = ()
    failing: tuple[tuple[str, Pause], ...] = ()
    """Parts of the tick, by what they are about."""
    failures: int = 0
    """Exceptions of planning since the start."""

    def warnings(self, *, whole: bool) -> tuple[str, ...]:
        """As sentences. `whole`: for somebody who may see the whole cluster."""
        lines = tuple(self._lines() if whole else self._numbers())
        more = len(lines) - MAX_WARNINGS
        return lines if more <= 0 else (*lines[:MAX_WARNINGS], f"{more} more; the server's log has them all")

    def of_node(self, name: str) -> tuple[str, ...]:
        """What is wrong with a node."""
        found = [one for one in self.left_out if one.subject == Subject(Kind.NODE, name)]
        return tuple(f"left out of planning: {one.short}; what runs here goes on, nothing new starts" for one in found)

    def shown_on(self, node: NodeObject) -> NodeObject:
        """A node as people see it: one that is left out of planning is unhealthy, and says why."""
        issues = self.of_node(node.name)
        if not issues:
            return node
        state = UNHEALTHY if node.state == "ready" else node.state
        return replace(node, state=state, trouble=(*node.trouble, *issues))

    def counts(self) -> dict[str, int]:
        """How many nodes, jobs and queues are left out of planning."""
        counted = Counter(str(one.subject.kind) for one in self.left_out)
        return {str(kind): counted[str(kind)] for kind in Kind}

    def _lines(self) -> Iterator[str]:
        if self.pause is not None:
            yield self.pause.text
        yield from (f"{one.subject} is {one.text}" for one in self.left_out)
        yield from (f"{item} fails: {pause.fault.why} ({pause.fault.id} in the log)" for item, pause in self.failing)

    def _numbers(self) -> Iterator[str]:
        if self.pause is not None:
            yield f"planning fails, so that nothing new starts ({self.pause.fault.id} in the log); what runs goes on"
        for kind, count in self.counts().items():
            if count:
                yield f"{count} {kind}{'' if count == 1 else 's'} left out of planning; an operator sees why"
