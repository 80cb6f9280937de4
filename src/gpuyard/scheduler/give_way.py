"""The frame of every step that makes running jobs give way: whoever still waits, in turn, is tried once.

A job that waits out its preemption delay makes nobody yield. What fails is remembered by what it asks for, so that
nothing alike is tried again before something has changed.
"""

from __future__ import annotations

from typing import Protocol

from gpuyard.scheduler.draft import Draft, Everyone, Left
from gpuyard.scheduler.headroom import blockers, may_disturb
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.ordering import Turns
from gpuyard.scheduler.placement import Placer


class Step(Protocol):
    """One way of making room."""

    def attempt(self, waiter: Waiter, everyone: Everyone) -> bool:
        """Place the waiter, whose turn comes among everyone who waits; False leaves the draft as it was."""
        ...


def make_room(draft: Draft, step: Step) -> None:
    """Try everyone who still waits."""
    if not draft.left:
        return
    turns = Turns.of_left(draft, draft.left)
    draft.left.clear()
    placer = Placer(draft)
    left: list[Left] = []
    failed: set[object] = set()
    while (waiter := turns.next()) is not None:
        until_ms = 0 if draft.reserved is None else draft.reserved.bound_until_ms(waiter.job)
        kind = (waiter.leaf, waiter.rank[0], waiter.firm, waiter.signature, until_ms)
        if waiter.job.id in draft.disturbed or waiter.job.id in draft.withheld:
            # It has lost something in this cycle, and is not what it was when it last asked.
            left.append(Left(waiter, (waiter.rank[2:],)))
            turns.served(waiter, None)
            continue
        worth_trying = kind not in failed and may_disturb(draft, waiter)
        if worth_trying and (
            _fits(draft, placer, waiter) or _attempt(draft, step, waiter, lambda: [*left, *turns.left()])
        ):
            failed.clear()
            turns.served(waiter, None)
            if waiter.gang is not None and waiter.gang.active:
                # Its minimum must not go while what it has just been given stays.
                draft.disturbed.add(waiter.job.id)
        else:
            failed.add(kind)
            left.append(turns.dropped(waiter))
    # Whoever had a place taken back waits for that, whatever it had still wanted.
    taken_back = {entry.waiter.job.id for entry in draft.left}
    draft.left[:] = [*(entry for entry in left if entry.waiter.job.id not in taken_back), *draft.left]


def _fits(draft: Draft, placer: Placer, waiter: Waiter) -> bool:
    """Whether what others who gave way have left over is enough."""
    if not draft.nodes.later or blockers(draft.queues, waiter.leaf, waiter.at_least, waiter.firm):
        return False
    if draft.reserved is None:
        return placer.place(waiter)
    return draft.reserved.aside(waiter, work=lambda: placer.place(waiter))


def _attempt(draft: Draft, step: Step, waiter: Waiter, everyone: Everyone) -> bool:
    if draft.reserved is None:
        return step.attempt(waiter, everyone)
    return draft.reserved.aside(waiter, work=lambda: step.attempt(waiter, everyone))
