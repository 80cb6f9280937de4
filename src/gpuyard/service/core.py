"""The manager without its shell: journal, world, loop and hub, put together. No I/O, no clock, no threads.

Place in the flow: intents and reports ─▶ **core** ─Batch─▶ store, then agents. The daemon drives it in real time and
the simulator in virtual time, so what is simulated is what runs. Invariant: what goes out to agents is true of a state
that is durable when it goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

import msgspec

from gpuyard.loop.contained import Contained
from gpuyard.loop.loop import Loop
from gpuyard.policies.policy import DEFAULT, Policy
from gpuyard.service.clock import Clock, RecordedClock
from gpuyard.service.days import DayBook
from gpuyard.service.idle import IdleWatch
from gpuyard.service.recurring import ScheduleWatch
from gpuyard.wire.agents import DEFAULT_LEASE_MS, Desired, Hello, Report
from gpuyard.worlds.standalone.decide import decide
from gpuyard.worlds.standalone.events import Event, JobNumbered, JobsForgotten, NodeSilent, UidRangeSet
from gpuyard.worlds.standalone.hub import Hub
from gpuyard.worlds.standalone.intents import DeclareLost, Intent
from gpuyard.worlds.standalone.journal import Journal
from gpuyard.worlds.standalone.records import KEPT_FINISHED_MS, MAX_FINISHED_KEPT
from gpuyard.worlds.standalone.schedules import due_events
from gpuyard.worlds.standalone.snapshot_draft import SnapshotDraft
from gpuyard.worlds.standalone.store.port import Entry
from gpuyard.worlds.standalone.uids import UidRange, check_range, unnumbered
from gpuyard.worlds.standalone.world import Standalone

FORGET_AT_ONCE: Final = 1_000


class Batch(msgspec.Struct, frozen=True):
    """What is to be written together, and what agents are told once it is."""

    entries: tuple[Entry, ...]
    messages: dict[str, Desired]
    seq: int
    snapshot: SnapshotDraft | None = None
    """Where one is due: the state after the entries, to be saved once they are written."""

    @property
    def empty(self) -> bool:
        return not self.entries and not self.messages


class Core:
    """Everything the manager is, in one thread."""

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        policy: Policy = DEFAULT,
        lease_ms: int = DEFAULT_LEASE_MS,
        uids: UidRange | None = None,
    ) -> None:
        """`uids`: where users get the numbers of their jobs from; None: as before."""
        self.journal = journal
        self.state = journal.state
        self.clock = clock
        # Before anything is recorded: a log without entries means that no manager before this one gave a lease.
        self.hub = Hub(journal.state, clock.steady_ms(), lease_ms)
        self.recorded = RecordedClock(clock, journal.state)
        self.now_ms()
        self.days = DayBook(journal, self.recorded)
        self.world = Standalone(journal, self.recorded.now_ms)
        self.loop = Loop(self.world, policy, clock.steady_ms)
        self.contained = Contained(self.loop.containment.reports, clock.steady_ms)
        self.idle = IdleWatch(journal.state)
        self.schedules = ScheduleWatch(journal.state)
        journal.listeners.append(self._tell_agents)
        self.journal.enter_found(self.now_ms())
        self.record([*self.hub.opening(), *self._uid_range(uids)])
        self.record([*self._numbered(), *self._not_heard_yet()])

    def _uid_range(self, wanted: UidRange | None) -> list[Event]:
        current = self.state.uid_ranges[-1]
        if wanted is None or (wanted.first, wanted.last) == (current.first, current.last):
            return []
        check_range(self.state, wanted)
        return [UidRangeSet(wanted.first, wanted.last)]

    def _numbered(self) -> list[Event]:
        """Jobs of a database from before users had numbers get theirs."""
        return [JobNumbered(job, uid) for job, uid in unnumbered(self.state)]

    def _not_heard_yet(self) -> list[Event]:
        """Nothing is placed on a machine before its agent has come back: it may be another one by now."""
        return [NodeSilent(node.name) for node in self.state.nodes.values() if node.seen and not node.silent_since_ms]

    def now_ms(self) -> int:
        """The time to record at. A jump of the wall clock is entered first."""
        found = self.recorded.event()
        if found is not None:
            event, at_ms = found
            self.journal.record([event], at_ms)
        return self.recorded.now_ms()

    def record(self, events: Iterable[Event], actor: str = "") -> int:
        """Enter facts as of now; the number of the last entry."""
        return self.journal.record(events, self.now_ms(), actor)

    def do(self, intent: Intent, actor: str) -> int:
        """Decide an intent and enter what follows; the number of the last entry."""
        now_ms = self.now_ms()
        events = decide(self.state, intent, now_ms)
        if isinstance(intent, DeclareLost):
            self.hub.refuse_while_leased(intent.node, self.clock.steady_ms())
        return self.journal.record(events, now_ms, actor)

    def hello(self, hello: Hello) -> None:
        events = self.hub.hello(hello, self.clock.steady_ms())
        self._contain(f"hello {hello.node}", events, f"node/{hello.node}", pause=False)
        self.hub.touch(hello.node)

    def report(self, node: str, report: Report) -> None:
        """What an agent says is entered as a whole or not at all; its lease goes on either way."""
        if node not in self.state.nodes:
            return  # It was removed while this was on the way.
        now_ms = self.now_ms()
        events = self.hub.report(node, report, self.clock.steady_ms(), now_ms)
        self._contain(f"report {node}", events, f"node/{node}", pause=False)
        self._contain(f"use {node}", self.idle.noticed(self.hub.contacts[node].use, now_ms), pause=False)

    def tick(self) -> None:
        """What follows from time alone, item by item: one that raises stops no other."""
        now_ms, steady_ms = self.now_ms(), self.clock.steady_ms()
        self._contain("leases", self.hub.tick_leases(steady_ms))
        for name in list(self.state.nodes):
            self._contain(f"node {name}", self.hub.tick_node(name, steady_ms, now_ms))
        self._contain("idle", self.idle.overdue(now_ms))
        self._run_due(now_ms)
        self.contained.run("retention", lambda: self._forget(now_ms))
        self.contained.now_failing("desired", self.hub.broken)
        self.contained.keep(self._is_there)

    def _contain(self, item: str, events: Iterable[Event], actor: str = "", *, pause: bool = True) -> None:
        now_ms = self.now_ms()
        self.contained.run(item, lambda: self.journal.record(events, now_ms, actor), pause=pause)

    def _run_due(self, now_ms: int) -> None:
        for id in self.schedules.due(now_ms):
            self.contained.run(f"schedule {id}", partial(self._run_schedule, id, now_ms))
        self.contained.now_failing("cron", self.schedules.broken)

    def _is_there(self, item: str) -> bool:
        """Whether what failed is about a machine or schedule that still is."""
        about, _, name = item.partition(" ")
        return not name or name in (self.state.schedules if about in ("schedule", "cron") else self.state.nodes)

    def _run_schedule(self, id: str, now_ms: int) -> None:
        self.journal.record(due_events(self.state, self.state.schedules[id], now_ms), now_ms, f"schedule/{id}")

    def _forget(self, now_ms: int) -> None:
        forgotten = self._long_over(now_ms)
        if forgotten:
            self.journal.record([JobsForgotten(forgotten)], now_ms)

    def take(self) -> Batch:
        """What has piled up. Its messages may go out once its entries are written."""
        messages = self.hub.due()
        snapshot = self._snapshot() if self.journal.pending and self.journal.wants_snapshot else None
        return Batch(tuple(self.journal.take_pending()), messages, self.state.seq, snapshot)

    def _snapshot(self) -> SnapshotDraft | None:
        """The state to be saved; None where it cannot be written, and the log alone has to do."""
        made: list[SnapshotDraft] = []
        self.contained.run("snapshot", lambda: made.append(self.journal.snapshot()))
        return made[0] if made else None

    def published(self, batch: Batch) -> None:
        """Its entries are durable, and its messages sent."""
        self.journal.durable_seq = batch.seq
        self.hub.sent(batch.messages)

    def _long_over(self, now_ms: int) -> tuple[str, ...]:
        finished, jobs = self.state.finished, self.state.jobs
        surplus = max(len(finished) - MAX_FINISHED_KEPT, 0)
        old = [
            id
            for position, id in enumerate(finished[:FORGET_AT_ONCE])
            if position < surplus or (id in jobs and jobs[id].ended_at_ms < now_ms - KEPT_FINISHED_MS)
        ]
        return tuple(old)

    def _tell_agents(self, event: Event, _: Entry) -> None:
        """Whoever has something of the job is told; others learn nothing."""
        job = getattr(event, "job", None)
        record = self.state.jobs.get(job) if isinstance(job, str) else None
        nodes = {task.place.node for task in record.tasks if task.place is not None} if record else set()
        node = getattr(event, "node", None)
        for name in nodes | ({node} if isinstance(node, str) else set()):
            self.hub.touch(name)
