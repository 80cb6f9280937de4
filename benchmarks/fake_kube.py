"""How fast the fake GPUs of a cluster are: `python -m benchmarks.fake_kube` (or `make bench-fake-kube`).

A testbed with four real nodes and a thousand of KWOK's; updater and the parts of two nodes run as processes of this
machine. Times are what the clock says: most of them are spent waiting for other programs. Writes
`build/bench/fake-kube.json`; ends with 1 if a limit was missed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import urllib.request
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final

import yaml

from benchmarks.report import Row, report
from gpuyard.fakegpu.control import DaemonStatus, NotUpError, Status, ask
from gpuyard.testbed.api import Api
from gpuyard.testbed.bed import Bed
from gpuyard.testbed.down import take_down
from gpuyard.testbed.record import Extras
from gpuyard.testbed.status import status_of
from gpuyard.testbed.up import Wanted, bring_up

OUTPUT: Final = Path("build/bench/fake-kube.json")
BED: Final = "bench-fake-kube"
NAMESPACE: Final = "gpuyard-fake"
MAP: Final = f"/api/v1/namespaces/{NAMESPACE}/configmaps/fake-gpus"
GPU: Final = "nvidia.com/gpu"
NODES: Final = 4
REAL: Final = ("node-1", "node-2")
"""Those with GPUs."""
KWOK_NODES: Final = 1000
KWOK_PODS: Final = 2000
CHANGES: Final = 10
IDLE_S: Final = 30.0
GIVE_UP_S: Final = 300.0
TICKS: Final = os.sysconf("SC_CLK_TCK")
PAGE_MB: Final = os.sysconf("SC_PAGE_SIZE") / 1e6


def configuration(gpus: int, product: str = "A100") -> str:
    pools = {"real": {"product": product, "gpus": gpus}, "kwok": {"product": "H100", "gpus": 8}}
    return yaml.safe_dump({"pools": pools})


# -------------------------------------------------------------------------------------------------------- processes


class Process:
    """The updater, or the part of a node."""

    def __init__(self, bed: Bed, home: Path, *words: str) -> None:
        command = [sys.executable, "-m", "gpuyard", "fake", "kube", *words]
        where = ("--kubeconfig", str(bed.kubeconfig), "--home", str(home), "--host", "127.0.0.1", "--port", "0")
        self._log = home.with_suffix(".log").open("wb")
        self._process = subprocess.Popen([*command, *where], stdout=self._log, stderr=self._log, env=bed.environment())
        self.exporter = _first_status(home, self._process).exporter

    def peak_mb(self) -> float:
        """The most memory it ever held."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024 / 1e6

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)
        self._log.close()

    def shown(self, node: str) -> list[str]:
        """The lines of one metric about a node."""
        with urllib.request.urlopen(f"{self.exporter}?node={node}", timeout=10) as page:
            return [line for line in page.read().decode().splitlines() if line.startswith("DCGM_FI_DEV_GPU_UTIL{")]


def _first_status(home: Path, process: subprocess.Popen[bytes]) -> DaemonStatus:
    while process.poll() is None:
        try:
            return ask(home, Status(limit=0), DaemonStatus)
        except NotUpError:
            sleep(0.05)
    raise SystemExit(f"a process ended: {home.with_suffix('.log').read_text()}")


@contextmanager
def cluster() -> Iterator[Bed]:
    bed = bring_up(Wanted(name=BED, nodes=NODES), print)
    try:
        yield bed
    finally:
        take_down(BED)


@contextmanager
def prepared(bed: Bed) -> Iterator[Api]:
    bed.add(Extras.of(kwok=1), print)
    with bed.api() as api:
        api.create("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for node in REAL:
            bed.kubectl("label", "node", node, "gpuyard.io/gpu-pool=real")
        configure(api, configuration(8))
        yield api


def seconds_until(holds: Callable[[], bool], what: str) -> float:
    began = perf_counter()
    while not holds():
        if perf_counter() - began > GIVE_UP_S:
            raise SystemExit(f"{what} did not happen within {GIVE_UP_S:g} s")
        sleep(0.02)
    return perf_counter() - began


def testbed_rows(bed: Bed) -> Iterator[Row]:
    found = status_of(bed.record)
    ready_s, held_mb = found.ready_after_ms / 1000, found.memory_bytes / 1e6
    yield Row(f"a testbed of {NODES} nodes, everything built: ready", "s", ready_s, ready_s, 60)
    yield Row("the same: memory of all its processes", "MB", held_mb, held_mb, 2000)


# ---------------------------------------------------------------------------------------------------- a hot change


def configure(api: Api, text: str) -> None:
    content = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fake-gpus"}, "data": {"fleet.yaml": text}}
    api.apply(MAP, content)


def change_rows(bed: Bed, api: Api, part: Process, changes: int) -> Iterator[Row]:
    """The slowest of some changes, on each face; all faces are watched at once."""
    worst = dict.fromkeys(("kubelet", "exporter", "labels", "ConfigMap"), 0.0)
    for number in range(changes):
        gpus, product = 3 + number % 4, ("A100", "H100")[number % 2]
        faces = [Api(bed.record) for _ in worst]
        follows = dict(zip(worst, _follows(faces, part, gpus, product), strict=True))
        configure(api, configuration(gpus, product))
        with ThreadPoolExecutor(len(worst)) as pool:
            taken = {face: pool.submit(seconds_until, follows[face], f"the change in the {face}") for face in worst}
        worst = {face: max(worst[face], taken[face].result()) for face in worst}
        for each in faces:
            each.close()
    for face, taken_s in worst.items():
        yield Row(f"a change of the ConfigMap in the {face}, slowest of {changes}", "s", taken_s, taken_s, 2)


def _follows(faces: list[Api], part: Process, gpus: int, product: str) -> Iterator[Callable[[], bool]]:
    node = REAL[0]
    yield lambda: faces[0].get(f"/api/v1/nodes/{node}")["status"]["allocatable"].get(GPU) == str(gpus)
    yield lambda: len(part.shown(node)) == gpus and product in part.shown(node)[0]
    yield lambda: _labels(faces[2], node).get("nvidia.com/gpu.count") == str(gpus)
    yield lambda: faces[3].get(MAP)["data"].get("status.yaml", "").partition("node-2")[0].count("- id:") == gpus


def _labels(api: Api, node: str) -> dict[str, str]:
    return dict(api.get(f"/api/v1/nodes/{node}")["metadata"]["labels"])


# ------------------------------------------------------------------------------------------------------- many nodes


def kwok_node(name: str) -> dict[str, Any]:
    labels = {"type": "kwok", "gpuyard.io/gpu-pool": "kwok"}
    about = {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}}
    return {"kind": "Node", "apiVersion": "v1", "metadata": about}


def kwok_pod(name: str, node: str) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"limits": {GPU: 1}}}
    spec = {"nodeName": node, "containers": [container], "tolerations": [{"operator": "Exists"}]}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name}, "spec": spec}


def many_rows(bed: Bed, updater: Process, nodes: int, pods: int, idle_s: float) -> Iterator[Row]:
    names = [f"kwok-{number}" for number in range(1, nodes + 1)]
    with bed.api() as api:
        create_all(bed, "/api/v1/nodes", [kwok_node(name) for name in names[1:]])
        bed.kubectl("label", "node", names[0], "gpuyard.io/gpu-pool=kwok")
        yield from node_rows(api, nodes)
        places = [kwok_pod(f"p{number}", names[number % nodes]) for number in range(pods)]
        create_all(bed, "/api/v1/namespaces/default/pods", places)
        taken_s = seconds_until(lambda: busy(updater) == pods, "all pods on their GPUs")
        yield Row(f"{pods} pods on them: shown after the last was created", "s", taken_s, taken_s, 60)
    yield memory_row("updater and exporter", updater, 400)
    sleep(15)  # ConfigMaps that are still to be written are not idleness.
    yield idle_row("updater and exporter", updater, idle_s, 20)


def node_rows(api: Api, nodes: int) -> Iterator[Row]:
    """From the moment the last node was made, and from that at which KWOK had made it one that takes pods."""
    began = ready = perf_counter()
    while True:
        found = api.get("/api/v1/nodes?labelSelector=type=kwok")["items"]
        if sum(map(is_ready, found)) < nodes:
            ready = perf_counter()
        elif sum(map(is_complete, found)) == nodes:
            break
        sleep(1)  # Such a list is work for the API server, too.
    since_ready_s, since_made_s = perf_counter() - ready, perf_counter() - began
    name = f"{nodes} KWOK nodes x 8 GPUs: labels and capacity"
    yield Row(f"{name}, after the last is ready", "s", since_ready_s, since_ready_s, 60)
    yield Row(f"{name}, after the last is made", "s", since_made_s, since_made_s, 60)


def create_all(bed: Bed, path: str, objects: list[dict[str, Any]]) -> None:
    def create(part: list[dict[str, Any]]) -> None:
        with bed.api() as api:
            for each in part:
                api.create(path, each)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(create, [objects[at::4] for at in range(4)]))


def is_ready(node: dict[str, Any]) -> bool:
    return "pods" in node["status"].get("capacity", {})


def is_complete(node: dict[str, Any]) -> bool:
    has_labels = "nvidia.com/gpu.count" in node["metadata"]["labels"]
    return has_labels and node["status"].get("allocatable", {}).get(GPU) == "8"


def busy(updater: Process) -> int:
    sleep(0.5)
    with urllib.request.urlopen(updater.exporter, timeout=60) as page:
        lines = (line for line in page.read().decode().splitlines() if line.startswith("DCGM_FI_DEV_GPU_UTIL{"))
        return sum(line.endswith(" 100") for line in lines)


def memory_row(what: str, process: Process, limit_mb: float) -> Row:
    peak_mb = process.peak_mb()
    return Row(f"{what}: memory at its highest", "MB", peak_mb, peak_mb, limit_mb)


def idle_row(what: str, process: Process, idle_s: float, limit_percent: float) -> Row:
    before_s = process.cpu_s()
    sleep(idle_s)
    percent = (process.cpu_s() - before_s) / idle_s * 100
    return Row(f"{what}: processor when nothing happens", "%", percent, percent, limit_percent)


# ------------------------------------------------------------------------------------------------------------- all


def rows(options: Namespace) -> Iterator[Row]:
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuyard-bench-")))
        bed = stack.enter_context(cluster())
        yield from testbed_rows(bed)
        api = stack.enter_context(prepared(bed))
        updater = Process(bed, root / "updater", "updater")
        stack.callback(updater.end)
        parts = []
        for node in REAL:
            kubelet = bed.node_folder(node) / "kubelet"
            sockets = ("--pod-resources", str(kubelet / "pod-resources" / "kubelet.sock"))
            folder = ("--plugin-dir", str(kubelet / "device-plugins"))
            parts.append(Process(bed, root / node, "node", "--node-name", node, *sockets, *folder))
            stack.callback(parts[-1].end)
        yield from change_rows(bed, api, parts[0], options.changes)
        yield memory_row("a node's part", parts[0], 150)
        yield idle_row("a node's part", parts[0], options.idle, 5)
        yield from many_rows(bed, updater, options.nodes, options.pods, options.idle)


def main(arguments: list[str]) -> int:
    parser = ArgumentParser(prog="benchmarks.fake_kube", description=__doc__)
    parser.add_argument("--nodes", type=int, default=KWOK_NODES, help="nodes of KWOK's")
    parser.add_argument("--pods", type=int, default=KWOK_PODS)
    parser.add_argument("--changes", type=int, default=CHANGES)
    parser.add_argument("--idle", type=float, default=IDLE_S, metavar="SECONDS")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args(arguments)
    return report(rows(options), options.output)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
