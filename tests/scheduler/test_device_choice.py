"""Which devices of a node a task gets: close ones together, scattered ones first used up."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from gpuyard.model.plan import Bind
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import DEFAULT, DevicePlacement, Policy, Step
from gpuyard.scheduler.cycle import schedule
from tests.builders import a_cluster, a_job, a_node

ALLOCATE: Final = replace(DEFAULT, steps=(Step.ALLOCATE,))
PAIRED: Final = a_cluster().having(a_node("n").gpus(4).nvlink(0, 0, 1, 1))


def devices_of(job: str, cluster: Snapshot, policy: Policy = ALLOCATE) -> set[int]:
    return {
        share.device
        for action in schedule(cluster, policy).actions
        if isinstance(action, Bind) and action.job == job
        for share in action.shares
    }


def test_two_gpus_are_taken_of_one_link_group() -> None:
    cluster = PAIRED.jobs(a_job("busy").on("n", 0), a_job("pair").gpus(2)).snapshot()
    assert devices_of("pair", cluster) == {2, 3}


def test_four_gpus_take_both_groups() -> None:
    assert devices_of("all", PAIRED.jobs(a_job("all").gpus(4)).snapshot()) == {0, 1, 2, 3}


def test_scattered_gpus_will_do_where_no_group_is_whole() -> None:
    cluster = PAIRED.jobs(a_job("a").on("n", 0), a_job("b").on("n", 3), a_job("pair").gpus(2)).snapshot()
    assert devices_of("pair", cluster) == {1, 2}


def test_a_part_goes_to_the_fullest_device_that_has_room() -> None:
    busy = a_job("low").fraction("0.2").on("n", 1), a_job("high").fraction("0.6").on("n", 2)
    cluster = a_cluster().having(a_node("n").gpus(4)).jobs(*busy, a_job("part").fraction("0.3")).snapshot()
    assert devices_of("part", cluster) == {2}


def test_a_part_goes_to_the_emptiest_device_where_the_policy_spreads() -> None:
    busy = a_job("low").fraction("0.2").on("n", 0), a_job("high").fraction("0.6").on("n", 1)
    cluster = a_cluster().having(a_node("n").gpus(3)).jobs(*busy, a_job("part").fraction("0.3")).snapshot()
    assert devices_of("part", cluster, replace(ALLOCATE, device_placement=DevicePlacement.SPREAD)) == {2}
