"""What the scheduler of a cluster is told when it is started, and the names it goes by."""

from __future__ import annotations

from typing import Final

import msgspec

SCHEDULER: Final = "gpuyard"
KAI_SCHEDULER: Final = "kai-scheduler"
SYSTEM_NAMESPACE: Final = "gpuyard-system"
QUEUE_LABEL: Final = "kai.scheduler/queue"


class Settings(msgspec.Struct, frozen=True):
    """Whose pods are ours, and where our own objects live."""

    schedulers: tuple[str, ...] = (SCHEDULER,)
    """Pods with one of these as their schedulerName are ours to place."""
    namespace: str = SYSTEM_NAMESPACE
    queue_label: str = QUEUE_LABEL
