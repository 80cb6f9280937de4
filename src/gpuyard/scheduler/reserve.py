"""Keep a start for a job that has to wait, and let others fill in around it.

Place in the flow: `allocate` hands over each job it could not place, in turn; where it is known when running jobs end,
the first of them (or many: `Backfill`) is given the earliest start at which the ordinary placement finds places for it.
Nothing of this is in the plan: starts are reckoned anew each cycle. While one is kept, every placement of the cycle
goes through it: a job that ends by then need only fit now; any other must also fit beside what is kept.
Invariant: nothing a cycle places on free room is in the way, at its start, of a job whose start is kept.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from gpuyard.model.jobs import Job
from gpuyard.policies.policy import Backfill
from gpuyard.scheduler.draft import Draft, Eviction, Holding, Left, Placed
from gpuyard.scheduler.endings import NEVER, end_ms, planned_ms
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

MAX_LOOKS: Final = 256
"""How often a cycle looks whether a job would fit at some moment, in all."""

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

    def covers(self, moment_ms: int) -> bool:
        return self.start_ms <= moment_ms < self.end_ms


by_start = attrgetter("start_ms")


class Reserve:
    """The starts one cycle keeps."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.now_ms = draft.ledger.now_ms
        self.starts: list[Start] = []
        """Those that bind at this moment, the soonest first."""
        self._in_turn: list[Start] = []
        self._most = _most_starts(draft)
        self._looks_left = MAX_LOOKS
        self._refused: set[object] = set()
        """Kinds of jobs for which no start can be told."""
        self._tables: dict[int, tuple[FitTable, LaterFit]] = {}
        """By how many of the starts bind."""
        self._undos: list[list[Callable[[], None]]] = []
        """For each thing the draft has done since, how to take back what that meant here."""
        self._running: list[Ending] | None = None

    # Whose start is kept -----------------------------------------------------------------------------------------

    @property
    def keeps_more(self) -> bool:
        return len(self._in_turn) < self._most and len(self._refused) < MAX_REFUSED

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
        if waiter.rank[1] or any(shape.request.where.neighbours for shape in waiter.shapes):
            return False
        # While only some nodes are used, not to fit there means nothing yet.
        if self._looks_left <= 0 or self.draft.among is not None:
            return False
        return not blockers(self.draft.queues, waiter.leaf, waiter.at_least, waiter.firm)

    def _add(self, start: Start) -> None:
        for other in self.starts:
            if start.start_ms < other.start_ms < start.end_ms:
                for place in start.places:
                    self._take_beside(other, place)
        insort(self.starts, start, key=by_start)
        self._in_turn.append(start)
        if self.draft.reserved is None:
            self._tables[0] = (self.draft.fit, self.draft.fit_later)
            self.draft.reserved = self
        self._forget_tables()

    def _take_beside(self, other: Start, place: Ending) -> None:
        """Count on a kept place being taken at the start of another that is kept."""
        task, position, shares, amounts, _ = place.holding
        state = other.states.get(position)
        if state is None:
            ended = [ending for ending in self.endings() if ending.end_ms <= other.start_ms]
            state = self.without(position, [ending for ending in ended if ending.holding.position == position])
        other.states[position] = state.less(task.request, shares, self.draft.nodes.frames[position])
        other.queues.charge(place.leaf, amounts, place.firm)

    def look(self) -> bool:
        """Whether one more look is within what a cycle may do."""
        self._looks_left -= 1
        return self._looks_left >= 0

    # What is known about ends ------------------------------------------------------------------------------------

    def endings(self) -> list[Ending]:
        """Everything that runs or was just placed and whose end is known."""
        if self._running is None:
            self._running = sorted(_running(self.draft), key=attrgetter("end_ms"))
        return [*self._running, *self._just_placed()]

    def _just_placed(self) -> Iterator[Ending]:
        for placed in self.draft.placed:
            end = end_ms(placed.waiter.job, self.now_ms)
            if end < NEVER and not placed.withdrawn:
                yield Ending(end, placed.waiter.leaf, placed.waiter.firm, _holding(placed))

    def without(self, position: int, ended: Iterable[Ending]) -> NodeState:
        """A node once what is ending, and these besides, have ended."""
        nodes = self.draft.nodes
        state = nodes.later.get(position) or nodes.now[position]
        return state.without([_booked(ending.holding) for ending in ended], nodes.frames[position])

    # Who is bound ------------------------------------------------------------------------------------------------

    def binding(self, job: Job) -> int:
        """How many of the starts come before a job would end that is placed now."""
        return bisect_left(self.starts, end_ms(job, self.now_ms), key=by_start)

    def bound_until_ms(self, job: Job) -> int:
        """The last start that binds a job; 0 where none does. What does not fit for one does not for any bound more."""
        count = self.binding(job)
        return self.starts[count - 1].start_ms if count else 0

    def serve(self, waiter: Waiter) -> None:
        """From here on look for places that this job may have."""
        count = self.binding(waiter.job)
        tables = self._tables.get(count)
        if tables is None:
            tables = self._tables[count] = self.draft.fits_beside([start.states for start in self.starts[:count]])
        self.draft.fit, self.draft.fit_later = tables

    def limits_hold(self, waiter: Waiter, mark: int) -> bool:
        """Whether what was placed since the mark leaves room under the limits of queues for whom starts are kept."""
        starts = self.starts[: self.binding(waiter.job)]
        return not starts or limits_hold(starts, waiter, self.draft.placed_since(mark))

    def _forget_tables(self) -> None:
        self._tables = {0: self._tables[0]}

    # Following the draft -----------------------------------------------------------------------------------------

    def follow(self, entry: Placed | Eviction) -> None:
        """Something was placed or evicted: it is there, or gone, at the starts to come."""
        undo: list[Callable[[], None]] = []
        if isinstance(entry, Placed):
            waiter = entry.waiter
            for start in self.starts[: self.binding(waiter.job)]:
                undo += _change(start, _holding(entry), waiter.leaf, waiter.firm, 1, self.draft.nodes)
        else:
            for one in entry.evicted:
                for start in self.starts[: self.binding(one.job)]:
                    undo += _change(start, one.holding, one.leaf, False, -1, self.draft.nodes)
        self._undos.append(undo)

    def undo(self) -> None:
        """The draft took back the last thing it did."""
        for step in reversed(self._undos.pop() if self._undos else []):
            step()

    # Setting starts aside ----------------------------------------------------------------------------------------

    def aside(self, waiter: Waiter, by_right: bool, work: Callable[[], bool]) -> bool:
        """Do some work for a job without the starts that do not bind it: its own and those of jobs after it in turn.

        Whoever is served by right is bound by none. A job that is served needs its start no longer.
        """
        own = next((start for start in self._in_turn if start.waiter.job.id == waiter.job.id), None)
        if own is None and not by_right:
            return work()
        starts, tables, mark = self.starts, self._tables, self.draft.mark()
        before = () if by_right or own is None else self._in_turn[: self._in_turn.index(own)]
        self.starts = [start for start in starts if start in before]
        self._tables = {0: tables[0]}
        done = work()
        self.starts, self._tables = starts, tables
        if done:
            if own is not None:
                self._release(own)
            for entry in self.draft.log[mark:]:
                self.follow(entry)
        return done

    def _release(self, own: Start) -> None:
        self.starts.remove(own)
        self._in_turn.remove(own)
        for start in self.starts:
            if own.covers(start.start_ms):
                for place in own.places:
                    _change(start, place.holding, place.leaf, place.firm, -1, self.draft.nodes)
        self._forget_tables()

    def held_back_by(self, waiter: Waiter) -> str:
        """The job for whose start this one is held back; empty where it would not fit in any case."""
        if not self.binding(waiter.job) or any(start.waiter.job.id == waiter.job.id for start in self._in_turn):
            return ""
        if not self._would_fit(waiter, []):
            return ""
        for start in self._in_turn:
            if not self._would_fit(waiter, [start]):
                return start.waiter.job.id
        return self._in_turn[0].waiter.job.id

    def _would_fit(self, waiter: Waiter, starts: list[Start]) -> bool:
        kept, tables = self.starts, self._tables
        self.starts, self._tables = starts, {0: tables[0]}
        mark = self.draft.mark()
        fits = Placer(self.draft).place(waiter)
        self.draft.rollback(mark)
        self.starts, self._tables = kept, tables
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
        self.endings = sorted(reserve.endings(), key=attrgetter("end_ms"))
        kept = {start.end_ms for start in reserve.starts if start.end_ms < NEVER}
        self.moments = sorted({ending.end_ms for ending in self.endings} | kept)

    def earliest(self) -> Start | None:
        """The first moment at which the job would fit, looked for ever further ahead and then between."""
        low = self._first_possible()
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
            while after < len(self.endings) and self.endings[after].end_ms <= moment:
                bound.free((self.endings[after].holding,))
                after += 1
            if bound.enough():
                return index
        return len(self.moments)

    def _at(self, moment_ms: int) -> Start | None:
        """The job's start at a moment; None where it would not fit then, or not stay for as long as it runs."""
        if not self.reserve.look():
            return None
        end = NEVER if self.length_ms is None else moment_ms + self.length_ms
        active = [start for start in self.reserve.starts if start.covers(moment_ms)]
        coming = [start for start in self.reserve.starts if moment_ms < start.start_ms < end]
        nodes, queues = self._books(moment_ms, active)
        future = self.draft.at_another_time(nodes, queues, [start.states for start in coming])
        waiter = self.waiter
        if blockers(queues, waiter.leaf, waiter.at_least, waiter.firm) or not Placer(future).place(waiter):
            return None
        placed = future.placed_since(0)
        if not _would_hold(coming, waiter, placed):
            return None
        start = Start(waiter, moment_ms, end, [Ending(end, waiter.leaf, waiter.firm, _holding(one)) for one in placed])
        kept = [place for one in (*active, start) for place in one.places]
        start.states = {place.holding.position: nodes.now[place.holding.position] for place in kept}
        start.queues = queues
        return start

    def _books(self, moment_ms: int, active: list[Start]) -> tuple[NodeBook, QueueBook]:
        """What is free at a moment: what ends by then is gone, what is kept for then is taken."""
        draft = self.draft
        nodes, queues = draft.ledger.nodes.fork(), draft.queues.fork()
        nodes.later.clear()
        ended: dict[int, list[Ending]] = {position: [] for position in draft.nodes.later}
        for placed in draft.placed:
            ended.setdefault(placed.position, [])
        gone: dict[tuple[int, bool, Amounts], int] = {}
        for ending in self.endings:
            if ending.end_ms > moment_ms:
                break
            ended.setdefault(ending.holding.position, []).append(ending)
            key = (ending.leaf, ending.firm, ending.holding.amounts)
            gone[key] = gone.get(key, 0) + 1
        for position, endings in ended.items():
            nodes.put(position, self.reserve.without(position, endings))
        for (leaf, firm, amounts), times in gone.items():
            queues.charge(leaf, amounts, firm, -times)
        for place in (place for start in active for place in start.places):
            task, position, shares, amounts, _ = place.holding
            nodes.put(position, nodes.now[position].less(task.request, shares, nodes.frames[position]))
            queues.charge(place.leaf, amounts, place.firm)
        return nodes, queues


def _running(draft: Draft) -> Iterator[Ending]:
    """Tasks that hold a place, or were promised one, and whose end is known."""
    ledger = draft.ledger
    gone = {one.holding.task.id for one in draft.evicted_since(0)}
    for job in ledger.timed.values():
        leaf = draft.queues.leaf_at(job.queue)
        active = [task for task in job.tasks if task.state in ACTIVE and task.id not in gone]
        end = end_ms(job, ledger.now_ms) if active and leaf >= 0 else NEVER
        for task in active if end < NEVER else ():
            position = draft.nodes.at.get(task.node, -1)
            if position >= 0 and draft.nodes.sound(position):
                amounts = ledger.amounts(task, ledger.shapes.of(task.request), position)
                holding = Holding(task, position, draft.nodes.held(job, task), amounts)
                yield Ending(end, leaf, not job.preemptible, holding)


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


def _would_hold(starts: list[Start], waiter: Waiter, placed: list[Placed]) -> bool:
    """Whether limits hold at these starts with what was placed, which they do not count yet."""
    for start in starts:
        for one in placed:
            start.queues.charge(waiter.leaf, one.amounts, waiter.firm)
    holds = limits_hold(starts, waiter, placed)
    for start in starts:
        for one in placed:
            start.queues.charge(waiter.leaf, one.amounts, waiter.firm, -1)
    return holds


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
