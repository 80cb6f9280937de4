"""Who is shown as the holder of each device, and what it does there.

Place in the flow: Allocation (the kubelet's, or ours on a fake node) and pods ─**holdings**─▶ Holding ─▶ occupy. Pure.
Invariant: a device has one holder. Of the containers of a pod that were given the same device it is the one that runs;
where none does, the one it is for in the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from gpuyard.fakegpu.kubernetes.assign import Allocation
from gpuyard.fakegpu.kubernetes.observed import Kind, PodFacts
from gpuyard.fakegpu.kubernetes.workload import Work
from gpuyard.fakegpu.profile import BUSY, Profile
from gpuyard.fakegpu.reading import Holder


class Holding(msgspec.Struct, frozen=True):
    """A device in somebody's hands. Without a profile the container does not run yet, or no longer."""

    holder: Holder
    pod: str
    """Its uid."""
    profile: Profile | None = None
    since_ms: int = 0
    """When it began to run."""


def holdings(
    allocations: Iterable[Allocation], pods: Mapping[str, PodFacts], work: Mapping[str, Work]
) -> dict[str, Holding]:
    """By device; `pods` are by uid, `work` says what the containers of each do."""
    claims: dict[str, list[tuple[int, Holding]]] = {}
    for allocation in allocations:
        pod = pods.get(allocation.pod)
        if pod is None:
            continue
        claim = _claim(allocation, pod, work.get(pod.uid))
        for device in allocation.devices:
            claims.setdefault(device, []).append(claim)
    return {device: max(claimed, key=lambda claim: claim[0])[1] for device, claimed in claims.items()}


def _claim(allocation: Allocation, pod: PodFacts, work: Work | None) -> tuple[int, Holding]:
    """How strong a claim it is, and what it looks like."""
    container = pod.container(allocation.container)
    holder = Holder(pod.namespace, pod.name, allocation.container)
    since_ms = container.running_since_ms if container else None
    is_last = container is None or container.kind is not Kind.INIT
    if since_ms is None:
        return int(is_last), Holding(holder, pod.uid)
    profile = work.profile(allocation.container) if work else BUSY
    return 2 + int(is_last), Holding(holder, pod.uid, profile, since_ms)
