"""The clusters that are measured are the ones their names promise, at any size."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from benchmarks.shapes import (
    MOVING,
    PLACING,
    RECLAIMING,
    SHAPES,
    STRIDES,
    VICTIM_GANG,
    Counts,
    Expected,
    Shape,
    exactly,
    scattered,
)
from benchmarks.subjects import Cycle, control, subject
from gpuyard.model.jobs import Job
from gpuyard.model.quantities import MILLI
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import DEFAULT

NODES: Final = 40
WAITING: Final = 8


def held(jobs: tuple[Job, ...]) -> Counter[tuple[str, int]]:
    return Counter((task.node, share.device) for job in jobs for task in job.tasks for share in task.shares)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_no_shape_books_a_gpu_twice_or_one_that_is_not_there(shape: Shape) -> None:
    snapshot = shape.build(NODES, WAITING)
    devices = {(node.name, index) for node in snapshot.nodes for index in range(len(node.devices))}
    booked = held(snapshot.jobs)
    assert set(booked) <= devices
    assert set(booked.values()) <= {1}


@pytest.mark.parametrize("nodes", [100, 1_000, 2_000])
def test_scattered_gangs_fill_the_cluster_and_each_lies_on_four_nodes(nodes: int) -> None:
    gangs = tuple(scattered(nodes))
    assert len(held(gangs)) == nodes * len(STRIDES)
    assert all(len({task.node for task in gang.tasks}) == VICTIM_GANG for gang in gangs)


def test_the_gang_that_cannot_be_helped_is_one_gpu_short() -> None:
    shape = next(shape for shape in SHAPES if shape.name == "79 of 80 GPUs to reclaim, 100 nodes")
    snapshot = shape.build(shape.nodes, shape.jobs)
    owed = {queue.name: queue.shares[0].quota for queue in snapshot.queues}
    assert owed == {"research": 800 * MILLI, "speech": 80 * MILLI, "ads": 721 * MILLI}


def test_a_plan_that_does_something_else_is_no_measurement() -> None:
    measured = Cycle(Snapshot(), DEFAULT, exactly(binds=1))
    assert "expected Counts(binds=1" in measured.complaint(measured.run())


def test_every_count_must_lie_between_the_fewest_and_the_most() -> None:
    expected = Expected(Counts(evicts=4), Counts(evicts=8, moves=2))
    assert expected.met_by(Counts(evicts=6, moves=1))
    assert not expected.met_by(Counts(evicts=3))
    assert not expected.met_by(Counts(evicts=4, binds=1))


@pytest.mark.parametrize("shape", PLACING + MOVING + RECLAIMING, ids=lambda shape: shape.name)
def test_a_small_cluster_of_the_shape_does_what_the_shape_is_about(shape: Shape) -> None:
    measured = subject(shape, NODES, min(WAITING, shape.jobs))
    measured.between()
    assert measured.complaint(measured.run()) == ""


def test_where_nothing_must_happen_something_does_with_one_gpu_more() -> None:
    for shape in SHAPES:
        if shape.control:
            measured = control(shape, NODES, WAITING)
            assert measured.complaint(measured.run()) == ""
