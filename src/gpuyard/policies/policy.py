"""One value that says how a cluster is run. The shipped default is `DEFAULT`."""

from __future__ import annotations

import enum
from typing import Final

import msgspec


class Step(enum.StrEnum):
    """The steps of a cycle, in the order they may run."""

    ALLOCATE = "allocate"
    CONSOLIDATE = "consolidate"
    RECLAIM = "reclaim"
    PREEMPT = "preempt"
    STALE_GANGS = "stale-gangs"


class NodePlacement(enum.StrEnum):
    """Which of the nodes a task fits on is best."""

    BIN_PACK = "bin-pack"
    SPREAD = "spread"
    BEST_FIT = "best-fit"
    FRAGMENTATION_GRADIENT = "fragmentation-gradient"
    TOPOLOGY = "topology"
    KEEP_NODES_FREE = "keep-whole-nodes-free"


class DevicePlacement(enum.StrEnum):
    """Which of the devices of a node a shared task goes to: the fullest that fits, or the emptiest."""

    PACK = "pack"
    SPREAD = "spread"


class Ordering(enum.StrEnum):
    """Who goes next."""

    FAIR_SHARE = "fair-share"
    FIFO = "fifo"


class TypicalTask(msgspec.Struct, frozen=True):
    """A class of tasks the cluster expects, for the fragmentation gradient: what it asks and how often it comes."""

    devices: int
    gpu_milli: int
    cpu_milli: int = 0
    gpu_model: str = ""
    weight: int = 1


class ConsolidationMode(enum.StrEnum):
    """When running jobs are moved together."""

    OFF = "off"
    ON_DEMAND = "on-demand"
    """A job fits nowhere, and moves make room for it."""
    KEEP_NODES_FREE = "keep-whole-nodes-free"
    """Also where a job would otherwise open an empty node."""


class Consolidation(msgspec.Struct, frozen=True):
    """What moving running jobs may cost."""

    mode: ConsolidationMode = ConsolidationMode.ON_DEMAND
    max_moves_per_cycle: int | None = 64
    """Tasks; None: no bound."""
    max_moves_per_hour: int | None = None
    min_runtime_ms: int = 0
    """A job that has run for less is not moved."""
    max_price: int | None = None
    """The most work, in GPU-milliseconds, that may be lost for one job that is made room for; None: no bound."""
    defragment_benefit_milli: int | None = None
    """Scheduled defragmentation: whole nodes are cleared where that frees at least this many GPU milli per GPU milli
    that is moved; None: never."""


class Backfill(enum.StrEnum):
    """Whose start is kept free while others fill in around it, where it is known when running jobs end."""

    OFF = "off"
    EASY = "easy"
    """The first job in turn that cannot start."""
    CONSERVATIVE = "conservative"
    """Every job that cannot start, up to `max_reservations`."""


class Reservation(msgspec.Struct, frozen=True):
    """How starts are kept free for jobs that wait."""

    backfill: Backfill = Backfill.EASY
    max_reservations: int = 32
    """How many starts one cycle keeps free, where it keeps several."""


class Policy(msgspec.Struct, frozen=True):
    """How a cluster is run."""

    steps: tuple[Step, ...] = tuple(Step)
    ordering: Ordering = Ordering.FAIR_SHARE
    node_placement: NodePlacement = NodePlacement.BIN_PACK
    device_placement: DevicePlacement = DevicePlacement.PACK
    typical_tasks: tuple[TypicalTask, ...] = ()
    """For the fragmentation gradient; empty: taken from the jobs in the snapshot."""
    usage_weight_milli: int = 1000
    """How strongly past use lowers a queue's part of the surplus, in thousandths; no history, no effect."""
    staleness_grace_ms: int = 60_000
    """How long a gang may be below its minimum before what is left of it is stopped; negative: for ever."""
    reservation: Reservation = Reservation()
    consolidation: Consolidation = Consolidation()
    reclaim_moves: bool = True
    """Whether a job that gives way may be moved to a free place instead of only being stopped."""
    search_steps: int = 400_000
    """How many tasks a cycle may take off and put back while it looks for who must give way, in all; one job may use
    half of what is left."""
    rearrange_steps: int = 20_000
    """How many placements a cycle may try when it re-arranges what it has itself just placed, to fit one more job."""


DEFAULT: Final = Policy()
