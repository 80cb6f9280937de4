"""The heart of an agent: what it does about what it hears. No clock, no network, no processes of its own.

Place in the flow: manager ─Desired─▶ **core** ─start, stop, forget, renew─▶ Runtime ─attempts─▶ **core** ─Report─▶
manager. Time is an argument, everything that acts is a `Runtime`, so a simulator can put a made-up one underneath.

Invariants, whatever is lost, late or said twice: an attempt that the runtime has ever known is not started again; no
two attempts of one task run at once; nothing starts beside what the manager has given up; nothing starts without a
lease; a lease ends at this machine before the manager believes it over, because it counts from a stamp that was taken
before the manager heard of it.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from gpuyard.wire.agents import (
    DEFAULT_GRACE_MS,
    DEFAULT_LEASE_MS,
    Assignment,
    AttemptId,
    AttemptReport,
    Desired,
    Hello,
    MachineFacts,
    Phase,
    Report,
    Stop,
    Welcome,
)

REPORT_EVERY_MS: Final = 5_000
REPORTS_PER_LEASE: Final = 6
"""So many reports may be lost in a row, about, before a lease runs out."""
MIN_LEASE_PARTS: Final = 4
"""Nothing is started with less than a fourth of a lease left: it would be given notice at once."""

NOTHING_NEW: Final = -1

NOT_WANTED: Final = Stop("the manager does not know it, or no longer wants it", "NotWanted", DEFAULT_GRACE_MS)


class Runtime(Protocol):
    """What runs tasks on a machine. Every call is idempotent, and none waits for a task."""

    def start(self, assignment: Assignment) -> None:
        """Start it, unless it was ever known here: then its report is shown (again) instead, and nothing starts."""

    def stop(self, id: AttemptId, stop: Stop) -> None:
        """Have it end. One that was never started here never will be, and is reported as stopped."""

    def attempts(self) -> tuple[AttemptReport, ...]:
        """All that is known and not forgotten, sorted by id."""

    def forget(self, id: AttemptId) -> None:
        """Do not report this ended attempt any longer; it is still never started again."""

    def renew(self, deadline_ms: int, lease_ms: int) -> None:
        """Everything may run until then; a runtime ends by itself what is not renewed in time."""


class Identity(msgspec.Struct, frozen=True):
    """Who this agent is."""

    node: str
    incarnation: str
    boot_id: str
    version: str


class Core:
    """One agent. A session is one life of the stream; what was heard in an earlier one no longer counts."""

    def __init__(self, identity: Identity, runtime: Runtime, facts: MachineFacts) -> None:
        self._identity = identity
        self._runtime = runtime
        self._facts = facts
        self._facts_sent_ms: int | None = NOTHING_NEW
        """When the newest facts were first sent; None: not yet. They are sent until that stamp comes back."""
        self.lease_ms = DEFAULT_LEASE_MS
        self.deadline_ms = 0
        """Until when what runs may run; 0: no lease was ever given."""
        self._welcomed = False
        self._began_ms = 0
        self._newest_echo_ms = 0
        self._desired: Desired | None = None
        self._sent_ms = 0
        self._reported: tuple[AttemptReport, ...] | None = None

    # ------------------------------------------------------------------------------------------------------ sessions

    def connected(self, now_ms: int) -> Hello:
        """A new session: the first thing to say."""
        self.disconnected()
        self._began_ms = self._sent_ms = now_ms
        return Hello(
            node=self._identity.node,
            incarnation=self._identity.incarnation,
            boot_id=self._identity.boot_id,
            version=self._identity.version,
            facts=self._facts,
        )

    def disconnected(self) -> None:
        """What runs goes on under its lease; nothing new starts until the manager is heard again."""
        self._welcomed = False
        self._desired = None
        self._newest_echo_ms = 0
        self._reported = None
        self._facts_sent_ms = NOTHING_NEW  # They are in the hello.

    def welcomed(self, welcome: Welcome) -> None:
        self.lease_ms = welcome.lease_ms
        self._welcomed = True

    # ------------------------------------------------------------------------------------------------------- hearing

    def wants(self, desired: Desired, now_ms: int) -> None:
        """The manager says what should run."""
        if not self._welcomed or desired.echo_ms < self._newest_echo_ms:
            return  # Overtaken by a newer one on the way.
        if desired.echo_ms and not self._is_of_this_session(desired.echo_ms):
            return  # An answer to a former session, perhaps from before a restart of the machine.
        self._newest_echo_ms = desired.echo_ms
        if self._facts_sent_ms is not None and desired.echo_ms >= self._facts_sent_ms:
            self._facts_sent_ms = NOTHING_NEW
        self._desired = desired
        self._renew(desired.echo_ms)
        self.tend(now_ms)

    def _is_of_this_session(self, echo_ms: int) -> bool:
        return self._began_ms <= echo_ms <= self._sent_ms

    def _renew(self, echo_ms: int) -> None:
        """Only a stamp of this session counts: an older one may be from before a restart of the machine."""
        deadline_ms = echo_ms + self.lease_ms
        if self._is_of_this_session(echo_ms) and deadline_ms > self.deadline_ms:
            self.deadline_ms = deadline_ms
            self._runtime.renew(deadline_ms, self.lease_ms)

    def tend(self, now_ms: int) -> None:
        """Bring what runs closer to what was last wanted."""
        if self._desired is None:
            return
        known = {report.id: report for report in self._runtime.attempts()}
        wanted = {assignment.id: assignment for assignment in self._desired.assignments}
        recorded = set(self._desired.recorded)
        for id in recorded & known.keys():
            if known[id].phase is Phase.ENDED:
                self._runtime.forget(id)
        for id, report in known.items():
            if report.phase is not Phase.ENDED:
                self._stop_if_asked(id, wanted.get(id))
        # What the manager does not know of is not in its books either: a place there is free only once that has ended.
        crowded = any(report.phase is not Phase.ENDED for id, report in known.items() if id not in wanted)
        for id in sorted(wanted.keys() - known.keys() - recorded):
            if wanted[id].stop is not None or not crowded:
                self._begin(wanted[id], known, now_ms)

    def expects(self, id: AttemptId) -> bool:
        """Whether it should run here; it may not have begun, as while it waits for what its job brings along."""
        return self._desired is not None and any(one.id == id for one in self._desired.assignments)

    def _stop_if_asked(self, id: AttemptId, assignment: Assignment | None) -> None:
        if assignment is None:
            self._runtime.stop(id, NOT_WANTED)
        elif assignment.stop is not None:
            self._runtime.stop(id, assignment.stop)

    def _begin(self, assignment: Assignment, known: dict[AttemptId, AttemptReport], now_ms: int) -> None:
        if assignment.stop is not None:
            self._runtime.stop(assignment.id, assignment.stop)
        elif self._may_start(assignment.id, known, now_ms):
            self._runtime.start(assignment)

    def _may_start(self, id: AttemptId, known: dict[AttemptId, AttemptReport], now_ms: int) -> bool:
        if self.deadline_ms - now_ms < self.lease_ms // MIN_LEASE_PARTS:
            return False
        others = (report for report in known.values() if (report.id.job, report.id.task) == (id.job, id.task))
        return all(other.phase is Phase.ENDED and other.id.attempt < id.attempt for other in others)

    # ----------------------------------------------------------------------------------------------------- reporting

    def changed(self, facts: MachineFacts) -> None:
        """The machine itself has changed: a GPU fell ill, memory was added."""
        if facts != self._facts:
            self._facts, self._facts_sent_ms = facts, None

    def report(self, now_ms: int) -> Report | None:
        """What to say now; None while there is neither news nor need. Call it after every event and now and then."""
        if not self._welcomed:
            return None
        self.tend(now_ms)
        attempts = self._runtime.attempts()
        if not self._is_due(attempts, now_ms):
            return None
        self._sent_ms, self._reported = now_ms, attempts
        return Report(sent_ms=now_ms, attempts=attempts, facts=self._unheard_facts(now_ms))

    def _unheard_facts(self, now_ms: int) -> MachineFacts | None:
        if self._facts_sent_ms is None:
            self._facts_sent_ms = now_ms
        return None if self._facts_sent_ms == NOTHING_NEW else self._facts

    def _is_due(self, attempts: tuple[AttemptReport, ...], now_ms: int) -> bool:
        if self._reported is not None and now_ms <= self._sent_ms:
            return False  # A stamp names one report only, so that its echo says what has arrived.
        if self._reported is None or self._facts_sent_ms is None or now_ms >= self._sent_ms + self.report_every_ms:
            return True
        return _essence(attempts) != _essence(self._reported)

    @property
    def report_every_ms(self) -> int:
        return min(REPORT_EVERY_MS, self.lease_ms // REPORTS_PER_LEASE)


def _essence(attempts: tuple[AttemptReport, ...]) -> tuple[tuple[AttemptId, Phase, int], ...]:
    """What is worth a report of its own: measured use is not."""
    return tuple((report.id, report.phase, report.checkpoint_at_ms) for report in attempts)
