"""What the manager knows, as values: jobs, machines, teams, people, tokens. `State` holds them all.

Place in the flow: events ─fold─▶ **records** ─snapshot─▶ scheduler; ─views─▶ REST. Change = replace; only fold.py
puts anything into a `State`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import msgspec

from gpuyard.model.jobs import DeviceShare, Job
from gpuyard.model.queues import Queue
from gpuyard.model.reasons import Reason
from gpuyard.model.recurrence import Recurrence
from gpuyard.model.work import Array, Work
from gpuyard.wire.access import Grant, Scope
from gpuyard.wire.agents import Ending, Isolation, MachineFacts
from gpuyard.worlds.standalone.intents import Submission
from gpuyard.worlds.standalone.lifecycle import PLACED, JobState, TaskPhase
from gpuyard.worlds.standalone.uids import DEFAULT_UIDS, UidRange

MAX_ATTEMPTS_KEPT: Final = 16
"""Attempts of a task whose machines are remembered."""
MAX_FINISHED_KEPT: Final = 20_000
"""Jobs that are over and still listed; older ones are found in the audit only."""
KEPT_FINISHED_MS: Final = 30 * 24 * 3600 * 1000
MAX_JUMPS_KEPT: Final = 100
"""Jumps of the clock that are told apart; of older ones only the sum counts."""
MAX_RUNS_KEPT: Final = 20
"""Runs of a schedule that are remembered with it, besides those that are not over."""


class Then(enum.StrEnum):
    """What becomes of a job once all its tasks have stopped."""

    REQUEUE = "requeue"
    SUSPEND = "suspend"
    HOLD = "hold"
    CANCEL = "cancel"
    FAIL = "fail"
    RETRY = "retry"
    """It failed by itself and has retries left."""


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a task lies or will."""

    node: str
    shares: tuple[DeviceShare, ...] = ()


class TaskRecord(msgspec.Struct, frozen=True, gc=False):
    """One task of a job and its newest attempt."""

    phase: TaskPhase = TaskPhase.WAITING
    attempt: int = 0
    """The number of its newest attempt; where it never had a place, that of the last one it must not use again."""
    place: Place | None = None
    """Where its attempt is (assigned, running, stopping), or where it is promised to be."""
    next: Place | None = None
    """Where it starts again once it has stopped: it is being moved."""
    why: Reason | None = None
    """Why it got its place, or must stop."""
    assigned_at_ms: int = 0
    started_at_ms: int = 0
    stopping_since_ms: int = 0
    ended_at_ms: int = 0
    ending: Ending | None = None
    exit_code: int | None = None
    message: str = ""
    checkpoint_at_ms: int = 0
    ran_on: tuple[tuple[int, str], ...] = ()
    """Its newest attempts and their machines: where their logs are."""
    host: str = ""
    """The incarnation of the agent it was given to: another one knows nothing of it."""
    decision: int = 0
    """The entry of the log that gave it its place, or told it to stop."""


class JobRecord(msgspec.Struct, frozen=True, gc=False):
    """A job as its owner knows it. `form` is what the scheduler sees while nothing of it has a place."""

    id: str
    name: str
    user: str
    form: Job
    work: Work
    state: JobState
    tasks: tuple[TaskRecord, ...]
    revision: int = 0
    """The entry of the log that last changed it."""
    submitted_at_ms: int = 0
    started_at_ms: int = 0
    """When it first ran."""
    ended_at_ms: int = 0
    then: Then | None = None
    """Set while it is stopping."""
    why: Reason | None = None
    message: str = ""
    """A sentence about how it ended, or why it is stopped."""
    exit_code: int | None = None
    restarts: int = 0
    """How often it was started again, of the task that was most often."""
    failures: int = 0
    """How often it failed by itself: counts against its retries."""
    last_evicted_at_ms: int | None = None
    last_eviction: Reason | None = None
    stale_since_ms: int | None = None
    after: tuple[str, ...] = ()
    afterok: tuple[str, ...] = ()
    held: bool = False
    """Held by its owner: after a stop it does not wait for its turn."""
    array: str = ""
    array_index: int | None = None
    attempts_before: int = 0
    """The highest number of an attempt of tasks that were scaled away: tasks that come later count on from there."""
    idle_since_ms: int | None = None
    warned_idle: bool = False
    reclaimable: bool = False
    elastic: bool = False
    """It was submitted with a range of tasks; whether it may be scaled does not change with what it is scaled to."""
    schedule: str = ""
    """The schedule it is a run of, as TEAM/NAME."""
    planned_at_ms: int = 0
    uid: int = 0
    """The number it runs as on the nodes, unless its user or its team has an account there; 0: none was left."""

    @property
    def team(self) -> str:
        return self.form.queue

    @property
    def over(self) -> bool:
        return self.ended_at_ms > 0


class ArrayRecord(msgspec.Struct, frozen=True, gc=False):
    """What the elements of an array have in common."""

    id: str
    array: Array
    elements: tuple[str, ...]
    released: int = 0
    """How many of them, in order, need wait for their array no more."""


class NodeRecord(msgspec.Struct, frozen=True, gc=False):
    """A machine that has joined."""

    name: str
    joined_at_ms: int
    facts: MachineFacts = MachineFacts()
    incarnation: str = ""
    boot_id: str = ""
    version: str = ""
    silent_since_ms: int | None = None
    """Its lease has run out: nothing new starts there. None: it is heard of."""
    drained: bool = False
    """Takes nothing new."""
    lost: bool = False
    """What ran there no longer does, for certain."""
    labels: tuple[tuple[str, str], ...] = ()
    """Set by an operator; they win over what the machine says."""
    fingerprint: str = ""
    """SHA-256 of the certificate it speaks with."""
    revision: int = 0
    seen: bool = False
    """An agent has ever spoken for it."""
    unhealthy: str = ""
    """Why what its agent says is refused: it takes no new task, and `facts` are the last that were accepted."""


class TeamRecord(msgspec.Struct, frozen=True, gc=False):
    """What a leaf queue has besides its quotas."""

    number: int
    """Never used again: jobs from before users had numbers run as one that is made of it."""
    idle_limit_ms: int | None = None
    """A job that holds GPUs without using them for so long is warned, and after as long again reclaimable."""
    idle_percent: int = 5
    """Use below this is idle."""
    unix_user: str = ""


class UserRecord(msgspec.Struct, frozen=True, gc=False):
    name: str
    grants: tuple[Grant, ...] = ()
    unix_user: str = ""
    revision: int = 0


class TokenRecord(msgspec.Struct, frozen=True, gc=False):
    """A token without its secret."""

    id: str
    name: str
    user: str
    digest: str
    """SHA-256 of the secret, in hex."""
    scope: Scope
    created_at_ms: int
    expires_at_ms: int
    revoked: bool = False
    used: bool = False
    """A token to join with is good once."""


class SkipReason(enum.StrEnum):
    """Why a planned time had no run."""

    OVERLAP = "Overlap"
    """An earlier run was not over."""
    TOO_MANY_QUEUED = "TooManyQueued"
    """Too many runs waited for the one before them."""
    MISSED = "Missed"
    """It passed while no manager ran, and is not made up for, or by one run with others."""
    QUEUE_FULL = "QueueFull"
    """The cluster took no more jobs."""


class SuspendReason(enum.StrEnum):
    """Why the manager runs a schedule no more."""

    OWNER_GONE = "OwnerGone"
    NOT_ALLOWED = "NotAllowed"
    """Its owner may not submit that job any more."""
    TEAM_GONE = "TeamGone"


class Run(msgspec.Struct, frozen=True, gc=False):
    """What a planned time has led to."""

    planned_at_ms: int
    submitted_at_ms: int
    job: str
    """A job, or an array."""
    asked: bool = False
    """Somebody asked for it; it was not planned."""


class Skip(msgspec.Struct, frozen=True, gc=False):
    """Planned times without a run: the last of them, and how many."""

    planned_at_ms: int
    why: SkipReason
    count: int = 1
    earlier: str = ""
    """The run that was not over."""


class Suspension(msgspec.Struct, frozen=True, gc=False):
    why: SuspendReason
    since_ms: int
    message: str = ""


class ScheduleRecord(msgspec.Struct, frozen=True, gc=False):
    """A job of a team that comes again."""

    id: str
    """TEAM/NAME."""
    recurrence: Recurrence
    submission: Submission
    written: str
    set_at_ms: int
    settled_until_ms: int
    """Every planned time up to then has had its run, or a reason why not. It only ever grows: that is what keeps a
    planned time from being run twice, whatever crashes and whichever way the clock is set."""
    paused: bool = False
    suspended: Suspension | None = None
    runs: tuple[Run, ...] = ()
    """The newest, oldest first."""
    last_skip: Skip | None = None
    revision: int = 0
    """The entry that last changed what it is; its runs do not count."""

    @property
    def team(self) -> str:
        return self.submission.form.queue

    @property
    def name(self) -> str:
        return self.id.partition("/")[2]

    @property
    def owner(self) -> str:
        return self.submission.user

    @property
    def stands_still(self) -> bool:
        return self.paused or self.suspended is not None


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What a request with this Idempotency-Key has led to."""

    fingerprint: str
    """Of the request: another one with the same key is refused."""
    jobs: tuple[str, ...]
    at_ms: int


class TeamMeter(msgspec.Struct, frozen=True):
    """How one team's use runs on. `borrowed_ratio_ppm_ms` is the integral of the part of it that was borrowed."""

    held_milli: int = 0
    borrowed_ratio_ppm_ms: int = 0


class Meter(msgspec.Struct):
    """Use that is not yet summed for good: the open days, and how each team stands since `at_ms`."""

    at_ms: int = 0
    teams: dict[str, TeamMeter] = {}
    open_days: dict[str, dict[tuple[str, str, str, str, str], int]] = {}
    """Day → (team, user, job, kind, cause) → GPU milli x milliseconds."""
    marks: dict[tuple[str, int], tuple[int, int]] = {}
    """Task that holds GPUs → up to when its use is counted, and its team's integral then."""
    closed_until: str = ""
    """The last day that was ever closed. The clock may be set back: a day up to this one may have kept sums."""
    closing: tuple[str, ...] = ()
    """Open days of which sums may be kept already; the open ones are complete."""


class ClockReading(msgspec.Struct, frozen=True):
    """How the wall clock of the manager's node relates to its monotonic clock, which counts from a boot."""

    boot: str
    ahead_ms: int
    """Wall clock minus monotonic clock. Only a jump changes it."""


class Jump(msgspec.Struct, frozen=True, gc=False):
    """The wall clock was set."""

    seq: int
    """Entries before this one are dated by the clock as it was before."""
    at_ms: int
    by_ms: int


class State(msgspec.Struct):
    """Everything, after `seq` entries of the log."""

    cluster: str = ""
    lease_ms: int = 0
    """The longest lease that machines may have; 0: none but the usual one was ever given."""
    seq: int = 0
    at_ms: int = 0
    next_job: int = 1
    next_team: int = 1
    cycle: int = 0
    jobs: dict[str, JobRecord] = {}
    arrays: dict[str, ArrayRecord] = {}
    nodes: dict[str, NodeRecord] = {}
    queues: tuple[Queue, ...] = ()
    summed: tuple[str, ...] = ()
    """Queues whose GPU quota is the sum of those below them."""
    teams: dict[str, TeamRecord] = {}
    teams_revision: int = 0
    users: dict[str, UserRecord] = {}
    tokens: dict[str, TokenRecord] = {}
    receipts: dict[str, Receipt] = {}
    dependents: dict[str, list[str]] = {}
    """Job → jobs that wait for its end."""
    placed: dict[str, dict[str, None]] = {}
    """Machine → jobs that have an attempt there, as a set whose order is always the same."""
    finished: list[str] = []
    """Jobs that are over, in the order they ended."""
    moves: list[int] = []
    """When tasks were moved, in the last hour."""
    meter: Meter = msgspec.field(default_factory=Meter)
    schedules: dict[str, ScheduleRecord] = {}
    """TEAM/NAME → the schedule."""
    clock: ClockReading | None = None
    """What `at_ms` of the newest entries was read from. None: never recorded."""
    jumps: tuple[Jump, ...] = ()
    """The newest, oldest first."""
    isolation: Isolation | None = None
    shared_user_accepted: bool = False
    uids: dict[str, int] = {}
    """User → the number its jobs run as."""
    uid_ranges: tuple[UidRange, ...] = (DEFAULT_UIDS,)
    """Where such numbers were taken from; the last is the one they are taken from now."""
    uids_skipped: int = 0
    """How many numbers of a new range are left out: restores may have lost who has them."""


def schedule_id(team: str, name: str) -> str:
    return f"{team}/{name}"


def per_leaf(form: Job, indices: Iterable[int]) -> dict[str, int]:
    """Per leaf group of a job, how many of these tasks it has."""
    counts: dict[str, int] = {}
    for index in indices:
        leaf = form.group.name if form.group.leaf else form.tasks[index].group
        counts[leaf] = counts.get(leaf, 0) + 1
    return counts


def done_per_leaf(record: JobRecord) -> dict[str, int]:
    return per_leaf(record.form, (at for at, task in enumerate(record.tasks) if task.phase is TaskPhase.DONE))


def on_machine(record: JobRecord, node: str) -> list[int]:
    """Tasks of a job whose attempt is on that machine."""
    return [
        index
        for index, task in enumerate(record.tasks)
        if task.phase in PLACED and task.place is not None and task.place.node == node
    ]


def jobs_on(state: State, node: str) -> list[JobRecord]:
    """Jobs that have an attempt on that machine."""
    return [state.jobs[id] for id in sorted(state.placed.get(node, ()))]
