"""Which company a task would rather have: how much it wants each node for who is there.

Place in the flow: a draft keeps one beside its `company`; a placer asks it before it chooses among the nodes that fit.
What a task wants of a node itself (`eligibility`) is added there. Wishes look at everyone who stays and bind nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuyard.model.jobs import Job, SoftNeighbour, SoftSpread, Task, Where
from gpuyard.scheduler.columns import Ints
from gpuyard.scheduler.presence import Presence
from gpuyard.scheduler.scopes import Rule


class Wishes(Presence):
    """Who is where, for rules that do not bind."""

    def of(self, job: Job, where: Where) -> Ints:
        """How much each node is wanted by a task of a job with these rules."""
        wanted: Ints = np.zeros(self._levels.nodes, dtype=np.int64)
        for rule in where.soft_neighbours:
            wanted += rule.weight * self._company(rule, job)
        for spread in where.soft_spreads:
            wanted -= spread.weight * self._crowd(spread, job, where)
        return wanted

    def keep_apart(self, job: Job, tasks: Sequence[Task]) -> bool:
        """Whether some of a job's tasks would rather be apart from others of them."""
        rules = {rule for task in tasks for rule in self._neighbours.rules(task) if _parts(rule)}
        return any(self._are_about_each_other(rule, job, tasks) for rule in rules)

    def _company(self, rule: SoftNeighbour, job: Job) -> Ints:
        """For each node how many tasks of the kind its domain holds."""
        level = self._levels.of(rule.level)
        there = level.sums(self._column(self._neighbours.kind(rule, job).carriers)[0])
        there[0] = 0
        return there[level.domain]

    def _crowd(self, spread: SoftSpread, job: Job, where: Where) -> Ints:
        """The same, as far as they count; for a node in no domain one more than anywhere."""
        level, kind = self._levels.of(spread.level), self._neighbours.kind(spread, job)
        nodes = self._counted_on(spread, where.soft_spreads, where)
        there = level.sums(np.where(nodes, self._column(kind.carriers)[0], 0))
        most = int(there.max(initial=0))
        return np.where(self._in_all_levels(where.soft_spreads), there[level.domain], most + 1)


def _parts(rule: Rule) -> bool:
    return isinstance(rule, SoftSpread) or (isinstance(rule, SoftNeighbour) and rule.weight < 0)
