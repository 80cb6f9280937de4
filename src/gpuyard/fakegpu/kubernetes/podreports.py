"""What people should hear about their pods' GPUs.

Place in the flow: updater, node part ─**podreports**─▶ reports. Invariant: a problem of a pod is told once, and in the
log once more when it is over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from gpuyard.fakegpu.kubernetes.fakenodes import Settled
from gpuyard.fakegpu.kubernetes.observed import PodFacts
from gpuyard.fakegpu.kubernetes.reports import Reports
from gpuyard.fakegpu.kubernetes.workload import Work
from gpuyard.kubeapi.events import Subject

INVALID: Final = "InvalidGPUProfile"
SHORT: Final = "TooFewGPUs"
REMOVED: Final = "GPURemoved"
REMOVED_NOTE: Final = (
    "a GPU it holds was taken out of the configuration; it keeps it to its end, and nobody gets it after that"
)


class PodReports:
    """Tells of pods."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports

    async def tell(self, node: str, pods: Collection[PodFacts], work: Mapping[str, Work], settled: Settled) -> None:
        """All there is to say about the pods of one node."""
        short = {each.pod.uid: each for each in settled.short}
        keeping = {pod.uid for pod in settled.keeping}
        for pod in pods:
            lacking = short.get(pod.uid)
            wrong = "; ".join(str(mistake) for mistake in work[pod.uid].mistakes)
            await self._about(pod, INVALID, wrong, "its annotations are in order again")
            lacks = lacking and f"asks for {lacking.asked} {lacking.resource}, and {node} has {lacking.free} left"
            await self._about(pod, SHORT, lacks or "", "has its GPUs now")
            gone = REMOVED_NOTE if pod.uid in keeping else ""
            await self._about(pod, REMOVED, gone, "all its GPUs are in the configuration again")

    async def _about(self, pod: PodFacts, reason: str, note: str, over: str) -> None:
        subject = Subject("Pod", pod.name, pod.namespace, pod.uid)
        if note:
            await self._reports.tell(subject, reason, note)
        else:
            self._reports.take_back(subject, reason, over)
