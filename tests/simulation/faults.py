"""What goes wrong in a simulation, and how often. Every kind is counted by its name; docs/simulation.md lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuyard.platform.simulated import Chance
from gpuyard.worlds.standalone.store.memory import Fault, Write

if TYPE_CHECKING:
    from tests.simulation.machine import Attempt, Machine
    from tests.simulation.world import Cluster

APPEND_PER_MILLE: Final = 10
RARE_WRITE_PER_MILLE: Final = 300
"""Snapshots and sums are written seldom, so more of them fail."""
MESSAGE_PER_MILLE: Final = 1
PLAN_PER_MILLE: Final = 12
OTHER_LEASE_PER_MILLE: Final = 200
LEASES_MS: Final = (6_000, 20_000, 60_000)
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
REBOOT_PER_MILLE: Final = 150


class Faults:
    """Draws faults. After `stop` nothing goes wrong any more."""

    def __init__(self, cluster: Cluster, chance: Chance) -> None:
        self._cluster = cluster
        self._chance = chance
        self._stopped = False
        self._full_until_ms = 0
        """Of the manager's disk."""

    def stop(self) -> None:
        """Lines and GPUs are mended; what stands still, or is switched off, comes back by itself."""
        self._stopped = True
        for machine in self._cluster.machines.values():
            self._cluster.network.heal(machine)
            for device in range(len(machine.facts.devices)):
                machine.gpu_health(device, healthy=True)

    # --------------------------------------------------------------------------------------------------- of the manager

    def of_write(self, write: Write) -> Fault | None:
        now_ms = self._cluster.timeline.now_ms
        if not self._stopped and now_ms < self._full_until_ms:
            return Fault.FULL
        often = APPEND_PER_MILLE if write is Write.APPEND else RARE_WRITE_PER_MILLE
        if self._stopped or not self._chance.happens(often):
            return None
        kinds = [(fault, 1 if fault is Fault.FULL else 3) for fault in Fault]
        fault = self._chance.weighted(kinds)
        self._cluster.story.fault("disk", f"{write.value}: {fault.value}")
        if fault is Fault.FULL:
            self._full_until_ms = now_ms + self._chance.skewed(500, 120_000)
        return fault

    def write_ms(self) -> int:
        if not self._stopped and self._chance.happens(8):
            self._cluster.story.fault("disk", "writes slowly")
            return self._chance.between(500, 8_000)
        return self._chance.skewed(1, 20)

    def think_ms(self) -> int:
        if not self._stopped and self._chance.happens(15):
            self._cluster.story.fault("manager", "plans slowly")
            return self._chance.between(300, 5_000)
        return self._chance.skewed(1, 60)

    def between_plan_and_act(self) -> bool:
        return not self._stopped and self._chance.happens(PLAN_PER_MILLE)

    def at_message(self) -> bool:
        return not self._stopped and self._chance.happens(MESSAGE_PER_MILLE)

    def reboot(self) -> bool:
        """Whether the manager ends because its node starts again."""
        if self._stopped or not self._chance.happens(REBOOT_PER_MILLE):
            return False
        self._cluster.story.fault("manager", "node of the manager reboots")
        return True

    def lease_ms(self, former_ms: int) -> int:
        """What the manager is started with: now and then its operator chooses another lease."""
        if self._stopped or not self._chance.happens(OTHER_LEASE_PER_MILLE):
            return former_ms
        chosen_ms = self._chance.pick([lease_ms for lease_ms in LEASES_MS if lease_ms != former_ms])
        self._cluster.story.fault("manager", "started with another lease", f"of {chosen_ms} ms")
        return chosen_ms

    def _kill_manager(self) -> None:
        self._cluster.manager.crash("manager killed")

    def _pause_manager(self) -> None:
        pause_ms = self._chance.skewed(500, 90_000)
        self._cluster.story.fault("manager", "manager stands still", f"for {pause_ms} ms")
        until_ms = self._cluster.timeline.now_ms + pause_ms
        self._cluster.manager.paused_until_ms = max(until_ms, self._cluster.manager.paused_until_ms)

    def _set_clock(self) -> None:
        by_ms = self._chance.pick((-40 * DAY_MS, -HOUR_MS, -5_000, -300, 300, 5_000, HOUR_MS, 40 * DAY_MS))
        self._cluster.story.fault("manager", "wall clock is set", f"by {by_ms} ms")
        self._cluster.manager.clock.set_forward(by_ms)

    def _damage_snapshot(self) -> None:
        snapshots = self._cluster.manager.disk.snapshots
        if snapshots:
            newest = max(snapshots)
            self._cluster.story.fault("disk", "newest snapshot damaged")
            snapshots[newest] = replace(snapshots[newest], body=snapshots[newest].body[:-7])

    # -------------------------------------------------------------------------------------------------- of the machines

    def _machine(self) -> Machine:
        return self._cluster.machines[self._chance.pick(sorted(self._cluster.machines))]

    def _break_stream(self) -> None:
        for session in self._cluster.network.of(self._machine()):
            self._cluster.story.fault(session.node, "stream broken")
            session.breaks()

    def _cut(self, *, up: bool, down: bool) -> None:
        machine = self._machine()
        cut = self._cluster.network.cuts[machine.name]
        for_ms = self._chance.skewed(1_000, 240_000)
        which = "both ways" if up and down else "upwards" if up else "downwards"
        self._cluster.story.fault(machine.name, f"line cut {which}", f"for {for_ms} ms")
        cut.up, cut.down = up, down
        self._cluster.timeline.after(for_ms, lambda: self._cluster.network.heal(machine))

    def _slow_line(self) -> None:
        machine = self._machine()
        self._cluster.story.fault(machine.name, "line slow")
        self._cluster.network.cuts[machine.name].slow = True
        self._cluster.timeline.after(self._chance.between(1_000, 60_000), lambda: self._cluster.network.heal(machine))

    def _kill_agent(self) -> None:
        machine = self._machine()
        back_ms = self._chance.skewed(100, 100_000)
        self._cluster.story.fault(machine.name, "agent killed", f"for {back_ms} ms")
        machine.kill_agent(back_ms)

    def _pause_agent(self) -> None:
        machine = self._machine()
        if machine.agent is not None:
            pause_ms = self._chance.skewed(500, 120_000)
            self._cluster.story.fault(machine.name, "agent stands still", f"for {pause_ms} ms")
            machine.agent.paused_until_ms = max(self._cluster.timeline.now_ms + pause_ms, machine.agent.paused_until_ms)

    def _wipe_home(self) -> None:
        machine = self._machine()
        if machine.powered:
            self._cluster.story.fault(machine.name, "agent's home wiped")
            machine.wipe_home(self._chance.skewed(100, 60_000))

    def _lose_power(self) -> None:
        machine = self._machine()
        back_ms = self._chance.skewed(2_000, 300_000)
        self._cluster.story.fault(machine.name, "power lost", f"for {back_ms} ms")
        machine.lose_power(back_ms)

    def _attempt(self) -> Attempt | None:
        living = [attempt for machine in self._cluster.machines.values() for attempt in machine.home.living()]
        return self._chance.pick(living) if living else None

    def _kill_supervisor(self) -> None:
        attempt = self._attempt()
        if attempt is not None:
            self._cluster.story.fault(attempt.home.machine.name, "supervisor killed", f"of {attempt.id}")
            attempt.supervisor_killed()

    def _gpu_ill(self) -> None:
        machine = self._machine()
        device = self._chance.between(0, len(machine.facts.devices) - 1)
        healthy = not machine.facts.devices[device].healthy
        self._cluster.story.fault(machine.name, "GPU well again" if healthy else "GPU ill", f"{device}")
        machine.gpu_health(device, healthy=healthy)

    def some(self) -> None:
        """One fault."""
        kinds: list[tuple[Callable[[], None], int]] = [
            (self._kill_manager, 6),
            (self._pause_manager, 3),
            (self._set_clock, 2),
            (self._damage_snapshot, 2),
            (self._break_stream, 8),
            (lambda: self._cut(up=True, down=True), 5),
            (lambda: self._cut(up=True, down=False), 3),
            (lambda: self._cut(up=False, down=True), 3),
            (self._slow_line, 3),
            (self._kill_agent, 6),
            (self._pause_agent, 4),
            (self._wipe_home, 3),
            (self._lose_power, 4),
            (self._kill_supervisor, 5),
            (self._gpu_ill, 3),
        ]
        self._chance.weighted(kinds)()
