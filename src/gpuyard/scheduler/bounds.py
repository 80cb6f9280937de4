"""Bounds of queues, raised just as far as a job needs it, so that the tree stays without contradiction.

Place in the flow: ways_out ─what is over─▶ **bounds** ─edits of queues─▶ tryout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gpuyard.model.explanation import Edit, Field
from gpuyard.model.queue_rules import validate_queues
from gpuyard.model.queues import Queue
from gpuyard.model.reasons import Reason, Token
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.edits import edited_queues
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.resources import GPU_AT

Key = tuple[str, str, Field]
"""A queue, a resource, and which of its two bounds."""


def raised(draft: Draft, over: Iterable[Reason], others: Callable[[int], Sequence[int]]) -> tuple[Edit, ...]:
    """Edits that lift the bounds these reasons are about; `others` is what else each queue is to hold by then."""
    now, planned = draft.ledger.queues, draft.queues
    wanted: dict[Key, int] = {}
    for reason in over:
        at, position = planned.by_name[reason.subject], planned.resources.at[reason.resource]
        firm = reason.token is Token.OVER_QUOTA
        held = [(books.firm if firm else books.held)[at][position] for books in (now, planned)]
        key = (reason.subject, reason.resource, Field.QUOTA if firm else Field.LIMIT)
        amount = max(held[0] + others(at)[position], held[1]) + reason.need
        wanted[key] = max(amount, wanted.get(key, 0))
    return consistent(draft.ledger.queue_tree, wanted)


def owed_edits(draft: Draft, waiter: Waiter) -> tuple[Edit, ...]:
    """Edits after which the queues of a waiter are owed what they hold and what it asks for, in GPUs."""
    books = draft.queues
    wanted: dict[Key, int] = {}
    name = books.resources.names[GPU_AT]
    for at in books.frames[waiter.leaf].path:
        quota, need = books.frames[at].quota[GPU_AT], books.held[at][GPU_AT] + waiter.asked[GPU_AT]
        if quota is not None and quota < need:
            wanted[books.frames[at].name, name, Field.QUOTA] = need
    return consistent(draft.ledger.queue_tree, wanted)


def consistent(tree: tuple[Queue, ...], wanted: dict[Key, int]) -> tuple[Edit, ...]:
    """The wanted bounds as edits, with what must rise along: limits below their quota, parents below their children.

    Empty where nothing rises, or where the tree would contradict itself more than it does already.
    """
    queues = {queue.name: queue for queue in tree}
    children: dict[str, list[str]] = {}
    for queue in tree:
        children.setdefault(queue.parent or "", []).append(queue.name)
    bounds = dict(wanted)
    for name, resource, field in wanted:
        if field is Field.QUOTA:
            _lift_parents(queues, children, name, resource, bounds)
    for (name, resource, field), amount in list(bounds.items()):
        limit = _bound(queues, bounds, name, resource, Field.LIMIT)
        if field is Field.QUOTA and limit is not None and amount > limit:
            bounds[name, resource, Field.LIMIT] = amount
    edits = tuple(_edits(queues, bounds))
    sound = len(validate_queues(edited_queues(tree, edits))) <= len(validate_queues(tree))
    return edits if sound else ()


def _lift_parents(
    queues: dict[str, Queue], children: dict[str, list[str]], name: str, resource: str, bounds: dict[Key, int]
) -> None:
    """Give every queue above what the queues below it are owed together, unless it may owe more than it has."""
    seen = {name}
    parent = queues[name].parent
    while parent in queues and parent not in seen:
        seen.add(parent)
        owed = sum(_bound(queues, bounds, child, resource, Field.QUOTA) or 0 for child in children[parent])
        has = _bound(queues, bounds, parent, resource, Field.QUOTA)
        if has is not None and owed > has and not queues[parent].overcommit:
            bounds[parent, resource, Field.QUOTA] = owed
        parent = queues[parent].parent


def _bound(queues: dict[str, Queue], bounds: dict[Key, int], name: str, resource: str, field: Field) -> int | None:
    share = queues[name].share(resource)
    return bounds.get((name, resource, field), share.quota if field is Field.QUOTA else share.limit)


def _edits(queues: dict[str, Queue], bounds: dict[Key, int]) -> Iterable[Edit]:
    for (name, resource, field), after in bounds.items():
        before = _bound(queues, {}, name, resource, field)
        if before is not None and after > before:
            yield Edit(field, name, resource=resource, before=before, after=after)
