"""GPU jobs for data teams: a resource manager for any platform, and VDK's control service on gpuyard's own nodes.

from gpuyard.vdk import Budget, GpuResourceManager, JobUniqueIdentifier, Machine

with GpuResourceManager("sqlite:///var/lib/pool.db") as manager:
    manager.set_machine(Machine("gpu-1", devices=8))
    manager.set_budget(Budget("vision", amount_milli=8000))
    actions = manager.try_provision_resources(JobUniqueIdentifier(job="train", team="vision"), "2.5")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuyard.vdk.errors import (
    NeverFitsError,
    NoArrangementError,
    NoAvailableBudgetException,
    ProvisionError,
    TeamHasNoBudgetException,
)
from gpuyard.vdk.model import (
    Budget,
    CreateJob,
    DeleteJob,
    DeviceRequirements,
    DeviceShare,
    JobAction,
    JobUniqueIdentifier,
    JobView,
    Machine,
    MoveJob,
    Place,
    Plan,
    Quote,
    Verdict,
)

if TYPE_CHECKING:
    from gpuyard.vdk.pool.pool import Pool as GpuResourceManager

__all__ = [
    "Budget",
    "CreateJob",
    "DeleteJob",
    "DeviceRequirements",
    "DeviceShare",
    "GpuResourceManager",
    "JobAction",
    "JobUniqueIdentifier",
    "JobView",
    "Machine",
    "MoveJob",
    "NeverFitsError",
    "NoArrangementError",
    "NoAvailableBudgetException",
    "Place",
    "Plan",
    "ProvisionError",
    "Quote",
    "TeamHasNoBudgetException",
    "Verdict",
]


def __getattr__(name: str) -> object:
    # numpy and the databases take time to load, and whoever only needs the words does not need them.
    if name == "GpuResourceManager":
        from gpuyard.vdk.pool.pool import Pool

        return Pool
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
