"""Why a chunk fits nowhere: every blocker with its numbers, the hopeless ones first.

Called once for each kind of job that stays waiting, so it may look at the whole cluster.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gpuyard.model.jobs import Request, TaskState
from gpuyard.model.quantities import CPU, GPU, MEMORY, MILLI
from gpuyard.model.reasons import Holding, Reason, Token
from gpuyard.scheduler.columns import Bools
from gpuyard.scheduler.draft import Draft
from gpuyard.scheduler.gang import Chunk
from gpuyard.scheduler.headroom import blockers
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.neighbours import allowed_nodes
from gpuyard.scheduler.nodestate import NodeFrame, NodeState
from gpuyard.scheduler.shapes import Shape
from gpuyard.scheduler.topology import within

MAX_HOLDERS: Final = 3


def why_it_does_not_fit(draft: Draft, waiter: Waiter) -> tuple[Reason, ...]:
    """The reasons of a waiter whose chunk could not be placed."""
    shapes = sorted(set(waiter.shapes), key=lambda shape: (shape.asked, -shape.id), reverse=True)
    for shape in shapes:
        never = _never(draft, shape)
        if never is not None:
            return (never,)
    largest = shapes[0]
    allowed = draft.eligibility.nodes(largest.request.where)
    if draft.shapes.any_neighbours:
        allowed = allowed & allowed_nodes(draft, waiter.job, largest.request.where.neighbours)
        if not allowed.any():
            return (Reason(Token.NO_MATCHING_NODE, need=1, subject=_company(largest.request)),)
    everything = int(draft.eligibility.gpu_all[allowed].sum())
    if len(waiter.shapes) > 1 and all(shape.whole for shape in shapes) and waiter.at_least[0] > everything:
        return (Reason(Token.TOO_LARGE, GPU, everything // MILLI * MILLI, waiter.at_least[0], never=True),)
    reserved = _reserved(draft, largest)
    if reserved is not None:
        return (reserved,)
    short = _shortages(draft, waiter, largest, allowed)
    domain = _no_domain(draft, waiter.chunk)
    if domain is not None:
        return (*short, domain)
    return short or _over_model_limits(draft, waiter) or (_fragmented(draft, waiter, largest, allowed),)


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


def _reserved(draft: Draft, shape: Shape) -> Reason | None:
    """A place that is free at this moment but promised to somebody."""
    for position in sorted(draft.nodes.later):
        if draft.fit.would_fit_now(shape, position):
            node = draft.nodes.frames[position].node.name
            return Reason(Token.RESERVED, subject=node, beneficiary=_promised_to(draft, position))
    return None


def _promised_to(draft: Draft, position: int) -> str:
    """A job that was promised a place on a node: by this cycle, or by one before it."""
    for placed in draft.placed:
        if placed.waits and placed.position == position:
            return placed.waiter.job.id
    earlier = [job.id for task, job in draft.nodes.tasks_on[position] if task.state is TaskState.PROMISED]
    return min(earlier, default="")


def _never(draft: Draft, shape: Shape) -> Reason | None:
    """A reason that waiting cannot cure: no node matches, or none is large enough even when empty."""
    request = shape.request
    frames = draft.nodes.frames
    allowed = draft.eligibility.nodes(request.where)
    masks = draft.eligibility.devices(request.where.gpu_models)[0]
    models = set(request.where.gpu_models)
    open_nodes = np.flatnonzero(allowed).tolist()
    matching = [at for at in open_nodes if not models or models & {device.model for device in frames[at].devices}]
    if not matching:
        return Reason(Token.NO_MATCHING_NODE, have=0, need=1, subject=_wish(request), never=True)
    largest = max((masks[at].bit_count() for at in matching), default=0)
    if request.devices > largest:
        return Reason(Token.TOO_LARGE, GPU, largest * MILLI, request.devices * MILLI, never=True)
    for resource, need, capacity in _capacities(request, [frames[at] for at in matching]):
        if need > capacity:
            return Reason(Token.TOO_LARGE, resource, capacity, need, never=True)
    return None


def _capacities(request: Request, frames: list[NodeFrame]) -> list[tuple[str, int, int]]:
    """What is asked of a node beside GPUs, and the most any node has."""
    wanted = [(CPU, request.cpu_milli, max(frame.node.cpu_milli for frame in frames))]
    wanted.append((MEMORY, request.memory_bytes, max(frame.node.memory_bytes for frame in frames)))
    for name, amount in request.other:
        wanted.append((name, amount, max(dict(frame.node.other).get(name, 0) for frame in frames)))
    for profile, count in request.mig:
        wanted.append((f"mig-{profile}", count, max(NodeState.empty(frame).free_slices(profile) for frame in frames)))
    if request.gpu_memory_mib:
        most = max((memory for frame in frames for memory in frame.device_memory_mib), default=0)
        wanted.append(("gpu-memory", request.gpu_memory_mib, most))
    return wanted


def _wish(request: Request) -> str:
    """What the job asks of a node's labels, taints and models, in short."""
    rules = [f"{r.key} {r.operator} {'|'.join(r.values)}".strip() for rules in request.where.any_of for r in rules]
    return ", ".join([*rules, *(f"model {model}" for model in request.where.gpu_models)])


def _company(request: Request) -> str:
    """What the job asks of, or what others ask against, its neighbours."""
    rules = [
        f"{'apart from' if rule.apart else 'near'} {', '.join(f'{key}={value}' for key, value in rule.labels)}"
        f" by {rule.level}"
        for rule in request.where.neighbours
    ]
    return "; ".join(rules) or "other tasks that want to be apart from it"


def _shortages(draft: Draft, waiter: Waiter, shape: Shape, allowed: Bools) -> tuple[Reason, ...]:
    """Resources of which not enough is free in all, on the nodes the job may use."""
    columns = draft.nodes.columns
    columns.sync()
    gpu_free = int(columns.gpu_milli[allowed].sum()) if shape.request.devices else 0
    reasons: list[Reason] = []
    need = waiter.at_least
    request = shape.request
    if request.devices and gpu_free < need[0]:
        reasons.append(Reason(Token.NOT_ENOUGH, GPU, gpu_free, need[0], holders=_holders(draft, 0)))
    for profile, count in request.mig:
        free = sum(draft.nodes.now[at].free_slices(profile) for at in np.flatnonzero(allowed).tolist())
        if free < count * len(waiter.shapes):
            needed = count * len(waiter.shapes)
            reasons.append(Reason(Token.NOT_ENOUGH, f"mig-{profile}", free, needed, holders=_holders(draft, 0)))
    for position, resource, column in ((1, CPU, columns.cpu_milli), (2, MEMORY, columns.memory_bytes)):
        have = int(column[allowed].sum())
        if need[position] and have < need[position]:
            reasons.append(Reason(Token.NOT_ENOUGH, resource, have, need[position], holders=_holders(draft, position)))
    for name, amount in request.other:
        have = sum(draft.nodes.now[at].other.get(name, 0) for at in np.flatnonzero(allowed).tolist())
        if have < amount * len(waiter.shapes):
            reasons.append(Reason(Token.NOT_ENOUGH, name, have, amount * len(waiter.shapes)))
    return tuple(reasons)


def _fragmented(draft: Draft, waiter: Waiter, shape: Shape, allowed: Bools) -> Reason:
    """Enough in all, but not where it is needed: the most that one node (or one device) has free, against the need."""
    columns = draft.nodes.columns
    request = shape.request
    if request.whole:
        have = int(columns.free_count[allowed].max()) * MILLI
        if have >= request.devices * MILLI and len(waiter.shapes) > 1:
            return _gang_fragmented(draft, waiter, shape)
        return _scattered(draft, request, allowed, have)
    if request.shared:
        room = draft.nodes.columns.devices().milli[allowed]
        have = int(room.max(initial=0))
        return Reason(Token.FRAGMENTED, GPU, max(have, 0), request.gpu_milli or MILLI, holders=_holders(draft, 0))
    have = int(columns.cpu_milli[allowed].max())
    if request.cpu_milli > have:
        return Reason(Token.FRAGMENTED, CPU, have, request.cpu_milli, holders=_holders(draft, 1))
    return Reason(Token.FRAGMENTED, MEMORY, int(columns.memory_bytes[allowed].max()), request.memory_bytes)


def _scattered(draft: Draft, request: Request, allowed: Bools, have: int) -> Reason:
    """One task: no node has its GPUs free, or those that have lack CPU, memory or a slot."""
    need = request.devices * MILLI
    columns = draft.nodes.columns
    if have < need:
        return Reason(Token.FRAGMENTED, GPU, have, need, holders=_holders(draft, 0))
    roomy = allowed & (columns.free_count >= request.devices)
    cpu, memory = int(columns.cpu_milli[roomy].max()), int(columns.memory_bytes[roomy].max())
    if cpu < request.cpu_milli:
        return Reason(Token.FRAGMENTED, CPU, cpu, request.cpu_milli, subject=GPU, holders=_holders(draft, 1))
    if memory < request.memory_bytes:
        return Reason(Token.FRAGMENTED, MEMORY, memory, request.memory_bytes, subject=GPU, holders=_holders(draft, 2))
    return Reason(Token.FRAGMENTED, GPU, have, need, holders=_holders(draft, 0))


def _gang_fragmented(draft: Draft, waiter: Waiter, shape: Shape) -> Reason:
    """A gang: how many of its tasks would find a place, against how many must."""
    columns = draft.nodes.columns
    request = shape.request
    fits = draft.fit.scores(shape) < (1 << 61)
    per_node = columns.free_count // request.devices
    if request.cpu_milli:
        per_node = np.minimum(per_node, columns.cpu_milli // request.cpu_milli)
    places = int(per_node[fits].sum())
    return Reason(Token.FRAGMENTED, "tasks", min(places, len(waiter.shapes) - 1), len(waiter.shapes))


def _no_domain(draft: Draft, chunk: Chunk) -> Reason | None:
    """A required topology level of which no domain has enough free; the best one's number."""
    rule = chunk.group.topology
    if rule is not None and rule.required is not None:
        levels = draft.domains.levels(rule)
        if levels is None:
            return Reason(Token.NO_DOMAIN, subject=f"{rule.topology}/{rule.required}", never=True)
        masks = within(draft.domains.at(rule.topology, levels[-1]), None)
        columns = draft.nodes.columns
        best = max((int(columns.gpu_milli[mask].sum()) for _, mask in masks), default=0)
        need = sum(draft.shapes.of(task.request).at_least[0] for task in chunk.all_tasks())
        return Reason(Token.NO_DOMAIN, GPU, best, need, subject=rule.required)
    for child in chunk.children:
        found = _no_domain(draft, child)
        if found is not None:
            return found
    return None


def _holders(draft: Draft, position: int) -> tuple[Holding, ...]:
    """Who holds most of a resource: leaf queues, the largest first."""
    queues = draft.queues
    holding = [Holding(f.name, queues.held[f.at][position]) for f in queues.frames if f.leaf]
    holding = [entry for entry in holding if entry.amount > 0]
    return tuple(sorted(holding, key=lambda entry: (-entry.amount, entry.queue))[:MAX_HOLDERS])
