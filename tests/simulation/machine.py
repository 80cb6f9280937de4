"""A machine without hardware: its clock, its homes with attempts and supervisors, and its agent process.

The agent's heart is the production `agent.core.Core`; `Home` is its `Runtime`. A supervisor outlives the agent and
follows the lease rule of agent/supervisor: notice, then the end of the task before the lease of its home is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuyard.agent.core import Core, Identity
from gpuyard.model.nodes import Device
from gpuyard.platform.simulated import Act, DriftingClock, Timer
from gpuyard.wire.agents import (
    Assignment,
    AttemptId,
    AttemptReport,
    Desired,
    Ending,
    MachineFacts,
    ManagerMessage,
    Phase,
    Refused,
    Stop,
    Welcome,
)

if TYPE_CHECKING:
    from tests.simulation.network import Session
    from tests.simulation.world import Cluster

POLL_MS: Final = 1_000
KILL_MARGIN_MS: Final = 2_000
SILENCE_MS: Final = 20_000
"""A manager that says nothing for so long is gone, for the agent."""
FIRST_PAUSE_MS: Final = 100
LONGEST_PAUSE_MS: Final = 5_000
GUARD_MS: Final = 1_000
"""Whoever kills a supervisor kills its task too, but not at the same instant."""
LONG_TASK_MS: Final = 60_000
VERY_LONG_TASK_MS: Final = 200_000


class Attempt:
    """One attempt and its supervisor."""

    def __init__(self, home: Home, assignment: Assignment) -> None:
        self.home = home
        self.assignment = assignment
        self.id = assignment.id
        self.report = AttemptReport(self.id, Phase.STARTING)
        self.over = False
        """Its process is gone."""
        self.supervised = True
        self._cause: tuple[Ending, str] | None = None
        self._kill: Timer | None = None
        self._checkpoints = home.cluster.chance.tasks.happens(300)

    # ----------------------------------------------------------------------------------------------------- its life

    def begin(self) -> None:
        machine, chance = self.home.machine, self.home.cluster.chance.tasks
        self.home.cluster.truth.began(self.id, machine, self.assignment.shares)
        machine.later(chance.skewed(5, 800), self._up)
        self._watch_lease()

    def _up(self) -> None:
        if self.over or not self.supervised:
            return
        machine, chance = self.home.machine, self.home.cluster.chance.tasks
        if chance.happens(15):
            self._end(Ending.NOT_STARTED, None, "no such command")
            return
        if self._cause is None:
            self.report = replace(self.report, phase=Phase.RUNNING)
        self.report = replace(self.report, started_at_ms=machine.clock.wall_ms(), pid=1, gpu_percent=self._use())
        machine.knock(self.home)
        code = 0 if chance.happens(850) else chance.between(1, 3)
        ending = Ending.OUT_OF_MEMORY if code == 3 else Ending.EXITED
        longest_ms = VERY_LONG_TASK_MS if chance.happens(60) else LONG_TASK_MS
        machine.later(chance.skewed(200, longest_ms), lambda: self._end_by_itself(ending, code))
        if self.assignment.run_limit_ms:
            machine.later(machine.clock.true_ms(self.assignment.run_limit_ms), self._out_of_time)

    def _use(self) -> int | None:
        return self.home.cluster.chance.tasks.pick((None, 0, 0, 90))

    def _end_by_itself(self, ending: Ending, code: int) -> None:
        if self._cause is None and self.supervised:
            self._end(ending, code, "")

    def _out_of_time(self) -> None:
        self.notice(Ending.RUN_LIMIT, self.assignment.grace_ms, "it ran for as long as it may")

    def notice(self, ending: Ending, kill_ms: int, message: str) -> None:
        """It must end within `kill_ms` of the machine's clock; the first cause is the one that is told."""
        if self.over or not self.supervised:
            return
        if self._cause is None:
            self._cause = (ending, message)
            self._save_work()
            self.report = replace(self.report, phase=Phase.STOPPING)
            self.home.machine.knock(self.home)
        chance = self.home.cluster.chance.tasks
        react_ms = kill_ms if chance.happens(200) else chance.skewed(0, kill_ms)
        self.home.machine.later(self.home.machine.clock.true_ms(react_ms), self._give_in)

    def _save_work(self) -> None:
        if self._checkpoints and self.report.started_at_ms:
            self.report = replace(self.report, checkpoint_at_ms=self.home.machine.clock.wall_ms())

    def _give_in(self) -> None:
        if self._cause is not None and self.supervised:
            ending, message = self._cause
            self._end(ending, None, message)

    def _end(self, ending: Ending, code: int | None, message: str) -> None:
        if self.over:
            return
        self._gone()
        self.report = replace(
            self.report,
            phase=Phase.ENDED,
            ending=ending,
            exit_code=code,
            message=message,
            ended_at_ms=self.home.machine.clock.wall_ms(),
            gpu_percent=None,
        )
        self.home.machine.knock(self.home)

    def _gone(self) -> None:
        self.over = True
        self.home.cluster.truth.ended(self.id)

    # ---------------------------------------------------------------------------------------------------- its lease

    def _watch_lease(self) -> None:
        """Look when notice is due, again and again as the lease is renewed."""
        if self.over:
            return
        clock, home = self.home.machine.clock, self.home
        now_ms = clock.steady_ms()
        last_ms = home.deadline_ms - min(KILL_MARGIN_MS, home.lease_ms // 10)
        notice_ms = home.deadline_ms - min(self.assignment.grace_ms, home.lease_ms // 4)
        if now_ms >= last_ms:
            self._cause = self._cause or (Ending.LEASE_EXPIRED, "the lease was over")
            self._give_in()
            return
        if now_ms >= notice_ms:
            self.notice(Ending.LEASE_EXPIRED, last_ms - now_ms, "the manager was not heard of for too long")
        next_ms = last_ms if now_ms >= notice_ms else notice_ms
        home.machine.later(clock.true_ms(next_ms - now_ms), self._watch_lease)

    # ------------------------------------------------------------------------------------------------------- faults

    def supervisor_killed(self) -> None:
        """The guard ends the task; that it is lost is seen when the agent looks."""
        self.supervised = False
        self.home.machine.later(self.home.cluster.chance.tasks.between(0, GUARD_MS), self._guarded)

    def _guarded(self) -> None:
        self._end(Ending.LOST, None, "its supervisor is gone")

    def power_lost(self) -> None:
        if not self.over:
            self._gone()
            self.report = replace(self.report, phase=Phase.ENDED, ending=Ending.LOST, message="the machine restarted")


class Home:
    """The folders of one agent: what it has ever started, and the lease of all of it. A `Runtime`."""

    def __init__(self, cluster: Cluster, machine: Machine, incarnation: str) -> None:
        self.cluster = cluster
        self.machine = machine
        self.incarnation = incarnation
        self.known: dict[AttemptId, Attempt] = {}
        self.kept: dict[AttemptId, Attempt] = {}
        self.deadline_ms = 0
        self.lease_ms = 0

    def start(self, assignment: Assignment) -> None:
        if self._is_known(assignment.id):
            return
        attempt = Attempt(self, assignment)
        self.known[assignment.id] = attempt
        self.cluster.story.tell(self.machine.name, f"starts {assignment.id}")
        attempt.begin()

    def stop(self, id: AttemptId, stop: Stop) -> None:
        if self._is_known(id):
            self.known[id].notice(Ending.STOPPED, stop.grace_ms, stop.why)
            return
        never = Attempt(self, Assignment(id, "", "", "", ()))
        never.over = True
        never.report = AttemptReport(id, Phase.ENDED, ending=Ending.STOPPED, message="never started")
        self.known[id] = never

    def _is_known(self, id: AttemptId) -> bool:
        if id in self.kept:
            self.known[id] = self.kept.pop(id)
        return id in self.known

    def attempts(self) -> tuple[AttemptReport, ...]:
        return tuple(self.known[id].report for id in sorted(self.known))

    def forget(self, id: AttemptId) -> None:
        self.kept[id] = self.known.pop(id)

    def renew(self, deadline_ms: int, lease_ms: int) -> None:
        self.deadline_ms, self.lease_ms = deadline_ms, lease_ms

    def living(self) -> list[Attempt]:
        return [attempt for attempt in self.known.values() if not attempt.over]


class Agent:
    """One process of the agent, from its start until it is killed."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        home = machine.home
        identity = Identity(machine.name, home.incarnation, f"boot-{machine.boots}", "0")
        self.core = Core(identity, home, machine.facts)
        self.session: Session | None = None
        self.alive = True
        self.paused_until_ms = 0
        self._pause_ms = FIRST_PAUSE_MS
        self._heard_ms = 0
        self._later(0, self._connect)
        self._later(POLL_MS, self._poll)

    def _later(self, delay_ms: int, act: Act) -> None:
        self.machine.cluster.timeline.after(delay_ms, lambda: self._unless_paused(act))

    def _unless_paused(self, act: Act) -> None:
        left_ms = self.paused_until_ms - self.machine.cluster.timeline.now_ms
        if not self.alive:
            return
        if left_ms > 0:
            self._later(left_ms, act)
        else:
            act()

    # ---------------------------------------------------------------------------------------------------- its session

    def _connect(self) -> None:
        self.session = self.machine.cluster.network.connect(self)
        if self.session is None:
            self._come_back()
            return
        self._heard_ms = self.machine.clock.steady_ms()
        self.session.up.send(self.core.connected(self.machine.clock.steady_ms()))

    def _come_back(self) -> None:
        chance = self.machine.cluster.chance.network
        pause_ms, self._pause_ms = self._pause_ms, min(2 * self._pause_ms, LONGEST_PAUSE_MS)
        self._later(chance.between(pause_ms // 2, pause_ms), self._connect)

    def ended(self, session: Session) -> None:
        """Its stream is broken, as far as this side can see."""
        if self.session is session:
            self.session = None
            self.core.disconnected()
            self._come_back()

    def hears(self, session: Session, message: ManagerMessage) -> None:
        self._later(0, lambda: self._hears(session, message))

    def _hears(self, session: Session, message: ManagerMessage) -> None:
        if self.session is not session:
            return
        self._heard_ms = self.machine.clock.steady_ms()
        match message:
            case Welcome():
                self._pause_ms = FIRST_PAUSE_MS
                self.core.welcomed(message)
            case Desired():
                self.core.wants(message, self.machine.clock.steady_ms())
            case Refused():
                session.breaks()
        self._speak()

    def _poll(self) -> None:
        self._later(self.machine.clock.true_ms(POLL_MS), self._poll)
        if self.session is not None and self.machine.clock.steady_ms() - self._heard_ms > SILENCE_MS:
            self.session.breaks()
        self._speak()

    def knocked(self) -> None:
        self._later(self.machine.cluster.chance.network.skewed(1, 300), self._speak)

    def _speak(self) -> None:
        report = self.core.report(self.machine.clock.steady_ms())
        if report is not None and self.session is not None:
            self.session.up.send(report)

    def killed(self) -> None:
        self.alive = False
        if self.session is not None:
            self.session.breaks()


class Machine:
    """One machine. `home` is the newest one; the supervisors of former ones may still run."""

    def __init__(self, cluster: Cluster, name: str, clock: DriftingClock, facts: MachineFacts) -> None:
        self.cluster = cluster
        self.name = name
        self.clock = clock
        self.facts = facts
        self.boots = 1
        self.powered = True
        self.homes = 0
        self.former: list[Home] = []
        self.agent: Agent | None = None
        self.home = self._new_home()

    def _new_home(self) -> Home:
        self.homes += 1
        return Home(self.cluster, self, f"{self.name}-home-{self.homes}")

    def later(self, delay_ms: int, act: Callable[[], None]) -> None:
        """In true time, unless the machine loses its power before."""
        boots = self.boots
        self.cluster.timeline.after(delay_ms, lambda: act() if self.boots == boots else None)

    def knock(self, home: Home) -> None:
        """A supervisor has news for its agent."""
        if self.agent is not None and home is self.home:
            self.agent.knocked()

    def start_agent(self) -> None:
        if self.powered and self.agent is None:
            self.cluster.story.tell(self.name, "agent starts")
            self.agent = Agent(self)

    # -------------------------------------------------------------------------------------------------------- faults

    def kill_agent(self, back_after_ms: int) -> None:
        if self.agent is not None:
            self.agent.killed()
            self.agent = None
            self.later(back_after_ms, self.start_agent)

    def wipe_home(self, back_after_ms: int) -> None:
        """The agent is set up anew; what its supervisors run goes on until their lease ends."""
        self.kill_agent(back_after_ms)
        self.former.append(self.home)
        self.home = self._new_home()

    def lose_power(self, back_after_ms: int) -> None:
        if not self.powered:
            return
        self.powered = False
        if self.agent is not None:
            self.agent.killed()
            self.agent = None
        self.boots += 1
        for home in (*self.former, self.home):
            for attempt in home.living():
                attempt.power_lost()
        self.later(back_after_ms, self._boot)

    def _boot(self) -> None:
        self.powered = True
        self.clock.restart(self.cluster.chance.faults.between(1_000, 30_000))
        self.start_agent()

    def gpu_health(self, device: int, *, healthy: bool) -> None:
        def changed(position: int, one: Device) -> Device:
            return replace(one, healthy=healthy) if position == device else one

        devices = tuple(changed(position, one) for position, one in enumerate(self.facts.devices))
        self.facts = replace(self.facts, devices=devices)
        if self.agent is not None:
            self.agent.core.changed(self.facts)
