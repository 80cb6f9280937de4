"""The testbed all are measured on: an API server, KWOK's nodes, and none of the machines' own schedulers.

Place in the flow: run ─▶ **cluster** ─▶ the testbed. Between two measurements it is emptied, and waited for until
nothing goes on in it any more; neither is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import Final

import yaml

from benchmarks.kube.contestants import Contestant, Running, cpu_s
from benchmarks.kube.objects import (
    BINDS_PATH,
    EVENTS_PATH,
    GPUS_PER_NODE,
    GROUPS_PATH,
    NAMESPACE,
    PODS_PATH,
    PRIORITY_CLASSES,
    QUEUES_PATH,
    PodShape,
    namespace,
    pod,
    priority_class,
    queues,
)
from benchmarks.kube.wire import Server
from gpuyard.testbed import machine
from gpuyard.testbed.api import Api, wait_until
from gpuyard.testbed.bed import Bed
from gpuyard.testbed.control_plane import CONTROLLER_MANAGER, SCHEDULER
from gpuyard.testbed.credentials import pki_folder
from gpuyard.testbed.down import take_down
from gpuyard.testbed.kwok import NAME as KWOK
from gpuyard.testbed.record import CONTROL, Extras
from gpuyard.testbed.up import Wanted, bring_up

DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
NAMESPACES: Final = (NAMESPACE, "kai-scheduler", "kai-resource-reservation")
PLAIN: Final = (PODS_PATH, EVENTS_PATH)
OF_QUEUES: Final = (GROUPS_PATH, BINDS_PATH)
"""Which are there only where somebody knows queues."""
READY: Final = "ready"
READY_MS: Final = 180_000
EMPTY_MS: Final = 600_000
QUIET_S: Final = 120.0
RESTLESS_S: Final = 3.0
"""How long a cluster is waited for whose many nodes, saying that they live, never let it rest."""
QUIET_CORES: Final = 0.4
"""What five hundred idle nodes and their API server need is less."""
CALM_S: Final = 600
"""How long a node may be silent here. Thousands that say every few seconds that they live would keep two cores busy
with what no contestant looks at, and those that are late would be taken for lost."""
HTTPS_PORT: Final = 443

Tell = Callable[[str], None]


class Cluster:
    """A testbed, made ready for contestants."""

    def __init__(self, bed: Bed, api: Api, nodes: int) -> None:
        self.bed, self.api, self.nodes = bed, api, nodes
        self._collections: tuple[str, ...] = PLAIN
        self._rest_s = QUIET_S

    @property
    def gpus(self) -> int:
        return self.nodes * GPUS_PER_NODE

    def server(self) -> Server:
        pki = pki_folder(self.bed.record)
        token = (pki / "admin.token").read_text(encoding="ascii")
        return Server(str(self.bed.record.addresses.api), HTTPS_PORT, token, str(pki / "ca.pem"))

    def prepare(self) -> None:
        """What has to be there before the first pod."""
        self.be_patient()
        for name in NAMESPACES:
            self.api.apply(f"/api/v1/namespaces/{name}", namespace(name))
        for name, value in PRIORITY_CLASSES.items():
            self.api.apply(f"{CLASSES}/{name}", priority_class(name, value))
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        wait_until(lambda: self.api.answers(account), "the first service account", timeout_ms=READY_MS)

    def be_patient(self) -> None:
        """Have the controllers take no node for lost that says seldom that it lives."""
        if machine.say_more(self.bed.record, CONTROL, CONTROLLER_MANAGER, f"--node-monitor-grace-period={CALM_S}s"):
            self.bed.restart(CONTROLLER_MANAGER)

    def define(self, definitions: Path) -> None:
        """Queues and groups, as the folder says what they are."""
        for path in sorted(definitions.glob("*.yaml")):
            for definition in filter(None, yaml.safe_load_all(path.read_text())):
                self.api.apply(f"{DEFINITIONS}/{definition['metadata']['name']}", definition)
        self._collections = (*PLAIN, *OF_QUEUES)
        wait_until(lambda: all(map(self.api.answers, self._collections)), "the new kinds", timeout_ms=READY_MS)
        self.share_out()

    def share_out(self) -> None:
        """The queues, as large as the cluster is."""
        for one in queues(self.gpus):
            self.api.apply(f"{QUEUES_PATH}/{one['metadata']['name']}", one)

    def wait_ready(self, contestant: Contestant, running: Running) -> None:
        """A contestant that has bound one pod has seen all nodes; and where that runs, nodes are looked after."""
        # Without a GPU: there may be none left.
        shape = PodShape(contestant.scheduler, gpus=0)
        self.api.create(PODS_PATH, pod(READY, shape))

        def runs() -> bool:
            running.check()
            return bool(self.api.get(f"{PODS_PATH}/{READY}")["status"]["phase"] == "Running")

        wait_until(runs, f"the first pod of {contestant.name}", timeout_ms=READY_MS)
        self.api.delete(f"{PODS_PATH}/{READY}", gracePeriodSeconds=0)
        self.settle()

    def remove(self, *paths: str) -> None:
        for path in paths:
            self.api.delete(path, gracePeriodSeconds=0)

    def empty(self) -> None:
        """Of everything a contestant has made or was given."""
        wait_until(self._is_empty, "an empty namespace", timeout_ms=EMPTY_MS)
        self.settle()

    def _is_empty(self) -> bool:
        left = False
        for path in self._collections:
            if self.api.get(f"{path}?limit=1")["items"]:
                left = True
                self.api.delete(path, gracePeriodSeconds=0)
        return not left

    def settle(self) -> None:
        """Until the testbed has nothing to do."""
        until = perf_counter() + self._rest_s
        while perf_counter() < until:
            before_s, began = self.cpu_s(), perf_counter()
            sleep(1)
            if self.cpu_s() - before_s < QUIET_CORES * (perf_counter() - began):
                return

    def enlarge(self, nodes: int, tell: Tell) -> None:
        self.bed.add(Extras.of(kwok=nodes, kwok_gpus=GPUS_PER_NODE), tell)
        self.nodes = nodes
        self._rest_s = RESTLESS_S
        self.be_patient()
        self.share_out()

    def wait_running(self) -> None:
        """Until all pods that have a node run there."""
        waiting = f"{PODS_PATH}?limit=1&fieldSelector=status.phase%3DPending"
        wait_until(lambda: not self.api.get(waiting)["items"], "all pods running", timeout_ms=EMPTY_MS)

    def cpu_s(self) -> float:
        control = machine.get(self.bed.record, CONTROL)
        return sum(map(cpu_s, machine.processes_of(control)))


@contextmanager
def cluster(name: str, nodes: int, tell: Tell) -> Iterator[Cluster]:
    """A testbed of its own, taken down at the end."""
    bed = bring_up(Wanted(name=name, nodes=0, fresh=True), tell)
    try:
        # Before it starts: one that is started anew may look after a node only when its predecessor's lease is over.
        machine.say_more(bed.record, CONTROL, KWOK, f"--node-lease-duration-seconds={CALM_S}")
        bed.add(Extras.of(kwok=nodes, kwok_gpus=GPUS_PER_NODE), tell)
        with using(bed, nodes) as found:
            yield found
    finally:
        take_down(name)


@contextmanager
def using(bed: Bed, nodes: int) -> Iterator[Cluster]:
    """One that is there already; its own scheduler starts again afterwards."""
    bed.stop(SCHEDULER)
    try:
        with bed.api() as api:
            yield Cluster(bed, api, nodes)
    finally:
        bed.start(SCHEDULER)
