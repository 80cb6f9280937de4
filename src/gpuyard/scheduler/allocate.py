"""Give free places to waiting jobs, in turn: gangs whole, growing jobs one task at a time.

Place in the flow: the first step of a cycle. A job that cannot be placed loses its turn, with its reasons, and does
not block anyone behind it. Invariant: when the step ends, no job that still waits fits a place that is free.
"""

from __future__ import annotations

import msgspec

from gpuyard.model.reasons import Reason
from gpuyard.scheduler.diagnose import why_it_does_not_fit
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.gang import Gang
from gpuyard.scheduler.headroom import blockers
from gpuyard.scheduler.jobbook import Waiter, next_waiter
from gpuyard.scheduler.ordering import Turns
from gpuyard.scheduler.placement import Placer
from gpuyard.scheduler.rearrange import rearrange

Reasons = tuple[Reason, ...]


class Left(msgspec.Struct, frozen=True):
    """Jobs of one line that found no place, and why."""

    leaf: int
    jobs: tuple[str, ...]
    reasons: Reasons


class Allocation:
    """One run of the step. Remembers what did not fit, so that nothing alike is tried again."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.turns = Turns(draft)
        self.placer = Placer(draft)
        self.unfit: dict[object, Reasons] = {}
        self.left: list[Left] = []
        self.second_look = False
        """Set when something happened that may let a job fit that did not fit before."""
        self.gangs: dict[str, Gang] = {}
        """Where jobs stand that this cycle has served in part; the ledger's own view is not touched."""

    def run(self) -> None:
        self._serve()
        while self.second_look and self.left:
            self.second_look = False
            self._look_again()
        for left in self.left:
            self.draft.leave_waiting(self.draft.queues.frames[left.leaf].name, left.jobs, left.reasons)

    def _serve(self) -> None:
        """Everyone once, in turn."""
        while (waiter := self.turns.next()) is not None:
            reasons = self._blocked(waiter)
            if reasons:
                self.left.append(Left(waiter.leaf, self.turns.dropped(waiter), reasons))
            else:
                self.turns.served(waiter, self._more(waiter))

    def _look_again(self) -> None:
        """Try those that were left once more, in the order they were left."""
        again, self.left, self.unfit = self.left, [], {}
        for left in again:
            self._try_line(left)

    def _try_line(self, left: Left) -> None:
        for position, id in enumerate(left.jobs):
            waiter: Waiter | None = self._waiter_of(id)
            while waiter is not None:
                reasons = self._blocked(waiter)
                if reasons:
                    rest = left.jobs[position:]
                    self.left.append(Left(left.leaf, rest, reasons))
                    return
                waiter = self._more(waiter)

    def _waiter_of(self, id: str) -> Waiter | None:
        """What a job wants next, as this cycle has left it."""
        gang = self.gangs.get(id)
        known = self.draft.ledger.lines.waiters[id]
        return known if gang is None else next_waiter(known.job, known.leaf, gang, self.draft.shapes)

    def _blocked(self, waiter: Waiter) -> Reasons:
        """Place the waiter's chunk, or say why not."""
        draft = self.draft
        reasons = blockers(draft.queues, waiter.leaf, waiter.at_least, waiter.firm)
        if reasons:
            return reasons
        known = self.unfit.get(waiter.signature)
        if known is not None:
            return known
        if self.placer.place(waiter):
            # Somebody may have waited for just this neighbour.
            self.second_look = self.second_look or draft.ledger.neighbours.any_near
            return ()
        if rearrange(draft, waiter):
            self.second_look = True
            return ()
        reasons = why_it_does_not_fit(draft, waiter)
        if not draft.queues.resources.by_model:
            self.unfit[waiter.signature] = reasons
        return reasons

    def _more(self, waiter: Waiter) -> Waiter | None:
        """What a job that was just served wants next."""
        if not waiter.more:
            return None
        job = waiter.job
        gang = self.gangs.get(job.id)
        if gang is None:
            gang = self.gangs[job.id] = Gang(job)
        gang.place(waiter.chunk, self.draft.nodes_given(waiter))
        return next_waiter(job, waiter.leaf, gang, self.draft.shapes)


def allocate(draft: Draft) -> None:
    """Serve everyone who can be served from what is free."""
    Allocation(draft).run()
