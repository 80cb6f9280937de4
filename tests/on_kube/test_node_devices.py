"""From what kubelet, driver and API server say to what is published: holders, health, what is remembered."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.kube.node_devices import PLUGIN_GRACE_MS, Past, PodSeen, Sight, holders, next_past
from gpuyard.kube.node_news import news
from gpuyard.kubeapi.kubelet import Given, Offered, Recorded
from gpuyard.nvml.gpus import Gpu, MigInstance
from gpuyard.worlds.kubernetes.devices import (
    GPU,
    KEY,
    Held,
    NodeDevices,
    PublishedDevice,
    document_of,
    map_name,
    read_devices,
)
from gpuyard.worlds.kubernetes.objects import ConfigMap, Metadata

MIG = "nvidia.com/mig-1g.10gb"
FOUR = tuple(Offered(GPU, f"GPU-{number}") for number in range(4))
PODS = {"u1": PodSeen("a", "p"), "u2": PodSeen("a", "q")}


def sight(**fields: Any) -> Sight:
    """Four GPUs, all of them listed."""
    return Sight(**{"now_ms": 0, "offered": FOUR, "capacity": {GPU: 4}, **fields})


def look(past: Past, seen: Sight) -> Past:
    return next_past(past, seen, holders(seen))


def health(past: Past) -> dict[str, bool]:
    return {device.id: device.healthy for device in past.devices}


# ------------------------------------------------------------------------------------------------------------- holders


def test_every_container_with_what_the_kubelet_gave_it_and_the_uid_of_its_pod() -> None:
    gave = (
        Given("a", "p", "x", GPU, ("GPU-1",)),
        Given("a", "p", "w", GPU, ("GPU-0",)),
        Given("b", "r", "m", MIG, ("m",)),
    )
    assert holders(sight(given=gave, pods=PODS)) == (
        Held("a", "p", "w", ("GPU-0",), "u1"),
        Held("a", "p", "x", ("GPU-1",), "u1"),
        Held("b", "r", "m", ("m",)),
    )


def test_devices_of_two_resources_are_one_holding() -> None:
    gave = (Given("a", "p", "x", GPU, ("GPU-1",)), Given("a", "p", "x", MIG, ("m",)))
    assert holders(sight(given=gave)) == (Held("a", "p", "x", ("GPU-1", "m")),)


def test_of_init_containers_the_record_tells() -> None:
    gave = (Given("a", "p", "main", GPU, ("GPU-0",)),)
    record = (Recorded("u1", "init", GPU, ("GPU-0", "GPU-1")), Recorded("u1", "main", GPU, ("GPU-0",)))
    assert holders(sight(given=gave, recorded=record, pods=PODS)) == (
        Held("a", "p", "init", ("GPU-0", "GPU-1"), "u1"),
        Held("a", "p", "main", ("GPU-0",), "u1"),
    )


def test_of_a_kubelet_that_has_not_read_its_pods_yet_the_record_tells() -> None:
    record = (Recorded("u1", "main", GPU, ("GPU-0",)),)
    assert holders(sight(recorded=record, pods=PODS)) == (Held("a", "p", "main", ("GPU-0",), "u1"),)


def test_what_the_record_still_has_of_pods_that_are_over_or_gone_does_not_count() -> None:
    record = (Recorded("u1", "main", GPU, ("GPU-0",)), Recorded("u9", "main", GPU, ("GPU-1",)))
    assert holders(sight(recorded=record, pods={"u1": PodSeen("a", "p", is_over=True)})) == ()


def test_what_was_given_to_another_since_is_the_others() -> None:
    gave = (Given("a", "q", "main", GPU, ("GPU-0",)),)
    record = (Recorded("u1", "main", GPU, ("GPU-0", "GPU-1")),)
    assert holders(sight(given=gave, recorded=record, pods=PODS)) == (
        Held("a", "p", "main", ("GPU-1",), "u1"),
        Held("a", "q", "main", ("GPU-0",), "u2"),
    )


def test_a_kubelet_of_old_tells_of_pods_that_are_over_and_they_are_left_out() -> None:
    gave = (Given("a", "p", "main", GPU, ("GPU-0",)),)
    over = {"u1": PodSeen("a", "p", is_over=True)}
    assert holders(sight(given=gave, pods=over)) == ()
    # Unless there is a new one of the same name.
    assert holders(sight(given=gave, pods={**over, "u2": PodSeen("a", "p")})) == (
        Held("a", "p", "main", ("GPU-0",), "u2"),
    )


# -------------------------------------------------------------------------------------------------------------- health


def test_a_device_that_is_listed_no_longer_is_ill_and_comes_back() -> None:
    first = look(Past(), sight())
    ill = look(first, sight(offered=FOUR[1:]))
    assert health(ill) == {"GPU-0": False, "GPU-1": True, "GPU-2": True, "GPU-3": True}
    assert look(ill, sight()) == first


def test_a_device_the_node_no_longer_counts_is_gone() -> None:
    ill = look(look(Past(), sight()), sight(offered=FOUR[1:]))
    assert list(health(look(ill, sight(offered=FOUR[1:], capacity={GPU: 3})))) == ["GPU-1", "GPU-2", "GPU-3"]


def test_whoever_holds_a_device_that_is_gone_still_does() -> None:
    gave = (Given("a", "p", "main", GPU, ("GPU-0",)),)
    seen = sight(offered=FOUR[1:], capacity={GPU: 3}, given=gave)
    assert health(look(Past(), seen))["GPU-0"] is False
    assert "GPU-0" not in health(look(look(Past(), seen), sight(offered=FOUR[1:], capacity={GPU: 3})))


def test_a_plugin_that_has_not_registered_yet_makes_nobodys_device_ill_for_a_while() -> None:
    ill = look(look(Past(), sight()), sight(offered=FOUR[1:]))
    silent = {"offered": (), "capacity": {GPU: 4}}
    waiting = look(ill, sight(now_ms=1_000, **silent))
    assert health(waiting) == health(ill)
    waiting = look(waiting, sight(now_ms=PLUGIN_GRACE_MS, **silent))
    assert health(waiting) == health(ill)
    waiting = look(waiting, sight(now_ms=PLUGIN_GRACE_MS + 1_000, **silent))
    assert not any(health(waiting).values())
    assert all(health(look(waiting, sight(now_ms=PLUGIN_GRACE_MS + 2_000))).values())


def test_a_plugin_that_stays_away_takes_its_devices_with_it() -> None:
    first = look(Past(), sight())
    gone: dict[str, Any] = {"offered": (), "capacity": {}}
    assert look(look(first, sight(**gone)), sight(now_ms=PLUGIN_GRACE_MS, **gone)).devices == ()


def test_a_count_that_cannot_be_true_yet_takes_nothing_away() -> None:
    """A kubelet that was started anew tells of no device at first, and the API server has it from there."""
    ill = look(look(Past(), sight()), sight(offered=FOUR[1:]))
    assert health(look(ill, sight(offered=FOUR[1:], capacity={}))) == health(ill)


def test_one_resource_says_nothing_about_another() -> None:
    both = (*FOUR, Offered(MIG, "m"))
    first = look(Past(), sight(offered=both, capacity={GPU: 4, MIG: 1}))
    after = look(first, sight(offered=FOUR, capacity={GPU: 4, MIG: 1}))
    assert health(after)["m"]
    assert not health(look(after, sight(now_ms=PLUGIN_GRACE_MS, offered=FOUR, capacity={GPU: 4, MIG: 1})))["m"]


def test_what_was_published_before_us_is_remembered() -> None:
    published = (PublishedDevice("GPU-0", healthy=False, model="Tesla-T4", memory_mib=15360),)
    (ill, *_) = look(Past(published), sight(offered=FOUR[1:])).devices
    assert ill == published[0]


def test_of_a_resource_whose_last_device_is_gone_nothing_is_remembered() -> None:
    held = sight(offered=(), given=(Given("a", "p", "main", GPU, ("GPU-0",)),))
    gone = look(look(Past(), held), sight(now_ms=PLUGIN_GRACE_MS, offered=(), capacity={}))
    assert gone == Past()


# -------------------------------------------------------------------------------------------------------------- driver

T4 = tuple(Gpu(f"GPU-{at}", "T4", 15_360, bus_id=f"b{at}", numa=1, name="NVIDIA Tesla T4") for at in (2, 0, 1, 3))


def test_the_driver_tells_order_product_and_memory() -> None:
    devices = look(Past(), sight(gpus=T4)).devices
    assert [device.id for device in devices] == ["GPU-2", "GPU-0", "GPU-1", "GPU-3"]
    assert {(device.model, device.memory_mib, device.numa) for device in devices} == {("NVIDIA-Tesla-T4", 15_360, 1)}


def test_without_a_driver_they_come_in_the_order_of_their_numbers() -> None:
    ids = ["GPU-10", "GPU-9", "GPU-1", "GPU-01", "a", "GPU-" + "9" * 5_000]
    found = look(Past(), sight(offered=tuple(Offered(GPU, id) for id in ids))).devices
    assert [device.id[:8] for device in found] == ["GPU-01", "GPU-1", "GPU-9", "GPU-10", "GPU-9999", "a"]


def test_what_the_driver_calls_ill_is_ill_and_its_parts_too() -> None:
    slices = (MigInstance("1g.10gb", "m0"), MigInstance("1g.10gb", "m1"))
    gpus = (
        msgspec.structs.replace(T4[0], healthy=False),
        msgspec.structs.replace(T4[1], healthy=False, is_cut=True, mig=slices),
        T4[2],
    )
    offered = (Offered(GPU, "GPU-2"), Offered(GPU, "GPU-1::0"), Offered(GPU, "GPU-1::1"), Offered(MIG, "m0"))
    found = {device.id: device for device in look(Past(), sight(offered=offered, gpus=gpus)).devices}
    assert {id: device.healthy for id, device in found.items()} == {
        "GPU-2": False,
        "m0": False,
        "GPU-1::0": True,
        "GPU-1::1": True,
    }
    assert (found["m0"].gpu, found["m0"].memory_mib) == ("GPU-0", 0)
    assert (found["GPU-1::1"].gpu, found["GPU-1::1"].memory_mib) == ("GPU-1", 15_360)


def test_an_ill_gpu_nobody_has_listed_yet_is_known_from_the_driver() -> None:
    found = look(Past(), sight(offered=FOUR[1:], gpus=T4))
    assert health(found) == {"GPU-2": True, "GPU-0": False, "GPU-1": True, "GPU-3": True}
    assert "GPU-0" not in health(look(Past(), sight(offered=FOUR[1:], capacity={GPU: 3}, gpus=T4)))


def test_gpus_the_kubelet_calls_otherwise_are_not_made_up() -> None:
    offered = tuple(Offered(GPU, f"GPU-{at}::0") for at in range(4))
    assert len(look(Past(), sight(offered=offered, gpus=T4, capacity={GPU: 9})).devices) == 4


# ---------------------------------------------------------------------------------------------------------- whatever is

names = st.sampled_from(["p", "q", "r"])
IDS = {GPU: [f"GPU-{number}" for number in range(4)], MIG: ["m0", "m1"]}
offers = st.sampled_from([Offered(resource, id, 1) for resource in IDS for id in IDS[resource]])
handed = st.sampled_from([GPU, MIG]).flatmap(
    lambda resource: st.tuples(st.just(resource), st.lists(st.sampled_from(IDS[resource]), unique=True, min_size=1))
)


@st.composite
def sights(draw: st.DrawFn) -> Sight:
    pods = {f"u{name}": PodSeen("a", name, draw(st.booleans())) for name in draw(st.lists(names, unique=True))}
    given = draw(st.lists(st.tuples(names, names, handed), max_size=4))
    recorded = draw(st.lists(st.tuples(names, names, handed), max_size=4))
    return Sight(
        now_ms=draw(st.integers(0, 3 * PLUGIN_GRACE_MS)),
        offered=tuple(draw(st.lists(offers, unique=True, max_size=6))),
        given=tuple(Given("a", pod, name, resource, tuple(ids)) for pod, name, (resource, ids) in given),
        recorded=tuple(Recorded(f"u{pod}", name, resource, tuple(ids)) for pod, name, (resource, ids) in recorded),
        gpus=tuple(draw(st.lists(st.sampled_from(T4), unique=True))),
        pods=pods,
        capacity=draw(st.dictionaries(st.sampled_from([GPU, MIG]), st.integers(0, 6))),
    )


@given(st.lists(sights(), min_size=1, max_size=4))
def test_whatever_is_seen_what_is_published_can_be_read_again(seen: list[Sight]) -> None:
    past = Past()
    for one in sorted(seen, key=lambda one: one.now_ms):
        held = holders(one)
        past = next_past(past, one, held)
        found = NodeDevices("n", past.devices, held)
        assert read_devices(ConfigMap(Metadata(name=map_name("n")), {KEY: document_of(found)})) == found
        assert next_past(past, one, held) == past, "looking again changes nothing"


# ----------------------------------------------------------------------------------------------------------------- log


def test_the_log_tells_what_has_changed_and_nothing_else() -> None:
    two = (PublishedDevice("GPU-0"), PublishedDevice("GPU-1"))
    ill = (PublishedDevice("GPU-0"), PublishedDevice("GPU-1", healthy=False))
    nothing, first = NodeDevices("n"), NodeDevices("n", two, (Held("a", "p", "x", ("GPU-0",)),))
    later = NodeDevices("n", ill, (Held("a", "q", "x", ("GPU-0",)),))
    assert news(nothing, first) == "2 devices, 1 held; a/p/x has GPU-0"
    assert news(first, later) == "2 devices, 1 held; ill: GPU-1; a/p/x has none any more; a/q/x has GPU-0"
    assert news(later, NodeDevices("n", two[1:])) == (
        "1 device, 0 held; gone: GPU-0; well again: GPU-1; a/q/x has none any more"
    )
