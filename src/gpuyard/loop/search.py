"""Which object makes planning fail: found by planning without some of them.

Place in the flow: an exception from planning ─▶ **search** ─culprits─▶ disabled. Pure and deterministic: the same world
and the same faults give the same culprits, in a bounded number of tries. Invariant: planning works without what is
found, and does not without finding it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from gpuyard.loop.stand_ins import Kind, Subject, without
from gpuyard.model.plan import Bind, Plan, Promise
from gpuyard.model.snapshot import Snapshot

MAX_TRIES: Final = 160
"""Plans made for one search."""
MAX_SEARCH_MS: Final = 20_000
"""A search that has taken longer begins no further try: until it ends nobody is planned for."""
MAX_CULPRITS: Final = 8
"""Objects left out for one exception; more of them hint at a fault of the planner that no object is the cause of."""

Look = Callable[[Sequence[Subject], bool], "Found | None"]
"""Find culprits among objects that are left out, or (True) stripped."""
Works = Callable[[Snapshot], Plan | None]
"""Plan on a world; None where that fails."""


class Found(msgspec.Struct, frozen=True):
    """The culprits, and how much of them has to be left out."""

    subjects: tuple[Subject, ...]
    stripped: bool
    plan: Plan


class OverBudgetError(Exception):
    """The search has used its tries or its time."""


class Search:
    """One search: first among suspects, then by halves, first of what has changed since planning last worked."""

    def __init__(
        self,
        planned: Snapshot,
        works: Works,
        *,
        suspects: Sequence[Subject] = (),
        recent: Collection[Subject] = (),
        steady_ms: Callable[[], int],
    ) -> None:
        self._planned = planned
        self._works = works
        self._suspects = suspects
        self._recent = recent
        self._steady_ms = steady_ms
        self._until_ms = steady_ms() + MAX_SEARCH_MS
        self.tries = 0

    def run(self) -> Found | None:
        """Return the fewest objects without which planning works; None where that cannot be told."""
        try:
            return self._least()
        except OverBudgetError:
            return None

    def _least(self) -> Found | None:
        jobs, nodes, queues = self._jobs(), self._nodes(), self._queues()
        if self._without((*jobs, *nodes, *queues), stripped=True) is None:
            return None
        if (found := self._suspected()) is not None:
            return found
        single = [one for group in (jobs, nodes) if (one := self._each_way(self._single, group)) is not None]
        if single:
            return max(single, key=_placed)  # The first of equals: to leave out a job is less than to leave out a node.
        found = self._each_way(self._single, queues)
        if found is not None:
            return found
        several = [some for group in (jobs, nodes) if (some := self._each_way(self._several, group)) is not None]
        return min(several, key=lambda one: len(one.subjects), default=None)

    def _suspected(self) -> Found | None:
        """The object the exception was about; where a job and a node both could be, that without which more start."""
        found: dict[Kind, Found] = {}
        for subject in self._suspects:
            if subject.kind not in found and (one := self._each_way(self._enough, [subject])) is not None:
                found[subject.kind] = one
        return max(found.values(), key=_placed, default=None)

    def _enough(self, subjects: Sequence[Subject], stripped: bool) -> Found | None:
        return self._found(subjects, stripped=stripped)

    def _each_way(self, look: Look, group: Sequence[Subject]) -> Found | None:
        """Look for objects that are enough to leave out; where that does not help, for some to strip."""
        return look(group, False) or look(group, True)

    def _single(self, group: Sequence[Subject], stripped: bool) -> Found | None:
        """The one object that is the cause; None where it takes several, or others."""
        if self._without(group, stripped=stripped) is None:
            return None
        recent = [subject for subject in group if subject in self._recent]
        if 0 < len(recent) < len(group) and self._without(recent, stripped=stripped) is not None:
            group = recent
        while len(group) > 1:
            half = len(group) // 2
            if self._without(group[:half], stripped=stripped) is not None:
                group = group[:half]
            elif self._without(group[half:], stripped=stripped) is not None:
                group = group[half:]
            else:
                return None
        return self._found(group, stripped=stripped)

    def _several(self, group: Sequence[Subject], stripped: bool) -> Found | None:
        """A few objects that are the cause together: the last of the shortest beginning that is, then the others."""
        if self._without(group, stripped=stripped) is None:
            return None
        culprits: list[Subject] = []
        while len(culprits) < MAX_CULPRITS:
            few, many = 0, len(group)
            while many - few > 1:
                middle = (few + many) // 2
                if self._without([*culprits, *group[:middle]], stripped=stripped) is not None:
                    many = middle
                else:
                    few = middle
            culprits.append(group[many - 1])
            if (found := self._found(culprits, stripped=stripped)) is not None:
                return found
        return None

    def _found(self, subjects: Sequence[Subject], *, stripped: bool) -> Found | None:
        plan = self._without(subjects, stripped=stripped)
        return None if plan is None else Found(tuple(subjects), stripped, plan)

    def _without(self, subjects: Sequence[Subject], *, stripped: bool) -> Plan | None:
        self.tries += 1
        if self.tries > MAX_TRIES or self._steady_ms() > self._until_ms:
            raise OverBudgetError
        return self._works(without(self._planned, subjects, stripped=stripped))

    def _jobs(self) -> list[Subject]:
        return [Subject(Kind.JOB, id) for id in sorted(job.id for job in self._planned.jobs)]

    def _nodes(self) -> list[Subject]:
        return [Subject(Kind.NODE, name) for name in sorted(node.name for node in self._planned.nodes)]

    def _queues(self) -> list[Subject]:
        return [Subject(Kind.QUEUE, name) for name in sorted(queue.name for queue in self._planned.queues)]


def _placed(found: Found) -> int:
    """How many tasks get a place without what was found."""
    return sum(isinstance(action, Bind | Promise) for action in found.plan.actions)
