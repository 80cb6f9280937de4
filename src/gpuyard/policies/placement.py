"""Which of the nodes a task fits on is best: one small formula per policy, the lowest score wins.

Every formula works on single integers and on whole NumPy columns alike, so that one node can be scored again after
a change without scoring all of them. Ties go to the node whose name comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gpuyard.policies.policy import NodePlacement

Numbers = Any
"""An `int`, or a NumPy column of them: the formulas below do not care which."""

FAR: Final = 1 << 40
"""More than any score: what is put last although it fits."""

Score = Callable[[bool, Numbers, Numbers, Numbers, Numbers], Numbers]
"""(wants a GPU, free GPU milli, free CPU milli, GPU milli in all (at least 1), CPU milli in all (at least 1))."""

PARTS_PER: Final = 1_000_000


def bin_pack(gpu: bool, gpu_free: Numbers, cpu_free: Numbers, gpu_all: Numbers, cpu_all: Numbers) -> Numbers:
    """The fullest node. Tasks without a GPU go to nodes without one first."""
    return gpu_free if gpu else (gpu_all > 1) * FAR + cpu_free


def spread(gpu: bool, gpu_free: Numbers, cpu_free: Numbers, gpu_all: Numbers, cpu_all: Numbers) -> Numbers:
    """The node with the largest part of it free."""
    if gpu:
        return -(gpu_free * PARTS_PER // gpu_all)
    return (gpu_all > 1) * FAR - cpu_free * PARTS_PER // cpu_all


def best_fit(gpu: bool, gpu_free: Numbers, cpu_free: Numbers, gpu_all: Numbers, cpu_all: Numbers) -> Numbers:
    """The node with least left over, GPUs and CPU counted alike against a large node (8 GPUs, 128 cores)."""
    return gpu_free * PARTS_PER // 8_000 + cpu_free * PARTS_PER // 128_000


def keep_nodes_free(gpu: bool, gpu_free: Numbers, cpu_free: Numbers, gpu_all: Numbers, cpu_all: Numbers) -> Numbers:
    """Any node in use before an empty one; then the fullest."""
    if gpu:
        return (gpu_free >= gpu_all) * FAR + gpu_free
    return bin_pack(gpu, gpu_free, cpu_free, gpu_all, cpu_all)


SCORES: Final[dict[NodePlacement, Score]] = {
    NodePlacement.BIN_PACK: bin_pack,
    NodePlacement.SPREAD: spread,
    NodePlacement.BEST_FIT: best_fit,
    NodePlacement.TOPOLOGY: bin_pack,
    NodePlacement.KEEP_NODES_FREE: keep_nodes_free,
    # Ties of the gradient, and tasks it says nothing about, go by bin-pack.
    NodePlacement.FRAGMENTATION_GRADIENT: bin_pack,
}
