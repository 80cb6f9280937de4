"""Which tasks of a job come next: first what must start together, then one more at a time.

A job is a tree of groups. Until the root has its minimum, the next chunk is the smallest set of tasks that
completes it; afterwards it is the smallest step of growth. Invariant: a chunk is placed whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from gpuyard.model.jobs import Job, Task, TaskGroup, TaskState

ACTIVE: Final = frozenset({TaskState.RUNNING, TaskState.PROMISED})

IN_PLACE: Final = ACTIVE | {TaskState.FREEING, TaskState.STUCK}
"""Tasks that take up room on a node, or will. Only active ones count against their queue: what is ending does not."""

ABOVE_MINIMUM: Final = 2
"""The stage of a job that has more than its minimum."""

MAX_OTHER_CHUNKS: Final = 16
"""Choices of groups tried for one job when the first does not fit."""


class Chunk(msgspec.Struct, frozen=True):
    """Tasks to place together, in the shape of the job's tree (a leaf has tasks, an inner group has children)."""

    group: TaskGroup
    tasks: tuple[Task, ...] = ()
    children: tuple[Chunk, ...] = ()

    def all_tasks(self) -> Iterator[Task]:
        yield from self.tasks
        for child in self.children:
            yield from child.all_tasks()


class Gang:
    """Where a job stands: per leaf, how many tasks are active and which still wait (the next one last)."""

    __slots__ = ("active", "job", "nodes", "promised", "waiting")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.active: dict[str, int] = {}
        self.promised: dict[str, int] = {}
        """How many of the active ones still wait for their place."""
        self.waiting: dict[str, list[Task]] = {}
        self.nodes: dict[str, list[str]] = {}
        single = job.group.leaf
        for task in job.tasks:
            leaf = job.group.name if single else task.group
            if task.state is TaskState.PENDING:
                self.waiting.setdefault(leaf, []).append(task)
            elif task.state in ACTIVE:
                self.started(leaf, task.node, task.state is TaskState.PROMISED)
        for tasks in self.waiting.values():
            # The next task is taken off the end: rising priority, and of equals the first one last.
            tasks.reverse()
            tasks.sort(key=lambda task: task.priority)

    def started(self, leaf: str, node: str, promised: bool) -> None:
        self.active[leaf] = self.active.get(leaf, 0) + 1
        self.promised[leaf] = self.promised.get(leaf, 0) + promised
        self.nodes.setdefault(leaf, []).append(node)

    def place(self, chunk: Chunk, given: dict[str, tuple[str, bool]]) -> None:
        """Count a chunk as placed; `given` says where each of its tasks went, and whether it waits for its place."""
        for child in chunk.children:
            self.place(child, given)
        if chunk.tasks:
            # A chunk always takes the tasks at the end.
            del self.waiting[chunk.group.name][-len(chunk.tasks) :]
        for task in chunk.tasks:
            self.started(chunk.group.name, *given[task.id])

    def next_chunk(self, without: frozenset[str] = frozenset()) -> Chunk | None:
        """What to place next; None where nothing waits, or too few tasks are there to complete a minimum.

        `without` names groups to leave out, where others may stand in for them.
        """
        root = self.job.group
        return self._growth(root, without) if self.satisfied(root) else self._minimum(root, without)

    def other_chunks(self) -> Iterator[Chunk]:
        """What else would do in place of the next chunk, where the job leaves a choice: a few, nearest first."""
        tried: set[frozenset[str]] = {frozenset()}
        ways: list[frozenset[str]] = [frozenset()]
        while ways and len(tried) <= MAX_OTHER_CHUNKS:
            without = ways.pop(0)
            chunk = self.next_chunk(without)
            if chunk is None:
                continue
            if without:
                yield chunk
            for name in _replaceable(chunk):
                if without | {name} not in tried:
                    tried.add(without | {name})
                    ways.append(without | {name})

    def satisfied(self, group: TaskGroup) -> bool:
        return satisfied(group, self.active)

    def stage(self) -> int:
        """0 below the minimum, 1 exactly at it, 2 above: the order of jobs of equal priority."""
        if not self.satisfied(self.job.group):
            return 0
        return ABOVE_MINIMUM if any(self._above(leaf) for leaf in leaves(self.job.group)) else 1

    def missing(self) -> tuple[int, int, str]:
        """For an incomplete job: tasks there, tasks needed, and the group that lacks them."""
        for leaf in leaves(self.job.group):
            there = self.active.get(leaf.name, 0) + len(self.waiting.get(leaf.name, ()))
            if there < leaf.min_tasks:
                return there, leaf.min_tasks, leaf.name
        return 0, 0, ""

    def nodes_of(self, group: TaskGroup) -> list[str]:
        """Where the tasks of a group already are."""
        return [node for leaf in leaves(group) for node in self.nodes.get(leaf.name, ())]

    def _above(self, leaf: TaskGroup) -> bool:
        return self.active.get(leaf.name, 0) > leaf.min_tasks

    def _minimum(self, group: TaskGroup, without: frozenset[str]) -> Chunk | None:
        if group.leaf:
            return self._take(group, group.min_tasks - self.active.get(group.name, 0))
        unsatisfied = [child for child in self._ordered(group) if not self.satisfied(child)]
        missing = required_children(group) - (len(group.children) - len(unsatisfied))
        chunks: list[Chunk] = []
        for child in unsatisfied:
            wanted = len(chunks) < missing and child.name not in without
            chunk = self._minimum(child, without) if wanted else None
            if chunk is not None:
                chunks.append(chunk)
        return Chunk(group, children=tuple(chunks)) if len(chunks) == missing else None

    def _growth(self, group: TaskGroup, without: frozenset[str]) -> Chunk | None:
        if group.leaf:
            return self._take(group, 1)
        for child in self._ordered(group):
            if child.name in without:
                continue
            grow = self._growth if self.satisfied(child) else self._minimum
            chunk = grow(child, without)
            if chunk is not None:
                return Chunk(group, children=(chunk,))
        return None

    def _take(self, leaf: TaskGroup, count: int) -> Chunk | None:
        waiting = self.waiting.get(leaf.name, ())
        if not count or len(waiting) < count:
            return None
        return Chunk(leaf, tasks=tuple(reversed(waiting[-count:])))

    def _ordered(self, group: TaskGroup) -> list[TaskGroup]:
        return sorted(group.children, key=self._rank)

    def _rank(self, group: TaskGroup) -> tuple[bool, bool, int, str]:
        minimum = group.min_tasks if group.leaf else required_children(group)
        started = self.active.get(group.name, 0) if group.leaf else sum(map(self.satisfied, group.children))
        fill_ppm = started * 1_000_000 // minimum if minimum else 0
        return self.satisfied(group), minimum == 0, fill_ppm, group.name


class Yielding:
    """What a running job gives up, and in which order: what it has above its minimum bit by bit, then all the rest."""

    def __init__(self, job: Job) -> None:
        self.job = job
        single = job.group.leaf
        self.running: dict[str, list[Task]] = {}
        """Per leaf, the next to go last."""
        self.active: dict[str, int] = {}
        for task in job.tasks:
            leaf = job.group.name if single else task.group
            if task.state in ACTIVE:
                self.active[leaf] = self.active.get(leaf, 0) + 1
            if task.state is TaskState.RUNNING:
                self.running.setdefault(leaf, []).append(task)
        for tasks in self.running.values():
            tasks.sort(key=lambda task: (-task.priority, task.started_at_ms))

    def blocks(self) -> Iterator[tuple[Task, ...]]:
        """Blocks in the order they go. A job that still waits for a promised place never goes as a whole."""
        while (surplus := self._surplus(self.job.group)) is not None:
            if not surplus:
                return
            yield surplus
        if not any(task.state is TaskState.PROMISED for task in self.job.tasks):
            rest = tuple(task for tasks in self.running.values() for task in tasks)
            if rest:
                yield rest

    def _surplus(self, group: TaskGroup) -> tuple[Task, ...] | None:
        """The next thing above the group's minimum; None where there is nothing."""
        if group.leaf:
            above = self.active.get(group.name, 0) > group.min_tasks
            return self._drop(group.name, 1) if above and self.running.get(group.name) else None
        children = sorted(group.children, key=lambda child: self._rank(child), reverse=True)
        for child in children:
            surplus = self._surplus(child) if satisfied(child, self.active) else None
            if surplus is not None:
                return surplus
        if sum(satisfied(child, self.active) for child in children) > required_children(group):
            for child in children:
                dropped = self._drop_all(child)
                if dropped:
                    return dropped
        return None

    def _rank(self, group: TaskGroup) -> tuple[bool, int, str]:
        count = sum(self.active.get(leaf.name, 0) for leaf in leaves(group))
        return satisfied(group, self.active), count, group.name

    def _drop(self, leaf: str, count: int) -> tuple[Task, ...]:
        tasks = self.running[leaf]
        dropped = tuple(tasks[-count:])
        del tasks[-count:]
        self.active[leaf] -= count
        return dropped

    def _drop_all(self, group: TaskGroup) -> tuple[Task, ...]:
        mine = [leaf.name for leaf in leaves(group) if self.running.get(leaf.name)]
        return tuple(task for name in mine for task in self._drop(name, len(self.running[name])))


def satisfied(group: TaskGroup, counts: dict[str, int]) -> bool:
    """Whether a group has its minimum, given how many tasks of each leaf count."""
    if group.leaf:
        return counts.get(group.name, 0) >= group.min_tasks
    return sum(satisfied(child, counts) for child in group.children) >= required_children(group)


def goes_on(group: TaskGroup, counts: dict[str, int]) -> bool:
    """Whether these tasks are enough to go on with, and none of them is left over of a leaf that is not."""
    if any(0 < counts.get(leaf.name, 0) < leaf.min_tasks for leaf in leaves(group)):
        return False
    return satisfied(group, counts)


def is_incomplete(job: Job) -> bool:
    """Whether a job has tasks in place, none that succeeded, and fewer of them than its minimum."""
    states = [task.state for task in job.tasks]
    there = sum([state in IN_PLACE for state in states])
    if not there or TaskState.SUCCEEDED in states:
        return False
    if job.group.leaf:
        return there < job.group.min_tasks
    return not satisfied(job.group, in_place(job, frozenset()))


def in_place(job: Job, given: frozenset[str]) -> dict[str, int]:
    """Tasks in place per leaf, counting those that were just given a place."""
    counts: dict[str, int] = {}
    for task in job.tasks:
        if task.state in IN_PLACE or task.id in given:
            leaf = job.group.name if job.group.leaf else task.group
            counts[leaf] = counts.get(leaf, 0) + 1
    return counts


def _replaceable(chunk: Chunk) -> Iterator[str]:
    """Groups of a chunk for which a sibling could stand in."""
    for child in chunk.children:
        if len(chunk.children) < len(chunk.group.children):
            yield child.group.name
        yield from _replaceable(child)


def required_children(group: TaskGroup) -> int:
    return len(group.children) if group.min_groups is None else group.min_groups


def leaves(group: TaskGroup) -> Iterator[TaskGroup]:
    if group.leaf:
        yield group
    for child in group.children:
        yield from leaves(child)
