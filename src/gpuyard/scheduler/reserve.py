"""Keep a start for a job that has to wait, and let others fill in around it.

Place in the flow: `allocate` hands over each job it could not place, in turn; where it is known when running jobs end,
the first of them (or many: `Backfill`) is given the earliest start at which the ordinary placement finds places for it.
Nothing of this is in the plan: starts are reckoned anew each cycle. While one is kept, every placement of the cycle
goes through it: a job that ends by then need only fit now; any other must also fit beside what is kept.
Invariant: nothing a cycle places on free room is in the way, at its start, of a job whose start is kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from gpuyard.model.jobs import Job, TaskState
from gpuyard.policies.policy import Backfill
from gpuyard.scheduler.draft import Draft, Eviction, Holding, Left, Placed
from gpuyard.scheduler.endings import NEVER, end_ms, freeing_ms, planned_ms
from gpuyard.scheduler.fit import FitTable, LaterFit
from gpuyard.scheduler.gang import ACTIVE
from gpuyard.scheduler.headroom import blockers
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.nodebook import NodeBook
from gpuyard.scheduler.nodestate import Booked, NodeState
from gpuyard.scheduler.placement import Placer
from gpuyard.scheduler.queuebook import QueueBook
from gpuyard.scheduler.resources import Amounts
from gpuyard.scheduler.slots import SlotBound

MAX_STEPS: Final = 60_000
"""How many tasks a cycle takes off the books, in all, while it looks whether jobs would fit at moments to come."""

MAX_REFUSED: Final = 16
"""So many kinds of jobs whose start cannot be told are looked at in a cycle before it keeps no more starts."""


class Ending(NamedTuple):
    """One task whose end is known, or that stands for one whose start is kept."""

    end_ms: int
    leaf: int
    firm: bool
    holding: Holding


class Start:
    """A start that is kept for one job: when, until when, and where."""

    __slots__ = ("end_ms", "places", "queues", "start_ms", "states", "waiter")

    def __init__(self, waiter: Waiter, start_ms: int, end_ms: int, places: list[Ending]) -> None:
        self.waiter = waiter
        self.start_ms = start_ms
        self.end_ms = end_ms
        self.places = places
        self.states: dict[int, NodeState] = {}
        """Nodes on which something is kept at this moment, as they will then be with all of it."""
        self.queues: QueueBook
        """What queues will then hold, with everything that is kept."""

    def copy(self) -> Start:
        other = Start(self.waiter, self.start_ms, self.end_ms, self.places)
        other.states, other.queues = self.states.copy(), self.queues.fork()
        return other

    def covers(self, moment_ms: int) -> bool:
        return self.start_ms <= moment_ms < self.end_ms


by_start = attrgetter("start_ms")
by_end = attrgetter("end_ms")


class Reserve:
    """The starts one cycle keeps."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.now_ms = draft.ledger.now_ms
        self.starts: list[Start] = []
        """Those that bind at this moment, the soonest first."""
        self._moments: list[int] = []
        """When they are."""
        self.in_turn: list[Start] = []
        """All of them, in the order in which their jobs had their turns."""
        self._most = _most_starts(draft)
        self._steps_left = MAX_STEPS
        self._refused: set[object] = set()
        """Kinds of jobs for which no start can be told."""
        self._tables: dict[int, tuple[FitTable, LaterFit]] = {}
        """By how many of the starts bind."""
        self._undos: list[list[Callable[[], None]]] = []
        """For each thing the draft has done since, how to take back what that meant here."""
        self._running: list[tuple[int, Job]] = []
        """Jobs whose end is known, the soonest first: filled when first asked for."""
        self._tasks_of: dict[str, list[Ending]] = {}

    # Whose start is kept -----------------------------------------------------------------------------------------

    @property
    def keeps_more(self) -> bool:
        return len(self.in_turn) < self._most and len(self._refused) < MAX_REFUSED

    def keep(self, waiter: Waiter) -> bool:
        """Keep the earliest start there is for a job that cannot start now, where the policy and its blockers allow."""
        kind = (waiter.leaf, waiter.firm, waiter.signature)
        if not self.keeps_more or kind in self._refused or not self._may_have_one(waiter):
            return False
        start = _Timeline(self, waiter).earliest()
        if start is None:
            self._refused.add(kind)
            return False
        self._add(start)
        return True

    def _may_have_one(self, waiter: Waiter) -> bool:
        """Only what must start together gets one, and not what its own queue, or rules about neighbours, hold back."""
        if waiter.rank[1] or any(shape.ruled for shape in waiter.shapes):
            return False
        # While only some nodes are used, not to fit there means nothing yet.
        if self._steps_left <= 0 or self.draft.among is not None:
            return False
        return not blockers(self.draft.queues, waiter.leaf, waiter.at_least, waiter.firm)

    def _add(self, start: Start) -> None:
        for other in self.starts:
            if start.start_ms < other.start_ms < start.end_ms:
                for place in start.places:
                    self._take_beside(other, place)
        self._bind_to(sorted([*self.starts, start], key=by_start))
        self.in_turn.append(start)
        if self.draft.reserved is None:
            self._tables[0] = (self.draft.fit, self.draft.fit_later)
            self.draft.reserved = self
        self._forget_tables()

    def look_from(self, moment_ms: int, coming: list[Start]) -> None:
        """On a draft of a moment to come: keep what was kept for later than that, whatever is tried meanwhile."""
        self.now_ms = moment_ms
        self._bind_to([start.copy() for start in coming])
        self._tables[0] = (self.draft.fit, self.draft.fit_later)
        self.draft.reserved = self

    def _take_beside(self, other: Start, place: Ending) -> None:
        """Count on a kept place being taken at the start of another that is kept."""
        holding = place.holding
        position = holding.position
        state = other.states.get(position)
        if state is None:
            ended = [ending for ending in self._on(position) if ending.end_ms <= other.start_ms]
            state = self.without(position, ended)
        other.states[position] = state.less(holding.task.request, holding.shares, self.draft.nodes.frames[position])
        other.queues.charge(place.leaf, holding.amounts, place.firm)

    def step(self, count: int) -> bool:
        """Whether so many more steps are within what a cycle may do."""
        self._steps_left -= count
        return self._steps_left >= 0

    # What is known about ends ------------------------------------------------------------------------------------

    def ending_jobs(self) -> list[tuple[int, Job | Placed]]:
        """Whatever runs or was just placed and has a known end, the soonest first."""
        if not self._running:
            self._running = sorted(_running(self.draft), key=itemgetter(0))
        just_placed = [(end, placed) for placed in self.draft.placed if (end := self._end(placed)) < NEVER]
        return sorted([*self._running, *just_placed], key=itemgetter(0))

    def _end(self, placed: Placed) -> int:
        if placed.withdrawn:
            return NEVER
        return end_ms(placed.waiter.job, self.now_ms) + (freeing_ms(placed.waiter.job) if placed.waits else 0)

    def tasks_of(self, end_ms: int, who: Job | Placed) -> list[Ending]:
        """What becomes free when a job ends. Where a device is reported as held twice, nothing does."""
        if isinstance(who, Placed):
            return [Ending(end_ms, who.waiter.leaf, who.waiter.firm, _holding(who))]
        known = self._tasks_of.get(who.id)
        if known is None:
            known = self._tasks_of[who.id] = list(_tasks(self.draft, end_ms, who))
        return known

    def _on(self, position: int) -> Iterator[Ending]:
        """Everything on a node whose end is known."""
        here = {job.id: (end_ms(job, self.now_ms), job) for _, job in self.draft.nodes.tasks_on[position]}
        just_placed = [(self._end(placed), placed) for placed in self.draft.placed if placed.position == position]
        found: list[tuple[int, Job | Placed]] = [*here.values(), *just_placed]
        for end, who in found:
            if end < NEVER:
                yield from (one for one in self.tasks_of(end, who) if one.holding.position == position)

    def without(self, position: int, ended: Iterable[Ending]) -> NodeState:
        """A node once what is ending, and these besides, have ended."""
        nodes = self.draft.nodes
        state = nodes.later.get(position) or nodes.now[position]
        return state.without([_booked(ending.holding) for ending in ended], nodes.frames[position])

    # Who is bound ------------------------------------------------------------------------------------------------

    def binding(self, job: Job) -> int:
        """How many of the starts come before a job would end that is placed now. Asked for every job that waits."""
        length_ms = job.estimate_ms if job.run_limit_ms is None else job.run_limit_ms
        if length_ms is None:
            return len(self._moments)
        waits = len(job.tasks) == 1 and job.tasks[0].state is TaskState.PENDING
        return bisect_left(self._moments, self.now_ms + length_ms if waits else end_ms(job, self.now_ms))

    def binding_late(self, job: Job) -> int:
        """The same for one whose place is still being freed."""
        return bisect_left(self._moments, end_ms(job, self.now_ms) + freeing_ms(job))

    def bound_until_ms(self, job: Job) -> int:
        """The last start that binds a job; 0 where none does. What does not fit for one does not for any bound more."""
        count = self.binding(job)
        return self._moments[count - 1] if count else 0

    def serve(self, waiter: Waiter) -> None:
        """From here on look for places that this job may have."""
        self._serve(self.binding(waiter.job))

    def _serve(self, count: int) -> None:
        tables = self._tables.get(count)
        if tables is None:
            tables = self._tables[count] = self.draft.fits_beside([start.states for start in self.starts[:count]])
        self.draft.fit, self.draft.fit_later = tables

    def serve_late(self, waiter: Waiter) -> None:
        """The same for a job that first has to wait for a place to be freed."""
        self._serve(self.binding_late(waiter.job))

    def limits_hold(self, waiter: Waiter, mark: int) -> bool:
        """Whether what was placed since the mark leaves room under the limits of queues for whom starts are kept."""
        placed = self.draft.placed_since(mark)
        late = any(one.waits for one in placed)
        starts = self.starts[: self.binding_late(waiter.job) if late else self.binding(waiter.job)]
        return not starts or limits_hold(starts, waiter, placed)

    def _bind_to(self, starts: list[Start]) -> None:
        self.starts = starts
        self._moments = [start.start_ms for start in starts]

    def _forget_tables(self) -> None:
        self._tables = {0: self._tables[0]}

    # Following the draft -----------------------------------------------------------------------------------------

    def follow(self, entry: Placed | Eviction) -> None:
        """Something was placed or evicted: it is there, or gone, at the starts to come."""
        undo: list[Callable[[], None]] = []
        if isinstance(entry, Placed):
            waiter = entry.waiter
            for start in self._bound_by(entry):
                undo += _change(start, _holding(entry), waiter.leaf, waiter.firm, 1, self.draft.nodes)
        else:
            for one in entry.evicted:
                for start in self.starts[: self.binding(one.job)]:
                    undo += _change(start, one.holding, one.leaf, False, -1, self.draft.nodes)
        self._undos.append(undo)

    def _bound_by(self, placed: Placed) -> list[Start]:
        """The starts at which a task that was placed will still be there."""
        if placed.stays:
            return self.starts[: self.binding(self.draft.ledger.jobs[placed.waiter.job.id])]
        job = placed.waiter.job
        return self.starts[: self.binding_late(job) if placed.waits else self.binding(job)]

    def undo(self) -> None:
        """The draft took back the last thing it did."""
        for step in reversed(self._undos.pop() if self._undos else []):
            step()

    # Setting starts aside ----------------------------------------------------------------------------------------

    def aside(self, waiter: Waiter, work: Callable[[], bool]) -> bool:
        """Do some work for a job without the starts that do not bind it: its own and those of jobs after it in turn.

        A job that is served needs its start no longer.
        """
        own = self._own(waiter)
        if own is None:
            return work()
        starts, tables, mark = self.starts, self._tables, self.draft.mark()
        before = self.in_turn[: self.in_turn.index(own)]
        self._bind_to([start for start in starts if start in before])
        self._tables = {0: tables[0]}
        done = work()
        self._bind_to(starts)
        self._tables = tables
        if done:
            self._release(own)
            for entry in self.draft.log[mark:]:
                self.follow(entry)
        return done

    def _release(self, own: Start) -> None:
        self._bind_to([start for start in self.starts if start is not own])
        self.in_turn.remove(own)
        for start in self.starts:
            if own.covers(start.start_ms):
                for place in own.places:
                    _change(start, place.holding, place.leaf, place.firm, -1, self.draft.nodes)
        self._forget_tables()

    def held_back_by(self, waiter: Waiter) -> str:
        """The job for whose start this one is held back; empty where it would not fit in any case."""
        own = self._own(waiter)
        before = self.in_turn if own is None else self.in_turn[: self.in_turn.index(own)]
        if not before or not self.binding(waiter.job) or not self._would_fit(waiter, []):
            return ""
        in_the_way = (start for start in before if not self._would_fit(waiter, [start]))
        return next(in_the_way, before[0]).waiter.job.id

    def _own(self, waiter: Waiter) -> Start | None:
        return next((start for start in self.in_turn if start.waiter.job.id == waiter.job.id), None)

    def _would_fit(self, waiter: Waiter, starts: list[Start]) -> bool:
        kept, tables = self.starts, self._tables
        self._bind_to(starts)
        self._tables = {0: tables[0]}
        mark = self.draft.mark()
        fits = Placer(self.draft).place(waiter)
        self.draft.rollback(mark)
        self._bind_to(kept)
        self._tables = tables
        return fits

    def by_bound(self, left: Left) -> list[tuple[str, ...]]:
        """The jobs of a line, those together that the same starts bind; the first of the line first."""
        groups: dict[int, list[str]] = {}
        for id in left.jobs:
            groups.setdefault(self.bound_until_ms(self.draft.ledger.jobs[id]), []).append(id)
        return [tuple(ids) for ids in groups.values()]


class _Timeline:
    """Moments at which something ends, and what would fit then."""

    def __init__(self, reserve: Reserve, waiter: Waiter) -> None:
        self.reserve = reserve
        self.draft = reserve.draft
        self.waiter = waiter
        self.length_ms = planned_ms(waiter.job)
        self.jobs = reserve.ending_jobs()
        self.endings: list[Ending] = []
        """The tasks of those of the jobs that were looked at so far."""
        self._looked_at = 0
        kept = {start.end_ms for start in reserve.starts if start.end_ms < NEVER}
        self.moments = sorted({end for end, _ in self.jobs} | kept)

    def _ended_by(self, moment_ms: int) -> list[Ending]:
        """Tasks that end by a moment; knows more the further it is asked to look."""
        while self._looked_at < len(self.jobs) and self.jobs[self._looked_at][0] <= moment_ms:
            self.endings += self.reserve.tasks_of(*self.jobs[self._looked_at])
            self._looked_at += 1
        return self.endings[: bisect_right(self.endings, moment_ms, key=by_end)]

    def earliest(self) -> Start | None:
        """The first moment at which the job would fit."""
        low = self._first_possible()
        if self.reserve.starts:
            # Beside starts that are kept, what fits at one moment may not fit at a later one.
            return next((found for moment in self.moments[low:] if (found := self._at(moment)) is not None), None)
        return self._among_more_and_more_free(low)

    def _among_more_and_more_free(self, low: int) -> Start | None:
        """What fits once fits ever after: look ever further ahead, and then between."""
        high, step, found = low, 1, None
        while high < len(self.moments) and (found := self._at(self.moments[high])) is None:
            low, high, step = high + 1, min(high + step, max(len(self.moments) - 1, high + 1)), step * 2
        while found is not None and low < high:
            middle = (low + high) // 2
            sooner = self._at(self.moments[middle])
            if sooner is None:
                low = middle + 1
            else:
                high, found = middle, sooner
        return found

    def _first_possible(self) -> int:
        """A bound that needs no trial: before it too few places can be free. The end of the list: it never fits."""
        bound = SlotBound(self.draft, self.waiter)
        after = 0
        for index, moment in enumerate(self.moments):
            self._ended_by(moment)
            bound.free(ending.holding for ending in self.endings[after:])
            after = len(self.endings)
            if bound.enough():
                return index
        return len(self.moments)

    def _at(self, moment_ms: int) -> Start | None:
        """The job's start at a moment; None where it would not fit then, or not stay for as long as it runs."""
        ended = self._ended_by(moment_ms)
        if not self.reserve.step(1 + len(ended)):
            return None
        end = NEVER if self.length_ms is None else moment_ms + self.length_ms
        active = [start for start in self.reserve.starts if start.covers(moment_ms)]
        coming = [start for start in self.reserve.starts if moment_ms < start.start_ms < end]
        nodes, queues = self._books(ended, active)
        future = self.draft.at_another_time(nodes, queues)
        if coming:
            Reserve(future).look_from(moment_ms, coming)
        waiter = self.waiter
        if blockers(queues, waiter.leaf, waiter.at_least, waiter.firm) or not Placer(future).place(waiter):
            return None
        placed = future.placed_since(0)
        start = Start(waiter, moment_ms, end, [Ending(end, waiter.leaf, waiter.firm, _holding(one)) for one in placed])
        kept = [place for one in (*active, start) for place in one.places]
        start.states = {place.holding.position: nodes.now[place.holding.position] for place in kept}
        start.queues = queues
        return start

    def _books(self, gone: list[Ending], active: list[Start]) -> tuple[NodeBook, QueueBook]:
        """What is free once some tasks are gone and what is kept for then is taken."""
        draft = self.draft
        nodes, queues = draft.ledger.nodes.fork(), draft.queues.fork()
        nodes.later.clear()
        ended: dict[int, list[Ending]] = {position: [] for position in draft.nodes.later}
        for placed in draft.placed:
            ended.setdefault(placed.position, [])
        charges: dict[tuple[int, bool, Amounts], int] = {}
        for ending in gone:
            ended.setdefault(ending.holding.position, []).append(ending)
            key = (ending.leaf, ending.firm, ending.holding.amounts)
            charges[key] = charges.get(key, 0) + 1
        for position, endings in ended.items():
            nodes.put(position, self.reserve.without(position, endings))
        for (leaf, firm, amounts), times in charges.items():
            queues.charge(leaf, amounts, firm, -times)
        for place in (place for start in active for place in start.places):
            holding = place.holding
            at = holding.position
            nodes.put(at, nodes.now[at].less(holding.task.request, holding.shares, nodes.frames[at]))
            queues.charge(place.leaf, holding.amounts, place.firm)
        return nodes, queues


def _running(draft: Draft) -> Iterator[tuple[int, Job]]:
    """Jobs that hold a place, or were promised one, and whose end is known."""
    now_ms = draft.ledger.now_ms
    for job in draft.ledger.timed.values():
        single = len(job.tasks) == 1
        if job.tasks[0].state in ACTIVE if single else any(task.state in ACTIVE for task in job.tasks):
            yield end_ms(job, now_ms), job


def _tasks(draft: Draft, end_ms: int, job: Job) -> Iterator[Ending]:
    ledger, leaf = draft.ledger, draft.queues.leaf_at(job.queue)
    gone = {one.holding.task.id for one in draft.evicted_since(0) if one.job.id == job.id}
    for task in job.tasks:
        position = draft.nodes.at.get(task.node, -1)
        if leaf < 0 or position < 0 or task.state not in ACTIVE or task.id in gone:
            continue
        if draft.nodes.sound(position):
            amounts = ledger.amounts(task, ledger.shapes.of(task.request), position)
            holding = Holding(task, position, draft.nodes.held(job, task), amounts)
            yield Ending(end_ms, leaf, not job.preemptible, holding)


def _most_starts(draft: Draft) -> int:
    policy = draft.policy.reservation
    if policy.backfill is Backfill.OFF or not draft.ledger.timed:
        return 0
    return 1 if policy.backfill is Backfill.EASY else policy.max_reservations


def _holding(placed: Placed) -> Holding:
    return Holding(placed.task, placed.position, placed.shares, placed.amounts)


def _booked(holding: Holding) -> Booked:
    return holding.task.request, holding.shares


def _change(
    start: Start, holding: Holding, leaf: int, firm: bool, times: int, nodes: NodeBook
) -> list[Callable[[], None]]:
    """A task more (or less) at the start of a job; says how to take it back."""
    position, states, queues = holding.position, start.states, start.queues
    queues.charge(leaf, holding.amounts, firm, times)
    undo: list[Callable[[], None]] = [lambda: queues.charge(leaf, holding.amounts, firm, -times)]
    state = states.get(position)
    if state is not None:
        change = state.less if times > 0 else state.plus
        states[position] = change(holding.task.request, holding.shares, nodes.frames[position])
        nodes.columns.journal.append(position)
        undo.append(lambda: states.__setitem__(position, state))
    return undo


def limits_hold(starts: Iterable[Start], waiter: Waiter, placed: list[Placed]) -> bool:
    """Whether at these starts the queues above a job keep to every bound on what was placed of it."""
    for queues in (start.queues for start in starts):
        for at in queues.frames[waiter.leaf].path:
            bounds = [(position, limit, queues.held[at]) for position, limit in queues.frames[at].limits]
            if waiter.firm:
                bounds += [(position, quota, queues.firm[at]) for position, quota in queues.frames[at].quotas]
            for position, bound, amounts in bounds:
                if amounts[position] > bound and any(one.amounts[position] for one in placed):
                    return False
    return True
