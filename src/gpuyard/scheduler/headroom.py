"""What a queue may still take: limits for everyone, quotas for jobs that may not be preempted; and when a job may
make others give way."""

from __future__ import annotations

import msgspec

from gpuyard.model.reasons import MILLISECONDS, Reason, Token
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.queuebook import QueueBook
from gpuyard.scheduler.resources import GPU_AT, Amounts, memory_milli
from gpuyard.scheduler.shapes import Shape


def blockers(queues: QueueBook, leaf: int, amounts: Amounts, firm: bool) -> tuple[Reason, ...]:
    """Every bound on the way to the root that these amounts would break."""
    reasons: list[Reason] = []
    for at in queues.frames[leaf].path:
        frame = queues.frames[at]
        for position, limit in frame.limits:
            if amounts[position] and queues.held[at][position] + amounts[position] > limit:
                left = limit - queues.held[at][position]
                reasons.append(_over(Token.OVER_LIMIT, queues, at, position, left, amounts[position], limit))
        for position, quota in frame.quotas if firm else ():
            if amounts[position] and queues.firm[at][position] + amounts[position] > quota:
                left = quota - queues.firm[at][position]
                reasons.append(_over(Token.OVER_QUOTA, queues, at, position, left, amounts[position], quota))
    return tuple(reasons)


def _over(token: Token, queues: QueueBook, at: int, position: int, left: int, need: int, bound: int) -> Reason:
    name = queues.resources.names[position]
    return Reason(token, name, max(left, 0), need, queues.frames[at].name, never=need > bound)


def may_disturb(draft: Draft, waiter: Waiter) -> bool:
    """Whether a job has waited long enough to make others give way."""
    return _waited_ms(draft, waiter) >= waiter.job.preemption_delay_ms


def delayed(draft: Draft, waiter: Waiter) -> tuple[Reason, ...]:
    """Says how long a job has waited of its preemption delay, while that lasts."""
    if may_disturb(draft, waiter):
        return ()
    return (Reason(Token.DELAYED, MILLISECONDS, _waited_ms(draft, waiter), waiter.job.preemption_delay_ms),)


def _waited_ms(draft: Draft, waiter: Waiter) -> int:
    job = waiter.job
    return draft.ledger.now_ms - max(job.submitted_at_ms, job.last_evicted_at_ms or 0)


def within_bounds(queues: QueueBook, waiter: Waiter) -> bool:
    """Whether what is booked of all a job asks for is within the limits (and for firm jobs the quotas) above it."""
    return exceeded(queues, waiter.leaf, waiter.asked, waiter.firm) is None


def exceeded(queues: QueueBook, leaf: int, asked: Amounts, firm: bool) -> Reason | None:
    """The first bound above a queue that what is booked breaks, of something that is asked for."""
    for at in queues.frames[leaf].path:
        frame = queues.frames[at]
        for token, held, bounds in (
            (Token.OVER_LIMIT, queues.held[at], frame.limits),
            (Token.OVER_QUOTA, queues.firm[at], frame.quotas if firm else ()),
        ):
            for position, bound in bounds:
                if asked[position] and held[position] > bound:
                    return Reason(token, queues.resources.names[position], 0, asked[position], frame.name)
    return None


def headroom(queues: QueueBook, leaf: int, firm: bool, position: int) -> int | None:
    """How much more of one resource a job of this queue may take; None: no bound."""
    least: int | None = None
    for at in queues.frames[leaf].path:
        frame = queues.frames[at]
        bounds = [(frame.limit[position], queues.held[at][position])]
        if firm:
            bounds.append((frame.quota[position], queues.firm[at][position]))
        for bound, held in bounds:
            if bound is not None and (least is None or bound - held < least):
                least = bound - held
    return least


def affordable(draft: Draft, waiter: Waiter, shape: Shape) -> Shape | None:
    """The shape narrowed to the GPU models the queue may still take; None where none is left.

    Matters only where a queue rations single models, or where memory counts more on a small GPU than on a large one.
    """
    resources = draft.queues.resources
    request = shape.request
    if (not resources.by_model and not request.gpu_memory_mib) or not (request.devices or request.mig):
        return shape
    models = request.where.gpu_models or draft.eligibility.models
    kept = tuple(model for model in models if _affordable(draft, waiter, shape, model))
    if len(kept) == len(models):
        return shape
    if not kept:
        return None
    where = msgspec.structs.replace(request.where, gpu_models=kept)
    return draft.shapes.of_value(msgspec.structs.replace(request, where=where))


def _affordable(draft: Draft, waiter: Waiter, shape: Shape, model: str) -> bool:
    request, resources = shape.request, draft.queues.resources
    milli = request.devices * request.gpu_milli
    if request.gpu_memory_mib:
        smallest = draft.shapes.smallest_memory_mib(model)
        milli = request.devices * memory_milli(request.gpu_memory_mib, smallest) if smallest else 0
    milli += sum(resources.slice_milli(profile) * count for profile, count in request.mig)
    positions = [GPU_AT, *([resources.by_model[model]] if model in resources.by_model else [])]
    for position in positions:
        room = headroom(draft.queues, waiter.leaf, waiter.firm, position)
        if room is not None and milli > room:
            return False
    return True
