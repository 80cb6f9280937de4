"""Volumes that lie ready for claims that wait for their first consumer, as local disks do.

Place in the flow: beside volumes. Pure. Invariant: no volume is thought of for two claims of one pod.

The smallest volume that will do is taken, smaller claims choosing first, as kube-scheduler does it. A claim gets none
but the one somebody has set aside for it, if there is such a one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from gpuyard.worlds.kubernetes.objects import ClaimReference, PersistentVolume, VolumeClaim
from gpuyard.worlds.kubernetes.quantities import nanos
from gpuyard.worlds.kubernetes.selectors import (
    ANYTHING,
    Alternatives,
    accepts,
    both,
    either,
    label_rules,
    node_alternatives,
)

OLD_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
AVAILABLE: Final = "Available"
STORAGE: Final = "storage"
FILES: Final = "Filesystem"


def places_for(
    claims: Sequence[VolumeClaim], volumes: Sequence[PersistentVolume], made: Mapping[str, Alternatives]
) -> Alternatives:
    """Where all of several claims can have a volume: one that lies ready, or one that is made (`made` says where).

    Volumes that reach the same nodes are looked at together, with those that reach every node.
    """
    found = [both(*made.values())]
    if found == [ANYTHING]:
        return ANYTHING
    by_reach: dict[Alternatives, set[str]] = {}
    for volume in volumes:
        if any(_suits(claim, volume) for claim in claims):
            by_reach.setdefault(reach_of(volume), set()).add(volume.metadata.name)
    everywhere = by_reach.get(ANYTHING, set())
    for reach, there in by_reach.items():
        given = shared_out(claims, volumes, there | everywhere)
        found.append(both(reach, *(where for name, where in made.items() if name not in given)))
    return either(*found)


def shared_out(
    claims: Iterable[VolumeClaim], volumes: Sequence[PersistentVolume], here: Collection[str]
) -> dict[str, str]:
    """The volume each claim gets of those that are `here`, by name; a claim for which there is none is left out."""
    given: dict[str, str] = {}
    taken: set[str] = set()
    for claim in sorted(claims, key=_wanted):
        suitable = [volume for volume in volumes if _suits(claim, volume)]
        meant = [volume for volume in suitable if volume.spec.claim_ref is not None]
        free = [one for one in meant or suitable if one.metadata.name in here and one.metadata.name not in taken]
        if free:
            smallest = min(free, key=lambda one: (_size(one), one.metadata.name))
            given[claim.metadata.name] = smallest.metadata.name
            taken.add(smallest.metadata.name)
    return given


def reach_of(volume: PersistentVolume) -> Alternatives:
    """The nodes a volume can be used on."""
    affinity = volume.spec.node_affinity
    return ANYTHING if affinity is None or affinity.required is None else node_alternatives(affinity.required)


def class_of_claim(claim: VolumeClaim) -> str:
    older = (claim.metadata.annotations or {}).get(OLD_CLASS)
    return older if older is not None else claim.spec.storage_class_name or ""


def _suits(claim: VolumeClaim, volume: PersistentVolume) -> bool:
    wanted, there = claim.spec, volume.spec
    if _size(volume) < _wanted(claim) or (wanted.volume_mode or FILES) != (there.volume_mode or FILES):
        return False
    if (wanted.volume_attributes_class_name or "") != (there.volume_attributes_class_name or ""):
        return False
    if volume.metadata.deletion_timestamp is not None or _class_of_volume(volume) != class_of_claim(claim):
        return False
    if there.claim_ref is not None:
        return _is_meant(there.claim_ref, claim)
    return (
        volume.status.phase == AVAILABLE
        and set(wanted.access_modes or ()) <= set(there.access_modes or ())
        and (wanted.selector is None or accepts(label_rules(wanted.selector), volume.metadata.labels or {}))
    )


def _is_meant(reference: ClaimReference, claim: VolumeClaim) -> bool:
    metadata = claim.metadata
    named = (reference.namespace, reference.name) == (metadata.namespace, metadata.name)
    return named and reference.uid in ("", metadata.uid)


def _class_of_volume(volume: PersistentVolume) -> str:
    older = (volume.metadata.annotations or {}).get(OLD_CLASS)
    return older if older is not None else volume.spec.storage_class_name


def _size(volume: PersistentVolume) -> int:
    return nanos((volume.spec.capacity or {}).get(STORAGE, "0"))


def _wanted(claim: VolumeClaim) -> int:
    resources = claim.spec.resources
    return nanos((resources.requests or {}).get(STORAGE, "0")) if resources is not None else 0
