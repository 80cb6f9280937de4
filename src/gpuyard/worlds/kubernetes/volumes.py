"""Where the volumes of a pod let it run, or why it must wait for them.

Place in the flow: objects (pods, claims, volumes, classes) ─**volumes**─▶ constraints, binding. Pure. Invariant: a pod
is never sent where one of its volumes cannot follow.

A claim that has its volume ties the pod to the nodes that volume reaches. A claim that waits for its first consumer is
settled once the pod has a node and before it is bound there: a volume that lies ready is given to it, or it is told the
node, so that one is made there. How many volumes a node can attach, and how much room there is to make new ones, is
not counted.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Final

import msgspec

from gpuyard.errors import InputError
from gpuyard.model.jobs import LabelRule, Operator
from gpuyard.worlds.kubernetes.objects import PersistentVolume, Pod, StorageClass, VolumeClaim
from gpuyard.worlds.kubernetes.ready_volumes import class_of_claim, places_for, reach_of, shared_out
from gpuyard.worlds.kubernetes.selectors import ANYTHING, NAME, Alternatives, Rules, accepts, both, either

SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
"""With this annotation a claim is told for which node its volume is made."""
BOUND: Final = "pv.kubernetes.io/bind-completed"
FIRST_CONSUMER: Final = "WaitForFirstConsumer"
ONE_POD: Final = "ReadWriteOncePod"
LOST: Final = "Lost"
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
"""The provisioner of classes that make no volumes: somebody lays them ready."""

OLD_LABELS: Final = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
ZONE_LABELS: Final = (*OLD_LABELS, *OLD_LABELS.values())
"""A volume with one of these is only for nodes with the same value, or for nodes that have none of them at all."""
SEVERAL: Final = "__"
"""Stands between the zones of a volume that reaches more than one."""


class VolumeRules(msgspec.Struct, frozen=True, gc=False):
    """Where a pod may run for the sake of its volumes, and which claims must be settled before it is bound."""

    alternatives: Alternatives = ANYTHING
    tell: tuple[str, ...] = ()
    """Names of claims in the namespace of the pod; `settled` says what each of them must be told."""
    alone: tuple[str, ...] = ()
    """Claims, as `namespace/name`, that no two pods may use at once."""


class MustWait(msgspec.Struct, frozen=True, gc=False):
    """A pod that cannot be placed before something about its volumes changes."""

    why: str


class Given(msgspec.Struct, frozen=True, gc=False):
    """A volume that lies ready, for a claim, by a reference in the volume."""

    claim: str
    claim_uid: str
    volume: str
    version: str = ""
    """Of the volume when it was chosen: one that somebody has changed since may be somebody else's by now."""


class Settled(msgspec.Struct, frozen=True, gc=False):
    """What must be written, and have led to bound claims, before a pod is bound to its node."""

    told: tuple[str, ...] = ()
    """Claims that get the node as their annotation SELECTED_NODE."""
    given: tuple[Given, ...] = ()


FREE: Final = VolumeRules()


class Storage(msgspec.Struct, frozen=True):
    """All that is known about volumes: claims by `namespace/name`, the rest by name."""

    claims: Mapping[str, VolumeClaim]
    volumes: Mapping[str, PersistentVolume]
    classes: Mapping[str, StorageClass]


def volume_rules(
    pod: Pod,
    claims: Mapping[str, VolumeClaim],
    volumes: Mapping[str, PersistentVolume],
    classes: Mapping[str, StorageClass],
    in_use: Container[str] = (),
) -> VolumeRules | MustWait:
    """The rules of all volumes of a pod, or the first reason why it must wait.

    Claims are found by `namespace/name`, and so are those that other pods with a node use; the rest by name.
    """
    if not pod.spec.volumes:
        return FREE
    reading = _Reading(pod, Storage(claims, volumes, classes), in_use)
    for name, is_own in _claim_names(pod):
        why = reading.add(name, is_own)
        if why:
            return MustWait(why)
    try:
        return reading.rules()
    except InputError as error:
        return MustWait(error.what)


def settled(pod: Pod, node_labels: dict[str, str], storage: Storage) -> Settled | MustWait:
    """What the claims of a pod that still have no volume are given or told, now that it has a node."""
    keys = [f"{pod.metadata.namespace}/{name}" for name, _ in _claim_names(pod)]
    claims = [storage.claims[key] for key in keys if key in storage.claims and not _is_bound(storage.claims[key])]
    choosing = [claim for claim in claims if _told_node(claim) is None]
    volumes = tuple(storage.volumes.values())
    here = {one.metadata.name for one in volumes if _is_any(reach_of(one), node_labels)}
    chosen = shared_out(choosing, volumes, here)
    told: list[str] = []
    given: list[Given] = []
    for claim in claims:
        name = claim.metadata.name
        volume = storage.volumes.get(chosen.get(name, ""))
        if volume is not None and volume.spec.claim_ref is None:
            given.append(Given(name, claim.metadata.uid, volume.metadata.name, volume.metadata.resource_version))
        elif volume is not None or _is_any(_made_for(claim, storage.classes), node_labels):
            told.append(name)
        else:
            return MustWait(f'waits for a volume that its claim "{name}" can have on its node')
    return Settled(tuple(told), tuple(given))


def is_for_one_pod(claim: VolumeClaim) -> bool:
    return ONE_POD in (claim.spec.access_modes or ())


def _is_any(alternatives: Alternatives, labels: dict[str, str]) -> bool:
    return any(accepts(rules, labels) for rules in alternatives)


def claims_of(pod: Pod) -> tuple[str, ...]:
    """The claims a pod uses, as `namespace/name`."""
    return tuple(f"{pod.metadata.namespace}/{name}" for name, _ in _claim_names(pod))


def _claim_names(pod: Pod) -> Iterable[tuple[str, bool]]:
    """With the name of each claim, whether it is made for this pod alone."""
    for volume in pod.spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name, False
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}", True


def _is_bound(claim: VolumeClaim) -> bool:
    return bool(claim.spec.volume_name) and BOUND in (claim.metadata.annotations or {})


def _told_node(claim: VolumeClaim) -> str | None:
    return (claim.metadata.annotations or {}).get(SELECTED_NODE)


def _made_for(claim: VolumeClaim, classes: Mapping[str, StorageClass]) -> Alternatives:
    """Where a volume can be made for a claim. A term without conditions stands for nowhere."""
    found = classes.get(class_of_claim(claim))
    if found is None or found.provisioner in ("", NO_PROVISIONER):
        return ()
    if not found.allowed_topologies:
        return ANYTHING
    return tuple(
        tuple(LabelRule(one.key, Operator.IN, tuple(sorted(one.values or ()))) for one in term.match_label_expressions)
        for term in found.allowed_topologies
        if term.match_label_expressions
    )


class _Reading:
    """What the claims of one pod, one after the other, say about where it may run."""

    def __init__(self, pod: Pod, storage: Storage, in_use: Container[str]) -> None:
        self._pod, self._storage, self._in_use = pod, storage, in_use
        self._parts: list[Alternatives] = []
        self._zones: list[Alternatives] = []
        self._unbound: list[VolumeClaim] = []
        self._alone: list[str] = []

    def rules(self) -> VolumeRules:
        if not (self._parts or self._zones or self._unbound or self._alone):
            return FREE
        zones = either(_NO_ZONES, both(*self._zones)) if self._zones else ANYTHING
        tell = tuple(dict.fromkeys(claim.metadata.name for claim in self._unbound))
        alone = tuple(sorted(set(self._alone)))
        return VolumeRules(both(*self._parts, self._settling_places(), zones), tell, alone)

    def _settling_places(self) -> Alternatives:
        """Where all claims that wait for the pod can have a volume. One that was told its node will get one made."""
        choosing = [claim for claim in self._unbound if _told_node(claim) is None]
        made = {claim.metadata.name: _made_for(claim, self._storage.classes) for claim in choosing}
        told = (_made_for(claim, self._storage.classes) for claim in self._unbound if _told_node(claim) is not None)
        return both(*told, places_for(choosing, tuple(self._storage.volumes.values()), made))

    def add(self, name: str, is_own: bool) -> str:
        """Take up one claim; returns why the pod must wait for it, empty if it need not."""
        key = f"{self._pod.metadata.namespace}/{name}"
        claim = self._storage.claims.get(key)
        if claim is None:
            return f'waits for its volume claim "{name}", which {"is still to be made" if is_own else "does not exist"}'
        why = self._forbids(claim, key, is_own)
        if why:
            return why
        if is_for_one_pod(claim) and not is_own:
            self._alone.append(key)
        return self._add_bound(claim) if _is_bound(claim) else self._add_unbound(claim)

    def _forbids(self, claim: VolumeClaim, key: str, is_own: bool) -> str:
        name = claim.metadata.name
        if claim.metadata.deletion_timestamp is not None:
            return f'waits for its volume claim "{name}", which is being deleted'
        if claim.status.phase == LOST:
            return f'waits for its volume claim "{name}", which has lost its volume'
        if is_own and not any(owner.uid == self._pod.metadata.uid for owner in claim.metadata.owner_references or ()):
            return f'waits for its own volume claim "{name}", in whose place there is one that was not made for it'
        if is_for_one_pod(claim) and key in self._in_use:
            return f'waits for its volume claim "{name}", which one pod at a time may use and another one does'
        return ""

    def _add_bound(self, claim: VolumeClaim) -> str:
        volume = self._storage.volumes.get(claim.spec.volume_name)
        if volume is None:
            name = claim.metadata.name
            return f'waits for the volume "{claim.spec.volume_name}" of its claim "{name}", which does not exist'
        self._parts.append(reach_of(volume))
        self._zones.extend(_zones_of(volume))
        return ""

    def _add_unbound(self, claim: VolumeClaim) -> str:
        name, class_name = claim.metadata.name, class_of_claim(claim)
        found = self._storage.classes.get(class_name)
        if class_name and found is None:
            return f'waits for its volume claim "{name}", whose storage class "{class_name}" does not exist'
        if found is None or claim.spec.volume_name or found.volume_binding_mode != FIRST_CONSUMER:
            return f'waits for its volume claim "{name}", which has no volume yet'
        self._unbound.append(claim)
        told = _told_node(claim)
        if told is not None:
            self._parts.append(((LabelRule(NAME, Operator.IN, (told,)),),))
        return ""


# ---------------------------------------------------------------------------------------------------------------- zones

_NO_ZONES: Final[Alternatives] = (tuple(LabelRule(name, Operator.MISSING) for name in ZONE_LABELS),)


def _zones_of(volume: PersistentVolume) -> Iterable[Alternatives]:
    """What the labels of a volume demand of the labels of nodes, one set of alternatives per label."""
    for name in ZONE_LABELS:
        value = (volume.metadata.labels or {}).get(name)
        zones = [zone.strip() for zone in value.split(SEVERAL)] if value is not None else []
        # A label that cannot be read does not count.
        if zones and all(zones):
            yield _in_zones(name, tuple(sorted(set(zones))))


def _in_zones(name: str, zones: tuple[str, ...]) -> Alternatives:
    rules: Rules = (LabelRule(name, Operator.IN, zones),)
    newer = OLD_LABELS.get(name)
    if newer is None:
        return (rules,)
    return (rules, (LabelRule(name, Operator.MISSING), LabelRule(newer, Operator.IN, zones)))
