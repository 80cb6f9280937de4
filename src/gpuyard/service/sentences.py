"""Every sentence about something that happened: one per kind of event, for events, audit and the command line.

Place in the flow: log ─Event─▶ redact ─▶ **sentences** ─▶ a person. Pure. Invariant: every kind of event has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuyard.model.reasons import Reason
from gpuyard.model.text import duration_text, reason_text
from gpuyard.service.moments import moment
from gpuyard.worlds.standalone.events import (
    ArrayReleased,
    ArraySubmitted,
    AttemptBegan,
    AttemptEnded,
    Checkpointed,
    ClockJumped,
    ClockRead,
    ClusterFounded,
    DayClosed,
    DayClosing,
    Event,
    IdleNoticed,
    IdleReclaimable,
    IdleWarned,
    JobNumbered,
    JobScaled,
    JobsForgotten,
    JobSubmitted,
    JobWent,
    LeaseSet,
    NodeDrained,
    NodeHeard,
    NodeJoined,
    NodeLabelled,
    NodeLost,
    NodeRemoved,
    NodeResumed,
    NodeSeen,
    NodeSilent,
    NodeUnhealthy,
    Noted,
    Placing,
    PromiseDropped,
    RequestKept,
    Restored,
    ScheduleEvent,
    SchedulePaused,
    ScheduleRan,
    ScheduleRemoved,
    ScheduleResumed,
    ScheduleSet,
    ScheduleSkipped,
    ScheduleSuspended,
    SharedUserAccepted,
    TasksPlaced,
    TasksPromised,
    TasksStopped,
    TeamsSet,
    TokenCreated,
    TokenRevoked,
    TokenUsed,
    UidRangeSet,
    UserRemoved,
    UserSet,
)
from gpuyard.worlds.standalone.lifecycle import Happening
from gpuyard.worlds.standalone.records import Skip, SkipReason, Then
from gpuyard.worlds.standalone.store.quarantine import EntriesQuarantined, EntriesReleased

MAX_ENTRIES_NAMED: Final = 5

_WENT: dict[Happening, str] = {
    Happening.UNBLOCKED: "waits for its turn: what it depended on is over",
    Happening.BLOCKED: "waits for other jobs",
    Happening.HELD: "is held",
    Happening.RELEASED: "is released and waits for its turn",
    Happening.SUSPENDED: "is suspended",
    Happening.RESUMED: "is resumed and waits for its turn",
    Happening.PLACED: "has its places",
    Happening.UP: "runs",
    Happening.STOP_ASKED: "is asked to stop",
    Happening.REQUEUED: "waits for its turn again",
    Happening.SUCCEEDED: "succeeded",
    Happening.FAILED: "failed",
    Happening.CANCELLED: "is cancelled",
}

_THEN: dict[Then, str] = {
    Then.REQUEUE: "it then waits for its turn again",
    Then.SUSPEND: "it is then suspended",
    Then.HOLD: "it is then held",
    Then.CANCEL: "it is then cancelled",
    Then.FAIL: "it has then failed",
    Then.RETRY: "it is then tried again",
}


def sentence(event: Event) -> str:
    """What happened, without a full stop."""
    match event:
        case JobSubmitted(job):
            array = f", element {job.array_index} of array {job.array}" if job.array else ""
            return f"job {job.id} ({job.name}) of team {job.team} is submitted by {job.user}{array}; it is {job.state}"
        case ArraySubmitted(array_record):
            return f"array {array_record.id} is submitted with {_count(len(array_record.elements), 'job')}"
        case ArrayReleased(array, released):
            return f"{_count(released, 'job')} of array {array} may have had their turn"
        case JobWent():
            return _with_why(f"job {event.job} {_WENT[event.happening]}{_code(event.exit_code)}", event)
        case JobScaled(job_id, tasks, min_tasks):
            return f"job {job_id} is to have {min_tasks} to {_count(tasks, 'task')}"
        case TasksPlaced() | TasksPromised() | PromiseDropped() | TasksStopped():
            return _planned(event)
        case AttemptBegan() | AttemptEnded() | Checkpointed():
            return _attempt(event)
        case IdleNoticed() | IdleWarned() | IdleReclaimable():
            return _idle(event)
        case ScheduleSet() | ScheduleRemoved() | SchedulePaused() | ScheduleResumed():
            return _schedule(event)
        case ScheduleSuspended() | ScheduleRan() | ScheduleSkipped():
            return _schedule(event)
        case _:
            return _cluster(event)


def _planned(event: TasksPlaced | TasksPromised | PromiseDropped | TasksStopped) -> str:
    match event:
        case TasksPlaced(job, _, tasks):
            return f"job {job} gets {_places(tasks)}: {reason_text(tasks[0].why)}"
        case TasksPromised(job, _, tasks):
            return f"job {job} is promised {_places(tasks)}, as soon as that is free"
        case PromiseDropped(job, _, dropped, why):
            because = f": {reason_text(why)}" if why else ""
            return f"job {job} is no longer promised a place for {_count(len(dropped), 'task')}{because}"
        case TasksStopped(job, leaving):
            moved = sum(one.next is not None for one in leaving)
            what = "must move" if moved == len(leaving) and moved else "must stop"
            then = f"; {_THEN[event.then]}" if event.then else ""
            return f"{_count(len(leaving), 'task')} of job {job} {what}{_because(leaving[0].why, event.message)}{then}"


def _places(tasks: Sequence[Placing]) -> str:
    nodes = list(dict.fromkeys(one.place.node for one in tasks))
    shown = ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
    return f"a place for {_count(len(tasks), 'task')} on {shown}"


def _attempt(event: AttemptBegan | AttemptEnded | Checkpointed) -> str:
    match event:
        case AttemptBegan(job, task, attempt, node):
            return f"task {task} of job {job} runs on {node}, attempt {attempt}"
        case AttemptEnded(job, task, attempt, node, ending):
            how = f"{ending}{_code(event.exit_code)}{f': {event.message}' if event.message else ''}"
            return f"task {task} of job {job} ended on {node}, attempt {attempt}: {how}"
        case Checkpointed(job, task):
            return f"task {task} of job {job} has saved its work"


def _idle(event: IdleNoticed | IdleWarned | IdleReclaimable) -> str:
    match event:
        case IdleNoticed(job, since_ms):
            return f"job {job} {'does not use' if since_ms is not None else 'uses'} its GPUs"
        case IdleWarned(job, idle_ms):
            return f"job {job} is warned: it has not used its GPUs for {duration_text(idle_ms)}"
        case IdleReclaimable(job, idle_ms):
            whose = "whoever waits in its team may have its place, other teams what is borrowed of it"
            return f"job {job} has not used its GPUs for {duration_text(idle_ms)}: {whose}"


def _schedule(event: ScheduleEvent) -> str:
    match event:
        case ScheduleSet(schedule, recurrence, submission):
            when = f'"{recurrence.cron}" in {recurrence.time_zone}'
            return f"schedule {schedule} of {submission.user} is written: {when}{', paused' * event.paused}"
        case ScheduleRemoved(schedule):
            return f"schedule {schedule} is removed"
        case SchedulePaused(schedule):
            return f"schedule {schedule} is paused"
        case ScheduleResumed(schedule):
            return f"schedule {schedule} is resumed"
        case ScheduleSuspended(schedule, _, message, planned_at_ms):
            when = f" at its time of {_time(planned_at_ms)}" if planned_at_ms else ""
            return f"schedule {schedule} is suspended{when}: {message}"
        case ScheduleRan(schedule, planned_at_ms, run, asked):
            why = "on demand" if asked else f"for {_time(planned_at_ms)}"
            return f"schedule {schedule} runs {why}: job {run}"
        case ScheduleSkipped(schedule, planned_at_ms, why_not, count, earlier):
            skip = Skip(planned_at_ms, why_not, count, earlier)
            return f"schedule {schedule} has no run: {skip_text(skip)}"


_SKIPPED: dict[SkipReason, str] = {
    SkipReason.OVERLAP: "its run {earlier} was not over",
    SkipReason.TOO_MANY_QUEUED: "too many of its runs were waiting, the last is {earlier}",
    SkipReason.MISSED: "no manager ran then",
    SkipReason.QUEUE_FULL: "the cluster took no more jobs",
}


def skip_text(skip: Skip) -> str:
    """Which planned times had no run, and why."""
    more = f" and {skip.count - 1} planned before" if skip.count > 1 else ""
    return f"{_time(skip.planned_at_ms)}{more}: {_SKIPPED[skip.why].format(earlier=skip.earlier)}"


def _time(at_ms: int) -> str:
    return moment(at_ms).isoformat().replace("+00:00", "Z")


def _cluster(event: Event) -> str:
    match event:
        case ClusterFounded(cluster):
            return f"the cluster {cluster} is founded"
        case SharedUserAccepted():
            return "it is accepted that the jobs of all teams run as one user of the machines"
        case Restored():
            return "a backup was put back; numbers of jobs and teams go on beyond all that may have been given since"
        case UidRangeSet(first, last):
            return f"jobs of users who submit for the first time run as user numbers from {first} to {last}"
        case LeaseSet(lease_ms):
            return f"machines have leases of at most {lease_ms / 1000:g} s"
        case TeamsSet(queues):
            return f"the tree of teams is written: {_count(len(queues), 'queue')}"
        case UserSet(user):
            roles = ", ".join(f"{grant.role} in {grant.team}" for grant in user.grants) or "no role"
            return f"user {user.name} has {roles}"
        case UserRemoved(user_name):
            return f"user {user_name} and all tokens of theirs are gone"
        case TokenCreated(token):
            return f"a token for {token.scope} of user {token.user} is made: {token.id}"
        case TokenRevoked(id):
            return f"token {id} is revoked"
        case TokenUsed(id):
            return f"token {id} was used to join"
        case RequestKept():
            return "the answer to a request is remembered"
        case JobNumbered(job, uid):
            return f"job {job} runs as user number {uid}"
        case JobsForgotten(jobs):
            return f"{_count(len(jobs), 'job')} long over, are no longer listed"
        case DayClosed(day):
            return f"the use of {day} is summed up"
        case DayClosing(day, kept):
            again = ", again: the clock was set back into that day" if kept else ""
            return f"the use of {day} is about to be summed up{again}"
        case Noted(about, what):
            return f"{about}: {what}"
        case ClockRead():
            return "the clocks of the server's node are read for the first time since its boot"
        case ClockJumped(by_ms):
            return jump_text(by_ms)
        case EntriesQuarantined(entries):
            named = ", ".join(f"{one.seq} ({one.why})" for one in entries[:MAX_ENTRIES_NAMED])
            more = " and others" if len(entries) > MAX_ENTRIES_NAMED else ""
            return f"entries of the log are no longer used: {named}{more}"
        case EntriesReleased(seqs):
            return f"entries of the log are used again: {', '.join(map(str, seqs[:MAX_ENTRIES_NAMED]))}"
        case _:
            return _machine(event)


def jump_text(by_ms: int) -> str:
    direction = "ahead" if by_ms > 0 else "back"
    cause = "it was set, or its node slept" if by_ms > 0 else "it was set"
    return f"the server's clock jumped {direction} by {duration_text(abs(by_ms))} ({cause}); no use is charged for it"


def _machine(event: Event) -> str:
    match event:
        case NodeJoined(node):
            return f"machine {node} joins"
        case NodeSeen(node, facts):
            return f"machine {node} is here with {_count(len(facts.devices), 'GPU')}{' (fake)' if facts.fake else ''}"
        case NodeUnhealthy(node, why):
            return f"node {node} is unhealthy and takes no new task: {why}"
        case NodeSilent(node):
            return f"machine {node} is not heard of"
        case NodeHeard(node):
            return f"machine {node} is heard of again"
        case NodeLost(node):
            return f"machine {node} is {'declared ' if event.declared else ''}lost: what ran there no longer does"
        case NodeDrained(node):
            return f"machine {node} takes nothing new"
        case NodeResumed(node):
            return f"machine {node} takes new work again"
        case NodeLabelled(node, labels):
            return f"machine {node} is labelled {', '.join(f'{key}={value}' for key, value in labels) or 'nothing'}"
        case NodeRemoved(node):
            return f"machine {node} is taken away"
        case _:
            raise AssertionError(f"an event without a sentence: {type(event).__name__}")


def _with_why(said: str, event: JobWent) -> str:
    return f"{said}{_because(event.why, event.message)}"


def _because(why: Reason | None, message: str) -> str:
    said = [part for part in (reason_text(why) if why else "", message) if part]
    return f": {'; '.join(said)}" if said else ""


def _code(exit_code: int | None) -> str:
    return f" with code {exit_code}" if exit_code is not None else ""


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
