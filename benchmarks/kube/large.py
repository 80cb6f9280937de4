"""gpuyard alone on a large cluster: what it holds in memory, and how soon one new pod is bound.

Place in the flow: run ─▶ **large** ─Row─▶ the report. 2 000 nodes, each with seven of its eight GPUs in use and three
pods of another scheduler without any: 20 000 pods that run already.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks.kube.cluster import Cluster
from benchmarks.kube.contestants import Contestant, Running, running
from benchmarks.kube.figures import BIND_LIMIT_MS, MEMORY_LIMIT_MB, bind_s
from benchmarks.kube.load import Kind, Order
from benchmarks.kube.measuring import MS, carried_out, measure, pods
from benchmarks.kube.objects import Object, PodShape, pod
from benchmarks.report import Row

NODES: Final = 2000
GPU_PODS: Final = 7
OTHER_PODS: Final = 3
PODS_PER_NODE: Final = GPU_PODS + OTHER_PODS
SAMPLES: Final = 20
FILL_S: Final = 1800.0
BIND_S: Final = 60.0
BATCH: Final = 5000
STRANGER: Final = "default-scheduler"
"""Whose pods run there as well."""


def running_pods(nodes: int, scheduler: str) -> Iterator[Object]:
    for number in range(nodes * PODS_PER_NODE):
        node, place = divmod(number, PODS_PER_NODE)
        where = f"kwok-{node + 1}"
        if place < GPU_PODS:
            yield pod(f"p-{number:05}", PodShape(scheduler, node=where))
        else:
            yield pod(f"p-{number:05}", PodShape(STRANGER, gpus=0, node=where))


def fill(cluster: Cluster, scheduler: str, tell: Callable[[str], None]) -> None:
    objects = list(running_pods(cluster.nodes, scheduler))
    for at in range(0, len(objects), BATCH):
        some = objects[at : at + BATCH]
        carried_out(Order(cluster.server(), pods(some), Kind.BOUND, len(some), FILL_S))
        tell(f"{at + len(some)} of {len(objects)} pods are there")


def large_rows(
    cluster: Cluster, contestant: Contestant, nodes: int, logs: Path, tell: Callable[[str], None]
) -> Iterator[Row]:
    cluster.enlarge(nodes, tell)
    fill(cluster, contestant.scheduler, tell)
    cluster.wait_running()
    cluster.settle()
    tell("they run")
    with running(contestant, cluster.bed, logs) as up:
        cluster.wait_ready(contestant, up)
        yield from bind_rows(cluster, contestant, up, tell)


def bind_rows(cluster: Cluster, contestant: Contestant, up: Running, tell: Callable[[str], None]) -> Iterator[Row]:
    shape = PodShape(contestant.scheduler, probe=True)
    raw, calibrated = [], []
    for number in range(SAMPLES):
        order = Order(cluster.server(), pods([pod(f"n-{number:05}", shape)]), Kind.PLACED, 1, BIND_S)
        measured = measure(cluster, up, order)
        raw.append(bind_s(measured.trace) * MS)
        calibrated.append(raw[-1] * measured.factor)
    tell(f"one new pod each, in ms: {', '.join(f'{ms:.0f}' for ms in sorted(raw))}")
    name = f"{cluster.nodes} nodes, {cluster.nodes * PODS_PER_NODE} pods: a new pod, from its watch event to its node"
    middle, middle_calibrated = statistics.median(raw), statistics.median(calibrated)
    yield Row(f"{name}, median of {SAMPLES}", "ms", middle, middle_calibrated, BIND_LIMIT_MS)
    yield Row("the same: memory at its highest", "MB", up.peak_mb(), up.peak_mb(), MEMORY_LIMIT_MB)
