"""Inside a queue, a job makes way for one of strictly higher priority.

Place in the flow: after reclaim. Elastic jobs give what they have above their minimum first. Invariant: nobody gives
way to a job of the same or a lower priority, and nothing leaves the queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuyard.model.reasons import Reason, Token
from gpuyard.scheduler.blocks import Block, Blocks
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.search import Search
from gpuyard.scheduler.yielding import started_at_ms


class Preempt:
    """One run of the step."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.blocks = Blocks(draft)

    def attempt(self, waiter: Waiter) -> bool:
        rules = PreemptRules(self, waiter)
        return rules.any_lower() and Search(self.draft, waiter, rules).run()


class PreemptRules:
    """Jobs of the same queue and of lower priority."""

    must_move = False

    def __init__(self, step: Preempt, waiter: Waiter) -> None:
        self.step = step
        self.draft = step.draft
        self.waiter = waiter
        self.may_move = step.draft.policy.reclaim_moves
        self._min_runtime_ms = self._nearest_min_runtime_ms()

    def any_lower(self) -> bool:
        order = self.draft.ledger.yielders[self.waiter.leaf].order()
        return bool(order) and -order[-1][0] < self.waiter.job.priority

    def blocks(self) -> Iterator[Block]:
        yielders = self.draft.ledger.yielders[self.waiter.leaf]
        now_ms = self.draft.ledger.now_ms
        for key in reversed(yielders.order()):
            if -key[0] >= self.waiter.job.priority:
                return
            job = yielders.jobs[key[4]]
            safe = self._min_runtime_ms and now_ms < started_at_ms(job) + self._min_runtime_ms
            for block in self.step.blocks.of(job, self.waiter.leaf):
                if not safe or block.surplus:
                    yield block

    def alternatives(self, last: Block) -> Iterator[Block]:
        """Blocks of jobs of the same priority."""
        reached = False
        for block in self.blocks():
            if reached and block.job.priority != last.job.priority:
                return
            if reached:
                yield block
            reached = reached or block is last

    def shortfall(self, chosen: Sequence[Block]) -> int | None:
        return 0

    def reason(self, block: Block, moved: bool) -> Reason:
        name = self.draft.queues.frames[block.leaf].name
        return Reason(Token.MOVED if moved else Token.PREEMPTED, subject=name, beneficiary=self.waiter.job.id)

    def _nearest_min_runtime_ms(self) -> int:
        frames = self.draft.queues.frames
        for at in frames[self.waiter.leaf].path:
            value = frames[at].queue.preempt_min_runtime_ms
            if value is not None:
                return value
        return 0
