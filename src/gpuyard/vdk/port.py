"""The GpuResourceManager as a platform sees it: the three calls of the original, and what acknowledged work needs.

Two of them: `pool` keeps the books of machines that belong to somebody else's platform; its faces over REST and gRPC
offer exactly this. All calls are synchronous, done as a whole or not at all, and durable when they return.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Protocol

from gpuyard.vdk.model import (
    Budget,
    DeviceRequirements,
    JobAction,
    JobUniqueIdentifier,
    JobView,
    Machine,
    Plan,
    Quote,
)

Amount = str | int | float | Decimal
"""A decimal number of devices; a float is read by its shortest decimal form."""


class GpuResourceManager(Protocol):
    """Shares GPUs between teams, for a platform that starts, moves and stops the jobs."""

    # The three calls of the original ---------------------------------------------------------------------------

    def try_provision_resources(
        self,
        job: JobUniqueIdentifier,
        amount: Amount | DeviceRequirements | Sequence[DeviceRequirements],
        *,
        priority: bool = False,
        checkpointable: bool = False,
        key: str = "",
    ) -> list[JobAction]:
        """What must be done to run the job, in order. `key` is kept with the request.

        NoAvailableBudgetException: the team has no budget for it, and there is nowhere free.
        NoArrangementError: the team has budget, but no arrangement of the jobs makes room.
        """

    def job_ended(self, job: JobUniqueIdentifier) -> None:
        """Releases what it held."""

    def mark_job_priority(self, job: JobUniqueIdentifier, priority: bool) -> None:
        """Jobs with priority are never deleted for others. A plan that was to delete it is rolled back."""

    # Acknowledged work -----------------------------------------------------------------------------------------

    def confirm(self, plan: str, number: int) -> Plan: ...

    def fail(self, plan: str, number: int, why: str = "") -> Plan:
        """It could not be done: what is not yet confirmed of the plan, and of plans built on it, is rolled back."""

    def expire(self) -> list[Plan]:
        """Roll back what is overdue; the plans it concerned. Every other call does it first, too."""

    def plan(self, id: str) -> Plan: ...

    def plans(self, *, open_only: bool = True) -> list[Plan]: ...

    def quote(
        self,
        job: JobUniqueIdentifier,
        amount: Amount | DeviceRequirements | Sequence[DeviceRequirements],
        *,
        priority: bool = False,
        checkpointable: bool = False,
    ) -> Quote:
        """What it would answer to try_provision_resources, and what would make it run. Nothing is booked."""

    # Machines and budgets --------------------------------------------------------------------------------------

    def set_machine(self, machine: Machine) -> None:
        """New, or with more or fewer devices; refused while a job holds a device that would go."""

    def remove_machine(self, name: str) -> None: ...

    def machines(self) -> list[Machine]: ...

    def set_budget(self, budget: Budget) -> None:
        """A team is known once it has a budget, be it zero. Lowering it stops nobody by itself."""

    def remove_team(self, team: str) -> None:
        """Refused while a job of it is known."""

    def budgets(self) -> list[Budget]: ...

    def jobs(self, *, team: str | None = None) -> list[JobView]: ...

    def close(self) -> None: ...
