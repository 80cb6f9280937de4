"""From what kubelet, driver and API server say of a node to what is published of it.

Place in the flow: node ─Sight─▶ **node_devices** ─Past, Held─▶ document. Pure: time comes in. Invariants: whoever is
published to hold a device is who the kubelet says; every device that is held is published; a kubelet or a device plugin
that is started anew makes nobody's device ill.

The kubelet lists the devices it would give, and an ill one is not among them. Nor is any while their plugin has not
registered yet: a resource of which it lists nothing at all is as it was before, for PLUGIN_GRACE_MS. Of a kubelet that
has just started there is no word of pods either; then its own record tells who holds what.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from string import digits
from typing import Final

import msgspec

from gpuyard.fakegpu.labels import sanitised
from gpuyard.kubeapi.kubelet import Given, Offered, Recorded
from gpuyard.nvml.gpus import Gpu, link_groups
from gpuyard.worlds.kubernetes.devices import Held, PublishedDevice

PLUGIN_GRACE_MS: Final = 30_000
"""How long a device plugin may take to register with a kubelet before its devices count as ill."""
_PARTS: Final = re.compile(r"[0-9]{1,18}|[^0-9]+")
REPLICA: Final = "::"
"""What stands between the id of a GPU that is shared in time and the number of the share."""


class PodSeen(msgspec.Struct, frozen=True):
    """A pod of this node, as the API server knows it."""

    namespace: str
    name: str
    is_over: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


class Sight(msgspec.Struct, frozen=True):
    """Everything that is known at one look."""

    now_ms: int
    offered: tuple[Offered, ...] = ()
    given: tuple[Given, ...] = ()
    recorded: tuple[Recorded, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    """As the driver shows them; none where there is no driver."""
    pods: Mapping[str, PodSeen] = {}
    """By uid."""
    capacity: Mapping[str, int] = {}
    """How many devices of each resource the node has, with those that are ill."""


class Past(msgspec.Struct, frozen=True):
    """What has to be remembered from one look to the next."""

    devices: tuple[PublishedDevice, ...] = ()
    unlisted_since_ms: Mapping[str, int] = {}
    """Resources of which the kubelet lists no device, and when that began."""


# ------------------------------------------------------------------------------------------------------------- holders


def holders(sight: Sight) -> tuple[Held, ...]:
    """Who holds what: as the kubelet answers, and as its record says of whoever is not in the answer."""
    found: dict[tuple[str, str, str], set[str]] = {}
    holder: dict[str, tuple[str, str]] = {}
    for name, container, devices in (*_answered(sight), *_from_record(sight)):
        # What was given to somebody else since, the kubelet may still have written down for the one before.
        own = {device for device in devices if holder.setdefault(device, name) == name}
        if own:
            found.setdefault((*name, container), set()).update(own)
    uids = {pod.key: uid for uid, pod in sight.pods.items() if not pod.is_over}
    return tuple(
        Held(namespace, pod, container, tuple(sorted(devices)), uids.get((namespace, pod), ""))
        for (namespace, pod, container), devices in sorted(found.items())
    )


_Claim = tuple[tuple[str, str], str, tuple[str, ...]]
"""Namespace and name of a pod, a container of it, devices."""


def _answered(sight: Sight) -> Iterator[_Claim]:
    """Kubelets before 1.34 also tell of pods that are over."""
    over = {pod.key for pod in sight.pods.values() if pod.is_over}
    over -= {pod.key for pod in sight.pods.values() if not pod.is_over}
    return (
        ((each.namespace, each.pod), each.container, each.devices)
        for each in sight.given
        if (each.namespace, each.pod) not in over
    )


def _from_record(sight: Sight) -> Iterator[_Claim]:
    """Init containers, and all containers while the kubelet has not read its pods; what is over is not yet erased."""
    for each in sight.recorded:
        pod = sight.pods.get(each.pod)
        if pod is not None and not pod.is_over:
            yield pod.key, each.container, each.devices


# ------------------------------------------------------------------------------------------------------------- devices


def next_past(past: Past, sight: Sight, held: Iterable[Held]) -> Past:
    """The devices of now: those the kubelet lists, those somebody holds, and those that are ill."""
    listed = {device.id: device for device in sight.offered}
    shown = _shown(sight.gpus, listed)
    before = shown | {device.id: device for device in past.devices}
    resources = _resources(before, sight)
    unlisted = _unlisted(past, sight, resources.values())
    waiting = {resource for resource, since in unlisted.items() if sight.now_ms - since < PLUGIN_GRACE_MS}
    known = _Known(sight.gpus)
    devices = [
        known.described(_seen(before.get(id) or PublishedDevice(id), resources[id], listed.get(id), waiting))
        for id in {*listed, *(id for each in held for id in each.devices), *_missing(before, waiting, sight)}
    ]
    # Of a resource whose last device has just been forgotten nothing is remembered either.
    spoken_of = _resources(shown | {device.id: device for device in devices}, sight).values()
    kept = {resource: since for resource, since in unlisted.items() if resource in spoken_of}
    return Past(tuple(sorted(devices, key=known.order)), kept)


def _seen(before: PublishedDevice, resource: str, listed: Offered | None, waiting: Set[str]) -> PublishedDevice:
    """A device as the kubelet has it now."""
    if listed is not None:
        return msgspec.structs.replace(before, resource=resource, healthy=True, numa=listed.numa)
    return msgspec.structs.replace(before, resource=resource, healthy=before.healthy and resource in waiting)


def _shown(gpus: tuple[Gpu, ...], listed: Mapping[str, Offered]) -> dict[str, PublishedDevice]:
    """GPUs of the driver that the kubelet does not list, neither whole nor in parts, where it uses the same names."""
    whole = {gpu.uuid for gpu in gpus if not gpu.is_cut}
    if whole.isdisjoint(listed):
        return {}
    return {uuid: PublishedDevice(uuid) for uuid in whole - {id.partition(REPLICA)[0] for id in listed}}


def _resources(before: Mapping[str, PublishedDevice], sight: Sight) -> dict[str, str]:
    """Under which name each device goes, by whoever has spoken of it; the newest word is the last."""
    found = {id: device.resource for id, device in before.items()}
    for recorded in sight.recorded:
        found |= dict.fromkeys(recorded.devices, recorded.resource)
    for given in sight.given:
        found |= dict.fromkeys(given.devices, given.resource)
    return found | {device.id: device.resource for device in sight.offered}


def _unlisted(past: Past, sight: Sight, resources: Iterable[str]) -> dict[str, int]:
    silent = set(resources) - {device.resource for device in sight.offered}
    return {resource: past.unlisted_since_ms.get(resource, sight.now_ms) for resource in sorted(silent)}


def _missing(before: Mapping[str, PublishedDevice], waiting: Set[str], sight: Sight) -> Iterator[str]:
    """Of those that are not listed, the ill ones: a node counts them. What it no longer has, it does not count."""
    listed = Counter(device.resource for device in sight.offered)
    for id, device in before.items():
        if device.resource in waiting or sight.capacity.get(device.resource, 0) != listed[device.resource]:
            yield id


class _Known:
    """What the driver tells of devices: of GPUs, of their slices, of their shares in time."""

    def __init__(self, gpus: tuple[Gpu, ...]) -> None:
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._places = {gpu.uuid: place for place, gpu in enumerate(gpus)}
        self._slices = {instance.uuid: gpu.uuid for gpu in gpus for instance in gpu.mig}
        self._links = link_groups(gpus)

    def described(self, device: PublishedDevice) -> PublishedDevice:
        """The same with what the driver knows better; an ill GPU makes its parts ill."""
        uuid = self._uuid(device.id)
        gpu = self._gpus.get(uuid)
        if gpu is None:
            return device
        return msgspec.structs.replace(
            device,
            healthy=device.healthy and gpu.healthy,
            model=sanitised(gpu.name) or device.model,
            memory_mib=0 if device.id in self._slices else gpu.memory_mib or device.memory_mib,
            numa=device.numa or gpu.numa,
            nvlink=self._links[gpu.bus_id] if gpu.bus_id else 0,
            gpu="" if uuid == device.id else uuid,
        )

    def order(self, device: PublishedDevice) -> tuple[int, list[tuple[int, str]], str]:
        """As the driver counts them; without one, by their ids, with numbers in them as numbers."""
        place = self._places.get(self._uuid(device.id), len(self._places))
        parts = _PARTS.findall(device.id)
        return place, [(int(part), "") if part[0] in digits else (-1, part) for part in parts], device.id

    def _uuid(self, id: str) -> str:
        return self._slices.get(id) or id.partition(REPLICA)[0]
