"""A real Kubernetes for tests: one testbed for all of them, brought up by the first that asks for it.

They share four nodes: a test makes a namespace of its own, and leaves the nodes as it found them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import pytest

from gpuyard.errors import KubeSilentError, KubeTestbedError
from gpuyard.platform.processes import find_process
from gpuyard.testbed import system
from gpuyard.testbed.api import Api
from gpuyard.testbed.bed import Bed
from gpuyard.testbed.down import take_down
from gpuyard.testbed.node_files import BUSYBOX_IMAGE
from gpuyard.testbed.record import names
from gpuyard.testbed.status import status_of
from gpuyard.testbed.up import Wanted, bring_up

NODES = 4
SECONDS = 120.0
_NAME = re.compile(r"test-(\d+)(-.*)?")


@contextmanager
def running_testbed(**wanted: Any) -> Iterator[Bed]:
    """A testbed that goes with the test; those whose test run was killed go first."""
    skip_where_there_is_none()
    take_down_orphans()
    bed = bring_up(Wanted(**{"name": f"test-{os.getpid()}", "nodes": NODES, **wanted}), print)
    try:
        yield bed
    finally:
        take_down(bed.record.name)


def wait_until_well(bed: Bed) -> None:
    """Whatever was done to it before: every kubelet answers for itself, and nothing is missing."""
    bed.wait_ready()
    found: list[str] = []

    def is_well() -> bool:
        found[:] = status_of(bed.record).problems
        return not found

    eventually(is_well, lambda: f"health of the shared testbed ({'; '.join(found)})")


def skip_where_there_is_none() -> None:
    reason = system.why_not()
    if reason:
        pytest.skip(reason)
    if system.missing():
        try:
            system.prepare(print)
        except KubeTestbedError as error:
            pytest.skip(f"no Kubernetes testbed here: {error.what.splitlines()[0]}")


def take_down_orphans() -> None:
    for name in names():
        found = _NAME.fullmatch(name)
        if found and find_process(int(found[1])) is None:
            take_down(name)


# ---------------------------------------------------------------------------------------------------------------- pods


def a_pod(name: str, script: str = "sleep 1000", **spec: Any) -> dict[str, Any]:
    """A pod of busybox that ends at once when it is told to."""
    container = {
        "name": "main",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", f"trap 'exit 0' TERM; {script} & wait"],
    }
    whole = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole}


@contextmanager
def a_namespace(api: Api, name: str) -> Iterator[str]:
    """Gives the path of its pods."""
    # One of this name, of an earlier test, may still be going.
    eventually(lambda: not api.answers(f"/api/v1/namespaces/{name}"), f"the end of the namespace {name} from before")
    api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    eventually(lambda: api.answers(f"/api/v1/namespaces/{name}/serviceaccounts/default"), "a service account")
    try:
        yield f"/api/v1/namespaces/{name}/pods"
    finally:
        api.delete(f"/api/v1/namespaces/{name}/pods?gracePeriodSeconds=0")
        api.delete(f"/api/v1/namespaces/{name}")


def phase(api: Api, path: str) -> str:
    return str(api.get(path)["status"].get("phase"))


def holds_now(holds: Callable[[], bool]) -> bool:
    """A server that says nothing for a moment, on a busy machine, says neither yes nor no."""
    try:
        return holds()
    except (KubeSilentError, OSError):
        return False


def eventually(holds: Any, what: str | Callable[[], str], within_s: float = SECONDS) -> None:
    until = monotonic() + within_s
    while not holds_now(holds):
        if monotonic() > until:
            pytest.fail(f"{what if isinstance(what, str) else what()} did not happen within {within_s:g} s")
        sleep(0.1)
