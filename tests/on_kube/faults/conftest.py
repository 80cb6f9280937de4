"""A cluster with queues and GPUs for all tests of this folder, and a namespace of it for each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuyard.kube.install import definitions, ensure
from gpuyard.kubeapi.access import read_kubeconfig
from gpuyard.kubeapi.client import KubeClient
from tests.kube import a_namespace, eventually

if TYPE_CHECKING:
    from gpuyard.testbed.api import Api
    from gpuyard.testbed.bed import Bed
    from tests.on_kube.faults.cluster import Cluster


@pytest.fixture(scope="package")
def gpu_cluster(testbed: Bed) -> Iterator[Api]:
    """Queues, kinds, and nodes of which some are quiet."""
    from tests.on_kube.faults.cluster import SYSTEM, nodes_with_gpus

    with testbed.api() as api, a_team(testbed, api), a_namespace(api, SYSTEM), nodes_with_gpus(testbed, api):
        yield api


@pytest.fixture(scope="package")
def namespaces(gpu_cluster: Api, request: pytest.FixtureRequest) -> Iterator[str]:
    """One for each test, all made at the beginning: the controllers take a second to furnish one.

    They stay: to end them all would keep the controllers busy, and the tests that come next waiting.
    """
    wanted = sum("cluster" in getattr(item, "fixturenames", ()) for item in request.session.items)
    names = [f"faults-{number}" for number in range(1, wanted + 1)]
    for name in names:
        about = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        gpu_cluster.apply(f"/api/v1/namespaces/{name}", about)
    return iter(names)


@pytest.fixture
def cluster(testbed: Bed, gpu_cluster: Api, namespaces: Iterator[str], tmp_path: Path) -> Iterator[Cluster]:
    from tests.on_kube.faults.cluster import Cluster, is_ready, quiet_names

    eventually(lambda: all(is_ready(gpu_cluster, node) for node in quiet_names()), "readiness of the quiet nodes")
    name = next(namespaces)
    furnished = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    eventually(lambda: gpu_cluster.answers(furnished), "a service account")
    found = Cluster(testbed, gpu_cluster, name, tmp_path)
    try:
        yield found
    finally:
        found.close()


@contextmanager
def a_team(bed: Bed, api: Api) -> Iterator[None]:
    """The kinds, which stay, and one queue of its own.

    Not taken away between tests: whoever empties a namespace that ends meanwhile would look for kinds that are gone.
    """
    from tests.on_kube.faults.cluster import QUEUES, TEAM, add_queue

    install(bed)
    add_queue(api, TEAM)
    try:
        yield
    finally:
        api.delete(f"{QUEUES}/{TEAM}")


def install(bed: Bed) -> None:
    async def talk() -> None:
        client = KubeClient(read_kubeconfig(bed.kubeconfig))
        try:
            await ensure(client, definitions(), lambda line: None)
        finally:
            await client.close()

    asyncio.run(talk())
