"""What the demo plays on: a testbed of real nodes with fake GPUs, and the scheduler.

Place in the flow: play ─▶ **stage** ─▶ testbed, device plugins, `gpuyard kube scheduler`. Invariant: whatever it starts
ends with it; if it is killed, `gpuyard kube testbed down --name NAME` ends all of it, because the processes carry the
testbed's mark.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import yaml

from gpuyard.errors import KubeSilentError, KubeTestbedError
from gpuyard.kaidemo.decisions import Decision, LogTail
from gpuyard.kube import install
from gpuyard.platform.processes import Child
from gpuyard.testbed.api import Api, wait_until
from gpuyard.testbed.bed import Bed
from gpuyard.testbed.down import take_down
from gpuyard.testbed.images import Image
from gpuyard.testbed.record import Extras
from gpuyard.testbed.up import Wanted, bring_up

GPU: Final = "nvidia.com/gpu"
PRODUCT: Final = "A100"
IMAGE: Final = "busybox:1"
"""What the manifests name; on a cluster with a registry it is pulled, here it is made."""
NAMESPACE: Final = "gpuyard-system"
MACHINE: Final = "demo"
"""Under this name our processes are a part of the testbed."""
COMMAND: Final = (sys.executable, "-m", "gpuyard")
END_S: Final = 10.0
READY_MS: Final = 60_000

Tell = Callable[[str], None]


class Size(msgspec.Struct, frozen=True):
    """How large the cluster is."""

    nodes: int = 4
    gpus: int = 8


class Stage:
    """A cluster that is up."""

    def __init__(self, bed: Bed, api: Api, size: Size) -> None:
        self.bed = bed
        self.api = api
        self.size = size
        self.nodes = tuple(bed.record.node_names())
        self._folder = bed.record.folder / "demo"
        self._folder.mkdir(exist_ok=True)

    def kubectl(self, *words: str) -> str:
        """What it said; a command that fails is an error of the demo."""
        done = self.bed.kubectl(*words)
        if done.code:
            raise KubeTestbedError(f"kubectl {' '.join(words)}: {done.output.strip()}")
        return done.output

    # ------------------------------------------------------------------------------------------------------------- GPUs

    @contextmanager
    def gpus(self) -> Iterator[None]:
        """Every node's kubelet is offered fake GPUs while this lasts."""
        plugins = [self._plugin(node) for node in self.nodes]
        try:
            for node in self.nodes:
                wait_until(partial(self._offers, node), f"GPUs on {node}", timeout_ms=READY_MS)
            yield
        finally:
            for plugin in plugins:
                plugin.end(END_S)

    def _plugin(self, node: str) -> Child:
        ids = [{"id": f"GPU-{node}-{at}"} for at in range(self.size.gpus)]
        fleet = {"nodes": {node: {"gpu-product": PRODUCT, "gpus": ids}}}
        config = self._folder / f"{node}.yaml"
        config.write_text(yaml.safe_dump(fleet), encoding="utf-8")
        sockets = self.bed.node_folder(node) / "kubelet" / "device-plugins"
        where = ("--home", str(self._folder / node), "--plugin-dir", str(sockets), "--port", "0")
        what = ("--node", node, "--config", str(config), "--no-inject")
        child, _ = self._child(f"gpus-{node}", "fake", "device-plugin", *what, *where)
        return child

    def _offers(self, node: str) -> bool:
        with suppress(KubeSilentError):
            status = self.api.get(f"/api/v1/nodes/{node}")["status"]
            return str(status.get("allocatable", {}).get(GPU)) == str(self.size.gpus)
        return False

    # -------------------------------------------------------------------------------------------------------- scheduler

    def install(self, tell: Tell) -> None:
        """What the scheduler needs before it starts, and where it keeps its lease."""
        install.run((install.home(NAMESPACE), *install.definitions()), self.bed.kubeconfig, None, tell)

    @contextmanager
    def scheduler(self, mode: str) -> Iterator[Scheduler]:
        """Ours, for KAI's pods too, while this lasts."""
        decisions = self._folder / f"decisions-{mode}.jsonl"
        options = ("--also", "kai-scheduler", "--consolidation", mode, "--decisions", str(decisions))
        child, log = self._child(f"scheduler-{mode}", "kube", "scheduler", *options, "--no-pages")
        try:
            yield Scheduler(child, log, LogTail(decisions))
        finally:
            child.end(END_S)

    def _child(self, name: str, *words: str) -> tuple[Child, Path]:
        """One of our own commands, and where it writes what it says."""
        log = self._folder / f"{name}.log"
        variables = {**self.bed.record.environment(MACHINE), **self.bed.environment()}
        return Child((*COMMAND, *words), log, variables), log


class Scheduler:
    """The process, and what it decides."""

    def __init__(self, child: Child, log: Path, decisions: LogTail) -> None:
        self._child = child
        self._log = log
        self._decisions = decisions

    def news(self) -> list[Decision]:
        """What it has decided since the last time; a scheduler that has ended is an error."""
        if self._child.exit_code() is not None:
            said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise KubeTestbedError(f"the scheduler has ended: {' '.join(said[-3:])}", fix=f"see {self._log}")
        return self._decisions.news()


@contextmanager
def stage(name: str, size: Size, tell: Tell) -> Iterator[Stage]:
    """A testbed of that name, gone afterwards."""
    extras = Extras.of(training_operator=True)
    bed = bring_up(Wanted(name=name, nodes=size.nodes, extras=extras, fresh=True), tell)
    try:
        bed.import_image(Image(IMAGE))
        with bed.api() as api:
            made = Stage(bed, api, size)
            made.install(tell)
            with made.gpus():
                yield made
    finally:
        take_down(name)
