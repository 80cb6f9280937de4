"""Make room for one more job by re-arranging what this same cycle has placed.

Nothing of it has started yet, so moving it costs nothing. A bounded search, counted in steps, never in time: largest
first, equal nodes tried once. Invariant: whoever had a place keeps one; on failure the draft is as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuyard.model.jobs import Task
from gpuyard.policies.policy import DevicePlacement, NodePlacement
from gpuyard.scheduler.draft import Draft, Placed
from gpuyard.scheduler.fit import NO_FIT
from gpuyard.scheduler.headroom import affordable, within_bounds
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.resources import CPU_AT, GPU_AT
from gpuyard.scheduler.shapes import Shape

MAX_PLACED: Final = 256
"""Cycles that have placed more than this are not re-arranged: taking it all back would cost more than it gains."""

MAX_MOVED: Final = 24
"""How many of the latest placements are up for moving."""

PACKING: Final = frozenset({NodePlacement.BIN_PACK, NodePlacement.BEST_FIT, NodePlacement.KEEP_NODES_FREE})
"""Policies whose wish is to fit much: the others have a reason of their own for where they put things."""

MAX_STEPS_PER_JOB: Final = 3_000

MAX_NODES_TRIED: Final = 64
"""Different nodes tried for one task, best first."""


class Item:
    """Tasks of one job that go to one node together, or a single task."""

    __slots__ = ("shapes", "tasks", "waiter")

    def __init__(self, waiter: Waiter, tasks: Sequence[Task], shapes: Sequence[Shape]) -> None:
        self.waiter = waiter
        self.tasks = tasks
        self.shapes = shapes

    def size(self) -> tuple[int, ...]:
        largest = max(shape.asked for shape in self.shapes)
        return sum(shape.asked[GPU_AT] for shape in self.shapes), *largest


def rearrange(draft: Draft, waiter: Waiter) -> bool:
    """Place the waiter's chunk by moving what this cycle placed; False leaves the draft as it was."""
    if not 0 < len(draft.placed) <= MAX_PLACED or draft.rearrange_steps_left <= 0:
        return False
    if waiter.ruled or not _plain(waiter) or not _enough_in_total(draft, waiter):
        return False
    if draft.policy.node_placement not in PACKING or draft.policy.device_placement is DevicePlacement.SPREAD:
        return False
    before = draft.rollback(0)
    movable = [placed for placed in before if _movable(placed)][-MAX_MOVED:]
    for placed in before:
        if placed not in movable:
            draft.book(placed)
    moved = _items(movable)
    for new in _as_items(draft, waiter):
        mark = draft.mark()
        items = sorted([*moved, *new], key=Item.size, reverse=True)
        if _Search(draft, items).run(0):
            return True
        draft.rollback(mark)
    draft.rollback(0)
    for placed in before:
        draft.book(placed)
    return False


class _Search:
    """Depth first over items, each on every node that differs from those tried before it."""

    def __init__(self, draft: Draft, items: list[Item]) -> None:
        self.draft = draft
        self.items = items
        self.steps = min(draft.rearrange_steps_left, MAX_STEPS_PER_JOB)

    def run(self, depth: int) -> bool:
        if depth == len(self.items):
            return True
        item = self.items[depth]
        mark = self.draft.mark()
        for position in self._positions(item):
            if self.steps <= 0:
                return False
            self.steps -= 1
            self.draft.rearrange_steps_left -= 1
            if self._put(item, position) and self.run(depth + 1):
                return True
            self.draft.rollback(mark)
        return False

    def _put(self, item: Item, position: int) -> bool:
        for task, wanted in zip(item.tasks, item.shapes, strict=True):
            shape = affordable(self.draft, item.waiter, wanted)
            if shape is None or self.draft.fit.at(shape, position) >= NO_FIT:
                return False
            self.draft.put(item.waiter, task, shape, position, waits=False)
        # Memory counts more on a smaller GPU, so a task that moved may cost its queue more than it did.
        return within_bounds(self.draft.queues, item.waiter)

    def _positions(self, item: Item) -> list[int]:
        """Nodes the item may go to, best first, one of each kind."""
        draft, shape = self.draft, item.shapes[0]
        fits = draft.fit.scores(shape) < NO_FIT
        if draft.among is not None:
            fits &= draft.among
        wishes = None
        if shape.choosy and draft.wishes is not None:
            wishes = draft.wishes.of(item.waiter.job, shape.request.where)
        kinds: set[object] = set()
        different: list[int] = []
        for position in draft.fit.in_order(shape, fits, wishes):
            kind = self._kind(position)
            if kind not in kinds:
                kinds.add(kind)
                different.append(position)
            if len(different) == MAX_NODES_TRIED:
                break
        return different

    def _kind(self, position: int) -> object:
        """Two nodes of one kind are interchangeable for what comes next."""
        nodes = self.draft.nodes
        node = nodes.frames[position].node
        later = nodes.later.get(position)
        static = (node.devices, tuple(sorted(node.labels.items())), node.taints)
        return static, nodes.now[position].facts(), later and later.facts()


def _plain(waiter: Waiter) -> bool:
    """No topology ties it to others."""
    return not waiter.chunk.children and waiter.chunk.group.topology is None


def _movable(placed: Placed) -> bool:
    return not placed.waits and not placed.waiter.ruled and _plain(placed.waiter)


def _enough_in_total(draft: Draft, waiter: Waiter) -> bool:
    """Cheap bound: what is free on nodes it may use adds up to what it asks."""
    columns = draft.nodes.columns
    columns.sync()
    allowed = draft.eligibility.nodes(waiter.shapes[0].request.where)
    return bool(
        columns.gpu_milli[allowed].sum() >= waiter.at_least[GPU_AT]
        and columns.cpu_milli[allowed].sum() >= waiter.at_least[CPU_AT]
    )


def _items(placed: list[Placed]) -> list[Item]:
    """Chunks that lie on one node stay together; tasks of chunks that are split are free to go anywhere."""
    by_chunk: dict[int, list[Placed]] = {}
    for entry in placed:
        by_chunk.setdefault(id(entry.waiter), []).append(entry)
    items: list[Item] = []
    for entries in by_chunk.values():
        waiter = entries[0].waiter
        if len({entry.position for entry in entries}) == 1 and not waiter.job.spread:
            items.append(Item(waiter, [e.task for e in entries], [e.shape for e in entries]))
        else:
            items += [Item(waiter, [entry.task], [entry.shape]) for entry in entries]
    return items


def _as_items(draft: Draft, waiter: Waiter) -> list[list[Item]]:
    """The new chunk: together on one node if it can be, else task by task."""
    tasks = waiter.chunk.tasks
    apart = [Item(waiter, [task], [shape]) for task, shape in zip(tasks, waiter.shapes, strict=True)]
    if len(tasks) == 1 or waiter.job.spread:
        return [apart]
    return [[Item(waiter, list(tasks), list(waiter.shapes))], apart]
