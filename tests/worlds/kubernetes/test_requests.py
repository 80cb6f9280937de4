"""What pods ask for, with the numbers the kubelet and kube-scheduler of Kubernetes 1.34 give for the same pods."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.errors import InputError
from gpuyard.worlds.kubernetes.requests import AMD, LARGEST, Asked, asked_by, device_claims_of, gpu_sharing_of
from tests.worlds.kubernetes.parts import a_container, a_pod, a_sidecar

GI = 1 << 30


def pod(*containers: dict[str, Any], init: list[dict[str, Any]] | None = None, **fields: Any) -> Asked:
    return asked_by(a_pod(containers=list(containers), initContainers=init or [], **fields))


# --------------------------------------------------------------------------------------------------------- containers


def test_a_pod_without_requests_asks_for_nothing() -> None:
    assert pod({"name": "c"}) == Asked()
    assert asked_by(a_pod()) == Asked()


def test_containers_add_up() -> None:
    assert pod(a_container("a", cpu="500m", gpu="1"), a_container("b", cpu="1", memory="1Gi", gpu="2")) == Asked(
        cpu_milli=1500, memory_bytes=GI, devices=3
    )


def test_sums_are_exact_and_rounded_once() -> None:
    assert pod(a_container("a", cpu="400u"), a_container("b", cpu="400u")).cpu_milli == 1
    assert pod(a_container("a", cpu="0.1"), a_container("b", cpu="0.2")).cpu_milli == 300
    assert pod(a_container("a", memory="100m"), a_container("b", memory="900m")).memory_bytes == 1


def test_what_is_only_limited_is_asked_for_to_that_limit() -> None:
    asked = pod(a_container(limits={"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "4"}, cpu="1"))
    assert asked == Asked(cpu_milli=1000, memory_bytes=GI, devices=4)


def test_a_request_of_zero_is_not_raised_to_the_limit() -> None:
    assert pod(a_container(limits={"cpu": "2"}, cpu="0")).cpu_milli == 0


# ----------------------------------------------------------------------------------------------------- init, sidecars


def test_init_containers_run_one_after_the_other_and_before_the_rest() -> None:
    init = [a_container("i1", cpu="3", memory="1Gi"), a_container("i2", cpu="1", memory="4Gi")]
    assert pod(a_container(cpu="2", memory="2Gi"), init=init) == Asked(cpu_milli=3000, memory_bytes=4 * GI)


def test_sidecars_stay_beside_the_containers() -> None:
    assert pod(a_container(cpu="2"), init=[a_sidecar(cpu="1")]).cpu_milli == 3000


def test_an_init_container_runs_beside_the_sidecars_started_before_it_only() -> None:
    before = [a_sidecar("s", cpu="2"), a_container("i", cpu="5")]
    assert pod(a_container(cpu="1"), init=before).cpu_milli == 7000
    assert pod(a_container(cpu="1"), init=list(reversed(before))).cpu_milli == 5000


def test_several_sidecars_around_an_init_container() -> None:
    init = [a_sidecar("s1", cpu="1"), a_container("i1", cpu="4"), a_sidecar("s2", cpu="2"), a_container("i2", cpu="2")]
    # Start: 1, 1+4, 3, 3+2. Then: 1 + sidecars 3.
    assert pod(a_container(cpu="1"), init=init).cpu_milli == 5000


def test_gpus_of_init_containers_are_kept_for_the_containers() -> None:
    assert pod(a_container(gpu="2"), init=[a_container("i", gpu="8")]).devices == 8


# ----------------------------------------------------------------------------------------- overhead, whole pods, resize


def test_the_sandbox_comes_on_top() -> None:
    asked = pod(a_container(cpu="1"), init=[a_container("i", cpu="2")], overhead={"cpu": "250m", "memory": "120Mi"})
    assert asked == Asked(cpu_milli=2250, memory_bytes=120 << 20)


def test_requests_of_the_whole_pod_replace_the_sum() -> None:
    asked = pod(a_container(cpu="1", memory="1Gi"), resources={"requests": {"cpu": "5"}}, overhead={"cpu": "1"})
    assert asked == Asked(cpu_milli=6000, memory_bytes=GI)


def test_the_whole_pod_can_ask_for_cpu_memory_and_huge_pages_only() -> None:
    requests = {"hugepages-2Mi": "4Mi", "example.com/foo": "3", "nvidia.com/gpu": "2"}
    assert pod(a_container(cpu="1"), resources={"requests": requests}) == Asked(
        cpu_milli=1000, other=(("hugepages-2Mi", 4 << 20),)
    )


def test_a_limit_of_the_whole_pod_counts_where_no_container_asks() -> None:
    asked = pod(a_container(cpu="1"), resources={"limits": {"cpu": "4", "memory": "2Gi"}})
    assert asked == Asked(cpu_milli=1000, memory_bytes=2 * GI)


def resized(reason: str = "", **status: Any) -> int:
    conditions = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    statuses = {"containerStatuses": [{"name": "c", **status}], "conditions": conditions}
    return pod(a_container(cpu="2"), status=statuses).cpu_milli


def test_while_it_is_resized_the_larger_of_old_and_new_counts() -> None:
    assert resized(resources={"requests": {"cpu": "3"}}) == 3000
    assert resized(resources={"requests": {"cpu": "1"}}, allocatedResources={"cpu": "4"}) == 4000
    assert resized(resources={"requests": {"cpu": "1"}}, allocatedResources={"cpu": "1"}) == 2000
    assert resized("Deferred", resources={"requests": {"cpu": "1"}}) == 2000


def test_a_resize_that_can_never_be_does_not_count() -> None:
    assert resized("Infeasible", resources={"requests": {"cpu": "1"}}) == 1000


def test_what_was_allocated_counts_only_once_the_kubelet_tells_what_is_in_force() -> None:
    assert resized(allocatedResources={"cpu": "4"}) == 2000


def test_an_init_container_is_never_resized_but_a_sidecar_is() -> None:
    status = {"initContainerStatuses": [{"name": "i", "resources": {"requests": {"cpu": "9"}}}]}
    assert pod(a_container(cpu="2"), init=[a_container("i", cpu="1")], status=status).cpu_milli == 2000
    assert pod(a_container(cpu="2"), init=[a_sidecar("i", cpu="1")], status=status).cpu_milli == 11000


# ------------------------------------------------------------------------------------------------------ other resources


def test_gpus_slices_and_everything_else() -> None:
    asked = asked_by(
        a_pod(
            containers=[
                {
                    "resources": {
                        "requests": {
                            "nvidia.com/mig-3g.40gb": "1",
                            "nvidia.com/mig-1g.10gb": "2",
                            "ephemeral-storage": "1Gi",
                            "hugepages-1Gi": "2Gi",
                            "example.com/fpga": "1",
                            "example.com/none": "0",
                            "attachable-volumes-csi-x": "1",
                        }
                    }
                }
            ]
        )
    )
    assert asked.mig == (("1g.10gb", 2), ("3g.40gb", 1))
    assert asked.other == (("ephemeral-storage", GI), ("example.com/fpga", 1), ("hugepages-1Gi", 2 * GI))


def test_gpus_of_amd_are_devices_of_their_own_kind() -> None:
    assert pod({"resources": {"limits": {"amd.com/gpu": "4"}}}) == Asked(devices=4, gpus=AMD)


def test_an_absurd_amount_is_more_than_any_node_has_and_no_more() -> None:
    asked = pod(a_container(cpu="9E", memory="8Ei"))
    assert (asked.cpu_milli, asked.memory_bytes) == (LARGEST, LARGEST)


def test_a_text_that_is_no_quantity_is_named() -> None:
    with pytest.raises(InputError, match='"much" is not a quantity'):
        pod(a_container(cpu="much"))


# ------------------------------------------------------------------------------------------------------ not served yet


def test_a_pod_that_wants_a_part_of_a_gpu_is_told_so() -> None:
    assert gpu_sharing_of(a_pod()) is None
    half = gpu_sharing_of(a_pod(annotations={"gpu-fraction": "0.5"}))
    assert half == "asks for a part of a GPU (gpu-fraction: 0.5), and only whole GPUs and MIG slices are served here"
    memory = gpu_sharing_of(a_pod(annotations={"gpu-memory": "2000"}))
    assert memory is not None
    assert "gpu-memory: 2000" in memory


def test_a_pod_that_wants_devices_by_resource_claims_is_told_so() -> None:
    assert device_claims_of(a_pod()) is None
    why = device_claims_of(a_pod(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one"}]))
    assert why == "asks for devices by resource claims (gpu), which are not served here"


# ---------------------------------------------------------------------------------------------------------- properties

amounts = st.integers(0, 64).map(str)
containers = st.builds(lambda cpu, gpu: a_container(cpu=cpu, gpu=gpu), amounts, amounts)
init_containers = containers | containers.map(lambda one: {**one, "restartPolicy": "Always"})


@given(st.lists(containers, min_size=1, max_size=3), st.lists(init_containers, max_size=4))
def test_a_pod_needs_at_least_its_containers_and_each_of_its_init_containers(
    running: list[dict[str, Any]], init: list[dict[str, Any]]
) -> None:
    whole = pod(*running, init=init)
    assert whole.devices >= pod(*running).devices
    assert all(whole.devices >= pod(one).devices for one in init)
    assert whole.devices <= pod(*running, *init).devices
