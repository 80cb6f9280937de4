"""The roles of deploy/fakegpu are the least there can be: without any one of their permissions a part complains.

That they are enough the tests of the deployed parts show, which run under them.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpuyard.fakegpu.fleet import Fleet
from gpuyard.fakegpu.kubernetes import statustexts
from gpuyard.fakegpu.kubernetes.names import Scope
from gpuyard.fakegpu.kubernetes.nodepart import NodePart, NodeSettings
from gpuyard.fakegpu.kubernetes.updater import Updater
from gpuyard.fakegpu.publish import Publisher
from gpuyard.fakegpu.yard import Yard
from gpuyard.kubeapi.access import Access, read_kubeconfig
from gpuyard.kubeapi.client import KubeClient
from gpuyard.testbed.api import Api
from gpuyard.testbed.bed import Bed
from tests.fakegpu.kubernetes.deployed import MANIFESTS, fake_node, gpu_pod, must
from tests.kube import eventually

RULES = [
    each
    for each in yaml.safe_load_all((MANIFESTS / "rbac.yaml").read_text())
    if each["kind"] in ("ClusterRole", "Role")
]
COMPLAINT_S = 90.0
AT_ONCE = 6
CONFIGURATION = "nodes: {NAME: {gpu-product: T4, gpus: 1}}"
RENAMED = "nodes: {nobody: {gpu-product: T4, gpus: 1}}"


class Lacking(msgspec.Struct, frozen=True):
    """A part that lacks one permission; everything about it has a name of its own."""

    name: str
    part: str
    kind: str
    group: str
    resource: str
    verb: str

    @property
    def complaint(self) -> str:
        return f'cannot {self.verb} resource "{self.resource}"'


def permissions() -> Iterator[Lacking]:
    number = 0
    for role in RULES:
        for rule in role["rules"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    number += 1
                    part = role["metadata"]["name"].rpartition("-")[2]
                    yield Lacking(f"lacking-{number}", part, role["kind"], rule["apiGroups"][0], resource, verb)


def without(lacking: Lacking) -> Iterator[dict[str, Any]]:
    """The account and the roles of a part, but for one permission."""
    account = {"kind": "ServiceAccount", "name": "part", "namespace": lacking.name}
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": lacking.name}}
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "part", "namespace": lacking.name}}
    for role in RULES:
        if not role["metadata"]["name"].endswith(lacking.part):
            continue
        kind = role["kind"]
        about = {"name": lacking.name} | ({} if kind == "ClusterRole" else {"namespace": lacking.name})
        yield {**role, "metadata": about, "rules": list(_reduced(role, lacking))}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": lacking.name}
        binding = {"kind": f"{kind}Binding", "metadata": about, "roleRef": reference, "subjects": [account]}
        yield {"apiVersion": "rbac.authorization.k8s.io/v1", **binding}


def _reduced(role: dict[str, Any], lacking: Lacking) -> Iterator[dict[str, Any]]:
    for rule in role["rules"]:
        here = role["kind"] == lacking.kind and rule["resources"] == [lacking.resource]
        verbs = [verb for verb in rule["verbs"] if not here or verb != lacking.verb]
        if verbs:
            yield {**rule, "verbs": verbs}


def surroundings(lacking: Lacking) -> Iterator[dict[str, Any]]:
    """What makes a part use everything it may: a node to label, a pod with a mistake, a ConfigMap that is stale."""
    yield fake_node(lacking.name)
    about = {"name": "fake-gpus", "namespace": lacking.name}
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": {"fleet.yaml": text(lacking)}}
    stale = {"name": "stale", "namespace": lacking.name, "labels": {"gpuyard.io/fake-gpus": "node"}}
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**stale, "annotations": {"gpuyard.io/node": "gone"}}}
    pod = gpu_pod("wrong", lacking.name, annotations={"gpuyard.io/gpu-profile": "nonsense"})
    pod["metadata"]["namespace"] = lacking.name
    yield pod


def text(lacking: Lacking) -> str:
    return CONFIGURATION.replace("NAME", lacking.name)


@pytest.fixture
def apart(testbed: Bed, tmp_path: Path) -> Iterator[tuple[Api, list[Lacking]]]:
    """Every part that lacks something, in a namespace of its own with a node of its own."""
    cases = list(permissions())
    for name, make in (("roles", without), ("around", surroundings)):
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump_all([each for case in cases for each in make(case)]))
    with testbed.api() as api:
        must(testbed, "apply", "--server-side", "-f", str(tmp_path / "roles.yaml"))
        accounts = [f"/api/v1/namespaces/{case.name}/serviceaccounts/default" for case in cases]
        eventually(lambda: all(api.answers(path) for path in accounts), "accounts in all namespaces")
        must(testbed, "apply", "--server-side", "-f", str(tmp_path / "around.yaml"))
        try:
            yield api, cases
        finally:
            for name in ("around", "roles"):
                path = str(tmp_path / f"{name}.yaml")
                must(testbed, "delete", "--ignore-not-found", "--wait=false", "--grace-period=0", "-f", path)


def token(api: Api, namespace: str) -> str:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/part/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    return str(api.create(path, request)["status"]["token"])


# Whoever is ended in the middle of making a connection leaves it half made: asyncio says so when it is collected.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_without_any_one_permission_a_part_complains(
    testbed: Bed, apart: tuple[Api, list[Lacking]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that the updater makes ConfigMaps for single nodes, too.
    monkeypatch.setattr(statustexts, "MAX_GPUS_IN_ONE", 0)
    api, cases = apart
    access = read_kubeconfig(testbed.kubeconfig)
    tokens = {case.name: token(api, case.name) for case in cases}

    async def all_at_once() -> list[str]:
        accesses = {
            case.name: Access(server=access.server, authority_pem=access.authority_pem, token=tokens[case.name])
            for case in cases
        }
        room = asyncio.Semaphore(AT_ONCE)

        async def one(case: Lacking) -> str:
            async with room:
                return await complaint(case, accesses[case.name], api, tmp_path / case.name)

        return await asyncio.gather(*map(one, cases))

    found = asyncio.run(all_at_once())
    gc.collect()
    assert found == [case.complaint for case in cases]


async def complaint(lacking: Lacking, access: Access, api: Api, home: Path) -> str:
    """What a part says it may not do; everything it said, if that is not it."""
    said: list[str] = []
    scope = Scope(lacking.name, "fake-gpus")
    server = KubeClient(access)
    part: Updater | NodePart = Updater(server, scope, said.append)
    if lacking.part == "node":
        part = NodePart(server, scope, NodeSettings(lacking.name, home / "none.sock", home), said.append)
    home.mkdir()
    yard = Yard(Fleet(()), Publisher(home / "machines"), at_ms=0, max_shown=0)
    task = asyncio.create_task(part.run(yard, lambda: 0))
    try:
        async with asyncio.timeout(COMPLAINT_S):
            while not any(lacking.complaint in line for line in said):
                await asyncio.sleep(0.05)
                if lacking.verb == "get" and yard.engine.machines:
                    await asyncio.to_thread(rename, api, lacking)
        return lacking.complaint
    except TimeoutError:
        return f"{lacking}: {said}"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.close()


def rename(api: Api, lacking: Lacking) -> None:
    """Only then a part looks for a single node by its name."""
    about = {"name": "fake-gpus", "namespace": lacking.name}
    content = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": {"fleet.yaml": RENAMED}}
    api.apply(f"/api/v1/namespaces/{lacking.name}/configmaps/fake-gpus", content)
