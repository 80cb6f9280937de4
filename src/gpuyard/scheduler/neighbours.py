"""Kinds of tasks that rules are about: who belongs to each, and where those are.

Place in the flow: the ledger files the condition of every rule between tasks (near, apart, even) and follows where the
tasks are that fulfil it; `company` asks, on behalf of a draft. Rules that only say where a task would rather be are
filed apart from those that bind, and `wishes` asks about them. Clusters in which nobody has a rule have no kinds, and
nothing is followed. Invariant: a kind is filed while a task that is not over has a rule about it, and no longer; what
was followed equals what is counted afresh.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from gpuyard.model.jobs import (
    NOBODY,
    Job,
    LabelRule,
    Neighbour,
    Operator,
    Spread,
    Task,
    TaskState,
)
from gpuyard.scheduler.gang import IN_PLACE
from gpuyard.scheduler.scopes import Reach, Rule, Scopes

Labels = tuple[tuple[str, str], ...]

Kin = tuple[int, ...]
"""The kinds, by number, that a task belongs to."""

MAX_ALIASES: Final = 50_000
"""Rules remembered by identity; beyond it the memory is emptied and filled anew."""

IN_QUEUE: Final = ""
"""Stands for a label that every task has once for its queue and once for each queue above."""

OVER: Final = frozenset({TaskState.SUCCEEDED, TaskState.FAILED})


class Condition(NamedTuple):
    """What the labels of a task must fulfil to be of a kind, and the queue it must be in or below."""

    labels: Labels
    rules: tuple[LabelRule, ...]
    reach: Reach = None

    @classmethod
    def of(cls, rule: Rule, reach: Reach = None) -> Condition:
        return cls(rule.labels if isinstance(rule, Neighbour) else (), rule.rules, reach)

    def accepts(self, labels: dict[str, str]) -> bool:
        for key, value in self.labels:
            if labels.get(key) != value:
                return False
        return all(rule.accepts(labels) for rule in self.rules)

    def anchors(self) -> Iterator[tuple[tuple[str, str], ...]]:
        """Sets of labels of each of which every task of the kind has one."""
        for pair in self.labels:
            yield (pair,)
        for rule in self.rules:
            if rule.operator is Operator.IN:
                yield tuple([(rule.key, value) for value in rule.values])
        if self.reach is not None:
            yield ((IN_QUEUE, self.reach),)


class Whereabouts:
    """How many of some tasks are on which nodes: to stay, or about to leave."""

    __slots__ = ("leaving", "staying")

    def __init__(self) -> None:
        self.staying: dict[int, int] = {}
        self.leaving: dict[int, int] = {}

    def copy(self) -> Whereabouts:
        other = Whereabouts()
        other.staying, other.leaving = self.staying.copy(), self.leaving.copy()
        return other

    def count(self, position: int, leaves: bool, times: int) -> None:
        counts = self.leaving if leaves else self.staying
        left = counts.get(position, 0) + times
        if left:
            counts[position] = left
        else:
            del counts[position]

    def facts(self) -> tuple[object, ...]:
        return tuple(sorted(self.staying.items())), tuple(sorted(self.leaving.items()))


class Kind:
    """Tasks whose labels fulfil one condition."""

    __slots__ = ("apart", "carriers", "condition", "drawn", "id", "scopes", "users")

    def __init__(self, id: int, condition: Condition, scopes: Scopes) -> None:
        self.id = id
        self.condition = condition
        self.scopes = scopes
        self.users = 0
        """How many rules there are about this kind."""
        self.drawn = 0
        """How many of them may come to let a task in, once one more of this kind has its place."""
        self.carriers = Whereabouts()
        self.apart: dict[str, Whereabouts] = {}
        """By level: tasks that keep apart from this kind."""

    def copy(self) -> Kind:
        other = Kind(self.id, self.condition, self.scopes)
        other.users, other.drawn, other.carriers = self.users, self.drawn, self.carriers.copy()
        other.apart = {level: whereabouts.copy() for level, whereabouts in self.apart.items()}
        return other

    def has(self, job: Job, task: Task) -> bool:
        """Whether a task is of this kind."""
        return self.reaches(job) and self.condition.accepts(labels_of(job, task))

    def reaches(self, job: Job) -> bool:
        """Whether the rules about this kind see the queue of a job at all."""
        return self.scopes.is_within(job.queue, self.condition.reach)

    def facts(self) -> tuple[object, ...]:
        apart = {level: whereabouts.facts() for level, whereabouts in self.apart.items() if any(whereabouts.facts())}
        return self.condition, self.users, self.drawn, self.carriers.facts(), tuple(sorted(apart.items()))


class Filing:
    """Finds the kinds of a task by its labels. Each kind lies under one label of which it cannot do without."""

    def __init__(self, scopes: Scopes) -> None:
        self._scopes = scopes
        self._under: dict[tuple[str, str], list[Kind]] = {}
        self._loose: list[Kind] = []
        """Kinds that no single label leads to."""
        self._anchors: dict[int, tuple[tuple[str, str], ...]] = {}
        self._by_queue: dict[int, Kind] = {}
        """Kinds that lie under a queue: what is nobody's is in none, and of all of them."""

    def add(self, kind: Kind) -> None:
        # Under whatever leads to fewest others: a namespace leads to all kinds of it.
        anchors = min(kind.condition.anchors(), key=self._crowd, default=())
        self._anchors[kind.id] = anchors
        for anchor in anchors:
            self._under.setdefault(anchor, []).append(kind)
            if anchor[0] == IN_QUEUE:
                self._by_queue[kind.id] = kind
        if not anchors:
            self._loose.append(kind)

    def _crowd(self, anchors: tuple[tuple[str, str], ...]) -> int:
        return sum(len(self._under.get(anchor, ())) for anchor in anchors)

    def discard(self, kind: Kind) -> None:
        anchors = self._anchors.pop(kind.id)
        self._by_queue.pop(kind.id, None)
        for anchor in anchors:
            under = self._under[anchor]
            under.remove(kind)
            if not under:
                del self._under[anchor]
        if not anchors:
            self._loose.remove(kind)

    def of(self, job: Job, task: Task) -> list[Kind]:
        """The kinds a task belongs to."""
        candidates = self._loose.copy()
        under = self._under
        for pair in job.labels:
            if pair in under:
                candidates += under[pair]
        for pair in task.labels:
            if pair in under:
                candidates += under[pair]
        if self._by_queue:
            candidates += self._of_queue(job.queue)
        if not candidates:
            return candidates
        labels = labels_of(job, task)
        found = dict.fromkeys(candidates)
        return [kind for kind in found if kind.reaches(job) and kind.condition.accepts(labels)]

    def _of_queue(self, queue: str) -> list[Kind]:
        """Kinds that lie under a queue, or under one above it."""
        if queue == NOBODY:
            return list(self._by_queue.values())
        under = self._under
        return [kind for name in self._scopes.path(queue) for kind in under.get((IN_QUEUE, name), ())]

    def any_of(self, job: Job) -> bool:
        """Whether any task of a job belongs to one of the kinds."""
        return any(self.of(job, task) for task in job.tasks)


def rules_of(task: Task) -> tuple[Rule, ...]:
    """What a task demands of others."""
    where = task.request.where
    return (*where.neighbours, *where.spreads) if where.spreads else where.neighbours


def soft_rules_of(task: Task) -> tuple[Rule, ...]:
    """What a task would rather have of others."""
    where = task.request.where
    return (*where.soft_neighbours, *where.soft_spreads) if where.soft_spreads else where.soft_neighbours


class Neighbours:
    """All kinds of one ledger that either binding or soft rules are about."""

    def __init__(self, scopes: Scopes, rules: Callable[[Task], tuple[Rule, ...]] = rules_of) -> None:
        self.scopes = scopes
        self.rules = rules
        """Those of a task that are filed here."""
        self._kinds: dict[Condition, Kind] = {}
        self._by_id: dict[int, Kind] = {}
        self._filing = Filing(scopes)
        self._of_rule: dict[tuple[int, Reach], tuple[Rule, Kind]] = {}
        """By identity and reach: the same rule comes with many tasks."""
        self._last_id = 0
        self.followed = False
        """Whether anything is followed at all: from the first rule on."""

    def __bool__(self) -> bool:
        """Whether anybody has a rule."""
        return bool(self._kinds)

    def fork(self) -> Neighbours:
        copy = Neighbours(self.scopes, self.rules)
        copy._last_id, copy.followed = self._last_id, self.followed
        for condition, kind in self._kinds.items():
            same = copy._kinds[condition] = copy._by_id[kind.id] = kind.copy()
            copy._filing.add(same)
        return copy

    def kind(self, rule: Rule, job: Job) -> Kind:
        """The kind that a rule of a task of this ledger looks at."""
        return self._known(rule, self.scopes.sight(job, rule))

    def repelled(self, rule: Neighbour, job: Job, task: Task) -> Kind:
        """The kind that a rule which keeps apart keeps away."""
        return self._known(rule, self.scopes.repelled(job, task, rule))

    def _known(self, rule: Rule, reach: Reach) -> Kind:
        known = self._of_rule.get((id(rule), reach))
        return self._remembered(rule, self._kinds[Condition.of(rule, reach)]) if known is None else known[1]

    def _remembered(self, rule: Rule, kind: Kind) -> Kind:
        if len(self._of_rule) >= MAX_ALIASES:
            self._of_rule.clear()
        self._of_rule[id(rule), kind.condition.reach] = rule, kind
        return kind

    def of(self, job: Job, task: Task) -> list[Kind]:
        """The kinds a task belongs to."""
        return self._filing.of(job, task) if self._kinds else []

    def kin(self, job: Job, task: Task) -> Kin:
        """The same by number: equal for tasks that are alike to everybody's rules."""
        return tuple(sorted([kind.id for kind in self._filing.of(job, task)])) if self._kinds else ()

    def is_drawn(self, kin: Iterable[int]) -> bool:
        """Whether somebody may have waited for just such a neighbour."""
        return any(self._by_id[id].drawn for id in kin)

    def touched_by(self, job: Job, task: Task) -> Iterator[Whereabouts]:
        """All that changes as a task comes or goes: its kinds, and where tasks are that keep apart as it does."""
        for kind in self.of(job, task):
            yield kind.carriers
        for rule in self.rules(task):
            if isinstance(rule, Neighbour) and rule.apart:
                yield _apart(self.repelled(rule, job, task), rule.level)

    # Following ---------------------------------------------------------------------------------------------------

    def follow(
        self, before: Iterable[Job], after: Collection[Job], others: Iterable[Job], at: Mapping[str, int]
    ) -> Filing | None:
        """Some jobs have become others; `others` have not changed. Says which kinds are new or gone, if any are."""
        for job in before:
            self._count(job, at, -1)
        used: set[Kind] = set()
        for job in before:
            self._use(job, -1, used)
        known = self._last_id
        for job in after:
            self._use(job, 1, used)
        new = [kind for kind in used if kind.id > known and kind.users]
        gone = [kind for kind in used if not kind.users]
        for kind in gone:
            self._drop(kind)
        self._find_carriers(new, others, at)
        for kind in new:
            self._filing.add(kind)
        for job in after:
            self._count(job, at, 1)
        return self._filed([*new, *gone]) if new or gone else None

    def _use(self, job: Job, times: int, used: set[Kind]) -> None:
        """Count the rules of a job, more or less of them."""
        for task in job.tasks:
            if task.state in OVER:
                continue
            for rule in self.rules(task):
                kind = self._known_or_new(rule, self.scopes.sight(job, rule))
                kind.users += times
                kind.drawn += times * _draws(rule)
                used.add(kind)
                if isinstance(rule, Neighbour) and rule.apart:
                    repelled = self._known_or_new(rule, self.scopes.repelled(job, task, rule))
                    repelled.users += times
                    used.add(repelled)

    def _known_or_new(self, rule: Rule, reach: Reach) -> Kind:
        if (id(rule), reach) in self._of_rule:
            return self._of_rule[id(rule), reach][1]
        condition = Condition.of(rule, reach)
        kind = self._kinds.get(condition)
        if kind is None:
            self._last_id += 1
            kind = Kind(self._last_id, condition, self.scopes)
            self._kinds[condition] = self._by_id[self._last_id] = kind
        return self._remembered(rule, kind)

    def _drop(self, kind: Kind) -> None:
        del self._kinds[kind.condition]
        del self._by_id[kind.id]
        self._of_rule.clear()
        self._filing.discard(kind)

    def _find_carriers(self, kinds: Collection[Kind], jobs: Iterable[Job], at: Mapping[str, int]) -> None:
        """Where tasks are that have long been there and belong to new kinds."""
        if not kinds:
            return
        filing = self._filed(kinds)
        for job in jobs:
            for task in job.tasks:
                if task.state in IN_PLACE:
                    for kind in filing.of(job, task):
                        position = at.get(task.node, -1)
                        if position >= 0:
                            kind.carriers.count(position, task.state is TaskState.FREEING, 1)

    def _count(self, job: Job, at: Mapping[str, int], times: int) -> None:
        for task in job.tasks:
            position = at.get(task.node, -1)
            if position >= 0 and task.state in IN_PLACE:
                for whereabouts in self.touched_by(job, task):
                    whereabouts.count(position, task.state is TaskState.FREEING, times)

    def _filed(self, kinds: Iterable[Kind]) -> Filing:
        filing = Filing(self.scopes)
        for kind in kinds:
            filing.add(kind)
        return filing

    def facts(self) -> frozenset[object]:
        """Everything that is known, as one comparable value."""
        return frozenset(kind.facts() for kind in self._kinds.values())


def labels_of(job: Job, task: Task) -> dict[str, str]:
    """The labels of a task: its job's, and its own."""
    return {**dict(job.labels), **dict(task.labels)} if job.labels else dict(task.labels)


def _draws(rule: Rule) -> bool:
    """Whether a rule may come to let a task in, once one more task is there."""
    return isinstance(rule, Spread) or (isinstance(rule, Neighbour) and not rule.apart)


def _apart(kind: Kind, level: str) -> Whereabouts:
    found = kind.apart.get(level)
    if found is None:
        found = kind.apart[level] = Whereabouts()
    return found
