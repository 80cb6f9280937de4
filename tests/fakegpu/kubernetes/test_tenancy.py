"""Containers on the GPUs of the model: exactly those that hold them, and what people did by hand stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.fakegpu.config import fleet_of
from gpuyard.fakegpu.engine import Engine
from gpuyard.fakegpu.fleet import Fleet
from gpuyard.fakegpu.kubernetes.holdings import Holding
from gpuyard.fakegpu.kubernetes.occupy import PREFIX, Occupancy
from gpuyard.fakegpu.kubernetes.tenancy import Tenancy
from gpuyard.fakegpu.profile import BUSY, Phase, Profile, steady
from gpuyard.fakegpu.publish import Publisher
from gpuyard.fakegpu.reading import Holder
from gpuyard.fakegpu.yard import Yard

TWO = "nodes: {n: {gpu-product: T4, gpus: [{id: a}, {id: b}]}}"
CUT = "mig-strategy: mixed\nnodes: {n: {gpu-product: A100, gpus: [{id: a, mig: [3g.40gb, 3g.40gb]}]}}"


def by(pod: str, profile: Profile | None = BUSY, since_ms: int = 0) -> Holding:
    return Holding(Holder("ns", pod, "main"), f"uid-{pod}", profile, since_ms)


@pytest.fixture
def tenancy(tmp_path: Path) -> Tenancy:
    return Tenancy(Yard(Fleet(()), Publisher(tmp_path), at_ms=0))


def shown(tenancy: Tenancy) -> dict[str, tuple[str, int]]:
    devices = tenancy.reading("n").devices
    return {each.uuid: (each.holder.pod if each.holder else "", each.gpu_percent) for each in devices}


def test_whoever_holds_a_gpu_is_shown_on_it(tenancy: Tenancy) -> None:
    assert tenancy.change(fleet_of(TWO)) == {"n"}
    tenancy.settle("n", {"a": by("one"), "b": by("two", None)})
    assert shown(tenancy) == {"a": ("one", 100), "b": ("two", 0)}
    assert tenancy.reading("n").devices[1].memory_used_bytes == 0
    tenancy.settle("n", {"b": by("two", steady(30))})
    assert shown(tenancy) == {"a": ("", 0), "b": ("two", 30)}


def test_devices_that_are_not_there_are_told(tenancy: Tenancy) -> None:
    tenancy.change(fleet_of(TWO))
    assert tenancy.settle("n", {"a": by("one"), "z": by("two")}) == ("z",)
    assert shown(tenancy)["a"] == ("one", 100)


def test_a_state_that_was_written_down_ends_when_the_gpu_is_seen_empty(tenancy: Tenancy) -> None:
    text = "nodes: {n: {gpu-product: T4, gpus: [{id: a, metrics: {utilization: 10, fb-used: 500}}, {id: b}]}}"
    tenancy.change(fleet_of(text))
    assert shown(tenancy)["a"] == ("", 10)
    tenancy.settle("n", {})
    assert shown(tenancy)["a"] == ("", 0)


def test_instances_are_held_one_by_one_and_a_whole_gpu_in_all_its_parts(tenancy: Tenancy) -> None:
    tenancy.change(fleet_of(CUT))
    first, second = (instance.uuid for instance in tenancy.reading("n").devices[0].mig)
    tenancy.settle("n", {first: by("one"), second: by("one")})
    assert [each.holder and each.holder.pod for each in tenancy.reading("n").devices[0].mig] == ["one", "one"]
    tenancy.settle("n", {second: by("one")})
    assert [each.holder and each.holder.pod for each in tenancy.reading("n").devices[0].mig] == [None, "one"]
    tenancy.settle("n", {"a": by("whole")})
    assert [each.holder and each.holder.pod for each in tenancy.reading("n").devices[0].mig] == ["whole", "whole"]


def test_a_gpu_that_is_taken_out_stays_until_its_holder_lets_go(tenancy: Tenancy) -> None:
    tenancy.change(fleet_of(TWO))
    tenancy.settle("n", {"a": by("one")})
    assert tenancy.change(fleet_of("nodes: {n: {gpu-product: T4, gpus: [{id: b}]}}")) == {"n"}
    assert shown(tenancy) == {"b": ("", 0), "a": ("one", 100)}
    assert tenancy.leaving("n") == {"a"}
    tenancy.settle("n", {"a": by("one")})
    assert tenancy.let_go() == set()
    tenancy.settle("n", {})
    assert tenancy.let_go() == {"n"}
    assert shown(tenancy) == {"b": ("", 0)}


def test_a_whole_node_that_is_taken_out_goes_with_its_last_holder(tenancy: Tenancy) -> None:
    tenancy.change(fleet_of(TWO))
    tenancy.settle("n", {"b": by("one")})
    tenancy.change(Fleet(()))
    assert shown(tenancy) == {"b": ("one", 100)}
    tenancy.settle("n", {})
    tenancy.let_go()
    assert not tenancy.names


def test_a_gpu_that_comes_back_goes_on_with_what_ran_there(tenancy: Tenancy) -> None:
    tenancy.change(fleet_of(TWO))
    tenancy.settle("n", {"a": by("one")})
    tenancy.change(fleet_of("nodes: {n: {gpu-product: T4, gpus: [{id: b}]}}"))
    tenancy.change(fleet_of(TWO))
    tenancy.settle("n", {"a": by("one")})
    assert shown(tenancy) == {"a": ("one", 100), "b": ("", 0)}
    assert not tenancy.leaving("n")


def test_a_profile_goes_on_where_it_would_be_had_we_been_there(tenancy: Tenancy) -> None:
    profile = Profile((Phase(1000, 80, 80), Phase(1000, 20, 20)), repeat=None)
    tenancy.change(fleet_of(TWO))
    tenancy.settle("n", {"a": by("one", profile, since_ms=-1500)})
    assert shown(tenancy)["a"] == ("one", 20)
    assert tenancy.moving == {"n"}
    tenancy.settle("n", {"a": by("one")})
    assert tenancy.moving == set()


HOLDERS = st.sampled_from(["one", "two", "three"])
PROFILES = st.sampled_from([None, BUSY, steady(30)])
STEPS = st.dictionaries(st.sampled_from(["a", "b", "z"]), st.builds(by, HOLDERS, PROFILES))


@given(st.lists(STEPS, max_size=6))
def test_after_every_step_exactly_the_wanted_hold_gpus_and_what_people_started_is_untouched(
    steps: list[dict[str, Holding]],
) -> None:
    engine = Engine(fleet_of(TWO))
    engine.use("n", "a", pid=4711, memory_bytes=1 << 20)
    occupancy = Occupancy()
    for wanted in steps:
        occupancy.settle(engine, engine.fleet.machines[0], wanted)
        for gpu in ("a", "b"):
            names = engine.running("n", gpu)
            ours = [name for name in names if name.startswith(PREFIX)]
            assert ours == ([f"{PREFIX}{wanted[gpu].pod}/main"] if gpu in wanted else [])
        assert "use:4711" in engine.running("n", "a")
