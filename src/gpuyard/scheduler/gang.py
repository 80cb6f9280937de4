"""Which tasks of a job come next: first what must start together, then one more at a time.

A job is a tree of groups. Until the root has its minimum, the next chunk is the smallest set of tasks that
completes it; afterwards it is the smallest step of growth. Invariant: a chunk is placed whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gpuyard.model.jobs import Job, Task, TaskGroup, TaskState

ACTIVE = frozenset({TaskState.RUNNING, TaskState.PROMISED})


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

    __slots__ = ("active", "job", "nodes", "waiting")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.active: dict[str, int] = {}
        self.waiting: dict[str, list[Task]] = {}
        self.nodes: dict[str, list[str]] = {}
        single = job.group.leaf
        for task in job.tasks:
            leaf = job.group.name if single else task.group
            if task.state is TaskState.PENDING:
                self.waiting.setdefault(leaf, []).append(task)
            elif task.state in ACTIVE:
                self.started(leaf, task.node)
        for tasks in self.waiting.values():
            # The next task is taken off the end: rising priority, and of equals the first one last.
            tasks.reverse()
            tasks.sort(key=lambda task: task.priority)

    def started(self, leaf: str, node: str) -> None:
        self.active[leaf] = self.active.get(leaf, 0) + 1
        self.nodes.setdefault(leaf, []).append(node)

    def place(self, chunk: Chunk, nodes: dict[str, str]) -> None:
        """Count a chunk as placed; `nodes` says where each of its tasks went."""
        for child in chunk.children:
            self.place(child, nodes)
        for task in chunk.tasks:
            self.waiting[chunk.group.name].remove(task)
            self.started(chunk.group.name, nodes[task.id])

    def next_chunk(self) -> Chunk | None:
        """What to place next; None where nothing waits, or too few tasks are there to complete a minimum."""
        root = self.job.group
        return self._growth(root) if self.satisfied(root) else self._minimum(root)

    def satisfied(self, group: TaskGroup) -> bool:
        if group.leaf:
            return self.active.get(group.name, 0) >= group.min_tasks
        return sum(map(self.satisfied, group.children)) >= required_children(group)

    def stage(self) -> int:
        """0 below the minimum, 1 exactly at it, 2 above: the order of jobs of equal priority."""
        if not self.satisfied(self.job.group):
            return 0
        return 2 if any(self._above(leaf) for leaf in leaves(self.job.group)) else 1

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

    def _minimum(self, group: TaskGroup) -> Chunk | None:
        if group.leaf:
            return self._take(group, group.min_tasks - self.active.get(group.name, 0))
        unsatisfied = [child for child in self._ordered(group) if not self.satisfied(child)]
        missing = required_children(group) - (len(group.children) - len(unsatisfied))
        chunks: list[Chunk] = []
        for child in unsatisfied:
            chunk = self._minimum(child) if len(chunks) < missing else None
            if chunk is not None:
                chunks.append(chunk)
        return Chunk(group, children=tuple(chunks)) if len(chunks) == missing else None

    def _growth(self, group: TaskGroup) -> Chunk | None:
        if group.leaf:
            return self._take(group, 1)
        for child in self._ordered(group):
            chunk = self._growth(child) if self.satisfied(child) else self._minimum(child)
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


def required_children(group: TaskGroup) -> int:
    return len(group.children) if group.min_groups is None else group.min_groups


def leaves(group: TaskGroup) -> Iterator[TaskGroup]:
    if group.leaf:
        yield group
    for child in group.children:
        yield from leaves(child)
