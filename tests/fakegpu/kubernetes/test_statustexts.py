"""One ConfigMap for a small cluster, one for each node of a large one; what is no longer ours goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpuyard.fakegpu.config import fleet_of
from gpuyard.fakegpu.fleet import Fleet
from gpuyard.fakegpu.kubernetes import statustexts
from gpuyard.fakegpu.kubernetes.assign import Allocation
from gpuyard.fakegpu.kubernetes.holdings import Holding
from gpuyard.fakegpu.kubernetes.mapwriter import NODE, ROLE, Wanted
from gpuyard.fakegpu.kubernetes.names import Scope, map_of_node
from gpuyard.fakegpu.kubernetes.objects import Metadata
from gpuyard.fakegpu.kubernetes.picture import Picture
from gpuyard.fakegpu.kubernetes.statusmap import document
from gpuyard.fakegpu.kubernetes.statustexts import MOVES_AT_ONCE, StatusTexts
from gpuyard.fakegpu.kubernetes.tenancy import Tenancy
from gpuyard.fakegpu.profile import BUSY, Phase, Profile
from gpuyard.fakegpu.publish import Publisher
from gpuyard.fakegpu.reading import Holder
from gpuyard.fakegpu.yard import Yard
from gpuyard.kubeapi.follow import Changed, Gone, Listed
from gpuyard.kubeapi.names import MAX_NAME
from tests.fakegpu.kubernetes.sights import a_map, a_node_object, a_pod_object

MOVES = Profile((Phase(None, 10, 90),))


class Maps:
    """Takes down what is wanted."""

    def __init__(self) -> None:
        self.wanted: dict[str, Wanted] = {}
        self.unhurried: set[str] = set()
        self.removed: set[str] = set()

    def want(self, name: str, wanted: Wanted, *, at_leisure: bool = False) -> None:
        if self.wanted.get(name) != wanted:
            self.wanted[name] = wanted
            (self.unhurried.add if at_leisure else self.unhurried.discard)(name)

    def remove(self, name: str) -> None:
        self.wanted.pop(name, None)
        self.removed.add(name)


class Scene:
    def __init__(self, root: Path, nodes: int) -> None:
        self.picture = Picture()
        self.picture.take_node(Listed(tuple(a_node_object(f"a-{number}") for number in range(1, nodes + 1))))
        self.picture.take_map(Listed((a_map("fake-gpus", **{"fleet.yaml": "x"}),)))
        self.maps = Maps()
        self.texts = StatusTexts(Scope(), self.picture, self.maps)  # type: ignore[arg-type]
        self.yard = Yard(Fleet(()), Publisher(root), at_ms=0, max_shown=0)
        self.tenancy = Tenancy(self.yard)
        self.fleet = fleet_of(f"pools: {{a: {{nodes: {nodes}, gpus: 2, product: T4}}}}")
        self.tenancy.change(self.fleet)

    def update(self, *changed: str, told: tuple[str, ...] = (), without: tuple[str, ...] = ()) -> None:
        machines = {each.name: each for each in self.fleet.machines if each.name not in without}
        self.texts.update("none", machines, self.tenancy, set(changed), told)

    def hold(self, node: str, pod: str, profile: Profile = BUSY) -> None:
        gpu = self.tenancy.machine(node).gpus[0].uuid
        self.tenancy.settle(node, {gpu: Holding(Holder("ns", pod, "main"), pod, profile)})

    def all_nodes(self) -> list[str]:
        return [machine.name for machine in self.fleet.machines]

    def document(self, name: str = "fake-gpus") -> Any:
        return yaml.safe_load(self.maps.wanted[name].text or "")


@pytest.fixture
def scene(tmp_path: Path) -> Callable[[int], Scene]:
    return lambda nodes: Scene(tmp_path, nodes)


def test_a_small_cluster_has_one_document(scene: Callable[[int], Scene]) -> None:
    small = scene(3)
    small.hold("a-2", "pod")
    small.update(*small.all_nodes())
    assert list(small.maps.wanted) == ["fake-gpus"]
    assert list(small.document()["nodes"]) == ["a-1", "a-2", "a-3"]
    assert small.document()["nodes"]["a-2"]["gpus"][0]["metrics"]["metadata"]["pod"] == "pod"


def test_above_the_limit_every_node_has_its_own_and_the_one_is_emptied(
    scene: Callable[[int], Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statustexts, "MAX_GPUS_IN_ONE", 5)
    large = scene(3)
    large.hold("a-2", "pod")
    large.update(*large.all_nodes())
    assert large.maps.wanted["fake-gpus"] == Wanted(None)
    assert large.maps.wanted.keys() == {"fake-gpus", *(f"fake-gpus-a-{number}" for number in (1, 2, 3))}
    assert large.maps.wanted["fake-gpus-a-2"].node == "a-2"
    assert list(large.document("fake-gpus-a-2")["nodes"]) == ["a-2"]
    assert large.maps.unhurried == {"fake-gpus-a-1", "fake-gpus-a-3"}, "that nobody holds their GPUs can wait"


def test_back_below_the_limit_those_of_fake_nodes_go(scene: Callable[[int], Scene]) -> None:
    small = scene(2)
    for node in ("a-1", "gone", "real"):
        there = a_map(f"fake-gpus-{node}", **{"status.yaml": "x"})
        labelled = {"labels": {"gpuyard.io/fake-gpus": "node"}, "annotations": {"gpuyard.io/node": node}}
        small.picture.take_map(Changed(_with(there, labelled)))
    small.picture.take_node(Changed(a_node_object("real", nodeInfo={"kubeletVersion": "v1.34.2"})))
    small.fleet = fleet_of("nodes: {real: {gpu-product: T4, gpus: 1}}\npools: {a: {nodes: 2, gpus: 2, product: T4}}")
    small.update(*small.all_nodes())
    assert small.maps.removed == {"fake-gpus-a-1", "fake-gpus-gone"}


def _with(config_map: Any, metadata: dict[str, Any]) -> Any:
    from msgspec.structs import replace

    return replace(config_map, metadata=replace(config_map.metadata, **metadata))


def test_nodes_with_a_part_of_their_own_are_told_in_its_words(scene: Callable[[int], Scene]) -> None:
    small = scene(1)
    small.picture.take_node(Changed(a_node_object("real", nodeInfo={"kubeletVersion": "v1.34.2"})))
    small.fleet = fleet_of("nodes: {real: {gpu-product: T4, gpus: 1}}\npools: {a: {nodes: 1, gpus: 2, product: T4}}")
    small.update(*small.all_nodes())
    assert list(small.document()["nodes"]) == ["a-1"]
    words = "mig-strategy: none\nnodes:\n  real:\n    gpus:\n      - id: theirs\n"
    small.picture.take_map(Changed(a_map("fake-gpus-real", **{"status.yaml": words})))
    small.update(told=("fake-gpus-real",))
    assert small.document()["nodes"]["real"] == {"gpus": [{"id": "theirs"}]}
    assert "fake-gpus" not in small.maps.unhurried


def test_what_moves_by_itself_is_written_a_few_at_a_time_the_oldest_first(scene: Callable[[int], Scene]) -> None:
    moving = scene(2 * MOVES_AT_ONCE)
    for name in moving.all_nodes():
        moving.hold(name, "pod", MOVES)
    moving.update(*moving.all_nodes())
    before = moving.document()["nodes"]
    different = []
    for seconds in (10, 20):
        moving.yard.engine.advance(seconds * 1000)
        moving.update()
        now = moving.document()["nodes"]
        different.append({name for name in now if now[name] != before[name]})
        before = now
        assert "fake-gpus" in moving.maps.unhurried
    assert all(0 < len(each) <= MOVES_AT_ONCE for each in different)
    assert not different[0] & different[1]


def test_where_nothing_has_changed_nothing_is_said(scene: Callable[[int], Scene]) -> None:
    still = scene(2)
    still.update(*still.all_nodes())
    still.maps.wanted.clear()
    still.update()
    still.update(told=("fake-gpus",))
    assert still.maps.wanted == {}
    still.update(without=("a-2",))
    assert list(still.document()["nodes"]) == ["a-1"]


def test_what_was_given_out_is_read_from_either_form(scene: Callable[[int], Scene]) -> None:
    small = scene(2)
    small.hold("a-1", "p")
    small.update(*small.all_nodes())
    text = small.maps.wanted["fake-gpus"].text
    assert text is not None
    gpu = small.tenancy.machine("a-1").gpus[0].uuid
    pod = a_pod_object("p", metadata={"namespace": "ns"}, spec={"nodeName": "a-1"})
    small.picture.take_pod(Changed(pod))
    assert small.texts.written("a-1") == ()
    small.picture.take_map(Changed(a_map("fake-gpus", **{"status.yaml": text})))
    assert small.texts.written("a-1") == (Allocation("uid-p", "main", (gpu,)),)
    assert small.texts.written("a-2") == ()


def test_no_two_nodes_share_a_config_map() -> None:
    long = ["n" * 250 + end for end in ("aa", "ab", "b")]
    names = [map_of_node(Scope(), name) for name in (*long, "n")]
    assert len(set(names)) == 4
    assert all(len(name) <= MAX_NAME for name in names)
    assert names[-1] == "fake-gpus-n"


def test_a_node_that_is_taken_out_stays_while_somebody_holds_its_gpus(scene: Callable[[int], Scene]) -> None:
    """One without a kubelet, by our own word; one with a kubelet, by its part's word, as long as that pod is there."""
    here = scene(2)
    here.hold("a-1", "p")
    here.update(*here.all_nodes())
    here.tenancy.change(fleet_of("pools: {a: {nodes: 0, gpus: 2, product: T4}}"))
    entry = (
        here.texts._texts["a-1"]
        .replace("a-1:", "n:")
        .replace("pod: p", "pod: q")
        .replace("namespace: ns", "namespace: default")
    )
    told = a_map("fake-gpus-n", **{"status.yaml": document("none", [entry])})
    marked = {"labels": {ROLE: "node"}, "annotations": {NODE: "n"}}
    told = msgspec.structs.replace(told, metadata=msgspec.convert({"name": "fake-gpus-n", **marked}, Metadata))
    here.picture.take_node(Changed(a_node_object("n")))
    here.picture.take_map(Changed(told))
    here.picture.take_pod(Changed(a_pod_object("q")))
    here.update("a-1", told=("fake-gpus-n",), without=("a-1", "a-2"))
    assert sorted(here.document()["nodes"]) == ["a-1", "n"]
    assert here.maps.removed == set()
    here.picture.take_pod(Gone(a_pod_object("q")))
    here.update(without=("a-1", "a-2"))
    assert sorted(here.document()["nodes"]) == ["a-1"]
    assert here.maps.removed == {"fake-gpus-n"}
