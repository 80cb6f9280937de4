"""What must hold at every moment of a simulation, whatever goes wrong. Each rule is a function with its name.

Some rules are held against the truth, the machines' own record of what really runs; some against the books, the
manager's state; some against the disk, from which an independent fold is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpuyard.model.jobs import DeviceShare
from gpuyard.model.quantities import GPU, MILLI
from gpuyard.model.queues import Queue
from gpuyard.model.reasons import EVICTIONS, Token
from gpuyard.scheduler.cycle import plan
from gpuyard.scheduler.ledger import Ledger
from gpuyard.service.core import Core
from gpuyard.service.days import all_sums
from gpuyard.wire.agents import AttemptId
from gpuyard.worlds.standalone.consequences import is_blocked, state_of
from gpuyard.worlds.standalone.events import (
    DECODER,
    AttemptEnded,
    Event,
    JobWent,
    ScheduleSkipped,
    TasksPlaced,
    TasksStopped,
)
from gpuyard.worlds.standalone.fold import fold
from gpuyard.worlds.standalone.lifecycle import OVER, PLACED, JobState, TaskPhase
from gpuyard.worlds.standalone.meter import milli_of
from gpuyard.worlds.standalone.records import JobRecord, SkipReason, State
from gpuyard.worlds.standalone.snapshot import snapshot_of
from gpuyard.worlds.standalone.store.memory import MemoryDisk
from gpuyard.worlds.standalone.store.port import Entry
from tests.planned_times import PlannedTimes

if TYPE_CHECKING:
    from gpuyard.loop.containment import Trouble
    from tests.simulation.machine import Machine
    from tests.simulation.manager import SimulatedManager
    from tests.simulation.world import Cluster

FOR_ANOTHER: Final = frozenset({Token.RECLAIMED, Token.PREEMPTED, Token.MOVED})
"""Evictions that need a beneficiary."""
BELOW_MINIMUM_MS: Final = 180_000
"""So long a job may be below its gang's minimum while the manager knows what is missing: a machine is being waited
for, or what is left is given its grace."""
LEDGER_PER_MILLE: Final = 60


class ViolationError(AssertionError):
    """An invariant is broken."""


class Real(NamedTuple):
    """A task that really runs."""

    machine: str
    shares: tuple[DeviceShare, ...]


class Date(NamedTuple):
    """When an entry was entered."""

    boot: int
    steady_ms: int
    at_ms: int


class Truth:
    """What really runs, as the machines themselves record it."""

    def __init__(self) -> None:
        self.started: dict[AttemptId, str] = {}
        self.running: dict[AttemptId, Real] = {}

    def began(self, id: AttemptId, machine: Machine, shares: tuple[DeviceShare, ...]) -> None:
        no_attempt_is_started_twice(self, id, machine.name)
        no_two_attempts_of_a_task_run_at_once(self, id, machine.name)
        self.started[id] = machine.name
        self.running[id] = Real(machine.name, shares)
        no_device_really_holds_more_than_it_has(self, machine)

    def ended(self, id: AttemptId) -> None:
        self.running.pop(id, None)

    def is_empty(self, machine: str) -> bool:
        return all(real.machine != machine for real in self.running.values())


def no_attempt_is_started_twice(truth: Truth, id: AttemptId, machine: str) -> None:
    if id in truth.started:
        raise ViolationError(f"attempt {id} is started on {machine}, and was on {truth.started[id]}")


def no_two_attempts_of_a_task_run_at_once(truth: Truth, id: AttemptId, machine: str) -> None:
    for other, real in truth.running.items():
        if (other.job, other.task) == (id.job, id.task):
            raise ViolationError(f"{id} starts on {machine} while {other} runs on {real.machine}")


def no_device_really_holds_more_than_it_has(truth: Truth, machine: Machine) -> None:
    held = [share for real in truth.running.values() if real.machine == machine.name for share in real.shares]
    _check_devices(held, [device.memory_mib for device in machine.facts.devices], f"really on {machine.name}")


def no_device_is_booked_beyond_its_capacity(state: State, node: str) -> None:
    held = [
        share
        for job in state.jobs.values()
        for task in job.tasks
        if task.phase in PLACED and task.place is not None and task.place.node == node
        for share in task.place.shares
    ]
    memory = [device.memory_mib for device in state.nodes[node].facts.devices] if node in state.nodes else []
    _check_devices(held, memory, f"booked on {node}")


def _check_devices(held: list[DeviceShare], memory_mib: list[int], where: str) -> None:
    for device, capacity_mib in enumerate(memory_mib):
        milli = sum(share.gpu_milli for share in held if share.device == device)
        mib = sum(share.memory_mib for share in held if share.device == device)
        if milli > MILLI or mib > capacity_mib:
            raise ViolationError(f"device {device} holds {milli} milli and {mib} MiB of {capacity_mib} MiB {where}")


# ------------------------------------------------------------------------------------------------------- of each event


def nothing_starts_beyond_the_limit_of_a_queue(state: State, job: JobRecord) -> None:
    queues = {queue.name: queue for queue in state.queues}
    queue: Queue | None = queues.get(job.team)
    while queue is not None:
        limit = queue.share(GPU).limit
        held = sum(_held_milli(state, one) for one in state.jobs.values() if _is_below(queues, one.team, queue.name))
        if limit is not None and held > limit:
            raise ViolationError(f"job {job.id} starts, and queue {queue.name} holds {held} milli of {limit}")
        queue = queues.get(queue.parent or "")


def _held_milli(state: State, job: JobRecord) -> int:
    active = (TaskPhase.ASSIGNED, TaskPhase.RUNNING)
    return sum(milli_of(state, job, index) for index, task in enumerate(job.tasks) if task.phase in active)


def _is_below(queues: dict[str, Queue], name: str, above: str) -> bool:
    queue = queues.get(name)
    return queue is not None and (name == above or _is_below(queues, queue.parent or "", above))


def a_job_on_nodes_keeps_its_shape(job: JobRecord) -> None:
    """Tasks of one of its nodes lie on one machine, and on no machine lie tasks of two."""
    active = (TaskPhase.ASSIGNED, TaskPhase.RUNNING)
    pairs = {
        (form.group, task.place.node)
        for form, task in zip(job.form.tasks, job.tasks, strict=True)
        if task.phase in active and task.place is not None
    }
    groups, machines = {group for group, _ in pairs}, {machine for _, machine in pairs}
    if job.form.group.node_each and not len(groups) == len(pairs) == len(machines):
        raise ViolationError(f"job {job.id} lies in another shape than it asks for: {sorted(pairs)}")


def nobody_is_evicted_without_a_reason(state: State, event: TasksStopped) -> None:
    job = state.jobs[event.job]
    for one in event.tasks:
        if one.why is None or one.why.token not in EVICTIONS:
            raise ViolationError(f"task {one.task} of job {job.id} is evicted because of {one.why}")
        if one.why.token in FOR_ANOTHER and not one.why.beneficiary:
            raise ViolationError(f"task {one.task} of job {job.id} gives way for nobody: {one.why}")
        is_moved = one.why.token is Token.MOVED and job.form.checkpointable
        if one.why.token in FOR_ANOTHER and not (job.form.preemptible or job.reclaimable or is_moved):
            raise ViolationError(f"job {job.id} may not be preempted, and is: {one.why}")


def the_beneficiary_has_its_place(state: State, job: str) -> None:
    """In the cycle in which others give way for it."""
    record = state.jobs.get(job)
    has = record is not None and any(task.phase is TaskPhase.PROMISED or task.phase in PLACED for task in record.tasks)
    if not has:
        raise ViolationError(f"others give way for job {job}, which has no place and no promise")


def what_is_over_holds_nothing(state: State, job: JobRecord) -> None:
    if job.state in OVER and any(task.phase in PLACED or task.phase is TaskPhase.PROMISED for task in job.tasks):
        raise ViolationError(f"job {job.id} is {job.state} and still has tasks: {[task.phase for task in job.tasks]}")


def a_time_is_skipped_only_for_a_run_that_is_not_over(state: State, event: ScheduleSkipped) -> None:
    if state_of(state, event.earlier) in OVER:
        raise ViolationError(f"schedule {event.schedule} skips a time for run {event.earlier}, which is over")


# --------------------------------------------------------------------------------------------------------- all of them


class Invariants:
    """Keeps what must be remembered from one moment to the next."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._witness = State()
        self._below_since: dict[str, int] = {}
        self._beneficiaries: set[str] = set()
        self.answered: dict[str, tuple[str, ...]] = {}
        """Idempotency-Key → jobs that a client was told of."""
        self._over: dict[str, JobState] = {}
        self._started_by_the_books: set[AttemptId] = set()
        self._planned = PlannedTimes()
        self._dates: dict[int, Date] = {}
        """Entry → when it was entered."""
        self._last_date: Date | None = None
        self._held_ms = 0
        """What teams have held, by the monotonic clock of the manager's node: GPU milli x milliseconds."""

    # --------------------------------------------------------------------------------------------------- as it happens

    def dated(self, event: Event, entry: Entry) -> None:
        """An event is entered: what the clocks really say."""
        manager = self._cluster.manager
        self._dates[entry.seq] = Date(manager.boots, manager.clock.steady_ms(), entry.at_ms)

    def entered(self, event: Event, entry: Entry) -> None:
        """An event was entered in the live state."""
        state = self._cluster.manager.state
        if self._cluster.story.aloud:
            self._cluster.story.tell("log", f"{entry.seq} {entry.kind} {entry.body.decode()[:300]}")
        match event:
            case TasksPlaced(job):
                for one in event.tasks:
                    no_device_is_booked_beyond_its_capacity(state, one.place.node)
                a_job_on_nodes_keeps_its_shape(state.jobs[event.job])
                if any(one.place.shares for one in event.tasks):
                    nothing_starts_beyond_the_limit_of_a_queue(state, state.jobs[job])
            case TasksStopped() if event.cycle:
                nobody_is_evicted_without_a_reason(state, event)
                self._beneficiaries |= {one.why.beneficiary for one in event.tasks if one.why and one.why.beneficiary}
            case ScheduleSkipped() if event.why is SkipReason.OVERLAP:
                a_time_is_skipped_only_for_a_run_that_is_not_over(state, event)
            case JobWent(job) | AttemptEnded(job):
                what_is_over_holds_nothing(state, state.jobs[job])

    def contained(self, trouble: Trouble) -> None:
        """The manager would have gone on; here an exception is a bug."""
        raise ViolationError(f"{trouble.text}\n{trouble.fault.trace}")

    def planned(self, core: Core) -> None:
        """A plan was carried out."""
        for job in self._beneficiaries:
            the_beneficiary_has_its_place(core.state, job)
        self._beneficiaries.clear()
        if self._cluster.chance.checks.happens(LEDGER_PER_MILLE):
            self.the_kept_ledger_equals_a_fresh_one(core)

    def the_kept_ledger_equals_a_fresh_one(self, core: Core) -> None:
        core.loop.follow()
        kept = core.loop.ledger
        fresh = Ledger.of(snapshot_of(core.state, kept.now_ms))
        for part, (one, other) in enumerate(zip(kept.facts(), fresh.facts(), strict=True)):
            if one != other:
                raise ViolationError(f"part {part} of the kept ledger is {one}, of one made of the state {other}")

    def written(self) -> None:
        """Something is durable: the independent fold follows the disk."""
        for entry in self._cluster.manager.disk.log[self._witness.seq :]:
            event = DECODER.decode(entry.body)
            self._count_what_is_held(entry)
            fold(self._witness, event, entry.seq, entry.at_ms)
            self._planned_times_are_kept(event, entry)
            if isinstance(event, TasksPlaced):
                self._attempt_numbers_are_given_once(event)
            if isinstance(event, JobWent) and self._witness.jobs[event.job].state in OVER:
                self._over[event.job] = self._witness.jobs[event.job].state

    def _count_what_is_held(self, entry: Entry) -> None:
        """Before it is folded. Across boots the wall clock tells what has passed, and never less than nothing."""
        now, then = self._dates[entry.seq], self._last_date
        if then is not None:
            passed_ms = now.steady_ms - then.steady_ms if now.boot == then.boot else max(now.at_ms - then.at_ms, 0)
            self._held_ms += passed_ms * sum(team.held_milli for team in self._witness.meter.teams.values())
        self._last_date = now

    def what_was_held_is_charged_however_the_clock_was_set(self, disk: MemoryDisk) -> None:
        assert self._last_date is not None
        found = all_sums(self._witness, list(disk.sums.values()), self._last_date.at_ms)
        charged_ms = sum(one.gpu_milli_ms for one in found if one.kind == "held")
        if charged_ms != self._held_ms:
            raise ViolationError(f"teams have held {self._held_ms} GPU milli x ms, and are charged {charged_ms}")

    def _planned_times_are_kept(self, event: Event, entry: Entry) -> None:
        """Each has one run, or a recorded reason why it has none, whatever crashed in between."""
        try:
            self._planned.enter(event, entry.at_ms)
        except AssertionError as broken:
            raise ViolationError(str(broken)) from None

    def _attempt_numbers_are_given_once(self, event: TasksPlaced) -> None:
        for one in event.tasks:
            id = AttemptId(event.job, one.task, one.attempt)
            if id in self._started_by_the_books:
                raise ViolationError(f"attempt number {id} is given twice")
            self._started_by_the_books.add(id)

    # ----------------------------------------------------------------------------------------------- crash and restart

    def crashed(self, manager: SimulatedManager) -> None:
        """The live state must be the fold of the log: of what is durable, and what was still to be written."""
        self.written()
        writing = manager.writing.entries if manager.writing else ()
        live = msgspec.msgpack.decode(msgspec.msgpack.encode(self._witness), type=State)
        for entry in (*writing, *manager.core.journal.pending):
            if entry.seq > live.seq:
                fold(live, DECODER.decode(entry.body), entry.seq, entry.at_ms)
        same_bytes(live, manager.state, "the fold of the log", "the live state")
        self._beneficiaries.clear()

    def restarted(self, loaded: State) -> None:
        """What a new process finds is what was durable, and nothing that was answered is missing."""
        same_bytes(self._witness, loaded, "the fold of the log", "what was loaded, perhaps from a snapshot")
        self._everything_answered_is_there(loaded)
        self._what_is_over_stays_over(loaded)

    def _everything_answered_is_there(self, state: State) -> None:
        for key, jobs in self.answered.items():
            missing = [id for id in jobs if id not in state.jobs]
            if missing:
                raise ViolationError(f"jobs {missing} of request {key} were acknowledged and are lost")

    def _what_is_over_stays_over(self, state: State) -> None:
        for id, was in self._over.items():
            if state.jobs[id].state is not was:
                raise ViolationError(f"job {id} was {was} for good and is {state.jobs[id].state}")

    def answer(self, key: str, jobs: tuple[str, ...]) -> None:
        """A client is told which jobs its request has led to: always the same ones."""
        before = self.answered.setdefault(key, jobs)
        if before != jobs:
            raise ViolationError(f"request {key} has led to jobs {before}, and then to {jobs}")

    # ------------------------------------------------------------------------------------------------- now and then

    def step(self) -> None:
        """After every step of the faults and the workload."""
        manager = self._cluster.manager
        if not manager.listens:
            self._below_since.clear()
            return
        for node in manager.state.nodes:
            no_device_is_booked_beyond_its_capacity(manager.state, node)
        self._gangs_have_their_minimum(manager.state)
        self.what_was_used_is_owed_or_borrowed(manager.state)

    def _gangs_have_their_minimum(self, state: State) -> None:
        now_ms = self._cluster.timeline.now_ms
        below = {job.id for job in state.jobs.values() if _is_below_minimum(job)}
        self._below_since = {id: self._below_since.get(id, now_ms) for id in below}
        for id, since_ms in self._below_since.items():
            if now_ms - since_ms > BELOW_MINIMUM_MS:
                phases = [str(task.phase) for task in state.jobs[id].tasks]
                raise ViolationError(f"job {id} is {state.jobs[id].state} below its minimum: {phases}")

    def what_was_used_is_owed_or_borrowed(self, state: State) -> None:
        for day, sums in state.meter.open_days.items():
            for team in state.teams:
                of = {kind: sum(n for key, n in sums.items() if key[0] == team and key[3] == kind) for kind in _KINDS}
                if of["held"] != of["owed"] + of["borrowed"]:
                    raise ViolationError(f"team {team} on {day}: {of}")
        for team, meter in state.meter.teams.items():
            held = sum(
                milli_of(state, job, index)
                for job in state.jobs.values()
                if job.team == team
                for index, task in enumerate(job.tasks)
                if task.phase in PLACED
            )
            if held != meter.held_milli:
                raise ViolationError(f"the meter of team {team} stands at {meter.held_milli}, its jobs hold {held}")

    def at_the_end(self, manager: SimulatedManager) -> None:
        """Faults have stopped long ago."""
        self.crashed(manager)
        same_bytes(_folded(manager.disk.log), self._witness, "a replay of the whole log", "the kept fold")
        self.the_kept_ledger_equals_a_fresh_one(manager.core)
        self.what_was_held_is_charged_however_the_clock_was_set(manager.disk)
        self._everything_answered_is_there(manager.state)
        self._planned.check_every_submission_is_a_run()
        for job in manager.state.jobs.values():
            everything_is_over_or_waits_for_a_reason(manager, job)


_KINDS: Final = ("held", "owed", "borrowed")


def _is_below_minimum(job: JobRecord) -> bool:
    if job.state not in (JobState.STARTING, JobState.RUNNING) or not job.form.group.leaf:
        return False
    there = sum(task.phase in (TaskPhase.ASSIGNED, TaskPhase.RUNNING) for task in job.tasks)
    done = sum(task.phase is TaskPhase.DONE for task in job.tasks)
    return 0 < there < job.form.group.min_tasks - done


def everything_is_over_or_waits_for_a_reason(manager: SimulatedManager, job: JobRecord) -> None:
    """Liveness: nothing stops or starts for ever, and nothing waits that fits an idle cluster."""
    if job.state in OVER:
        return
    phases = [str(task.phase) for task in job.tasks]
    if job.state is JobState.BLOCKED and is_blocked(manager.state, job):
        return
    may_wait = job.state in (JobState.WAITING, JobState.RUNNING)
    if not may_wait or any(task.phase in PLACED for task in job.tasks):
        raise ViolationError(f"job {job.id} is still {job.state} (then {job.then}, {job.message!r}): {phases}")
    reasons = manager.core.loop.why_waiting.get(job.id)
    if not reasons:
        raise ViolationError(f"job {job.id} waits without a reason: {phases}")
    if plan(_alone(manager, job)).actions:
        raise ViolationError(f"job {job.id} waits for {reasons} and fits the idle cluster: {phases}")


def _alone(manager: SimulatedManager, job: JobRecord) -> Ledger:
    snapshot = snapshot_of(manager.state, manager.clock.wall_ms())
    return Ledger.of(msgspec.structs.replace(snapshot, jobs=tuple(one for one in snapshot.jobs if one.id == job.id)))


def _folded(log: list[Entry]) -> State:
    state = State()
    for entry in log:
        fold(state, DECODER.decode(entry.body), entry.seq, entry.at_ms)
    return state


def same_bytes(one: State, other: State, what: str, what_other: str) -> None:
    """Equal byte for byte, as a snapshot would keep them."""
    if msgspec.msgpack.encode(one) == msgspec.msgpack.encode(other):
        return
    for field in State.__struct_fields__:
        mine, theirs = getattr(one, field), getattr(other, field)
        if msgspec.msgpack.encode(mine) != msgspec.msgpack.encode(theirs):
            raise ViolationError(f"{what} and {what_other} differ in {field}: {_difference(mine, theirs)}")


def _difference(one: object, other: object) -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [key for key in (*one, *other) if one.get(key) != other.get(key)]
        return f"{keys[:3]}: {one.get(keys[0])} / {other.get(keys[0])}" if keys else "the order of the keys"
    return f"{one} / {other}"
