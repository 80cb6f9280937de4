"""How much of what a job lacks its queue could take back from those who borrowed, where that is not enough.

Place in the flow: `diagnose` asks once the plan is made, about jobs that lack GPUs though their queue is owed them.
Pure arithmetic on the finished draft: nobody is evicted to find out.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from gpuyard.model.jobs import Where
from gpuyard.model.quantities import GPU
from gpuyard.model.reasons import Reason, Token
from gpuyard.policies.policy import Step
from gpuyard.scheduler.blocks import Block
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.headroom import may_disturb
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.reclaim import Reclaim, ReclaimRules, Taken
from gpuyard.scheduler.resources import GPU_AT

MAX_COUNTED: Final = 1_000
"""Blocks counted off in one plan, over all jobs that are told; what lies beyond is not told."""


class TakenBack:
    """Completes the reasons of jobs that lack GPUs."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._step: Reclaim | None = None
        self._left = MAX_COUNTED
        self._known: dict[object, int] = {}

    def told(self, waiter: Waiter, reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
        """The same reasons, with how much could be taken back of the GPUs that are missing."""
        if not any(map(_lacks_gpus, reasons)) or not self._may_take_back(waiter):
            return reasons
        milli = self._milli(waiter)
        return tuple(replace(one, reclaimable=milli) if _lacks_gpus(one) else one for one in reasons)

    def _may_take_back(self, waiter: Waiter) -> bool:
        return Step.RECLAIM in self._draft.policy.steps and may_disturb(self._draft, waiter)

    def _milli(self, waiter: Waiter) -> int:
        """GPU milli that others would have to give, each queue until it is down to what it is owed."""
        step = self._step = self._step or Reclaim(self._draft)
        if not step.within_fair_share(waiter):
            return 0
        rules = ReclaimRules(step, waiter)
        wishes = tuple(dict.fromkeys(shape.request.where for shape in waiter.shapes))
        key = (waiter.leaf, tuple(rules.givers.values()), wishes)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._counted(rules, wishes)
        return known

    def _counted(self, rules: ReclaimRules, wishes: tuple[Where, ...]) -> int:
        taken, total = Taken(rules), 0
        nodes = self._draft.eligibility.nodes
        anywhere = any(not where.gpu_models and nodes(where).all() for where in wishes)
        for giver in rules.givers.values():
            for block in rules.blocks_of(giver):
                if not self._left or not taken.loses((block,)):
                    break
                self._left -= 1
                useful = block.amounts[GPU_AT] if anywhere else self._useful_milli(wishes, block)
                if useful:
                    taken.take((block,))
                    total += useful
        return total

    def _useful_milli(self, wishes: tuple[Where, ...], block: Block) -> int:
        """What of its GPUs the job may use: on such nodes, of such models."""
        return sum(
            share.gpu_milli
            for holding in block.holdings
            for share in holding.shares
            if any(self._may_use(where, holding.position, share.device) for where in wishes)
        )

    def _may_use(self, where: Where, position: int, device: int) -> bool:
        if not self._draft.eligibility.nodes(where)[position]:
            return False
        return not where.gpu_models or self._draft.nodes.frames[position].devices[device].model in where.gpu_models


def _lacks_gpus(reason: Reason) -> bool:
    return reason.token is Token.NOT_ENOUGH and reason.resource.partition("/")[0] == GPU
