"""Give free places to waiting jobs, in turn: gangs whole, growing jobs one task at a time.

Place in the flow: the first step of a cycle. A job that cannot be placed loses its turn, with its reasons, and does
not block anyone behind it, but for the start that may be kept for it (`reserve`). Invariant: when the step ends, no job
that still waits fits a place that is free and kept for nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuyard.scheduler.draft import Draft, Left
from gpuyard.scheduler.gang import Gang
from gpuyard.scheduler.headroom import blockers
from gpuyard.scheduler.jobbook import LineKey, Waiter, next_waiter
from gpuyard.scheduler.ordering import Turns
from gpuyard.scheduler.placement import Placer
from gpuyard.scheduler.rearrange import rearrange
from gpuyard.scheduler.reserve import Reserve


class Allocation:
    """One run of the step. Remembers what did not fit, so that nothing alike is tried again."""

    def __init__(self, draft: Draft, turns: Turns) -> None:
        self.draft = draft
        self.turns = turns
        self.placer = Placer(draft)
        self.unfit: set[object] = set()
        """Signatures of what does not fit, whoever asks: limits are another matter."""
        self.left = draft.left
        self.second_look = False
        """Set when something happened that may let a job fit that did not fit before."""
        self.gangs = draft.gangs
        self.reserve = Reserve(draft)
        self.passed: dict[LineKey, list[Waiter]] = {}
        """Those for whom a start was kept while others of their line had turns of their own."""

    def run(self) -> None:
        self._serve()
        while self.second_look and self.left:
            self.second_look = False
            self._look_again()
        if self.draft.reserved is not None:
            self._fill_in(self.draft.reserved)

    def _serve(self) -> None:
        """Everyone once, in turn."""
        while (waiter := self.turns.next()) is not None:
            served = self._place(waiter)
            if served is not None:
                self.turns.served(waiter, self._more(served))
            elif self.reserve.keep(waiter) and self.reserve.keeps_more:
                # Whoever is like it has a turn and a start of their own.
                self.turns.served(waiter, None)
                self.passed.setdefault(waiter.line, []).append(waiter)
            else:
                self.left.append(self.turns.dropped(waiter))
        self._put_passed_back()

    def _put_passed_back(self) -> None:
        """Those who kept a start one by one wait in their line, before whoever was left of it."""
        rest = {left.waiter.line: left for left in self.left}
        for line, waiters in self.passed.items():
            left = rest.get(line)
            behind = left.line[left.start :] if left is not None else ()
            rest[line] = Left(waiters[0], [*(waiter.rank[2:] for waiter in waiters), *behind])
        self.left[:] = rest.values()
        self.passed.clear()

    def _look_again(self) -> None:
        """Try those that were left once more, in the order they were left."""
        again, self.unfit = self.left.copy(), set()
        self.left.clear()
        for left in again:
            self._try_line(left)

    def _try_line(self, left: Left) -> None:
        for position in range(left.start, len(left.line)):
            waiter: Waiter | None = self._waiter_of(left.line[position][1])
            while waiter is not None:
                served = self._place(waiter)
                if served is None:
                    self.left.append(Left(waiter, left.line, position))
                    return
                waiter = self._more(served)

    def _fill_in(self, reserved: Reserve) -> None:
        """Lines hold jobs that ask for the same, not for as long: try the shorter ones behind one that is held back."""
        waiting, self.left[:] = self.left.copy(), []
        for left in waiting:
            until_ms = reserved.bound_until_ms(left.waiter.job)
            self.left.append(self._without_shorter(reserved, left, until_ms) if until_ms else left)

    def _without_shorter(self, reserved: Reserve, left: Left, until_ms: int) -> Left:
        """Serve the jobs of a line that fewer starts bind than those before them; say who is still in the line."""
        staying: list[tuple[int, str]] = []
        for entry in left.line[left.start :]:
            sooner_ms = reserved.bound_until_ms(self.draft.ledger.jobs[entry[1]]) if staying else until_ms
            if sooner_ms >= until_ms or not self._serve_whole(entry[1]):
                until_ms = min(sooner_ms, until_ms)
                staying.append(entry)
        return Left(left.waiter, staying)

    def _serve_whole(self, id: str) -> bool:
        """Place a job and all it wants besides; False where not even its first chunk fits."""
        waiter = self._waiter_of(id)
        if waiter is None or (served := self._place(waiter)) is None:
            return False
        while (more := self._more(served)) is not None:
            served = self._place(more)
            if served is None:
                self.left.append(Left(more, (more.rank[2:],)))
                return True
        return True

    def _waiter_of(self, id: str) -> Waiter | None:
        """What a job wants next, as this cycle has left it."""
        gang = self.gangs.get(id)
        known = self.draft.ledger.lines.waiters[id]
        return known if gang is None else next_waiter(known.job, known.leaf, gang, self.draft.shapes)

    def _place(self, waiter: Waiter) -> Waiter | None:
        """Place the waiter's chunk, or another that would do; say which, or None where nothing can be placed."""
        if waiter.job.id in self.draft.withheld:
            return None
        kind = self._kind(waiter)
        if waiter.signature in self.unfit or kind in self.unfit:
            return None
        fits_nowhere = True
        for choice in self._choices(waiter):
            if blockers(self.draft.queues, choice.leaf, choice.at_least, choice.firm):
                fits_nowhere = False
            elif self._fits(choice):
                self.second_look = self.second_look or self._was_waited_for(choice)
                return choice
            elif self.draft.reserved is None and rearrange(self.draft, choice):
                self.second_look = True
                return choice
        if fits_nowhere and not self.draft.queues.resources.by_model:
            self.unfit.add(kind)
        return None

    def _was_waited_for(self, placed: Waiter) -> bool:
        """Whether somebody may have waited for just this neighbour."""
        return bool(placed.kin) and any(map(self.draft.ledger.neighbours.is_drawn, placed.kin))

    def _kind(self, waiter: Waiter) -> object:
        """What does not fit for one does not fit for another of its kind, nor for one that more starts bind."""
        reserved = self.draft.reserved
        until_ms = 0 if reserved is None else reserved.bound_until_ms(waiter.job)
        return (waiter.signature, until_ms) if until_ms else waiter.signature

    def _fits(self, choice: Waiter) -> bool:
        reserved = self.draft.reserved
        if reserved is None:
            return self.placer.place(choice)
        return reserved.aside(choice, work=lambda: self.placer.place(choice))

    def _choices(self, waiter: Waiter) -> Iterable[Waiter]:
        """The waiter, then what else its job would take where its groups leave a choice."""
        return (
            (waiter,) if waiter.gang is None or not waiter.chunk.children else self._group_choices(waiter, waiter.gang)
        )

    def _group_choices(self, waiter: Waiter, gang: Gang) -> Iterator[Waiter]:
        yield waiter
        for chunk in gang.other_chunks():
            yield Waiter(waiter.job, waiter.leaf, chunk, waiter.rank[1], gang, self.draft.shapes)

    def _more(self, waiter: Waiter) -> Waiter | None:
        """What a job that was just served wants next."""
        if not waiter.more:
            return None
        job = waiter.job
        gang = self.gangs.get(job.id)
        if gang is None:
            gang = self.gangs[job.id] = Gang(job)
        gang.place(waiter.chunk, self.draft.given(waiter))
        return next_waiter(job, waiter.leaf, gang, self.draft.shapes)


def allocate(draft: Draft) -> None:
    """Serve everyone who can be served from what is free."""
    Allocation(draft, Turns.of_all(draft)).run()


def allocate_left(draft: Draft) -> None:
    """Serve those the steps so far have left waiting, where they can be served now."""
    left = draft.left.copy()
    draft.left.clear()
    Allocation(draft, Turns.of_left(draft, left)).run()


def leave_everyone(draft: Draft) -> None:
    """Serve nobody: where a cycle has only other steps, everyone still waits."""
    lines = draft.ledger.lines
    for line in lines.lines.values():
        draft.left.append(Left(lines.waiters[line[0][1]], line))
