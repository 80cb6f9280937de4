"""The clusters that are measured: eight GPUs a node, four teams in two departments, each owed a quarter.

A shape can be built with its nodes or its waiting jobs doubled, to see how the time grows. A cluster that is full
stays full: with the nodes doubled, what runs on them is doubled too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from gpuyard.model.jobs import DeviceShare, Job, Request, Task, TaskGroup, TaskState
from gpuyard.model.nodes import Device, Node
from gpuyard.model.quantities import GPU, MILLI
from gpuyard.model.queues import Queue, QueueShare
from gpuyard.model.snapshot import Snapshot

GPUS_PER_NODE: Final = 8
GPU_MIB: Final = 81_920
CORES_PER_NODE: Final = 128
GIB: Final = 1 << 30
DEPARTMENTS: Final = ("research", "products")
TEAMS: Final = ("vision", "speech", "search", "ads")
NODES: Final = 5_000
ONE_GPU: Final = Request(devices=1, cpu_milli=MILLI, memory_bytes=8 * GIB)


class Shape(msgspec.Struct, frozen=True):
    """One cluster to measure, and what it may cost."""

    name: str
    build: Callable[[int, int], Snapshot]
    """From the number of nodes and of waiting jobs."""
    nodes: int
    jobs: int
    target_ms: float
    target_mb: float | None = None
    incremental: bool = False
    """Measured on a kept ledger: one new job arrives."""


def empty_cluster(nodes: int, jobs: int) -> Snapshot:
    return cluster(nodes, pending(jobs))


def gangs_of_four(nodes: int, jobs: int) -> Snapshot:
    return cluster(nodes, pending(jobs, tasks=4))


def busy_cluster(nodes: int, jobs: int) -> Snapshot:
    """Six of the eight GPUs of every one of the 5 000 nodes are in use; nodes that come on top are empty."""
    return cluster(nodes, [*running(min(nodes, NODES), 6), *pending(jobs)])


def full_cluster(nodes: int, jobs: int) -> Snapshot:
    return cluster(nodes, [*running(nodes, GPUS_PER_NODE), *pending(jobs)])


def half_out_of_cpu(nodes: int, jobs: int) -> Snapshot:
    """Every second node looks best (seven GPUs left, so the fullest) and has no core left."""
    hog = Request(devices=1, cpu_milli=CORES_PER_NODE * MILLI)
    hogs = [running_job(f"hog-{at:05}", at, (0,), hog) for at in range(0, nodes, 2)]
    return cluster(nodes, [*hogs, *pending(jobs)])


def many_request_shapes(nodes: int, jobs: int) -> Snapshot:
    """400 different requests: twenty amounts of CPU, each with twenty of memory."""
    requests = [
        Request(devices=1, cpu_milli=100 * cores, memory_bytes=gib * GIB)
        for cores in range(1, 21)
        for gib in range(1, 21)
    ]
    waiting = [waiting_job(at, requests[at % len(requests)], 1) for at in range(jobs)]
    return cluster(nodes, [*running(min(nodes, NODES), 6), *waiting])


SHAPES: Final = (
    Shape("500 jobs on 100 empty nodes", empty_cluster, 100, 500, target_ms=15),
    Shape("100 gangs of 4 on 50 nodes", gangs_of_four, 50, 100, target_ms=7),
    Shape("10000 jobs, 30000 running on 5000 nodes", busy_cluster, NODES, 10_000, target_ms=700, target_mb=200),
    Shape("10000 jobs that fit nowhere, 5000 full nodes", full_cluster, NODES, 10_000, target_ms=500),
    Shape("one new job, 30000 running", busy_cluster, NODES, 0, target_ms=8, incremental=True),
    Shape("one new job, full, 10000 waiting", full_cluster, NODES, 10_000, target_ms=8, incremental=True),
    Shape("8000 jobs, half of 5000 nodes out of CPU", half_out_of_cpu, NODES, 8_000, target_ms=700),
    Shape("8000 jobs of 400 request shapes", many_request_shapes, NODES, 8_000, target_ms=700),
)


# --------------------------------------------------------------------------------------------------------- parts


def cluster(nodes: int, jobs: Iterable[Job]) -> Snapshot:
    return Snapshot(tuple(node(at) for at in range(nodes)), queues(nodes), tuple(jobs))


def node(at: int, gpus: int = GPUS_PER_NODE) -> Node:
    return Node(
        f"node-{at:05}",
        devices=tuple(Device("H100", GPU_MIB, id=f"GPU-{at:05}-{index}") for index in range(gpus)),
        cpu_milli=CORES_PER_NODE * MILLI,
        memory_bytes=1024 * GIB,
    )


def queues(nodes: int) -> tuple[Queue, ...]:
    quarter = nodes * GPUS_PER_NODE * MILLI // 4
    departments = (
        Queue(name, shares=(QueueShare(GPU, quota=2 * quarter),), order=at) for at, name in enumerate(DEPARTMENTS)
    )
    teams = (
        Queue(name, DEPARTMENTS[at // 2], (QueueShare(GPU, quota=quarter),), order=at) for at, name in enumerate(TEAMS)
    )
    return (*departments, *teams)


def pending(count: int, tasks: int = 1) -> Iterator[Job]:
    return (waiting_job(at, ONE_GPU, tasks) for at in range(count))


def waiting_job(at: int, request: Request, tasks: int) -> Job:
    return Job(
        f"waiting-{at:05}",
        TEAMS[at % len(TEAMS)],
        tuple(Task(f"waiting-{at:05}-{index}", request) for index in range(tasks)),
        TaskGroup(min_tasks=tasks),
        submitted_at_ms=100_000 + at,
    )


def running(nodes: int, per_node: int) -> Iterator[Job]:
    for at in range(nodes):
        for device in range(per_node):
            yield running_job(f"running-{at:05}-{device}", at, (device,), ONE_GPU)


def running_job(id: str, at: int, devices: tuple[int, ...], request: Request) -> Job:
    shares = tuple(DeviceShare(device, MILLI, GPU_MIB) for device in devices)
    task = Task(f"{id}-0", request, state=TaskState.RUNNING, node=f"node-{at:05}", shares=shares)
    return Job(id, TEAMS[(at + sum(devices)) % len(TEAMS)], (task,), submitted_at_ms=at)
