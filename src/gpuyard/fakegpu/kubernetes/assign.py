"""Which pod of a node without a kubelet gets which of its devices, as a kubelet would give them out.

Place in the flow: pods and devices of a fake node ─**assign**─▶ Allocation ─▶ holdings. Pure. Invariants: no device is
given to two pods; a pod gets all it asks for or nothing; a pod that has its devices keeps them as long as both are
there; the same history gives the same answer. Free devices are given in their order, to whoever came first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from gpuyard.fakegpu.kubernetes.observed import Kind, PodFacts


class Allocation(msgspec.Struct, frozen=True):
    """The devices one container of a pod was given."""

    pod: str
    """Its uid."""
    container: str
    devices: tuple[str, ...]


class Shortage(msgspec.Struct, frozen=True):
    """A pod that is on the node and has no devices, because there are not enough."""

    pod: PodFacts
    resource: str
    asked: int
    free: int


class Assignment(msgspec.Struct, frozen=True):
    allocations: tuple[Allocation, ...]
    short: tuple[Shortage, ...] = ()


def assign(
    resources: Mapping[str, Sequence[str]],
    pods: Iterable[PodFacts],
    before: Sequence[Allocation] = (),
    leaving: Collection[str] = (),
) -> Assignment:
    """Devices for the pods of one node. `before` is what was given out so far; those `leaving` are given to nobody
    else, and stay with whoever has them."""
    waiting = {pod.uid: pod for pod in sorted(pods, key=lambda pod: pod.order)}
    there = {device for devices in resources.values() for device in devices}.union(leaving)
    kept = _kept(before, waiting, there)
    taken = {device for allocation in kept for device in allocation.devices}
    given = list(kept)
    short = []
    for pod in _without({allocation.pod for allocation in kept}, waiting):
        found = _given(pod, resources, taken)
        if isinstance(found, Shortage):
            short.append(found)
            continue
        given += found
        taken |= {device for allocation in found for device in allocation.devices}
    return Assignment(tuple(given), tuple(short))


def _kept(before: Sequence[Allocation], pods: Mapping[str, PodFacts], there: set[str]) -> list[Allocation]:
    """What was given and still can be: all of a pod's devices are there, or it is given others."""
    broken = {each.pod for each in before if each.pod not in pods or not there.issuperset(each.devices)}
    return [each for each in before if each.pod not in broken]


def _without(uids: set[str], pods: Mapping[str, PodFacts]) -> list[PodFacts]:
    return [pod for uid, pod in pods.items() if uid not in uids]


def _given(pod: PodFacts, resources: Mapping[str, Sequence[str]], taken: set[str]) -> list[Allocation] | Shortage:
    """What init containers have had the containers after them use again; what sidecars have they keep."""
    fresh = {name: [each for each in devices if each not in taken] for name, devices in resources.items()}
    again: dict[str, list[str]] = {}
    given = []
    for container in pod.containers:
        devices: list[str] = []
        for resource, count in container.asks:
            reused, free = again.setdefault(resource, []), fresh.get(resource, [])
            if count > len(reused) + len(free):
                return Shortage(pod, resource, count, len(reused) + len(free))
            got = [*reused[:count], *free[: max(0, count - len(reused))]]
            fresh[resource] = [each for each in free if each not in got]
            again[resource] = [*got, *reused[count:]] if container.kind is Kind.INIT else reused[count:]
            devices += got
        if devices:
            given.append(Allocation(pod.uid, container.name, tuple(devices)))
    return given
