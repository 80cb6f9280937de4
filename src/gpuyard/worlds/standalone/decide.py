"""From what people ask to events, or to a refusal that says why and what to do.

Place in the flow: intent ─**decide**─▶ events ─▶ journal. Pure: the state is read, nothing is changed; time and who
asks are arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from gpuyard.errors import RefusedError
from gpuyard.model.jobs import MAX_TASKS_PER_JOB
from gpuyard.model.queues import Queue
from gpuyard.model.reasons import Reason, Token
from gpuyard.model.work import OnNodeLost
from gpuyard.scheduler.gang import goes_on
from gpuyard.wire.access import CLUSTER_ROLES, EVERYWHERE, Role
from gpuyard.wire.agents import Ending, Isolation
from gpuyard.worlds.standalone.checks import check_revision
from gpuyard.worlds.standalone.consequences import is_blocked, stop_or
from gpuyard.worlds.standalone.events import (
    AttemptEnded,
    Event,
    JobScaled,
    JobWent,
    Leaving,
    NodeDrained,
    NodeJoined,
    NodeLabelled,
    NodeLost,
    NodeRemoved,
    NodeResumed,
    TasksStopped,
    TeamsSet,
    TokenCreated,
    TokenRevoked,
    TokenUsed,
    UserRemoved,
    UserSet,
)
from gpuyard.worlds.standalone.intents import (
    VERBS,
    AdmitNode,
    CreateToken,
    DeclareLost,
    DrainNode,
    Intent,
    LabelNode,
    PauseSchedule,
    RemoveNode,
    RemoveSchedule,
    RemoveUser,
    ResumeNode,
    ResumeSchedule,
    RevokeToken,
    RunSchedule,
    ScaleJob,
    SetSchedule,
    SetTeams,
    SetUser,
    Steer,
    Submit,
)
from gpuyard.worlds.standalone.lifecycle import OVER, PLACED, Happening, JobState, TaskPhase
from gpuyard.worlds.standalone.records import (
    JobRecord,
    NodeRecord,
    State,
    TeamRecord,
    Then,
    TokenRecord,
    UserRecord,
    jobs_on,
    on_machine,
    per_leaf,
)
from gpuyard.worlds.standalone.schedules import decide_schedule, left_behind
from gpuyard.worlds.standalone.submitting import submit

MAX_USERS: Final = 10_000
MAX_TOKENS: Final = 100_000
MAX_TOKENS_PER_USER: Final = 1_000
MAX_LABELS: Final = 64
LABEL: Final = re.compile(r"[A-Za-z0-9._/-]{1,253}")


def decide(state: State, intent: Intent, now_ms: int) -> list[Event]:
    """The events an intent leads to; RefusedError where it cannot be."""
    match intent:
        case Submit():
            return list(submit(state, intent, now_ms))
        case Steer():
            return list(_steer(state, intent))
        case ScaleJob():
            return list(_scale(state, intent))
        case SetTeams():
            return list(_set_teams(state, intent))
        case SetUser() | RemoveUser() | CreateToken() | RevokeToken():
            return list(_people(state, intent, now_ms))
        case SetSchedule() | RemoveSchedule() | PauseSchedule() | ResumeSchedule() | RunSchedule():
            return list(decide_schedule(state, intent, now_ms))
        case _:
            return list(_nodes(state, intent, now_ms))


# -------------------------------------------------------------------------------------------------------------- jobs


def job_of(state: State, id: str, revision: int | None = None) -> JobRecord:
    record = state.jobs.get(id)
    if record is None:
        raise RefusedError("JobUnknown", f"there is no job {id}", fix="gpuyard ls -a")
    check_revision(revision, record.revision, f"job {id}")
    return record


def _steer(state: State, intent: Steer) -> Iterator[Event]:
    job = job_of(state, intent.job, intent.revision)
    if job.state not in VERBS[intent.verb]:
        allowed = ", ".join(sorted(VERBS[intent.verb]))
        raise RefusedError("WrongState", f"job {job.id} is {job.state}", fix=f"{intent.verb} is for: {allowed}")
    match intent.verb:
        case "cancel":
            yield stop_or(job, Then.CANCEL, Happening.CANCELLED, "cancelled by its owner or an operator")
        case "hold" if job.then in (Then.CANCEL, Then.FAIL):
            raise RefusedError("WrongState", f"job {job.id} is stopping for good", fix="submit it anew")
        case "hold":
            if job.state in (JobState.BLOCKED, JobState.WAITING):
                yield JobWent(job.id, Happening.HELD, held=True)
            else:
                yield stop_or(job, Then.HOLD, Happening.HELD, "held")
        case "release":
            blocked = is_blocked(state, job)
            yield JobWent(job.id, Happening.BLOCKED if blocked else Happening.RELEASED, held=False)
        case "suspend":
            yield stop_or(job, Then.SUSPEND, Happening.SUSPENDED, "suspended")
        case "resume":
            yield JobWent(job.id, Happening.RESUMED)
        case "requeue":
            yield stop_or(job, Then.REQUEUE, Happening.REQUEUED, "requeued")


def _scale(state: State, intent: ScaleJob) -> Iterator[Event]:
    job = job_of(state, intent.job, intent.revision)
    if job.state in OVER or job.state is JobState.STOPPING:
        raise RefusedError("WrongState", f"job {job.id} is {job.state}", fix="scale is for jobs that wait or run")
    least = job.form.group.fewest_tasks if intent.min_tasks is None else intent.min_tasks
    if not 1 <= least <= intent.tasks <= MAX_TASKS_PER_JOB:
        raise RefusedError(
            "BadValue",
            f"tasks {intent.tasks} with at least {least} is no range",
            fix=f"1 <= min_tasks <= tasks <= {MAX_TASKS_PER_JOB}",
            field="tasks",
        )
    _check_elastic(job, intent)
    beyond = [index for index, task in enumerate(job.tasks) if index >= intent.tasks and task.phase in PLACED]
    if beyond:
        raise RefusedError(
            "TasksRun",
            f"{len(beyond)} of the tasks to be taken away still run",
            fix="suspend the job, scale it, and resume it; or take fewer away",
            field="tasks",
        )
    yield JobScaled(job.id, intent.tasks, least)


def _check_elastic(job: JobRecord, intent: ScaleJob) -> None:
    """Only a job that was submitted with a range has a range to change; one on nodes changes by whole nodes."""
    group = job.form.group
    if not group.leaf and not group.node_each:
        raise RefusedError("NotElastic", f"job {job.id} has groups", fix="only jobs without groups can be scaled")
    if not job.elastic:
        what = f"job {job.id} is not elastic: all its tasks start together or not at all"
        raise RefusedError("NotElastic", what, fix="submit it with a range: gang, or --elastic MIN-MAX")
    per_node = group.children[0].min_tasks if group.node_each else 1
    for field, count in (("tasks", intent.tasks), ("min_tasks", intent.min_tasks or 0)):
        if count % per_node:
            what = f"{field} {count} is no number of whole nodes: each has {per_node} tasks of job {job.id}"
            raise RefusedError("BadValue", what, fix=f"write a multiple of {per_node}", field=field)


# ------------------------------------------------------------------------------------------------------------- teams


def leaves(queues: tuple[Queue, ...]) -> list[str]:
    parents = {queue.parent for queue in queues}
    return [queue.name for queue in queues if queue.name not in parents]


def _set_teams(state: State, intent: SetTeams) -> Iterator[Event]:
    check_revision(intent.revision, state.teams_revision, "the tree of teams")
    names = leaves(intent.queues)
    gone = set(state.teams) - set(names)
    for job in state.jobs.values():
        if job.team in gone and job.state not in OVER:
            raise RefusedError(
                "TeamHasJobs", f'team "{job.team}" still has job {job.id}', fix="cancel its jobs first", field=job.team
            )
    for schedule in state.schedules.values():
        if schedule.team in gone:
            what = f'team "{schedule.team}" still has schedule "{schedule.name}"'
            fix = f"remove its schedules first: gpuyard schedule rm {schedule.id}"
            raise RefusedError("TeamHasSchedules", what, fix=fix, field=schedule.team)
    more = len(names) > 1 and not set(names) <= set(state.teams)
    if more and not state.shared_user_accepted and _shares_a_user(state):
        raise RefusedError(
            "SharedUser",
            "the jobs of all teams would run as one and the same user of the machine, which protects none from another",
            fix="run gpuyard as root, or start it with --accept-shared-user",
        )
    number = state.next_team
    teams: dict[str, TeamRecord] = {}
    for name in names:
        record = state.teams.get(name)
        if record is None:
            record, number = TeamRecord(number), number + 1
        settings = intent.settings.get(name)
        teams[name] = record if settings is None else _set(record, settings)
    yield TeamsSet(intent.queues, teams, intent.summed)
    yield from _regranted(state, intent)


def _regranted(state: State, intent: SetTeams) -> Iterator[Event]:
    """Those who are named get their role; roles in teams that are gone go with them, lest a namesake inherit them."""
    there = {queue.name for queue in intent.queues} | {EVERYWHERE}
    names = sorted({*state.users, *intent.members})
    _check_users(len(names))
    for name in names:
        known, wanted = state.users.get(name, UserRecord(name)), intent.members.get(name, ())
        named = {grant.team for grant in wanted}
        kept = tuple(grant for grant in known.grants if grant.team in there and grant.team not in named)
        if sorted((*kept, *wanted)) != sorted(known.grants) or name not in state.users:
            yield UserSet(UserRecord(name, (*kept, *wanted), known.unix_user))


def _set(record: TeamRecord, settings: msgspec.Struct) -> TeamRecord:
    given = {name: value for name, value in msgspec.structs.asdict(settings).items() if value is not None}
    if given.get("idle_limit_ms") == 0:
        given["idle_limit_ms"] = None
    return replace(record, **given)


def _shares_a_user(state: State) -> bool:
    """One that is unhealthy takes no task, and is not taken back while it would share a user."""
    seen = [node.facts.isolation for node in state.nodes.values() if node.seen and not node.unhealthy]
    known = seen or ([state.isolation] if state.isolation else [])
    return Isolation.NONE in known


# ------------------------------------------------------------------------------------------------------------ people


def _people(state: State, intent: Intent, now_ms: int) -> Iterator[Event]:
    match intent:
        case SetUser(name, grants, unix_user, revision):
            known = state.users.get(name)
            check_revision(revision, known.revision if known else 0, f'user "{name}"')
            _check_grants(state, intent)
            _keep_an_admin(state, name, any(grant.role is Role.ADMIN for grant in grants))
            _check_users(len({*state.users, name}))
            yield UserSet(UserRecord(name, grants, unix_user))
        case RemoveUser(name):
            if name not in state.users:
                raise RefusedError("UserUnknown", f'there is no user "{name}"', fix="gpuyard user ls")
            _keep_an_admin(state, name, False)
            yield UserRemoved(name)
            yield from left_behind(state, name)
        case CreateToken(id, name, user, digest, scope, expires_at_ms):
            if user not in state.users:
                raise RefusedError("UserUnknown", f'there is no user "{user}"', fix="gpuyard user ls", field="user")
            mine = sum(token.user == user and not token.revoked for token in state.tokens.values())
            if len(state.tokens) >= MAX_TOKENS or mine >= MAX_TOKENS_PER_USER:
                raise RefusedError("TooMany", "there are too many tokens", fix="revoke some: gpuyard token ls")
            yield TokenCreated(TokenRecord(id, name, user, digest, scope, now_ms, expires_at_ms))
        case RevokeToken(id):
            if id not in state.tokens:
                raise RefusedError("TokenUnknown", f"there is no token {id}", fix="gpuyard token ls")
            yield TokenRevoked(id)


def _check_users(count: int) -> None:
    if count > MAX_USERS:
        raise RefusedError("TooMany", f"there can be {MAX_USERS} users, and this makes {count}", fix="remove some")


def _check_grants(state: State, intent: SetUser) -> None:
    for grant in intent.grants:
        if grant.role in CLUSTER_ROLES and grant.team != EVERYWHERE:
            raise RefusedError(
                "BadValue", f"{grant.role} is a role in the whole cluster", fix='leave the team out, or write "*"'
            )
        if grant.team != EVERYWHERE and all(queue.name != grant.team for queue in state.queues):
            raise RefusedError("TeamUnknown", f'there is no team "{grant.team}"', fix="gpuyard team ls", field="grants")


def _keep_an_admin(state: State, name: str, stays: bool) -> None:
    admins = [user.name for user in state.users.values() if any(grant.role is Role.ADMIN for grant in user.grants)]
    if admins == [name] and not stays:
        raise RefusedError("LastAdmin", f'"{name}" is the only admin', fix="make somebody else one first")


# ------------------------------------------------------------------------------------------------------------- nodes


def node_of(state: State, name: str, revision: int | None = None) -> NodeRecord:
    node = state.nodes.get(name)
    if node is None:
        raise RefusedError("NodeUnknown", f'there is no machine "{name}"', fix="gpuyard node ls")
    check_revision(revision, node.revision, f'machine "{name}"')
    return node


def _nodes(state: State, intent: Intent, now_ms: int) -> Iterator[Event]:
    match intent:
        case AdmitNode(name, fingerprint, token, vouched):
            known = state.nodes.get(name)
            if known is not None and known.fingerprint and known.seen and not known.lost and not vouched:
                # Also while it is not heard of, as all are after a restart: it may come back, with what runs there.
                heard = "is heard of" if known.silent_since_ms is None else "may come back: it is not lost yet"
                raise RefusedError(
                    "NodeKnown",
                    f'a machine "{name}" is here and {heard}',
                    fix="give this one another name (--node), or remove the other: gpuyard node remove",
                )
            if token:
                _check_unused(state, token)
                yield TokenUsed(token)
            yield NodeJoined(name, fingerprint)
        case DrainNode(name, revision):
            node_of(state, name, revision)
            yield NodeDrained(name)
            yield from _drained(state, name)
        case ResumeNode(name, revision):
            node_of(state, name, revision)
            yield NodeResumed(name)
        case LabelNode(name, labels, revision):
            node = node_of(state, name, revision)
            merged = {**dict(node.labels), **{key: value for key, value in labels.items() if value is not None}}
            kept = {key: value for key, value in merged.items() if labels.get(key, "") is not None}
            for key, value in labels.items():
                if not LABEL.fullmatch(key) or not LABEL.fullmatch(value or "x"):
                    fix = "letters, digits, and . _ - / without blanks, at most 253"
                    raise RefusedError("BadValue", f"{key}={value} is no label", fix=fix, field="labels")
            if len(kept) > MAX_LABELS:
                raise RefusedError("TooMany", f"more than {MAX_LABELS} labels", fix="take some away", field="labels")
            yield NodeLabelled(name, tuple(sorted(kept.items())))
        case DeclareLost(name, revision):
            node = node_of(state, name, revision)
            if node.seen and node.silent_since_ms is None:
                raise RefusedError(
                    "NodeHeard",
                    f'machine "{name}" is heard of: what runs there still runs',
                    fix="drain it, or stop its agent first",
                )
            yield NodeLost(name, declared=True)
            yield from lost_attempts(state, name, now_ms, declared=True)
        case RemoveNode(name, revision):
            node = node_of(state, name, revision)
            if state.placed.get(name):
                what = f'something still runs on "{name}"' if not node.lost else f'jobs still wait for "{name}"'
                fix = f"gpuyard node {'declare-lost' if node.lost else 'drain'} {name}"
                raise RefusedError("NodeBusy", what, fix=fix)
            yield NodeRemoved(name)


def _check_unused(state: State, token: str) -> None:
    """Asked again here: of two who show it at the same moment, both were let in."""
    record = state.tokens.get(token)
    if record is None or record.used or record.revoked:
        raise RefusedError("SignInNeeded", "the token to join with was used", fix="get another: gpuyard node token")


def _drained(state: State, name: str) -> Iterator[Event]:
    """What may be stopped leaves politely; what may not be preempted finishes."""
    why = Reason(Token.DRAINED, subject=name)
    for job in jobs_on(state, name):
        if job.state not in (JobState.STARTING, JobState.RUNNING) or not job.form.preemptible:
            continue
        there = [index for index in on_machine(job, name) if job.tasks[index].phase is not TaskPhase.STOPPING]
        if there:
            yield leaving(job, there, why)


def leaving(job: JobRecord, there: list[int], why: Reason) -> Event:
    """These tasks go; where too few are left, the whole job."""
    staying = [
        index
        for index, task in enumerate(job.tasks)
        if task.phase in (TaskPhase.ASSIGNED, TaskPhase.RUNNING, TaskPhase.DONE) and index not in there
    ]
    if goes_on(job.form.group, per_leaf(job.form, staying)):
        return TasksStopped(job.id, tuple(Leaving(index, why) for index in there))
    return stop_or(job, Then.REQUEUE, Happening.REQUEUED, "", why)


def lost_attempts(state: State, name: str, now_ms: int, *, declared: bool = False) -> Iterator[Event]:
    """Everything that was on a machine that is gone has ended; jobs that asked to wait for it do, unless declared.

    Not those that were told to stop, by their owner or for another's sake: nobody waits for them to go on.
    """
    for job in jobs_on(state, name):
        waits = job.work.on_node_lost is OnNodeLost.WAIT and not declared
        for task in on_machine(job, name):
            if waits and job.tasks[task].phase is not TaskPhase.STOPPING:
                continue
            yield AttemptEnded(job.id, task, job.tasks[task].attempt, name, Ending.LOST, now_ms, message="machine lost")
