"""What the scheduler follows in a cluster: one line per kind of object.

Place in the flow: API server ─**sources**, Follower─▶ picture. Invariant: kinds of owners are followed only once a pod
names one, so that a cluster without them costs nothing and needs no right to read them.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gpuyard.kubeapi.paths import path_of
from gpuyard.worlds.kubernetes import objects
from gpuyard.worlds.kubernetes.devices import SELECTOR

RUN_AI: Final = "scheduling.run.ai"
KAI: Final = "kai.scheduler"


class Source(msgspec.Struct, frozen=True):
    """One collection."""

    kind: str
    """As the picture calls it."""
    path: str
    object: Any
    """The struct its objects are decoded into."""
    selectors: tuple[tuple[str, str], ...] = ()
    optional: bool = False
    """Whether a cluster may not know this kind at all."""


def sources(namespace: str) -> tuple[Source, ...]:
    """`namespace` is the one our own objects are in."""
    storage, scheduling = "storage.k8s.io", "scheduling.k8s.io"
    return (
        Source("nodes", path_of("nodes"), objects.Node),
        Source("queues", path_of("queues", group=RUN_AI, version="v2"), objects.KaiQueue),
        Source("podgroups", path_of("podgroups", group=RUN_AI, version="v2alpha2"), objects.PodGroup),
        Source("topologies", path_of("topologies", group=KAI, version="v1alpha1"), objects.KaiTopology, optional=True),
        Source("namespaces", path_of("namespaces"), objects.Namespace),
        Source("priorityclasses", path_of("priorityclasses", group=scheduling), objects.PriorityClass),
        Source("budgets", path_of("poddisruptionbudgets", group="policy"), objects.DisruptionBudget),
        Source("claims", path_of("persistentvolumeclaims"), objects.VolumeClaim),
        Source("volumes", path_of("persistentvolumes"), objects.PersistentVolume),
        Source("storageclasses", path_of("storageclasses", group=storage), objects.StorageClass),
        Source(
            "devices",
            path_of("configmaps", namespace=namespace),
            objects.ConfigMap,
            selectors=(("labelSelector", SELECTOR),),
        ),
        Source("pods", path_of("pods"), objects.Pod),
    )
