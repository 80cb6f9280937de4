"""Everything that can happen, as values. The log holds these and nothing else; state is their fold.

An event says what happened, not what follows from it: the functions in intents.py, planning.py and reports.py reckon
all consequences before they write, and fold.py only enters them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gpuyard.model.queues import Queue
from gpuyard.model.reasons import Reason
from gpuyard.model.recurrence import Recurrence
from gpuyard.wire.agents import Ending, MachineFacts
from gpuyard.worlds.standalone.intents import Submission
from gpuyard.worlds.standalone.lifecycle import Happening
from gpuyard.worlds.standalone.records import (
    ArrayRecord,
    ClockReading,
    JobRecord,
    Place,
    Receipt,
    SkipReason,
    SuspendReason,
    TeamRecord,
    Then,
    TokenRecord,
    UserRecord,
)
from gpuyard.worlds.standalone.store.quarantine import EntriesQuarantined, EntriesReleased


class _Event(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    pass


class ClusterFounded(_Event, frozen=True, tag="cluster-founded"):
    cluster: str


class SharedUserAccepted(_Event, frozen=True, tag="shared-user-accepted"):
    """Several teams may share one user of the machines."""


class UidRangeSet(_Event, frozen=True, tag="uid-range-set"):
    """From here on users get their numbers from this range."""

    first: int
    last: int


class Restored(_Event, frozen=True, tag="restored"):
    """A backup was put back: what happened after it is unknown here, and known to machines and people."""


class LeaseSet(_Event, frozen=True, tag="lease-set"):
    """The longest lease that machines may have. A longer one is in the log before it is given, a shorter one when the
    longer ones must be over."""

    lease_ms: int


class TeamsSet(_Event, frozen=True, tag="teams-set"):
    """The whole tree, as newly written."""

    queues: tuple[Queue, ...]
    teams: dict[str, TeamRecord]
    summed: tuple[str, ...] = ()


class UserSet(_Event, frozen=True, tag="user-set"):
    user: UserRecord


class UserRemoved(_Event, frozen=True, tag="user-removed"):
    user: str


class TokenCreated(_Event, frozen=True, tag="token-created"):
    token: TokenRecord


class TokenRevoked(_Event, frozen=True, tag="token-revoked"):
    token: str


class TokenUsed(_Event, frozen=True, tag="token-used"):
    """A token to join with has been used."""

    token: str


class NodeJoined(_Event, frozen=True, tag="node-joined"):
    node: str
    fingerprint: str


class NodeSeen(_Event, frozen=True, tag="node-seen"):
    """An agent speaks for it: what it has."""

    node: str
    facts: MachineFacts
    incarnation: str
    boot_id: str
    version: str


class NodeUnhealthy(_Event, frozen=True, tag="node-unhealthy"):
    """Its agent says what is refused: it takes no new task until it is seen with facts that are in range."""

    node: str
    why: str


class NodeSilent(_Event, frozen=True, tag="node-silent"):
    """Nothing has been heard of it for the length of a lease."""

    node: str


class NodeHeard(_Event, frozen=True, tag="node-heard"):
    node: str


class NodeLost(_Event, frozen=True, tag="node-lost"):
    """What ran there no longer does: its lease and grace are over, or an operator says so."""

    node: str
    declared: bool = False


class NodeDrained(_Event, frozen=True, tag="node-drained"):
    node: str


class NodeResumed(_Event, frozen=True, tag="node-resumed"):
    node: str


class NodeLabelled(_Event, frozen=True, tag="node-labelled"):
    node: str
    labels: tuple[tuple[str, str], ...]


class NodeRemoved(_Event, frozen=True, tag="node-removed"):
    node: str


class JobSubmitted(_Event, frozen=True, tag="job-submitted"):
    job: JobRecord


class ArraySubmitted(_Event, frozen=True, tag="array-submitted"):
    array: ArrayRecord


class ArrayReleased(_Event, frozen=True, tag="array-released"):
    """So many of its elements, in order, need wait for their array no more."""

    array: str
    released: int
    released_from: int
    """So many before."""


class RequestKept(_Event, frozen=True, tag="request-kept"):
    """A request with an Idempotency-Key was answered."""

    key: str
    receipt: Receipt


class JobWent(_Event, frozen=True, tag="job-went"):
    """A job changed its state as the table says."""

    job: str
    happening: Happening
    then: Then | None = None
    why: Reason | None = None
    message: str = ""
    exit_code: int | None = None
    failed: bool = False
    """It failed by itself: counts against its retries."""
    held: bool | None = None


class JobScaled(_Event, frozen=True, tag="job-scaled"):
    """Other bounds for the number of its tasks."""

    job: str
    tasks: int
    min_tasks: int


class Placing(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A task and the place it gets."""

    task: int
    place: Place
    why: Reason
    attempt: int = 0
    """0 for a promise."""


class Leaving(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A task that must stop; `why` where the scheduler or an operator decided it, `next` where it is moved."""

    task: int
    why: Reason | None = None
    next: Place | None = None


class TasksPlaced(_Event, frozen=True, tag="tasks-placed"):
    """A plan gives tasks of a job their places: from here on they are started there, once."""

    job: str
    cycle: int
    tasks: tuple[Placing, ...]


class TasksPromised(_Event, frozen=True, tag="tasks-promised"):
    job: str
    cycle: int
    tasks: tuple[Placing, ...]


class PromiseDropped(_Event, frozen=True, tag="promise-dropped"):
    job: str
    cycle: int
    tasks: tuple[int, ...]
    why: Reason | None = None


class TasksStopped(_Event, frozen=True, tag="tasks-stopped"):
    """Tasks of a job must stop, by a plan (`cycle`) or for another reason."""

    job: str
    tasks: tuple[Leaving, ...]
    cycle: int = 0
    then: Then | None = None
    """Set where the whole job stops: what comes after."""
    message: str = ""


class AttemptBegan(_Event, frozen=True, tag="attempt-began"):
    job: str
    task: int
    attempt: int
    node: str
    started_at_ms: int


class AttemptEnded(_Event, frozen=True, tag="attempt-ended"):
    job: str
    task: int
    attempt: int
    node: str
    ending: Ending
    ended_at_ms: int
    exit_code: int | None = None
    message: str = ""
    done: bool = False
    """It ended by itself, well: it is not started again."""


class Checkpointed(_Event, frozen=True, tag="checkpointed"):
    job: str
    task: int
    at_ms: int


class IdleNoticed(_Event, frozen=True, tag="idle-noticed"):
    """A job holds GPUs and does not use them; `since_ms` None: it does again."""

    job: str
    since_ms: int | None


class IdleWarned(_Event, frozen=True, tag="idle-warned"):
    job: str
    idle_ms: int


class IdleReclaimable(_Event, frozen=True, tag="idle-reclaimable"):
    """It was warned and still idles: whoever waits in its team may have its place, other teams what is borrowed."""

    job: str
    idle_ms: int


class DayClosed(_Event, frozen=True, tag="day-closed"):
    """A day is over: its use is summed for good."""

    day: str


class JobNumbered(_Event, frozen=True, tag="job-numbered"):
    """A job from before users had numbers gets the one it runs as."""

    job: str
    uid: int


class DayClosing(_Event, frozen=True, tag="day-closing"):
    """The sums of a day that is over are about to be kept: the open ones are complete, and replace what is kept."""

    day: str
    kept: tuple[tuple[str, str, str, str, str, int], ...] = ()
    """What was kept when the day was closed before, and came again because the clock was set back: team, user, job,
    kind, cause, and GPU milli x milliseconds."""


class ClockRead(_Event, frozen=True, tag="clock-read"):
    """The manager runs on another boot than before, or for the first time."""

    reading: ClockReading


class ClockJumped(_Event, frozen=True, tag="clock-jumped"):
    """The wall clock was set, or the node slept. This entry is the first that is dated by the new clock."""

    by_ms: int
    """Positive: ahead."""
    reading: ClockReading


class JobsForgotten(_Event, frozen=True, tag="jobs-forgotten"):
    """Over for long: no longer listed."""

    jobs: tuple[str, ...]


class Noted(_Event, frozen=True, tag="noted"):
    """Something that was done beside this state, by what is built above it; for the audit."""

    about: str
    """What it is about: data-job/vision/train-model."""
    what: str
    team: str = ""


class ScheduleSet(_Event, frozen=True, tag="schedule-set"):
    """A schedule is made, or written anew. `schedule` is TEAM/NAME here and below."""

    schedule: str
    recurrence: Recurrence
    submission: Submission
    written: str = ""
    paused: bool = False


class ScheduleRemoved(_Event, frozen=True, tag="schedule-removed"):
    schedule: str


class SchedulePaused(_Event, frozen=True, tag="schedule-paused"):
    schedule: str


class ScheduleResumed(_Event, frozen=True, tag="schedule-resumed"):
    schedule: str


class ScheduleSuspended(_Event, frozen=True, tag="schedule-suspended"):
    """It cannot go on: somebody has to look at it."""

    schedule: str
    why: SuspendReason
    message: str = ""
    planned_at_ms: int = 0
    """The planned time at which that turned out, which has no run; 0: at none."""


class ScheduleRan(_Event, frozen=True, tag="schedule-ran"):
    """A planned time has led to this job or array, which is in the log together with this."""

    schedule: str
    planned_at_ms: int
    run: str
    asked: bool = False
    """Not planned: somebody asked for it."""


class ScheduleSkipped(_Event, frozen=True, tag="schedule-skipped"):
    """All planned times since the last one that was settled, up to this, had no run."""

    schedule: str
    planned_at_ms: int
    why: SkipReason
    count: int = 1
    earlier: str = ""


ScheduleEvent = (
    ScheduleSet | ScheduleRemoved | SchedulePaused | ScheduleResumed | ScheduleSuspended | ScheduleRan | ScheduleSkipped
)

Event = (
    ClusterFounded
    | SharedUserAccepted
    | UidRangeSet
    | Restored
    | LeaseSet
    | TeamsSet
    | UserSet
    | UserRemoved
    | TokenCreated
    | TokenRevoked
    | TokenUsed
    | NodeJoined
    | NodeSeen
    | NodeUnhealthy
    | NodeSilent
    | NodeHeard
    | NodeLost
    | NodeDrained
    | NodeResumed
    | NodeLabelled
    | NodeRemoved
    | JobSubmitted
    | ArraySubmitted
    | ArrayReleased
    | RequestKept
    | JobWent
    | JobScaled
    | TasksPlaced
    | TasksPromised
    | PromiseDropped
    | TasksStopped
    | AttemptBegan
    | AttemptEnded
    | Checkpointed
    | IdleNoticed
    | IdleWarned
    | IdleReclaimable
    | DayClosing
    | DayClosed
    | JobNumbered
    | ClockRead
    | ClockJumped
    | JobsForgotten
    | Noted
    | EntriesQuarantined
    | EntriesReleased
    | ScheduleEvent
)

DECODER: Final[msgspec.json.Decoder[Event]] = msgspec.json.Decoder(Event)


def kind_of(event: Event) -> str:
    return str(type(event).__struct_config__.tag)
