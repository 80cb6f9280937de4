"""`gpuyard kube node` beside a real kubelet: who has what, what is ill, and everything that may be away for a while."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import yaml

from gpuyard.fakegpu import build
from gpuyard.kube.node import config_map_of
from gpuyard.testbed.bed import Bed
from gpuyard.worlds.kubernetes.devices import LABEL, NodeDevices, PublishedDevice, map_name, read_devices
from gpuyard.worlds.kubernetes.objects import ConfigMap
from tests.fakegpu.kubernetes.deployed import asking, fake_node, gpu_pod, must
from tests.fakegpu.kubernetes.rig import IDS, Rig, folder_of, rigged
from tests.kube import a_namespace, eventually
from tests.ports import free_ports

PAGE = Path(__file__).parents[2] / "docs" / "kube-node.md"
NODE = "node-2"
NAMESPACE = "kube-node"
MAP = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{map_name(NODE)}"
SECONDS = 30.0


def account(rig: Rig, scratch: Path) -> Path:
    """A kubeconfig of somebody with the rights the page asks for, and no others."""
    (manifests,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    rights = [
        each
        for each in yaml.safe_load_all(manifests.replace("gpuyard-system", NAMESPACE))
        if each["kind"] != "DaemonSet"
    ]
    (scratch / "rights.yaml").write_text(yaml.safe_dump_all(rights))
    must(rig.bed, "apply", "--server-side", "-f", str(scratch / "rights.yaml"))
    file = scratch / "kubeconfig"
    file.write_bytes(rig.bed.kubeconfig.read_bytes())
    token = must(rig.bed, "create", "token", "gpuyard-node", "-n", NAMESPACE).strip()
    content = yaml.safe_load(file.read_text())
    content["users"] = [{**each, "user": {"token": token}} for each in content["users"]]
    file.write_text(yaml.safe_dump(content))
    return file


class Part:
    """The command as a process of its own; what it says goes to a file."""

    def __init__(self, rig: Rig, scratch: Path, *options: str) -> None:
        self.rig = rig
        self.log = scratch / "log"
        folder = folder_of(rig.bed, NODE)
        socket = folder.parent / "pod-resources" / "kubelet.sock"
        way = str(account(rig, scratch))
        where = ("--pod-resources", str(socket), "--plugin-dir", str(folder), "--kubeconfig", way)
        self.command = [sys.executable, "-m", "gpuyard", "kube", "node", "--node", NODE, "-n", NAMESPACE, *where]
        self.driver = {
            "GPUYARD_FAKE_STATE": str(rig.home / "machines" / NODE),
            "LD_LIBRARY_PATH": str(build.library().parent),
        }
        self._options = options

    def start(self, driver: dict[str, str]) -> None:
        command, environment = [*self.command, *self._options], os.environ | driver
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(SECONDS)

    def said(self) -> list[str]:
        """Without the time of each entry."""
        return [line.split(" ", 1)[1] for line in self.log.read_text(encoding="utf-8").splitlines() if line[:2] == "20"]

    def once(self, *options: str) -> str:
        done = subprocess.run([*self.command, "--once", *options], capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr
        return done.stdout

    # ------------------------------------------------------------------------------------------------------ published

    def written(self) -> ConfigMap:
        return msgspec.convert(self.rig.api.get(MAP), ConfigMap)

    def devices(self) -> NodeDevices:
        found = read_devices(self.written())
        assert isinstance(found, NodeDevices), found
        return found

    def ill(self) -> list[str]:
        return [device.id for device in self.devices().devices if not device.healthy]

    def held(self, pod: str) -> dict[str, list[str]]:
        """By container."""
        return {each.container: list(each.devices) for each in self.devices().held if each.pod == pod}

    def tells(self, holds: Callable[[NodeDevices], bool], what: str) -> None:
        def so() -> bool:
            return self.rig.api.answers(MAP) and holds(self.devices())

        eventually(so, lambda: f"{what} (it says {self.said()[-3:]})", SECONDS)


def fake_driver(rig: Rig) -> dict[str, str]:
    """What lets a program see the model as its driver."""
    return {
        "GPUYARD_FAKE_STATE": str(rig.home / "machines" / NODE),
        "LD_LIBRARY_PATH": str(build.library().parent),
    }


@pytest.fixture(scope="module")
def rig(testbed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with (
        testbed.api() as api,
        rigged(testbed, api, NODE, tmp_path_factory.mktemp("rig")) as made,
        a_namespace(api, NAMESPACE),
    ):
        yield made


@pytest.fixture(scope="module")
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def part(rig: Rig, port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Part]:
    made = Part(rig, tmp_path_factory.mktemp("part"), "--listen", f"127.0.0.1:{port}")
    made.start(fake_driver(rig))
    try:
        made.tells(lambda devices: len(devices.devices) == 8, "eight GPUs")
        yield made
    finally:
        assert made.end() == 0
        rig.bed.kubectl("delete", "clusterrole,clusterrolebinding", "gpuyard-node")


@pytest.fixture
def pods(rig: Rig, part: Part, request: pytest.FixtureRequest) -> Iterator[str]:
    with a_namespace(rig.api, f"node-{request.node.originalname.replace('_', '-')[5:45].strip('-')}") as path:
        yield path
        rig.clear(path)
        part.tells(
            lambda devices: not devices.held and all(device.healthy for device in devices.devices), "a free node"
        )


# ---------------------------------------------------------------------------------------------------------------- pods


def test_every_container_is_published_with_the_gpus_it_sees(rig: Rig, part: Part, pods: str) -> None:
    early = asking("early", 4, "true")
    beside = asking("beside", 1, restartPolicy="Always")
    both = gpu_pod(
        "both", NODE, asking("c0", 2), asking("c1", 1), asking("none", 0), spec={"initContainers": [early, beside]}
    )
    rig.api.create(pods, both)
    rig.runs(pods, "both")
    part.tells(lambda _: len(part.held("both")) == 4, "four containers with GPUs")
    held = part.held("both")
    assert {name: sorted(rig.sees(pods, "both", name)) for name in ("c0", "c1", "beside")} == {
        name: held[name] for name in ("c0", "c1", "beside")
    }
    # What the init container had the others have now, and nobody else can.
    assert sorted(held["early"]) == sorted({*held["c0"], *held["c1"], *held["beside"]})
    uid = rig.api.get(f"{pods}/both")["metadata"]["uid"]
    assert {each.uid for each in part.devices().held} == {uid}


# ----------------------------------------------------------------------------------------------------- what goes wrong


def test_a_gpu_falls_ill_under_a_pod_and_gets_well(rig: Rig, part: Part, pods: str) -> None:
    rig.start(pods, "lasting", 8)
    rig.runs(pods, "lasting")
    rig.fault(3, "xid:79")
    part.tells(lambda _: part.ill() == ["GPU-3"], "the fault")
    assert part.held("lasting") == {"c0": list(IDS)}
    rig.heal()
    part.tells(lambda _: part.ill() == [], "its end")


def test_a_kubelet_that_is_started_anew_changes_nothing(rig: Rig, part: Part, pods: str) -> None:
    early = asking("early", 2, "true")
    rig.api.create(pods, gpu_pod("lasting", NODE, asking("c0", 1), spec={"initContainers": [early]}))
    rig.runs(pods, "lasting")
    part.tells(lambda _: len(part.held("lasting")) == 2, "the pod's GPUs")
    before = part.written()
    rig.bed.restart("kubelet", NODE)
    rig.has_again(8, 8)
    assert part.written() == before
    rig.start(pods, "late", 1)
    part.tells(lambda _: len(part.held("late")) == 1, "a pod that came later")


def test_what_happens_while_the_api_server_is_away_is_told_when_it_is_back(rig: Rig, part: Part) -> None:
    rig.bed.stop("kube-apiserver")
    try:
        rig.fault(5, "xid:79")
        eventually(lambda: "8 devices, 0 held; ill: GPU-5" in part.said(), "the fault in the log", SECONDS)
        eventually(lambda: any("does not answer" in line for line in part.said()), "the outage in the log", SECONDS)
    finally:
        rig.bed.start("kube-apiserver")
    part.tells(lambda _: part.ill() == ["GPU-5"], "the fault")
    rig.heal()
    part.tells(lambda _: part.ill() == [], "its end")
    assert sum("does not answer" in line for line in part.said()) == 1
    # Once everything that is followed is again.
    eventually(lambda: part.said().count("the API server answers again") == 1, "word of its return", SECONDS)


def test_whoever_changes_or_deletes_it_sees_it_put_right(rig: Rig, part: Part) -> None:
    before = part.devices()
    rig.api.delete(MAP)
    part.tells(lambda devices: devices.devices == before.devices, "the ConfigMap")
    about = {"name": map_name(NODE), "namespace": NAMESPACE, "labels": {LABEL: "false"}}
    rig.api.apply(MAP, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": {"devices.json": "{}"}})
    eventually(lambda: (part.written().metadata.labels or {}).get(LABEL) == "true", "the label", SECONDS)
    part.tells(lambda devices: devices.devices == before.devices, "the document")


def test_an_ill_gpu_is_remembered_without_a_driver_by_the_next_that_is_started(rig: Rig, part: Part) -> None:
    rig.fault(6, "xid:79")
    part.tells(lambda _: part.ill() == ["GPU-6"], "the fault")
    before = part.written()
    assert part.end() == 0
    entries = len(part.said())
    part.start({})
    try:
        eventually(lambda: "8 devices, 0 held; ill: GPU-6" in part.said()[entries:], "the next one", SECONDS)
        assert part.written() == before
        rig.heal()
        part.tells(lambda _: part.ill() == [], "its end")
    finally:
        rig.heal()


# ------------------------------------------------------------------------------------------------------------- looking


def test_what_there_is_to_look_at(rig: Rig, part: Part, port: int) -> None:
    before = part.written()
    devices = part.devices().devices
    assert [device.id for device in devices] == list(IDS)
    assert {(device.model, device.memory_mib) for device in devices} == {("Tesla-T4", 15_360)}
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node_uid(rig)}
    assert rig.api.get(MAP)["metadata"]["ownerReferences"] == [owner]
    assert msgspec.convert(json.loads(part.once("-o", "json"))["devices"], tuple[PublishedDevice, ...]) == devices
    assert page(port, "healthz") == "OK\n"
    assert 'gpuyard_kube_node_devices{resource="nvidia.com/gpu",healthy="true"} 8' in page(port, "metrics")
    assert part.written() == before, "what does not change is not written, and looking changes nothing"


def node_uid(rig: Rig) -> str:
    return str(rig.api.get(f"/api/v1/nodes/{NODE}")["metadata"]["uid"])


def page(port: int, name: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=SECONDS) as answer:
        return str(answer.read().decode())


def test_it_goes_with_its_node(testbed: Bed, part: Part) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    own = f"{path}/{map_name('goes-soon')}"
    with testbed.api() as api:
        made = api.create("/api/v1/nodes", fake_node("goes-soon"))
        api.create(path, config_map_of(NAMESPACE, "goes-soon", made["metadata"]["uid"], "{}"))
        assert api.answers(own)
        api.delete("/api/v1/nodes/goes-soon")
        eventually(lambda: not api.answers(own), "its end", SECONDS)
