"""Everything that can be refused, as stable words with a status and a meaning; and errors as RFC 9457 problems.

Place in the flow: handlers and decide raise ─errors─▶ **problems** ─Problem─▶ the client. docs/api.md holds this table;
a test compares them. Invariant: a problem never tells more than its caller may know: what went wrong inside is logged.
"""

from __future__ import annotations

import enum
import re
from typing import Final

import msgspec
from msgspec.structs import replace

from gpuyard.errors import InputError, NotRecordedError, QueueTreeError, RefusedError, ServiceError, StoreError
from gpuyard.files.tree import NOT_JSON, NOT_YAML
from gpuyard.model.reasons import Reason
from gpuyard.wire.rest import Problem

PROBLEM_MEDIA: Final = "application/problem+json"


class ProblemReason(enum.StrEnum):
    """Stable: clients match on these words."""

    # The request itself
    MALFORMED = "Malformed"
    BAD_FIELD = "BadField"
    BAD_VALUE = "BadValue"
    BAD_REQUEST = "BadRequest"
    BAD_PARAMETER = "BadParameter"
    BAD_CURSOR = "BadCursor"
    BAD_HEADER = "BadHeader"
    BAD_PATH = "BadPath"
    TOO_LARGE = "TooLarge"
    TOO_SLOW = "TooSlow"
    WRONG_MEDIA = "WrongMedia"
    NO_SUCH_PATH = "NoSuchPath"
    WRONG_METHOD = "WrongMethod"
    HOST_NOT_ALLOWED = "HostNotAllowed"
    ORIGIN_NOT_ALLOWED = "OriginNotAllowed"
    # Who asks
    SIGN_IN_NEEDED = "SignInNeeded"
    NOT_ALLOWED = "NotAllowed"
    TOO_MANY_FAILURES = "TooManyFailures"
    # What it is about
    NOT_FOUND = "NotFound"
    JOB_UNKNOWN = "JobUnknown"
    TEAM_UNKNOWN = "TeamUnknown"
    NODE_UNKNOWN = "NodeUnknown"
    USER_UNKNOWN = "UserUnknown"
    TOKEN_UNKNOWN = "TokenUnknown"
    SCHEDULE_UNKNOWN = "ScheduleUnknown"
    DEPENDENCY_UNKNOWN = "DependencyUnknown"
    LOG_MISSING = "LogMissing"
    REVISION_UNKNOWN = "RevisionUnknown"
    # The state of the cluster
    CHANGED = "Changed"
    KEY_REUSED = "KeyReused"
    WRONG_STATE = "WrongState"
    NOT_ELASTIC = "NotElastic"
    TASKS_RUN = "TasksRun"
    DEPENDENCY_NEVER = "DependencyNever"
    NEVER = "Never"
    TEAM_HAS_TEAMS = "TeamHasTeams"
    TEAM_HAS_JOBS = "TeamHasJobs"
    TEAM_HAS_SCHEDULES = "TeamHasSchedules"
    LAST_TEAM = "LastTeam"
    SHARED_USER = "SharedUser"
    LAST_ADMIN = "LastAdmin"
    NODE_KNOWN = "NodeKnown"
    NODE_HEARD = "NodeHeard"
    NODE_BUSY = "NodeBusy"
    TOO_MANY = "TooMany"
    QUEUE_FULL = "QueueFull"
    UIDS_EXHAUSTED = "UidsExhausted"
    # The pool
    NO_AVAILABLE_BUDGET = "NoAvailableBudget"
    NO_ARRANGEMENT = "NoArrangement"
    NEVER_FITS = "NeverFits"
    BAD_AMOUNT = "BadAmount"
    AMOUNT_NOT_A_NUMBER = "AmountNotANumber"
    AMOUNT_NOT_FINITE = "AmountNotFinite"
    AMOUNT_ZERO = "AmountZero"
    AMOUNT_NEGATIVE = "AmountNegative"
    AMOUNT_TOO_FINE = "AmountTooFine"
    AMOUNT_ABSURD = "AmountAbsurd"
    BAD_NAME = "BadName"
    MACHINE_UNKNOWN = "MachineUnknown"
    PLAN_UNKNOWN = "PlanUnknown"
    STEP_UNKNOWN = "StepUnknown"
    JOB_ENDED = "JobEnded"
    JOB_KNOWN = "JobKnown"
    STEP_NOT_READY = "StepNotReady"
    STEP_OVER = "StepOver"
    MACHINE_BUSY = "MachineBusy"
    TEAM_BUSY = "TeamBusy"
    # Data jobs
    DATA_JOB_UNKNOWN = "DataJobUnknown"
    DATA_JOB_KNOWN = "DataJobKnown"
    DATA_JOB_RUNS = "DataJobRuns"
    DATA_JOB_VERSION_UNKNOWN = "DataJobVersionUnknown"
    DATA_JOB_NOT_DEPLOYED = "DataJobNotDeployed"
    EXECUTION_UNKNOWN = "ExecutionUnknown"
    NO_ROOM = "NoRoom"
    # The service
    BUSY = "Busy"
    MACHINE_AWAY = "MachineAway"
    UNAVAILABLE = "Unavailable"
    INTERNAL = "Internal"


class Kind(msgspec.Struct, frozen=True):
    """What a word stands for."""

    status: int
    title: str
    meaning: str
    retry_after_s: int = 0
    """Set where the same request may succeed later."""


_R = ProblemReason

KINDS: Final[dict[ProblemReason, Kind]] = {
    _R.MALFORMED: Kind(400, "The body cannot be read", "It is not JSON or YAML at all."),
    _R.BAD_FIELD: Kind(400, "A field has a wrong value", "`field` names it, `detail` says line and column of a file."),
    _R.BAD_VALUE: Kind(400, "A value makes no sense", "It is of the right kind, but no use."),
    _R.BAD_REQUEST: Kind(400, "The certificate request is wrong", "Send a PEM of PKCS #10 for the machine's name."),
    _R.BAD_PARAMETER: Kind(400, "A parameter is wrong", "It is unknown, given twice, or of the wrong kind."),
    _R.BAD_CURSOR: Kind(400, "The cursor is wrong", "It is not `next` of a page of the same list and filters."),
    _R.BAD_HEADER: Kind(400, "A header is wrong", "It is malformed, missing or given twice; `field` names it."),
    _R.BAD_PATH: Kind(400, "The path is malformed", "It would be another path once it is decoded: encode names once."),
    _R.TOO_LARGE: Kind(413, "The request is too large", "Its body, path, query or header fields."),
    _R.TOO_SLOW: Kind(408, "The body came too slowly", "Send it again, whole."),
    _R.WRONG_MEDIA: Kind(415, "The body is of the wrong kind", "Say what it is: Content-Type."),
    _R.NO_SUCH_PATH: Kind(404, "There is nothing at this path", "GET /v1/openapi.json lists all."),
    _R.WRONG_METHOD: Kind(405, "The path has no such method", "Allow lists those it has."),
    _R.HOST_NOT_ALLOWED: Kind(421, "This is not the host asked for", "Start the manager with this name: --name."),
    _R.ORIGIN_NOT_ALLOWED: Kind(403, "A web page may not ask this", "Requests from pages of other sites are refused."),
    _R.SIGN_IN_NEEDED: Kind(401, "No valid credential", "Send Authorization: Bearer with a token that is valid."),
    _R.NOT_ALLOWED: Kind(403, "Your role does not allow this", "Ask somebody whose role does."),
    _R.TOO_MANY_FAILURES: Kind(429, "Too many wrong credentials", "Wait a minute.", 60),
    _R.NOT_FOUND: Kind(404, "There is no such thing", "Or it is not for you to see."),
    _R.JOB_UNKNOWN: Kind(404, "There is no such job", "Or it is not for you to see."),
    _R.TEAM_UNKNOWN: Kind(404, "There is no such team", "GET /v1/teams lists all."),
    _R.NODE_UNKNOWN: Kind(404, "There is no such machine", "GET /v1/nodes lists all."),
    _R.USER_UNKNOWN: Kind(404, "There is no such user", "An admin makes one."),
    _R.TOKEN_UNKNOWN: Kind(404, "There is no such token", "Or it is not yours."),
    _R.SCHEDULE_UNKNOWN: Kind(404, "There is no such schedule", "Or it is not for you to see."),
    _R.DEPENDENCY_UNKNOWN: Kind(422, "It depends on no known job", "Or on one that is not for you to see."),
    _R.LOG_MISSING: Kind(404, "There is no such log", "The attempt never was, or its log is gone."),
    _R.REVISION_UNKNOWN: Kind(409, "No such revision yet", "Watch again from the revision of a list."),
    _R.CHANGED: Kind(412, "It has changed since", "If-Match names an older revision: look again."),
    _R.KEY_REUSED: Kind(409, "The key was used for another request", "Take a new Idempotency-Key."),
    _R.WRONG_STATE: Kind(409, "Not in this state", "The job, machine or token is past or before that."),
    _R.NOT_ELASTIC: Kind(409, "The job cannot be scaled", "It was not submitted with a range, or it has groups."),
    _R.TASKS_RUN: Kind(409, "Tasks to be taken away run", "Suspend the job, scale it, and resume it."),
    _R.DEPENDENCY_NEVER: Kind(409, "It depends on a failed job", "Use after, not afterok."),
    _R.NEVER: Kind(422, "It could never run here", "`blockers` say why; allow_never takes it all the same."),
    _R.TEAM_HAS_TEAMS: Kind(409, "The queue has queues below it", "Name a team, which holds jobs."),
    _R.TEAM_HAS_JOBS: Kind(409, "The team still has jobs", "Cancel them first."),
    _R.TEAM_HAS_SCHEDULES: Kind(409, "The team still has schedules", "Remove them first."),
    _R.LAST_TEAM: Kind(409, "It is the last team", "Add another first."),
    _R.SHARED_USER: Kind(409, "Teams would share a user", "Run as root, or accept it: --accept-shared-user."),
    _R.LAST_ADMIN: Kind(409, "It is the last admin", "Make somebody else one first."),
    _R.NODE_KNOWN: Kind(409, "A machine of that name is here", "Take another name, or wait until it is lost."),
    _R.NODE_HEARD: Kind(409, "The machine is heard of", "Drain it, or stop its agent first."),
    _R.NODE_BUSY: Kind(409, "Something still runs there", "Drain the machine first."),
    _R.TOO_MANY: Kind(409, "There are too many already", "Take some away first."),
    _R.QUEUE_FULL: Kind(429, "Too many jobs wait", "Try later, or cancel some.", 30),
    _R.UIDS_EXHAUSTED: Kind(409, "No user number is left", "Start with a wider range: --job-uids."),
    _R.NO_AVAILABLE_BUDGET: Kind(
        400, "The team is over its budget", "And there is nowhere free; `detail` has numbers."
    ),
    _R.NO_ARRANGEMENT: Kind(
        409, "No arrangement makes room", "The team has budget; POST /v1/pool/quote says what helps."
    ),
    _R.NEVER_FITS: Kind(422, "No machine could ever hold it", "None is that large, or has that type."),
    _R.BAD_AMOUNT: Kind(400, "The amount makes no sense", "Write decimal text: 0.5, 2."),
    _R.AMOUNT_NOT_A_NUMBER: Kind(400, "The amount is no number", "Write decimal text: 0.5, 2."),
    _R.AMOUNT_NOT_FINITE: Kind(400, "The amount is infinite", "Write decimal text: 0.5, 2."),
    _R.AMOUNT_ZERO: Kind(400, "The amount is zero", "A job in the pool holds something."),
    _R.AMOUNT_NEGATIVE: Kind(400, "The amount is negative", "Write decimal text: 0.5, 2."),
    _R.AMOUNT_TOO_FINE: Kind(400, "The amount has too many decimals", "At most three."),
    _R.AMOUNT_ABSURD: Kind(400, "The amount is absurd", "No cluster is that large."),
    _R.BAD_NAME: Kind(400, "Nothing can be called that", "A job, team, machine or device type; `field` says which."),
    _R.MACHINE_UNKNOWN: Kind(404, "The pool has no such machine", "GET /v1/pool/machines lists all."),
    _R.PLAN_UNKNOWN: Kind(404, "There is no such plan", "Or it is not for you to see."),
    _R.STEP_UNKNOWN: Kind(404, "The plan has no such step", "Steps count from 1."),
    _R.JOB_ENDED: Kind(409, "The job has ended already", "Nothing is left to release."),
    _R.JOB_KNOWN: Kind(409, "The job has a place already", "`detail` names its open plan, if it has one."),
    _R.STEP_NOT_READY: Kind(409, "The step's turn has not come", "`detail` says what it waits for."),
    _R.STEP_OVER: Kind(409, "The step is over", "It was confirmed, failed or rolled back before."),
    _R.MACHINE_BUSY: Kind(409, "Jobs hold devices of the machine", "End or move them first."),
    _R.TEAM_BUSY: Kind(409, "Jobs of the team are known", "End them first."),
    _R.DATA_JOB_UNKNOWN: Kind(404, "There is no such data job", "Or its team is not yours: vdkcli create makes one."),
    _R.DATA_JOB_KNOWN: Kind(409, "The team has such a data job", "Choose another name."),
    _R.DATA_JOB_RUNS: Kind(409, "The data job runs already", "Wait for its execution, or cancel it."),
    _R.DATA_JOB_VERSION_UNKNOWN: Kind(404, "The data job has no such version", "Upload its sources again."),
    _R.DATA_JOB_NOT_DEPLOYED: Kind(404, "The data job is not deployed", "vdkcli deploy uploads and deploys it."),
    _R.EXECUTION_UNKNOWN: Kind(404, "There is no such execution", "vdkcli execute --list lists those there are."),
    _R.NO_ROOM: Kind(400, "No place can be made for it", "The team has budget; `detail` says what is in the way."),
    _R.BUSY: Kind(429, "Too many requests at once", "Try again in a moment.", 1),
    _R.MACHINE_AWAY: Kind(503, "The machine does not answer", "It has what was asked for; try later.", 5),
    _R.UNAVAILABLE: Kind(503, "The service cannot answer now", "Its database or a machine is away; try later.", 5),
    _R.INTERNAL: Kind(500, "Something is wrong inside", "A bug; the log of the manager knows the id.", 0),
}


def kind_of_reason(reason: str) -> Kind:
    return KINDS[ProblemReason(reason)]


def problem(
    reason: ProblemReason, detail: str = "", *, fix: str = "", field: str = "", blockers: tuple[Reason, ...] = ()
) -> Problem:
    kind = KINDS[reason]
    return Problem(kind.title, kind.status, reason, detail, fix, field, blockers=blockers)


def problem_of(error: Exception) -> Problem | None:
    """What an error made on purpose says; None for a bug."""
    match error:
        case RefusedError():
            return problem(ProblemReason(error.reason), error.what, fix=error.fix, field=error.field)
        case NotRecordedError() if error.__cause__ is None:
            # A value is out of range; with a cause it is a bug, which is logged.
            return problem(ProblemReason.BAD_VALUE, error.why, fix="change the value")
        case QueueTreeError():
            return _problem_of_tree(error)
        case InputError():
            return _problem_of_input(error)
        case msgspec.ValidationError():
            return _problem_of_validation(error)
        case msgspec.DecodeError():
            return problem(ProblemReason.MALFORMED, str(error), fix="send JSON, with Content-Type: application/json")
        case StoreError() | ServiceError():
            # What is wrong with the database is for the operator, who finds it in the log.
            return problem(ProblemReason.UNAVAILABLE, "the manager cannot answer now", fix="try again")
    return None


def _problem_of_tree(error: QueueTreeError) -> Problem:
    """All that contradicts itself; of several, each with its own way out."""
    first, *others = error.problems
    field = first.where.field if first.where else "queues"
    if others:
        return problem(ProblemReason.BAD_FIELD, str(error), fix="mend each of these", field=field)
    return replace(_problem_of_input(first), field=field)


def _problem_of_input(error: InputError) -> Problem:
    place = f"{error.where}: " if error.where and error.where.line else ""
    field = error.where.field if error.where else ""
    unreadable = error.what.startswith((NOT_YAML, NOT_JSON))
    reason = ProblemReason.MALFORMED if unreadable else ProblemReason.BAD_FIELD
    return problem(reason, f"{place}{error.what}", fix=error.fix, field=field)


_PATH: Final = re.compile(r" - at `\$\.?(.*)`$")


def _problem_of_validation(error: msgspec.ValidationError) -> Problem:
    """msgspec names the field at the end of its message."""
    text = str(error)
    found = _PATH.search(text)
    field = found.group(1) if found else ""
    fix = "GET /v1/openapi.json describes the body"
    return problem(ProblemReason.BAD_FIELD, _PATH.sub("", text), fix=fix, field=field)
