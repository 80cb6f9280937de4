"""Why: a small stable vocabulary with numbers. The sentences are in `text.py`."""

from __future__ import annotations

import enum
from typing import Final

import msgspec


class Token(enum.StrEnum):
    """Every reason there is. Stable: clients and dashboards match on these words."""

    # Why a task got its place
    PLACED = "Placed"
    GREW = "Grew"
    # Why a job waits
    QUEUE_MISSING = "QueueMissing"
    GANG_INCOMPLETE = "GangIncomplete"
    OVER_LIMIT = "OverLimit"
    OVER_QUOTA = "OverQuota"
    NO_MATCHING_NODE = "NoMatchingNode"
    TOO_LARGE = "TooLarge"
    NOT_ENOUGH = "NotEnough"
    FRAGMENTED = "Fragmented"
    NO_DOMAIN = "NoDomain"
    PLACE_FREEING = "PlaceFreeing"
    RESERVED = "Reserved"
    DELAYED = "Delayed"
    PLANNING_FAILED = "PlanningFailed"
    # Why a running task must give way
    RECLAIMED = "Reclaimed"
    PREEMPTED = "Preempted"
    MOVED = "Moved"
    STALE = "Stale"
    DRAINED = "Drained"
    RUN_LIMIT = "RunLimit"


EVICTIONS: Final = (
    Token.RECLAIMED,
    Token.PREEMPTED,
    Token.MOVED,
    Token.STALE,
    Token.DRAINED,
    Token.RUN_LIMIT,
)
"""Those for which a running task must give way."""

TASKS: Final = "tasks"
NODES: Final = "nodes"
GPU_MEMORY: Final = "gpu-memory"
MIG_PREFIX: Final = "mig-"
CLUSTER: Final = "cluster"
MILLISECONDS: Final = "milliseconds"
RULE: Final = "rule"
"""Words that stand in a reason for what is no rationed resource."""


class Holding(msgspec.Struct, frozen=True, gc=False):
    """Who holds how much of what is missing."""

    queue: str
    amount: int


class Reason(msgspec.Struct, frozen=True, gc=False):
    """One reason, as data. `have` and `need` are in the unit of `resource`."""

    token: Token
    resource: str = ""
    have: int = 0
    need: int = 0
    subject: str = ""
    """What it is about: a queue, a node, a topology level, a task group; of nodes, what each must have room for, or
    which rules between tasks forbid them."""
    holders: tuple[Holding, ...] = ()
    beneficiary: str = ""
    """The job for whose sake it happens."""
    shortfall: int = 0
    """How far below what it is owed this takes a queue, because a gang goes as a whole; in the unit of `resource`
    (where that is one model of GPUs: of GPUs of any model)."""
    reclaimable: int = 0
    """Of what is missing, how much others who borrowed would have to give back; they do not, as it is not enough."""
    carriers: tuple[str, ...] = ()
    """Of nodes that rules between tasks forbid: some jobs of other queues whose own rules do."""
    never: bool = False
    """True where waiting alone cannot help: the cluster or the job must change."""
