"""Where a job stands, why, and what would let it start: the answer of `explain`, as data.

Place in the flow: scheduler.explain ─**Explanation**─▶ text ─sentences─▶ a person. Amounts are in the accounting unit
of their resource; moments are absolute.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from gpuyard.model.jobs import TaskState
from gpuyard.model.reasons import Reason


class Standing(enum.StrEnum):
    """Where a job stands once the next plan is carried out."""

    RUNNING = "running"
    STARTING = "starting"
    PLACED = "placed"
    """It has its place; not everything of it is up yet."""
    PROMISED = "promised"
    """It has or gets a place that is still being freed."""
    WAITING = "waiting"
    NEVER = "never"
    """It waits, and waiting alone cannot help."""
    EVICTED = "evicted"
    """The plan stops all of it."""
    MOVING = "moving"
    ENDING = "ending"
    FINISHED = "finished"
    GATED = "gated"
    """Its owner holds it back."""
    BLOCKED = "blocked"
    """It waits for other jobs to be over, or for its turn in its array."""


class Stay(msgspec.Struct, frozen=True, gc=False):
    """Tasks of a job on one node."""

    node: str
    tasks: int
    devices: tuple[int, ...]
    state: TaskState
    since_ms: int = 0
    """When the first of them started; 0 where none has."""


class Rank(msgspec.Struct, frozen=True, gc=False):
    """Whose turn comes before its own, in its queue."""

    queue: str
    position: int
    """From 1."""
    waiting: int
    """Jobs of the queue that want a place, itself among them."""
    ahead: tuple[str, ...] = ()
    """The first few of those before it."""


class QueueStanding(msgspec.Struct, frozen=True, gc=False):
    """GPUs of one queue, in thousandths."""

    name: str
    owed_milli: int | None
    """None: all it asks for."""
    limit_milli: int | None
    """None: no bound."""
    held_milli: int
    asked_milli: int
    """What its waiting jobs want besides."""
    fair_share_milli: int


class Unknown(enum.StrEnum):
    """Why no time can be told."""

    NO_END = "no-end"
    """It waits for what nobody knows the end of, or for what waiting does not bring."""
    TOO_FAR = "too-far"
    """Its start lies further ahead than is looked."""


class Forecast(msgspec.Struct, frozen=True, gc=False):
    """When a job is thought to start by itself: as likely before as after (p50), and almost surely by then (p90)."""

    p50_ms: int | None = None
    p90_ms: int | None = None
    unknown: Unknown | None = None
    """Set where either time is missing."""


class Field(enum.StrEnum):
    """What an edit changes."""

    ASKS = "asks"
    """What each waiting task of a group asks for of one resource, at most."""
    TASKS = "tasks"
    """How many tasks a group has, all of which start together."""
    NODES = "nodes"
    """On how many nodes a job lies that has so many tasks on each."""
    GANG = "gang"
    """How many tasks of a group start together."""
    MODEL = "model"
    """The GPU models that will do for a group."""
    PREEMPTIBLE = "preemptible"
    QUOTA = "quota"
    LIMIT = "limit"
    ENDS = "ends"
    """A running job is over."""


class Edit(msgspec.Struct, frozen=True, gc=False):
    """One value to change, of a job or of a queue."""

    field: Field
    subject: str
    """The job, or for a quota or limit the queue."""
    group: str = ""
    resource: str = ""
    before: int = 0
    after: int = 0
    models: tuple[str, ...] = ()


class WayKind(enum.StrEnum):
    """Ways to let a job start."""

    SMALLER = "smaller"
    FEWER_TASKS = "fewer-tasks"
    OTHER_MODEL = "other-model"
    PREEMPTIBLE = "preemptible"
    RAISE_QUOTA = "raise-quota"
    RAISE_LIMIT = "raise-limit"
    WAIT = "wait"


class Effect(enum.StrEnum):
    """What happens to a job for the sake of another."""

    EVICTED = "evicted"
    MOVED = "moved"
    WAITS = "waits"
    """It would have got a place, and does not."""


class Cost(msgspec.Struct, frozen=True, gc=False):
    """Whom something costs, and what."""

    job: str
    effect: Effect
    tasks: int
    partly: bool = False
    """True where other tasks of the job have a place all the same."""


class WayOut(msgspec.Struct, frozen=True, gc=False):
    """Changes after which the next plan does give the job a place: tried, not guessed."""

    kind: WayKind
    edits: tuple[Edit, ...]
    costs: tuple[Cost, ...] = ()
    promised: bool = False
    """True where the place is then still being freed."""


class Explanation(msgspec.Struct, frozen=True, gc=False):
    """Everything there is to say about one job."""

    job: str
    queue: str
    standing: Standing
    blockers: tuple[Reason, ...] = ()
    """Everything that stands in the way of its next tasks, what the plan says first."""
    rank: Rank | None = None
    queues: tuple[QueueStanding, ...] = ()
    """Its queue and those above it."""
    ways_out: tuple[WayOut, ...] = ()
    """The cheapest first."""
    starts: Forecast | None = None
    stays: tuple[Stay, ...] = ()
    """What it holds."""
    gets: tuple[Stay, ...] = ()
    """What the plan gives it."""
    why: tuple[Reason, ...] = ()
    """Why it is where it is, or must go, and for whom."""
    placement: str = ""
    """The rule by which its nodes are chosen."""
    costs: tuple[Cost, ...] = ()
    """Who gives way to it in this plan."""
    last_evicted_at_ms: int | None = None
    last_eviction: Reason | None = None
    at_once: int = 0
    """Of a job that waits for its turn in its array: how many of that run at once."""


EXIT_RUNS, EXIT_WAITS, EXIT_NEVER = 0, 10, 11
_WAITS: Final = frozenset({Standing.WAITING, Standing.GATED, Standing.BLOCKED, Standing.EVICTED})


def exit_code(explanation: Explanation) -> int:
    """What programs are told: 0 runs or can run, 10 waits, 11 never."""
    if explanation.standing is Standing.NEVER:
        return EXIT_NEVER
    return EXIT_WAITS if explanation.standing in _WAITS else EXIT_RUNS
