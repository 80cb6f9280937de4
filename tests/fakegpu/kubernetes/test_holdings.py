"""Which container is shown as the holder of a device, and what it does there."""

from __future__ import annotations

from gpuyard.fakegpu.kubernetes.assign import Allocation
from gpuyard.fakegpu.kubernetes.holdings import holdings
from gpuyard.fakegpu.kubernetes.observed import Kind
from gpuyard.fakegpu.kubernetes.workload import Work
from gpuyard.fakegpu.profile import BUSY, steady
from gpuyard.fakegpu.reading import Holder
from tests.fakegpu.kubernetes.sights import a_container, a_pod, by_uid


def test_a_container_that_runs_is_busy_or_does_what_its_profile_says() -> None:
    pod = a_pod("p", a_container("a", since_ms=5), a_container("b", since_ms=6), a_container("c", since_ms=None))
    given = [Allocation(pod.uid, name, (f"g-{name}",)) for name in "abc"]
    found = holdings(given, by_uid(pod), {pod.uid: Work(own=(("b", steady(30)),))})
    assert (found["g-a"].profile, found["g-a"].since_ms) == (BUSY, 5)
    assert found["g-b"].profile == steady(30)
    assert found["g-c"].profile is None, "it holds its GPU and does nothing yet"
    assert found["g-c"].holder == Holder("default", "p", "c")


def test_while_an_init_container_runs_the_device_is_its_own() -> None:
    def holder(init_since: int | None, main_since: int | None) -> tuple[str, bool]:
        init = a_container("init", kind=Kind.INIT, since_ms=init_since)
        pod = a_pod("p", init, a_container("main", since_ms=main_since))
        given = [Allocation(pod.uid, "init", ("g",)), Allocation(pod.uid, "main", ("g",))]
        found = holdings(given, by_uid(pod), {})["g"]
        return found.holder.container, found.profile is not None

    assert holder(None, None) == ("main", False)
    assert holder(1, None) == ("init", True)
    assert holder(None, 2) == ("main", True)


def test_a_device_only_an_init_container_had_stays_with_the_pod() -> None:
    pod = a_pod("p", a_container("init", kind=Kind.INIT, since_ms=None), a_container("main", gpus=0))
    found = holdings([Allocation(pod.uid, "init", ("g",))], by_uid(pod), {})["g"]
    assert (found.holder.container, found.profile) == ("init", None)


def test_allocations_of_pods_that_are_gone_are_nobodys() -> None:
    assert holdings([Allocation("gone", "main", ("g",))], {}, {}) == {}
