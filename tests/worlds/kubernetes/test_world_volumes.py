"""Pods whose volumes are made, given or taken, through the whole scheduler but for what is written."""

from __future__ import annotations

from gpuyard.model.nodes import OWN_LABEL
from gpuyard.model.text import waiting_text
from gpuyard.worlds.kubernetes.volumes import Given
from gpuyard.worlds.kubernetes.writes import BindPod
from tests.worlds.kubernetes.small_cluster import SmallCluster, all_done

NOBODY_MAKES = "kubernetes.io/no-provisioner"


def local_disks(*nodes: str) -> SmallCluster:
    cluster = SmallCluster(nodes=3)
    cluster.add_class("local", NOBODY_MAKES)
    for node in nodes:
        cluster.add_volume(f"disk-{node}", "local", node)
    return cluster


def test_a_pod_goes_where_a_disk_lies_ready_and_gets_it() -> None:
    cluster = local_disks("n2")
    cluster.add_claim("data", "local")
    cluster.add_pod("p", claims=("data",))
    assert cluster.settle() == ["bind p n2"]
    (bind,) = cluster.written
    assert bind.given == (Given("data", "uid-of-data", "disk-n2", "7"),)
    assert bind.claims == ()


def test_without_a_disk_it_waits_and_goes_when_there_is_one() -> None:
    cluster = local_disks()
    cluster.add_claim("data", "local")
    cluster.add_pod("p", claims=("data",))
    assert cluster.settle() == []
    cluster.add_volume("disk", "local", "n3")
    assert cluster.settle() == ["bind p n3"]


def test_a_claim_a_volume_is_made_for_is_told_the_node() -> None:
    cluster = SmallCluster(nodes=1)
    cluster.add_class("fast", "example.com/disk")
    cluster.add_claim("data", "fast")
    cluster.add_pod("p", claims=("data",))
    assert cluster.settle() == ["bind p n1"]
    (bind,) = cluster.written
    assert (bind.claims, bind.given) == (("data",), ())


def test_two_pods_of_one_cycle_that_were_given_the_same_disk_do_not_both_get_it() -> None:
    cluster = local_disks("n1")
    for name in ("one", "two"):
        cluster.add_claim(name, "local")
        cluster.add_pod(name, claims=(name,))
    cluster.fate = lambda write: "held"
    cluster.settle()
    # Both are told to take it; the API server lets only the first change that version of the volume.
    first, second = cluster.held
    cluster.fate = all_done
    cluster.write(first)
    assert isinstance(second, BindPod)
    cluster.world.bind_failed(second, "the volume has been changed")
    cluster.pass_time(600_000)
    cluster.settle()
    assert cluster.places() == {"one": "n1"}


def test_a_claim_for_one_pod_at_a_time_is_used_by_one_after_the_other() -> None:
    cluster = local_disks("n1")
    cluster.add_claim("data", "local", mode="ReadWriteOncePod")
    cluster.add_pod("first", claims=("data",))
    cluster.settle()
    cluster.add_pod("second", claims=("data",))
    cluster.settle()
    assert cluster.places() == {"first": "n1"}
    ((_, (word, text)),) = cluster.world.pods_held()
    assert (word, "one pod at a time" in text) == ("VolumeNotReady", True)
    cluster.end("first")
    assert "bind second n1" in cluster.settle()


def one_claim(nodes: int = 3) -> SmallCluster:
    """A claim that one pod at a time may use, and that may be used on every node."""
    cluster = SmallCluster(nodes=nodes)
    cluster.add_class("net", "example.com/disk")
    cluster.add_claim("data", "net", mode="ReadWriteOncePod")
    return cluster


def test_a_claim_for_one_pod_at_a_time_is_given_to_one_of_two_pods_of_a_cycle() -> None:
    cluster = one_claim()
    for name in ("one", "two"):
        cluster.add_pod(name, claims=("data",))
    cluster.add_pod("other")
    assert sorted(cluster.settle()) == ["bind one n1", "bind other n1"]


def test_nor_to_another_while_the_first_is_being_bound() -> None:
    cluster = one_claim()
    cluster.fate = lambda write: "held"
    cluster.add_pod("one", claims=("data",))
    cluster.settle()
    cluster.add_pod("two", claims=("data",))
    cluster.settle()
    assert [write.pod.name for write in cluster.held if isinstance(write, BindPod)] == ["one"]


def test_one_that_cannot_start_does_not_keep_the_claim_from_one_that_can() -> None:
    cluster = one_claim()
    cluster.add_pod("large", 64, claims=("data",))
    cluster.add_pod("small", 1, claims=("data",))
    assert cluster.settle() == ["bind small n1"]


def test_a_gang_whose_pods_want_the_same_claim_alone_starts_none_of_them() -> None:
    cluster = one_claim()
    cluster.add_group("gang", 2)
    for name in ("g-0", "g-1"):
        cluster.add_pod(name, claims=("data",), group="gang")
    assert cluster.settle() == []
    assert cluster.loop is not None
    said = [waiting_text(entry.reasons) for entry in cluster.loop.last.waiting]
    assert "apart from claim/a/data" in said[0]
    assert OWN_LABEL not in said[0]


def test_pods_that_each_have_their_own_such_claim_start_together() -> None:
    cluster = one_claim()
    cluster.add_claim("more", "net", mode="ReadWriteOncePod")
    cluster.add_pod("one", claims=("data",))
    cluster.add_pod("two", claims=("more",))
    assert len(cluster.settle()) == 2


def test_news_of_volumes_is_no_reason_to_look_at_pods_without_claims() -> None:
    cluster = SmallCluster(nodes=1, gpus=1)
    cluster.add_pod("runs")
    cluster.add_pod("waits")
    cluster.settle()
    cluster.add_volume("disk", "local", "n1")
    cluster.hear()
    assert not cluster.picture.changed
