"""Stop gangs that have lost a part they cannot do without: what still runs of them only holds GPUs.

Place in the flow: the last step of a cycle, so that a gang the cycle has just completed is left alone.
Invariant: a gang is stopped only when it has been below its minimum for its whole grace, and then all of it.
"""

from __future__ import annotations

from gpuyard.model.jobs import Job, TaskState
from gpuyard.model.plan import Evict
from gpuyard.model.reasons import Reason, Token
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.gang import in_place, leaves, satisfied


def evict_stale_gangs(draft: Draft) -> None:
    """Evict every task of gangs that have been incomplete for too long."""
    for id in sorted(draft.ledger.incomplete):
        job = draft.ledger.jobs[id]
        if id in draft.disturbed:
            continue
        if _out_of_grace(draft, job) and not satisfied(job.group, in_place(job, draft.tasks_given(id))):
            _evict(draft, job)


def _out_of_grace(draft: Draft, job: Job) -> bool:
    grace_ms = draft.policy.staleness_grace_ms if job.staleness_grace_ms is None else job.staleness_grace_ms
    since_ms = draft.ledger.now_ms if job.stale_since_ms is None else job.stale_since_ms
    return grace_ms >= 0 and draft.ledger.now_ms - since_ms >= grace_ms


def _evict(draft: Draft, job: Job) -> None:
    counts = in_place(job, frozenset())
    short = next((leaf for leaf in leaves(job.group) if counts.get(leaf.name, 0) < leaf.min_tasks), job.group)
    reason = Reason(Token.STALE, have=counts.get(short.name, 0), need=short.min_tasks, subject=short.name)
    # What this cycle has already stopped or moved for another job is not stopped twice.
    gone = {entry.holding.task.id for entry in draft.evicted_since(0) if entry.job.id == job.id}
    for task in job.tasks:
        if task.state is TaskState.RUNNING and task.id not in gone:
            draft.evictions.append(Evict(job.id, task.id, task.node, reason))
