"""What queues have used in the past, with old use counting less: the optional input of time-based fair share.

Place in the flow: a long-lived caller keeps a `UsageMeter`, advances it by what the ledger says is held, and hands
`usage()` to the next snapshot (or `UsageSet`). Pure: elapsed time is an argument.
Invariant: a queue that held everything all the time has used the whole cluster, a million parts of a million.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gpuyard.errors import InputError
from gpuyard.model.queues import QueueUsage
from gpuyard.scheduler.ledger import Ledger

PARTS: Final = 1_000_000
WEEK_MS: Final = 7 * 24 * 3_600_000


class Used(msgspec.Struct, frozen=True, gc=False):
    """Decayed amounts times time, for one queue and resource."""

    queue: str
    resource: str
    amount_ms: int


class UsageMeter(msgspec.Struct, frozen=True):
    """The history of a cluster in a few numbers; time further back than a few half-lives hardly counts."""

    half_life_ms: int = WEEK_MS
    used: tuple[Used, ...] = ()
    capacity: tuple[Used, ...] = ()
    """The whole cluster, under the queue name ''."""

    def advance(self, ledger: Ledger, elapsed_ms: int) -> UsageMeter:
        """The meter after some time in which every queue held what it holds in the ledger."""
        if elapsed_ms < 0 or self.half_life_ms <= 0:
            raise InputError(
                f"a meter runs forward and forgets: elapsed {elapsed_ms} ms, half-life {self.half_life_ms}"
            )
        kept_ppb = round(0.5 ** (elapsed_ms / self.half_life_ms) * 10**9)
        names = ledger.queues.resources.names
        held = {
            (frame.name, name): ledger.queues.held[frame.at][position]
            for frame in ledger.queues.frames
            for position, name in enumerate(names)
        }
        total = {("", name): ledger.total()[position] for position, name in enumerate(names)}
        return msgspec.structs.replace(
            self,
            used=_advanced(self.used, held, elapsed_ms, kept_ppb),
            capacity=_advanced(self.capacity, total, elapsed_ms, kept_ppb),
        )

    def usage(self) -> tuple[QueueUsage, ...]:
        """What each queue has used of the cluster, in millionths."""
        capacity = {entry.resource: entry.amount_ms for entry in self.capacity}
        return tuple(
            QueueUsage(entry.queue, entry.resource, entry.amount_ms * PARTS // capacity[entry.resource])
            for entry in self.used
            if entry.amount_ms and capacity.get(entry.resource)
        )


def _advanced(
    before: tuple[Used, ...], amounts: dict[tuple[str, str], int], elapsed_ms: int, kept_ppb: int
) -> tuple[Used, ...]:
    old = {(entry.queue, entry.resource): entry.amount_ms for entry in before}
    return tuple(
        Used(queue, resource, old.get((queue, resource), 0) * kept_ppb // 10**9 + amount * elapsed_ms)
        for (queue, resource), amount in sorted(amounts.items())
    )
