"""A manager, an agent's core and a machine in virtual time, with a network that loses, repeats and reorders."""

from __future__ import annotations

import msgspec

from gpuyard.agent.core import Core, Identity
from gpuyard.wire.agents import (
    Assignment,
    AttemptId,
    AttemptReport,
    Desired,
    Ending,
    Hello,
    MachineFacts,
    Phase,
    Report,
    Stop,
    Welcome,
)

LEASE_MS = 6_000
GRACE_MS = 500
LIVING = (Phase.STARTING, Phase.RUNNING, Phase.STOPPING)


def an_assignment(id: AttemptId) -> Assignment:
    return Assignment(id, job_name=id.job, team="t", user="u", command=("true",), grace_ms=GRACE_MS)


class MadeUpRuntime:
    """Tasks without processes. What it knows survives the agent, as folders do."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.deadline_ms = 0
        self.known: dict[AttemptId, AttemptReport] = {}
        self.forgotten: dict[AttemptId, AttemptReport] = {}
        self.starts: list[AttemptId] = []

    def start(self, assignment: Assignment) -> None:
        if self._was_known(assignment.id):
            return
        assert self.now_ms < self.deadline_ms, "nothing starts without a lease"
        self.starts.append(assignment.id)
        self.known[assignment.id] = AttemptReport(assignment.id, Phase.RUNNING, started_at_ms=self.now_ms)

    def stop(self, id: AttemptId, stop: Stop) -> None:
        if not self._was_known(id):
            self.known[id] = AttemptReport(id, Phase.ENDED, ending=Ending.STOPPED)
        elif self.known[id].phase is not Phase.ENDED:
            self._become(id, Phase.STOPPING, None)

    def attempts(self) -> tuple[AttemptReport, ...]:
        return tuple(self.known[id] for id in sorted(self.known))

    def forget(self, id: AttemptId) -> None:
        assert self.known[id].phase is Phase.ENDED
        self.forgotten[id] = self.known.pop(id)

    def renew(self, deadline_ms: int, lease_ms: int) -> None:
        assert deadline_ms >= self.deadline_ms, "a lease is never shortened"
        self.deadline_ms = deadline_ms

    def _was_known(self, id: AttemptId) -> bool:
        if id in self.forgotten:
            self.known[id] = self.forgotten.pop(id)
        return id in self.known

    def _become(self, id: AttemptId, phase: Phase, ending: Ending | None) -> None:
        self.known[id] = msgspec.structs.replace(self.known[id], phase=phase, ending=ending)

    def living(self) -> list[AttemptId]:
        return [id for id, report in self.known.items() if report.phase in LIVING]

    def end(self, id: AttemptId, ending: Ending = Ending.EXITED) -> None:
        self._become(id, Phase.ENDED, ending)

    def pass_time(self, now_ms: int) -> None:
        self.now_ms = now_ms
        for id in self.living():
            if now_ms >= self.deadline_ms:
                self.end(id, Ending.LEASE_EXPIRED)
            elif self.known[id].phase is Phase.STOPPING:
                self.end(id, Ending.STOPPED)


class MadeUpManager:
    """Wants one attempt of each task at a time; starts the next after an ending, or when the lease must be over."""

    def __init__(self) -> None:
        self.wanted: dict[AttemptId, Assignment] = {}
        self.recorded: set[AttemptId] = set()
        self.session = 0
        self.echo_ms = 0
        self.lease_over_ms = 0

    def submit(self) -> None:
        id = AttemptId(f"job-{len(self.recorded) + len(self.wanted)}", 0, 1)
        self.wanted[id] = an_assignment(id)

    def stop_one(self) -> None:
        for id, assignment in self.wanted.items():
            self.wanted[id] = msgspec.structs.replace(assignment, stop=Stop("asked to", "Cancelled", GRACE_MS))
            return

    def hear(self, session: int, message: Hello | Report, now_ms: int) -> None:
        if isinstance(message, Hello):
            self.session, self.echo_ms = session, 0
        elif session == self.session:
            self._hear_report(message, now_ms)

    def _hear_report(self, report: Report, now_ms: int) -> None:
        if report.sent_ms < self.echo_ms:
            return
        self.echo_ms = report.sent_ms
        self.lease_over_ms = now_ms + LEASE_MS
        for attempt in report.attempts:
            if attempt.phase is Phase.ENDED and attempt.id not in self.recorded:
                self.recorded.add(attempt.id)
                if self.wanted.pop(attempt.id, None) is not None:
                    self._want_next(attempt.id)

    def give_up_on_machine(self, now_ms: int) -> None:
        if now_ms <= self.lease_over_ms + GRACE_MS:
            return
        for id in tuple(self.wanted):
            del self.wanted[id]
            self._want_next(id)

    def _want_next(self, id: AttemptId) -> None:
        following = AttemptId(id.job, id.task, id.attempt + 1)
        self.wanted[following] = an_assignment(following)

    def says(self) -> Desired:
        return Desired(self.echo_ms, tuple(self.wanted.values()), tuple(sorted(self.recorded)))


class World:
    """Everything together; every method is something that can happen."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.runtime = MadeUpRuntime()
        self.manager = MadeUpManager()
        self.up: list[tuple[int, Hello | Report]] = []
        self.down: list[tuple[int, Welcome | Desired]] = []
        self.session = 0
        self.boot()

    def boot(self) -> None:
        """The agent's process starts, for the first time or after it was killed."""
        self.core = Core(Identity("n", "i", "b", "0"), self.runtime, MachineFacts())
        self.connect()

    def connect(self) -> None:
        self.session += 1
        self.up.append((self.session, self.core.connected(self.now_ms)))

    def wait(self, how_long_ms: int) -> None:
        self.now_ms += how_long_ms
        self.runtime.pass_time(self.now_ms)

    def report(self) -> None:
        report = self.core.report(self.now_ms)
        if report is not None:
            self.up.append((self.session, report))

    def say(self) -> None:
        self.down.append((self.manager.session, self.manager.says()))

    def carry_up(self, place: int, *, again: bool) -> None:
        if self.up:
            session, message = self.up[place % len(self.up)] if again else self.up.pop(place % len(self.up))
            self.manager.hear(session, message, self.now_ms)
            if isinstance(message, Hello):
                self.down.append((session, Welcome("m", "0", LEASE_MS)))

    def carry_down(self, place: int, *, again: bool) -> None:
        if self.down:
            session, message = self.down[place % len(self.down)] if again else self.down.pop(place % len(self.down))
            if session == self.session:
                self._agent_hears(message)

    def _agent_hears(self, message: Welcome | Desired) -> None:
        if isinstance(message, Welcome):
            self.core.welcomed(message)
        else:
            self.core.wants(message, self.now_ms)

    def lose_up(self) -> None:
        self.up = self.up[1:]

    def lose_down(self) -> None:
        self.down = self.down[1:]

    def end_one(self) -> None:
        for id in self.runtime.living()[:1]:
            self.runtime.end(id)

    def settle(self) -> None:
        """No more faults: a new session, and everything arrives."""
        self.up, self.down = [], []
        self.connect()
        for _ in range(20):
            self.wait(100)
            self.round()

    def round(self) -> None:
        """One in which everything arrives, in order: twice, because a welcome opens the agent's mouth."""
        for _ in range(2):
            self.report()
            while self.up:
                self.carry_up(0, again=False)
            self.say()
            while self.down:
                self.carry_down(0, again=False)
