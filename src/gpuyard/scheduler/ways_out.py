"""What would let a waiting job start: smaller, fewer, elsewhere, allowed more, or once others have ended.

Place in the flow: explain ─blockers─▶ **ways_out** ─WayOut─▶ Explanation. Candidates are found on drafts (before the
cycle has placed anything, and when it has placed everything), and each is then tried by a complete plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nsmallest
from operator import sub
from typing import Final

import numpy as np

from gpuyard.model.explanation import Edit, Effect, Field, WayKind, WayOut
from gpuyard.model.jobs import Job, Task, TaskGroup, TaskState
from gpuyard.model.plan import Plan
from gpuyard.model.quantities import CPU, GPU, MEMORY, MILLI
from gpuyard.model.reasons import GPU_MEMORY, MIG_PREFIX, NODES, TASKS, Reason, Token
from gpuyard.policies.policy import Policy, Step
from gpuyard.scheduler.bounds import owed_edits, raised
from gpuyard.scheduler.columns import Ints
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.edits import asked_amounts, edited_job, leaf_of
from gpuyard.scheduler.gang import ACTIVE, leaves, required_children
from gpuyard.scheduler.headroom import blockers
from gpuyard.scheduler.jobbook import Waiter, waiter_of
from gpuyard.scheduler.ledger import Ledger
from gpuyard.scheduler.placement import Placer
from gpuyard.scheduler.queuebook import QueueFrame
from gpuyard.scheduler.resources import GPU_AT
from gpuyard.scheduler.shapes import Shape
from gpuyard.scheduler.tryout import Tryout

GIB: Final = 1 << 30
MAX_MODELS_TRIED: Final = 3
MAX_NODES_TRIED: Final = 64
MAX_ENDING: Final = 8
"""A job that starts only once more than so many others have ended is not told which."""

_UNITS: Final = {GPU_MEMORY: 256, CPU: MILLI, MEMORY: GIB}
_PART_MILLI: Final = 50
"""Smaller parts of a GPU are offered in such steps."""

_SIZE: Final = frozenset(
    {Token.TOO_LARGE, Token.NOT_ENOUGH, Token.FRAGMENTED, Token.NO_DOMAIN, Token.OVER_LIMIT, Token.OVER_QUOTA}
)
"""Blockers that say the job asks for too much."""

_SPACE: Final = frozenset({Token.NOT_ENOUGH, Token.FRAGMENTED})
"""Blockers that go away when others make room."""

Takes = Callable[[Job], bool]


class WaysOut:
    """The search for one job that waits."""

    def __init__(self, draft: Draft, policy: Policy, job: Job, why: tuple[Reason, ...], before: Plan) -> None:
        self.draft = draft
        self.ledger: Ledger = draft.ledger
        self.policy = policy
        self.job = job
        self.why = why
        self.tokens = {reason.token for reason in why}
        self.carriers = {carrier for reason in why for carrier in reason.carriers}
        """Jobs of other queues whose rules keep it away."""
        self.waiter = self.ledger.lines.waiters.get(job.id)
        self.tryout = Tryout(self.ledger, policy, job.id, before)
        self._rooms: tuple[Takes, ...] = ()

    def all(self) -> tuple[WayOut, ...]:
        """One way of each kind, the cheapest first."""
        kinds = (
            self._smaller,
            self._fewer_tasks,
            self._other_model,
            self._preemptible,
            self._raised_quota,
            self._raised_limit,
            self._wait,
        )
        found = [way for kind in kinds if (way := kind()) is not None]
        return tuple(sorted(found, key=_price))

    def _first(self, kind: WayKind, candidates: Iterable[tuple[Edit, ...]]) -> WayOut | None:
        return next((way for edits in candidates if (way := self.tryout.way(kind, edits))), None)

    @property
    def rooms(self) -> tuple[Takes, ...]:
        """Where a candidate may have its place, the most hopeful first: made when first needed."""
        if not self._rooms:
            fresh, full = Room(Draft(self.ledger, self.policy)), Room(self.draft)
            owed = (full.owes,) if self._takes_from_others() else ()
            self._rooms = (fresh.takes, full.takes, *owed)
        return self._rooms

    def _takes_from_others(self) -> bool:
        return Step.RECLAIM in self.policy.steps or Step.PREEMPT in self.policy.steps

    # A smaller job -----------------------------------------------------------------------------------------------

    def _smaller(self) -> WayOut | None:
        """Tasks that ask for less of what is short."""
        if self.waiter is None or not self.tokens & _SIZE:
            return None
        task = max(self.waiter.chunk.all_tasks(), key=lambda task: self.draft.shapes.of(task.request).asked)
        short = [resource for resource in asked_amounts(task.request) if self._is_short(resource)]
        candidates = (_largest(self.job, task, short, takes) for takes in self.rooms) if short else ()
        return self._first(WayKind.SMALLER, candidates)

    def _is_short(self, resource: str) -> bool:
        gpus = resource in (GPU, GPU_MEMORY) or resource.startswith(MIG_PREFIX)
        named = {reason.resource for reason in self.why if reason.token in _SIZE}
        return resource in named or (gpus and any(name.partition("/")[0] in (GPU, TASKS, NODES) for name in named))

    def _fewer_tasks(self) -> WayOut | None:
        """A gang of which fewer tasks start together."""
        if self.job.group.node_each:
            return self._fewer_nodes()
        if self.waiter is None:
            return self._first(WayKind.FEWER_TASKS, [self._gang_of_those_there()])
        counts = {chunk.name: (active, there) for chunk, active, there in _counts(self.job)}
        leaf = max(
            (leaf for leaf in leaves(self.job.group) if leaf.min_tasks > counts[leaf.name][0] + 1),
            key=lambda leaf: leaf.min_tasks,
            default=None,
        )
        if leaf is None or not self.tokens & _SIZE:
            return None
        active, there = counts[leaf.name]
        field = Field.TASKS if there == leaf.min_tasks else Field.GANG

        def edits(count: int) -> tuple[Edit, ...]:
            before = there if field is Field.TASKS else leaf.min_tasks
            return (Edit(field, self.job.id, leaf.name, TASKS, before, count),)

        counted = (_most(active + 1, leaf.min_tasks - 1, self._takes_with(edits, takes)) for takes in self.rooms)
        return self._first(WayKind.FEWER_TASKS, (edits(count) for count in counted if count))

    def _fewer_nodes(self) -> WayOut | None:
        """Of a job that lies on whole nodes and has not started: fewer of them."""
        if not self.tokens & _SIZE or any(task.state is not TaskState.PENDING for task in self.job.tasks):
            return None
        before = required_children(self.job.group)

        def edits(count: int) -> tuple[Edit, ...]:
            return (Edit(Field.NODES, self.job.id, resource=NODES, before=before, after=count),)

        counted = (_most(1, before - 1, self._takes_with(edits, takes)) for takes in self.rooms)
        return self._first(WayKind.FEWER_TASKS, (edits(count) for count in counted if count))

    def _takes_with(self, edits: Callable[[int], tuple[Edit, ...]], takes: Takes) -> Callable[[int], bool]:
        return lambda amount: takes(edited_job(self.job, edits(amount)))

    def _gang_of_those_there(self) -> tuple[Edit, ...]:
        """For a gang that lacks tasks: as many as there are."""
        lacking = [(leaf, there) for leaf, _, there in _counts(self.job) if 0 < there < leaf.min_tasks]
        return tuple(Edit(Field.GANG, self.job.id, leaf.name, TASKS, leaf.min_tasks, there) for leaf, there in lacking)

    def _other_model(self) -> WayOut | None:
        """GPUs of another model than the job names."""
        if self.waiter is None:
            return None
        named = {leaf_of(self.job, task): task.request.where.gpu_models for task in self.waiter.chunk.all_tasks()}
        groups = {group: models for group, models in named.items() if models}
        others = [model for model in self.draft.eligibility.models if all(model not in m for m in groups.values())]
        if not groups:
            return None
        choices = [tuple(Edit(Field.MODEL, self.job.id, group, models=(m,)) for group in groups) for m in others]
        fitting = [edits for takes in self.rooms for edits in choices if takes(edited_job(self.job, edits))]
        return self._first(WayKind.OTHER_MODEL, list(dict.fromkeys(fitting))[:MAX_MODELS_TRIED])

    def _preemptible(self) -> WayOut | None:
        if self.job.preemptible or Token.OVER_QUOTA not in self.tokens:
            return None
        return self.tryout.way(WayKind.PREEMPTIBLE, (Edit(Field.PREEMPTIBLE, self.job.id, before=0, after=1),))

    # More for its queue ------------------------------------------------------------------------------------------

    def _raised_quota(self) -> WayOut | None:
        """More owed to its queue, where it may not borrow, or may take from others what it is owed."""
        if self.waiter is None:
            return None
        if Token.OVER_QUOTA in self.tokens:
            return self._first(WayKind.RAISE_QUOTA, self._bounds((Token.OVER_QUOTA, Token.OVER_LIMIT)))
        from_others = self.tokens & _SPACE and self._others_borrow(self.waiter)
        if Token.OVER_LIMIT in self.tokens or not (from_others or self.carriers):
            return None
        return self.tryout.way(WayKind.RAISE_QUOTA, owed_edits(self.draft, self.waiter))

    def _others_borrow(self, waiter: Waiter) -> bool:
        """Whether there is anybody to take back from: a search that can find nobody may look for very long."""
        books = self.ledger.queues
        others = (frame for frame in books.frames if frame.leaf and frame.at != waiter.leaf)
        quotas = ((frame.quota[GPU_AT], books.held[frame.at][GPU_AT]) for frame in others)
        return self._takes_from_others() and any(quota is not None and held > quota for quota, held in quotas)

    def _raised_limit(self) -> WayOut | None:
        if Token.OVER_LIMIT not in self.tokens or Token.OVER_QUOTA in self.tokens:
            return None
        return self._first(WayKind.RAISE_LIMIT, self._bounds((Token.OVER_LIMIT,)))

    def _bounds(self, tokens: tuple[Token, ...]) -> Iterator[tuple[Edit, ...]]:
        """Just enough for the job; for it and all that go before it; for everyone who waits."""
        if self.waiter is None:
            return
        over = [reason for reason in self.why if reason.token in tokens]
        mine, books = self.waiter.asked, self.ledger.queues
        ahead = asked_ahead(self.ledger, self.waiter)
        yield raised(self.draft, over, lambda at: books.resources.zero)
        yield raised(self.draft, over, lambda at: ahead)
        yield raised(self.draft, over, lambda at: list(map(sub, books.asked[at], mine)))

    # Patience ----------------------------------------------------------------------------------------------------

    def _wait(self) -> WayOut | None:
        """Which running jobs would have to end first, where that is a few."""
        hopeless = any(reason.never for reason in self.why)
        if self.waiter is None or hopeless or not (self.tokens & (_SPACE | {Token.OVER_LIMIT}) or self.carriers):
            return None
        ending = {*self._under_limits(), *(self._in_the_way(self.waiter) if self.tokens & _SPACE else self.carriers)}
        if not ending or len(ending) > MAX_ENDING or self.job.id in ending:
            return None
        return self.tryout.way(WayKind.WAIT, tuple(Edit(Field.ENDS, id) for id in sorted(ending)))

    def _under_limits(self) -> Iterator[str]:
        """Running jobs of the lowest queue at its limit, the first to end: what they free also counts further up."""
        over = [reason for reason in self.why if reason.token is Token.OVER_LIMIT and reason.resource == GPU]
        if over:
            lowest = max(over, key=lambda reason: len(self._frame(reason.subject).path))
            missing = max(reason.need - reason.have for reason in over)
            yield from _until(missing, self._holding(lowest.subject)) or ()

    def _frame(self, queue: str) -> QueueFrame:
        books = self.ledger.queues
        return books.frames[books.by_name[queue]]

    def _holding(self, queue: str) -> list[tuple[int, str]]:
        """GPU milli that the running jobs of a queue or below it hold: of the few that end first."""
        at = self._frame(queue).at
        under = {frame.name for frame in self.ledger.queues.frames if at in frame.path}
        running = [job for job in self.ledger.jobs.values() if job.queue in under and _runs(job)]
        return [(_held_milli(job.tasks), job.id) for job in nsmallest(MAX_ENDING, running, key=_end)]

    def _in_the_way(self, waiter: Waiter) -> Iterator[str]:
        """On the nodes that lack least: the first to end, until there is room. Looks at GPUs only."""
        shape = max(waiter.shapes, key=lambda shape: shape.asked)
        each, left = shape.at_least[GPU_AT], len(waiter.shapes)
        if not each:
            return
        free, capacity = self._gpus(shape)
        roomiest = np.argsort(np.where(capacity >= each, -free, each), kind="stable")
        for position in roomiest[: left + MAX_NODES_TRIED].tolist():
            here = min(left, int(capacity[position]) // each)
            ending = _until(here * each - int(free[position]), self._on(position))
            if here and ending is not None:
                left -= here
                yield from ending
            if not left:
                return

    def _gpus(self, shape: Shape) -> tuple[Ints, Ints]:
        """GPU milli that the plan leaves free on each node, and all there are, where the shape may go; else none."""
        columns = self.draft.nodes.columns
        columns.sync()
        mask = self.draft.eligibility.devices(shape.request.where.gpu_models)[1]
        capacity = np.bitwise_count(mask).astype(np.int64) * MILLI
        whole = np.bitwise_count(columns.free & mask).astype(np.int64) * MILLI
        free = whole if shape.whole else np.minimum(columns.gpu_milli, capacity)
        usable = self.draft.eligibility.nodes(shape.request.where)
        return np.where(usable, free, 0), np.where(usable, capacity, 0)

    def _on(self, position: int) -> list[tuple[int, str]]:
        on_node: dict[str, tuple[Job, list[Task]]] = {}
        for task, job in self.ledger.nodes.tasks_on[position]:
            on_node.setdefault(job.id, (job, []))[1].append(task)
        ordered = sorted(on_node.values(), key=lambda entry: _end(entry[0]))
        return [(amount, job.id) for job, tasks in ordered if (amount := _held_milli(tasks))]


class Room:
    """What would have a place on a draft, as it stands."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.placer = Placer(draft)

    def takes(self, job: Job) -> bool:
        waiter = self._waiter(job)
        if waiter is None:
            return False
        mark = self.draft.mark()
        placed = self.placer.place(waiter)
        self.draft.rollback(mark)
        return placed

    def owes(self, job: Job) -> bool:
        """Whether its queue is owed so many GPUs: it may then take them from those who borrow."""
        waiter = self._waiter(job)
        if waiter is None:
            return False
        queues = self.draft.queues
        path = [(queues.frames[at].quota[GPU_AT], queues.held[at][GPU_AT]) for at in queues.frames[waiter.leaf].path]
        return all(quota is None or held + waiter.asked[GPU_AT] <= quota for quota, held in path)

    def _waiter(self, job: Job) -> Waiter | None:
        """What the job waits for, where its queues allow it."""
        waiter = waiter_of(job, self.draft.queues.leaf_at(job.queue), self.draft.shapes)
        if not isinstance(waiter, Waiter):
            return None
        forbidden = blockers(self.draft.queues, waiter.leaf, waiter.at_least, waiter.firm)
        return None if forbidden else waiter


def asked_ahead(ledger: Ledger, waiter: Waiter) -> tuple[int, ...]:
    """What the jobs of its queue that go before a waiter ask for."""
    total = list(ledger.shapes.resources.zero)
    for line, count in ledger.lines.before(waiter):
        first = ledger.lines.waiters[line[0][1]]
        total = [have + count * more for have, more in zip(total, first.asked, strict=True)]
    return tuple(total)


def _price(way: WayOut) -> tuple[int, int, int, int]:
    """Whom it costs comes first: those who must stop, those who must move, those who must wait."""
    counts = [sum(cost.effect is effect for cost in way.costs) for effect in Effect]
    return counts[0], counts[1], counts[2], list(WayKind).index(way.kind)


# Searching -------------------------------------------------------------------------------------------------------


def _largest(job: Job, task: Task, resources: list[str], takes: Takes) -> tuple[Edit, ...]:
    """The most that tasks like this one may ask for of what is short: all of it first lowered, then each raised."""
    asked = asked_amounts(task.request)
    units = {resource: _unit(resource, asked[resource]) for resource in resources}
    chosen = dict(units)
    if any(units[resource] >= asked[resource] for resource in resources):
        return ()

    def with_amounts(amounts: Mapping[str, int]) -> tuple[Edit, ...]:
        group = leaf_of(job, task)
        return tuple(Edit(Field.ASKS, job.id, group, name, asked[name], amount) for name, amount in amounts.items())

    for resource in resources:
        unit = units[resource]

        def fits(steps: int, resource: str = resource, unit: int = unit) -> bool:
            return takes(edited_job(job, with_amounts({**chosen, resource: steps * unit})))

        most = _most(1, (asked[resource] - 1) // unit, fits)
        if not most:
            return ()
        chosen[resource] = most * unit
    return with_amounts(chosen)


def _unit(resource: str, amount: int) -> int:
    """The step in which a smaller amount is looked for."""
    if resource == GPU:
        return MILLI if amount >= MILLI else _PART_MILLI
    unit = _UNITS.get(resource, 1)
    return unit if unit < amount else max(1, amount // 8)


def _most(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest number that fits, where less never hurts; 0 where not even the smallest does."""
    if low > high or not fits(low):
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _counts(job: Job) -> Iterator[tuple[TaskGroup, int, int]]:
    """Each leaf group of a job: how many of its tasks have a place, and how many have one or wait for it."""
    for leaf in leaves(job.group):
        mine = [task.state for task in job.tasks if leaf_of(job, task) == leaf.name]
        active = sum(state in ACTIVE for state in mine)
        yield leaf, active, active + mine.count(TaskState.PENDING)


def _held_milli(tasks: Iterable[Task]) -> int:
    return sum(share.gpu_milli for task in tasks if task.state is TaskState.RUNNING for share in task.shares)


def _runs(job: Job) -> bool:
    return any(task.state is TaskState.RUNNING for task in job.tasks)


def _end(job: Job) -> tuple[bool, int, str]:
    """Those whose end is known and near come first, then those that have run longest."""
    started = job.tasks[0].started_at_ms
    lasts = job.estimate_ms if job.estimate_ms is not None else job.run_limit_ms
    return lasts is None, started + (lasts or 0), job.id


def _until(missing: int, holding: list[tuple[int, str]]) -> list[str] | None:
    """The first jobs that together hold what is missing; None where all of them do not."""
    ending: list[str] = []
    for amount, id in holding:
        if missing <= 0:
            break
        missing -= amount
        ending.append(id)
    return ending if missing <= 0 else None
