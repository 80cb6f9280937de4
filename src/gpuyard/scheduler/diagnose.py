"""Why a chunk fits nowhere: every blocker with its numbers, the hopeless ones first.

Place in the flow: asked once for each kind of job that still waits when a cycle has placed what it can, so that the
numbers are those of the finished plan. It may look at the whole cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from gpuyard.model.jobs import NOBODY, LabelRule, Request, Task, TaskState, Where
from gpuyard.model.nodes import OWN_LABEL
from gpuyard.model.quantities import GPU
from gpuyard.model.reasons import CLUSTER, NODES, TASKS, Holding, Reason, Token
from gpuyard.scheduler.columns import Bools, Ints
from gpuyard.scheduler.company import Company
from gpuyard.scheduler.draft import Draft, Left
from gpuyard.scheduler.gang import Chunk
from gpuyard.scheduler.headroom import blockers, delayed
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.measures import Measure, measures
from gpuyard.scheduler.placement import Placer
from gpuyard.scheduler.repelling import Repelling
from gpuyard.scheduler.reserve import Reserve
from gpuyard.scheduler.taken_back import TakenBack
from gpuyard.scheduler.topology import within

MAX_HOLDERS: Final = 3
MAX_CARRIERS: Final = 3
"""Jobs of other queues named whose rules keep one away."""
MAX_VALUES: Final = 5
"""Of a label, named in one reason."""


def say_why(draft: Draft) -> None:
    """Give everyone who was left waiting their reasons, with the numbers of the finished plan."""
    alike: dict[object, tuple[Reason, ...]] = {}
    taken_back = TakenBack(draft)
    for left in draft.left:
        waiter = left.waiter
        withheld = draft.withheld.get(waiter.job.id)
        if withheld is not None:
            draft.leave_waiting(waiter.job.queue, left.jobs, (withheld,))
            continue
        reasons = blockers(draft.queues, waiter.leaf, waiter.at_least, waiter.firm)
        if not reasons and draft.reserved is not None:
            _say_why_beside(draft, draft.reserved, left, alike, taken_back)
            continue
        if not reasons:
            known = alike.get(waiter.signature) if not draft.queues.resources.by_model else None
            alike[waiter.signature] = known or why_it_does_not_fit(draft, waiter)
            reasons = taken_back.told(waiter, alike[waiter.signature])
        if not any(reason.never for reason in reasons):
            reasons += delayed(draft, waiter)
        draft.leave_waiting(waiter.job.queue, left.jobs, reasons)


def _say_why_beside(
    draft: Draft, reserved: Reserve, left: Left, alike: dict[object, tuple[Reason, ...]], taken_back: TakenBack
) -> None:
    """Jobs of one line may end before a start that is kept, or after it: each kind has its own reasons."""
    for ids in reserved.by_bound(left):
        waiter = left.waiter if left.waiter.job.id == ids[0] else draft.ledger.lines.waiters[ids[0]]
        kind = (waiter.signature, waiter.leaf, waiter.firm, reserved.bound_until_ms(waiter.job))
        reasons = alike.get(kind)
        if reasons is None:
            head = reserved.held_back_by(waiter)
            kept = (Reason(Token.RESERVED, beneficiary=head),) if head else ()
            reasons = alike[kind] = kept or taken_back.told(waiter, why_it_does_not_fit(draft, waiter))
        draft.leave_waiting(waiter.job.queue, ids, reasons)


def why_it_does_not_fit(draft: Draft, waiter: Waiter) -> tuple[Reason, ...]:
    """The reasons of a waiter whose chunk could not be placed: never empty."""
    asked = _asked(draft, waiter)
    return (
        _hopeless(asked)
        or tuple(_too_few_nodes(draft, waiter, asked))
        or _no_company(draft, waiter)
        or _reserved(draft, waiter)
        or _short(draft, asked)
        or _no_domain(draft, waiter.chunk)
        or _over_model_limits(draft, waiter)
        or _fragmented(draft, asked)
        or _fragmented_nodes(draft, waiter, asked)
        or blockers(draft.queues, waiter.leaf, waiter.asked, waiter.firm)
        or (Reason(Token.FRAGMENTED, TASKS, len(waiter.shapes) - 1, len(waiter.shapes)),)
    )


def every_blocker(draft: Draft, waiter: Waiter, told: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """What a plan told about a waiter, and all else that stands in its way: each thing once, as told first."""
    asked = _asked(draft, waiter)
    placeable = [entry for entry in asked if entry.nodes.any()]
    domain = (reason for reason in _no_domain(draft, waiter.chunk) if reason.have < reason.need or reason.never)
    found = (
        *_all_hopeless(asked),
        *_too_few_nodes(draft, waiter, placeable),
        *blockers(draft.queues, waiter.leaf, waiter.at_least, waiter.firm),
        *(_no_company(draft, waiter) if placeable else ()),
        *_reserved(draft, waiter),
        *_short(draft, placeable),
        *domain,
        *_over_model_limits(draft, waiter),
        *_all_fragmented(draft, placeable),
        *_fragmented_nodes(draft, waiter, placeable),
    )
    return _with_news(told, found)


def _with_news(told: tuple[Reason, ...], found: Iterable[Reason]) -> tuple[Reason, ...]:
    """What was told, and of what was found whatever that does not say already."""
    kept = list(told)
    for reason in found:
        if not any(_says_it_too(other, reason) for other in kept):
            kept.append(reason)
    return tuple(kept)


_STRONGER: Final = {
    Token.NOT_ENOUGH: (Token.TOO_LARGE,),
    Token.FRAGMENTED: (Token.TOO_LARGE, Token.NOT_ENOUGH),
}
"""Of one resource, what goes without saying once one of these has been said."""


def _says_it_too(said: Reason, reason: Reason) -> bool:
    if said.resource != reason.resource:
        return False
    if said.token is reason.token:
        return said.subject == reason.subject and said.need == reason.need
    # Less in one place than in all is news; as much is not.
    news = said.token is Token.NOT_ENOUGH and reason.have < said.have
    return said.token in _STRONGER.get(reason.token, ()) and not news


class Asked(NamedTuple):
    """One shape of a chunk: how many tasks have it, which nodes it may use, and what it needs of them."""

    request: Request
    tasks: int
    nodes: Bools
    needs: list[Measure]


def _asked(draft: Draft, waiter: Waiter) -> list[Asked]:
    """The shapes of a chunk, the largest first."""
    # Of equals the first of the job first: in which order shapes became known says nothing.
    shapes = sorted(dict.fromkeys(waiter.shapes), key=lambda shape: shape.asked, reverse=True)
    return [
        Asked(shape.request, waiter.shapes.count(shape), _matching(draft, shape.request.where), measures(draft, shape))
        for shape in shapes
    ]


# What waiting cannot cure --------------------------------------------------------------------------------------


def _hopeless(asked: list[Asked]) -> tuple[Reason, ...]:
    """The first of what waiting cannot cure."""
    return tuple(islice(_all_hopeless(asked), 1))


def _all_hopeless(asked: list[Asked]) -> Iterator[Reason]:
    """No node matches, none is large enough even when empty, or all of them together are too small."""
    for request, count, nodes, needs in asked:
        if not nodes.any():
            yield Reason(Token.NO_MATCHING_NODE, need=1, subject=_wish(request), never=True)
            continue
        large_enough = True
        for measure in needs:
            largest = int(measure.capacity[nodes].max())
            everything, need = int(measure.total_capacity[nodes].sum()), measure.total_each * count
            if measure.each > largest:
                yield Reason(Token.TOO_LARGE, measure.resource, largest, measure.each, never=True)
            if count > 1 and need > everything:
                yield Reason(Token.TOO_LARGE, measure.resource, everything, need, CLUSTER, never=True)
            large_enough = large_enough and measure.each <= largest and (count == 1 or need <= everything)
        most = int(np.minimum.reduce([measure.all_places for measure in needs])[nodes].sum())
        if large_enough and most < count:
            yield Reason(Token.TOO_LARGE, TASKS, most, count, CLUSTER, never=True)


def _too_few_nodes(draft: Draft, waiter: Waiter, asked: list[Asked]) -> Iterator[Reason]:
    """Of a job that lies on nodes with so many tasks on each: none is so large, or too few are."""
    if not waiter.chunk.group.node_each:
        return
    each, need = _tasks_on_each(waiter), len(waiter.chunk.children)
    for _, _, nodes, needs in asked:
        large_enough = True
        for measure in needs:
            largest = int(measure.total_capacity[nodes].max())
            if measure.total_each * each > largest:
                large_enough = False
                yield Reason(Token.TOO_LARGE, measure.resource, largest, measure.total_each * each, never=True)
        found = _count_with_room(draft, waiter, nodes, [measure.all_places for measure in needs])
        if large_enough and found < need:
            yield Reason(Token.TOO_LARGE, NODES, found, need, _tasks_text(each), never=True)


def _tasks_on_each(waiter: Waiter) -> int:
    return max(len(child.tasks) for child in waiter.chunk.children)


def _tasks_text(count: int) -> str:
    return f"{count} task{'' if count == 1 else 's'}"


def _count_with_room(draft: Draft, waiter: Waiter, nodes: Bools, places: list[Ints]) -> int:
    """Nodes that take all the tasks a job has on each, and hold none of it yet."""
    open_to_it = nodes.copy()
    for node in waiter.gang.nodes_of(waiter.job.group) if waiter.gang else ():
        if node in draft.nodes.at:
            open_to_it[draft.nodes.at[node]] = False
    return int((np.minimum.reduce(places)[open_to_it] >= _tasks_on_each(waiter)).sum())


def _matching(draft: Draft, where: Where) -> Bools:
    """Nodes that labels, taints and GPU models leave to a task."""
    allowed = draft.eligibility.nodes(where)
    if not where.gpu_models:
        return allowed
    models = set(where.gpu_models)
    having = [not models.isdisjoint(device.model for device in frame.devices) for frame in draft.nodes.frames]
    return allowed & np.array(having, dtype=np.bool_)


def _wish(request: Request) -> str:
    """What the job asks of a node's labels, taints and models, in short."""
    rules = dict.fromkeys(_in_words(rule) for rules in request.where.any_of for rule in rules)
    return ", ".join([*rules, *(f"model {model}" for model in request.where.gpu_models)])


def _in_words(rule: LabelRule) -> str:
    """Of many values the first few. What a world calls a label of its own is no prefix people know."""
    more = len(rule.values) - MAX_VALUES
    values = [*rule.values[:MAX_VALUES], *([f"{more} more"] if more > 0 else [])]
    return f"{rule.key.removeprefix(OWN_LABEL)} {rule.operator} {'|'.join(values)}".strip()


# What is missing -----------------------------------------------------------------------------------------------


def _short(draft: Draft, asked: list[Asked]) -> tuple[Reason, ...]:
    """Everything of which not enough is free in all, on the nodes the job may use."""
    wanted: dict[tuple[str, Where], tuple[int, int, Request]] = {}
    for request, count, nodes, needs in asked:
        for measure in needs:
            key = (measure.resource, request.where)
            need, have, _ = wanted.get(key, (0, 0, request))
            # Shapes with the same wishes draw on the same nodes; parts of different sizes leave different rests.
            have = max(have, int(measure.total_free[nodes].sum()))
            wanted[key] = (need + measure.total_each * count, have, request)
    return tuple(
        Reason(Token.NOT_ENOUGH, resource, max(have, 0), need, holders=_holders(draft, resource, request))
        for (resource, _), (need, have, request) in wanted.items()
        if have < need
    )


def _holders(draft: Draft, resource: str, request: Request) -> tuple[Holding, ...]:
    """Who holds most of what is missing: leaf queues, the largest first. Slices and task slots have no such number."""
    queues = draft.queues
    if request.where.gpu_models and resource.partition("/")[0] == GPU:
        held = _held_of_models(draft, request.where.gpu_models)
    elif resource in queues.resources.at:
        position = queues.resources.at[resource]
        held = {frame.name: queues.held[frame.at][position] for frame in queues.frames if frame.leaf}
    else:
        return ()
    holding = [Holding(queue, amount) for queue, amount in held.items() if amount > 0]
    return tuple(sorted(holding, key=lambda entry: (-entry.amount, entry.queue))[:MAX_HOLDERS])


def _held_of_models(draft: Draft, models: tuple[str, ...]) -> dict[str, int]:
    """GPU milli of these models that each leaf queue holds."""
    held: dict[str, int] = {}
    for queue, position, device, milli in _shares(draft):
        if draft.nodes.frames[position].devices[device].model in models:
            held[queue] = held.get(queue, 0) + milli
    return held


def _shares(draft: Draft) -> Iterator[tuple[str, int, int, int]]:
    """Queue, node, device and milli of every share that a queue holds or has just been given."""
    frames = draft.nodes.frames
    for position, tasks in enumerate(draft.nodes.tasks_on):
        for task, job in tasks:
            if task.state in (TaskState.RUNNING, TaskState.PROMISED) and job.queue != NOBODY:
                for share in task.shares:
                    if share.device < len(frames[position].devices):
                        yield job.queue, position, share.device, share.gpu_milli
    for placed in draft.placed:
        for share in placed.shares:
            yield placed.waiter.job.queue, placed.position, share.device, share.gpu_milli


# What stands in the way ------------------------------------------------------------------------------------------


def _no_company(draft: Draft, waiter: Waiter) -> tuple[Reason, ...]:
    """Rules about other tasks, its own or theirs, keep it from every node, or from those that would have room."""
    if draft.company is None or not waiter.ruled:
        return ()
    mark = draft.mark()
    task, found = Placer(draft).stuck_at(waiter)
    reasons = () if task is None else _forbidden(draft, draft.company, waiter, task)
    draft.rollback(mark)
    together = (Reason(Token.FRAGMENTED, TASKS, found, len(waiter.shapes)),) if reasons and found else ()
    return (*together, *reasons)


def _forbidden(draft: Draft, company: Company, waiter: Waiter, task: Task) -> tuple[Reason, ...]:
    """What rules forbid one task, and what is missing where they do not."""
    shape, nodes = draft.shapes.of(task.request), _matching(draft, task.request.where)
    allowed = company.allowed(waiter.job, task).later
    left = nodes if allowed is None else nodes & allowed
    subject = "; ".join(company.wishes(waiter.job, task))
    never = company.is_hopeless(task, nodes)
    carriers = tuple(Repelling(draft, waiter).jobs()[:MAX_CARRIERS])
    why = Reason(
        Token.NO_MATCHING_NODE, NODES, int(left.sum()), int(nodes.sum()), subject, carriers=carriers, never=never
    )
    if not left.any():
        return (why,) if nodes.any() else ()
    if draft.fit.best(shape, nodes & ~left) < 0:
        return ()
    asked = [Asked(task.request, 1, left, measures(draft, shape))]
    missing = _short(draft, asked) or _fragmented(draft, asked)
    return (*missing, why) if missing else ()


def _no_domain(draft: Draft, chunk: Chunk) -> tuple[Reason, ...]:
    """A required topology level of which no domain has enough free; the best one's number."""
    rule = chunk.group.topology
    if rule is None or rule.required is None:
        return next((found for child in chunk.children if (found := _no_domain(draft, child))), ())
    levels = draft.domains.levels(rule)
    if levels is None:
        return (Reason(Token.NO_DOMAIN, subject=f"{rule.topology}/{rule.required}", never=True),)
    need = sum(draft.shapes.of(task.request).at_least[0] for task in chunk.all_tasks())
    columns = draft.nodes.columns
    columns.sync()
    domains = [mask for _, mask in within(draft.domains.at(rule.topology, levels[-1]), None)]
    best = max((int(columns.gpu_milli[mask].sum()) for mask in domains), default=0)
    largest = max((int(draft.eligibility.gpu_all[mask].sum()) for mask in domains), default=0)
    return (Reason(Token.NO_DOMAIN, GPU, best, need, subject=rule.required, never=need > largest),)


def _over_model_limits(draft: Draft, waiter: Waiter) -> tuple[Reason, ...]:
    """Bounds on single GPU models that the chunk would break, were it all placed on that model."""
    resources = draft.queues.resources
    if not waiter.at_least[0]:
        return ()
    reasons: list[Reason] = []
    for model in draft.eligibility.models:
        if model in resources.by_model:
            amounts = list(resources.zero)
            amounts[resources.by_model[model]] = waiter.at_least[0]
            reasons += blockers(draft.queues, waiter.leaf, tuple(amounts), waiter.firm)
    return tuple(reasons)


def _reserved(draft: Draft, waiter: Waiter) -> tuple[Reason, ...]:
    """A place for its one task that is free at this moment but promised to somebody."""
    if len(waiter.shapes) > 1:
        return ()
    for position in sorted(draft.nodes.later):
        if draft.fit.would_fit_now(waiter.shapes[0], position):
            node = draft.nodes.frames[position].node.name
            return (Reason(Token.RESERVED, subject=node, beneficiary=_promised_to(draft, position)),)
    return ()


def _promised_to(draft: Draft, position: int) -> str:
    """A job that was promised a place on a node: by this cycle, or by one before it."""
    for placed in draft.placed:
        if placed.waits and placed.position == position:
            return placed.waiter.job.id
    earlier = [job.id for task, job in draft.nodes.tasks_on[position] if task.state is TaskState.PROMISED]
    return min(earlier, default="")


def _fragmented(draft: Draft, asked: list[Asked]) -> tuple[Reason, ...]:
    """The first thing of which there is enough in all, but not where it is needed."""
    return tuple(islice(_all_fragmented(draft, asked), 1))


def _all_fragmented(draft: Draft, asked: list[Asked]) -> Iterator[Reason]:
    """No node has what one task needs, or too few have."""
    for request, count, nodes, needs in asked:
        each_fits = True
        for measure in needs:
            roomy = nodes & (measure.free >= measure.each)
            if roomy.any():
                nodes = roomy
                continue
            each_fits = False
            have = max(int(measure.free[nodes].max()), 0)
            holders = _holders(draft, measure.resource, request)
            yield Reason(Token.FRAGMENTED, measure.resource, have, measure.each, holders=holders)
        found = int(np.minimum.reduce([measure.places for measure in needs])[nodes].sum())
        if each_fits and found < count:
            yield Reason(Token.FRAGMENTED, TASKS, found, count)


def _fragmented_nodes(draft: Draft, waiter: Waiter, asked: list[Asked]) -> tuple[Reason, ...]:
    """Of a job that lies on nodes with so many tasks on each: too few have that much room now."""
    if not waiter.chunk.group.node_each:
        return ()
    each, need = _tasks_on_each(waiter), len(waiter.chunk.children)
    counts = (
        _count_with_room(draft, waiter, nodes, [measure.places for measure in needs]) for _, _, nodes, needs in asked
    )
    return tuple(Reason(Token.FRAGMENTED, NODES, found, need, _tasks_text(each)) for found in counts if found < need)
