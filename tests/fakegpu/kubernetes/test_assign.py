"""Who gets which device of a node without a kubelet."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.fakegpu.kubernetes.assign import Allocation, Assignment, assign
from gpuyard.fakegpu.kubernetes.observed import Kind, PodFacts
from tests.fakegpu.kubernetes.sights import GPU, a_container, a_pod

DEVICES = {GPU: [f"g{index}" for index in range(8)]}


def given_to(assignment: Assignment, pod: PodFacts) -> dict[str, tuple[str, ...]]:
    return {each.container: each.devices for each in assignment.allocations if each.pod == pod.uid}


def test_who_came_first_gets_the_first() -> None:
    late, early = a_pod("a", a_container(gpus=2), created="2"), a_pod("b", a_container(gpus=3), created="1")
    found = assign(DEVICES, [late, early])
    assert given_to(found, early) == {"main": ("g0", "g1", "g2")}
    assert given_to(found, late) == {"main": ("g3", "g4")}


def test_who_has_devices_keeps_them_when_others_go() -> None:
    first, second = a_pod("a"), a_pod("b")
    before = assign(DEVICES, [first, second]).allocations
    after = assign(DEVICES, [second, a_pod("c")], before)
    assert given_to(after, second) == {"main": ("g1",)}
    assert given_to(after, a_pod("c")) == {"main": ("g0",)}


def test_nobody_gets_a_part_of_what_it_asks_for() -> None:
    big, small = a_pod("a", a_container("x", 6), a_container("y", 3)), a_pod("b", a_container(gpus=8), created="1")
    found = assign(DEVICES, [big, small])
    assert given_to(found, big) == {}
    assert [(each.pod.name, each.asked, each.free) for each in found.short] == [("a", 3, 2)]
    assert given_to(found, small) == {"main": tuple(DEVICES[GPU])}


def test_containers_of_a_pod_have_their_own_devices() -> None:
    pod = a_pod("a", a_container("x", 2), a_container("none", 0), a_container("y", 1))
    assert given_to(assign(DEVICES, [pod]), pod) == {"x": ("g0", "g1"), "y": ("g2",)}


def test_what_init_containers_had_is_used_again_and_what_sidecars_have_is_not() -> None:
    pod = a_pod(
        "a",
        a_container("first", 3, Kind.INIT),
        a_container("side", 1, Kind.SIDECAR),
        a_container("second", 1, Kind.INIT),
        a_container("main", 3),
    )
    assert given_to(assign(DEVICES, [pod]), pod) == {
        "first": ("g0", "g1", "g2"),
        "side": ("g0",),
        "second": ("g1",),
        "main": ("g1", "g2", "g3"),
    }


def test_resources_do_not_mix() -> None:
    resources = {GPU: ["g0"], "nvidia.com/mig-1g.10gb": ["m0", "m1"]}
    wants = a_container("main", 1)
    pod = a_pod("a", wants.__class__("main", Kind.MAIN, ((GPU, 1), ("nvidia.com/mig-1g.10gb", 2)), 0))
    assert given_to(assign(resources, [pod]), pod) == {"main": ("g0", "m0", "m1")}
    assert assign({GPU: ["g0"]}, [pod]).short[0].resource == "nvidia.com/mig-1g.10gb"


def test_a_device_that_leaves_stays_with_its_holder_and_is_given_to_nobody_else() -> None:
    holder, other = a_pod("a"), a_pod("b")
    before = (Allocation(holder.uid, "main", ("old",)),)
    found = assign({GPU: ["g0"]}, [holder, other], before, leaving={"old"})
    assert given_to(found, holder) == {"main": ("old",)}
    assert given_to(found, other) == {"main": ("g0",)}
    assert assign({GPU: []}, [other], before, leaving={"old"}).allocations == ()


def test_a_device_that_is_gone_is_replaced() -> None:
    pod = a_pod("a")
    found = assign({GPU: ["g5"]}, [pod], (Allocation(pod.uid, "main", ("gone",)),))
    assert given_to(found, pod) == {"main": ("g5",)}


@st.composite
def histories(draw: st.DrawFn) -> list[list[PodFacts]]:
    """The pods of a node at several instants."""
    kinds = st.sampled_from([Kind.INIT, Kind.SIDECAR, Kind.MAIN])
    shapes = st.lists(st.tuples(st.integers(0, 5), kinds), min_size=1, max_size=3)
    pods = [
        a_pod(
            f"p{number}",
            *(a_container(f"c{at}", gpus, kind) for at, (gpus, kind) in enumerate(sorted(shape, key=lambda s: s[1]))),
            created=str(draw(st.integers(0, 3))),
        )
        for number, shape in enumerate(draw(st.lists(shapes, min_size=1, max_size=6)))
    ]
    return draw(st.lists(st.lists(st.sampled_from(pods), unique_by=lambda pod: pod.uid), min_size=1, max_size=5))


@given(histories())
def test_no_device_is_given_to_two_pods_nobody_gets_a_part_and_everybody_keeps_theirs(
    history: list[list[PodFacts]],
) -> None:
    before: tuple[Allocation, ...] = ()
    for pods in history:
        found = assign(DEVICES, pods, before)
        assert found == assign(DEVICES, list(reversed(pods)), before), "the order of the answer is not ours to use"
        owners: dict[str, str] = {}
        for each in found.allocations:
            for device in each.devices:
                assert owners.setdefault(device, each.pod) == each.pod
        for pod in pods:
            mine = given_to(found, pod)
            wanted = {each.name: sum(count for _, count in each.asks) for each in pod.containers if each.asks}
            assert {name: len(devices) for name, devices in mine.items()} in ({}, wanted)
            kept = [each for each in before if each.pod == pod.uid]
            assert all(mine[each.container] == each.devices for each in kept)
        before = found.allocations
