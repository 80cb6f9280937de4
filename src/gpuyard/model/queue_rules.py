"""What a tree of queues must keep to, checked before it is written.

Place in the flow: files and REST ─queues─▶ **queue_rules** ─problems─▶ refused, or ─▶ state. Pure.
Invariant: a tree without problems has one root path per queue, and owes nobody more than the queue above has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from gpuyard.errors import InputError, Where
from gpuyard.model.limits import MAX_AMOUNT, queue_problem
from gpuyard.model.quantities import format_amount
from gpuyard.model.queues import MAX_QUEUE_DEPTH, MAX_QUEUES, Queue, QueueShare
from gpuyard.model.text import amount_text

MAX_CHILDREN_SHOWN: Final = 8

Locate = Callable[[int, str, str], Where | None]
"""Where something is written: of the queue at this position, this field ('' for the queue itself) of a resource."""


def nowhere(position: int, field: str, resource: str) -> Where | None:
    """For queues that do not come from a file."""
    return None


def validate_queues(queues: Sequence[Queue], locate: Locate = nowhere) -> tuple[InputError, ...]:
    """Every contradiction in a tree of queues; empty where it is sound."""
    if len(queues) > MAX_QUEUES:
        return (InputError(f"{len(queues)} queues are more than {MAX_QUEUES}", fix="merge some"),)
    return tuple(
        problem
        for rule in (_repeated_names, _missing_parents, _loops, _too_deep, _wrong_amounts, _overcommitted)
        for problem in rule(queues, locate)
    )


def tree_problem(queues: Sequence[Queue]) -> str:
    """Return why the scheduler cannot count with a tree of queues; an empty text where it can.

    A tree may owe more than it has, or name a parent that is not there, and can still be planned on.
    """
    if len(queues) > MAX_QUEUES:
        return f"{len(queues)} queues are more than {MAX_QUEUES}"
    broken = (problem.what for rule in (_repeated_names, _loops, _too_deep) for problem in rule(queues, nowhere))
    return next(broken, "") or next((problem for queue in queues if (problem := queue_problem(queue))), "")


def _repeated_names(queues: Sequence[Queue], locate: Locate) -> Iterator[InputError]:
    seen: set[str] = set()
    for position, queue in enumerate(queues):
        if queue.name in seen:
            what = f'queue "{queue.name}" is defined twice'
            yield InputError(what, where=locate(position, "", ""), fix="rename one of them")
        seen.add(queue.name)


def _missing_parents(queues: Sequence[Queue], locate: Locate) -> Iterator[InputError]:
    names = {queue.name for queue in queues}
    for position, queue in enumerate(queues):
        if queue.parent is not None and queue.parent not in names:
            what = f'queue "{queue.name}" has the parent "{queue.parent}", which does not exist'
            fix = f'define "{queue.parent}", or name one of: {", ".join(sorted(names)[:MAX_CHILDREN_SHOWN])}'
            yield InputError(what, where=locate(position, "parent", ""), fix=fix)


def _loops(queues: Sequence[Queue], locate: Locate) -> Iterator[InputError]:
    """One problem per loop, told from the queue of it that comes first."""
    positions = {queue.name: position for position, queue in reversed(list(enumerate(queues)))}
    for loop in _all_loops(queues):
        first = min(range(len(loop)), key=lambda at: positions[loop[at]])
        told = [*loop[first:], *loop[:first], loop[first]]
        what = f'queue "{told[0]}" is above itself: {" → ".join(told)}'
        yield InputError(what, where=locate(positions[told[0]], "parent", ""), fix="give one of them another parent")


def _all_loops(queues: Sequence[Queue]) -> list[list[str]]:
    """Each loop as the names from a queue up to itself. Every queue is walked over once, however long the chains."""
    parents = {queue.name: queue.parent for queue in queues}
    walked: dict[str, int] = {}
    loops = []
    for walk, queue in enumerate(queues):
        path: list[str] = []
        name: str | None = queue.name
        while name is not None and name not in walked:
            walked[name] = walk
            path.append(name)
            name = parents.get(name)
        if name is not None and walked[name] == walk and name in path:
            loops.append(path[path.index(name) :])
    return loops


def _too_deep(queues: Sequence[Queue], locate: Locate) -> Iterator[InputError]:
    parents = {queue.name: queue.parent for queue in queues}
    for position, queue in enumerate(queues):
        depth, above = 1, queue.parent
        while above is not None and depth <= MAX_QUEUE_DEPTH:
            depth, above = depth + 1, parents.get(above)
        if depth == MAX_QUEUE_DEPTH + 1 and above is None:
            what = f'queue "{queue.name}" lies deeper than {MAX_QUEUE_DEPTH} levels'
            yield InputError(what, where=locate(position, "", ""), fix="take out a level above it")


def _wrong_amounts(queues: Sequence[Queue], locate: Locate) -> Iterator[InputError]:
    for position, queue in enumerate(queues):
        wrong = [problem for share in queue.shares for problem in _wrong_share(queue, position, share, locate)]
        yield from wrong
        if not wrong and (problem := queue_problem(queue)):
            yield InputError(problem, where=locate(position, "", ""), fix="check the number")


def _wrong_share(queue: Queue, position: int, share: QueueShare, locate: Locate) -> Iterator[InputError]:
    fields = (("quota", share.quota), ("limit", share.limit), ("weight", share.weight_milli))
    for field, amount in fields:
        where = locate(position, field, share.resource)
        if amount is not None and amount < 0:
            what = f'the {field} of queue "{queue.name}" is negative'
            yield InputError(what, where=where, fix="write zero or more, or leave it out")
        if amount is not None and amount > MAX_AMOUNT:
            what = f'the {field} of queue "{queue.name}" is absurdly large'
            yield InputError(what, where=where, fix="write unlimited, or check the unit")
    if share.quota is not None and share.limit is not None and share.quota > share.limit:
        owed = amount_text(share.resource, share.quota)
        what = f'queue "{queue.name}" is owed {owed} but may hold only {format_amount(share.resource, share.limit)}'
        fix = "lower its quota, or raise or remove its limit"
        yield InputError(what, where=locate(position, "quota", share.resource), fix=fix)


def _overcommitted(queues: Sequence[Queue], locate: Locate) -> Iterator[InputError]:
    children: defaultdict[str | None, list[tuple[int, Queue]]] = defaultdict(list)
    for position, queue in enumerate(queues):
        children[queue.parent].append((position, queue))
    looped = {name for loop in _all_loops(queues) for name in loop}
    for position, parent in enumerate(queues):
        # On a loop "above" and "below" mean nothing; that there is one is told already.
        if parent.overcommit or parent.name in looped:
            continue
        for share in parent.shares:
            yield from _overcommitted_share(position, parent, share, children[parent.name], locate)


def _overcommitted_share(
    position: int, parent: Queue, share: QueueShare, children: list[tuple[int, Queue]], locate: Locate
) -> Iterator[InputError]:
    owed = [(at, child.name, child.share(share.resource).quota or 0) for at, child in children]
    total = sum(amount for _, _, amount in owed)
    if share.quota is None or not owed or total <= share.quota:
        return
    at, name, most = max(owed, key=lambda entry: entry[2])
    has = format_amount(share.resource, share.quota)
    if most > share.quota:
        asked = amount_text(share.resource, most)
        what = f'queue "{name}" asks for {asked} of its parent "{parent.name}", which has {has}'
        where = locate(at, "quota", share.resource)
    else:
        total_text = amount_text(share.resource, total)
        what = f'the children of queue "{parent.name}" ask for {total_text}, and it has {has}'
        where = locate(position, "quota", share.resource)
    yield InputError(what, where=where, fix=_ways_out(parent.name, share.resource, total, owed))


def _ways_out(parent: str, resource: str, total: int, owed: list[tuple[int, str, int]]) -> str:
    asking = [(name, amount) for _, name, amount in owed if amount]
    shown = ", ".join(f"{name} {format_amount(resource, amount)}" for name, amount in asking[:MAX_CHILDREN_SHOWN])
    more = f" and {len(asking) - MAX_CHILDREN_SHOWN} more" if len(asking) > MAX_CHILDREN_SHOWN else ""
    added = f"quotas of children add up to {format_amount(resource, total)} ({shown}{more})"
    return f"{added}; lower them, raise {parent}, or set overcommit: true"
