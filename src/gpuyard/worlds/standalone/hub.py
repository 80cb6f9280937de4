"""The manager's side of all agents: who is heard of, whose lease is over, what each is to be told.

Place in the flow: agent ─Hello, Report─▶ **hub** ─events─▶ journal; state ─**hub**─▶ Desired ─▶ agent. No I/O, no
clock: time is an argument (monotonic: `now_ms` never jumps). Leases are not in the log: after a restart every machine
is taken to have been heard of at the moment of the restart, which errs to the safe side.
Invariant: what ran on a machine is called lost only when it must have ended: lease, the longest grace, and a margin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from gpuyard.errors import RefusedError
from gpuyard.wire.agent_limits import cleaned_hello, cleaned_report
from gpuyard.wire.agents import DEFAULT_LEASE_MS, AttemptId, Desired, Hello, MachineFacts, Report
from gpuyard.worlds.standalone.decide import lost_attempts
from gpuyard.worlds.standalone.desired import assignments
from gpuyard.worlds.standalone.events import Event, LeaseSet, NodeHeard, NodeLost, NodeSilent
from gpuyard.worlds.standalone.node_health import Health
from gpuyard.worlds.standalone.records import State, jobs_on
from gpuyard.worlds.standalone.reports import (
    as_far_as_known,
    of_hello,
    of_orphans,
    of_report,
    problem_of,
    recorded,
    use_of,
)

MARGIN_MS: Final = 5_000
"""Beyond lease and grace, for clocks that run apart and messages on the way."""


class Contact(msgspec.Struct):
    """What is known of one agent, apart from the log."""

    heard_ms: int
    incarnation_ms: int
    """Since when it is this incarnation, as far as we know: of a former one nothing runs some time after."""
    connected: bool = False
    report: Report = Report(0)
    due: bool = False
    """It is to be told something."""
    given: set[AttemptId] = set()
    """Attempts it is told of in this session and has not said to know."""
    telling: Desired | None = None
    """What it is about to be told in this session, once that is durable."""
    told: Desired | None = None
    """What it was told last in this session."""
    use: dict[tuple[str, int], int] = {}
    """(job, task) → per cent its GPUs were used, as last reported."""
    health: Health = msgspec.field(default_factory=Health)
    """What of its word is believed."""


class Hub:
    """All agents."""

    def __init__(self, state: State, now_ms: int, lease_ms: int = DEFAULT_LEASE_MS) -> None:
        self.state = state
        self.lease_ms = lease_ms
        self.began_ms = now_ms
        self.former_lease_ms = state.lease_ms or (DEFAULT_LEASE_MS if state.seq else 0)
        """Managers before this one gave leases of up to this; they count from its start, at the latest."""
        self.broken: dict[str, Exception] = {}
        """Why it cannot be worked out what a machine is to be told."""
        self.contacts: dict[str, Contact] = {name: Contact(now_ms, now_ms) for name in state.nodes}

    def opening(self) -> Iterator[Event]:
        """What must be durable before the first lease is given: that there are longer ones from now on."""
        known_ms = self.former_lease_ms
        if self.lease_ms > known_ms if known_ms else self.lease_ms != DEFAULT_LEASE_MS:
            yield LeaseSet(self.lease_ms)

    # ------------------------------------------------------------------------------------------------- what they say

    def hello(self, hello: Hello, now_ms: int) -> Iterator[Event]:
        """An agent has connected."""
        hello = cleaned_hello(hello)
        contact = self.contacts.setdefault(hello.node, Contact(now_ms, now_ms))
        contact.heard_ms, contact.connected, contact.report = now_ms, True, Report(0)
        contact.given, contact.telling, contact.told, contact.use = set(), None, None, {}
        node = self.state.nodes[hello.node]
        if hello.incarnation != node.incarnation:
            contact.incarnation_ms = now_ms
        contact.health.said(hello.facts, hello.unreadable)
        contact.health.report_problem = ""
        yield from of_hello(self.state, hello, contact.health.believed(self.state, node, now_ms))
        yield from contact.health.settle(self.state, hello.node, now_ms)

    def report(self, name: str, report: Report, now_ms: int, wall_ms: int) -> Iterator[Event]:
        if name not in self.state.nodes:
            return  # It was removed while this was on the way.
        report = as_far_as_known(self.state, name, cleaned_report(report))
        contact = self.contacts.setdefault(name, Contact(now_ms, now_ms))
        contact.heard_ms, contact.report, contact.due = now_ms, report, True
        contact.use = use_of(self.state, name, report)
        if self.state.nodes[name].silent_since_ms is not None:
            yield NodeHeard(name)
        if report.facts is not None or report.unreadable:
            contact.health.said(report.facts or MachineFacts(), report.unreadable)
        contact.health.report_problem = problem_of(report)
        yield from contact.health.settle(self.state, name, now_ms)
        yield from of_report(self.state, name, report, wall_ms)

    def gone(self, name: str) -> None:
        """Its connection is closed; its lease runs on."""
        if name in self.contacts:
            self.contacts[name].connected, self.contacts[name].use = False, {}

    def touch(self, name: str) -> None:
        """Something it must be told has changed."""
        if name in self.contacts:
            self.contacts[name].due = True

    # ------------------------------------------------------------------------------------------------- what they hear

    def due(self) -> dict[str, Desired]:
        """What each agent is to be told now. True of the state as it is, so to be sent once that is durable."""
        told = {}
        for name, contact in self.contacts.items():
            # Before its first report nobody knows what it has.
            if contact.due and contact.connected and contact.report.sent_ms and name in self.state.nodes:
                contact.due = False
                desired = self._desired_or_last(name, contact)
                if desired is not None:
                    contact.telling = told[name] = desired
        return told

    def _desired_or_last(self, name: str, contact: Contact) -> Desired | None:
        """What it is to be told; where that cannot be worked out, what it was told last: its lease goes on."""
        try:
            desired = self._desired(name, contact)
        except Exception as error:
            self.broken[name] = error
            return None if contact.told is None else replace(contact.told, echo_ms=contact.report.sent_ms)
        self.broken.pop(name, None)
        return desired

    def sent(self, messages: Mapping[str, Desired]) -> None:
        """These are durable, and have been sent."""
        for name, message in messages.items():
            contact = self.contacts[name]
            if contact.telling is message:
                contact.told = message

    def renewals(self) -> Iterator[tuple[str, Desired]]:
        """While nothing can be written: to each agent that has reported what it was told before, for a further lease.

        Whoever has connected since was told nothing yet: it may be another agent, with nothing of the former one.
        """
        for name, contact in self.contacts.items():
            if contact.connected and contact.told is not None and contact.report.sent_ms > contact.told.echo_ms:
                contact.told = replace(contact.told, echo_ms=contact.report.sent_ms)
                yield name, contact.told

    def _desired(self, name: str, contact: Contact) -> Desired:
        done: tuple[AttemptId, ...] = recorded(self.state, name, contact.report)
        known = {attempt.id for attempt in contact.report.attempts}
        wanted = assignments(self.state, name, known, contact.given)
        contact.given = {one.id for one in wanted} - known
        return Desired(contact.report.sent_ms, wanted, done)

    # ----------------------------------------------------------------------------------------------------- time passes

    def tick(self, now_ms: int, wall_ms: int) -> Iterator[Event]:
        """Who has not been heard of for too long, and what of theirs must have ended by now."""
        yield from self.tick_leases(now_ms)
        for name in list(self.state.nodes):
            yield from self.tick_node(name, now_ms, wall_ms)

    def tick_leases(self, now_ms: int) -> Iterator[Event]:
        if self.former_lease_ms > self.lease_ms and now_ms - self.began_ms > self.former_lease_ms:
            self.former_lease_ms = self.lease_ms
            yield LeaseSet(self.lease_ms)

    def tick_node(self, name: str, now_ms: int, wall_ms: int) -> Iterator[Event]:
        node = self.state.nodes[name]
        contact = self.contacts.setdefault(name, Contact(now_ms, now_ms))
        if contact.connected and node.silent_since_ms is None:
            yield from contact.health.settle(self.state, name, now_ms)
        if node.seen and node.silent_since_ms is None and now_ms - contact.heard_ms > self.lease_ms:
            yield NodeSilent(name)
        if node.seen and not node.lost and now_ms > self._certain_at_ms(name, contact.heard_ms):
            yield NodeLost(name)
        if self.state.nodes[name].lost:
            yield from lost_attempts(self.state, name, wall_ms)
        elif self.state.placed.get(name) and now_ms > self._certain_at_ms(name, contact.incarnation_ms):
            yield from of_orphans(self.state, name, wall_ms)

    def refuse_while_leased(self, name: str, now_ms: int) -> None:
        """Who declares a machine lost may be wrong about it: before its lease is over, what it was given may run.

        After a restart of the manager that is counted anew, as nobody knows when the machine was last heard of.
        """
        contact = self.contacts.get(name)
        left_ms = self._leased_until_ms(contact.heard_ms) - now_ms if contact is not None else 0
        if name in self.state.nodes and left_ms >= 0:
            seconds = -(-left_ms // 1000)
            raise RefusedError(
                "NodeHeard",
                f'what "{name}" was given may still run there, for another {seconds} s',
                fix="try again then: by that time it has ended by itself, or with its machine",
            )

    def _leased_until_ms(self, heard_ms: int) -> int:
        """When the lease of who was last heard of then is over; what a manager before this one gave counts, too."""
        return max(heard_ms + self.lease_ms, self.began_ms + self.former_lease_ms)

    def _certain_at_ms(self, name: str, heard_ms: int) -> int:
        """From then on nothing of ours runs on a machine that was last heard of at that moment."""
        graces = [job.work.grace_ms for job in jobs_on(self.state, name)]
        return self._leased_until_ms(heard_ms) + max(graces, default=0) + MARGIN_MS
