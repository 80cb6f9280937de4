"""Questions to a real API server: as an administrator, and as somebody who may not read everything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gpuyard.cli.main import cli
from gpuyard.kube import leading
from gpuyard.testbed.api import Api
from gpuyard.testbed.bed import Bed
from tests.kube import a_namespace, a_pod, eventually, phase
from tests.on_kube.shelves import a_queue

SPACE = "questions"
QUEUES = "/apis/scheduling.run.ai/v2/queues"
ROLES = "/apis/rbac.authorization.k8s.io/v1"
NODE = "node-1"


@pytest.fixture(autouse=True)
def leader_soon_found_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "WATCH_MS", 500)


@pytest.fixture(scope="module")
def api(testbed: Bed) -> Iterator[Api]:
    """Two queues, a node with GPUs, and pods that run and wait. No scheduler runs."""
    queues = [a_queue("q-all", quota=-1), a_queue("q-team", 4, 4, "q-all")]
    with testbed.api() as api, a_namespace(api, SPACE) as pods, gpus_on(testbed, NODE):
        assert asked(testbed, "kube", "install", "-n", SPACE).exit_code == 0
        for queue in queues:
            api.create(QUEUES, {"apiVersion": "scheduling.run.ai/v2", **queue})
        try:
            for name, gpus, node in (("runs", 3, NODE), ("waits", 2, ""), ("huge", 9, "")):
                api.create(pods, pod(name, gpus, node))
            eventually(lambda: phase(api, f"{pods}/runs") == "Running", "a running pod")
            yield api
        finally:
            for queue in queues:
                api.delete(f"{QUEUES}/{queue['metadata']['name']}")


@contextmanager
def gpus_on(bed: Bed, node: str) -> Iterator[None]:
    """As an administrator advertises a resource that no plugin knows."""
    path = "/status/capacity/nvidia.com~1gpu"
    patch = ["patch", "node", node, "--subresource", "status", "--type", "json", "-p"]
    done = bed.kubectl(*patch, json.dumps([{"op": "add", "path": path, "value": "8"}]))
    assert done.code == 0, done.output
    with bed.api() as api:
        eventually(
            lambda: api.get(f"/api/v1/nodes/{node}")["status"]["allocatable"].get("nvidia.com/gpu") == "8", "GPUs"
        )
    try:
        yield
    finally:
        bed.kubectl(*patch, json.dumps([{"op": "remove", "path": path}]))


def pod(name: str, gpus: int, node: str) -> dict[str, Any]:
    made = a_pod(name, schedulerName="gpuyard", **({"nodeName": node} if node else {}))
    made["metadata"]["labels"] = {"kai.scheduler/queue": "q-team"}
    made["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return made


def asked(bed: Bed, *words: str, kubeconfig: Path | None = None) -> Result:
    return CliRunner().invoke(cli, [*words, "--kubeconfig", str(kubeconfig or bed.kubeconfig)])


def test_a_real_cluster_answers_every_question(testbed: Bed, api: Api) -> None:
    waits = asked(testbed, "kube", "explain", "waits", "-n", SPACE, "-o", "json")
    answer = json.loads(waits.stdout)
    assert waits.exit_code == 10
    assert answer["explanation"]["blockers"][0] | {"have": 1000, "need": 2000} == answer["explanation"]["blockers"][0]
    assert answer["explanation"]["blockers"][0]["token"] == "OverLimit"
    assert asked(testbed, "kube", "explain", "huge", "-n", SPACE).exit_code == 11
    assert asked(testbed, "kube", "explain", "runs", "-n", SPACE).exit_code == 0
    tree = asked(testbed, "kube", "team", "tree").stdout.splitlines()
    assert ["q-team", "4", "3", "0", "0", "4", "4", "11", "1", "run,", "2", "wait"] in [line.split() for line in tree]
    gpus = asked(testbed, "kube", "gpu", "ls", "--node", NODE, "-o", "json")
    assert [gpu["free_milli"] for gpu in json.loads(gpus.stdout)] == [0, 0, 0, *5 * [1000]]
    nodes = asked(testbed, "node", "ls", "-o", "json")
    assert {node["name"]: node["free_gpus"] for node in json.loads(nodes.stdout)}[NODE] == "5"


def test_a_change_is_tried_and_not_made(testbed: Bed, api: Api, tmp_path: Path) -> None:
    change = tmp_path / "change.yaml"
    change.write_text("queues: {q-team: {limit: 8}}\n", encoding="utf-8")
    answer = asked(testbed, "kube", "what-if", str(change), "-o", "json")
    assert [entry["job"] for entry in json.loads(answer.stdout)["started"]] == [f"{SPACE}/pod/waits"]
    assert api.get(f"{QUEUES}/q-team")["spec"]["resources"]["gpu"]["limit"] == 4


def test_the_doctor_goes_through_the_list(testbed: Bed, api: Api) -> None:
    result = asked(testbed, "kube", "doctor", "-n", SPACE, "--pod", "waits", "-o", "json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert " answers: Kubernetes v1." in found[0]["what"]
    verdicts = {one["about"]: one["verdict"] for one in found if one["subject"] == f"{SPACE}/pod/waits"}
    assert verdicts == {
        "namespace": "ok",
        "queue": "ok",
        "scheduler": "ok",
        "quota": "fail",
        "nodes": "ok",
        "turn": "ok",
    }


def test_whoever_may_not_read_everything_is_told_what(testbed: Bed, api: Api, tmp_path: Path) -> None:
    account = f"/api/v1/namespaces/{SPACE}/serviceaccounts"
    api.create(account, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "half"}})
    token = api.create(f"{account}/half/token", {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"})
    mine = yaml.safe_load(testbed.kubeconfig.read_text(encoding="utf-8"))
    for user in mine["users"]:
        user["user"] = {"token": token["status"]["token"]}
    path = tmp_path / "half"
    path.write_text(yaml.safe_dump(mine), encoding="utf-8")
    result = asked(testbed, "kube", "team", "tree", kubeconfig=path)
    assert result.exit_code == 4
    assert "you may not" in result.stderr
    assert "list queues.scheduling.run.ai" in result.stderr
    # The commands it names do grant it.
    command = result.stderr.partition("grants it with: ")[2].strip()
    role, binding = (words.split()[1:] for words in command.split(" && "))
    user = f"system:serviceaccount:{SPACE}:half"
    try:
        for words in (role, [word.replace("YOU", user if "--user" in word else "half") for word in binding]):
            done = testbed.kubectl(*words)
            assert done.code == 0, done.output
        eventually(
            lambda: asked(testbed, "kube", "team", "tree", kubeconfig=path).exit_code == 0,
            "an answer to the half-blind",
        )
        answer = asked(testbed, "kube", "explain", "waits", "-n", SPACE, kubeconfig=path)
        assert answer.exit_code == 10
        assert "you may not list configmaps in namespace gpuyard-system" in answer.stdout
    finally:
        api.delete(f"{ROLES}/clusterroles/gpuyard-reader")
        api.delete(f"{ROLES}/clusterrolebindings/gpuyard-reader-half")
