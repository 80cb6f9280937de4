"""What rules between tasks say, worked out from their definitions, one task and one node at a time.

Shares nothing with the scheduler but the values of the model. Slow, and easy to see right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from gpuyard.model.jobs import (
    DESPITE_CORDON,
    NOBODY,
    Job,
    LabelRule,
    Neighbour,
    SoftSpread,
    Spread,
    Task,
    TaskState,
    Where,
)
from gpuyard.model.nodes import Node
from gpuyard.model.queues import AffinityScope
from gpuyard.model.snapshot import Snapshot
from tests.replay import HELD_LATER, HELD_NOW, closed, tolerates

HOST: Final = ("hostname", "kubernetes.io/hostname")


class There(NamedTuple):
    """A task that is somewhere."""

    job: Job
    task: Task
    node: Node


def labels_of(job: Job, task: Task) -> dict[str, str]:
    return {**dict(job.labels), **dict(task.labels)}


def fulfils(job: Job, task: Task, pairs: Iterable[tuple[str, str]], rules: Iterable[LabelRule]) -> bool:
    labels = labels_of(job, task)
    return all(labels.get(key) == value for key, value in pairs) and all(rule.accepts(labels) for rule in rules)


def is_meant(job: Job, task: Task, rule: Neighbour) -> bool:
    return fulfils(job, task, rule.labels, rule.rules)


def path(snapshot: Snapshot, name: str | None) -> list[str]:
    """A queue and all above it."""
    queues = {queue.name: queue for queue in snapshot.queues}
    found = []
    while name in queues:
        found.append(name)
        name = queues[name].parent
    return found


def sees(snapshot: Snapshot, owner: Job, other: Job) -> bool:
    """Whether rules of one job are about another at all: by the nearest queue that says how far."""
    if NOBODY in (owner.queue, other.queue):
        return True
    scopes = {queue.name: queue.affinity_scope for queue in snapshot.queues}
    said = next((name for name in path(snapshot, owner.queue) if scopes[name] is not None), None)
    scope = snapshot.affinity_scope if said is None else scopes[said]
    if scope is AffinityScope.SUBTREE:
        return said in path(snapshot, other.queue)
    return scope is AffinityScope.CLUSTER or owner.queue == other.queue


def repels(snapshot: Snapshot, owner: There, other: Job) -> bool:
    """Whether rules of one task keep another job away: beyond its queue only where it can be made to give way."""
    job = owner.job
    can_go = job.preemptible and not job.protected and owner.task.state is not TaskState.STUCK
    return (can_go or job.queue in (NOBODY, other.queue)) and sees(snapshot, job, other)


def domain(node: Node, level: str) -> str:
    """Empty where the node lies in none."""
    return node.labels.get(level, node.name if level in HOST else "")


def present(snapshot: Snapshot, states: frozenset[TaskState], but: Task | None = None) -> list[There]:
    """Every task in one of these states whose node is known, but for one."""
    nodes = {node.name: node for node in snapshot.nodes}
    return [
        There(job, task, nodes[task.node])
        for job in snapshot.jobs
        for task in job.tasks
        if task.state in states and task.node in nodes and (but is None or task.id != but.id)
    ]


def staying(snapshot: Snapshot, but: Task | None = None) -> list[There]:
    return present(snapshot, HELD_LATER, but)


def objections(snapshot: Snapshot, job: Job, task: Task, node: Node, now: bool) -> list[str]:
    """Everything that rules between tasks have against one more task on a node; `now`: starting at once."""
    others = staying(snapshot, task)
    found = [f"{task.id} meets {other}" for other in unwanted(snapshot, others, job, task, node)]
    if now:
        leaving = present(snapshot, HELD_NOW - HELD_LATER, task)
        meets = unwanted(snapshot, leaving, job, task, node)
        found += [f"{task.id} meets {other}, which has not left" for other in meets]
    for rule in task.request.where.neighbours:
        if not rule.apart and not is_near(snapshot, others, job, task, node, rule):
            found.append(f"{task.id} is not near {rule.labels} {rule.rules} on {node.name}")
    for spread in task.request.where.spreads:
        if not is_even(snapshot, others, job, task, node, spread):
            found.append(f"{task.id} on {node.name} is too many of {spread}")
    return found


def unwanted(snapshot: Snapshot, others: Iterable[There], job: Job, task: Task, node: Node) -> Iterator[str]:
    """Tasks in one of the node's domains that the task must be apart from, or that must be apart from it."""
    for other in others:
        mine = [rule for rule in task.request.where.neighbours if rule.apart and is_meant(other.job, other.task, rule)]
        theirs = [rule for rule in other.task.request.where.neighbours if rule.apart and is_meant(job, task, rule)]
        mine = mine if sees(snapshot, job, other.job) else []
        theirs = theirs if repels(snapshot, other, job) else []
        if any(domain(node, r.level) and domain(node, r.level) == domain(other.node, r.level) for r in mine + theirs):
            yield other.task.id


def is_near(snapshot: Snapshot, others: list[There], job: Job, task: Task, node: Node, rule: Neighbour) -> bool:
    here = domain(node, rule.level)
    others = [other for other in others if sees(snapshot, job, other.job)]
    domains = {domain(other.node, rule.level) for other in others if is_meant(other.job, other.task, rule)} - {""}
    if not domains and is_meant(job, task, rule):
        return bool(here)
    return here in domains


def is_even(snapshot: Snapshot, others: list[There], job: Job, task: Task, node: Node, spread: Spread) -> bool:
    """As Kubernetes says it: the domain's tasks with this one, less the fewest of any domain, at most `max_skew`."""
    where = task.request.where
    levels = [one.level for one in where.spreads]
    if not all(domain(node, level) for level in levels):
        return False
    counted = [one for one in snapshot.nodes if all(domain(one, level) for level in levels)]
    if spread.honour_labels:
        counted = [one for one in counted if labels_will_do(one, where)]
    if spread.honour_taints:
        counted = [one for one in counted if lets_in(one, where)]
    tasks = dict.fromkeys((domain(one, spread.level) for one in counted), 0)
    names = {one.name for one in counted}
    for other in others:
        meant = sees(snapshot, job, other.job) and fulfils(other.job, other.task, (), spread.rules)
        if other.node.name in names and meant:
            tasks[domain(other.node, spread.level)] += 1
    fewest = min(tasks.values()) if tasks and len(tasks) >= spread.min_domains else 0
    itself = fulfils(job, task, (), spread.rules)
    return tasks.get(domain(node, spread.level), 0) + itself - fewest <= spread.max_skew


def wanted(snapshot: Snapshot, job: Job, task: Task, node: Node) -> int:
    """How much a task wants a node: for what it is, less its soft taints, and for who is there."""
    where = task.request.where
    others = [other for other in staying(snapshot, task) if sees(snapshot, job, other.job)]
    total = sum(one.weight for one in where.preferences if all(rule.accepts(node.labels) for rule in one.rules))
    soft = [taint for taint in node.taints if taint.soft]
    total -= 100 * sum(not any(tolerates(one, taint) for one in where.tolerations) for taint in soft)
    for rule in where.soft_neighbours:
        here = domain(node, rule.level)
        for other in others:
            if here and here == domain(other.node, rule.level) and fulfils(other.job, other.task, (), rule.rules):
                total += rule.weight
    return total - sum(one.weight * crowd(snapshot, others, where, node, one) for one in where.soft_spreads)


def crowd(snapshot: Snapshot, others: list[There], where: Where, node: Node, spread: SoftSpread) -> int:
    """How many counted tasks lie in a node's domain; one more than in any for a node that lies in none."""
    levels = [one.level for one in where.soft_spreads]
    counted = {one.name for one in snapshot.nodes if all(domain(one, level) for level in levels)}
    if spread.honour_labels:
        counted &= {one.name for one in snapshot.nodes if labels_will_do(one, where)}
    if spread.honour_taints:
        counted &= {one.name for one in snapshot.nodes if lets_in(one, where)}
    tasks: dict[str, int] = {}
    for other in others:
        if other.node.name in counted and fulfils(other.job, other.task, (), spread.rules):
            there = domain(other.node, spread.level)
            tasks[there] = tasks.get(there, 0) + 1
    if all(domain(node, level) for level in levels):
        return tasks.get(domain(node, spread.level), 0)
    return max(tasks.values(), default=0) + 1


def labels_will_do(node: Node, where: Where) -> bool:
    return not where.any_of or any(all(rule.accepts(node.labels) for rule in rules) for rules in where.any_of)


def lets_in(node: Node, where: Where) -> bool:
    hard = [taint for taint in node.taints if not taint.soft]
    here = node.ready and (not node.cordoned or DESPITE_CORDON in where.tolerations)
    return here and all(any(tolerates(one, taint) for one in where.tolerations) for taint in hard)


def open_nodes(snapshot: Snapshot, job: Job, task: Task, now: bool) -> list[Node]:
    """Nodes that labels, taints and rules between tasks leave to one task, whatever is free there."""
    return [
        node
        for node in snapshot.nodes
        if not closed(node, task.request.where) and not objections(snapshot, job, task, node, now)
    ]
