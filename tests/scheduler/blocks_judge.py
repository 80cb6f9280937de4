"""What a plan takes from running jobs, block by block, with what every queue held before each of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from gpuyard.model.jobs import Job, TaskState
from gpuyard.model.plan import Action, Bind, Evict, Move, Plan, Promise
from gpuyard.model.quantities import CPU, GPU
from gpuyard.model.reasons import Reason, Token
from gpuyard.model.snapshot import Snapshot
from gpuyard.scheduler.ledger import Ledger
from tests.replay import COUNTED, Books, charge, counted, path, queue_charges, satisfied, tasks_by_leaf
from tests.scheduler.judge import share_of

Charges = dict[str, Counter[str]]


class GaveWay(NamedTuple):
    """Some tasks of one job that gave way together."""

    job: Job
    """As it was just before."""
    actions: tuple[Evict | Move, ...]
    reason: Reason
    held: Charges
    """What every queue held just before."""
    amounts: Counter[str]
    """What the block counted."""

    @property
    def moved(self) -> bool:
        return all(isinstance(action, Move) for action in self.actions)

    @property
    def was_only_promised(self) -> bool:
        """Whether nothing of it had started: a promise was taken back."""
        gone = {action.task for action in self.actions}
        return all(task.state is TaskState.PROMISED for task in self.job.tasks if task.id in gone)

    @property
    def is_rest(self) -> bool:
        """Whether nothing of the job runs on where it was."""
        gone = {action.task for action in self.actions}
        return all(task.id in gone for task in self.job.tasks if task.state is TaskState.RUNNING)


def gave_way(plan: Plan, cluster: Snapshot) -> Iterator[GaveWay]:
    """The blocks a plan takes, in its order."""
    books = Books(cluster)
    for key, group in groupby(plan.actions, key=block_key):
        actions = tuple(group)
        if key is not None:
            stops = tuple(action for action in actions if isinstance(action, Evict | Move))
            job = books.jobs[stops[0].job]
            held = queue_charges(books.snapshot(), counted)
            yield GaveWay(job, stops, stops[0].reason, held, amounts_of(books, job, stops))
        for action in actions:
            books.step(action)


def block_key(action: Action) -> tuple[str, Reason] | None:
    """Equal for what goes as one: the tasks of a block share their reason, which counts what its queue held."""
    return (action.job, action.reason) if isinstance(action, Evict | Move) else None


def amounts_of(books: Books, job: Job, actions: tuple[Evict | Move, ...]) -> Counter[str]:
    gone = {action.task for action in actions}
    amounts: Counter[str] = Counter()
    for task in job.tasks:
        if task.id in gone:
            amounts.update(charge(task.request, task.shares, books.nodes.get(task.node)))
    return amounts


def by_beneficiary(plan: Plan, cluster: Snapshot) -> dict[str, list[GaveWay]]:
    found: dict[str, list[GaveWay]] = {}
    for block in gave_way(plan, cluster):
        if not block.reason.beneficiary:
            continue
        found.setdefault(block.reason.beneficiary, []).append(block)
    return found


def placed(plan: Plan) -> set[str]:
    """Jobs that the plan gives a place, now or soon."""
    return {action.job for action in plan.actions if isinstance(action, Bind | Promise)}


def job_of(cluster: Snapshot, id: str) -> Job:
    (found,) = (job for job in cluster.jobs if job.id == id)
    return found


def asked_by(cluster: Snapshot, plan: Plan, id: str) -> Counter[str]:
    """What a job gets by making others give way, as it counts at its queue."""
    nodes = {node.name: node for node in cluster.nodes}
    requests = {task.id: task.request for task in job_of(cluster, id).tasks}
    amounts: Counter[str] = Counter()
    made_room = False
    for action in plan.actions:
        made_room = made_room or action.reason.beneficiary == id
        if made_room and isinstance(action, Bind | Promise) and action.job == id:
            amounts.update(charge(requests[action.task], action.shares, nodes[action.node]))
    return amounts


def givers(cluster: Snapshot, victim: str, taker: str) -> list[str]:
    """A queue and those above it, up to where its family and the other's part."""
    family = path(cluster, taker)
    return [queue for queue in path(cluster, victim) if queue not in family]


def holds_more_than_owed(cluster: Snapshot, held: Charges, queue: str, resources: Counter[str]) -> bool:
    """Whether a queue holds more than its quota of something that is asked for."""
    owed = {resource: share_of(cluster, queue, resource).quota for resource in resources}
    return any(quota is not None and held[queue][resource] > quota for resource, quota in owed.items())


def holds_what_is_owed(cluster: Snapshot, held: Charges, queue: str, resources: Counter[str]) -> bool:
    owed = {resource: share_of(cluster, queue, resource).quota for resource in resources}
    return all(quota is None or held[queue][resource] >= quota for resource, quota in owed.items())


def left_after(cluster: Snapshot, blocks: list[GaveWay], held: Charges) -> Charges:
    """What queues hold once some blocks are gone."""
    left = defaultdict(Counter, {queue: Counter(amounts) for queue, amounts in held.items()})
    for block in blocks:
        for queue in path(cluster, block.job.queue):
            left[queue].subtract(block.amounts)
    return left


def may_all_be_lost(cluster: Snapshot, blocks: list[GaveWay], taker: str, asked: Counter[str]) -> bool:
    """Whether all of them, small ones first, come from queues that hold more than they are owed before they go."""
    ordered = sorted(blocks, key=lambda block: (block.amounts[GPU], block.amounts[CPU]))
    return all(
        holds_more_than_owed(cluster, left_after(cluster, ordered[:position], blocks[0].held), queue, asked)
        for position, block in enumerate(ordered)
        for queue in givers(cluster, block.job.queue, taker)
    )


def started_at_ms(job: Job) -> int:
    return min(task.started_at_ms for task in job.tasks if task.state is TaskState.RUNNING)


def reclaim_min_runtime_ms(cluster: Snapshot, victim: str, taker: str) -> int:
    """How long a job is safe from another family: the nearest value from where the two part upwards."""
    return nearest(cluster, path(cluster, givers(cluster, victim, taker)[-1]), "reclaim_min_runtime_ms")


def preempt_min_runtime_ms(cluster: Snapshot, queue: str) -> int:
    return nearest(cluster, path(cluster, queue), "preempt_min_runtime_ms")


def nearest(cluster: Snapshot, names: list[str], field: str) -> int:
    queues = {queue.name: queue for queue in cluster.queues}
    values = (getattr(queues[name], field) for name in names)
    return next((value for value in values if value is not None), 0)


def whole_before(job: Job) -> bool:
    return satisfied(job.group, tasks_by_leaf(job, lambda task: task.state in COUNTED))


def fair_shares(cluster: Snapshot, usage_weight_milli: int) -> dict[str, dict[str, int]]:
    """The fair share of every queue, by resource: the corpus and its own tests hold what that is."""
    ledger = Ledger.of(cluster)
    shares = ledger.queues.shares(ledger.total(), usage_weight_milli)
    names = ledger.queues.resources.names
    return {frame.name: dict(zip(names, shares[frame.at], strict=True)) for frame in ledger.queues.frames}


EVICTED_FOR: frozenset[Token] = frozenset({Token.RECLAIMED, Token.PREEMPTED, Token.MOVED})
WITHOUT_BENEFICIARY: frozenset[Token] = frozenset({Token.STALE, Token.DRAINED, Token.RUN_LIMIT})
