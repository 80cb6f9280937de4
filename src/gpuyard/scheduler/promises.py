"""Keep what earlier cycles promised: a place that has become free goes to whoever it was promised to, and nobody else.

Place in the flow: the first step of a cycle, before anyone else is served. Invariant: a gang starts none of its
promised tasks before all of them can start; a promise that can no longer be kept is taken back, never left hanging.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuyard.model.jobs import Job, Task, TaskState
from gpuyard.model.plan import Evict
from gpuyard.model.reasons import Reason, Token
from gpuyard.scheduler.draft import Draft, Kept
from gpuyard.scheduler.gang import ACTIVE, satisfied
from gpuyard.scheduler.headroom import exceeded
from gpuyard.scheduler.ledger import Ledger
from gpuyard.scheduler.nodebook import NodeBook
from gpuyard.scheduler.queuebook import QueueBook
from gpuyard.scheduler.topology import level_left


def keep_promises(draft: Draft) -> None:
    """Start what can be started, take back what cannot be kept, and let the rest wait for its place."""
    for id in sorted(draft.ledger.promised):
        job = draft.ledger.jobs[id]
        promised = [task for task in job.tasks if task.state is TaskState.PROMISED]
        why_not = _cannot_be_kept(draft, job, promised)
        if why_not is not None:
            _take_back(draft, job, promised, why_not)
            continue
        ready = [task for task in promised if _is_free(draft, job, task)]
        whole = len(ready) == len(promised) or _has_its_minimum(job, ())
        if whole and _has_its_minimum(job, ready):
            _start(draft, job, ready)
        waiting = [task for task in promised if task not in ready]
        if waiting:
            draft.leave_waiting(job.queue, (id,), (Reason(Token.PLACE_FREEING, subject=waiting[0].node),))


def _cannot_be_kept(draft: Draft, job: Job, promised: Sequence[Task]) -> Reason | None:
    """A place that will not come free, a domain its node has left, a bound that was lowered, or neighbours since."""
    for task in promised:
        if draft.nodes.is_broken(job, task):
            return Reason(Token.DRAINED, subject=task.node)
    leaf = draft.queues.leaf_at(job.queue)
    if leaf < 0:
        return Reason(Token.QUEUE_MISSING, subject=job.queue)
    places = {task.id: task.node for task in job.tasks if task.state in ACTIVE}
    level = level_left(draft.domains, draft.nodes.at, job, places)
    if level:
        return Reason(Token.NO_DOMAIN, subject=level)
    for task in promised:
        position = draft.nodes.at[task.node]
        amounts = draft.ledger.amounts(task, draft.shapes.of(task.request), position)
        over = exceeded(draft.queues, leaf, amounts, not job.preemptible)
        if over is not None:
            return over
        if not _in_good_company(draft, job, task, position):
            return Reason(Token.NO_MATCHING_NODE, subject=task.node)
    return None


def _in_good_company(draft: Draft, job: Job, task: Task, position: int) -> bool:
    """Whether the rules about neighbours, its own and theirs, still let it go there."""
    company = draft.company
    return company is None or not company.concerns(job, task) or company.is_right_for(job, task, position)


def _is_free(draft: Draft, job: Job, task: Task) -> bool:
    """Whether it can start: its place is free, whoever it keeps apart from is gone, and it has left its former one."""
    position = draft.nodes.at[task.node]
    if task.leaving or not draft.nodes.now[position].holds(task.request, draft.nodes.held(job, task)):
        return False
    return draft.company is None or draft.company.is_clear(job, task, position)


def _has_its_minimum(job: Job, ready: Sequence[Task]) -> bool:
    """Whether what runs, and what is ready to start, is enough."""
    running: dict[str, int] = {}
    for task in job.tasks:
        if task.state is TaskState.RUNNING or task in ready:
            leaf = job.group.name if job.group.leaf else task.group
            running[leaf] = running.get(leaf, 0) + 1
    return satisfied(job.group, running)


def _start(draft: Draft, job: Job, tasks: Sequence[Task]) -> None:
    """Places on one node are taken one by one: two promises of parts may share a device."""
    for task in tasks:
        if _is_free(draft, job, task):
            position = draft.nodes.at[task.node]
            shares = draft.nodes.held(job, task)
            draft.nodes.start(position, task.request, shares)
            draft.kept.append(Kept(job.id, task.id, task.node, shares))


def _take_back(draft: Draft, job: Job, promised: Sequence[Task], why: Reason) -> None:
    """The places are free for others at once; what was promised is planned anew, as a whole, in the next cycle."""
    draft.withheld[job.id] = why
    for task in promised:
        draft.taken_back.append(Evict(job.id, task.id, task.node, why))
        draft.withdraw_promise(job, task)
        release(draft.ledger, draft.nodes, draft.queues, job, task)


def release(ledger: Ledger, nodes: NodeBook, queues: QueueBook, job: Job, task: Task) -> None:
    """Take a promised place off these books, unless it never was on them."""
    leaf = queues.leaf_at(job.queue)
    if leaf < 0 or nodes.is_broken(job, task):
        return
    position = nodes.at[task.node]
    nodes.evict(position, [(task.request, nodes.held(job, task))])
    amounts = ledger.amounts(task, ledger.shapes.of(task.request), position)
    queues.charge(leaf, amounts, not job.preemptible, -1)
