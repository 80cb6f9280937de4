"""What a pod asks for, counted as the kubelet and kube-scheduler count it.

Place in the flow: objects.Pod ─**requests**─▶ Asked ─▶ constraints ─▶ model Request. Pure. Invariant: never less than
the kubelet will admit the pod for, or the pod would be bound and then turned away.

A pod needs whatever is larger: all its containers with the sidecars, or the hungriest moment of its start, when an init
container runs beside the sidecars started before it. Requests of the whole pod replace that sum, and what the sandbox
itself takes comes on top. While the resources of a running pod are being changed, the larger of old and new counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from gpuyard.model.quantities import MAX_QUANTITY, MILLI
from gpuyard.worlds.kubernetes.objects import Container, ContainerStatus, Pod, Quantities, Resources
from gpuyard.worlds.kubernetes.quantities import NANO, nanos, up

CPU: Final = "cpu"
MEMORY: Final = "memory"
HUGE_PAGES: Final = "hugepages-"
NVIDIA: Final = "nvidia.com/gpu"
AMD: Final = "amd.com/gpu"
GPUS: Final = (NVIDIA, AMD)
"""Resources that are whole GPUs."""
MIG: Final = "nvidia.com/mig-"
"""What the name of a slice of a GPU begins with; its profile follows."""
NOT_COUNTED: Final = frozenset({CPU, MEMORY, *GPUS, "pods", "storage"})
"""Has a field of its own, or is no resource of a node that is used up."""
ATTACHABLE: Final = "attachable-volumes-"

LARGEST: Final = MAX_QUANTITY
"""Of one amount: beyond every node, and small enough for the columns of the ledger, where thousands are added up."""
MOST_DEVICES: Final = 10**6
"""The same for whole GPUs and slices, which are counted in thousandths there."""

ALWAYS: Final = "Always"
RESIZE_PENDING: Final = "PodResizePending"
INFEASIBLE: Final = "Infeasible"

Nanos = dict[str, int]
"""Amounts by name, in billionths."""


class Asked(msgspec.Struct, frozen=True, gc=False):
    """What one pod takes up on its node."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    devices: int = 0
    """Whole GPUs."""
    gpus: str = NVIDIA
    """As which resource they are asked for."""
    mig: tuple[tuple[str, int], ...] = ()
    """Slices of GPUs by profile, sorted."""
    other: tuple[tuple[str, int], ...] = ()
    """Everything else, sorted by name: local storage, huge pages, extended resources."""


def asked_by(pod: Pod) -> Asked:
    """What a pod takes up on its node from its start to its end."""
    total = _containers(pod)
    if pod.spec.resources is not None:
        _override(total, pod.spec.resources)
    if pod.spec.overhead:
        _add(total, _in_nanos(pod.spec.overhead))
    return _asked(total)


def _asked(total: Nanos) -> Asked:
    cpu_milli = min(up(total.pop(CPU, 0), NANO // MILLI), LARGEST)
    units = {name: min(up(amount, NANO), LARGEST) for name, amount in total.items() if amount > 0}
    return Asked(
        cpu_milli=cpu_milli,
        memory_bytes=units.get(MEMORY, 0),
        devices=min(sum(units.get(name, 0) for name in GPUS), MOST_DEVICES),
        gpus=AMD if AMD in units else NVIDIA,
        mig=tuple(sorted(_slices(units))),
        other=tuple(sorted((name, amount) for name, amount in units.items() if is_other(name))),
    )


def _slices(units: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """How many of each profile."""
    return ((name.removeprefix(MIG), min(count, MOST_DEVICES)) for name, count in units.items() if name.startswith(MIG))


def is_other(resource: str) -> bool:
    """Whether a resource is counted by its name alone."""
    return resource not in NOT_COUNTED and not resource.startswith((MIG, ATTACHABLE))


# ----------------------------------------------------------------------------------------------------------- containers


def _containers(pod: Pod) -> Nanos:
    total: Nanos = {}
    changing = _Changing(pod)
    for container in pod.spec.containers or ():
        _add(total, changing.asked_by(container))
    sidecars: Nanos = {}
    start: Nanos = {}
    for container in pod.spec.init_containers or ():
        if container.restart_policy == ALWAYS:
            asked = changing.asked_by(container)
            _add(total, asked)
            _add(sidecars, asked)
            _raise(start, sidecars)
        else:
            moment = dict(sidecars)
            _add(moment, _requests(container.resources))
            _raise(start, moment)
    _raise(total, start)
    return total


class _Changing:
    """The containers of a pod whose resources may differ from what its spec says, because they are being changed."""

    def __init__(self, pod: Pod) -> None:
        statuses = [*(pod.status.container_statuses or ()), *(pod.status.init_container_statuses or ())]
        self._statuses = {status.name: status for status in statuses if status.resources is not None}
        self._given_up = bool(self._statuses) and _resize_is_infeasible(pod)

    def asked_by(self, container: Container) -> Nanos:
        asked = _requests(container.resources)
        status = self._statuses.get(container.name)
        if status is None:
            return asked
        return _largest(asked if not self._given_up else {}, status)


def _resize_is_infeasible(pod: Pod) -> bool:
    pending = next((one for one in pod.status.conditions or () if one.type == RESIZE_PENDING), None)
    return pending is not None and pending.reason == INFEASIBLE


def _largest(asked: Nanos, status: ContainerStatus) -> Nanos:
    largest = dict(asked)
    if status.resources is not None and status.resources.requests:
        _raise(largest, _in_nanos(status.resources.requests))
    if status.allocated_resources:
        _raise(largest, _in_nanos(status.allocated_resources))
    return largest


# ---------------------------------------------------------------------------------------------------------- whole pods


def _override(total: Nanos, resources: Resources) -> None:
    """Requests of the whole pod take the place of the containers'; a limit alone only where they ask for nothing."""
    for name, text in (resources.limits or {}).items():
        if _is_of_pods(name):
            total.setdefault(name, nanos(text))
    for name, text in (resources.requests or {}).items():
        if _is_of_pods(name):
            total[name] = nanos(text)


def _is_of_pods(resource: str) -> bool:
    return resource in (CPU, MEMORY) or resource.startswith(HUGE_PAGES)


# --------------------------------------------------------------------------------------------------------------- lists


def _requests(resources: Resources | None) -> Nanos:
    """What is only limited is asked for to that limit."""
    if resources is None:
        return {}
    if not resources.limits:
        return _in_nanos(resources.requests or {})
    return _in_nanos({**resources.limits, **(resources.requests or {})})


def _in_nanos(quantities: Quantities) -> Nanos:
    return {name: nanos(text) for name, text in quantities.items()}


def _add(total: Nanos, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise(total: Nanos, least: Mapping[str, int]) -> None:
    for name, amount in least.items():
        if amount > total.get(name, 0):
            total[name] = amount


# ------------------------------------------------------------------------------------------------------- not served yet

FRACTION: Final = ("gpu-fraction", "gpu-memory")
"""Annotations with which a pod asks for a part of a GPU."""


def gpu_sharing_of(pod: Pod) -> str | None:
    """Why a pod that wants a part of a GPU cannot be served; None: it wants none."""
    for name in FRACTION:
        value = (pod.metadata.annotations or {}).get(name)
        if value is not None:
            return f"asks for a part of a GPU ({name}: {value}), and only whole GPUs and MIG slices are served here"
    return None


def device_claims_of(pod: Pod) -> str | None:
    """Why a pod that wants devices by resource claims cannot be served; None: it wants none."""
    if not pod.spec.resource_claims:
        return None
    names = ", ".join(str(claim.get("name", "")) for claim in pod.spec.resource_claims)
    return f"asks for devices by resource claims ({names}), which are not served here"
