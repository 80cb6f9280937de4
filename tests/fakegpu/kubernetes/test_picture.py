"""What is known of a cluster, and what of it has changed."""

from __future__ import annotations

from gpuyard.fakegpu.kubernetes.picture import Picture, taken
from gpuyard.kubeapi.follow import Changed, Gone, Listed
from tests.fakegpu.kubernetes.sights import a_map, a_node_object, a_pod_object


def test_it_is_whole_once_everything_was_listed() -> None:
    picture = Picture()
    picture.take_node(Listed(()))
    picture.take_pod(Listed(()))
    assert not picture.is_whole
    picture.take_map(Listed(()))
    assert picture.is_whole


def test_only_what_means_something_is_marked() -> None:
    picture = Picture()
    picture.take_node(Listed((a_node_object("a"), a_node_object("b"))))
    assert taken(picture.nodes_changed) == {"a", "b"}
    picture.take_node(Changed(a_node_object("a", labels={"zone": "x"})))
    assert taken(picture.nodes_changed) == set()
    picture.take_node(Changed(a_node_object("a", labels={"nvidia.com/gpu.count": "1"})))
    assert taken(picture.nodes_changed) == {"a"}


def test_what_a_new_list_does_not_hold_is_gone() -> None:
    picture = Picture()
    picture.take_node(Listed((a_node_object("a"), a_node_object("b"))))
    picture.take_pod(Listed((a_pod_object("p"), a_pod_object("q"))))
    picture.take_map(Listed((a_map("m"),)))
    for marks in (picture.nodes_changed, picture.pods_changed, picture.maps_changed):
        marks.clear()
    picture.take_node(Listed((a_node_object("b"),)))
    picture.take_pod(Listed((a_pod_object("q"),)))
    picture.take_map(Listed(()))
    assert (picture.nodes_changed, picture.pods_changed, picture.maps_changed) == ({"a"}, {"n"}, {"m"})
    assert list(picture.pods) == ["uid-q"]


def test_pods_come_end_and_go() -> None:
    picture = Picture()
    picture.take_pod(Changed(a_pod_object("p", phase="Running")))
    assert picture.on_node["n"].keys() == {"uid-p"}
    picture.take_pod(Changed(a_pod_object("p", phase="Succeeded")))
    assert not picture.on_node
    picture.take_pod(Changed(a_pod_object("p", phase="Running")))
    picture.take_pod(Gone(a_pod_object("p")))
    assert not picture.pods
    picture.take_pod(Gone(a_pod_object("p")))
    assert picture.pod_named(("default", "p")) is None


def test_a_pod_made_anew_takes_the_place_of_the_one_before() -> None:
    picture = Picture()
    picture.take_pod(Changed(a_pod_object("p", "old")))
    picture.take_pod(Changed(a_pod_object("p", "new")))
    assert list(picture.pods) == ["new"]
    picture.take_pod(Gone(a_pod_object("p", "old")))
    found = picture.pod_named(("default", "p"))
    assert found is not None
    assert found.uid == "new"


def test_whoever_looks_at_the_pods_of_a_node_keeps_what_was_there() -> None:
    picture = Picture()
    picture.take_pod(Listed((a_pod_object("p"),)))
    seen = picture.pods_on("n")
    picture.take_pod(Changed(a_pod_object("q")))
    assert list(seen) == ["uid-p"]
    assert list(picture.pods_on("n")) == ["uid-p", "uid-q"]
