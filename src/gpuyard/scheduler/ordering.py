"""Who goes next: the queue that is furthest below what it should have, and in it the job that ranks first.

Place in the flow: `allocate` asks for the next line, tries its first job, and says how it went. Queues are compared
only with their siblings, level by level; after a placement only the path just served is ranked again.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from gpuyard.policies.policy import Ordering
from gpuyard.scheduler.draft import Draft, Left
from gpuyard.scheduler.jobbook import LineKey, Rank, Waiter
from gpuyard.scheduler.queuebook import QueueFrame
from gpuyard.scheduler.resources import Amounts

UNBOUNDED: Final = 1 << 62

QueueKey = tuple[object, ...]
_ALONE: Final[QueueKey] = ()
"""The rank of a queue without siblings, which nobody asks for."""

Waiters = Mapping[str, Waiter]
LineMap = Mapping[LineKey, Sequence[tuple[int, str]]]


class Turns:
    """Waiting jobs in the order they are served."""

    def __init__(self, draft: Draft, lines: LineMap, waiters: Waiters, starts: Mapping[LineKey, int]) -> None:
        self._draft = draft
        self._queues = draft.queues
        self._fifo = draft.policy.ordering is Ordering.FIFO
        self._lines = lines
        self._waiters = waiters
        self._next_in = dict(starts)
        self._heads: list[list[tuple[Rank, LineKey]]] = [[] for _ in self._queues.frames]
        """Per leaf: the first job of each of its lines."""
        self._grown: dict[str, Waiter] = {}
        """Jobs that have been served and want more."""
        self._children: list[list[tuple[QueueKey, int, int]]] = [[] for _ in self._queues.frames]
        self._roots: list[tuple[QueueKey, int, int]] = []
        self._version = [0] * len(self._queues.frames)
        self._best: list[Waiter | None] = [None] * len(self._queues.frames)
        self._terms = terms_of(draft)
        self._fill()

    @classmethod
    def of_all(cls, draft: Draft) -> Turns:
        """Everyone who waits in the ledger."""
        return cls(draft, draft.ledger.lines.lines, draft.ledger.lines.waiters, {})

    @classmethod
    def of_left(cls, draft: Draft, lefts: Sequence[Left]) -> Turns:
        """Those who were left waiting, the first of each line as it was last tried."""
        first = {left.waiter.job.id: left.waiter for left in lefts}
        lines, starts = lines_of(lefts)
        return cls(draft, lines, ChainMap(first, draft.ledger.lines.waiters), starts)

    def left(self) -> list[Left]:
        """Whoever has been neither served nor dropped yet."""
        heads = [head for heads in self._heads for head in heads]
        return [self._left(rank[3], line) for rank, line in heads]

    def next(self) -> Waiter | None:
        """The job whose turn it is; it stays first until it is `served` or `dropped`."""
        at = _first(self._roots, self._version)
        return self._best[at] if at >= 0 else None

    def served(self, waiter: Waiter, again: Waiter | None) -> None:
        """The job got its chunk; `again` is what it wants next."""
        self._advance(waiter)
        if again is not None:
            self._grown[again.job.id] = again
            heappush(self._heads[again.leaf], (again.rank, again.line))
        self._rank_path(waiter.leaf)

    def dropped(self, waiter: Waiter) -> Left:
        """The job cannot be placed, nor can those behind it in its line."""
        _, line = heappop(self._heads[waiter.leaf])
        self._rank_path(waiter.leaf)
        left = self._left(waiter.job.id, line)
        self._grown.pop(waiter.job.id, None)
        return left

    def _left(self, id: str, line: LineKey) -> Left:
        grown = self._grown.get(id)
        if grown is not None:
            return Left(grown, (grown.rank[2:],))
        return Left(self._waiters[id], self._lines[line], self._next_in.get(line, 0))

    def _fill(self) -> None:
        for key, line in self._lines.items():
            _, priority, stage, _, _ = key
            age, id = line[self._next_in.get(key, 0)]
            self._heads[key[0]].append(((priority, stage, age, id), key))
        for frame in self._queues.frames:
            heapify(self._heads[frame.at])
        for frame in self._queues.frames:
            if frame.leaf and self._heads[frame.at]:
                self._rank_path(frame.at)

    def _advance(self, waiter: Waiter) -> None:
        """Take the job off the front of its line."""
        _, line = heappop(self._heads[waiter.leaf])
        if self._grown.pop(waiter.job.id, None) is not None:
            return
        position = self._next_in.get(line, 0) + 1
        self._next_in[line] = position
        jobs = self._lines[line]
        if position < len(jobs):
            age, id = jobs[position]
            heappush(self._heads[waiter.leaf], ((line[1], line[2], age, id), line))

    def _rank_path(self, leaf: int) -> None:
        """Rank a queue and its ancestors anew among their siblings."""
        frames, version = self._queues.frames, self._version
        for at in frames[leaf].path:
            frame = frames[at]
            best = self._best[at] = self._leaf_best(at) if frame.leaf else self._inner_best(at)
            version[at] += 1
            if best is not None:
                heap = self._children[frame.parent] if frame.parent >= 0 else self._roots
                key = _ALONE if frame.alone else self._key(at, best)
                heappush(heap, (key, at, version[at]))

    def _leaf_best(self, at: int) -> Waiter | None:
        heads = self._heads[at]
        if not heads:
            return None
        id = heads[0][0][3]
        return self._grown.get(id) or self._waiters[id]

    def _inner_best(self, at: int) -> Waiter | None:
        child = _first(self._children[at], self._version)
        return self._best[child] if child >= 0 else None

    def _key(self, at: int, waiter: Waiter) -> QueueKey:
        """Lower goes first; the order in words is in docs/fair-share.md. The three resources every cluster has are
        written out: this is asked twice for every task placed. Quotients of integers are rounded correctly, so equal
        shares are equal numbers; they order queues and take no part in accounting."""
        if self._fifo:
            return (waiter.rank,)
        held, asked, terms = self._queues.held[at], waiter.asked, self._terms[at]
        gpu_all, cpu_all, memory_all = terms.allowed
        gpu_owed, cpu_owed, memory_owed = terms.owed
        gpu, cpu, memory = held[0], held[1], held[2]
        now = max(gpu / gpu_all, cpu / cpu_all, memory / memory_all)
        gpu, cpu, memory = gpu + asked[0], cpu + asked[1], memory + asked[2]
        after = max(gpu / gpu_all, cpu / cpu_all, memory / memory_all)
        borrows = gpu > gpu_owed or cpu > cpu_owed or memory > memory_owed
        for position, allowed, owed in terms.further:
            have, total = held[position], held[position] + asked[position]
            borrows = borrows or total > owed
            now, after = max(now, have / allowed), max(after, total / allowed)
        uses_forbidden = bool(terms.forbidden) and any(held[position] for position in terms.forbidden)
        return (
            over_fair_share(held, self._draft.shares[at]),
            borrows,
            terms.priority,
            uses_forbidden,
            after,
            now,
            terms.tie,
        )


class Terms:
    """What is fixed during a cycle about how one queue is ranked."""

    __slots__ = ("allowance", "allowed", "forbidden", "further", "owed", "priority", "tie")

    def __init__(self, frame: QueueFrame, fair: list[int], total: Amounts) -> None:
        self.priority = -frame.priority
        owed = [UNBOUNDED if quota is None else quota for quota in frame.quota]
        allowance = [allowance_of(*entry) for entry in zip(frame.quota, frame.limit, fair, strict=True)]
        self.allowance = allowance
        # Shares are measured against the allowance, or against the whole cluster where there is no bound.
        allowed = [(amount if most is None else most) or 1 for most, amount in zip(allowance, total, strict=True)]
        self.allowed, self.owed = (allowed[0], allowed[1], allowed[2]), (owed[0], owed[1], owed[2])
        self.further = [(position, allowed[position], owed[position]) for position in range(3, len(owed))]
        self.forbidden = [position for position, most in enumerate(allowance) if most == 0]
        """Resources of which it should hold nothing."""
        self.tie = (tuple([UNBOUNDED if most is None else most for most in allowance]), frame.order, frame.name)


def lines_of(lefts: Iterable[Left]) -> tuple[dict[LineKey, Sequence[tuple[int, str]]], dict[LineKey, int]]:
    """The lines of those who were left, and where each begins. Whoever was taken out of a line stands in it again."""
    lines: dict[LineKey, Sequence[tuple[int, str]]] = {}
    starts: dict[LineKey, int] = {}
    for left in lefts:
        key = left.waiter.line
        if key in lines:
            lines[key] = sorted([*lines[key][starts[key] :], *left.line[left.start :]])
            starts[key] = 0
        else:
            lines[key], starts[key] = left.line, left.start
    return lines, starts


def terms_of(draft: Draft) -> list[Terms]:
    """The terms of every queue, worked out once for a cycle."""
    if not draft.terms:
        draft.terms = [Terms(frame, draft.shares[frame.at], draft.total) for frame in draft.queues.frames]
    return draft.terms


def allowance_of(quota: int | None, limit: int | None, fair: int) -> int | None:
    """What a queue may come to hold before it is over-served; None: no bound."""
    if quota is None:
        return limit
    most = max(quota, fair)
    return most if limit is None else min(limit, most)


def _first(heap: list[tuple[QueueKey, int, int]], version: list[int]) -> int:
    """The best queue of a heap in which old rankings are left lying; -1 where there is none."""
    while heap and heap[0][2] != version[heap[0][1]]:
        heappop(heap)
    return heap[0][1] if heap else -1


def over_fair_share(held: list[int], share: list[int]) -> bool:
    """Over its fair share of everything."""
    return held[0] > share[0] and held[1] > share[1] and held[2] > share[2]
