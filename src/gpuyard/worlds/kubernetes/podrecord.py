"""One pod as the scheduler keeps it: the object, and what was worked out from it and from what it refers to.

Place in the flow: objects ─**podrecord**─▶ picture ─▶ jobs, world. Invariant: whatever is worked out stands beside the
object it was worked out from, and is replaced with it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec.structs import replace

from gpuyard.kubeapi.moments import ms_of
from gpuyard.model.jobs import Request
from gpuyard.worlds.kubernetes import objects
from gpuyard.worlds.kubernetes.grouping import Grouping
from gpuyard.worlds.kubernetes.objects import Pod

OVER: Final = frozenset({"Succeeded", "Failed"})


MIRROR: Final = "kubernetes.io/config.mirror"


class Held(NamedTuple):
    """Why a pod is not offered to the scheduler: a stable word, and a sentence."""

    word: str
    text: str


class PodRecord:
    """One pod, with what follows from it."""

    __slots__ = (
        "claims",
        "created_ms",
        "grouping",
        "held",
        "job",
        "key",
        "labels",
        "ours",
        "pod",
        "refers",
        "rejected",
        "request",
        "since_ms",
    )

    def __init__(self, pod: Pod, ours: bool) -> None:
        self.pod = pod
        self.key = key_of(pod.metadata)
        self.ours = ours
        self.created_ms = ms_of(pod.metadata.creation_timestamp)
        self.job = ""
        self.grouping: Grouping | None = None
        """None for pods of others, and while it cannot be told."""
        self.request = Request()
        self.labels: tuple[tuple[str, str], ...] = ()
        self.held: Held | None = None
        self.claims: tuple[str, ...] = ()
        """Claims that must be told of the node before it is bound there."""
        self.refers: list[str] = []
        """Owners by uid, and its PodGroup: when they change, its group is worked out anew."""
        self.since_ms = 0
        """Since when it has been on its node."""
        self.rejected = False
        """Whether it was noted that a kubelet did not take it."""

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid

    @property
    def node(self) -> str:
        return self.pod.spec.node_name

    @property
    def over(self) -> bool:
        return self.pod.status.phase in OVER

    @property
    def leaving(self) -> bool:
        return self.pod.metadata.deletion_timestamp is not None

    @property
    def deleted_ms(self) -> int:
        """When it has to be gone."""
        return ms_of(self.pod.metadata.deletion_timestamp)

    @property
    def gated(self) -> bool:
        return bool(self.pod.spec.scheduling_gates)


def key_of(metadata: objects.Metadata) -> str:
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name


def is_mirror(pod: Pod) -> bool:
    """Whether it only shows what a kubelet runs from a file of its own: that goes on, whatever is done to the pod."""
    return MIRROR in (pod.metadata.annotations or {})


# -------------------------------------------------------------------------------------------- what has changed about it


def asks_the_same(now: objects.PodSpec, before: objects.PodSpec) -> bool:
    """Being bound changes where a pod is, and nothing it asks for."""
    return now == before or now == replace(before, node_name=now.node_name)


def belonging(pod: Pod) -> tuple[object, ...]:
    """What its group follows from, beside its labels and what it asks for."""
    return pod.metadata.annotations, pod.metadata.owner_references


def given(pod: Pod) -> list[object]:
    """What its kubelet has given its containers, which differs from what it asks for while it is resized."""
    statuses = (*(pod.status.container_statuses or ()), *(pod.status.init_container_statuses or ()))
    return [(status.name, status.resources, status.allocated_resources) for status in statuses]


def standing(pod: Pod) -> tuple[object, ...]:
    """What the scheduler sees of a pod's life; when only other things change, nothing is to be done."""
    end = (pod.status.phase, pod.status.reason) if pod.status.phase in OVER else None
    return pod.spec.node_name, end, pod.metadata.deletion_timestamp, bool(pod.spec.scheduling_gates)
