"""Give free places to waiting jobs, in turn: gangs whole, growing jobs one task at a time.

Place in the flow: the first step of a cycle. A job that cannot be placed loses its turn, with its reasons, and does
not block anyone behind it. Invariant: when the step ends, no job that still waits fits a place that is free.
"""

from __future__ import annotations

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


class Allocation:
    """One run of the step. Remembers what did not fit, so that nothing alike is tried again."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.turns = Turns(draft)
        self.unfit: dict[object, Reasons] = {}
        self.gangs: dict[str, Gang] = {}
        """Where jobs stand that this cycle has served in part; the ledger's own view is not touched."""

    def run(self) -> None:
        while (waiter := self.turns.next()) is not None:
            reasons = self._blocked(waiter)
            if reasons:
                self._drop(waiter, reasons)
            else:
                self.turns.served(waiter, self._more(waiter))

    def _blocked(self, waiter: Waiter) -> Reasons:
        """Place the waiter's chunk, or say why not."""
        draft = self.draft
        reasons = blockers(draft.queues, waiter.leaf, waiter.at_least, waiter.firm)
        if reasons:
            return reasons
        known = self.unfit.get(waiter.signature)
        if known is not None:
            return known
        if Placer(draft, waiter).place() or rearrange(draft, waiter):
            return ()
        reasons = why_it_does_not_fit(draft, waiter)
        if not draft.queues.resources.by_model:
            self.unfit[waiter.signature] = reasons
        return reasons

    def _drop(self, waiter: Waiter, reasons: Reasons) -> None:
        queue = self.draft.queues.frames[waiter.leaf].name
        self.draft.leave_waiting(queue, self.turns.dropped(waiter), reasons)

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
