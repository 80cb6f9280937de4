"""Jobs, their tree of task groups, their tasks, and what a task asks for.

A *job* is what is submitted; a *task* is one process, container or pod on one node; a *gang* is what must start
together. Elasticity needs no field of its own: a group with more tasks than its minimum is elastic.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from gpuyard.model.nodes import OWN_LABEL
from gpuyard.model.quantities import MILLI
from gpuyard.model.reasons import Reason

DEFAULT_PRIORITY: Final = 50
NOBODY: Final = ""
"""The queue of jobs that are nobody's: in the way of everyone, and of no concern to the scheduler otherwise."""
MAX_TASKS_PER_JOB: Final = 100_000
MAX_GROUP_DEPTH: Final = 16
MAX_DIGITS: Final = 63
"""Of a label that is compared as a number: as many as a label can have."""


class Sharing(enum.StrEnum):
    """How tasks live together on one device. Only tasks of one class share a device."""

    EXCLUSIVE = "exclusive"
    TIME_SLICED = "time-sliced"
    MPS = "mps"


class Operator(enum.StrEnum):
    """How a node's label is compared."""

    IN = "in"
    NOT_IN = "not-in"
    EXISTS = "exists"
    MISSING = "missing"
    GREATER = "greater"
    LESS = "less"


class LabelRule(msgspec.Struct, frozen=True, gc=False):
    """One condition on a node's label."""

    key: str
    operator: Operator = Operator.IN
    values: tuple[str, ...] = ()

    def accepts(self, labels: dict[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value in self.values
            case Operator.NOT_IN:
                return value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.MISSING:
                return value is None
            case Operator.GREATER:
                return value is not None and is_number(value) and int(value) > int(self.values[0])
            case Operator.LESS:
                return value is not None and is_number(value) and int(value) < int(self.values[0])


def is_number(text: str) -> bool:
    """Whether a label counts as a number: of 64 bits, as in Kubernetes; others are neither greater nor less."""
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) <= MAX_DIGITS and -(1 << 63) <= int(text) < 1 << 63


class Toleration(msgspec.Struct, frozen=True, gc=False):
    """Accepts taints of one key (an empty key: all of them); without a value, whatever the taint's value."""

    key: str = ""
    value: str | None = None
    effect: str = ""
    """Only taints of this effect; empty: whatever their effect."""


DESPITE_CORDON: Final = Toleration(f"{OWN_LABEL}cordon")
"""Lets a task onto cordoned nodes. Nobody can write it; a world gives it where its own rules let a task go there."""


class Neighbour(msgspec.Struct, frozen=True, gc=False):
    """A condition on the tasks already in a domain: with (or, if `apart`, never with) tasks that carry these labels."""

    labels: tuple[tuple[str, str], ...]
    level: str
    """The node label that draws the domain, e.g. a zone or a rack; `hostname` means the node itself."""
    apart: bool = False
    rules: tuple[LabelRule, ...] = ()
    """Further conditions on the labels of those tasks; all must hold."""
    physical: bool = False
    """Both would take something that a node has only once, such as a port: it holds between all jobs, whatever the
    scope of their queues, and nobody gives way for it."""


class Spread(msgspec.Struct, frozen=True, gc=False):
    """Keep tasks that carry certain labels even over domains: no domain may have `max_skew` more than the emptiest."""

    level: str
    max_skew: int
    rules: tuple[LabelRule, ...] = ()
    """Which tasks are counted: those whose labels fulfil all of them."""
    min_domains: int = 1
    """With fewer domains than this the emptiest counts as having none."""
    honour_labels: bool = True
    """Only nodes whose labels the task accepts make domains and are counted on."""
    honour_taints: bool = False
    """Only nodes whose taints the task tolerates make domains and are counted on."""


class Preference(msgspec.Struct, frozen=True, gc=False):
    """Nodes a task would rather have: those whose labels fulfil all rules, the more so the larger the weight."""

    weight: int
    rules: tuple[LabelRule, ...]


class SoftNeighbour(msgspec.Struct, frozen=True, gc=False):
    """Tasks one would rather be near to: a node is wanted by so much more for each of them in its domain."""

    weight: int
    """Below zero: rather apart from them."""
    level: str
    rules: tuple[LabelRule, ...]
    """Which tasks are meant: those whose labels fulfil all of them."""


class SoftSpread(msgspec.Struct, frozen=True, gc=False):
    """Tasks that would rather be even over domains: a node is wanted by so much less for each of them in its domain.

    A node that lies in no domain is wanted less than any that does.
    """

    weight: int
    level: str
    rules: tuple[LabelRule, ...]
    """Which tasks are counted: those whose labels fulfil all of them."""
    honour_labels: bool = True
    """Only nodes whose labels the task accepts are counted on."""
    honour_taints: bool = False
    """Only nodes whose taints the task tolerates are counted on."""


class Where(msgspec.Struct, frozen=True, gc=False):
    """Where a task may run. `any_of` lists alternatives; each is a set of rules that must all hold."""

    any_of: tuple[tuple[LabelRule, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    gpu_models: tuple[str, ...] = ()
    """Models that will do; empty means any."""
    neighbours: tuple[Neighbour, ...] = ()
    spreads: tuple[Spread, ...] = ()
    preferences: tuple[Preference, ...] = ()
    soft_neighbours: tuple[SoftNeighbour, ...] = ()
    soft_spreads: tuple[SoftSpread, ...] = ()


ANYWHERE: Final = Where()


class Request(msgspec.Struct, frozen=True, gc=False):
    """What one task asks for, all on one node.

    `devices` GPUs are taken; of each either all of it (`gpu_milli` 1000), a share of it (below 1000), or
    `gpu_memory_mib` of its memory (then `gpu_milli` is 0). MIG slices are asked by profile instead.
    """

    devices: int = 0
    gpu_milli: int = MILLI
    gpu_memory_mib: int = 0
    mig: tuple[tuple[str, int], ...] = ()
    cpu_milli: int = 0
    memory_bytes: int = 0
    other: tuple[tuple[str, int], ...] = ()
    sharing: Sharing = Sharing.EXCLUSIVE
    where: Where = ANYWHERE

    @property
    def whole(self) -> bool:
        """Takes whole GPUs."""
        return self.devices > 0 and self.gpu_milli == MILLI and not self.gpu_memory_mib

    @property
    def shared(self) -> bool:
        """Takes a part of its GPUs, by share or by memory."""
        return self.devices > 0 and not self.whole


class TopologyRule(msgspec.Struct, frozen=True, gc=False):
    """Keep a group inside one domain: `required` or not at all, `preferred` if it can be had."""

    topology: str
    required: str | None = None
    preferred: str | None = None


class TaskGroup(msgspec.Struct, frozen=True, gc=False):
    """A role, or a group of roles. A leaf holds the tasks that name it; an inner group holds other groups."""

    name: str = ""
    min_tasks: int = 1
    """Leaf: how many of its tasks start together or not at all."""
    min_groups: int | None = None
    """Inner group: how many of its children must start; None means all."""
    children: tuple[TaskGroup, ...] = ()
    topology: TopologyRule | None = None
    node_each: bool = False
    """Inner group of leaves: each child lies on one node, and no two of them on the same."""

    @property
    def leaf(self) -> bool:
        return not self.children

    @property
    def fewest_tasks(self) -> int:
        """How many tasks it starts with at least."""
        if self.leaf:
            return self.min_tasks
        fewest = sorted(child.fewest_tasks for child in self.children)
        return sum(fewest[: self.min_groups])


def on_nodes(nodes: int, per_node: int, min_nodes: int, topology: TopologyRule | None = None) -> TaskGroup:
    """So many nodes with so many tasks on each; at least `min_nodes` of them, and each whole or not at all."""
    children = tuple(TaskGroup(node_rank_name(rank), per_node) for rank in range(nodes))
    return TaskGroup("", min_groups=min_nodes, children=children, topology=topology, node_each=True)


def node_rank_name(rank: int) -> str:
    """The group of the tasks on one node of a job. Groups are served by name: leading zeros keep their order."""
    return f"node-rank-{rank:05}"


class TaskState(enum.StrEnum):
    """Where a task stands, as its world reports it."""

    GATED = "gated"
    PENDING = "pending"
    PROMISED = "promised"
    """Has a place that is still being freed."""
    RUNNING = "running"
    """Bound, starting or running: holds its place."""
    FREEING = "freeing"
    """Ending: its place will soon be free."""
    STUCK = "stuck"
    """Ending for too long to count on: its place is not counted as soon free."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class DeviceShare(msgspec.Struct, frozen=True, gc=False):
    """What one task holds of one device. Both bounds count: compute in thousandths, memory in MiB."""

    device: int
    """Index of the device on its node."""
    gpu_milli: int = MILLI
    memory_mib: int = 0
    mig: str = ""
    """The profile, where the share is a MIG slice."""


class Task(msgspec.Struct, frozen=True, gc=False):
    """One process, container or pod."""

    id: str
    request: Request
    group: str = ""
    state: TaskState = TaskState.PENDING
    node: str = ""
    shares: tuple[DeviceShare, ...] = ()
    priority: int = 0
    """Order inside its group: higher first, then by position in the job."""
    started_at_ms: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    """What rules of other tasks look at, beside the labels of its job; sorted."""
    leaving: bool = False
    """Promised a place while it still ends at its former one: it starts there only after that."""


class Job(msgspec.Struct, frozen=True, gc=False):
    """What a user submitted. `group` is the root of its tree; a plain gang is a single leaf named ''."""

    id: str
    queue: str
    """Empty: nobody's. What such a job holds is not there to be shared out, and it neither waits nor gives way."""
    tasks: tuple[Task, ...]
    group: TaskGroup = TaskGroup()
    priority: int = DEFAULT_PRIORITY
    preemptible: bool = True
    submitted_at_ms: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    """What `Neighbour` rules of other tasks look at; sorted."""
    spread: bool = False
    """The gang's own wish to lie on many nodes; without it a gang that fits on one node is never split."""
    run_limit_ms: int | None = None
    estimate_ms: int | None = None
    checkpoint_at_ms: int | None = None
    restart_ms: int = 0
    """What starting it again costs, beside the work since its last checkpoint."""
    preemption_delay_ms: int = 0
    """How long it waits, from its submission or last eviction, before it makes others yield."""
    staleness_grace_ms: int | None = None
    stale_since_ms: int | None = None
    last_evicted_at_ms: int | None = None
    movable: bool = True
    """False: it is never moved to make room; where it must give way, it stops."""
    checkpointable: bool = False
    """May be moved, never stopped for good, although it may not be preempted."""
    protected: bool = False
    """Must not be disturbed at the moment, whatever else holds: somebody outside forbids it."""
    last_eviction: Reason | None = None
    """Why, and for whom, it was last evicted."""
    disruption_budget: int | None = None
    """How many of its tasks one cycle may move; None: all of them."""

    @property
    def may_move(self) -> bool:
        """Whether it may be started again elsewhere to make room."""
        return self.movable and not self.protected and (self.preemptible or self.checkpointable)

    @property
    def may_stop(self) -> bool:
        """Whether it may be stopped for the sake of another."""
        return self.preemptible and not self.protected
