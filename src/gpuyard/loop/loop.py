"""The production loop: observe, plan, verify, record, act; on any world.

Place in the flow: world ─changes─▶ **loop** ─actions─▶ world. The caller decides when a cycle is due and where the
planning runs: between `plan` and `carry_out` the world may move on, which is why a plan is verified against the newest
state. Invariant: the kept ledger equals one made from the world's snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gpuyard.model.plan import Plan
from gpuyard.model.reasons import Reason
from gpuyard.model.snapshot import Change
from gpuyard.policies.policy import DEFAULT, Policy
from gpuyard.scheduler.cycle import plan
from gpuyard.scheduler.ledger import Ledger
from gpuyard.scheduler.verify import verify_on
from gpuyard.worlds.port import World


class CycleRecord(msgspec.Struct, frozen=True):
    """How a cycle went: actions that were carried out, and those that no longer held."""

    done: int
    dropped: int


class Loop:
    """The kept books of a world, and the last thing decided about it."""

    def __init__(self, world: World, policy: Policy = DEFAULT) -> None:
        self.world = world
        self.policy = policy
        self.ledger = Ledger.of(world.snapshot())
        self.last = Plan()
        self.why_waiting: dict[str, tuple[Reason, ...]] = {}

    def follow(self) -> None:
        """Take over what has changed."""
        self.take_over(self.world.observe())

    def take_over(self, changes: Sequence[Change]) -> None:
        """Take over what was observed: all of it, in the order it was observed."""
        self.ledger.apply(changes)

    def plan(self) -> Plan:
        """Decide. Changes nothing, so it may run beside everything but `follow` and `carry_out`."""
        return plan(self.ledger, self.policy)

    def carry_out(self, decided: Plan) -> CycleRecord:
        """Verify against the newest state, and hand over what still holds."""
        self.follow()
        verdicts = verify_on(decided, self.ledger) if decided.actions else ()
        holding = [verdict.action for verdict in verdicts if verdict.holds]
        if holding:
            self.world.act(holding)
        self.last = decided
        self.why_waiting = {job: entry.reasons for entry in decided.waiting for job in entry.jobs}
        return CycleRecord(len(holding), len(verdicts) - len(holding))

    def cycle(self) -> CycleRecord:
        """One cycle from beginning to end."""
        self.follow()
        return self.carry_out(self.plan())
