"""What was given out before we were started, from the ConfigMaps we wrote then.

Place in the flow: texts of ConfigMaps and pods ─**restored**─▶ Allocation ─▶ assign. Pure. Invariant: a pod is taken to
have its devices only if the text names exactly as many for each of its containers as it asks for.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuyard.fakegpu.kubernetes.assign import Allocation
from gpuyard.fakegpu.kubernetes.observed import Kind, PodFacts
from gpuyard.fakegpu.kubernetes.statusmap import DeviceHolder


def restored(devices: Iterable[DeviceHolder], pods: Iterable[PodFacts]) -> tuple[Allocation, ...]:
    """The allocations of one node."""
    held: dict[tuple[str, str, str], list[str]] = {}
    for each in devices:
        holder = each.holder
        held.setdefault((holder.namespace, holder.pod, holder.container), []).append(each.device)
    return tuple(allocation for pod in pods for allocation in _of_pod(pod, held))


def _of_pod(pod: PodFacts, held: dict[tuple[str, str, str], list[str]]) -> tuple[Allocation, ...]:
    asking = [container for container in pod.containers if container.asks]
    found = [held.get((*pod.key, container.name), []) for container in asking]
    # What init containers have had others may use again, which a text with one holder per device does not tell.
    whole = all(container.kind is not Kind.INIT for container in asking) and all(
        len(devices) == sum(count for _, count in container.asks)
        for container, devices in zip(asking, found, strict=True)
    )
    if not whole:
        return ()
    return tuple(
        Allocation(pod.uid, container.name, tuple(devices)) for container, devices in zip(asking, found, strict=True)
    )
