"""Until when a task may run, and the clock it is measured with.

Place in the flow: agent ─file─▶ **lease** ─▶ task, guard. Invariant: what cannot be read is no lease.
"""

from __future__ import annotations

import time

from gpuyard.agent.supervisor.files import slurp

KILL_MARGIN_MS = 2_000
"""So much of a lease is left for killing; of a short one, a tenth."""
LEASE_TRIES = 100


def boot_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def wall_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_REALTIME) // 1_000_000


class Lease:
    """Until when the agent has been told that the task may run, and for how long such a lease is given."""

    def __init__(self, path: str) -> None:
        # Without a file there is no lease: the agent writes one before it starts anything.
        self.deadline_ms, self.length_ms = 0, 0
        for _ in range(LEASE_TRIES):
            fields = slurp(path).split()
            # It says everything twice, because it is written over in place and may be read meanwhile.
            if len(fields) == 4 and fields[:2] == fields[2:]:
                self.deadline_ms, self.length_ms = int(fields[0]), int(fields[1])
                return

    def notice_ms(self, grace_ms: int) -> int:
        return self.deadline_ms - min(grace_ms, self.length_ms // 4)

    def kill_ms(self) -> int:
        return self.deadline_ms - min(KILL_MARGIN_MS, self.length_ms // 10)
