"""How far the rules of a job about other jobs reach: which queues they look into, and which they keep away.

Place in the flow: the ledger makes one from the tree of queues; `neighbours` asks it for every rule. A reach is the
name of a queue, and means that queue and all below it; None means everything. Jobs that are nobody's belong to no
team: every rule sees them, and theirs see everybody. Invariant: a job that cannot be made to give way keeps away
nobody of another queue, so that no rule can hold a place against other teams.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gpuyard.model.jobs import NOBODY, Job, Neighbour, SoftNeighbour, SoftSpread, Spread, Task, TaskState
from gpuyard.model.queues import AffinityScope, Queue

Reach = str | None
Rule = Neighbour | Spread | SoftNeighbour | SoftSpread


class Scopes:
    """The reach of the rules of every queue."""

    def __init__(self, queues: Sequence[Queue] = (), default: AffinityScope = AffinityScope.QUEUE) -> None:
        by_name = {queue.name: queue for queue in queues}
        self._default = default
        self._paths = {queue.name: _path(queue.name, by_name) for queue in queues}
        self._reaches = {name: self._reach(path, by_name) for name, path in self._paths.items()}

    def path(self, queue: str) -> tuple[str, ...]:
        """A queue and all above it. One that is not in the tree stands alone."""
        return self._paths.get(queue) or (queue,)

    def sight(self, job: Job, rule: Rule) -> Reach:
        """How far a rule of a job looks."""
        if job.queue == NOBODY or (isinstance(rule, Neighbour) and rule.physical):
            return None
        if job.queue in self._reaches:
            return self._reaches[job.queue]
        return None if self._default is AffinityScope.CLUSTER else job.queue

    def repelled(self, job: Job, task: Task, rule: Neighbour) -> Reach:
        """How far a rule that keeps apart keeps others away. No further than its own queue, where its task cannot give
        way, or should long have gone: else it would hold the place against those who are owed it."""
        can_go = job.may_stop and task.state is not TaskState.STUCK
        if can_go or job.queue == NOBODY or rule.physical:
            return self.sight(job, rule)
        return job.queue

    def is_within(self, queue: str, reach: Reach) -> bool:
        """Whether jobs of a queue are reached."""
        return reach is None or queue == NOBODY or reach in self.path(queue)

    def _reach(self, path: tuple[str, ...], by_name: Mapping[str, Queue]) -> Reach:
        """By the nearest queue that says a scope."""
        for name in path:
            scope = by_name[name].affinity_scope
            if scope is not None:
                break
        else:
            name, scope = path[0], self._default
        match scope:
            case AffinityScope.QUEUE:
                return path[0]
            case AffinityScope.SUBTREE:
                return name
            case AffinityScope.CLUSTER:
                return None


def reach_others(queues: Sequence[Queue]) -> bool:
    """Whether rules of any queue reach jobs of another, where a queue that says no scope has its own."""
    return any(queue.affinity_scope not in (None, AffinityScope.QUEUE) for queue in queues)


def closed_scopes(queues: Sequence[Queue]) -> tuple[Queue, ...]:
    """The same queues, whose rules reach no job of another."""
    return tuple(msgspec.structs.replace(queue, affinity_scope=None) for queue in queues)


def _path(name: str, by_name: Mapping[str, Queue]) -> tuple[str, ...]:
    """A queue and its ancestors; a loop ends it, and so does a parent that does not exist."""
    path: list[str] = []
    above: str | None = name
    while above is not None and above in by_name and above not in path:
        path.append(above)
        above = by_name[above].parent
    return tuple(path)
