"""The manager's process in virtual time: what service/manager.py does with threads, done with timers.

Everything it decides is decided by the production `Core`. Here is only when: a write takes a while, so does a plan,
messages come in between, and at any of these points the process may end. What was answered is remembered by `answered`,
so that what a client was promised can be held against what a restart finds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from gpuyard.errors import RefusedError, StoreGoneError, StoreWaitError
from gpuyard.model.plan import Plan
from gpuyard.platform.simulated import Act, DriftingClock
from gpuyard.policies.policy import Policy
from gpuyard.service.clock import Clock
from gpuyard.service.core import Batch, Core
from gpuyard.wire.agents import AgentMessage, Hello, Refused, Report, Welcome
from gpuyard.worlds.standalone.events import ClusterFounded, SharedUserAccepted
from gpuyard.worlds.standalone.intents import Intent, RunSchedule, Submit
from gpuyard.worlds.standalone.journal import is_written, load
from gpuyard.worlds.standalone.records import State
from gpuyard.worlds.standalone.store.memory import Fault, MemoryDisk, MemoryStore, SimulatedCrashError, Write
from gpuyard.worlds.standalone.submitting import submitted_before

if TYPE_CHECKING:
    from tests.simulation.network import Session
    from tests.simulation.world import Cluster

TICK_MS: Final = 1_000
REPLAN_MS: Final = 5_000
REOPEN_MS: Final = 1_000
SNAPSHOT_EVERY: Final = 150
"""Far more often than in production, so that many restarts begin from one."""

Answer = Callable[[tuple[str, ...]], None]


class Waiting(msgspec.Struct):
    """A client that waits until its request is durable."""

    seq: int
    jobs: tuple[str, ...]
    answer: Answer


class SimulatedManager:
    """One manager: at most one process of it lives at a time, on one disk."""

    def __init__(self, cluster: Cluster, clock: DriftingClock, policy: Policy, lease_ms: int) -> None:
        self.cluster = cluster
        self.clock = clock
        self.policy = policy
        self.lease_ms = lease_ms
        self.disk = MemoryDisk()
        self.life = 0
        """Counts every start and every end: what was planned in another life does not happen."""
        self.crashes = 0
        self.boots = 0
        """Starts of the node it runs on."""
        self.listens = False
        self.unwritten = False
        self.paused_until_ms = 0
        self.writing: Batch | None = None
        self.waiting: list[Waiting] = []
        self.senders: dict[str, Session] = {}

    @property
    def state(self) -> State:
        return self.core.state

    # -------------------------------------------------------------------------------------------------- life and death

    def start(self) -> None:
        self.lease_ms = self.cluster.faults.lease_ms(self.lease_ms) if self.life else self.lease_ms
        self.life += 1
        self.store = MemoryStore(self.disk, self._fault_of)
        self.store.open()
        journal = load(self.store)
        self.cluster.invariants.restarted(journal.state)
        journal.snapshot_every = SNAPSHOT_EVERY
        journal.listeners.append(self.cluster.invariants.dated)
        clock = Clock(self.clock.wall_ms, self.clock.steady_ms, f"boot {self.boots}")
        self.core = Core(journal, clock, self.policy, self.lease_ms)
        journal.listeners.append(self.cluster.invariants.entered)
        self.core.loop.containment.reports.listen(self.cluster.invariants.contained)
        self.waiting, self.senders, self.writing = [], {}, None
        self._dirty = self._planning = self._due = self.unwritten = False
        self._planned_ms = 0
        self.listens = True
        self.cluster.story.tell("manager", f"starts at entry {self.state.seq}")
        if not self.state.cluster:
            self.core.record([ClusterFounded("simulated"), SharedUserAccepted()])
        self._begin_planning()
        self._later(0, self._tick)

    def crash(self, why: str) -> None:
        if self.listens:
            self.cluster.story.fault("manager", why)
            self._end(why)

    def _end(self, why: str) -> None:
        self.cluster.story.tell("manager", f"ends: {why}")
        self.listens = False
        self.life += 1
        self.crashes += 1
        self.disk.writer = None
        self.paused_until_ms = 0
        self.cluster.invariants.crashed(self)
        for session in list(self.cluster.network.sessions):
            session.breaks()
        self.cluster.workload.unanswered(len(self.waiting))
        if self.cluster.faults.reboot():
            self.boots += 1
            self.clock.restart(self.cluster.chance.faults.between(0, 60_000))
        self.cluster.timeline.after(self.cluster.chance.faults.skewed(100, 30_000), self.start)

    def _later(self, delay_ms: int, act: Act) -> None:
        life = self.life
        self.cluster.timeline.after(delay_ms, lambda: self._if_alive(life, act))

    def _if_alive(self, life: int, act: Act) -> None:
        if self.life != life:
            return
        left_ms = self.paused_until_ms - self.cluster.timeline.now_ms
        if left_ms > 0:
            self._later(left_ms, act)
            return
        try:
            act()
        except SimulatedCrashError as crash:
            self._end(str(crash))

    def _fault_of(self, write: Write) -> Fault | None:
        return self.cluster.faults.of_write(write)

    # --------------------------------------------------------------------------------------------------------- writing

    def _changed(self) -> None:
        if self.writing is None and not self._dirty:
            self._later(0, self._write)
        self._dirty = True
        if self.core.world.changed:
            self._begin_planning()

    def _write(self) -> None:
        self._dirty = False
        self.writing = self.core.take()
        if self.writing.entries:
            self._later(self.cluster.faults.write_ms(), self._append)
        else:
            self._publish()

    def _append(self) -> None:
        assert self.writing is not None
        try:
            self.store.append(self.writing.entries)
        except StoreGoneError:
            self.cluster.story.tell("manager", "has lost its database")
            self._later(REOPEN_MS, self._find_again)
        except StoreWaitError:
            # As in production: nothing new is begun, and what runs keeps its lease.
            self.unwritten = True
            for node, message in self.core.hub.renewals():
                if node in self.senders:
                    self.senders[node].down.send(message)
            self._later(REOPEN_MS, self._append)
        else:
            self._written()

    def _find_again(self) -> None:
        assert self.writing is not None
        if self.cluster.chance.faults.happens(300):
            self._later(REOPEN_MS, self._find_again)
            return
        self.store.open()
        if is_written(self.writing.entries, self.store.last_seq()):
            self._written()
        else:
            self._append()

    def _written(self) -> None:
        self.unwritten = False
        snapshot = self.writing.snapshot if self.writing else None
        self._publish()
        if snapshot is not None:
            self._keep(lambda: self.store.save_snapshot(snapshot.stored()))

    def _keep(self, write: Act) -> bool:
        """Write what can wait; where the database is away it does."""
        try:
            write()
        except (StoreGoneError, StoreWaitError):
            return False
        return True

    def _publish(self) -> None:
        batch, self.writing = self.writing, None
        if batch is None or not self.listens:
            return
        self.core.published(batch)
        self.cluster.invariants.written()
        for node, message in batch.messages.items():
            if node in self.senders:
                self.senders[node].down.send(message)
        done = [one for one in self.waiting if one.seq <= batch.seq]
        self.waiting = [one for one in self.waiting if one.seq > batch.seq]
        for one in done:
            one.answer(one.jobs)
        if self._dirty:
            self._later(0, self._write)

    # -------------------------------------------------------------------------------------------------------- planning

    def _begin_planning(self) -> None:
        self._due = True
        if not self._planning:
            self._planning = True
            self._later(self.cluster.chance.manager.skewed(0, 50), self._plan)

    def _plan(self) -> None:
        self._due = False
        self.core.loop.follow()
        decided = self.core.loop.plan()
        self._later(self.cluster.faults.think_ms(), lambda: self._carry_out(decided))

    def _carry_out(self, decided: Plan) -> None:
        if decided.actions and self.cluster.faults.between_plan_and_act():
            self.crash("crash between plan and act")
            return
        self.core.loop.carry_out(decided)
        self._planning = False
        self._planned_ms = self.clock.steady_ms()
        self.cluster.invariants.planned(self.core)
        self._changed()
        if self._due:
            # What came in while the plan was made is in the books already, but not in the plan.
            self._begin_planning()

    def _tick(self) -> None:
        self._later(self.clock.true_ms(TICK_MS), self._tick)
        self.core.tick()
        self._close_days()
        if not self.listens:
            return
        if self.core.loop.why_waiting and self.clock.steady_ms() - self._planned_ms >= REPLAN_MS:
            self._begin_planning()
        self._changed()

    def _close_days(self) -> None:
        days = self.core.days
        try:
            for day in days.to_begin():
                days.begin(day, self.store.sums(day, day) if days.was_closed(day) else [])
        except StoreGoneError:
            return
        sums = days.to_close()
        if sums and self._keep(lambda: self.store.add_sums(sums)):
            days.close(sums)

    # --------------------------------------------------------------------------------------------------------- clients

    def do(self, intent: Intent, actor: str, answer: Answer) -> bool:
        """Ask for something; False where it is refused, or nobody is there. `answer` comes once it is durable."""
        if not self.listens or self.unwritten or self.paused_until_ms > self.cluster.timeline.now_ms:
            return False
        if isinstance(intent, Submit | RunSchedule):
            before = submitted_before(self.state, intent.key, intent.fingerprint)
            if before is not None:
                self.waiting.append(Waiting(self.state.seq, before, answer))
                self._changed()
                return True
        first = self.state.seq
        try:
            seq = self.core.do(intent, actor)
        except RefusedError as refused:
            self.cluster.story.tell("manager", f"refuses {type(intent).__name__}: {refused}")
            return False
        objects = [name for entry in self.core.journal.pending if entry.seq > first for name in entry.objects]
        jobs = tuple(dict.fromkeys(name.removeprefix("job/") for name in objects if name.startswith("job/")))
        self.waiting.append(Waiting(seq, jobs, answer))
        self._changed()
        return True

    # ---------------------------------------------------------------------------------------------------------- agents

    def hears(self, session: Session, message: AgentMessage) -> None:
        life = self.life
        if self.listens:
            self.cluster.timeline.after(0, lambda: self._if_alive(life, lambda: self._hears(session, message)))

    def _hears(self, session: Session, message: AgentMessage) -> None:
        """As the agents' door does: a machine has one session, the newest."""
        if self.cluster.faults.at_message():
            self.crash("crash at a message")
            return
        match message:
            case Hello():
                if message.node not in self.state.nodes:
                    session.down.send(Refused("removed"))
                    return
                self.senders[session.node] = session
                session.fingerprint = self.state.nodes[session.node].fingerprint
                self.core.hello(message)
                session.down.send(Welcome(self.state.cluster, "0", self.lease_ms))
            case Report():
                known = self.state.nodes.get(session.node)
                if known is None or known.fingerprint != session.fingerprint:
                    session.breaks()
                elif self.senders.get(session.node) is session:
                    self.core.report(session.node, message)
        if self.cluster.faults.at_message():
            self.crash("crash after a message")
            return
        self._changed()

    def session_over(self, session: Session) -> None:
        if self.listens and self.senders.get(session.node) is session:
            del self.senders[session.node]
            self.core.hub.gone(session.node)
