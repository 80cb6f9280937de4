"""What `kubectl apply -k deploy/scheduler` brings up: two schedulers that take turns; nothing of others is changed."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpuyard.kube.install import definitions
from gpuyard.testbed.api import Api
from gpuyard.testbed.bed import Bed
from gpuyard.worlds.kubernetes.devices import map_name
from tests.fakegpu.kubernetes.deployed import must
from tests.kube import a_namespace, a_pod, eventually
from tests.on_kube.deployed import (
    MANIFESTS,
    NAMESPACE,
    PODS,
    READY_S,
    are_ready,
    deployed,
    forget,
    leader,
    overlay,
    pods,
)

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:gpuyard"
TOPOLOGIES = next(one for one in definitions() if one.name == "topologies.kai.scheduler")


@pytest.fixture(scope="module")
def api(testbed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """With a kind that somebody else has made before."""
    with testbed.api() as api:
        forget(api)
        theirs = {**TOPOLOGIES.body, "metadata": {"name": TOPOLOGIES.name, "labels": {"made-by": "somebody-else"}}}
        api.create(TOPOLOGIES.collection, theirs)
        with deployed(testbed, api, overlay(tmp_path_factory.mktemp("overlay"))):
            eventually(lambda: are_ready(api, "scheduler", 2), "two ready schedulers", READY_S)
            yield api


def test_two_schedulers_are_ready_on_two_nodes_and_one_of_them_leads(testbed: Bed, api: Api) -> None:
    eventually(lambda: bool(leader(api)), "a leader")
    found = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods(api, "scheduler")}
    assert leader(api) in found
    assert len(set(found.values())) == 2


def test_kinds_classes_and_default_queues_are_made_and_those_of_others_stay(testbed: Bed, api: Api) -> None:
    eventually(lambda: all(api.answers(one.path) for one in definitions()), "all kinds")
    eventually(lambda: api.answers("/apis/scheduling.run.ai/v2/queues/default-queue"), "the default queue")
    theirs = api.get(TOPOLOGIES.path)["metadata"]
    assert (theirs["labels"], theirs["generation"]) == ({"made-by": "somebody-else"}, 1)


def test_pods_get_their_nodes_also_after_the_leader_is_gone(testbed: Bed, api: Api) -> None:
    with a_namespace(api, "deployed") as path:
        api.create(path, a_pod("first", schedulerName="gpuyard"))
        eventually(lambda: api.get(f"{path}/first")["status"].get("phase") == "Running", "the first pod")
        before = leader(api)
        api.delete(f"{PODS}/{before}", gracePeriodSeconds="0")
        eventually(lambda: leader(api) not in ("", before), "another leader")
        api.create(path, a_pod("second", schedulerName="gpuyard"))
        eventually(lambda: api.get(f"{path}/second")["status"].get("phase") == "Running", "the second pod")
        condition = next(
            one for one in api.get(f"{path}/second")["status"]["conditions"] if one["type"] == "PodScheduled"
        )
        assert condition["status"] == "True"
    eventually(lambda: are_ready(api, "scheduler", 2), "two ready schedulers again", READY_S)


def test_every_node_tells_of_its_devices(testbed: Bed, api: Api) -> None:
    nodes = testbed.record.node_names()
    eventually(lambda: are_ready(api, "node", len(nodes)), "a part on every node", READY_S)
    maps = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    eventually(lambda: all(api.answers(f"{maps}/{map_name(node)}") for node in nodes), "what they publish")


def test_each_tells_its_metrics_and_whether_it_is_ready(testbed: Bed, api: Api) -> None:
    for pod in pods(api, "scheduler"):
        for page, text in (("metrics", "# TYPE gpuyard_"), ("readyz", "ok"), ("healthz", "ok")):
            with urllib.request.urlopen(f"http://{pod['status']['podIP']}:8080/{page}", timeout=20) as found:
                assert text in found.read().decode()


def test_at_least_one_of_them_stays_when_nodes_are_drained(testbed: Bed, api: Api) -> None:
    budget = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/gpuyard-scheduler"
    eventually(lambda: api.get(budget)["status"].get("disruptionsAllowed") == 1, "one pod to spare")


@pytest.mark.parametrize(
    ("who", "words"),
    [
        ("scheduler", "delete pods"),
        ("scheduler", "create pods"),
        ("scheduler", "patch pods"),
        ("scheduler", "get secrets"),
        ("scheduler", "list secrets"),
        ("scheduler", "patch nodes"),
        ("scheduler", "update queues.scheduling.run.ai"),
        ("scheduler", "list configmaps"),
        ("scheduler", f"patch configmaps/other -n {NAMESPACE}"),
        ("scheduler", f"update leases/other -n {NAMESPACE}"),
        ("scheduler", "create customresourcedefinitions"),
        ("scheduler", "create pods/exec"),
        ("node", "patch nodes"),
        ("node", "get secrets"),
        ("node", "patch configmaps -n default"),
        ("install", "patch customresourcedefinitions"),
        ("install", "delete customresourcedefinitions"),
        ("install", "get secrets"),
    ],
)
def test_what_they_do_not_need_they_may_not(testbed: Bed, api: Api, who: str, words: str) -> None:
    assert testbed.kubectl("auth", "can-i", *words.split(), "--as", f"{ACCOUNT}-{who}").output.strip().endswith("no")


def test_in_the_place_of_kai_only_the_names_it_answers_to_are_different(testbed: Bed) -> None:
    def built(folder: Path) -> list[dict[str, object]]:
        return list(yaml.safe_load_all(must(testbed, "kustomize", str(folder))))

    def told(bodies: list[dict[str, object]]) -> str:
        return yaml.safe_dump_all(bodies)

    plain, instead = told(built(MANIFESTS)), told(built(MANIFESTS.parent / "in-place-of-kai"))
    assert [line.strip() for line in instead.splitlines() if line not in plain.splitlines()] == [
        "- --also",
        "- kai-scheduler",
    ]
