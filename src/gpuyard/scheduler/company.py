"""Where rules about other tasks let one go: near some, apart from others, evenly spread.

Place in the flow: a draft (or the replay of a plan) keeps one, tells it who comes and who leaves (`presence`), and asks
it before a task is placed. Rules bind whoever is placed, and look at everyone who stays. One that keeps apart also
waits until what is leaving has left. What tasks only would rather have is another matter (`wishes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from gpuyard.model.jobs import Job, Neighbour, Operator, Spread, Task
from gpuyard.model.nodes import OWN_LABEL
from gpuyard.scheduler.columns import Bools, Ints
from gpuyard.scheduler.neighbours import Condition, Kind, Whereabouts, rules_of
from gpuyard.scheduler.presence import Presence
from gpuyard.scheduler.topology import Level

UNBOUNDED: Final = 1 << 60


class Open(NamedTuple):
    """Nodes that are open to a task: now, and once what is ending has ended. None: all of them."""

    now: Bools | None
    later: Bools | None

    def within(self, nodes: Bools | None) -> Open:
        if nodes is None:
            return self
        return Open(
            nodes if self.now is None else self.now & nodes, nodes if self.later is None else self.later & nodes
        )


class Spot(NamedTuple):
    """A task at a place."""

    job: Job
    task: Task
    position: int


class Company(Presence):
    """Who is where, for rules that bind."""

    def concerns(self, job: Job, task: Task) -> bool:
        """Whether rules between tasks, its own or those of others, are about a task."""
        return bool(rules_of(task) or self._neighbours.of(job, task))

    # Where a task may go -----------------------------------------------------------------------------------------

    def allowed(self, job: Job, task: Task) -> Open:
        """The nodes that the rules of a task, and of those who keep apart from it, leave open."""
        later, busy = self._apart(job, task)
        for rule in task.request.where.neighbours:
            if not rule.apart:
                later &= self._near(rule, job, task)
        for spread in task.request.where.spreads:
            later &= self._even(spread, job, task, 1)
        return Open(later & ~busy if busy.any() else later, later)

    def is_hopeless(self, task: Task, nodes: Bools) -> bool:
        """Whether no such node lies in any domain of a level that the task must be in one of."""
        where = task.request.where
        levels = [rule.level for rule in where.neighbours if not rule.apart] + [one.level for one in where.spreads]
        return any(not (self._levels.of(level).inside & nodes).any() for level in levels)

    def wishes(self, job: Job, task: Task) -> Iterator[str]:
        """What rules there are about a task, its own and those of others, in short."""
        for rule in task.request.where.neighbours:
            word = "apart from" if rule.apart else "near"
            yield f"{word} {_tasks_text(Condition.of(rule))} by {rule.level.removeprefix(OWN_LABEL)}"
        for spread in task.request.where.spreads:
            yield f"evenly with {_tasks_text(Condition.of(spread))} by {spread.level}"
        shunning = [one for kind in self._neighbours.of(job, task) for one in kind.apart.values()]
        if any(self._column(one)[0].any() for one in shunning):
            yield "other tasks that want to be apart from it"

    def is_right_for(self, job: Job, task: Task, position: int) -> bool:
        """Whether a task that has its place already might have it, once what is ending has ended."""
        self.come(job, task, position, -1)
        found = self.allowed(job, task).later
        self.come(job, task, position)
        return found is None or bool(found[position])

    def is_free(self, job: Job, task: Task, position: int) -> bool:
        """Whether nobody stays there whom a task must be apart from."""
        return bool(self._apart(job, task)[0][position])

    def is_clear(self, job: Job, task: Task, position: int) -> bool:
        """Whether everyone has left whom a task must be apart from, and who was to leave."""
        return not self._apart(job, task)[1][position]

    def for_all(self, job: Job, tasks: Sequence[Task]) -> Bools:
        """Nodes that may take all of a job's tasks, as far as their rules about each other go."""
        nodes: Bools = np.ones(self._levels.nodes, dtype=np.bool_)
        for rule in {rule for task in tasks for rule in task.request.where.neighbours if rule.apart}:
            if self._are_about_each_other(rule, job, tasks):
                nodes &= ~self._levels.of(rule.level).inside
        first = tasks[0]
        if all(task.request.where == first.request.where for task in tasks):
            for spread in first.request.where.spreads:
                kind = self._neighbours.kind(spread, job)
                if all(kind.has(job, task) for task in tasks):
                    nodes &= self._even(spread, job, first, len(tasks))
        return nodes

    def _apart(self, job: Job, task: Task) -> tuple[Bools, Bools]:
        """Nodes where nobody stays it must be apart from; and nodes where somebody is only just leaving."""
        free: Bools = np.ones(self._levels.nodes, dtype=np.bool_)
        busy: Bools = np.zeros(self._levels.nodes, dtype=np.bool_)
        for whereabouts, level in self._shunned(job, task):
            staying, leaving = self._column(whereabouts)
            free &= ~level.holding(staying)
            busy |= level.holding(leaving)
        return free, busy

    def _shunned(self, job: Job, task: Task) -> Iterator[tuple[Whereabouts, Level]]:
        """Those whose company is forbidden, by the task's own rules and by theirs."""
        for rule in task.request.where.neighbours:
            if rule.apart:
                yield self._neighbours.kind(rule, job).carriers, self._levels.of(rule.level)
        for kind in self._neighbours.of(job, task):
            for label, whereabouts in kind.apart.items():
                yield whereabouts, self._levels.of(label)

    def keeps_apart(self, one: Spot, other: Spot) -> bool:
        """Whether a rule of one task keeps another out of its domain."""
        for rule in one.task.request.where.neighbours:
            if rule.apart and self._neighbours.repelled(rule, one.job, one.task).has(other.job, other.task):
                level = self._levels.of(rule.level)
                if level.inside[one.position] and level.domain[one.position] == level.domain[other.position]:
                    return True
        return False

    def keeping_apart(self, kind: Kind) -> Iterator[tuple[str, Ints]]:
        """By level, how many tasks that keep apart from a kind stay on each node."""
        for label, whereabouts in kind.apart.items():
            staying = self._column(whereabouts)[0]
            if staying.any():
                yield label, staying

    def _near(self, rule: Neighbour, job: Job, task: Task) -> Bools:
        """Domains in which there is one it must be near to. The first of its own kind may begin any."""
        level, kind = self._levels.of(rule.level), self._neighbours.kind(rule, job)
        found = level.holding(self._column(kind.carriers)[0])
        return level.inside if not found.any() and kind.has(job, task) else found

    def _even(self, spread: Spread, job: Job, task: Task, copies: int) -> Bools:
        """Domains that so many tasks may come to without having too many more than the emptiest."""
        where, level, kind = task.request.where, self._levels.of(spread.level), self._neighbours.kind(spread, job)
        nodes = self._counted_on(spread, where.spreads, where)
        staying = self._column(kind.carriers)[0]
        there = level.sums(np.where(nodes, staying, 0))
        exists = level.sums(nodes.astype(np.int64)) > 0
        exists[0] = False
        own = int(kind.has(job, task))
        floor = np.minimum(_emptiest_other(there, exists), there + (copies - 1) * own)
        if int(exists.sum()) < spread.min_domains:
            floor = np.zeros(level.domains, dtype=np.int64)
        fits: Bools = there + copies * own - floor <= spread.max_skew
        return fits[level.domain] & self._in_all_levels(where.spreads)


def _tasks_text(condition: Condition) -> str:
    """`app=web, tier exists`. What a world calls a label of its own is no prefix people know."""
    wanted = [f"{key}={value}" for key, value in condition.labels]
    for rule in condition.rules:
        one, key = rule.operator is Operator.IN and len(rule.values) == 1, rule.key.removeprefix(OWN_LABEL)
        wanted.append(f"{key}={rule.values[0]}" if one else f"{key} {rule.operator} {'|'.join(rule.values)}")
    return ", ".join(text.strip() for text in wanted) or "all tasks"


def _emptiest_other(there: Ints, exists: Bools) -> Ints:
    """For each domain the least that any other has."""
    counts = np.where(exists, there, UNBOUNDED)
    emptiest = int(counts.argmin())
    found: Ints = np.full(len(counts), counts[emptiest], dtype=np.int64)
    counts[emptiest] = UNBOUNDED
    found[emptiest] = counts.min()
    return found
