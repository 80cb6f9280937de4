"""The device plugin and a real kubelet: pods, health, changes, restarts and failures, as a cluster sees them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.testbed.bed import Bed
from gpuyard.testbed.images import Image
from tests.fakegpu.kubernetes.rig import IDS, Rig, folder_of, rigged, stays
from tests.kube import a_namespace, eventually

NODE = "node-1"
LONG = os.environ.get("GPUYARD_LONG") == "1"
RESTARTS = 100 if LONG else 5
REGISTERED = "nvidia.com/gpu: registered with the kubelet, 8 devices"


@pytest.fixture(scope="module")
def shared(testbed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with testbed.api() as api, rigged(testbed, api, NODE, tmp_path_factory.mktemp("rig")) as rig:
        yield rig


@pytest.fixture
def rig(shared: Rig) -> Rig:
    shared.as_it_was()
    return shared


@pytest.fixture
def pods(rig: Rig, request: pytest.FixtureRequest) -> Iterator[str]:
    with a_namespace(rig.api, f"{request.node.originalname.replace('_', '-')[:50].strip('-')}") as path:
        yield path
        rig.clear(path)


# --------------------------------------------------------------------------------------------------------- containers


def test_every_container_sees_exactly_its_own_gpus(rig: Rig, pods: str) -> None:
    rig.start(pods, "one", 2, 1, 0)
    rig.start(pods, "two", 4)
    for name in ("one", "two"):
        rig.runs(pods, name)
    first, second = rig.sees(pods, "one", "c0"), rig.sees(pods, "one", "c1")
    third = rig.sees(pods, "two")
    assert (len(first), len(second), len(third)) == (2, 1, 4)
    assert len({*first, *second, *third}) == 7
    assert {*first, *second, *third} < set(IDS)
    assert sorted(first) in [sorted(pair) for pair in zip(IDS[::2], IDS[1::2], strict=True)]
    for trick in ("NVIDIA_VISIBLE_DEVICES=all", "env -i", "GPUYARD_FAKE_STATE=/run/gpuyard-fake/"):
        listed = rig.inside(pods, "one", "sh", "-c", f"{trick} /usr/bin/nvidia-smi -L")
        assert [id for id in IDS if f"{id})" in listed] == sorted(first), trick
    assert "not found" in rig.inside(pods, "one", "sh", "-c", "nvidia-smi 2>&1", container="c2")
    assert rig.inside(pods, "one", "sh", "-c", "touch /run/gpuyard-fake/x 2>&1").startswith(
        "touch: /run/gpuyard-fake/x: Read-only file system"
    )


LOADS = r"""
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) return puts(dlerror()), 1;
    int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2");
    int (*count)(unsigned *) = (int (*)(unsigned *))dlsym(library, "nvmlDeviceGetCount_v2");
    unsigned gpus = 99;
    int begun = init(), counted = count(&gpus);
    return printf("%d %d %u\n", begun, counted, gpus) < 0;
}
"""


def test_a_program_of_an_image_with_a_c_library_finds_nvml_without_being_told(
    rig: Rig, pods: str, tmp_path: Path
) -> None:
    rig.bed.import_image(Image("testbed.local/loads:1", folder=an_image(tmp_path)), NODE)
    rig.start(pods, "loads", 3, image="testbed.local/loads:1")
    rig.runs(pods, "loads")
    assert rig.inside(pods, "loads", "/loads") == "0 0 3\n"


def an_image(scratch: Path) -> Path:
    """A program that needs a C library, and this machine's, where that program looks for it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler is installed")
    folder = scratch / "image"
    folder.mkdir()
    source = scratch / "loads.c"
    source.write_text(LOADS)
    subprocess.run([compiler, "-o", folder / "loads", source, "-ldl"], check=True)
    needed = subprocess.run(["ldd", folder / "loads"], capture_output=True, text=True, check=True).stdout
    for path in (Path(word) for word in needed.split() if word.startswith("/")):
        place = folder / path.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
        place.chmod(0o755)
    return folder


# ------------------------------------------------------------------------------------------------------- what changes


def test_a_fault_takes_a_gpu_out_and_its_end_brings_it_back(rig: Rig, pods: str) -> None:
    rig.start(pods, "lasting", 8)
    rig.runs(pods, "lasting")
    rig.fault(3, "xid:79")
    rig.has(8, 7)
    assert rig.sees(pods, "lasting") == [id for id in IDS if id != "GPU-3"]
    rig.heal()
    rig.has(8, 8)
    assert rig.sees(pods, "lasting") == list(IDS)


def test_gpus_come_and_go_with_the_file_also_under_a_running_pod(rig: Rig, pods: str) -> None:
    rig.start(pods, "lasting", 8)
    rig.runs(pods, "lasting")
    rig.configure(*IDS, "GPU-new", "GPU-newer")
    rig.has(10, 10)
    rig.configure(*IDS[:6])
    rig.has(6, 6)
    assert rig.sees(pods, "lasting") == list(IDS[:6])
    rig.configure(*IDS, product="T5")
    assert stays(lambda: rig.counts() == (6, 6), for_s=2)
    assert rig.phase(pods, "lasting") == "Running"
    rig.configure(*IDS)
    rig.has(8, 8)
    assert rig.sees(pods, "lasting") == list(IDS)


# ----------------------------------------------------------------------------------------------------------- restarts


def test_no_restart_of_the_kubelet_loses_a_device(rig: Rig, pods: str) -> None:
    rig.start(pods, "lasting", 3, 2)
    rig.runs(pods, "lasting")
    before = holding(rig, pods, "lasting")
    taken_s = []
    for _ in range(RESTARTS):
        registrations = rig.plugin.said().count(REGISTERED)
        rig.bed.restart("kubelet", NODE)
        eventually(lambda: rig.plugin.said().count(REGISTERED) > registrations, "the registration")  # noqa: B023
        taken_s.append(registered_after_s(rig))
        rig.has_again(8, 8)
        assert rig.plugin.said().count(REGISTERED) == registrations + 1
        # A kubelet that has just started knows no container for a moment, and cannot look into one.
        eventually(lambda: holding(rig, pods, "lasting") == before, "the same containers with the same GPUs")
    assert min(taken_s) < 2, "others may have kept the machine busy now and then, but not every time"
    rig.start(pods, "late", 3)
    rig.runs(pods, "late")
    others = {*rig.sees(pods, "lasting", "c0"), *rig.sees(pods, "lasting", "c1")}
    assert others.isdisjoint(rig.sees(pods, "late"))


def holding(rig: Rig, pods: str, name: str) -> list[tuple[str, int, list[str]]]:
    """Each container: which one it is, how often it was started again, and what it sees."""
    statuses = rig.api.get(f"{pods}/{name}")["status"]["containerStatuses"]
    return [(one["containerID"], one["restartCount"], rig.sees(pods, name, one["name"])) for one in statuses]


def registered_after_s(rig: Rig) -> float:
    """From the kubelet's socket to ours; it is made just before the registration."""
    folder = folder_of(rig.bed, NODE)
    ours = (folder / "gpuyard-nvidia.com-gpu.sock").stat().st_ctime
    return ours - (folder / "kubelet.sock").stat().st_ctime


def test_a_kubelet_that_was_stopped_for_a_while_finds_the_plugin_at_once(rig: Rig) -> None:
    rig.bed.stop("kubelet", NODE)
    registrations = rig.plugin.said().count(REGISTERED)
    assert stays(lambda: rig.plugin.said().count(REGISTERED) == registrations, for_s=1)
    rig.bed.start("kubelet", NODE)
    eventually(lambda: rig.plugin.said().count(REGISTERED) > registrations, "the registration")
    rig.has_again(8, 8)


def test_a_model_that_is_killed_with_its_plugin_comes_back_under_a_running_container(
    testbed: Bed, tmp_path: Path
) -> None:
    options = ("--config", str(tmp_path / "fleet.yaml"), "--port", "0")
    with (
        testbed.api() as api,
        rigged(testbed, api, "node-3", tmp_path, *options) as rig,
        a_namespace(api, "killed-with-its-plugin") as pods,
    ):
        rig.start(pods, "lasting", 2)
        rig.runs(pods, "lasting")
        before = holding(rig, pods, "lasting")
        ((_, _, seen),) = before
        rig.plugin.kill()
        rig.has(8, 0)
        assert holding(rig, pods, "lasting") == before
        rig.plugin.start()
        rig.has(8, 8)
        assert holding(rig, pods, "lasting") == before
        rig.start(pods, "late", 6)
        rig.runs(pods, "late")
        rig.fault(IDS.index(seen[0]), "off-the-bus")
        eventually(lambda: rig.sees(pods, "lasting") == seen[1:], "the fault in the container")
        rig.clear(pods)


# ----------------------------------------------------------------------------------------------------------- failures


def test_a_crash_empties_the_node_until_it_is_healed(rig: Rig) -> None:
    rig.fault("all", "plugin:crash")
    rig.has(8, 0)
    rig.heal()
    rig.has(8, 8)


def test_a_pod_waits_for_a_plugin_that_hangs(rig: Rig, pods: str) -> None:
    rig.fault(0, "plugin:hang")
    eventually(lambda: "as it was told to, the plugin hangs" in rig.plugin.said(), "the fault")
    rig.start(pods, "patient", 1)
    assert stays(lambda: rig.phase(pods, "patient") == "Pending", for_s=2)
    rig.heal()
    rig.runs(pods, "patient")
    assert len(rig.sees(pods, "patient")) == 1


def test_a_refused_allocation_fails_the_pod_for_good_and_not_the_next(rig: Rig, pods: str) -> None:
    rig.fault("all", "plugin:fail-allocation")
    eventually(lambda: "the plugin refuses GPU-0, GPU-1" in rig.plugin.said()[-1], "the fault")
    rig.start(pods, "refused", 1)
    eventually(lambda: rig.phase(pods, "refused") == "Failed", "the failure")
    status = rig.api.get(f"{pods}/refused")["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "it is not handed out" in status["message"]
    rig.heal()
    eventually(lambda: rig.plugin.said()[-1] == "as it was told to, the plugin fails no longer", "its end")
    rig.start(pods, "next", 1)
    rig.runs(pods, "next")


def test_a_failed_registration_leaves_the_node_without_gpus_and_recovers(rig: Rig) -> None:
    rig.fault(0, "plugin:fail-registration")
    rig.has(8, 0)
    assert "is not supported" in rig.bed.log("kubelet", NODE)
    rig.heal()
    rig.has(8, 8)
