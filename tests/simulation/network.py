"""The streams between agents and the manager: in order, late, and broken at any time.

Each message is really encoded and decoded. While a direction is cut, what is sent waits on the way, as it does in a
real network; it arrives late, or is lost with its stream. The manager may learn long after the agent that a stream is
broken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gpuyard.platform.simulated import Chance, Timeline
from gpuyard.wire.agents import AgentMessage, ManagerMessage, decode_agent, decode_manager, encode

if TYPE_CHECKING:
    from tests.simulation.machine import Agent, Machine
    from tests.simulation.world import Cluster

USUAL_DELAY_MS: Final = 30
SLOW_DELAY_MS: Final = 3_000
HALF_OPEN_MS: Final = 30_000


class Cut:
    """What is cut of the line to one machine."""

    def __init__(self) -> None:
        self.up = False
        self.down = False
        self.slow = False

    @property
    def any(self) -> bool:
        return self.up or self.down


class Pipe:
    """One direction of one stream."""

    def __init__(self, timeline: Timeline, chance: Chance, cut: Callable[[], tuple[bool, bool]]) -> None:
        self._timeline = timeline
        self._chance = chance
        self._cut = cut
        self._last_ms = 0
        self._waiting: list[bytes] = []
        self.closed = False
        self.deliver: Callable[[bytes], None] = lambda _: None

    def send(self, message: AgentMessage | ManagerMessage) -> None:
        if self.closed:
            return
        data = encode(message)
        _, slow = self._cut()
        delay_ms = self._chance.skewed(0, SLOW_DELAY_MS if slow else USUAL_DELAY_MS)
        self._last_ms = max(self._last_ms, self._timeline.now_ms + delay_ms)
        self._timeline.after(self._last_ms - self._timeline.now_ms, lambda: self._arrive(data))

    def _arrive(self, data: bytes) -> None:
        if self.closed:
            return
        self._waiting.append(data)
        self.flow()

    def flow(self) -> None:
        """Hand over what has arrived, unless the line is cut."""
        while self._waiting and not self.closed and not self._cut()[0]:
            self.deliver(self._waiting.pop(0))


class Session:
    """One life of a stream."""

    def __init__(self, network: Network, agent: Agent, number: int) -> None:
        self.network = network
        self.agent = agent
        self.number = number
        self.node = agent.machine.name
        cut = network.cuts[self.node]
        self.up = Pipe(network.timeline, network.chance, lambda: (cut.up, cut.slow))
        self.down = Pipe(network.timeline, network.chance, lambda: (cut.down, cut.slow))
        self.up.deliver = lambda data: network.cluster.manager.hears(self, decode_agent(data))
        self.down.deliver = lambda data: agent.hears(self, decode_manager(data))
        self.broken = False
        self.fingerprint = ""

    def breaks(self) -> None:
        """Both ends learn of it, the manager perhaps much later. What is on the way down is lost."""
        if self.broken:
            return
        self.broken = self.down.closed = True
        network = self.network
        # What the agent has already said may still come through, after its next stream has begun.
        self.up.closed = network.chance.happens(700)
        network.sessions.remove(self)
        network.timeline.after(network.chance.skewed(0, 200), lambda: self.agent.ended(self))
        late_ms = network.chance.skewed(0, HALF_OPEN_MS)
        network.timeline.after(late_ms, self._manager_learns)

    def _manager_learns(self) -> None:
        self.up.closed = True
        self.network.cluster.manager.session_over(self)


class Network:
    """All streams."""

    def __init__(self, cluster: Cluster, chance: Chance) -> None:
        self.cluster = cluster
        self.timeline = cluster.timeline
        self.chance = chance
        self.cuts: dict[str, Cut] = {}
        self.sessions: list[Session] = []
        self._count = 0

    def connect(self, agent: Agent) -> Session | None:
        """A new stream, if the manager can be reached."""
        if self.cuts[agent.machine.name].any or not self.cluster.manager.listens:
            return None
        self._count += 1
        session = Session(self, agent, self._count)
        self.sessions.append(session)
        return session

    def of(self, machine: Machine) -> list[Session]:
        return [session for session in self.sessions if session.agent.machine is machine]

    def heal(self, machine: Machine) -> None:
        cut = self.cuts[machine.name]
        cut.up = cut.down = cut.slow = False
        for session in self.of(machine):
            session.up.flow()
            session.down.flow()
