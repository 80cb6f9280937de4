"""The roles of deploy/scheduler are the least there can be.

Each part runs under them, is refused nothing, and makes use of every single permission: without any one of them it
would be refused something.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuyard.errors import KubeRefusedError
from gpuyard.kube import scheduler as scheduler_module
from gpuyard.kube.install import default_queues, definitions, ensure, home
from gpuyard.kube.lease import is_held
from gpuyard.kube.node import NodePart, NodeSettings
from gpuyard.kube.scheduler import Options, Scheduler
from gpuyard.kube.unsupported import KINDS
from gpuyard.kubeapi.access import Access, read_kubeconfig
from gpuyard.kubeapi.client import KubeClient
from gpuyard.testbed.api import Api
from gpuyard.testbed.bed import Bed
from gpuyard.worlds.kubernetes.devices import map_name
from gpuyard.worlds.kubernetes.owners import RULES
from gpuyard.worlds.kubernetes.settings import KAI_SCHEDULER, Settings
from tests.fakegpu.kubernetes.deployed import must
from tests.fakegpu.kubernetes.rig import Rig, rigged
from tests.kube import a_namespace, a_pod, eventually, running_testbed
from tests.on_kube.asked import Permission, Recording, granted, wanted
from tests.on_kube.deployed import MANIFESTS, NAMESPACE, forget

NODES = ("node-1", "node-2")
SPACE = "permissions"
OURS = "permissions-test"
"""The schedulerName of these pods."""
WITHIN_S = 150.0
CLASS = "permissions"
"""Of volumes that are made, by nobody."""
DISK = "permissions-disk"
"""One that lies ready, its class and its claim."""
GROUPS = sorted({(group, kind, rule.plural) for (group, kind), rule in RULES.items()})
BUILT_IN = ("", "apps", "batch")
ROLES = [
    each
    for each in yaml.safe_load_all((MANIFESTS / "rbac.yaml").read_text(encoding="utf-8"))
    if each["kind"] in ("ClusterRole", "Role")
]


@pytest.fixture(scope="module")
def testbed() -> Iterator[Bed]:
    """One of its own: thirty kinds come here, and a cluster takes minutes to be rid of as many."""
    with running_testbed(name=f"test-{os.getpid()}-roles", nodes=len(NODES)) as bed:
        yield bed


@pytest.fixture(scope="module")
def api(testbed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The accounts and roles, and nobody who uses them yet; all kinds of everybody."""
    tmp_path = tmp_path_factory.mktemp("roles")
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": NAMESPACE,
        "resources": [os.path.relpath(MANIFESTS, tmp_path)],
        "patches": [
            {
                "target": {"kind": kind},
                "patch": yaml.safe_dump({"$patch": "delete", "kind": kind, "metadata": {"name": "x"}}),
            }
            for kind in ("Deployment", "DaemonSet", "Job")
        ],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    kinds = tmp_path / "kinds.yaml"
    kinds.write_text(yaml.safe_dump_all(list(other_kinds())))
    with testbed.api() as api:
        must(testbed, "apply", "--server-side", "-k", str(tmp_path))
        must(testbed, "apply", "--server-side", "-f", str(kinds))
        must(testbed, "wait", "--for=condition=Established", "--timeout=60s", "-f", str(kinds))
        yield api


def other_kinds() -> Iterator[dict[str, Any]]:
    """Of everybody who makes pods, and of KAI what is not acted on."""
    for group, kind, plural in GROUPS:
        if group not in BUILT_IN:
            yield a_kind(group, "v1", kind, plural)
    for one in KINDS:
        yield a_kind(one.group, one.version, one.plural.capitalize(), one.plural)


def a_kind(group: str, version: str, kind: str, plural: str) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    served = {"name": version, "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [served]},
    }


def access_of(bed: Bed, api: Api, account: str, **bound: Any) -> Access:
    admin = read_kubeconfig(bed.kubeconfig)
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    spec = {"expirationSeconds": 3600, **bound}
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    token = str(api.create(path, request)["status"]["token"])
    return Access(server=admin.server, authority_pem=admin.authority_pem, token=token)


async def until_all_are_used(client: Recording, rights: set[Permission]) -> set[Permission]:
    """What is left of them in the end."""
    try:
        async with asyncio.timeout(WITHIN_S):
            while client.unused(rights):
                await asyncio.sleep(0.2)
    except TimeoutError:
        pass
    return client.unused(rights)


# -------------------------------------------------------------------------------------------------------- the scheduler


def test_the_scheduler_uses_all_it_may_and_needs_no_more(
    testbed: Bed, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_module, "UNSUPPORTED_S", 2)
    rights = granted(ROLES, "gpuyard-scheduler")
    client = Recording(access_of(testbed, api, "gpuyard-scheduler"), api.answers, lose="/binding")
    said: list[str] = []

    async def run(pods: str, rig: Rig) -> set[Permission]:
        await make_kinds(testbed)
        assert not await is_held(client, KAI_SCHEDULER, KAI_SCHEDULER)
        scheduler = Scheduler(client, Options(settings=Settings((OURS,), NAMESPACE)), said.append)
        task = asyncio.create_task(scheduler.run())
        try:
            await asyncio.to_thread(everything, testbed, api, pods, rig)
            return await until_all_are_used(client, rights)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.close()

    with two_nodes(testbed, api, tmp_path) as rig, a_namespace(api, SPACE) as pods:
        unused = asyncio.run(run(pods, rig))
    assert not client.refused
    assert not unused, "\n".join(said)


@contextmanager
def two_nodes(bed: Bed, api: Api, root: Path) -> Iterator[Rig]:
    """With eight GPUs each."""
    for node in NODES:
        (root / node).mkdir()
    with rigged(bed, api, NODES[0], root / NODES[0]) as rig, rigged(bed, api, NODES[1], root / NODES[1]):
        yield rig


async def make_kinds(bed: Bed) -> None:
    admin = KubeClient(read_kubeconfig(bed.kubeconfig))
    try:
        await ensure(admin, (*definitions(), *default_queues()), print)
    finally:
        await admin.close()


def everything(bed: Bed, api: Api, pods: str, rig: Rig) -> None:
    """What makes the scheduler do everything it can."""
    for body in (*things(), *(thing for group, kind, _ in GROUPS for thing in a_maker(group, kind))):
        apply(bed, body)
    for group, kind, plural in GROUPS:
        api.create(pods, made_by(api, group, kind, plural))
    api.create(pods, ours("with-claim", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "claim"}}]))
    api.create(pods, ours("with-disk", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": DISK}}]))
    rig.runs(pods, "with-disk")
    api.create(pods, ours("in-group", annotations={"pod-group-name": "group"}))
    api.create(pods, ours("too-large", gpus=64))
    # Two nodes with eight GPUs each: the job's pod has to move for "d", and somebody has to go for "high".
    for name, gpus in (("a", 4), ("b", 2), ("c", 6), ("d", 4)):
        if name == "b":
            apply(bed, a_job(name, gpus))
            eventually(lambda: len(running(api, pods)) == 2, "the pod of the job")
        else:
            api.create(pods, ours(name, gpus=gpus, priorityClassName="train"))
            rig.runs(pods, name)
    eventually(lambda: len(running(api, pods)) == 4, "the pod of the job, on another node")
    api.create(pods, ours("high", gpus=4, priorityClassName="build-preemptible"))
    rig.runs(pods, "high")


def a_job(name: str, gpus: int) -> dict[str, Any]:
    pod = ours(name, gpus=gpus)
    template = {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]}
    # Ended in time it would have done its work.
    template["spec"]["containers"][0]["command"] = ["sh", "-c", "trap 'exit 143' TERM; sleep 1000 & wait"]
    about = {"name": name, "namespace": SPACE}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": {"template": template}}


def running(api: Api, pods: str) -> list[str]:
    """Those with GPUs."""
    return [
        pod["metadata"]["name"]
        for pod in api.get(pods)["items"]
        if pod["status"].get("phase") == "Running"
        and "deletionTimestamp" not in pod["metadata"]
        and pod["spec"]["containers"][0].get("resources", {}).get("limits")
    ]


def apply(bed: Bed, body: dict[str, Any]) -> None:
    file = bed.record.folder / "permissions.yaml"
    file.write_text(yaml.safe_dump(body))
    must(bed, "apply", "-f", str(file))
    file.unlink()


def things() -> Iterator[dict[str, Any]]:
    yield from a_claim("claim", CLASS, "test.gpuyard.io/nobody")
    yield from a_claim(DISK, DISK, "kubernetes.io/no-provisioner")
    spec = {
        "storageClassName": DISK,
        "capacity": {"storage": "1Mi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/tmp"},
    }
    yield {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": DISK}, "spec": spec}
    yield {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "group", "namespace": SPACE},
        "spec": {"queue": "default-queue", "minMember": 1},
    }
    for one in KINDS:
        yield {
            "apiVersion": f"{one.group}/{one.version}",
            "kind": one.plural.capitalize(),
            "metadata": {"name": "one", "namespace": SPACE},
            "spec": {"podName": "in-group"},
        }


def a_claim(name: str, storage_class: str, provisioner: str) -> Iterator[dict[str, Any]]:
    """And its class."""
    yield {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": storage_class},
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    spec = {
        "storageClassName": storage_class,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Mi"}},
    }
    about = {"name": name, "namespace": SPACE}
    yield {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": about, "spec": spec}


def a_maker(group: str, kind: str) -> Iterator[dict[str, Any]]:
    """One that could make pods, and makes none."""
    labels = {"maker": kind.lower()}
    pod = {"metadata": {"labels": labels}, "spec": {"nodeSelector": {"is": "nowhere"}, **a_pod("x")["spec"]}}
    forever = {**pod, "spec": {**pod["spec"], "restartPolicy": "Always"}}
    selected = {"replicas": 0, "selector": {"matchLabels": labels}, "template": forever}
    specs: dict[str, dict[str, Any]] = {
        "ReplicationController": {"replicas": 0, "selector": labels, "template": forever},
        "Deployment": selected,
        "ReplicaSet": selected,
        "StatefulSet": {**selected, "serviceName": "x"},
        "DaemonSet": {"selector": {"matchLabels": labels}, "template": forever},
        "Job": {"suspend": True, "template": pod},
        "CronJob": {"suspend": True, "schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": pod}}},
    }
    spec = specs.get(kind, {}) if group in BUILT_IN else {}
    version = f"{group}/v1" if group else "v1"
    yield {"apiVersion": version, "kind": kind, "metadata": {"name": "maker", "namespace": SPACE}, "spec": spec}


def made_by(api: Api, group: str, kind: str, plural: str) -> dict[str, Any]:
    """A pod that says who made it, and waits behind a gate."""
    path = f"/apis/{group}/v1" if group else "/api/v1"
    uid = api.get(f"{path}/namespaces/{SPACE}/{plural}/maker")["metadata"]["uid"]
    owner = {"apiVersion": f"{group}/v1" if group else "v1", "kind": kind, "name": "maker", "uid": uid}
    name = f"of-{kind.lower()}-{group.replace('.', '-') or 'core'}"
    pod = ours(name, schedulingGates=[{"name": "test.gpuyard.io/stay"}])
    pod["metadata"]["ownerReferences"] = [owner]
    return pod


def ours(name: str, gpus: int = 0, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    pod = a_pod(name, schedulerName=OURS, **spec)
    pod["metadata"] |= {"labels": {"kai.scheduler/queue": "default-queue"}, "annotations": annotations or {}}
    if gpus:
        pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    return pod


# --------------------------------------------------------------------------------------------------- the part on a node


@pytest.fixture
def on_node(testbed: Bed, api: Api) -> Iterator[Access]:
    """As whom a pod of the DaemonSet speaks: its account, and the node it is on."""
    space = f"/api/v1/namespaces/{NAMESPACE}"
    eventually(lambda: api.answers(f"{space}/serviceaccounts/gpuyard-node"), "the account")
    pod = api.create(f"{space}/pods", a_pod("part", nodeName=NODES[0], serviceAccountName="gpuyard-node"))
    about = {"kind": "Pod", "apiVersion": "v1", "name": "part", "uid": pod["metadata"]["uid"]}
    eventually(lambda: api.get(f"{space}/pods/part")["status"].get("phase") == "Running", "the pod")
    yield access_of(testbed, api, "gpuyard-node", boundObjectRef=about)
    api.delete(f"{space}/pods/part", gracePeriodSeconds="0")


def test_the_part_on_a_node_uses_all_it_may_and_needs_no_more(testbed: Bed, api: Api, on_node: Access) -> None:
    rights = granted(ROLES, "gpuyard-node")
    client = Recording(on_node, api.answers)
    kubelet = testbed.node_folder(NODES[0]) / "kubelet"
    settings = NodeSettings(NODES[0], NAMESPACE, kubelet / "pod-resources" / "kubelet.sock", kubelet / "device-plugins")

    async def run() -> set[Permission]:
        task = asyncio.create_task(NodePart(client, settings, print).run())
        try:
            return await until_all_are_used(client, rights)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.close()

    unused = asyncio.run(run())
    assert not client.refused
    assert not unused
    eventually(
        lambda: api.answers(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{map_name(NODES[0])}"), "what it publishes"
    )


def test_the_part_on_a_node_writes_of_no_other_node_and_nothing_else(testbed: Bed, api: Api, on_node: Access) -> None:
    for name, node in (("gpuyard-places", ""), (map_name(NODES[1]), NODES[1])):
        body = published(name, node)
        api.apply(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{name}", body)
    # One that is another node's cannot be made one's own, either.
    attempts = [
        (map_name(NODES[1]), NODES[1]),
        (map_name(NODES[1]), NODES[0]),
        ("gpuyard-places", NODES[0]),
        ("new", NODES[1]),
        ("new", ""),
    ]
    assert [refusal(on_node, name, node) for name, node in attempts] == [403] * len(attempts)
    assert refusal(on_node, map_name(NODES[0]), NODES[0]) is None
    # A token that is no pod's says nothing of a node.
    assert refusal(access_of(testbed, api, "gpuyard-node"), map_name(NODES[0]), NODES[0]) == 403


def published(name: str, node: str) -> dict[str, Any]:
    about = {"name": name, "namespace": NAMESPACE, "annotations": {"gpuyard.io/node": node} if node else {}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": {"by": "test"}}


def refusal(access: Access, name: str, node: str) -> int | None:
    """How the API server refuses to let it write that ConfigMap about that node; None: it does not."""

    async def write() -> int | None:
        client = KubeClient(access)
        try:
            await client.apply(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{name}", published(name, node), "test")
        except KubeRefusedError as error:
            return error.status if "the part on a node" in str(error) else 0
        finally:
            await client.close()
        return None

    return asyncio.run(write())


# ----------------------------------------------------------------------------------------------------------- installing


def test_whoever_installs_uses_all_it_may_and_needs_no_more(testbed: Bed, api: Api) -> None:
    client = Recording(access_of(testbed, api, "gpuyard-install"), api.answers)

    forget(api)

    async def run() -> None:
        try:
            await ensure(client, (home(NAMESPACE), *definitions(), *default_queues()), print)
        finally:
            await client.close()

    asyncio.run(run())
    assert not client.refused
    assert not client.unused(granted(ROLES, "gpuyard-install"))


def test_the_words_for_requests_are_those_of_roles() -> None:
    assert wanted("GET", "/api/v1/pods", {"watch": "true"}) == Permission("", "pods", "watch")
    assert wanted("GET", "/api/v1/namespaces", None) == Permission("", "namespaces", "list")
    assert wanted("POST", "/api/v1/namespaces/n/pods/p/binding", None) == Permission("", "pods/binding", "create", "p")
    path = "/apis/coordination.k8s.io/v1/namespaces/n/leases/l"
    assert wanted("PUT", path, None) == Permission("coordination.k8s.io", "leases", "update", "l")
    assert wanted("GET", "/apis/kai.scheduler/v1alpha1", None) is None
