"""A testbed that is up, and what can be done to it: what tests and people do to real machines.

Place in the flow: cli, tests ─▶ **bed** ─▶ machines, API server. Every operation waits until it has happened, not until
the cluster has noticed: a node that lost its power is NotReady only some seconds later.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from gpuyard.errors import KubeTestbedError
from gpuyard.platform.commands import Finished, run
from gpuyard.testbed import cables, cgroups, machine
from gpuyard.testbed.api import Api, wait_until
from gpuyard.testbed.boot import BOOTED, IMAGES_IN, import_image
from gpuyard.testbed.extras import add_extras, names_of_components
from gpuyard.testbed.golang import Tell
from gpuyard.testbed.images import Image, write_archive
from gpuyard.testbed.machine import Machine
from gpuyard.testbed.record import CONTROL, Extras, Record, node_number, read_record, working_on

BOOT_MS: Final = 30_000
KUBECTL_S: Final = 120.0
IMPORT_S: Final = 900.0
"""An image may be gigabytes, and be copied once for each of its layers."""
READY_MS: Final = 120_000
PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


class Bed:
    """One testbed."""

    def __init__(self, record: Record) -> None:
        self.record = record

    @classmethod
    def named(cls, name: str) -> Bed:
        return cls(read_record(name))

    @property
    def kubeconfig(self) -> Path:
        return self.record.kubeconfig

    def node_folder(self, node: str) -> Path:
        """On this machine: `kubelet/device-plugins` and `kubelet/pod-resources` below it are the node's own."""
        node_number(self.record, node)
        return self.record.machine_folder(node)

    def api(self) -> Api:
        return Api(self.record)

    def environment(self) -> dict[str, str]:
        """For programs that talk to it; a proxy of this machine would only stand in the way."""
        path = f"{self.record.program('kubectl').parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return {**os.environ, **dict.fromkeys(PROXIES, ""), "KUBECONFIG": str(self.kubeconfig), "PATH": path}

    def kubectl_command(self, words: Sequence[str]) -> list[str]:
        return [str(self.record.program("kubectl")), *words]

    def kubectl(self, *words: str) -> Finished:
        return run(self.kubectl_command(words), timeout_s=KUBECTL_S, env=self.environment())

    # ------------------------------------------------------------------------------------------------------------ nodes

    def power_off(self, node: str) -> None:
        """At once, as by pulling the plug: nobody is told, nothing is written."""
        node_number(self.record, node)
        machine.switch_off(self.record, node)
        cables.disconnect_node(machine.get(self.record, CONTROL), node)
        cgroups.remove_of_node(self.record, node)

    def power_on(self, node: str) -> None:
        node_number(self.record, node)
        if machine.find(self.record, node):
            raise KubeTestbedError(f"{node} is on already")
        for mark in (BOOTED, IMAGES_IN):
            (self.record.machine_folder(node) / mark).unlink(missing_ok=True)
        cgroups.make_of_node(self.record, node)
        machine.switch_on(self.record, node)
        connect(self.record, machine.get(self.record, CONTROL), node)

    def reboot(self, node: str) -> None:
        self.power_off(node)
        self.power_on(node)

    def run_on(self, name: str, command: Sequence[str], *, timeout_s: float = machine.COMMAND_S) -> Finished:
        """In the namespaces of a node, or of `control`."""
        return machine.get(self.record, name).run(command, timeout_s=timeout_s)

    def command_on(self, name: str, command: Sequence[str]) -> list[str]:
        """The command line that does the same in a terminal."""
        return machine.get(self.record, name).enter(command)

    def wait_ready(self, *nodes: str, timeout_ms: int = READY_MS) -> None:
        """Until these nodes, or all, are Ready, and their kubelets say so themselves."""
        with self.api() as api:
            for node in nodes or self.record.node_names():
                wait_until(partial(_is_up, api, node), f"readiness of {node}", timeout_ms=timeout_ms)

    # ------------------------------------------------------------------------------------------------------- components

    def restart(self, component: str, name: str = CONTROL) -> None:
        """As after a crash: the process is killed, and started again at once."""
        self._check_component(component, name)
        machine.kill_component(self.record, name, component)

    def stop(self, component: str, name: str = CONTROL) -> None:
        """Killed, and not started again before `start`."""
        self._check_component(component, name)
        machine.hold_component(self.record, name, component)
        machine.kill_component(self.record, name, component)

    def start(self, component: str, name: str = CONTROL) -> None:
        self._check_component(component, name)
        machine.release_component(self.record, name, component)

    def log(self, component: str, name: str = CONTROL) -> str:
        """Everything a component has said since the testbed came up."""
        self._check_component(component, name)
        path = self.record.machine_folder(name) / machine.LOG / f"{component}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def _check_component(self, component: str, name: str) -> None:
        machine.get(self.record, name)
        there = names_of_components(self.record, name)
        if component not in there:
            raise KubeTestbedError(f'there is no component "{component}" on {name}', fix=f"it has {', '.join(there)}")

    def add(self, extras: Extras, tell: Tell) -> None:
        """Give it what it did not have when it came up: nodes by KWOK, DNS, operators."""
        with working_on(self.record.name), self.api() as api:
            self.record = add_extras(read_record(self.record.name), extras, api, tell)

    # ----------------------------------------------------------------------------------------------------------- images

    def import_image(self, image: Image, *nodes: str) -> None:
        """Make an image known to these nodes, or all; their pods say `imagePullPolicy: Never`."""
        with self._scratch() as scratch:
            write_archive(image, scratch)
            self._import(scratch, nodes)

    def import_archive(self, archive: Path, *nodes: str) -> None:
        """The same for an archive as `docker save` writes it."""
        with self._scratch() as scratch:
            # Where it lies now, a node may have something of its own.
            shutil.copyfile(archive, scratch)
            self._import(scratch, nodes)

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(dir=self.record.folder / "images"))
        try:
            yield folder / "image.tar"
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _import(self, archive: Path, nodes: Sequence[str]) -> None:
        for node in nodes or self.record.node_names():
            take_in = (*import_image(self.record.snapshotter), str(archive))
            done = self.run_on(node, take_in, timeout_s=IMPORT_S)
            if done.code:
                raise KubeTestbedError(f"{node} does not take the image in: {done.output.strip()}")


def connect(record: Record, control: Machine, node: str) -> None:
    """Plug a machine that was just switched on into the network, and wait until it is in it."""
    cables.connect_node(control, machine.wait_for(record, node, timeout_ms=BOOT_MS))
    wait_booted(record, node)


def wait_booted(record: Record, name: str) -> None:
    """Until a machine has its mounts and its network."""
    booted = record.machine_folder(name) / BOOTED
    wait_until(booted.exists, f"the start of {name}", timeout_ms=BOOT_MS)


def _is_up(api: Api, node: str) -> bool:
    """The API server alone would call a node Ready for some seconds after it has lost its power."""
    path = f"/api/v1/nodes/{node}"
    return api.answers(f"{path}/proxy/healthz") and node_is_ready(api.get(path))


def node_is_ready(node: dict[str, Any]) -> bool:
    """It says so, and nobody doubts it any more."""
    conditions = node.get("status", {}).get("conditions", [])
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    doubts = [taint for taint in node.get("spec", {}).get("taints", []) if taint["key"].endswith("/not-ready")]
    return ready and not doubts
