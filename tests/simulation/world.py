"""A cluster in virtual time: one manager, two to five machines, the lines between them, people and faults.

What decides is the production code: the manager's `service.core.Core` on a `MemoryStore`, the agents' `agent.core.Core`
on made-up homes. What is made up is only when things happen and what goes wrong, and all of it is drawn from one seed.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from gpuyard.model.nodes import Device
from gpuyard.platform.simulated import MAX_DRIFT_PPM, Chance, DriftingClock, Timeline
from gpuyard.policies.policy import Consolidation, ConsolidationMode, Policy, Step
from gpuyard.wire.agents import MachineFacts
from gpuyard.worlds.standalone.lifecycle import OVER
from tests.simulation.faults import LEASES_MS, Faults
from tests.simulation.invariants import Invariants, Truth
from tests.simulation.machine import Machine
from tests.simulation.manager import SimulatedManager
from tests.simulation.network import Cut, Network
from tests.simulation.story import Story
from tests.simulation.workload import Workload

STEPS: Final = 130
BEGIN_MS: Final = 1_700_006_220_000
"""Shortly before midnight, so that a day ends in every simulation."""
QUIET_STEP_MS: Final = 10_000
QUIET_MS: Final = 2 * 3_600_000
"""By then everything must be over, or wait for a reason."""
SETTLED_MS: Final = 60_000
SEARCH_STEPS: Final = 300
MODES: Final = (
    (ConsolidationMode.OFF, 6),
    (ConsolidationMode.ON_DEMAND, 3),
    (ConsolidationMode.KEEP_NODES_FREE, 1),
)
STILL_MS: Final = 330_000
"""Longer than any machine is off: what waits for one is not yet at its end."""


class Chances(msgspec.Struct, frozen=True):
    """One source per concern, so that a change in one does not shift all others."""

    world: Chance
    faults: Chance
    workload: Chance
    network: Chance
    tasks: Chance
    manager: Chance
    checks: Chance


class Cluster:
    """Everything together."""

    def __init__(self, seed: int, *, aloud: bool = False) -> None:
        self.seed = seed
        self.timeline = Timeline()
        self.chance = Chances(*(Chance(seed, concern) for concern in Chances.__struct_fields__))
        self.story = Story(self.timeline, aloud=aloud)
        self.truth = Truth()
        self.invariants = Invariants(self)
        self.network = Network(self, self.chance.network)
        self.faults = Faults(self, self.chance.faults)
        self.workload = Workload(self, self.chance.workload)
        chance = self.chance.world
        lease_ms = chance.pick(LEASES_MS)
        self.manager = SimulatedManager(self, self._clock(), _policy(chance), lease_ms)
        self.machines = {f"n{number}": self._machine(f"n{number}") for number in range(chance.between(2, 5))}
        self.story.tell("world", f"seed {seed}: {len(self.machines)} machines, lease {lease_ms} ms")

    def _clock(self) -> DriftingClock:
        chance = self.chance.world
        drift_ppm = chance.between(-MAX_DRIFT_PPM, MAX_DRIFT_PPM)
        return DriftingClock(self.timeline, drift_ppm, BEGIN_MS + chance.between(0, 400), chance.between(0, 10**9))

    def _machine(self, name: str) -> Machine:
        chance = self.chance.world
        memory_mib = chance.pick((16_000, 16_000, 24_000))
        devices = tuple(Device(memory_mib=memory_mib, id=f"{name}-{gpu}") for gpu in range(chance.between(1, 4)))
        self.network.cuts[name] = Cut()
        return Machine(self, name, self._clock(), MachineFacts(devices, cpu_milli=16_000, memory_bytes=1 << 36))

    # --------------------------------------------------------------------------------------------------- one whole life

    def run(self, steps: int = STEPS) -> None:
        """Set up, let things go wrong, then be quiet, and see that all comes to its end."""
        self._set_up()
        for _ in range(steps):
            self._step()
        self._become_quiet()
        self.invariants.at_the_end(self.manager)

    def digest(self) -> str:
        """Of everything that was recorded: equal for equal courses of events."""
        return hashlib.sha256(b"".join(entry.body for entry in self.manager.disk.log)).hexdigest()

    def _set_up(self) -> None:
        self.manager.start()
        self.workload.set_teams()
        self.workload.set_owner()
        for name, machine in self.machines.items():
            self.workload.admit(name)
            machine.start_agent()
        self.timeline.run(3_000)

    def _step(self) -> None:
        chance = self.chance.world
        if chance.happens(250):
            self.faults.some()
        else:
            self.workload.some()
        self.timeline.run(chance.skewed(10, 12_000))
        self.invariants.step()

    def _become_quiet(self) -> None:
        self.story.tell("world", "no more faults")
        self.faults.stop()
        quiet_since_ms = self.timeline.now_ms
        last_change_ms, last_seq = self.timeline.now_ms, -1
        while self.timeline.now_ms - quiet_since_ms < QUIET_MS:
            self.timeline.run(QUIET_STEP_MS)
            self.invariants.step()
            if not self.manager.listens:
                continue
            self.workload.let_everything_go()
            state = self.manager.state
            if state.seq != last_seq:
                last_change_ms, last_seq = self.timeline.now_ms, state.seq
            over = all(job.state in OVER for job in state.jobs.values())
            if (over and self.timeline.now_ms - last_change_ms > SETTLED_MS) or (
                self.timeline.now_ms - last_change_ms > STILL_MS
            ):
                break
        self.timeline.run(QUIET_STEP_MS)


def _policy(chance: Chance) -> Policy:
    """The default, with short searches, and in most seeds without moves: here many plans count, not the best ones."""
    mode = chance.weighted(MODES)
    consolidation = Consolidation(mode=mode, min_runtime_ms=chance.pick((0, 5_000)), max_moves_per_cycle=4)
    steps = tuple(step for step in Step if step is not Step.CONSOLIDATE or mode is not ConsolidationMode.OFF)
    moves = mode is not ConsolidationMode.OFF
    return Policy(steps, consolidation=consolidation, reclaim_moves=moves, search_steps=SEARCH_STEPS)
