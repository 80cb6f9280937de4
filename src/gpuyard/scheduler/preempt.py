"""Inside a queue, a job makes way for one of strictly higher priority.

Place in the flow: after reclaim. Elastic jobs give what they have above their minimum first. Invariant: nobody gives
way to a job of the same or a lower priority, and nothing leaves the queue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import takewhile
from operator import attrgetter

from gpuyard.model.reasons import Reason, Token
from gpuyard.scheduler.blocks import Anyone, Block, Blocks, InTurn, Judge, by_index, in_yielding_order, same_rank
from gpuyard.scheduler.draft import Draft, Everyone
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.search import Search


class Preempt:
    """One run of the step."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.blocks = Blocks(draft)

    def attempt(self, waiter: Waiter, everyone: Everyone) -> bool:
        rules = PreemptRules(self, waiter)
        return rules.any_lower() and Search(self.draft, waiter, rules, everyone).run()


class PreemptRules:
    """Jobs of the same queue and of lower priority."""

    ranked = True
    must_move = False
    job_first = False

    def __init__(self, step: Preempt, waiter: Waiter) -> None:
        self.step = step
        self.draft = step.draft
        self.waiter = waiter
        self.may_move = step.draft.policy.reclaim_moves
        self._min_runtime_ms = self.draft.queues.nearest(waiter.leaf, attrgetter("preempt_min_runtime_ms"))

    def any_lower(self) -> bool:
        """Whether anything here has a lower priority, or may have."""
        order = self.draft.ledger.yielders[self.waiter.leaf].order()
        return bool(self.step.blocks.unstarted) or (bool(order) and -order[-1][0] < self.waiter.job.priority)

    def blocks(self) -> Iterator[Block]:
        in_order = in_yielding_order(self.draft, self.step.blocks, self.waiter.leaf, self._min_runtime_ms)
        return takewhile(lambda block: block.job.priority < self.waiter.job.priority, in_order)

    def closes(self, block: Block) -> Collection[int]:
        return ()

    def alternatives(self, last: Block) -> Iterator[Block]:
        return same_rank(self.blocks(), last)

    def judge(self, counted: Sequence[Block]) -> Judge:
        return InTurn(Anyone(), counted)

    def in_order(self, chosen: Sequence[Block]) -> list[Block]:
        return by_index(chosen)

    def allows(self, chosen: Sequence[Block], moved: set[int]) -> bool:
        return True

    def reason(self, block: Block, moved: bool) -> Reason:
        name = self.draft.queues.frames[block.leaf].name
        return Reason(Token.MOVED if moved else Token.PREEMPTED, subject=name, beneficiary=self.waiter.job.id)
