"""What people ask for, as values. Each is decided by one function of decide.py: events, or a RefusedError.

Place in the flow: REST ─**intent**─▶ decide ─events─▶ journal. Who may ask is settled before, by the access table.
"""

from __future__ import annotations

import msgspec

from gpuyard.model.jobs import Job
from gpuyard.model.queues import Queue
from gpuyard.model.recurrence import Recurrence
from gpuyard.model.work import Array, Work
from gpuyard.wire.access import Grant, Scope
from gpuyard.worlds.standalone.lifecycle import JobState


class Submission(msgspec.Struct, frozen=True):
    """A job as its owner wrote it, read and checked. The id in `form` is given when it is accepted."""

    name: str
    user: str
    form: Job
    work: Work
    array: Array | None = None
    after: tuple[str, ...] = ()
    afterok: tuple[str, ...] = ()
    held: bool = False
    schedule: str = ""
    """The schedule it is a run of, as TEAM/NAME; empty: of none."""
    planned_at_ms: int = 0
    """When that run was planned for."""


class Submit(msgspec.Struct, frozen=True):
    submission: Submission
    key: str = ""
    """The Idempotency-Key, with the user in front; empty: none."""
    fingerprint: str = ""
    """Of the request with that key."""


class Steer(msgspec.Struct, frozen=True):
    """Cancel, hold, release, suspend, resume, requeue."""

    job: str
    verb: str
    revision: int | None = None
    """If-Match: only if the job is as it was then."""


class ScaleJob(msgspec.Struct, frozen=True):
    job: str
    tasks: int
    min_tasks: int | None = None
    revision: int | None = None


class TeamSettings(msgspec.Struct, frozen=True):
    """What a team has besides its quotas; None: as it is."""

    idle_limit_ms: int | None = None
    idle_percent: int | None = None
    unix_user: str | None = None


class SetTeams(msgspec.Struct, frozen=True):
    """The whole tree, as it is to be."""

    queues: tuple[Queue, ...]
    settings: dict[str, TeamSettings] = {}
    summed: tuple[str, ...] = ()
    revision: int | None = None
    members: dict[str, tuple[Grant, ...]] = {}
    """User → roles they get in teams of the tree; who is not named keeps what they have."""


class SetUser(msgspec.Struct, frozen=True):
    name: str
    grants: tuple[Grant, ...]
    unix_user: str = ""
    revision: int | None = None


class RemoveUser(msgspec.Struct, frozen=True):
    name: str


class CreateToken(msgspec.Struct, frozen=True):
    """The secret is made by the caller of decide and never reaches the log."""

    id: str
    name: str
    user: str
    digest: str
    scope: Scope
    expires_at_ms: int


class RevokeToken(msgspec.Struct, frozen=True):
    id: str


class AdmitNode(msgspec.Struct, frozen=True):
    """A machine joins with this certificate; `token` is used up by it."""

    node: str
    fingerprint: str
    token: str = ""
    vouched: bool = False
    """It is the manager's own machine: its agent may have been set up anew while the machine is still known."""


class DrainNode(msgspec.Struct, frozen=True):
    node: str
    revision: int | None = None


class ResumeNode(msgspec.Struct, frozen=True):
    node: str
    revision: int | None = None


class LabelNode(msgspec.Struct, frozen=True):
    node: str
    labels: dict[str, str | None]
    revision: int | None = None


class DeclareLost(msgspec.Struct, frozen=True):
    node: str
    revision: int | None = None


class RemoveNode(msgspec.Struct, frozen=True):
    node: str
    revision: int | None = None


class SetSchedule(msgspec.Struct, frozen=True):
    """Make a schedule of a team, or write one anew. Its runs are submissions of `submission.user`, its owner."""

    team: str
    name: str
    recurrence: Recurrence
    submission: Submission
    """What each run submits; its queue is the team."""
    written: str = ""
    """The job file it was read from, as JSON, for those who look at it."""
    paused: bool | None = None
    """None: as it is; a new one is not."""
    revision: int | None = None


class RemoveSchedule(msgspec.Struct, frozen=True):
    """Its runs go on, and stay listed."""

    team: str
    name: str
    revision: int | None = None


class PauseSchedule(msgspec.Struct, frozen=True):
    team: str
    name: str
    revision: int | None = None


class ResumeSchedule(msgspec.Struct, frozen=True):
    """Also for one that the manager has suspended. What was planned meanwhile is not made up for."""

    team: str
    name: str
    revision: int | None = None


class RunSchedule(msgspec.Struct, frozen=True):
    """A run now, beside what is planned; the rule about overlaps holds for it, too."""

    team: str
    name: str
    key: str = ""
    """As that of a Submit."""
    fingerprint: str = ""
    revision: int | None = None


ScheduleIntent = SetSchedule | RemoveSchedule | PauseSchedule | ResumeSchedule | RunSchedule

Intent = (
    Submit
    | Steer
    | ScaleJob
    | SetTeams
    | SetUser
    | RemoveUser
    | CreateToken
    | RevokeToken
    | AdmitNode
    | DrainNode
    | ResumeNode
    | LabelNode
    | DeclareLost
    | RemoveNode
    | ScheduleIntent
)

VERBS = {
    "cancel": frozenset(JobState) - {JobState.CANCELLED, JobState.SUCCEEDED, JobState.FAILED},
    "hold": frozenset({JobState.BLOCKED, JobState.WAITING, JobState.STARTING, JobState.RUNNING, JobState.STOPPING}),
    "release": frozenset({JobState.HELD}),
    "suspend": frozenset({JobState.WAITING, JobState.STARTING, JobState.RUNNING}),
    "resume": frozenset({JobState.SUSPENDED}),
    "requeue": frozenset({JobState.STARTING, JobState.RUNNING}),
}
"""In which states each verb can be asked."""
