"""The production loop: observe, plan, verify, record, act; on any world.

Place in the flow: world ─changes─▶ **loop** ─actions─▶ world. The caller decides when a cycle is due and where the
planning runs: between `plan` and `carry_out` the world may move on, which is why a plan is verified against the newest
state. Invariants: the kept ledger equals one made from the world's snapshot, without what is left out of planning; no
exception of the scheduler leaves the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from gpuyard.errors import StoreError
from gpuyard.loop.containment import Containment, job_of
from gpuyard.model.plan import Action, Plan
from gpuyard.model.reasons import Reason
from gpuyard.model.snapshot import Change, Snapshot
from gpuyard.platform.clock import monotonic_ms
from gpuyard.policies.policy import DEFAULT, Policy
from gpuyard.scheduler.cycle import plan
from gpuyard.scheduler.ledger import Ledger
from gpuyard.scheduler.verify import verify_on
from gpuyard.worlds.port import World


class CycleRecord(msgspec.Struct, frozen=True):
    """How a cycle went: actions that were carried out, and those that no longer held."""

    done: int
    dropped: int


NOT_PLANNED: Final = Plan()
"""Stands for a plan that could not be made; it is compared by identity."""
NOTHING_DONE: Final = CycleRecord(0, 0)
MAX_BROKEN: Final = 3
"""Plans that could not be verified, one after the other, before planning waits."""


class Loop:
    """The kept books of a world, and the last thing decided about it."""

    def __init__(self, world: World, policy: Policy = DEFAULT, steady_ms: Callable[[], int] = monotonic_ms) -> None:
        self.world = world
        self.policy = policy
        self.last = Plan()
        self.why_waiting: dict[str, tuple[Reason, ...]] = {}
        self.containment = Containment(self._plan_and_verify, steady_ms)
        self.ledger = Ledger.of(Snapshot())
        self.stale = False
        """The books could not be made: they say nothing about the world."""
        self._unbooked: Exception | None = None
        """Why the last changes could not be taken over."""
        self._broken: Exception | None = None
        """Why the last plan could not be verified."""
        self._broken_plans = 0
        self.make_books()

    @property
    def due_ms(self) -> int | None:
        """By the steady clock, when a cycle is due although nothing has changed; None where none is."""
        return 0 if self._broken is not None else self.containment.due_ms

    def follow(self) -> None:
        """Take over what has changed. Where that fails the books are made again, without what cannot be booked."""
        self.take_over(self.observe())
        self.mend()

    def observe(self) -> Sequence[Change]:
        """What has changed, for `take_over`. Books that could not be made are tried again after a while."""
        if self.stale:
            if not self.containment.waiting:
                self.make_books()
            return ()
        try:
            return self.containment.admit(self.world.observe())
        except Exception as error:
            self._unbooked = error
            return ()

    def take_over(self, changes: Sequence[Change]) -> None:
        """Take over what was observed: all of it, in the order it was observed. The world is not looked at."""
        try:
            self.ledger.apply(changes)
        except Exception as error:
            self._unbooked = error

    def mend(self) -> None:
        """Make the books again where a change could not be taken over; called where the world may be looked at."""
        if self._unbooked is not None:
            error, self._unbooked = self._unbooked, None
            self.make_books()
            self.containment.mended(error, "follow")

    def plan(self) -> Plan:
        """Decide. Changes nothing in the world, so it may run beside everything but `follow` and `carry_out`."""
        if self.stale or self.containment.waiting:
            return NOT_PLANNED
        broken, self._broken = self._broken, None
        try:
            if broken is not None:
                raise broken
            return plan(self.ledger, self.policy)
        except Exception as error:
            step = "verify" if error is broken else "plan"
            recovered = self.containment.recover(self.ledger, error, step)
            if recovered is None:
                return NOT_PLANNED
            self.ledger, decided = recovered
            return decided

    def carry_out(self, decided: Plan) -> CycleRecord:
        """Verify against the newest state, and hand over what still holds."""
        self.follow()
        if decided is NOT_PLANNED or self.stale:
            return NOTHING_DONE
        try:
            verdicts = verify_on(decided, self.ledger) if decided.actions else ()
        except Exception as error:
            self._drop(error)
            return NOTHING_DONE
        holding = [verdict.action for verdict in verdicts if verdict.holds]
        if holding and not self._act(holding):
            return NOTHING_DONE
        self.last = decided
        self.why_waiting = {job: entry.reasons for entry in decided.waiting for job in entry.jobs}
        self.why_waiting.update(self.containment.left.reasons())
        self._broken_plans = 0
        self.containment.worked()
        return CycleRecord(len(holding), len(verdicts) - len(holding))

    def cycle(self) -> CycleRecord:
        """One cycle from beginning to end."""
        self.follow()
        return self.carry_out(self.plan())

    def make_books(self) -> None:
        """Make the books again of all the world says; what is known of exceptions is kept."""
        try:
            real = self.world.snapshot()
        except Exception as error:
            self.containment.wait(error, "follow")
            self.stale = True
            return
        books = self.containment.books(real)
        self.stale = books is None
        self.ledger = self.ledger if books is None else books

    def _plan_and_verify(self, ledger: Ledger) -> Plan:
        decided = plan(ledger, self.policy)
        verify_on(decided, ledger)
        return decided

    def _drop(self, error: Exception) -> None:
        """Carry out no plan that cannot be verified; before the next one its cause is looked for."""
        self._broken = error
        self._broken_plans += 1
        if self._broken_plans >= MAX_BROKEN:
            self.containment.wait(error, "verify")

    def _act(self, holding: Sequence[Action]) -> bool:
        """Hand over to the world; False where it could not take it."""
        try:
            self.world.act(holding)
        except StoreError:
            raise
        except Exception as error:
            job = job_of(error)
            books = self.containment.blame(job, self.ledger, error, "act") if job else None
            if books is None:
                self.containment.wait(error, "act")
            else:
                self.ledger = books
            return False
        return True
