"""NVIDIA's own device plugin, unmodified, on our NVML library and a real kubelet: it does not notice that GPUs lack."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuyard.errors import KubeTestbedError
from gpuyard.fakegpu.control import Break, DaemonStatus, Status, ask
from gpuyard.fakegpu.launch import environment
from gpuyard.testbed import machine
from gpuyard.testbed.bed import Bed
from gpuyard.testbed.golang import GoModule, Program, programs_of
from tests.fakegpu.daemons import running
from tests.fakegpu.kubernetes.plugins import Plugin
from tests.fakegpu.kubernetes.rig import Rig, forget_devices
from tests.kube import a_namespace

NODE = "node-2"
VERSION = "v0.17.4"
MODULE = "github.com/NVIDIA/k8s-device-plugin"
DEVICE_PLUGIN = GoModule(
    name="nvidia-device-plugin",
    version=VERSION,
    folder=Path(__file__).with_name("nvidia"),
    programs=(Program("nvidia-device-plugin", f"{MODULE}/cmd/nvidia-device-plugin"),),
    values=((f"{MODULE}/internal/info.version", VERSION),),
    minutes=2,
    needs_c=True,
)
# What the kernel's part of the driver tells in /proc of every machine whose GPUs could be cut.
GPUS, INSTANCES, COMPUTE_INSTANCES = 32, 15, 8
BEFORE_IT = """
mount -t tmpfs tmpfs /proc/driver
mkdir /proc/driver/nvidia-caps
cp "$MIG_MINORS" /proc/driver/nvidia-caps/mig-minors
exec "$@"
"""


@pytest.fixture(scope="module")
def program() -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler is installed, which NVIDIA's plugin needs")
    try:
        return programs_of(DEVICE_PLUGIN, print)["nvidia-device-plugin"]
    except KubeTestbedError as error:
        pytest.skip(f"NVIDIA's plugin cannot be built here: {error.what.splitlines()[0]}")


@contextmanager
def nvidias(bed: Bed, program: Path, root: Path, fleet: str, *options: str) -> Iterator[Rig]:
    """It runs on the node as it is, with our library where it looks for NVIDIA's."""
    file, home, minors = root / "fleet.yaml", root / "home", root / "mig-minors"
    file.write_text(fleet)
    minors.write_text("\n".join(mig_minors()) + "\n")
    with running(home, config=file), bed.api() as api:
        # Only the mounts of the node are entered: our signals shall reach the plugin itself.
        on_node = ["nsenter", f"--target={machine.get(bed.record, NODE).first.pid}", "--mount", "unshare", "--mount"]
        sees = environment(home, NODE).variables(dict(os.environ))
        variables = ["env", *(f"{name}={value}" for name, value in sees.items()), f"MIG_MINORS={minors}"]
        plugin = Plugin(root / "log", [*on_node, *variables, "sh", "-ec", BEFORE_IT, "sh", program, *options])
        try:
            yield Rig(bed, api, NODE, home, plugin)
        finally:
            plugin.end()
            forget_devices(bed, NODE)


def mig_minors() -> Iterator[str]:
    number = 3
    yield from ("config 1", "monitor 2")
    for gpu in range(GPUS):
        for instance in range(INSTANCES):
            for below in ("", *(f"ci{compute}/" for compute in range(COMPUTE_INSTANCES))):
                yield f"gpu{gpu}/gi{instance}/{below}access {number}"
                number += 1


def visible(rig: Rig, pods: str) -> str:
    return rig.inside(pods, "pod", "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES").strip()


def ids(rig: Rig) -> list[str]:
    (shown,) = ask(rig.home, Status(NODE), DaemonStatus).machines
    return [device.uuid for device in shown.reading.devices]


def test_the_node_has_gpus_and_a_pod_gets_two_that_are_close(testbed: Bed, program: Path, tmp_path: Path) -> None:
    fleet = f"nodes: {{{NODE}: {{gpu-product: A100, gpus: 8}}}}"
    with nvidias(testbed, program, tmp_path, fleet) as rig, a_namespace(rig.api, "nvidia-whole") as pods:
        rig.has(8, 8)
        rig.start(pods, "pod", 2)
        rig.runs(pods, "pod")
        given = visible(rig, pods).split(",")
        assert sorted(ids(rig).index(id) // 2 for id in given) in [[pair, pair] for pair in range(4)]
        ask(rig.home, Break(NODE, 5, "xid:48"), type(None))
        rig.has(8, 7)
        rig.clear(pods)
        assert f'version="{VERSION}"' in "".join(rig.plugin.said())


def test_it_finds_the_instances_of_gpus_that_are_cut(testbed: Bed, program: Path, tmp_path: Path) -> None:
    cut = "{mig: [3g.40gb, 2g.20gb, 1g.10gb]}"
    fleet = f"{{mig-strategy: mixed, nodes: {{{NODE}: {{gpu-product: A100, gpus: [{{}}, {cut}, {cut}]}}}}}}"
    with (
        nvidias(testbed, program, tmp_path, fleet, "--mig-strategy=mixed") as rig,
        a_namespace(rig.api, "nvidia-cut") as pods,
    ):
        resource = "nvidia.com/mig-3g.40gb"
        rig.has(2, 2, resource=resource)
        rig.has(2, 2, resource="nvidia.com/mig-1g.10gb")
        rig.start(pods, "pod", 1, resource=resource)
        rig.runs(pods, "pod")
        (shown,) = ask(rig.home, Status(NODE), DaemonStatus).machines
        instances = {one.uuid: one.profile for device in shown.reading.devices for one in device.mig}
        given = visible(rig, pods)
        assert instances[given] == "3g.40gb"
        rig.clear(pods)
