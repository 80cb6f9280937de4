"""From events to state: each event is entered, nothing is decided.

Place in the flow: journal ─event─▶ **fold** ─▶ State. Invariant: the same events give the same state, byte for byte,
whether they come from the log after a crash or happen now.
"""

from __future__ import annotations

from msgspec.structs import replace

from gpuyard.model.jobs import Task, TaskGroup, node_rank_name, on_nodes
from gpuyard.scheduler.gang import satisfied
from gpuyard.worlds.standalone import meter
from gpuyard.worlds.standalone.clock_fold import enter_clock
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
    PromiseDropped,
    RequestKept,
    Restored,
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
from gpuyard.worlds.standalone.lifecycle import OVER, Happening, JobState, TaskPhase, after
from gpuyard.worlds.standalone.records import (
    MAX_ATTEMPTS_KEPT,
    JobRecord,
    NodeRecord,
    State,
    TaskRecord,
    on_machine,
    per_leaf,
)
from gpuyard.worlds.standalone.schedule_fold import enter_schedule
from gpuyard.worlds.standalone.store.quarantine import EntriesQuarantined, EntriesReleased
from gpuyard.worlds.standalone.uids import UIDS_APART, chosen, skipped, with_given

HOUR_MS = 3_600_000
KEPT_RECEIPTS_MS = 24 * HOUR_MS
"""How long an Idempotency-Key is remembered."""
JOBS_APART = 1_000_000
TEAMS_APART = 1_000
"""After a restore numbers go on at the next multiple: more than were given since the backup."""


def fold(state: State, event: Event, seq: int, at_ms: int) -> None:
    """Enter one event, in place."""
    state.seq = seq
    state.at_ms = max(state.at_ms, at_ms)
    _enter(state, event, at_ms)


def _enter(state: State, event: Event, at_ms: int) -> None:
    match event:
        case JobSubmitted() | JobWent() | JobScaled() | TasksPlaced() | TasksPromised() | PromiseDropped():
            _enter_job(state, event, at_ms)
        case TasksStopped() | AttemptBegan() | AttemptEnded() | Checkpointed():
            _enter_job(state, event, at_ms)
        case IdleNoticed(job, since_ms):
            meter.count_job(state, state.jobs[job])
            _put(state, replace(state.jobs[job], idle_since_ms=since_ms, **({} if since_ms else _NOT_IDLE)))
        case IdleWarned(job):
            _put(state, replace(state.jobs[job], warned_idle=True))
        case IdleReclaimable(job):
            _put(state, replace(state.jobs[job], reclaimable=True))
        case JobNumbered(job, uid):
            _give_uid(state, state.jobs[job].user, uid)
            _put(state, replace(state.jobs[job], uid=uid))
        case ArraySubmitted(array):
            state.arrays[array.id] = array
        case ArrayReleased(array_id, released):
            state.arrays[array_id] = replace(state.arrays[array_id], released=released)
        case RequestKept(key, receipt):
            state.receipts[key] = receipt
            _drop_old_receipts(state)
        case JobsForgotten(jobs):
            _forget(state, jobs)
        case Noted() | EntriesQuarantined() | EntriesReleased():
            pass
        case DayClosed(day):
            meter.close_day(state, day)
        case DayClosing(day, kept):
            meter.take_back(state, day, kept)
        case ClockRead() | ClockJumped():
            enter_clock(state, event, at_ms)
        case ScheduleSet() | ScheduleRemoved() | SchedulePaused() | ScheduleResumed():
            enter_schedule(state, event, at_ms)
        case ScheduleSuspended() | ScheduleRan() | ScheduleSkipped():
            enter_schedule(state, event, at_ms)
        case _:
            _enter_cluster(state, event, at_ms)


_NOT_IDLE = {"warned_idle": False, "reclaimable": False}


def _next_multiple(number: int, of: int) -> int:
    return (number // of + 1) * of


def _enter_cluster(state: State, event: Event, at_ms: int) -> None:
    match event:
        case ClusterFounded(cluster):
            state.cluster = cluster
        case SharedUserAccepted():
            state.shared_user_accepted = True
        case Restored():
            # Numbers that were given after the backup must not be given again: machines keep what those jobs left,
            # and would take a new one for it; a new team would get the user of a lost one, and with it its files.
            state.next_job = _next_multiple(state.next_job, JOBS_APART) + 1
            state.next_team = _next_multiple(state.next_team, TEAMS_APART) + 1
            state.uid_ranges = skipped(state.uid_ranges)
            state.uids_skipped += UIDS_APART
        case LeaseSet(lease_ms):
            state.lease_ms = lease_ms
        case UidRangeSet(first, last):
            state.uid_ranges = chosen(state.uid_ranges, first, last, state.uids_skipped)
        case TeamsSet(queues, teams, summed):
            meter.run_on(state, at_ms)
            state.queues, state.teams, state.summed = queues, dict(teams), summed
            state.next_team = max([state.next_team, *(team.number + 1 for team in teams.values())])
            state.teams_revision = state.seq
        case UserSet(user):
            state.users[user.name] = replace(user, revision=state.seq)
        case UserRemoved(name):
            state.users.pop(name, None)
            state.uids.pop(name, None)
            state.tokens = {id: token for id, token in state.tokens.items() if token.user != name}
        case TokenCreated(token):
            state.tokens[token.id] = token
        case TokenRevoked(id):
            state.tokens[id] = replace(state.tokens[id], revoked=True)
        case TokenUsed(id):
            state.tokens[id] = replace(state.tokens[id], used=True)
        case _:
            _enter_node(state, event, at_ms)


def _enter_node(state: State, event: Event, at_ms: int) -> None:
    match event:
        case NodeJoined(name, fingerprint):
            known = state.nodes.get(name) or NodeRecord(name, at_ms)
            node = replace(known, fingerprint=fingerprint)
        case NodeSeen(name, facts, incarnation, boot_id, version):
            node = replace(
                state.nodes[name],
                facts=facts,
                incarnation=incarnation,
                boot_id=boot_id,
                version=version,
                seen=True,
                silent_since_ms=None,
                lost=False,
                unhealthy="",
            )
        case NodeUnhealthy(name, why):
            node = replace(state.nodes[name], unhealthy=why)
        case NodeSilent(name):
            node = replace(state.nodes[name], silent_since_ms=at_ms)
        case NodeHeard(name):
            node = replace(state.nodes[name], silent_since_ms=None, lost=False)
        case NodeLost(name):
            was_silent = state.nodes[name].silent_since_ms
            node = replace(state.nodes[name], lost=True, silent_since_ms=at_ms if was_silent is None else was_silent)
        case NodeDrained(name):
            node = replace(state.nodes[name], drained=True)
        case NodeResumed(name):
            node = replace(state.nodes[name], drained=False)
        case NodeLabelled(name, labels):
            node = replace(state.nodes[name], labels=labels)
        case NodeRemoved(name):
            del state.nodes[name]
            return
        case _:
            raise AssertionError(f"an event without a rule: {type(event).__name__}")
    state.nodes[node.name] = replace(node, revision=state.seq)


# -------------------------------------------------------------------------------------------------------------- jobs


def _enter_job(state: State, event: Event, at_ms: int) -> None:
    state.cycle = max(state.cycle, getattr(event, "cycle", 0))
    match event:
        case JobSubmitted(job):
            _submitted(state, job)
        case JobWent():
            _went(state, event, at_ms)
        case JobScaled(id, tasks, min_tasks):
            _put(state, _scaled(state.jobs[id], tasks, min_tasks))
        case TasksPlaced():
            _placed(state, event, at_ms)
        case TasksPromised(id, _, placings):
            changed = {
                one.task: replace(
                    state.jobs[id].tasks[one.task], phase=TaskPhase.PROMISED, place=one.place, why=one.why
                )
                for one in placings
            }
            _put(state, _with_tasks(state.jobs[id], changed))
        case PromiseDropped(id, _, tasks):
            job = state.jobs[id]
            _put(state, _with_tasks(job, {task: _unpromised(job.tasks[task]) for task in tasks}))
        case TasksStopped():
            _stopped(state, event, at_ms)
        case AttemptBegan():
            _began(state, event, at_ms)
        case AttemptEnded():
            _ended(state, event)
        case Checkpointed(id, task, moment):
            job = state.jobs[id]
            _put(state, _with_tasks(job, {task: replace(job.tasks[task], checkpoint_at_ms=moment)}))


def _put(state: State, job: JobRecord) -> None:
    state.jobs[job.id] = replace(job, revision=state.seq, stale_since_ms=_stale_since_ms(state, job))


def _stale_since_ms(state: State, job: JobRecord) -> int | None:
    """Since when a gang of which something runs lacks a part of its minimum."""
    if job.state not in (JobState.STARTING, JobState.RUNNING):
        return None
    there = (index for index, task in enumerate(job.tasks) if task.phase is not TaskPhase.WAITING)
    if satisfied(job.form.group, per_leaf(job.form, there)):
        return None
    return state.at_ms if job.stale_since_ms is None else job.stale_since_ms


def _with_tasks(job: JobRecord, changed: dict[int, TaskRecord]) -> JobRecord:
    if len(job.tasks) == 1:
        return replace(job, tasks=(changed[0],)) if changed else job
    return replace(job, tasks=tuple(changed.get(index, task) for index, task in enumerate(job.tasks)))


def _unpromised(task: TaskRecord) -> TaskRecord:
    """A task without its promise; one that is being moved still stops."""
    if task.phase is TaskPhase.PROMISED:
        return replace(task, phase=TaskPhase.WAITING, place=None)
    return replace(task, next=None)


def _submitted(state: State, job: JobRecord) -> None:
    number = int(job.id.partition("_")[0])
    state.next_job = max(state.next_job, number + 1)
    for id in dict.fromkeys((*job.after, *job.afterok)):
        state.dependents.setdefault(id, []).append(job.id)
    if job.uid:
        _give_uid(state, job.user, job.uid)
    _put(state, job)


def _give_uid(state: State, user: str, uid: int) -> None:
    """Unless it is that of a team, which is nobody's own. Each job of a user says the same number again."""
    if state.uids.get(user) != uid and any(known.holds(uid) for known in state.uid_ranges):
        state.uids.setdefault(user, uid)
        state.uid_ranges = with_given(state.uid_ranges, uid)


_KEEP_PROMISES = frozenset({JobState.WAITING, JobState.STARTING, JobState.RUNNING, JobState.STOPPING})


def _went(state: State, event: JobWent, at_ms: int) -> None:
    job = state.jobs[event.job]
    new = after(job.state, event.happening)
    tasks = job.tasks
    if event.happening is Happening.REQUEUED:
        tasks = tuple(_again(task) for task in tasks)
    if new not in _KEEP_PROMISES:
        tasks = tuple(_unpromised(task) if task.phase is TaskPhase.PROMISED else task for task in tasks)
    job = replace(
        job,
        state=new,
        tasks=tasks,
        then=event.then if new is JobState.STOPPING else None,
        why=event.why or (job.why if new is job.state else None),
        message=event.message,
        exit_code=event.exit_code if event.exit_code is not None else job.exit_code,
        failures=job.failures + event.failed,
        held=job.held if event.held is None else event.held,
    )
    if new in OVER:
        job = replace(job, ended_at_ms=at_ms)
        state.finished.append(job.id)
    _put(state, job)


def _again(task: TaskRecord) -> TaskRecord:
    """One that is done runs again with the rest of its job."""
    return replace(task, phase=TaskPhase.WAITING) if task.phase is TaskPhase.DONE else task


def _scaled(job: JobRecord, tasks: int, min_tasks: int) -> JobRecord:
    form = job.form
    request = form.tasks[0].request
    group = _scaled_group(form.group, tasks, min_tasks)
    per_node = group.children[0].min_tasks if group.node_each else 0
    shaped = tuple(form.tasks[:tasks]) + tuple(
        Task(f"{job.id}/{index}", request, node_rank_name(index // per_node) if per_node else "")
        for index in range(len(form.tasks), tasks)
    )
    taken = max([job.attempts_before, *(task.attempt for task in job.tasks[tasks:])])
    fresh = (TaskRecord(attempt=taken),) * (tasks - len(job.tasks))
    return replace(
        job,
        form=replace(form, tasks=shaped, group=group),
        tasks=job.tasks[:tasks] + fresh,
        attempts_before=taken,
    )


def _scaled_group(group: TaskGroup, tasks: int, min_tasks: int) -> TaskGroup:
    if not group.node_each:
        return replace(group, min_tasks=min_tasks)
    per_node = group.children[0].min_tasks
    return on_nodes(tasks // per_node, per_node, min_tasks // per_node, group.topology)


def _placed(state: State, event: TasksPlaced, at_ms: int) -> None:
    job = state.jobs[event.job]
    changed = {
        one.task: TaskRecord(
            phase=TaskPhase.ASSIGNED,
            attempt=one.attempt,
            place=one.place,
            why=one.why,
            assigned_at_ms=at_ms,
            decision=state.seq,
            host=_incarnation(state, one.place.node),
            ran_on=(*job.tasks[one.task].ran_on, (one.attempt, one.place.node))[-MAX_ATTEMPTS_KEPT:],
        )
        for one in event.tasks
    }
    restarts = max(job.restarts, *(one.attempt - 1 for one in event.tasks))
    state_now = after(job.state, Happening.PLACED)
    job = replace(_with_tasks(job, changed), state=state_now, restarts=restarts, why=None, message="")
    _put(state, job)
    for one in event.tasks:
        meter.take(state, job, one.task, at_ms)
        state.placed.setdefault(one.place.node, {})[job.id] = None


def _incarnation(state: State, name: str) -> str:
    node = state.nodes.get(name)
    return node.incarnation if node else ""


def _stopped(state: State, event: TasksStopped, at_ms: int) -> None:
    job = state.jobs[event.job]
    changed: dict[int, TaskRecord] = {}
    for one in event.tasks:
        task = job.tasks[one.task]
        since = task.stopping_since_ms or at_ms
        changed[one.task] = replace(
            task, phase=TaskPhase.STOPPING, next=one.next, why=one.why, stopping_since_ms=since, decision=state.seq
        )
    if event.cycle:
        why = event.tasks[0].why
        job = replace(job, last_evicted_at_ms=at_ms, last_eviction=why)
        moved = sum(one.next is not None for one in event.tasks)
        state.moves = [moment for moment in state.moves if moment > at_ms - HOUR_MS] + [at_ms] * moved
    if event.then is not None:
        # A job that stops as a whole starts nothing meanwhile.
        promised = {index: task for index, task in enumerate(job.tasks) if task.phase is TaskPhase.PROMISED}
        changed |= {index: _unpromised(task) for index, task in promised.items()}
    job = _with_tasks(job, changed)
    if event.then is not None:
        job = replace(
            job,
            state=after(job.state, Happening.STOP_ASKED),
            then=event.then,
            why=event.tasks[0].why if event.tasks else job.why,
            message=event.message,
        )
    _put(state, job)


def _began(state: State, event: AttemptBegan, at_ms: int) -> None:
    job = state.jobs[event.job]
    task = job.tasks[event.task]
    phase = TaskPhase.RUNNING if task.phase is TaskPhase.ASSIGNED else task.phase
    job = _with_tasks(job, {event.task: replace(task, phase=phase, started_at_ms=event.started_at_ms)})
    job = replace(job, started_at_ms=job.started_at_ms or at_ms)
    if job.state is JobState.STARTING and all(one.phase is not TaskPhase.ASSIGNED for one in job.tasks):
        job = replace(job, state=after(job.state, Happening.UP))
    _put(state, job)


def _ended(state: State, event: AttemptEnded) -> None:
    job = state.jobs[event.job]
    task = job.tasks[event.task]
    if job.idle_since_ms is not None:
        meter.count_job(state, job)
    meter.give_back(state, job, event)
    promised = task.next is not None and not event.done
    phase = TaskPhase.DONE if event.done else TaskPhase.PROMISED if promised else TaskPhase.WAITING
    ended = replace(
        task,
        phase=phase,
        place=task.next if promised else None,
        next=None,
        stopping_since_ms=0,
        ended_at_ms=event.ended_at_ms,
        ending=event.ending,
        exit_code=event.exit_code,
        message=event.message,
    )
    job = _with_tasks(job, {event.task: ended})
    if not on_machine(job, event.node):
        state.placed.get(event.node, {}).pop(job.id, None)
    _put(state, replace(job, idle_since_ms=None, warned_idle=False, reclaimable=False) if job.idle_since_ms else job)


def _forget(state: State, jobs: tuple[str, ...]) -> None:
    gone = set(jobs)
    for id in jobs:
        job = state.jobs.pop(id, None)
        state.dependents.pop(id, None)
        if job is not None and job.array and not any(one in state.jobs for one in _siblings(state, job)):
            state.arrays.pop(job.array, None)
            state.dependents.pop(job.array, None)
    state.finished = [id for id in state.finished if id not in gone]


def _siblings(state: State, job: JobRecord) -> tuple[str, ...]:
    array = state.arrays.get(job.array)
    return array.elements if array else ()


def _drop_old_receipts(state: State) -> None:
    """The oldest come first, so only the beginning is looked at."""
    while state.receipts:
        key = next(iter(state.receipts))
        if state.receipts[key].at_ms > state.at_ms - KEPT_RECEIPTS_MS:
            return
        del state.receipts[key]
