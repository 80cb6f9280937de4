"""The state of a cluster at one moment, and what may change from one moment to the next."""

from __future__ import annotations

from typing import Final

import msgspec

from gpuyard.model.jobs import Job
from gpuyard.model.nodes import Node, Topology
from gpuyard.model.queues import AffinityScope, Queue, QueueUsage

MAX_NODES: Final = 50_000
MAX_JOBS: Final = 1_000_000


class Snapshot(msgspec.Struct, frozen=True):
    """Everything the core knows. The order of the tuples means nothing: equal contents give equal plans."""

    nodes: tuple[Node, ...] = ()
    queues: tuple[Queue, ...] = ()
    jobs: tuple[Job, ...] = ()
    topologies: tuple[Topology, ...] = ()
    usage: tuple[QueueUsage, ...] = ()
    now_ms: int = 0
    moves_last_hour: int = 0
    """Tasks that consolidation has moved in the last hour: counts against its budget."""
    affinity_scope: AffinityScope = AffinityScope.QUEUE
    """Of queues where neither they nor a queue above them says one. A world never changes it."""


class NodeSeen(msgspec.Struct, frozen=True, tag="node-seen"):
    """A node that is new or has changed."""

    node: Node


class NodeGone(msgspec.Struct, frozen=True, tag="node-gone"):
    name: str


class JobSeen(msgspec.Struct, frozen=True, tag="job-seen"):
    """A job that is new or has changed, whole."""

    job: Job


class JobGone(msgspec.Struct, frozen=True, tag="job-gone"):
    id: str


class QueuesSet(msgspec.Struct, frozen=True, tag="queues-set"):
    """The whole tree, as newly written."""

    queues: tuple[Queue, ...]


class UsageSet(msgspec.Struct, frozen=True, tag="usage-set"):
    usage: tuple[QueueUsage, ...]


class TimePassed(msgspec.Struct, frozen=True, tag="time-passed"):
    now_ms: int


class MovesCounted(msgspec.Struct, frozen=True, tag="moves-counted"):
    """How many tasks consolidation has moved in the last hour."""

    moves_last_hour: int


Change = NodeSeen | NodeGone | JobSeen | JobGone | QueuesSet | UsageSet | TimePassed | MovesCounted
