"""The manager without its shell: journal, world, loop and hub, put together. No I/O, no clock, no threads.

Place in the flow: intents and reports ─▶ **core** ─Batch─▶ store, then agents. The daemon drives it in real time and
the simulator in virtual time, so what is simulated is what runs. Invariant: what goes out to agents is true of a state
that is durable when it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import msgspec

from gpuyard.loop.contained import Contained
from gpuyard.loop.loop import Loop
from gpuyard.policies.policy import DEFAULT, Policy
from gpuyard.service.idle import IdleWatch
from gpuyard.service.recurring import ScheduleWatch
from gpuyard.wire.agents import DEFAULT_LEASE_MS, Desired, Hello, Report
from gpuyard.worlds.standalone.decide import decide
from gpuyard.worlds.standalone.events import DayClosed, Event, JobsForgotten, NodeSilent
from gpuyard.worlds.standalone.hub import Hub
from gpuyard.worlds.standalone.intents import DeclareLost, Intent
from gpuyard.worlds.standalone.journal import Journal
from gpuyard.worlds.standalone.meter import counted_up_to, day_of
from gpuyard.worlds.standalone.records import KEPT_FINISHED_MS, MAX_FINISHED_KEPT
from gpuyard.worlds.standalone.schedules import due_events
from gpuyard.worlds.standalone.store.port import DailySum, Entry, StoredSnapshot
from gpuyard.worlds.standalone.world import Standalone

FORGET_AT_ONCE: Final = 1_000


class Clock(msgspec.Struct, frozen=True):
    """Both clocks: `wall_ms` for the log and for people, `steady_ms` for leases."""

    wall_ms: Callable[[], int]
    steady_ms: Callable[[], int]


class Batch(msgspec.Struct, frozen=True):
    """What is to be written together, and what agents are told once it is."""

    entries: tuple[Entry, ...]
    messages: dict[str, Desired]
    seq: int
    snapshot: StoredSnapshot | None = None
    """Where one is due: the state after the entries, to be saved once they are written."""

    @property
    def empty(self) -> bool:
        return not self.entries and not self.messages


class Core:
    """Everything the manager is, in one thread."""

    def __init__(
        self, journal: Journal, clock: Clock, policy: Policy = DEFAULT, lease_ms: int = DEFAULT_LEASE_MS
    ) -> None:
        self.journal = journal
        self.state = journal.state
        self.clock = clock
        self.world = Standalone(journal, clock.wall_ms)
        self.loop = Loop(self.world, policy, clock.steady_ms)
        self.contained = Contained(self.loop.containment.reports, clock.steady_ms)
        self.hub = Hub(journal.state, clock.steady_ms(), lease_ms)
        self.idle = IdleWatch(journal.state)
        self.schedules = ScheduleWatch(journal.state)
        journal.listeners.append(self._tell_agents)
        self.journal.record([*self.hub.opening(), *self._not_heard_yet()], clock.wall_ms())

    def _not_heard_yet(self) -> list[Event]:
        """Nothing is placed on a machine before its agent has come back: it may be another one by now."""
        return [NodeSilent(node.name) for node in self.state.nodes.values() if node.seen and not node.silent_since_ms]

    def do(self, intent: Intent, actor: str) -> int:
        """Decide an intent and enter what follows; the number of the last entry."""
        now_ms = self.clock.wall_ms()
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
        wall_ms = self.clock.wall_ms()
        events = self.hub.report(node, report, self.clock.steady_ms(), wall_ms)
        self._contain(f"report {node}", events, f"node/{node}", pause=False)
        if node in self.hub.contacts:
            self._contain(f"use {node}", self.idle.noticed(self.hub.contacts[node].use, wall_ms), pause=False)

    def tick(self) -> None:
        """What follows from time alone, item by item: one that raises stops no other."""
        wall_ms, steady_ms = self.clock.wall_ms(), self.clock.steady_ms()
        self._contain("leases", self.hub.tick_leases(steady_ms))
        for name in list(self.state.nodes):
            self._contain(f"node {name}", self.hub.tick_node(name, steady_ms, wall_ms))
        self._contain("idle", self.idle.overdue(wall_ms))
        self._run_due(wall_ms)
        self.contained.run("retention", lambda: self._forget(wall_ms))
        self.contained.now_failing("desired", self.hub.broken)
        self.contained.keep(self._is_there)

    def _contain(self, item: str, events: Iterable[Event], actor: str = "", *, pause: bool = True) -> None:
        wall_ms = self.clock.wall_ms()
        self.contained.run(item, lambda: self.journal.record(events, wall_ms, actor), pause=pause)

    def _run_due(self, wall_ms: int) -> None:
        for id in self.schedules.due(wall_ms):
            self.contained.run(f"schedule {id}", partial(self._run_schedule, id, wall_ms))
        self.contained.now_failing("cron", self.schedules.broken)

    def _is_there(self, item: str) -> bool:
        """Whether what failed is about a machine or schedule that still is."""
        about, _, name = item.partition(" ")
        return not name or name in (self.state.schedules if about in ("schedule", "cron") else self.state.nodes)

    def _run_schedule(self, id: str, wall_ms: int) -> None:
        self.journal.record(due_events(self.state, self.state.schedules[id], wall_ms), wall_ms, f"schedule/{id}")

    def _forget(self, wall_ms: int) -> None:
        forgotten = self._long_over(wall_ms)
        if forgotten:
            self.journal.record([JobsForgotten(forgotten)], wall_ms)

    def closing_sums(self) -> tuple[DailySum, ...]:
        """Days that are over and not yet closed, as sums to be kept before `close_days`."""
        wall_ms = self.clock.wall_ms()
        today = day_of(wall_ms)
        if day_of(self.state.meter.at_ms) >= today and all(day >= today for day in self.state.meter.open_days):
            return ()
        return tuple(
            DailySum(day, *key, amount)
            for day, sums in counted_up_to(self.state, wall_ms).open_days.items()
            if day < today
            for key, amount in sums.items()
        )

    def close_days(self, sums: Sequence[DailySum]) -> None:
        """These sums are kept: their days are closed."""
        closed: list[Event] = [DayClosed(day) for day in sorted({one.day for one in sums})]
        self.journal.record(closed, self.clock.wall_ms())

    def take(self) -> Batch:
        """What has piled up. Its messages may go out once its entries are written."""
        messages = self.hub.due()
        snapshot = self._snapshot() if self.journal.pending and self.journal.wants_snapshot else None
        return Batch(tuple(self.journal.take_pending()), messages, self.state.seq, snapshot)

    def _snapshot(self) -> StoredSnapshot | None:
        """The state to be saved; None where it cannot be written, and the log alone has to do."""
        made: list[StoredSnapshot] = []
        self.contained.run("snapshot", lambda: made.append(self.journal.snapshot()))
        return made[0] if made else None

    def published(self, batch: Batch) -> None:
        """Its entries are durable, and its messages sent."""
        self.journal.durable_seq = batch.seq
        self.hub.sent(batch.messages)

    def _long_over(self, wall_ms: int) -> tuple[str, ...]:
        finished, jobs = self.state.finished, self.state.jobs
        surplus = max(len(finished) - MAX_FINISHED_KEPT, 0)
        old = [
            id
            for position, id in enumerate(finished[:FORGET_AT_ONCE])
            if position < surplus or (id in jobs and jobs[id].ended_at_ms < wall_ms - KEPT_FINISHED_MS)
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
