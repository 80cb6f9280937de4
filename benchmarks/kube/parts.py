"""What is asked of a contestant, part by part.

Place in the flow: run ─▶ **parts** ─Sample─▶ figures. The pods that fill the cluster are those whose rate is measured;
on the full cluster a gang is refused first, then single GPUs are taken back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from benchmarks.kube.cluster import Cluster
from benchmarks.kube.contestants import Contestant, Running
from benchmarks.kube.figures import (
    Part,
    Sample,
    creating_s,
    gang_s,
    ours,
    pods_per_second,
    reclaim_s,
    refusal_s,
)
from benchmarks.kube.load import Kind, Order
from benchmarks.kube.measuring import Measured, groups, measure, pods
from benchmarks.kube.objects import (
    GPUS_PER_NODE,
    GROUPS_PATH,
    LENDERS,
    PODS_PATH,
    REFUSED_PODS,
    PodShape,
    pod,
    pod_group,
)

GANG_PODS: Final = 512
GANG_GPUS: Final = 2
RECLAIMS: Final = 3
FILL_S: Final = 900.0
GANG_S: Final = 300.0
REFUSAL_S: Final = 300.0
RECLAIM_S: Final = 120.0
LINGER_S: Final = 2.0
GANG: Final = "gang"
REFUSED: Final = "refused"


class Turn(msgspec.Struct, frozen=True):
    """A contestant that is up in one round."""

    cluster: Cluster
    contestant: Contestant
    running: Running
    round: int

    def sample(self, part: Part, measured: Measured, seconds: float, *, finished: bool, **notes: str | float) -> Sample:
        calibrated = seconds * measured.factor
        name, usage = self.contestant.name, measured.usage
        return Sample(part, name, self.round, seconds, calibrated, usage, finished=finished, notes=notes)


def fill(turn: Turn) -> Sample:
    """Single-GPU pods, as many as there are GPUs."""
    shape = PodShape(turn.contestant.scheduler)
    wanted = turn.cluster.gpus
    creations = pods(pod(f"p-{number:05}", shape) for number in range(wanted))
    order = Order(turn.cluster.server(), creations, Kind.BOUND, wanted, FILL_S)
    measured = measure(turn.cluster, turn.running, order)
    trace = measured.trace
    bound = len(ours(trace, Kind.BOUND))
    rate = pods_per_second(trace)
    notes: dict[str, str | float] = {"created_s": creating_s(trace), "bound": bound, "peak_mb": turn.running.peak_mb()}
    return Sample(
        *(Part.PODS, turn.contestant.name, turn.round, rate, rate / measured.factor, measured.usage),
        finished=bound == wanted,
        notes=notes,
    )


def gang(turn: Turn) -> Sample:
    """On an empty cluster; smaller where the cluster is."""
    members = min(GANG_PODS, turn.cluster.gpus // GANG_GPUS)
    shape = PodShape(turn.contestant.scheduler, gpus=GANG_GPUS, group=GANG)
    creations = pods(pod(f"g-{number:05}", shape) for number in range(members))
    first = groups(pod_group(GANG, shape.queue, members))
    order = Order(turn.cluster.server(), creations, Kind.BOUND, members, GANG_S, first)
    measured = measure(turn.cluster, turn.running, order)
    bound = len(ours(measured.trace, Kind.BOUND))
    taken_s = gang_s(measured.trace) if bound == members else GANG_S
    created_s = creating_s(measured.trace)
    return turn.sample(Part.GANG, measured, taken_s, finished=bound == members, created_s=created_s, bound=bound)


def refusal(turn: Turn) -> Sample:
    """A gang of whole nodes that is owed them, one GPU more than can be had; it is gone again afterwards."""
    shape = PodShape(turn.contestant.scheduler, queue=LENDERS, gpus=GPUS_PER_NODE, group=REFUSED, probe=True)
    creations = pods(pod(f"r-{number:05}", shape) for number in range(REFUSED_PODS))
    first = groups(pod_group(REFUSED, LENDERS, REFUSED_PODS))
    order = Order(turn.cluster.server(), creations, Kind.EXPLAINED, REFUSED_PODS, REFUSAL_S, first, LINGER_S)
    measured = measure(turn.cluster, turn.running, order)
    told = len(ours(measured.trace, Kind.EXPLAINED)) == REFUSED_PODS
    turn.cluster.remove(*(f"{PODS_PATH}/{each.name}" for each in creations), f"{GROUPS_PATH}/{REFUSED}")
    taken_s = refusal_s(measured.trace) if told else REFUSAL_S
    said = next(iter(measured.trace.said.values()), "")
    evicted = len(measured.trace.of(Kind.EVICTED))
    return turn.sample(Part.REFUSAL, measured, taken_s, finished=told, said=said, evicted=evicted)


def reclaims(turn: Turn) -> Iterator[Sample]:
    """Single GPUs of the full cluster, one after the other."""
    shape = PodShape(turn.contestant.scheduler, queue=LENDERS, probe=True)
    for number in range(RECLAIMS):
        creations = pods([pod(f"l-{number:05}", shape)])
        order = Order(turn.cluster.server(), creations, Kind.PLACED, 1, RECLAIM_S)
        measured = measure(turn.cluster, turn.running, order)
        trace = measured.trace
        evicted = bool(trace.of(Kind.EVICTED))
        taken_s = reclaim_s(trace) if evicted else RECLAIM_S
        placed = trace.of(Kind.PLACED)
        until_placed_s = min(placed.values()) - min(trace.of(Kind.SENT).values()) if placed else RECLAIM_S
        gone_s = min(trace.of(Kind.GONE).values(), default=RECLAIM_S) - min(trace.of(Kind.SENT).values())
        notes = {"victims": float(len(trace.of(Kind.EVICTED))), "gone_s": gone_s, "placed_s": until_placed_s}
        yield turn.sample(Part.RECLAIM, measured, taken_s, finished=evicted, **notes)
