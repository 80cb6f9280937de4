"""Clear nodes that hold little, so that they are whole when a large job comes: nobody waits for it.

Place in the flow: the last step that moves anything, and only where an operator has switched it on with a threshold of
benefit. Invariant: whoever is moved has a place on a node that was in use already; nothing is opened to close another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuyard.model.jobs import NOBODY, Job, Task, TaskState
from gpuyard.model.quantities import MILLI
from gpuyard.model.reasons import Reason, Token
from gpuyard.scheduler.blocks import Block, by_index, closure
from gpuyard.scheduler.columns import Bools
from gpuyard.scheduler.consolidate import Consolidate, free_milli
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.moves import in_feasible_order
from gpuyard.scheduler.trial import Trial, note_moves


def defragment(draft: Draft, consolidate: Consolidate) -> None:
    """Empty nodes one after the other, those that hold least first, for as long as it is worth it and within budget."""
    if draft.policy.consolidation.defragment_benefit_milli is None:
        return
    for position in _least_used(draft):
        if consolidate.moves_left <= 0 or draft.out_of_steps:
            return
        blocks = _all_on(draft, consolidate, position)
        if blocks and _worth_it(draft, position, blocks) and consolidate.affordable(blocks):
            _clear(draft, consolidate, position, blocks)


def in_use(draft: Draft) -> Bools:
    """Nodes on which something is, or comes to be, that keeps them from being free."""
    used = np.array([any(counts(task, job) for task, job in on) for on in draft.nodes.tasks_on], dtype=np.bool_)
    for placed in draft.placed:
        used[placed.position] = True
    return used


def counts(task: Task, job: Job) -> bool:
    """Whether a node with this task on it is in use: what is nobody's lies everywhere, and counts only with a GPU."""
    return job.queue != NOBODY or bool(task.request.devices or task.request.mig)


def _least_used(draft: Draft) -> list[int]:
    held = draft.eligibility.gpu_all - free_milli(draft)
    candidates = np.flatnonzero(in_use(draft) & (held > 0))
    return list(candidates[np.argsort(held[candidates], kind="stable")].tolist())


def _all_on(draft: Draft, consolidate: Consolidate, position: int) -> list[Block]:
    """What would have to move to leave a node empty; nothing where not all of it can."""
    if any(placed.position == position for placed in draft.placed):
        return []
    there = [(task, job) for task, job in draft.nodes.tasks_on[position] if counts(task, job)]
    if any(task.state is not TaskState.RUNNING for task, _ in there):
        return []
    blocks = closure(list(consolidate.blocks_on(position)))
    going = {(block.job.id, holding.task.id) for block in blocks for holding in block.holdings}
    return blocks if all((job.id, task.id) in going for task, job in there) else []


def _worth_it(draft: Draft, position: int, blocks: Sequence[Block]) -> bool:
    """Whether the node gains enough whole GPUs for what is moved."""
    threshold_milli = draft.policy.consolidation.defragment_benefit_milli
    moved_milli = sum(block.amounts[0] for block in blocks)
    return threshold_milli is not None and draft.eligibility.gpu_all[position] * MILLI >= threshold_milli * moved_milli


def _clear(draft: Draft, consolidate: Consolidate, position: int, blocks: Sequence[Block]) -> None:
    mark = draft.mark()
    for index, block in enumerate(blocks):
        block.index = index
    draft.among = in_use(draft)
    draft.among[position] = False
    draft.evict([one for block in by_index(blocks) for one in block.evicted()])
    trial = Trial(draft, None, blocks, list)
    trial.job_first = True
    trial.run()
    draft.among = None
    note_moves(draft, mark, trial.returned)
    if not all(map(trial.has_returned, blocks)) or not in_feasible_order(draft, mark):
        draft.rollback(mark)
        return
    for entry in draft.evicted_since(mark):
        entry.reason = Reason(Token.MOVED, subject=entry.job.queue)
    for block in blocks:
        consolidate.note(block)
        draft.disturbed.add(block.job.id)
