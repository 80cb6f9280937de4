"""Queues: a tree of any depth that says who is owed what.

*Owed* is the quota; what is held above it is *borrowed*. A resource a queue does not mention is not rationed there.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

DEFAULT_QUEUE_PRIORITY: Final = 100
DEFAULT_WEIGHT_MILLI: Final = 1000
MAX_QUEUES: Final = 10_000
MAX_QUEUE_DEPTH: Final = 32


class AffinityScope(enum.StrEnum):
    """Which jobs the rules of a job about other jobs look at, and keep away."""

    QUEUE = "queue"
    """Those of its own queue."""
    SUBTREE = "subtree"
    """Those of every queue below the one that says so."""
    CLUSTER = "cluster"
    """All."""


class QueueShare(msgspec.Struct, frozen=True, gc=False):
    """What a queue is owed and allowed of one resource, in that resource's accounting unit."""

    resource: str
    quota: int | None = None
    """None: owed all it asks for."""
    limit: int | None = None
    """None: no upper bound."""
    weight_milli: int = DEFAULT_WEIGHT_MILLI
    """Its part of what is left over, against its siblings."""
    priority: int | None = None
    """Order in which the surplus of this resource is shared out; None: the queue's own priority."""


class Queue(msgspec.Struct, frozen=True, gc=False):
    """One node of the tree. Only leaves hold jobs."""

    name: str
    parent: str | None = None
    shares: tuple[QueueShare, ...] = ()
    priority: int = DEFAULT_QUEUE_PRIORITY
    order: int = 0
    """Age: the smaller, the older. Breaks ties between equal siblings."""
    reclaim_min_runtime_ms: int | None = None
    preempt_min_runtime_ms: int | None = None
    disruption_budget: int | None = None
    """How many tasks of its jobs one cycle may move; None: no bound. Counts for a leaf."""
    overcommit: bool = False
    """Allows the quotas of its children to add up to more than its own."""
    affinity_scope: AffinityScope | None = None
    """How far rules of its jobs, and of those of queues below it, reach; None: as the queue above says."""

    def share(self, resource: str) -> QueueShare:
        for share in self.shares:
            if share.resource == resource:
                return share
        return QueueShare(resource)


class QueueUsage(msgspec.Struct, frozen=True, gc=False):
    """Decayed history: how much of the whole cluster a queue has used of one resource, in millionths."""

    queue: str
    resource: str
    usage_ppm: int
