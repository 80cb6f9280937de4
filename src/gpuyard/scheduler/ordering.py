"""Who goes next: the queue that is furthest below what it should have, and in it the job that ranks first.

Place in the flow: `allocate` asks for the next line, tries its first job, and says how it went. Queues are compared
only with their siblings, level by level; after a placement only the path just served is ranked again.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from gpuyard.policies.policy import Ordering
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.jobbook import LineKey, Rank, Waiter
from gpuyard.scheduler.resources import Amounts

SCALE: Final = 10**9
"""Shares are compared as integers in billionths."""

QueueKey = tuple[object, ...]


class Turns:
    """The waiting jobs of a draft in the order they are served."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._queues = draft.queues
        self._fifo = draft.policy.ordering is Ordering.FIFO
        self._lines = draft.ledger.lines.lines
        self._waiters = draft.ledger.lines.waiters
        self._next_in: dict[LineKey, int] = {}
        self._heads: list[list[tuple[Rank, LineKey]]] = [[] for _ in self._queues.frames]
        """Per leaf: the first job of each of its lines."""
        self._grown: dict[str, Waiter] = {}
        """Jobs that have been served and want more."""
        self._children: list[list[tuple[QueueKey, int, int]]] = [[] for _ in self._queues.frames]
        self._roots: list[tuple[QueueKey, int, int]] = []
        self._version = [0] * len(self._queues.frames)
        self._best: list[Waiter | None] = [None] * len(self._queues.frames)
        self._allowance = [self._allowances(at) for at in range(len(self._queues.frames))]
        self._fill()

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

    def dropped(self, waiter: Waiter) -> tuple[str, ...]:
        """The job cannot be placed, nor can those behind it in its line: all of them, in order."""
        rank, line = heappop(self._heads[waiter.leaf])
        self._rank_path(waiter.leaf)
        if self._grown.pop(waiter.job.id, None) is not None:
            return (waiter.job.id,)
        behind = self._lines[line][self._next_in.get(line, 0) :]
        return tuple([id for _, id in behind])

    def postponed(self, waiter: Waiter) -> None:
        """The job cannot be placed, but those behind it may differ: only it loses its turn."""
        self._advance(waiter)
        self._rank_path(waiter.leaf)

    def _fill(self) -> None:
        for key, line in self._lines.items():
            _, priority, stage, _, _ = key
            age, id = line[0]
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
        for at in self._queues.frames[leaf].path:
            frame = self._queues.frames[at]
            self._best[at] = self._leaf_best(at) if frame.leaf else self._inner_best(at)
            self._version[at] += 1
            best = self._best[at]
            if best is not None:
                heap = self._children[frame.parent] if frame.parent >= 0 else self._roots
                heappush(heap, (self._key(at, best), at, self._version[at]))

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
        """Lower goes first. See docs/fair-share.md for the order in words."""
        if self._fifo:
            return (waiter.rank,)
        frame = self._queues.frames[at]
        held, share, quota = self._queues.held[at], self._draft.shares[at], frame.quota
        wanted = waiter.asked
        allowance = self._allowance[at]
        return (
            _over(held, share),
            not _within(held, wanted, quota),
            -frame.priority,
            _uses_nothing_allowed(held, allowance),
            _dominant(held, wanted, allowance, self._draft.total),
            _dominant(held, None, allowance, self._draft.total),
            tuple([SCALE * SCALE if amount is None else amount for amount in allowance]),
            frame.order,
            frame.name,
        )

    def _allowances(self, at: int) -> list[int | None]:
        """What a queue may come to hold before it is over-served; None: no bound."""
        frame, share = self._queues.frames[at], self._draft.shares[at]
        allowances: list[int | None] = []
        for quota, limit, fair in zip(frame.quota, frame.limit, share, strict=True):
            if quota is None:
                allowances.append(limit)
            else:
                most = max(quota, fair)
                allowances.append(most if limit is None else min(limit, most))
        return allowances


def _first(heap: list[tuple[QueueKey, int, int]], version: list[int]) -> int:
    """The best queue of a heap in which old rankings are left lying; -1 where there is none."""
    while heap and heap[0][2] != version[heap[0][1]]:
        heappop(heap)
    return heap[0][1] if heap else -1


def _over(held: list[int], share: list[int]) -> bool:
    """Over its fair share of everything."""
    return held[0] > share[0] and held[1] > share[1] and held[2] > share[2]


def _within(held: list[int], wanted: Amounts, quota: list[int | None]) -> bool:
    for have, more, owed in zip(held, wanted, quota, strict=True):
        if owed is not None and have + more > owed:
            return False
    return True


def _uses_nothing_allowed(held: list[int], allowance: list[int | None]) -> bool:
    """Holds something of which it should hold nothing."""
    for have, most in zip(held, allowance, strict=True):
        if have and most == 0:
            return True
    return False


def _dominant(held: list[int], wanted: Amounts | None, allowance: list[int | None], total: Amounts) -> int:
    """The largest part of its allowance that a queue holds of any resource."""
    largest = 0
    for position, have in enumerate(held):
        if wanted is not None:
            have += wanted[position]
        if not have:
            continue
        most = allowance[position]
        most = total[position] if most is None else most
        part = have * SCALE // most if most else have * SCALE
        if part > largest:
            largest = part
    return largest
