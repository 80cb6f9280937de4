"""Which devices are preferred: the closest to each other, leaving pairs for those who want pairs."""

from __future__ import annotations

from time import perf_counter

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.fakegpu.config import fleet_of
from gpuyard.fakegpu.control import MachineStatus
from gpuyard.fakegpu.engine import Engine
from gpuyard.fakegpu.kubernetes.plugin_offer import Devices, offer_of
from gpuyard.fakegpu.kubernetes.plugin_preference import preferred

EIGHT = "pools: {a: {nodes: 1, gpus: 8, product: T4}}"


def devices(file: str, resource: str = "nvidia.com/gpu") -> Devices:
    engine = Engine(fleet_of(file))
    return offer_of(MachineStatus(None, engine.reading(engine.machines[0]))).resources[resource]


def chosen(all_of: Devices, available: list[int], size: int, must: list[int] | None = None) -> list[int]:
    """By index."""
    ids = [device.id for device in all_of]
    return sorted(
        ids.index(id) for id in preferred([all_of[at] for at in available], [ids[at] for at in must or []], size)
    )


def test_two_share_a_switch() -> None:
    assert chosen(devices(EIGHT), [1, 2, 4, 5, 7], 2) == [4, 5]


def test_four_share_a_processor() -> None:
    assert chosen(devices(EIGHT), [0, 1, 3, 4, 5, 6, 7], 4) == [4, 5, 6, 7]


def test_one_is_taken_where_it_tears_no_pair_apart() -> None:
    assert chosen(devices(EIGHT), [0, 1, 2, 3, 5, 6, 7], 1) == [5]


def test_what_must_be_there_draws_its_neighbour() -> None:
    assert chosen(devices(EIGHT), [0, 1, 2, 3, 6, 7], 2, must=[6]) == [6, 7]


def test_nvlinks_count_more_than_a_common_switch() -> None:
    file = """
nodes:
  n: {gpu-product: T4, gpus: [{}, {gpu-product: A100}, {}, {}, {}, {gpu-product: A100}, {}, {}]}
"""
    assert chosen(devices(file), list(range(8)), 2) == [1, 5]


def test_instances_come_from_as_few_gpus_as_can_be() -> None:
    file = "{mig-strategy: single, pools: {a: {nodes: 1, gpus: 3, product: A100, mig: {1g.10gb: 7}}}}"
    found = devices(file)
    assert chosen(found, [0, 1, 7, 8, 9, 14, 15], 3) == [7, 8, 9]


@given(
    available=st.sets(st.integers(0, 61), min_size=1, max_size=62),
    data=st.data(),
)
def test_the_answer_is_always_of_the_asked_size_and_available(available: set[int], data: st.DataObject) -> None:
    found = devices("pools: {a: {nodes: 1, gpus: 62, product: L40S}}")
    size = data.draw(st.integers(1, len(available)))
    must = data.draw(st.sets(st.sampled_from(sorted(available)), max_size=size))
    answer = chosen(found, sorted(available), size, sorted(must))
    assert len(set(answer)) == size
    assert must <= set(answer) <= available


def test_many_instances_are_answered_before_anybody_wonders() -> None:
    file = "{mig-strategy: single, pools: {a: {nodes: 1, gpus: 62, product: A100, mig: {1g.10gb: 7}}}}"
    found = devices(file)
    began = perf_counter()
    assert len(preferred(found, [], 100)) == 100
    assert perf_counter() - began < 10
