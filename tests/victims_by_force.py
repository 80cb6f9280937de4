"""The best any search for victims could find on a tiny cluster: every set of blocks is looked at.

*The sets the order allows*: blocks are counted off in the order they must give way; the shortest run of them of which
some legal set makes room counts. Whoever ranks with its last block (same queue, job priority and kind of block) may
stand in for what was counted off of that rank; no rank gives more than was counted off of it. The best legal set of
these is the one with the smallest shortfall, then the least work lost, then the fewest blocks.

Shares nothing with the scheduler but the model's values and fair shares. Only GPUs are scarce here, jobs are plain or
elastic gangs, and one job waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from gpuyard.model.jobs import Job, Task, TaskState
from gpuyard.model.quantities import GPU, MILLI
from gpuyard.model.queues import Queue
from gpuyard.model.snapshot import Snapshot
from tests.brute_force import Piece, arrangement_exists, canonical

Key = tuple[object, ...]
Rank = tuple[str, int, bool]
"""Queue, job priority, surplus or not."""
Racks = tuple[tuple[int, ...], ...]
"""What is free of each device, by node and device."""

TOP: Final = ""
"""Stands for what is above all queues."""


class Block(NamedTuple):
    """What a job gives up at a time: one surplus task, else all that is left of it."""

    job: Job
    tasks: tuple[Task, ...]
    step: int
    """How many blocks of its job go before it."""
    surplus: bool

    @property
    def gpu_milli(self) -> int:
        return sum(share.gpu_milli for task in self.tasks for share in task.shares)


class Found(NamedTuple):
    """A set of blocks that makes room, and what it costs: the smaller the better."""

    shortfall_milli: int
    work: int
    size: int
    last: int
    """The place of its last block in the order."""
    blocks: tuple[Block, ...]

    @property
    def price(self) -> tuple[int, int, int]:
        return self.shortfall_milli, self.work, self.size


# -------------------------------------------------------------------------------------------------------- blocks


def blocks_of(job: Job) -> list[Block]:
    running = [task for task in job.tasks if task.state is TaskState.RUNNING]
    above = len(running) - job.group.min_tasks
    blocks = [Block(job, (task,), step, True) for step, task in enumerate(reversed(running[len(running) - above :]))]
    return [*blocks, Block(job, tuple(running[: len(running) - above]), above, False)]


def losing_since_ms(job: Job) -> int:
    started_at_ms = min(task.started_at_ms for task in job.tasks if task.state is TaskState.RUNNING)
    return max(started_at_ms, job.checkpoint_at_ms or 0) - job.restart_ms


def work_lost(snapshot: Snapshot, blocks: Sequence[Block]) -> int:
    return sum((block.gpu_milli + 1) * (snapshot.now_ms - losing_since_ms(block.job)) for block in blocks)


def yielding_order(blocks: Sequence[Block]) -> list[Block]:
    """Inside a queue: low priority, then surplus, then whoever loses least per GPU, then the newest."""

    def rank(block: Block) -> tuple[int, bool, int, int, str]:
        job = block.job
        return -job.priority, block.surplus, losing_since_ms(job), job.submitted_at_ms, job.id

    in_turn = sorted(blocks, key=lambda block: block.step)
    return sorted(in_turn, key=rank, reverse=True)


def closed_sets(blocks: Sequence[Block]) -> Iterator[tuple[int, ...]]:
    """Every set in which whatever a job gives up first goes too, by position."""
    at = {(block.job.id, block.step): position for position, block in enumerate(blocks)}
    for size in range(1, len(blocks) + 1):
        for chosen in combinations(range(len(blocks)), size):
            inside = set(chosen)
            if all(not blocks[p].step or at[blocks[p].job.id, blocks[p].step - 1] in inside for p in chosen):
                yield chosen


# ---------------------------------------------------------------------------------------------------------- room


def free_devices(snapshot: Snapshot, without: Sequence[Task]) -> list[list[int]]:
    gone = {task.id for task in without}
    free = [[MILLI] * len(node.devices) for node in snapshot.nodes]
    position = {node.name: index for index, node in enumerate(snapshot.nodes)}
    for job in snapshot.jobs:
        for task in job.tasks:
            if task.state is TaskState.RUNNING and task.id not in gone:
                for share in task.shares:
                    free[position[task.node]][share.device] -= share.gpu_milli
    return free


def pieces(tasks: Sequence[Task]) -> list[Piece]:
    return [Piece(task.request.devices, task.request.gpu_milli) for task in tasks]


def makes_room(snapshot: Snapshot, blocks: Sequence[Block], job: Job) -> bool:
    free = free_devices(snapshot, [task for block in blocks for task in block.tasks])
    return arrangement_exists(canonical(free), pieces(job.tasks))


def all_needed(snapshot: Snapshot, blocks: Sequence[Block], job: Job) -> bool:
    """Whether nobody could have stayed: what is not needed for room does not go, whatever else it would be good for."""
    last = {block.job.id: block for block in sorted(blocks, key=lambda block: block.step)}
    return not any(makes_room(snapshot, [b for b in blocks if b != one], job) for one in last.values())


# -------------------------------------------------------------------------------------------------------- queues


class Tree:
    """Queues, what they hold, and how they rank: `docs/fair-share.md`, for GPUs alone."""

    def __init__(self, snapshot: Snapshot, fair: dict[str, int]) -> None:
        self.queues = {queue.name: queue for queue in snapshot.queues}
        self.fair = fair
        self.held = dict.fromkeys(self.queues, 0)
        for job in snapshot.jobs:
            milli = sum(share.gpu_milli for task in job.tasks for share in task.shares)
            self.add(self.held, job.queue, milli)

    def path(self, name: str) -> list[str]:
        """A queue and those above it."""
        parent = self.queues[name].parent
        return [name, *(self.path(parent) if parent else [])]

    def add(self, held: dict[str, int], queue: str, milli: int) -> None:
        for name in self.path(queue):
            held[name] += milli

    def quota(self, name: str) -> int:
        quota = self.queues[name].share(GPU).quota
        assert quota is not None, "in these cases every queue is owed some number"
        return quota

    def allowance(self, name: str) -> int:
        return max(self.quota(name), self.fair[name])

    def key(self, name: str, held_milli: int, ranked_milli: int, borrows: bool) -> Key:
        """Lower is served first, higher gives first."""
        allowed = self.allowance(name)
        queue: Queue = self.queues[name]
        share = ranked_milli / (allowed or 1), held_milli / (allowed or 1)
        return borrows, -queue.priority, not allowed and held_milli > 0, *share, allowed, queue.order, name

    def children(self, name: str) -> list[str]:
        return [queue.name for queue in self.queues.values() if (queue.parent or TOP) == name]

    # Who gives first

    def giving_order(self, blocks: Sequence[Block]) -> list[Block]:
        """Block by block from the queue most above what it should have, reckoned anew after each."""
        waiting = {name: yielding_order([b for b in blocks if b.job.queue == name]) for name in self.queues}
        left = dict(self.held)
        ordered: list[Block] = []
        while any(waiting.values()):
            block = waiting[self._giver(TOP, waiting, left)].pop(0)
            self.add(left, block.job.queue, -block.gpu_milli)
            ordered.append(block)
        return ordered

    def _giver(self, at: str, waiting: dict[str, list[Block]], left: dict[str, int]) -> str:
        open_children = [name for name in self.children(at) if self._any_below(name, waiting)]
        if not open_children:
            return at

        def key(name: str) -> Key:
            held = self.held[name]
            *above, allowed, order, _ = self.key(name, held, left[name], held > self.quota(name))
            # Of those equally far above the one that loses least, and only then by size and age.
            return *above, self._losing_since_ms(name, waiting), allowed, order, name

        return self._giver(max(open_children, key=key), waiting, left)

    def _losing_since_ms(self, name: str, waiting: dict[str, list[Block]]) -> int:
        """Of the next blocks of a queue and those below it, the latest since which work is lost."""
        below = [self._losing_since_ms(child, waiting) for child in self.children(name)]
        return max([*(losing_since_ms(block.job) for block in waiting[name][:1]), *below], default=-(10**18))

    def _any_below(self, name: str, waiting: dict[str, list[Block]]) -> bool:
        return bool(waiting[name]) or any(self._any_below(child, waiting) for child in self.children(name))

    # What is legal

    def legal(self, chosen: Sequence[Block], job: Job, milli: int, order: dict[Block, int]) -> bool:
        """Each block, small ones first, comes from queues that hold more than they are owed before it goes."""
        left = dict(self.held)
        mine = self.path(job.queue)
        for block in sorted(chosen, key=lambda block: (block.gpu_milli, order[block])):
            theirs = [name for name in self.path(block.job.queue) if name not in mine]
            taker = next(name for name in mine if self.queues[name].parent == self.queues[theirs[-1]].parent)
            within = self.held[taker] + milli <= self.quota(taker)
            bounds = [self.quota(name) for name in theirs]
            if not within:
                bounds[-1] = self.allowance(theirs[-1])
            if any(left[name] <= bound for name, bound in zip(theirs, bounds, strict=True)):
                return False
            self.add(left, block.job.queue, -block.gpu_milli)
        return self._fair_to_siblings(left, mine, milli)

    def _fair_to_siblings(self, left: dict[str, int], mine: list[str], milli: int) -> bool:
        """Nobody climbs above the fair share at the cost of a sibling that is less above its own."""
        for name in mine:
            taken = left[name] + milli
            losers = [one for one in self.children(self.queues[name].parent or TOP) if left[one] < self.held[one]]
            for loser in losers:
                above = taken > self.fair[name] and self.fair[loser] > 0 and loser != name
                if above and taken * self.fair[loser] >= left[loser] * self.fair[name]:
                    return False
        return True

    def shortfall(self, chosen: Sequence[Block]) -> int:
        lost: dict[str, int] = {}
        for block in chosen:
            lost[block.job.queue] = lost.get(block.job.queue, 0) + block.gpu_milli
        return sum(max(0, self.quota(name) - self.held[name] + milli) for name, milli in lost.items())

    # Who is served first

    def served_first(self, chosen: Sequence[Block], job: Job, milli: int) -> bool:
        """Whether the job's turn comes before that of everyone who gave way for it."""
        left = dict(self.held)
        for block in chosen:
            self.add(left, block.job.queue, -block.gpu_milli)
        waiting = {job.queue: [((-job.priority, 0, job.submitted_at_ms, job.id), milli)]}
        for victim in {block.job.id: block.job for block in chosen}.values():
            waiting.setdefault(victim.queue, []).append(waits_again(victim, chosen))
        first = self._first(TOP, waiting, left)
        return first is not None and first[0][3] == job.id

    def _first(self, at: str, waiting: dict[str, list[Waits]], left: dict[str, int]) -> Waits | None:
        if at in waiting:
            return min(waiting[at])
        best: list[tuple[Key, Waits]] = []
        for name in self.children(at):
            first = self._first(name, waiting, left)
            if first is not None:
                after = left[name] + first[1]
                best.append((self.key(name, left[name], after, after > self.quota(name)), first))
        return min(best)[1] if best else None


Waits = tuple[tuple[int, int, int, str], int]
"""A job's rank in its queue, and the GPU milli it would take next."""


def waits_again(job: Job, chosen: Sequence[Block]) -> Waits:
    gone = [task for block in chosen if block.job.id == job.id for task in block.tasks]
    active = sum(task.state is TaskState.RUNNING for task in job.tasks) - len(gone)
    least = job.group.min_tasks
    stage = 0 if active < least else 1 if active == least else 2
    tasks = least - active if active < least else 1
    each = gone[0].request.devices * gone[0].request.gpu_milli
    return (-job.priority, stage, job.submitted_at_ms, job.id), tasks * each


# -------------------------------------------------------------------------------------------------------- search


def reclaim_sets(snapshot: Snapshot, job: Job, fair: dict[str, int]) -> tuple[list[Block], list[Found]]:
    """The order in which blocks give way to a job of another queue, and every set that may and makes room."""
    tree = Tree(snapshot, fair)
    milli = sum(piece.total for piece in pieces(job.tasks))
    candidates = [block for other in yielders(snapshot) if other.queue != job.queue for block in blocks_of(other)]
    ordered = tree.giving_order(candidates)
    if tree.held[job.queue] + milli > fair[job.queue]:
        return ordered, []
    order = {block: position for position, block in enumerate(ordered)}
    found = []
    for positions in closed_sets(ordered):
        chosen = tuple(ordered[position] for position in positions)
        legal = tree.legal(chosen, job, milli, order) and tree.served_first(chosen, job, milli)
        if legal and makes_room(snapshot, chosen, job) and all_needed(snapshot, chosen, job):
            work = work_lost(snapshot, chosen)
            found.append(Found(tree.shortfall(chosen), work, len(chosen), positions[-1], chosen))
    return ordered, found


def preempt_sets(snapshot: Snapshot, job: Job) -> tuple[list[Block], list[Found]]:
    """The same inside one queue."""
    lower = [one for one in yielders(snapshot) if one.queue == job.queue and one.priority < job.priority]
    ordered = yielding_order([block for one in lower for block in blocks_of(one)])
    found = []
    for positions in closed_sets(ordered):
        chosen = tuple(ordered[position] for position in positions)
        if makes_room(snapshot, chosen, job):
            found.append(Found(0, work_lost(snapshot, chosen), len(chosen), positions[-1], chosen))
    return ordered, found


def yielders(snapshot: Snapshot) -> list[Job]:
    return [job for job in snapshot.jobs if job.preemptible and job.tasks[0].state is TaskState.RUNNING]


def best_allowed(ordered: Sequence[Block], found: Sequence[Found]) -> Found | None:
    """The best of the sets the order allows."""
    if not found:
        return None
    last = min(one.last for one in found)
    counted = milli_by_rank(ordered[: last + 1])
    allowed = [one for one in found if within(one, counted, set(ordered[: last + 1]), rank_of(ordered[last]))]
    return min(allowed, key=lambda one: one.price)


def within(found: Found, counted: Counter[Rank], run: set[Block], last: Rank) -> bool:
    """Whether a set takes only what was counted off, or what stands in for it in the last rank."""
    known = all(block in run or rank_of(block) == last for block in found.blocks)
    return known and milli_by_rank(found.blocks) <= counted


def rank_of(block: Block) -> Rank:
    return block.job.queue, block.job.priority, block.surplus


def milli_by_rank(blocks: Sequence[Block]) -> Counter[Rank]:
    milli: Counter[Rank] = Counter()
    for block in blocks:
        milli[rank_of(block)] += block.gpu_milli
    return milli


# --------------------------------------------------------------------------------------------------------- moves


def move_sets(snapshot: Snapshot, job: Job) -> list[Found]:
    """Every set of blocks that can be moved, one task after the other, so that the job fits."""
    movable = [block for one in yielders(snapshot) if one.movable for block in blocks_of(one)]
    found = []
    for positions in closed_sets(movable):
        chosen = tuple(movable[position] for position in positions)
        if makes_room(snapshot, chosen, job) and can_move(snapshot, chosen, job):
            found.append(Found(0, work_lost(snapshot, chosen), len(chosen), positions[-1], chosen))
    return found


def can_move(snapshot: Snapshot, chosen: Sequence[Block], job: Job) -> bool:
    """Whether some order and some places exist in which all are moved and the job then fits."""
    names = {node.name: index for index, node in enumerate(snapshot.nodes)}
    tasks = tuple(task for block in chosen for task in block.tasks)
    racks = tuple(tuple(node) for node in free_devices(snapshot, ()))
    return move_search(racks, tasks, tuple(pieces(job.tasks)), names, set())


def move_search(
    racks: Racks,
    tasks: tuple[Task, ...],
    wanted: tuple[Piece, ...],
    names: dict[str, int],
    dead: set[tuple[Racks, tuple[str, ...]]],
) -> bool:
    if not tasks:
        return arrangement_exists(canonical(racks), wanted)
    state = racks, tuple(task.id for task in tasks)
    if state in dead:
        return False
    for index, task in enumerate(tasks):
        others = (*tasks[:index], *tasks[index + 1 :])
        for after in moves(racks, task, names):
            if move_search(after, others, wanted, names, dead):
                return True
    dead.add(state)
    return False


def moves(racks: Racks, task: Task, names: dict[str, int]) -> Iterator[Racks]:
    """Every way to place one task once it has left its place. It may stay, where the rest of its gang moves."""
    devices_held = [share.device for share in task.shares]
    left = booked(racks, names[task.node], devices_held, task.request.gpu_milli)
    for node, devices in enumerate(left):
        usable = [device for device, free in enumerate(devices) if free >= task.request.gpu_milli]
        for chosen in combinations(usable, task.request.devices):
            yield booked(left, node, chosen, -task.request.gpu_milli)


def booked(racks: Racks, node: int, devices: Sequence[int], milli: int) -> Racks:
    changed = tuple(free + milli * (device in devices) for device, free in enumerate(racks[node]))
    return (*racks[:node], changed, *racks[node + 1 :])
