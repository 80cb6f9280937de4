"""Jobs as the planner sees them: what each holds, what it asks next, and which of them are alike.

Jobs of one queue that ask for the same and rank the same but for their age form a *line*; when the first of a line
cannot be placed, none can, so a busy cluster's thousands of waiting jobs cost as much as their few lines.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from gpuyard.model.jobs import Job, Task, TaskState
from gpuyard.scheduler.gang import Chunk, Gang
from gpuyard.scheduler.neighbours import Kin, Neighbours
from gpuyard.scheduler.resources import Amounts, plus, times
from gpuyard.scheduler.shapes import Shape, Shapes

Rank = tuple[int, int, int, str]
"""The order inside a queue: falling priority, stage, age, id."""

LineKey = tuple[int, int, int, bool, object]
"""Queue, falling priority, stage, preemptible, signature."""


class Waiter:
    """A job with something to place: its next chunk and what that counts."""

    __slots__ = (
        "asked",
        "at_least",
        "choosy",
        "chunk",
        "firm",
        "gang",
        "job",
        "kin",
        "leaf",
        "line",
        "more",
        "rank",
        "ruled",
        "shapes",
        "signature",
    )

    def __init__(self, job: Job, leaf: int, chunk: Chunk, stage: int, gang: Gang | None, shapes: Shapes) -> None:
        self.job = job
        self.leaf = leaf
        self.chunk = chunk
        self.gang = gang
        """Where the job stands; None for one that has not started and whose chunk is all there is."""
        self.firm = not job.preemptible
        tasks = tuple(chunk.all_tasks()) if chunk.children else chunk.tasks
        self.more = gang is not None and sum(map(len, gang.waiting.values())) > len(tasks)
        """Whether tasks remain beyond this chunk."""
        self.shapes = (
            tuple([shapes.of(task.request) for task in tasks]) if len(tasks) > 1 else (shapes.of(tasks[0].request),)
        )
        self.asked, self.at_least = _sums(self.shapes)
        self.kin = _kin(job, tasks, shapes.neighbours) if shapes.any_ruled else ()
        """Of each task what rules are about it; empty where none is about any."""
        self.ruled = shapes.any_ruled and (bool(self.kin) or any(shape.ruled for shape in self.shapes))
        """Whether rules between tasks, its own or those of others, are about it."""
        self.choosy = shapes.any_choosy and any(shape.choosy for shape in self.shapes)
        """Whether it would rather have some company than other."""
        self.rank: Rank = (-job.priority, stage, job.submitted_at_ms, job.id)
        self.signature = _signature(self, tasks, pristine=gang is None or not gang.active)
        self.line: LineKey = (leaf, -job.priority, stage, self.firm, self.signature)


def waiter_of(job: Job, leaf: int, shapes: Shapes) -> Waiter | Gang | None:
    """The waiter of a job; its gang where too few tasks are there to start it; None where nothing waits."""
    group, tasks = job.group, job.tasks
    if group.leaf and len(tasks) == group.min_tasks and _all_pending_and_equal(tasks):
        return Waiter(job, leaf, Chunk(group, tasks), 0, None, shapes)
    gang = Gang(job)
    if not gang.waiting:
        return None
    return next_waiter(job, leaf, gang, shapes) or gang


def _all_pending_and_equal(tasks: tuple[Task, ...]) -> bool:
    if len(tasks) == 1:
        return tasks[0].state is TaskState.PENDING
    return all(task.state is TaskState.PENDING and not task.priority for task in tasks)


def next_waiter(job: Job, leaf: int, gang: Gang, shapes: Shapes) -> Waiter | None:
    """What a job that may already have started wants next."""
    chunk = gang.next_chunk()
    return Waiter(job, leaf, chunk, gang.stage(), gang, shapes) if chunk else None


class Lines:
    """All waiting jobs, as lines; each line in order of age."""

    def __init__(self) -> None:
        self.lines: dict[LineKey, list[tuple[int, str]]] = {}
        self.waiters: dict[str, Waiter] = {}

    def fork(self) -> Lines:
        copy = Lines()
        copy.lines = {key: line.copy() for key, line in self.lines.items()}
        copy.waiters = self.waiters.copy()
        return copy

    def load(self, waiters: Iterable[Waiter]) -> None:
        """Add many at once."""
        for waiter in waiters:
            self.waiters[waiter.job.id] = waiter
            self.lines.setdefault(waiter.line, []).append(waiter.rank[2:])
        for line in self.lines.values():
            line.sort()

    def add(self, waiter: Waiter) -> None:
        self.waiters[waiter.job.id] = waiter
        insort(self.lines.setdefault(waiter.line, []), waiter.rank[2:])

    def remove(self, job: str) -> None:
        waiter = self.waiters.pop(job, None)
        if waiter is None:
            return
        line = self.lines[waiter.line]
        del line[bisect_left(line, waiter.rank[2:])]
        if not line:
            del self.lines[waiter.line]

    def before(self, waiter: Waiter) -> Iterator[tuple[list[tuple[int, str]], int]]:
        """The lines of its queue, each with how many of its jobs go before a waiter."""
        for key, line in self.lines.items():
            if key[0] == waiter.leaf and key[1:3] <= waiter.line[1:3]:
                ahead = len(line) if key[1:3] < waiter.line[1:3] else bisect_left(line, waiter.rank[2:])
                yield line, ahead

    def facts(self) -> tuple[object, ...]:
        return tuple(sorted((w.rank, w.leaf, w.firm, tuple(t.id for t in w.chunk.all_tasks())) for w in self._all()))

    def _all(self) -> Iterator[Waiter]:
        yield from self.waiters.values()


def _sums(shapes: tuple[Shape, ...]) -> tuple[Amounts, Amounts]:
    first = shapes[0]
    if len(shapes) == 1:
        return first.asked, first.at_least
    if all(shape is first for shape in shapes):
        return times(first.asked, len(shapes)), times(first.at_least, len(shapes))
    asked, at_least = first.asked, first.at_least
    for shape in shapes[1:]:
        asked, at_least = plus(asked, shape.asked), plus(at_least, shape.at_least)
    return asked, at_least


def _kin(job: Job, tasks: tuple[Task, ...], neighbours: Neighbours) -> tuple[Kin, ...]:
    kin = tuple([neighbours.kin(job, task) for task in tasks])
    return kin if any(kin) else ()


def _signature(waiter: Waiter, tasks: tuple[Task, ...], pristine: bool) -> object:
    """Equal for jobs whose chunks can only succeed or fail alike. A job that has started is like no other.

    Of jobs with the same delay the older may disturb others first, unless one was evicted since.
    """
    job = waiter.job
    if not pristine:
        return job.id
    asked = _asked(waiter, tasks)
    return (asked, job.preemption_delay_ms, job.last_evicted_at_ms) if job.preemption_delay_ms else asked


def _asked(waiter: Waiter, tasks: tuple[Task, ...]) -> object:
    job, shapes = waiter.job, waiter.shapes
    # Equal rules of different queues may look at different jobs.
    reach = (job.queue, job.may_stop) if waiter.ruled or waiter.choosy else None
    if len(shapes) == 1 and not waiter.kin and reach is None and job.group.topology is None and job.group.leaf:
        return shapes[0].id
    ids = tuple([shape.id for shape in shapes])
    if job.group.leaf:
        return ids, reach, waiter.kin, job.spread, job.group.topology
    return ids, reach, waiter.kin, job.spread, job.group, tuple([task.group for task in tasks])
