"""The objects of the REST API, as a client sends and receives them.

Place in the flow: state ─service.views─▶ **objects** ─JSON─▶ sdk ─▶ cli. Times are RFC 3339 in UTC, amounts of GPUs
decimal text as a person writes them, everything else integers with the unit in the name. Fields are only ever added.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

import msgspec

from gpuyard.model.difference import Difference
from gpuyard.model.explanation import Explanation
from gpuyard.model.plan import Plan
from gpuyard.model.reasons import Reason
from gpuyard.wire.access import Grant, Scope
from gpuyard.wire.moment import Moment

Item = TypeVar("Item")


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """RFC 9457: what went wrong. `reason` is a stable word to match on."""

    title: str
    status: int
    reason: str
    detail: str = ""
    fix: str = ""
    field: str = ""
    """The field of the request it is about, as a path: tasks, env.HOME, queues.vision.quota."""
    type: str = "about:blank"
    blockers: tuple[Reason, ...] = ()


class Page(msgspec.Struct, Generic[Item], frozen=True):
    """A part of a list. `next` is the cursor of the rest; null at the end."""

    items: tuple[Item, ...]
    next: str | None = None
    revision: int = 0
    """The state this was read from: watch from here."""


class Why(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reason with its sentence."""

    token: str
    text: str
    never: bool = False


class TaskObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """One process of a job."""

    task: int
    phase: str
    attempt: int = 0
    node: str = ""
    devices: tuple[int, ...] = ()
    started_at: Moment | None = None
    ended_at: Moment | None = None
    ending: str = ""
    exit_code: int | None = None
    message: str = ""
    gpu_percent: int | None = None


class JobObject(msgspec.Struct, frozen=True):
    """A job."""

    id: str
    name: str
    team: str
    user: str
    state: str
    gpus: str
    """In all, of all its tasks: 4, 0.5, 6Gi."""
    tasks: int
    min_tasks: int
    running_tasks: int
    nodes: tuple[str, ...]
    priority: int
    preemptible: bool
    submitted_at: Moment
    revision: int
    started_at: Moment | None = None
    """When it first started."""
    ended_at: Moment | None = None
    starts_at: Moment | None = None
    """When it is thought to start; null: not known, or it has."""
    starts_by: Moment | None = None
    """And almost surely by then."""
    why: tuple[Why, ...] = ()
    """Why it waits; where that is not known yet, why it last had to give way; or why it ended."""
    restarts: int = 0
    exit_code: int | None = None
    run_limit_ms: int | None = None
    labels: dict[str, str] = {}
    array: str = ""
    """The array it is an element of."""
    array_index: int | None = None
    after: tuple[str, ...] = ()
    afterok: tuple[str, ...] = ()
    idle_since: Moment | None = None
    reclaimable: bool = False
    """It holds GPUs it does not use: whoever waits in its team may have them, other teams what is borrowed."""
    tasks_per_node: int = 0
    """It lies on nodes with just so many of its tasks on each; 0: wherever there is room."""
    run_started_at: Moment | None = None
    """When the run it is in, or was in last, began; after a requeue that is later than `started_at`."""
    schedule: str = ""
    """The schedule it is a run of, as TEAM/NAME."""
    planned_at: Moment | None = None
    """When that run was planned for."""


class JobDetail(JobObject, frozen=True):
    """A job with its tasks, and for those who may see them its command and variables."""

    task_list: tuple[TaskObject, ...] = ()
    command: tuple[str, ...] | None = None
    env: dict[str, str] | None = None
    workdir: str | None = None
    checkpoint: tuple[str, ...] | None = None
    on_node_lost: str = "restart-after-lease"
    retries: int = 0
    grace_ms: int = 0


class Submitted(msgspec.Struct, frozen=True):
    """The answer to a submission: the job, or all elements of an array; in a dry run as they would be."""

    jobs: tuple[JobObject, ...]
    warnings: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    """In a dry run: who would start, stop or wait."""


class Scale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many tasks an elastic job is to have at most, and if given at least."""

    tasks: int
    min_tasks: int | None = None


class RunObject(msgspec.Struct, frozen=True):
    """A run of a schedule."""

    job: str
    """Its job, or its array."""
    state: str
    """Of the job; `forgotten`: over so long ago that it is no longer listed."""
    planned_at: Moment
    submitted_at: Moment
    asked: bool = False
    """Somebody asked for it; it was not planned."""


class SkipObject(msgspec.Struct, frozen=True):
    """Planned times without a run. `reason` is a stable word."""

    planned_at: Moment
    reason: str
    text: str
    count: int = 1
    """So many times, of which `planned_at` is the last; counted up to 1000."""


class ScheduleObject(msgspec.Struct, frozen=True):
    """A job that comes again."""

    team: str
    name: str
    owner: str
    """Whose submissions its runs are."""
    state: str
    """active, paused, or suspended by the manager; `why` then says why."""
    cron: str
    time_zone: str
    overlap: str
    missed: str
    missed_limit_ms: int
    gpus: str
    """What a run asks for in all."""
    set_at: Moment
    revision: int
    """Of what it is; its runs do not count."""
    next_at: Moment | None = None
    last_run: RunObject | None = None
    last_skip: SkipObject | None = None
    why: tuple[Why, ...] = ()


class ScheduleDetail(ScheduleObject, frozen=True):
    """A schedule with its next times and its last runs, and for those who may see it its job file."""

    next_times: tuple[Moment, ...] = ()
    runs: tuple[RunObject, ...] = ()
    """Newest first."""
    job: dict[str, Any] | None = None
    """The job file; null where its reader may not see it, or a program has set it without one."""


class TeamObject(msgspec.Struct, frozen=True):
    """A queue of the tree, with what it is owed and holds. GPUs as decimal text."""

    name: str
    parent: str | None
    leaf: bool
    quota: str | None
    """null: all it asks for."""
    limit: str | None
    """null: no bound."""
    weight: str
    priority: int
    held: str
    borrowed: str
    lent: str
    waiting: str
    """What its waiting jobs ask for."""
    fair_share: str
    running_jobs: int
    waiting_jobs: int
    idle_limit_ms: int | None = None
    idle_percent: int = 5
    members: tuple[MemberObject, ...] | None = None
    """For those who may see them."""
    revision: int = 0


class MemberObject(msgspec.Struct, frozen=True):
    user: str
    role: str


class TeamsChanged(msgspec.Struct, frozen=True):
    """What an edit of teams does, or in a dry run would do."""

    dry_run: bool
    difference: Difference
    text: tuple[str, ...]
    """The difference in sentences."""
    revision: int = 0
    notes: tuple[str, ...] = ()
    """What is allowed and yet seldom meant: more is owed than there is, somebody never has to give back."""


class HolderObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who holds a part of a device. The job only for those who may see it."""

    team: str
    gpu_milli: int
    memory_mib: int
    job: str = ""
    task: int = 0


class DeviceObject(msgspec.Struct, frozen=True):
    """One GPU."""

    node: str
    index: int
    id: str
    model: str
    memory_mib: int
    healthy: bool
    free_milli: int
    free_memory_mib: int
    holders: tuple[HolderObject, ...] = ()
    fake: bool = False


class NodeObject(msgspec.Struct, frozen=True):
    """One machine. `state`: ready, unhealthy, silent, draining, drained, lost, new.

    `unhealthy` says why what its agent reports is refused: it takes no new task, and its facts are the last accepted.
    `cores_kept` and `memory_kept` say how it keeps the bounds of tasks: booked, polled or enforced; `limits_note` why.
    `process_view` says which processes a task sees there: isolated (its own only) or shared (all, with their command
    lines); `process_note` why, and what to do.
    """

    name: str
    state: str
    gpus: int
    free_gpus: str
    models: tuple[str, ...]
    cpu_milli: int
    memory_bytes: int
    tasks: int
    fake: bool
    isolation: str
    labels: dict[str, str]
    version: str = ""
    address: str = ""
    last_seen_at: Moment | None = None
    trouble: tuple[str, ...] = ()
    cores_kept: str = "booked"
    memory_kept: str = "polled"
    limits_note: str = ""
    unhealthy: str = ""
    revision: int = 0
    process_view: str = ""
    process_note: str = ""


class NodeChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Labels to set (a null takes one away)."""

    labels: dict[str, str | None] = {}


class JoinRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: str
    csr: str


class Joined(msgspec.Struct, frozen=True):
    node: str
    certificate: str
    ca: str
    agents: str


class ExplanationObject(msgspec.Struct, frozen=True):
    """Where a job stands, as data and in sentences. Jobs of other teams have no names in it."""

    explanation: Explanation
    text: tuple[str, ...]
    exit_code: int
    """0 runs or can run, 10 waits, 11 never."""
    at: Moment
    unhealthy_nodes: tuple[str, ...] = ()
    """Sentences about nodes that it would use, were they healthy."""
    revision: int = 0


class PlanObject(msgspec.Struct, frozen=True):
    """What would happen. Nothing was done."""

    plan: Plan
    text: tuple[str, ...]
    revision: int = 0


class DifferenceObject(msgspec.Struct, frozen=True):
    difference: Difference
    text: tuple[str, ...]
    revision: int = 0


PROBLEM_EVENT: Final = "problem"
"""What the last message of a stream of events is called where it was ended because of a problem; its data is that."""


class EventObject(msgspec.Struct, frozen=True):
    """One thing that happened. `revision` is its number in the log."""

    revision: int
    at: Moment
    kind: str
    actor: str
    team: str
    objects: tuple[str, ...]
    text: str
    data: msgspec.Raw


class UsageRow(msgspec.Struct, frozen=True):
    """GPU-hours, as decimal text."""

    team: str = ""
    user: str = ""
    job: str = ""
    day: str = ""
    held: str = "0"
    owed: str = "0"
    borrowed: str = "0"
    lent: str = "0"
    wasted: str = "0"
    idle: str = "0"
    causes: tuple[WasteCause, ...] = ()


class WasteCause(msgspec.Struct, frozen=True):
    """What was lost by one decision; `revision` is that decision in the log, `text` its sentence."""

    revision: int
    token: str
    gpu_hours: str
    text: str = ""


class UserObject(msgspec.Struct, frozen=True):
    name: str
    grants: tuple[Grant, ...]
    unix_user: str = ""
    """The account on the nodes that its jobs run as; empty: the team's, else its own number."""
    revision: int = 0
    uid: int = 0
    """The user number that its jobs run as where no account is given; 0: it has submitted nothing yet."""


class UserChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    grants: tuple[Grant, ...]
    unix_user: str = ""


class MemberChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: str


class TokenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str = ""
    user: str = ""
    """Somebody else's, for those who may; empty: one's own."""
    scope: Scope = Scope.FULL
    expires_in_ms: int = 30 * 24 * 3600 * 1000


class TokenObject(msgspec.Struct, frozen=True):
    id: str
    name: str
    user: str
    scope: Scope
    created_at: Moment
    expires_at: Moment
    revoked: bool = False
    last_used_at: Moment | None = None


class CreatedToken(msgspec.Struct, frozen=True):
    """The only time the secret is shown."""

    token: TokenObject
    secret: str


class Whoami(msgspec.Struct, frozen=True):
    user: str
    grants: tuple[Grant, ...]
    scope: Scope
    teams: tuple[str, ...]
    """Where it may submit."""
    server: str
    isolation: str


class Version(msgspec.Struct, frozen=True):
    version: str
    api: str = "v1"


class QuarantinedEntry(msgspec.Struct, frozen=True):
    """An entry of the log that is kept and not used."""

    seq: int
    kind: str
    why: str = ""
    """For admins and operators."""


class DatabaseHealth(msgspec.Struct, frozen=True):
    """Whether the database holds what was written to it."""

    verified_at: Moment | None
    """When entries were last held against their checksums."""
    verified_entries: int
    """How many were looked at."""
    complete: bool
    """Everything was looked at."""
    damage: tuple[str, ...] = ()
    """What is not as it was written; for admins and operators."""
    quarantined: int = 0
    """Entries that are kept and not used."""
    quarantine: tuple[QuarantinedEntry, ...] = ()
    """The first of them."""


class Status(msgspec.Struct, frozen=True):
    """The cluster in short."""

    cluster: str
    version: str
    database: str
    revision: int
    nodes: int
    ready_nodes: int
    gpus: int
    free_gpus: str
    fake: bool
    isolation: str
    jobs: dict[str, int]
    """By state."""
    last_cycle_ms: int
    cycles: int
    started_at: Moment
    warnings: tuple[str, ...] = ()
    pool: str = ""
    """Where the pool is reached over gRPC: HOST:PORT; empty: nowhere."""
    database_health: DatabaseHealth | None = None
