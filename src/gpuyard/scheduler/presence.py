"""Who is where, as things stand: what rules between tasks look at.

Place in the flow: a draft tells it who comes and who leaves; `company` asks it for rules that bind, `wishes` for those
that do not. It starts from what the ledger follows (`neighbours`) and never changes that.
Invariant: what was told and taken back leaves no trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from gpuyard.model.jobs import Job, SoftSpread, Spread, Task, Where
from gpuyard.scheduler.columns import Bools, Ints
from gpuyard.scheduler.eligibility import Eligibility
from gpuyard.scheduler.neighbours import Neighbours, Whereabouts
from gpuyard.scheduler.scopes import Rule
from gpuyard.scheduler.topology import Levels


class Presence:
    """How many tasks of each kind are on which node."""

    def __init__(self, neighbours: Neighbours, levels: Levels, eligibility: Eligibility) -> None:
        self._neighbours = neighbours
        self._levels = levels
        self._eligibility = eligibility
        self._columns: dict[Whereabouts, tuple[Ints, Ints]] = {}
        """How many stay and how many leave, one row per node; made when first asked for or told of."""

    def fork(self) -> Self:
        copy = self.afresh()
        copy._columns = {of: (staying.copy(), leaving.copy()) for of, (staying, leaving) in self._columns.items()}
        return copy

    def afresh(self) -> Self:
        """As it was before anything was told."""
        return type(self)(self._neighbours, self._levels, self._eligibility)

    def come(self, job: Job, task: Task, position: int, times: int = 1) -> None:
        """A task gets a place; below zero times takes that back."""
        for whereabouts in self._neighbours.touched_by(job, task):
            self._column(whereabouts)[0][position] += times

    def leave(self, job: Job, task: Task, position: int, times: int = 1) -> None:
        """A task that runs is to go, and is still there until it has."""
        for whereabouts in self._neighbours.touched_by(job, task):
            staying, leaving = self._column(whereabouts)
            staying[position] -= times
            leaving[position] += times

    def _column(self, of: Whereabouts) -> tuple[Ints, Ints]:
        known = self._columns.get(of)
        if known is None:
            known = self._columns[of] = self._filled(of.staying), self._filled(of.leaving)
        return known

    def _filled(self, counts: dict[int, int]) -> Ints:
        column: Ints = np.zeros(self._levels.nodes, dtype=np.int64)
        if counts:
            column[list(counts)] = list(counts.values())
        return column

    def _are_about_each_other(self, rule: Rule, job: Job, tasks: Sequence[Task]) -> bool:
        """Whether a rule that one of the tasks has is about another of them."""
        meant = [task for task in tasks if self._neighbours.kind(rule, job).has(job, task)]
        having = [task for task in tasks if rule in self._neighbours.rules(task)]
        return bool(meant) and (len(meant) > 1 or any(task is not meant[0] for task in having))

    def _counted_on(
        self, spread: Spread | SoftSpread, all_of_them: Sequence[Spread | SoftSpread], where: Where
    ) -> Bools:
        """The nodes that make domains, and whose tasks count."""
        nodes = self._in_all_levels(all_of_them)
        if spread.honour_labels:
            nodes = nodes & self._eligibility.as_wished(where.any_of)
        if spread.honour_taints:
            nodes = nodes & self._eligibility.taking_in(where.tolerations)
        return nodes

    def _in_all_levels(self, spreads: Sequence[Spread | SoftSpread]) -> Bools:
        """Nodes that have every label the task is spread by."""
        nodes: Bools = np.logical_and.reduce([self._levels.of(spread.level).inside for spread in spreads])
        return nodes
