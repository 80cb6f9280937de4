"""The configuration of a cluster: good texts count, bad ones change nothing, nothing goes under anybody's hands."""

from __future__ import annotations

from collections.abc import Collection

from gpuyard.fakegpu.config import fleet_of
from gpuyard.fakegpu.fleet import Fleet
from gpuyard.fakegpu.kubernetes.configuration import Configuration, fleet_text, with_held

POOL = "pools: {a: {product: A100, gpus: 2}}"
SEED = """
mig-strategy: mixed
nodes:
  node-a:
    gpu-memory: 11441
    gpu-product: Tesla-K80
    gpus:
      - id: GPU-8fc73fbd-91f0-697e-57ef-fc978bd54af1
        metrics:
          metadata: {namespace: runai-project-a, pod: pod, container: container}
          utilization: 10
          fb-used: 5000
      - id: GPU-kdiue726-57ef-91f0-837f-qjk49djklsk8
"""


def read(configuration: Configuration, text: str | None, pools: dict[str, list[str]] | None = None,
         absent: Collection[str] = ()) -> bool:  # fmt: skip
    draft = configuration.read(text, pools or {})
    return draft is not None and configuration.accept(draft, absent)


def names(configuration: Configuration) -> list[str]:
    assert configuration.fleet is not None
    return [machine.name for machine in configuration.fleet.machines]


def test_nodes_join_and_leave_their_pools() -> None:
    configuration = Configuration("fake-gpus")
    assert read(configuration, POOL, {"a": ["n1", "n2"]})
    assert names(configuration) == ["n1", "n2"]
    assert not read(configuration, POOL, {"a": ["n1", "n2"]})
    assert read(configuration, POOL, {"a": ["n2"]})
    assert names(configuration) == ["n2"]


def test_a_node_that_is_described_itself_is_no_member() -> None:
    configuration = Configuration("fake-gpus")
    read(configuration, POOL + "\nnodes: {n1: {gpu-product: T4, gpus: 1}}", {"a": ["n1", "n2"]})
    assert configuration.fleet is not None
    assert [(each.name, len(each.gpus)) for each in configuration.fleet.machines] == [("n1", 1), ("n2", 2)]


def test_the_document_of_the_design_is_read() -> None:
    configuration = Configuration("fake-gpus")
    assert read(configuration, SEED)
    assert names(configuration) == ["node-a"]
    assert configuration.mig_strategy == "mixed"


def test_nonsense_changes_nothing_and_says_why_until_it_is_put_right() -> None:
    configuration = Configuration("fake-gpus")
    read(configuration, POOL, {"a": ["n1"]})
    for nonsense in ("pools: [", "pools: {a: {product: A1000}}", "hello", ""):
        assert not read(configuration, nonsense, {"a": ["n1"]})
        assert "fake-gpus/fleet.yaml" in str(configuration.error)
        assert names(configuration) == ["n1"]
    assert not read(configuration, None)
    assert "not there" in str(configuration.error)
    assert not read(configuration, POOL, {"a": ["n1"]})
    assert configuration.error is None


def test_tasks_of_nodes_that_are_not_there_are_left_out_and_told() -> None:
    configuration = Configuration("fake-gpus")
    text = POOL + "\nfaults: [{node: n1, fault: unhealthy}, {node: n7, fault: unhealthy}]"
    read(configuration, text, {"a": ["n1"]})
    assert configuration.fleet is not None
    assert len(configuration.fleet.faults) == 1
    assert 'no node "n7"' in str(configuration.unplaced[0])


def test_a_renamed_node_keeps_its_gpus_until_the_name_is_right() -> None:
    configuration = Configuration("fake-gpus")
    read(configuration, SEED)
    slip = SEED.replace("node-a", "nod-a")
    read(configuration, slip, absent=["nod-a"])
    assert configuration.kept == ("node-a",)
    assert names(configuration) == ["nod-a", "node-a"]
    configuration.doubt()
    read(configuration, slip, absent=["nod-a"])
    assert names(configuration) == ["nod-a", "node-a"], "it does not matter how often one looks"
    read(configuration, SEED)
    assert names(configuration) == ["node-a"]


def test_a_node_that_is_really_called_otherwise_now_takes_the_gpus_with_it() -> None:
    configuration = Configuration("fake-gpus")
    read(configuration, SEED)
    slip = SEED.replace("node-a", "node-b")
    read(configuration, slip, absent=["node-b"])
    configuration.doubt()
    read(configuration, slip, absent=["node-a"])
    assert (configuration.kept, names(configuration)) == ((), ["node-b"])


def test_a_node_that_is_taken_out_goes() -> None:
    configuration = Configuration("fake-gpus")
    read(configuration, SEED + "  other: {gpu-product: T4, gpus: 1}\n")
    read(configuration, SEED)
    assert (configuration.kept, names(configuration)) == ((), ["node-a"])


def test_a_gpu_that_is_held_stays_until_it_is_let_go() -> None:
    before = fleet_of(
        "nodes: {n: {gpu-product: T4, gpus: [{id: a}, {id: b}, {id: c}]}, gone: {gpu-product: T4, gpus: 1}}"
    )
    after = fleet_of("nodes: {n: {gpu-product: T4, gpus: [{id: b}]}}")
    held = {"n": frozenset({"a", "b"}), "gone": frozenset({before.machines[1].gpus[0].uuid})}
    kept = with_held(after, before, lambda name: held.get(name, frozenset()))
    assert [[(gpu.uuid[:3], gpu.leaving) for gpu in machine.gpus] for machine in kept.machines] == [
        [("b", False), ("a", True)],
        [("GPU", True)],
    ]
    again = with_held(after, kept, lambda name: held.get(name, frozenset()))
    assert again == kept
    assert with_held(after, kept, lambda _: frozenset()) == after


def test_a_gpu_that_comes_back_is_no_longer_leaving() -> None:
    fleet = fleet_of("nodes: {n: {gpu-product: T4, gpus: [{id: a}]}}")
    kept = with_held(Fleet(()), fleet, lambda _: frozenset({"a"}))
    assert with_held(fleet, kept, lambda _: frozenset({"a"})) == fleet


def test_the_text_is_found_under_its_key_or_under_the_only_one() -> None:
    assert fleet_text({"fleet.yaml": "a", "other": "b"}) == "a"
    assert fleet_text({"topology.yml": "a", "status.yaml": "b"}) == "a"
    assert fleet_text({"x": "a", "y": "b"}) is None
    assert fleet_text({"status.yaml": "b"}) is None
    assert fleet_text(None) is None
