"""The tree of queues, with what each holds and asks for.

Place in the flow: the ledger keeps one; a draft forks it and charges what it places. Only leaves hold jobs; every
amount is also counted at each ancestor. Invariant: an inner queue holds exactly what its children hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import add, sub

from gpuyard.model.queues import Queue, QueueUsage
from gpuyard.scheduler.fairshare import Claim, divide
from gpuyard.scheduler.resources import Amounts, Resources


class QueueFrame:
    """What is fixed about one queue while the tree stays the same."""

    __slots__ = (
        "alone",
        "at",
        "children",
        "leaf",
        "limit",
        "limits",
        "name",
        "order",
        "parent",
        "path",
        "priority",
        "queue",
        "quota",
        "quotas",
    )

    def __init__(self, at: int, queue: Queue, resources: Resources) -> None:
        self.at = at
        self.queue = queue
        self.name = queue.name
        self.priority = queue.priority
        self.order = queue.order
        self.quota = [queue.share(name).quota for name in resources.names]
        self.limit = [queue.share(name).limit for name in resources.names]
        self.limits = tuple([(at, limit) for at, limit in enumerate(self.limit) if limit is not None])
        self.quotas = tuple([(at, quota) for at, quota in enumerate(self.quota) if quota is not None])
        self.parent = -1
        self.children: list[int] = []
        self.path: tuple[int, ...] = (at,)
        """This queue and its ancestors, itself first."""
        self.leaf = True
        self.alone = False
        """Whether it has no siblings."""


class QueueBook:
    """Amounts per queue: held, held firmly (by jobs that may not be preempted), and asked for by what waits."""

    def __init__(self, queues: Iterable[Queue], resources: Resources) -> None:
        self.resources = resources
        self.frames = _framed(queues, resources)
        self.by_name = {frame.name: frame.at for frame in self.frames}
        self.held = [list(resources.zero) for _ in self.frames]
        self.firm = [list(resources.zero) for _ in self.frames]
        self.asked = [list(resources.zero) for _ in self.frames]
        self.usage: dict[tuple[str, str], int] = {}

    def fork(self) -> QueueBook:
        """A copy whose amounts can change apart; frames are shared."""
        copy = QueueBook.__new__(QueueBook)
        copy.resources, copy.frames, copy.by_name, copy.usage = self.resources, self.frames, self.by_name, self.usage
        copy.held = [list(amounts) for amounts in self.held]
        copy.firm = [list(amounts) for amounts in self.firm]
        copy.asked = self.asked
        return copy

    def retuned(self, queues: Sequence[Queue]) -> QueueBook | None:
        """The same amounts under new bounds; None where the tree, a scope or the list of resources is another."""
        if sorted(map(_position, queues)) != [_position(frame.queue) for frame in self.frames]:
            return None
        if Resources(queues, ()).names != self.resources.names:
            return None
        copy = self.fork()
        copy.frames = _framed(queues, self.resources)
        return copy

    def set_usage(self, usage: Iterable[QueueUsage]) -> None:
        self.usage = {(entry.queue, entry.resource): entry.usage_ppm for entry in usage}

    def leaf_at(self, name: str) -> int:
        """Where a leaf queue is; -1 where there is none of that name, it is not a leaf, or it hangs on nothing."""
        at = self.by_name.get(name, -1)
        if at < 0 or not self.frames[at].leaf:
            return -1
        root = self.frames[self.frames[at].path[-1]]
        return at if root.queue.parent is None else -1

    def nearest(self, at: int, setting: Callable[[Queue], int | None]) -> int:
        """The value of the queue itself, else of the nearest above it that has one; 0 where none has."""
        values = (setting(self.frames[above].queue) for above in self.frames[at].path)
        return next((value for value in values if value is not None), 0)

    def charge(self, leaf: int, amounts: Amounts, firm: bool, times: int = 1) -> None:
        """Count what a job holds at its queue and at every ancestor; below zero times takes it back."""
        path, held = self.frames[leaf].path, self.held
        if times == 1 and not firm:
            # Written out: this is done for every task placed.
            for at in path:
                held[at][:] = map(add, held[at], amounts)
            return
        for at in path:
            _add(held[at], amounts, times)
            if firm:
                _add(self.firm[at], amounts, times)

    def ask(self, leaf: int, amounts: Amounts, times: int = 1) -> None:
        for at in self.frames[leaf].path:
            _add(self.asked[at], amounts, times)

    def shares(self, total: Sequence[int], usage_weight_milli: int) -> list[list[int]]:
        """The fair share of every queue, per resource."""
        shares = [[0] * len(self.resources.names) for _ in self.frames]
        for position, resource in enumerate(self.resources.names):
            claims = [self._claim(frame, position, resource) for frame in self.frames]
            divided = divide(claims, total[position], self.resources.unit(position), usage_weight_milli)
            for frame in self.frames:
                shares[frame.at][position] = divided[frame.name]
        return shares

    def _claim(self, frame: QueueFrame, position: int, resource: str) -> Claim:
        share = frame.queue.share(resource)
        return Claim(
            name=frame.name,
            parent=self.frames[frame.parent].name if frame.parent >= 0 else None,
            quota=share.quota,
            limit=share.limit,
            weight_milli=share.weight_milli,
            request=self.held[frame.at][position] + self.asked[frame.at][position],
            usage_ppm=self.usage.get((frame.name, resource), 0),
            priority=frame.priority if share.priority is None else share.priority,
            order=frame.order,
        )

    def facts(self) -> tuple[object, ...]:
        return tuple(
            (frame.name, tuple(self.held[frame.at]), tuple(self.firm[frame.at]), tuple(self.asked[frame.at]))
            for frame in self.frames
        )


def _position(queue: Queue) -> tuple[str, str, str]:
    """What other books were made by, besides the bounds: where a queue is, and how far rules of its jobs reach."""
    return queue.name, queue.parent or "", queue.affinity_scope or ""


def _framed(queues: Iterable[Queue], resources: Resources) -> list[QueueFrame]:
    ordered = sorted(queues, key=lambda queue: queue.name)
    frames = [QueueFrame(at, queue, resources) for at, queue in enumerate(ordered)]
    by_name = {frame.name: frame for frame in frames}
    for frame in frames:
        parent = by_name.get(frame.queue.parent or "")
        if parent is not None:
            frame.parent = parent.at
            parent.children.append(frame.at)
            parent.leaf = False
    roots = [frame.at for frame in frames if frame.parent < 0]
    for frame in frames:
        frame.path = tuple(_ancestry(frame, frames))
        frame.alone = len(roots if frame.parent < 0 else frames[frame.parent].children) == 1
    return frames


def _ancestry(frame: QueueFrame, frames: list[QueueFrame]) -> Iterable[int]:
    seen: set[int] = set()
    at = frame.at
    while at >= 0 and at not in seen:
        seen.add(at)
        yield at
        at = frames[at].parent


def _add(into: list[int], amounts: Amounts, times: int) -> None:
    if times == 1:
        into[:] = map(add, into, amounts)
    elif times == -1:
        into[:] = map(sub, into, amounts)
    else:
        into[:] = [have + times * more for have, more in zip(into, amounts, strict=True)]
