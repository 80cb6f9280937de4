"""Objects of KAI that nobody acts on say so themselves: once, in our words, beside what others have written there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gpuyard.errors import KubeRefusedError
from gpuyard.kube.unsupported import KINDS, TYPE, Unsupported
from gpuyard.kubeapi.access import read_kubeconfig
from gpuyard.kubeapi.client import KubeClient
from gpuyard.testbed.api import Api
from gpuyard.testbed.bed import Bed
from tests.kube import a_namespace, eventually
from tests.worlds.kubernetes.small_cluster import SmallCluster
from tests.worlds.kubernetes.words import Words

SHARDS = "/apis/kai.scheduler/v1/schedulingshards"
CONFIGS = "/apis/kai.scheduler/v1/configs"
BINDS = "/apis/scheduling.run.ai/v1alpha2/bindrequests"
READY = {"type": "Ready", "status": "True", "reason": "Fine"}


class Kept(Words):
    """Keeps objects of these kinds, too, as an API server does."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, list[dict[str, Any]]] = {}
        self.unknown: set[str] = set()

    async def get(self, path: str, params: dict[str, str] | None = None) -> bytes:
        if path in self.unknown:
            raise KubeRefusedError("no such kind", status=404)
        return msgspec.json.encode({"metadata": {"resourceVersion": "1"}, "items": self.objects.get(path, [])})

    def add(self, path: str, name: str, namespace: str = "", **parts: Any) -> None:
        metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "7"}
        self.objects.setdefault(path, []).append({"metadata": metadata, **parts})


class Case:
    def __init__(self) -> None:
        self.server = Kept()
        self.cluster = SmallCluster(nodes=1)
        self.unsupported = Unsupported(self.server.client, self.server.writer, self.cluster.picture)

    def tell(self) -> list[tuple[str, dict[str, Any]]]:
        before = len(self.server.merged)
        asyncio.run(self.unsupported.tell())
        self.server.write()
        return self.server.merged[before:]


@pytest.fixture
def case() -> Case:
    return Case()


def test_a_shard_and_a_config_hear_what_to_use_instead(case: Case) -> None:
    case.server.add(SHARDS, "default")
    case.server.add(CONFIGS, "kai-config")
    written = {path: body["status"]["conditions"] for path, body in case.tell()}
    assert list(written) == [f"{SHARDS}/default/status", f"{CONFIGS}/kai-config/status"]
    for (condition,) in written.values():
        assert (condition["type"], condition["status"], condition["reason"]) == (TYPE, "False", "NotSupported")
        assert "options of gpuyard kube scheduler" in condition["message"]


def test_conditions_of_others_stay_and_only_the_list_that_was_read_is_written_over(case: Case) -> None:
    case.server.add(SHARDS, "default", status={"conditions": [READY]})
    ((_, body),) = case.tell()
    assert body["metadata"] == {"uid": "uid-default", "resourceVersion": "7"}
    first, second = body["status"]["conditions"]
    assert (first, second["type"]) == (READY, TYPE)


def test_whoever_was_told_is_not_told_again_by_another_leader_either(case: Case) -> None:
    told = {"type": TYPE, "status": "False"}
    case.server.add(SHARDS, "default", status={"conditions": [READY, told]})
    case.server.add(BINDS, "p", "ns", spec={"podName": "p"}, status={"reason": "said already"})
    assert case.tell() == []


@pytest.mark.parametrize("status", [409, 404])
def test_what_has_changed_or_gone_meanwhile_is_looked_at_the_next_time(case: Case, status: int) -> None:
    case.server.add(SHARDS, "default")
    case.server.faults.append(KubeRefusedError("not so", status=status))
    assert case.tell() == []
    assert case.server.failed == 0
    assert len(case.tell()) == 1


def test_any_other_refusal_counts_as_one_that_was_not_written(case: Case) -> None:
    case.server.add(SHARDS, "default")
    case.server.faults.append(KubeRefusedError("no", status=403))
    case.tell()
    assert case.server.failed == 1


def test_a_status_that_is_nothing_like_one_does_not_end_the_scheduler(case: Case) -> None:
    case.server.add(SHARDS, "odd", status={"conditions": 5})
    case.server.add(CONFIGS, "odder", status={"conditions": ["text", None]})
    written = {path.split("/")[-2]: body["status"]["conditions"] for path, body in case.tell()}
    assert len(written["odd"]) == 1
    assert written["odder"][:2] == ["text", None]


def test_kinds_the_cluster_does_not_know_are_passed_over(case: Case) -> None:
    case.server.unknown |= {SHARDS, BINDS}
    case.server.add(CONFIGS, "kai-config")
    assert len(case.tell()) == 1


def test_a_bind_request_for_our_pod_says_that_nobody_acts_on_it(case: Case) -> None:
    case.cluster.add_pod("mine", 1)
    case.cluster.hear()
    namespace = case.cluster.pods["mine"]["metadata"]["namespace"]
    case.server.add(BINDS, "mine", namespace, spec={"podName": "mine"})
    ((path, body),) = case.tell()
    assert path == f"/apis/scheduling.run.ai/v1alpha2/namespaces/{namespace}/bindrequests/mine/status"
    assert body["status"] == {"reason": "NotSupported: gpuyard binds pods itself and acts on no BindRequest"}


def test_bind_requests_of_kais_own_pods_are_its_own_business(case: Case) -> None:
    """KAI may run beside us, and its binder writes there."""
    case.server.add(BINDS, "theirs", "ns", spec={"podName": "theirs"})
    case.server.add(BINDS, "empty", "ns")
    assert case.tell() == []


def with_numa(case: Case, name: str, **status: Any) -> None:
    case.cluster.add_pod(name, 1)
    pod = case.cluster.pods[name]
    pod["metadata"].setdefault("annotations", {})["kai.scheduler/numa-placement"] = "single"
    pod["status"] = {**pod.get("status", {}), **status}
    case.cluster._tell("pods", pod)
    case.cluster.hear()


def test_a_pod_that_asks_for_numa_hears_it_once(case: Case) -> None:
    with_numa(case, "a")
    case.cluster.add_pod("plain", 1)
    case.cluster.hear()
    ((path, body),) = case.tell()
    assert path.endswith("/pods/a/status")
    assert body["metadata"] == {"uid": case.cluster.pods["a"]["metadata"]["uid"]}
    assert body["status"]["conditions"][0]["message"] == "gpuyard leaves NUMA placement to the kubelet"
    with_numa_told = {"conditions": body["status"]["conditions"]}
    case.cluster.pods["a"]["status"] = with_numa_told
    case.cluster._tell("pods", case.cluster.pods["a"])
    case.cluster.hear()
    assert case.tell() == []


def test_a_pod_whose_telling_failed_is_told_the_next_time(case: Case) -> None:
    with_numa(case, "a")
    case.server.faults.append(KubeRefusedError("busy", status=429))
    assert case.tell() == []
    assert len(case.tell()) == 1


def test_a_pod_that_is_over_hears_nothing(case: Case) -> None:
    with_numa(case, "a", phase="Succeeded")
    assert case.tell() == []


# -------------------------------------------------------------------------------------------- on a real API server

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SPACE = "unsupported"
NAMES = {"schedulingshards": "SchedulingShard", "configs": "Config", "bindrequests": "BindRequest"}
OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def a_definition(plural: str, group: str, version: str) -> dict[str, Any]:
    """As KAI has them: shards and configs are the cluster's, a status has typed conditions, or a reason and no more."""
    text = {"type": "string"}
    condition = {"type": "object", "required": ["type", "status"], "properties": {"type": text, "status": text}}
    for field in ("reason", "message", "lastTransitionTime"):
        condition["properties"][field] = text  # type: ignore[index]
    fields: dict[str, Any] = {"conditions": {"type": "array", "items": condition}}
    if plural == "bindrequests":
        fields = {"reason": text, "phase": text}
    schema = {"type": "object", "properties": {"spec": OPEN, "status": {"type": "object", "properties": fields}}}
    served = {"name": version, "served": True, "storage": True, "subresources": {"status": {}}}
    kind = NAMES[plural]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced" if plural == "bindrequests" else "Cluster",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [{**served, "schema": {"openAPIV3Schema": schema}}],
        },
    }


@pytest.fixture
def api(testbed: Bed) -> Iterator[Api]:
    """With the three kinds, as KAI defines them."""
    with testbed.api() as api:
        for kind in KINDS:
            name = f"{kind.plural}.{kind.group}"
            eventually(lambda name=name: not api.answers(f"{CRDS}/{name}"), f"the end of an earlier {name}")
            api.create(CRDS, a_definition(kind.plural, kind.group, kind.version))
        for path in (SHARDS, CONFIGS, BINDS):
            eventually(lambda path=path: api.answers(path), f"the kind behind {path}")
        try:
            yield api
        finally:
            for kind in KINDS:
                api.delete(f"{CRDS}/{kind.plural}.{kind.group}")


def test_on_a_real_api_server_each_kind_ends_up_told_once(testbed: Bed, api: Api, case: Case) -> None:
    with a_namespace(api, SPACE):
        for path, kind in ((SHARDS, "SchedulingShard"), (CONFIGS, "Config")):
            body = {"apiVersion": "kai.scheduler/v1", "kind": kind, "metadata": {"name": "default"}, "spec": {}}
            api.create(path, body)
        case.cluster.add_pod("mine", 1)
        case.cluster.pods["mine"]["metadata"]["namespace"] = SPACE
        case.cluster._tell("pods", case.cluster.pods["mine"])
        case.cluster.hear()
        binds = f"/apis/scheduling.run.ai/v1alpha2/namespaces/{SPACE}/bindrequests"
        spec = {"podName": "mine"}
        about = {"name": "mine", "namespace": SPACE}
        api.create(
            binds, {"apiVersion": "scheduling.run.ai/v1alpha2", "kind": "BindRequest", "metadata": about, "spec": spec}
        )
        told = asyncio.run(told_on(testbed, case))
        assert (told, case.server.failed) == (3, 0)
        for path in (SHARDS, CONFIGS):
            (condition,) = api.get(f"{path}/default")["status"]["conditions"]
            assert (condition["type"], condition["reason"]) == (TYPE, "NotSupported")
        assert api.get(f"{binds}/mine")["status"]["reason"].startswith("NotSupported: ")
        assert asyncio.run(told_on(testbed, case)) == 0


async def told_on(bed: Bed, case: Case) -> int:
    """How many objects of the cluster were told."""
    client = KubeClient(read_kubeconfig(bed.kubeconfig))
    try:
        await Unsupported(client, case.server.writer, case.cluster.picture).tell()
        said = list(case.server.queue)
        case.server.queue.clear()
        for work in said:
            await work()
        return len(said)
    finally:
        await client.close()
