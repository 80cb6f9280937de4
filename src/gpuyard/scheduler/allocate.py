"""Give free places to waiting jobs, in turn: gangs whole, growing jobs one task at a time.

Place in the flow: the first step of a cycle. A job that cannot be placed loses its turn, with its reasons, and does
not block anyone behind it. Invariant: when the step ends, no job that still waits fits a place that is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuyard.scheduler.draft import Draft, Left
from gpuyard.scheduler.gang import Gang
from gpuyard.scheduler.headroom import blockers
from gpuyard.scheduler.jobbook import Waiter, next_waiter
from gpuyard.scheduler.ordering import Turns
from gpuyard.scheduler.placement import Placer
from gpuyard.scheduler.rearrange import rearrange


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

    def run(self) -> None:
        self._serve()
        while self.second_look and self.left:
            self.second_look = False
            self._look_again()

    def _serve(self) -> None:
        """Everyone once, in turn."""
        while (waiter := self.turns.next()) is not None:
            served = self._place(waiter)
            if served is None:
                self.left.append(self.turns.dropped(waiter))
            else:
                self.turns.served(waiter, self._more(served))

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

    def _waiter_of(self, id: str) -> Waiter | None:
        """What a job wants next, as this cycle has left it."""
        gang = self.gangs.get(id)
        known = self.draft.ledger.lines.waiters[id]
        return known if gang is None else next_waiter(known.job, known.leaf, gang, self.draft.shapes)

    def _place(self, waiter: Waiter) -> Waiter | None:
        """Place the waiter's chunk, or another that would do; say which, or None where nothing can be placed."""
        if waiter.signature in self.unfit:
            return None
        fits_nowhere = True
        for choice in self._choices(waiter):
            if blockers(self.draft.queues, choice.leaf, choice.at_least, choice.firm):
                fits_nowhere = False
            elif self.placer.place(choice):
                # Somebody may have waited for just this neighbour.
                self.second_look = self.second_look or self.draft.ledger.neighbours.any_near
                return choice
            elif rearrange(self.draft, choice):
                self.second_look = True
                return choice
        if fits_nowhere and not self.draft.queues.resources.by_model:
            self.unfit.add(waiter.signature)
        return None

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
