"""The document of the ConfigMap: exactly that of the design, and readable again."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.fakegpu.config import fleet_of
from gpuyard.fakegpu.engine import Engine
from gpuyard.fakegpu.kubernetes.statusmap import (
    MAX_GPUS_IN_ONE,
    DeviceHolder,
    document,
    holders_in,
    node_entries,
    node_text,
)
from gpuyard.fakegpu.labels import sanitised
from gpuyard.fakegpu.products import product_named, products
from gpuyard.fakegpu.profile import steady
from gpuyard.fakegpu.reading import Holder

SEED = """mig-strategy: mixed
nodes:
  node-a:
    gpu-memory: 11441
    gpu-product: Tesla-K80
    gpus:
      - id: GPU-8fc73fbd-91f0-697e-57ef-fc978bd54af1
        metrics:
          metadata:
            namespace: runai-project-a
            pod: pod
            container: container
          utilization: 10
          fb-used: 5000
      - id: GPU-kdiue726-57ef-91f0-837f-qjk49djklsk8
        metrics:
          metadata:
            namespace: runai-project-a
            pod: pod
            container: container
          utilization: 100
          fb-used: 10000
"""
MIG = "mig-strategy: mixed\nnodes: {m: {gpu-product: A100, gpus: [{id: whole}, {id: cut, mig: [3g.40gb, 1g.10gb]}]}}"
LONGEST = Holder("n" * 63, "p" * 253, "c" * 63)


def written(engine: Engine, strategy: str = "mixed") -> str:
    return document(strategy, [node_text(reading, strategy) for reading in engine.readings()])


def test_the_document_of_the_design_comes_out_as_it_went_in() -> None:
    assert written(Engine(fleet_of(SEED))) == SEED


def test_an_idle_gpu_has_numbers_and_no_holder() -> None:
    text = written(Engine(fleet_of("nodes: {n: {gpu-product: T4, gpus: [{id: a}]}}")), "none")
    gpus = yaml.safe_load(text)["nodes"]["n"]["gpus"]
    assert gpus == [{"id": "a", "metrics": {"utilization": 0, "fb-used": 0}}]


def test_a_node_without_gpus_and_no_node_at_all() -> None:
    assert yaml.safe_load(written(Engine(fleet_of("nodes: {n: {gpu-product: T4, gpus: 0}}")))) == {
        "mig-strategy": "mixed",
        "nodes": {"n": {"mig-strategy": "none", "gpus": []}},
    }
    assert yaml.safe_load(document("none", [])) == {"mig-strategy": "none", "nodes": {}}


def test_instances_stand_below_their_gpu_each_with_its_holder() -> None:
    engine = Engine(fleet_of(MIG))
    engine.start("m", 1, "t", profile=steady(40), holder=Holder("ns", "pod", "c"), mig=1)
    entry = yaml.safe_load(written(engine))["nodes"]["m"]["gpus"][1]
    assert "metadata" not in entry["metrics"]
    assert [each["profile"] for each in entry["mig-devices"]] == ["3g.40gb", "1g.10gb"]
    assert entry["mig-devices"][1]["metrics"]["metadata"] == {"namespace": "ns", "pod": "pod", "container": "c"}
    (held,) = holders_in(written(engine))["m"]
    assert held == DeviceHolder(entry["mig-devices"][1]["id"], Holder("ns", "pod", "c"))


def test_another_product_or_strategy_is_said_where_it_differs() -> None:
    text = """
    nodes:
      n: {mig-strategy: single, gpu-product: T4, gpus: [{id: a}, {id: b, gpu-product: A100}]}
    """
    node = yaml.safe_load(written(Engine(fleet_of(text)), "none"))["nodes"]["n"]
    assert (node["mig-strategy"], node["gpu-product"]) == ("single", "Tesla-T4")
    assert node["gpus"][1]["gpu-product"] == "NVIDIA-A100-SXM4-80GB"


@pytest.mark.parametrize("product", products().values(), ids=lambda product: product.key)
def test_every_product_is_known_again_by_the_name_that_is_written(product: object) -> None:
    key = product.key  # type: ignore[attr-defined]
    text = written(Engine(fleet_of(f"nodes: {{n: {{gpu-product: {key}, gpus: [{{id: a}}]}}}}")), "none")
    again = fleet_of(text)
    assert again.machines[0].gpus[0].product == product_named(sanitised(again.machines[0].gpus[0].product.name))
    assert again.machines[0].gpus[0].product.key == key
    assert written(Engine(again), "none") == text


NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?", fullmatch=True) | st.sampled_from(
    ["null", "true", "no", "on", "y", "1e3", "0x12", "1.5", "12", "1-2", "010", "2026-11-17"]
)


@given(NAMES, NAMES, NAMES, NAMES)
def test_whatever_things_are_called_it_is_read_as_written(node: str, namespace: str, pod: str, container: str) -> None:
    engine = Engine(fleet_of(f'nodes: {{"{node}": {{gpu-product: T4, gpus: [{{id: a}}]}}}}'))
    holder = Holder(namespace, pod, container)
    engine.start(node, 0, "t", holder=holder)
    text = written(engine, "none")
    assert holders_in(text) == {node: [DeviceHolder("a", holder)]}
    assert list(node_entries(text)) == [node]
    assert document("none", node_entries(text).values()) == text
    (given_again,) = fleet_of(text).machines
    assert given_again.gpus[0].given is not None
    assert given_again.gpus[0].given.holder == holder


def test_nodes_can_be_taken_out_of_one_document_and_put_into_another() -> None:
    engine = Engine(fleet_of("pools: {a: {nodes: 3, gpus: 2, product: T4}}"))
    text = written(engine, "none")
    entries = node_entries(text)
    assert list(entries) == ["a-1", "a-2", "a-3"]
    assert document("none", entries.values()) == text


def test_as_many_gpus_as_are_in_one_fit_into_a_config_map() -> None:
    nodes = MAX_GPUS_IN_ONE // 8
    engine = Engine(fleet_of(f"pools: {{{'a' * 240}: {{nodes: {nodes}, product: A100}}}}"))
    for node in engine.machines:
        for gpu in range(8):
            engine.start(node, gpu, "t", holder=LONGEST)
    assert len(written(engine)) < 700_000, "and leave room for the configuration beside it"


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[1, 2]", "nodes: 7", "nodes: {a: 7}", "nodes: {a: {gpus: [7]}}", "a: ["]
)
def test_what_is_no_document_of_ours_holds_nobody(text: str) -> None:
    assert not any(holders_in(text).values())
    assert node_entries(text) == {} or text == "nodes: 7"
