"""What is to be written to the API server, as data.

Place in the flow: world ─Errand─▶ writer ─requests─▶ API server. Invariant: every write names the pod's uid, so that it
can hit no other pod of that name, however late it comes.
"""

from __future__ import annotations

import msgspec

from gpuyard.model.reasons import Reason
from gpuyard.worlds.kubernetes.intents import Place
from gpuyard.worlds.kubernetes.volumes import Given


class PodName(msgspec.Struct, frozen=True, gc=False):
    """One pod, and no other."""

    namespace: str
    name: str
    uid: str


class BindPod(msgspec.Struct, frozen=True, gc=False):
    """Start it on this node."""

    job: str
    pod: PodName
    node: str
    claims: tuple[str, ...] = ()
    """Claims of volumes that are made for the node it starts on, and must be there first."""
    failures: int = 0
    """How often its job could not be bound lately."""
    given: tuple[Given, ...] = ()
    """Volumes that lie ready, which must be the pod's first."""


class NominateNode(msgspec.Struct, frozen=True, gc=False):
    """Note in its status which place is kept for it; empty: none."""

    job: str
    pod: PodName
    node: str


class EvictPod(msgspec.Struct, frozen=True, gc=False):
    """Make it go, politely."""

    job: str
    pod: PodName
    node: str
    reason: Reason
    text: str
    """The rule and for whose sake, as its owner reads it."""


class SavePlaces(msgspec.Struct, frozen=True, gc=False):
    """Note which places are kept for pods that are not there yet."""

    places: tuple[Place, ...]
    moves_ms: tuple[int, ...]
    """When pods were moved, of the last hour."""


Write = BindPod | NominateNode | EvictPod | SavePlaces


class Errand(msgspec.Struct, frozen=True):
    """What is noted before anything is done about it, and what is done then."""

    notes: tuple[NominateNode | SavePlaces, ...] = ()
    deeds: tuple[BindPod | EvictPod, ...] = ()
