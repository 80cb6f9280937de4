"""Where the volumes of a pod let it run. The table was compared with kube-scheduler's own plugins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from gpuyard.worlds.kubernetes.objects import PersistentVolume, Pod, StorageClass, VolumeClaim
from gpuyard.worlds.kubernetes.selectors import MAX_ALTERNATIVES, NAME, accepts
from gpuyard.worlds.kubernetes.volumes import (
    FREE,
    Given,
    MustWait,
    Settled,
    Storage,
    VolumeRules,
    claims_of,
    settled,
    volume_rules,
)
from tests.worlds.kubernetes.parts import a_claim, a_class, a_pod, a_volume

ZONE = "topology.kubernetes.io/zone"
OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"
LATER = "WaitForFirstConsumer"


def using(*claims: str, **fields: Any) -> Pod:
    volumes = [{"name": f"v{at}", "persistentVolumeClaim": {"claimName": name}} for at, name in enumerate(claims)]
    return a_pod(volumes=volumes, **fields)


def only_on(*zones: str) -> dict[str, Any]:
    expression = {"key": "zone", "operator": "In", "values": list(zones)}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}


class Store:
    """Some claims, volumes and classes, and what a pod that uses them is told."""

    def __init__(self, *things: VolumeClaim | PersistentVolume | StorageClass) -> None:
        claims = [one for one in things if isinstance(one, VolumeClaim)]
        self.all = Storage(
            {f"{one.metadata.namespace}/{one.metadata.name}": one for one in claims},
            {one.metadata.name: one for one in things if isinstance(one, PersistentVolume)},
            {one.metadata.name: one for one in things if isinstance(one, StorageClass)},
        )

    def rules(self, pod: Pod, in_use: Iterable[str] = ()) -> VolumeRules:
        found = self._read(pod, in_use)
        assert isinstance(found, VolumeRules)
        return found

    def why(self, pod: Pod, in_use: Iterable[str] = ()) -> str:
        found = self._read(pod, in_use)
        assert isinstance(found, MustWait)
        return found.why

    def allows(self, pod: Pod, **labels: str) -> bool:
        named = {key.replace("_", "/"): value for key, value in labels.items()}
        return any(accepts(rules, named) for rules in self.rules(pod).alternatives)

    def _read(self, pod: Pod, in_use: Iterable[str]) -> VolumeRules | MustWait:
        return volume_rules(pod, self.all.claims, self.all.volumes, self.all.classes, set(in_use))


# ---------------------------------------------------------------------------------------------------------------- bound


def test_a_pod_without_claims_goes_anywhere() -> None:
    assert Store().rules(a_pod()) is FREE
    assert Store().rules(a_pod(volumes=[{"name": "scratch", "emptyDir": {}}])) is FREE


def test_a_bound_claim_ties_the_pod_to_where_its_volume_is() -> None:
    store = Store(a_claim(volumeName="disk"), a_volume("disk", nodeAffinity=only_on("a")))
    assert store.allows(using("data"), zone="a")
    assert not store.allows(using("data"), zone="b")
    assert not store.allows(using("data"))
    assert store.rules(using("data")).tell == ()


def test_a_volume_without_affinity_is_everywhere() -> None:
    store = Store(a_claim(volumeName="share"), a_volume("share"))
    assert store.allows(using("data"))


def test_two_volumes_must_both_be_reached() -> None:
    store = Store(
        a_claim("one", volumeName="d1"),
        a_claim("two", volumeName="d2"),
        a_volume("d1", nodeAffinity=only_on("a", "b")),
        a_volume("d2", nodeAffinity=only_on("b", "c")),
    )
    assert [zone for zone in "abc" if store.allows(using("one", "two"), zone=zone)] == ["b"]


def test_a_claim_of_another_namespace_is_another_claim() -> None:
    store = Store(a_claim("data", "elsewhere", volumeName="disk"), a_volume("disk"))
    assert "does not exist" in store.why(using("data"))


def test_many_volumes_with_the_same_terms_do_not_multiply() -> None:
    terms = [{"matchExpressions": [{"key": key, "operator": "Exists"}]} for key in ("x", "y", "z")]
    affinity = {"required": {"nodeSelectorTerms": terms}}
    names = [f"c{at}" for at in range(12)]
    claims = [a_claim(name, volumeName=name) for name in names]
    store = Store(*claims, *(a_volume(name, nodeAffinity=affinity) for name in names))
    assert len(store.rules(using(*names)).alternatives) == 3


def test_volumes_that_leave_too_many_ways_open_are_refused() -> None:
    names = [f"c{at}" for at in range(9)]
    terms = [[{"matchExpressions": [{"key": f"{name}{end}", "operator": "Exists"}]} for end in "xy"] for name in names]
    affinities = [{"required": {"nodeSelectorTerms": each}} for each in terms]
    volumes = [a_volume(name, nodeAffinity=affinity) for name, affinity in zip(names, affinities, strict=True)]
    store = Store(*(a_claim(name, volumeName=name) for name in names), *volumes)
    assert f"more than {MAX_ALTERNATIVES} ways" in store.why(using(*names))


# ---------------------------------------------------------------------------------------------------------------- zones


@pytest.mark.parametrize(
    ("volume", "node", "expected"),
    [
        ({ZONE: "a"}, {ZONE: "a"}, True),
        ({ZONE: "a"}, {ZONE: "b"}, False),
        ({ZONE: "a__b"}, {ZONE: "b"}, True),
        ({ZONE: "a"}, {}, True),
        ({ZONE: "a"}, {"topology.kubernetes.io/region": "r"}, False),
        ({ZONE: "a__"}, {ZONE: "b"}, True),
        ({OLD_ZONE: "a"}, {ZONE: "a"}, True),
        ({OLD_ZONE: "a"}, {ZONE: "b"}, False),
        ({OLD_ZONE: "a"}, {ZONE: "a", OLD_ZONE: "b"}, False),
        ({ZONE: "a"}, {OLD_ZONE: "a"}, False),
        ({ZONE: "a", "topology.kubernetes.io/region": "r"}, {ZONE: "a", "topology.kubernetes.io/region": "s"}, False),
    ],
)
def test_labels_of_a_volume_say_in_which_zones_it_is(
    volume: dict[str, str], node: dict[str, str], expected: bool
) -> None:
    store = Store(a_claim(volumeName="disk"), a_volume("disk", labels=volume))
    assert store.allows(using("data"), **node) is expected


def test_a_node_without_zones_will_do_for_several_volumes_with_zones() -> None:
    store = Store(
        a_claim("one", volumeName="d1"),
        a_claim("two", volumeName="d2"),
        a_volume("d1", labels={ZONE: "a"}),
        a_volume("d2", labels={ZONE: "a__b"}),
    )
    pod = using("one", "two")
    assert store.allows(pod)
    assert store.allows(pod, **{ZONE: "a"})
    assert not store.allows(pod, **{ZONE: "b"})


# -------------------------------------------------------------------------------------------------------------- waiting


def test_a_claim_that_is_not_there() -> None:
    assert Store().why(using("data")) == 'waits for its volume claim "data", which does not exist'


def test_a_claim_that_has_no_volume_yet() -> None:
    expected = 'waits for its volume claim "data", which has no volume yet'
    assert Store(a_claim()).why(using("data")) == expected
    assert Store(a_claim(storageClassName="fast"), a_class("fast")).why(using("data")) == expected
    half = a_claim(volumeName="disk", annotations={})
    assert Store(half, a_volume("disk")).why(using("data")) == expected


def test_a_claim_whose_class_is_not_there() -> None:
    why = Store(a_claim(storageClassName="fast")).why(using("data"))
    assert why == 'waits for its volume claim "data", whose storage class "fast" does not exist'


def test_a_claim_that_has_lost_its_volume() -> None:
    store = Store(a_claim(volumeName="disk", phase="Lost"), a_volume("disk"))
    assert store.why(using("data")) == 'waits for its volume claim "data", which has lost its volume'
    gone = Store(a_claim(volumeName="disk"))
    assert gone.why(using("data")) == 'waits for the volume "disk" of its claim "data", which does not exist'


def test_a_claim_that_is_being_deleted() -> None:
    store = Store(a_claim(volumeName="disk", deletionTimestamp="2025-01-01T00:00:00Z"), a_volume("disk"))
    assert store.why(using("data")) == 'waits for its volume claim "data", which is being deleted'


def test_a_claim_for_one_pod_at_a_time() -> None:
    store = Store(a_claim(volumeName="disk", accessModes=["ReadWriteOncePod"]), a_volume("disk"))
    assert store.allows(using("data"))
    why = store.why(using("data"), in_use=claims_of(using("data", name="other")))
    assert why == 'waits for its volume claim "data", which one pod at a time may use and another one does'
    shared = Store(a_claim(volumeName="disk", accessModes=["ReadWriteOnce"]), a_volume("disk"))
    assert shared.rules(using("data"), in_use=["default/data"]).tell == ()


# ----------------------------------------------------------------------------------------------- volumes of a pod's own


def own(**fields: Any) -> Pod:
    return a_pod("p", volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}], **fields)


def test_a_volume_of_its_own_has_the_claim_named_after_pod_and_volume() -> None:
    owner = [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}]
    store = Store(
        a_claim("p-scratch", volumeName="disk", ownerReferences=owner), a_volume("disk", nodeAffinity=only_on("a"))
    )
    assert not store.allows(own(), zone="b")
    assert claims_of(own()) == ("default/p-scratch",)


def test_a_volume_of_its_own_that_is_still_to_be_made() -> None:
    assert Store().why(own()) == 'waits for its volume claim "p-scratch", which is still to be made'


def test_a_claim_of_that_name_which_is_not_its_own() -> None:
    store = Store(a_claim("p-scratch", volumeName="disk"), a_volume("disk"))
    assert "was not made for it" in store.why(own())


# ----------------------------------------------------------------------------------------------- made for the first pod


def test_a_claim_that_waits_for_its_pod_is_told_the_node() -> None:
    store = Store(a_claim(storageClassName="fast"), a_class("fast", volumeBindingMode=LATER))
    rules = store.rules(using("data"))
    assert rules.tell == ("data",)
    assert store.allows(using("data"))
    assert settled(using("data"), {}, store.all) == Settled(told=("data",))


def test_the_class_says_where_volumes_can_be_made() -> None:
    topologies = [{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}, {"matchLabelExpressions": []}]
    store = Store(
        a_claim(storageClassName="fast"), a_class("fast", volumeBindingMode=LATER, allowedTopologies=topologies)
    )
    assert [zone for zone in "abc" if store.allows(using("data"), zone=zone)] == ["a", "b"]
    assert not store.allows(using("data"))


def test_a_claim_that_was_told_a_node_keeps_its_pods_there() -> None:
    told = a_claim(storageClassName="fast", annotations={"volume.kubernetes.io/selected-node": "n1"})
    store = Store(told, a_class("fast", volumeBindingMode=LATER))
    assert store.allows(using("data"), **{NAME: "n1"})
    assert not store.allows(using("data"), **{NAME: "n2"})
    assert store.rules(using("data")).tell == ("data",)


def test_the_older_annotation_names_the_class() -> None:
    old = a_claim(annotations={"volume.beta.kubernetes.io/storage-class": "fast"}, storageClassName="slow")
    store = Store(old, a_class("fast", volumeBindingMode=LATER), a_class("slow"))
    assert store.rules(using("data")).tell == ("data",)


# ----------------------------------------------------------------------------------------------- volumes that lie ready


def a_disk(name: str, zone: str, size: str = "10Gi", **fields: Any) -> PersistentVolume:
    spec = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local"}
    return a_volume(name, nodeAffinity=only_on(zone), **{"phase": "Available", **spec, **fields})


def wanting(name: str = "data", size: str = "5Gi", **fields: Any) -> VolumeClaim:
    spec = {"storageClassName": "local", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    return a_claim(name, **{**spec, **fields})


def giving(**volumes: str) -> Settled:
    return Settled(given=tuple(Given(claim, f"uid-of-{claim}", volume, "7") for claim, volume in volumes.items()))


LOCAL = a_class("local", provisioner="kubernetes.io/no-provisioner", volumeBindingMode=LATER)


def test_a_class_that_makes_no_volumes_needs_one_that_lies_ready() -> None:
    store = Store(LOCAL, wanting(), a_disk("d1", "a"), a_disk("d2", "b", "1Gi"))
    assert [zone for zone in "abc" if store.allows(using("data"), zone=zone)] == ["a"]
    assert settled(using("data"), {"zone": "a"}, store.all) == giving(data="d1")
    assert isinstance(settled(using("data"), {"zone": "b"}, store.all), MustWait)


def test_the_smallest_volume_that_will_do_is_taken() -> None:
    store = Store(LOCAL, wanting(), a_disk("big", "a", "50Gi"), a_disk("small", "a", "5Gi"), a_disk("tiny", "a", "1Gi"))
    assert settled(using("data"), {"zone": "a"}, store.all) == giving(data="small")


@pytest.mark.parametrize(
    "unfit",
    [
        {"phase": "Released"},
        {"claimRef": {"namespace": "default", "name": "other"}},
        {"claimRef": {"namespace": "default", "name": "data", "uid": "an-older-claim"}},
        {"storageClassName": "other"},
        {"accessModes": ["ReadOnlyMany"]},
        {"volumeMode": "Block"},
        {"volumeAttributesClassName": "gold"},
        {"capacity": {"storage": "1Gi"}},
    ],
)
def test_a_volume_that_does_not_suit_does_not_count(unfit: dict[str, Any]) -> None:
    store = Store(LOCAL, wanting(), a_disk("d1", "a", **unfit))
    assert not store.allows(using("data"), zone="a")


def test_a_volume_that_is_meant_for_the_claim_is_the_one() -> None:
    meant = a_disk("meant", "a", "50Gi", claimRef={"namespace": "default", "name": "data"})
    store = Store(LOCAL, wanting(), meant, a_disk("small", "a", "5Gi"))
    assert settled(using("data"), {"zone": "a"}, store.all) == Settled(told=("data",))


def test_a_claim_may_choose_among_volumes_by_their_labels() -> None:
    store = Store(LOCAL, wanting(selector={"matchLabels": {"kind": "nvme"}}), a_disk("d1", "a", labels={"kind": "hdd"}))
    assert not store.allows(using("data"), zone="a")


def test_two_claims_need_two_volumes_in_one_place() -> None:
    claims = (wanting("one"), wanting("two", "8Gi"))
    store = Store(LOCAL, *claims, a_disk("a1", "a"), a_disk("b1", "b", "6Gi"), a_disk("b2", "b", "9Gi"))
    pod = using("one", "two")
    assert [zone for zone in "ab" if store.allows(pod, zone=zone)] == ["b"]
    assert settled(pod, {"zone": "b"}, store.all) == giving(one="b1", two="b2")


def test_local_disks_of_many_nodes_are_one_rule() -> None:
    store = Store(LOCAL, wanting(), *(a_disk(f"d{at}", f"z{at}") for at in range(1000)))
    assert len(store.rules(using("data")).alternatives) == 1
    assert store.allows(using("data"), zone="z999")


def test_a_volume_that_lies_ready_is_taken_before_one_is_made() -> None:
    topologies = [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]
    fast = a_class("local", volumeBindingMode=LATER, allowedTopologies=topologies)
    store = Store(fast, wanting(), a_disk("d1", "b"))
    assert [zone for zone in "abc" if store.allows(using("data"), zone=zone)] == ["a", "b"]
    assert settled(using("data"), {"zone": "a"}, store.all) == Settled(told=("data",))
    assert settled(using("data"), {"zone": "b"}, store.all) == giving(data="d1")


def test_bound_claims_are_settled_already() -> None:
    store = Store(a_claim(volumeName="disk"), a_volume("disk"))
    assert settled(using("data"), {}, store.all) == Settled()
