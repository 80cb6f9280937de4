"""Everything together on a real cluster: manifests, accounts, kubelets, fake nodes, and what goes wrong with them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from functools import partial
from time import sleep
from typing import Any

import msgspec
import pytest
import yaml

from gpuyard.errors import KubeRefusedError
from gpuyard.fakegpu.config import fleet_of
from gpuyard.fakegpu.kubernetes.nodepatch import MANAGER, label_patch
from gpuyard.fakegpu.kubernetes.objects import Node
from gpuyard.fakegpu.kubernetes.observed import node_facts
from gpuyard.kubeapi.access import read_kubeconfig
from gpuyard.kubeapi.client import CONFLICT, KubeClient
from gpuyard.kubeapi.paths import path_of
from gpuyard.testbed.api import Api
from gpuyard.testbed.bed import Bed
from gpuyard.testbed.record import Extras
from tests.fakegpu.kubernetes.deployed import (
    GPU,
    MANIFESTS,
    MAPS,
    NAMESPACE,
    NODES,
    Deployed,
    asking,
    deployed,
    fake_node,
    gpu_pod,
    must,
    running_now,
    took_s,
)
from tests.kube import a_namespace, eventually

FIRST, SECOND = NODES
IDS = ("GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000002")
CONFIGURATION = f"""
mig-strategy: mixed
nodes:
  {FIRST}:
    gpu-memory: 11441
    gpu-product: Tesla-K80
    gpus:
      - id: {IDS[0]}
      - id: {IDS[1]}
pools:
  a100: {{gpus: 4, product: A100}}
  fakes: {{gpus: 2, product: T4}}
profiles:
  training: [{{time: 1h, utilization: 80}}, {{time: 1h, utilization: 0}}]
"""
PREPARE = "until [ -e /done ]; do sleep 0.1; done"
GONE_S = 60 if os.environ.get("GPUYARD_LONG") == "1" else 3
SLOW_S = 30.0
"""What takes two seconds at most (make bench-fake-kube holds it to that) takes longer beside other tests."""


@pytest.fixture(scope="module")
def cluster(testbed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    testbed.kubectl("label", "node", SECOND, "gpuyard.io/gpu-pool=a100")
    with testbed.api() as api, deployed(testbed, api, tmp_path_factory.mktemp("overlay"), CONFIGURATION) as cluster:
        eventually(lambda: cluster.gpus(FIRST) == ("2", "2"), "two GPUs on the first node")
        eventually(lambda: cluster.gpus(SECOND) == ("4", "4"), "four GPUs on the second node")
        yield cluster


@pytest.fixture
def api(cluster: Deployed) -> Api:
    return cluster.api


@pytest.fixture
def pods(cluster: Deployed, request: pytest.FixtureRequest) -> Iterator[str]:
    """Where a test has its pods; when it is over all GPUs are free again, and configured as they were."""
    name = request.node.originalname.removeprefix("test_").replace("_", "-")[:40].strip("-")
    with a_namespace(cluster.api, name) as path:
        yield path
        cluster.api.delete(path, gracePeriodSeconds="0")
        cluster.configure(CONFIGURATION)
        eventually(lambda: not cluster.api.get(path)["items"], "the end of all pods")
        eventually(lambda: cluster.gpus(SECOND) == ("4", "4"), "four GPUs on the second node")


def namespace_of(pods: str) -> str:
    return pods.split("/")[-2]


# ------------------------------------------------------------------------------------------------------- as deployed


def test_the_manifests_apply_as_they_are(cluster: Deployed) -> None:
    said = must(
        cluster.bed,
        "apply",
        "--server-side",
        "--force-conflicts",
        "--validate=strict",
        "--dry-run=server",
        "-k",
        str(MANIFESTS),
    )
    assert len(said.splitlines()) == 15
    assert "warning" not in said.lower()


def test_nodes_have_the_labels_of_the_design_and_of_feature_discovery(cluster: Deployed) -> None:
    labels = cluster.labels(FIRST)
    seed = {"gpu.memory": "11441", "gpu.count": "2", "mig.strategy": "mixed", "gpu.product": "Tesla-K80"}
    assert {f"nvidia.com/{name}": value for name, value in seed.items()}.items() <= labels.items()
    assert labels["nvidia.com/gpu.family"] == "kepler"
    assert cluster.labels(SECOND)["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB"
    assert "nvidia.com/gpu.count" not in cluster.labels("node-1"), "it is in no pool"


def test_the_config_map_is_the_document_of_the_design(cluster: Deployed) -> None:
    eventually(lambda: set(cluster.status()["nodes"]) >= set(NODES), "both nodes in the ConfigMap")
    found = cluster.status()
    assert found["mig-strategy"] == "mixed"
    idle = {"utilization": 0, "fb-used": 0}
    assert found["nodes"][FIRST] == {
        "gpu-memory": 11441,
        "gpu-product": "Tesla-K80",
        "gpus": [{"id": IDS[0], "metrics": idle}, {"id": IDS[1], "metrics": idle}],
    }


def test_labels_that_somebody_takes_away_come_back_and_others_are_left_alone(cluster: Deployed) -> None:
    bed = cluster.bed
    must(bed, "label", "node", FIRST, "nvidia.com/gpu.count=9", "nvidia.com/gpu.memory-", "team=mine", "--overwrite")
    eventually(lambda: cluster.labels(FIRST).get("nvidia.com/gpu.memory") == "11441", "the label back")
    eventually(lambda: cluster.labels(FIRST)["nvidia.com/gpu.count"] == "2", "the count put right")
    assert cluster.labels(FIRST)["team"] == "mine"
    must(bed, "label", "node", FIRST, "team-")


# ------------------------------------------------------------------------------------------------------- containers


def test_every_face_names_the_exact_container(cluster: Deployed, pods: str) -> None:
    """Init container, sidecar and two containers; one of them by its own profile."""
    pod = gpu_pod(
        "multi",
        SECOND,
        asking("one", 1),
        asking("two", 1),
        annotations={"gpuyard.io/gpu-profile.two": "[{utilization: 40}]"},
        spec={"initContainers": [asking("prepare", 1, PREPARE), asking("beside", 1, restartPolicy="Always")]},
    )
    cluster.api.create(pods, pod)
    mine = f"{namespace_of(pods)}/multi"
    exporter = cluster.exporter("node", SECOND)

    def shown() -> list[tuple[str, int]]:
        return sorted(cluster.shown(exporter, SECOND).values())

    first = [("", 0), (f"{mine}/one", 0), (f"{mine}/prepare", 100), (f"{mine}/two", 0)]
    eventually(lambda: shown() == first, "the init container at work")
    must(cluster.bed, "exec", "-n", namespace_of(pods), "multi", "-c", "prepare", "--", "touch", "/done")
    then = [("", 0), (f"{mine}/beside", 100), (f"{mine}/one", 100), (f"{mine}/two", 40)]
    eventually(lambda: shown() == then, "the containers at work")
    eventually(lambda: cluster.written(SECOND) == cluster.shown(exporter, SECOND), "the same in the ConfigMap")
    seen = must(cluster.bed, "exec", "-n", namespace_of(pods), "multi", "-c", "two", "--", "nvidia-smi", "-L")
    (uuid,) = [uuid for uuid, (who, _) in cluster.shown(exporter, SECOND).items() if who == f"{mine}/two"]
    assert uuid in seen
    cluster.api.delete(f"{pods}/multi", gracePeriodSeconds="0")
    eventually(lambda: shown() == [("", 0)] * 4, "all GPUs free")
    eventually(lambda: all(who == "" for who, _ in cluster.written(SECOND).values()), "and in the ConfigMap")


def test_a_wrong_annotation_is_told_once_and_the_pod_counts_as_busy(cluster: Deployed, pods: str) -> None:
    cluster.api.create(pods, gpu_pod("wrong", FIRST, annotations={"gpuyard.io/gpu-profile": "trainin"}))
    cluster.api.create(pods, gpu_pod("right", FIRST, annotations={"run.ai/simulated-gpu-utilization": "10-30"}))
    exporter = cluster.exporter("node", FIRST)

    def by_pod() -> dict[str, int]:
        return {who.split("/")[1]: percent for who, percent in cluster.shown(exporter, FIRST).values() if who}

    eventually(lambda: by_pod().get("wrong") == 100 and 10 <= by_pod().get("right", 0) <= 30, "both at work")
    eventually(lambda: cluster.events("InvalidGPUProfile", namespace_of(pods)) != [], "an event")
    sleep(1)
    (event,) = cluster.events("InvalidGPUProfile", namespace_of(pods))
    assert event["regarding"]["name"] == "wrong"
    assert 'did you mean "training"?' in event["note"]
    assert cluster.logs("node", FIRST).count('did you mean "training"?') == 1


# ---------------------------------------------------------------------------------------------------------- changes


def test_a_hot_change_reaches_kubelet_exporter_labels_and_config_map(cluster: Deployed, pods: str) -> None:
    exporter = cluster.exporter("node", SECOND)
    cluster.configure(CONFIGURATION.replace("gpus: 4, product: A100", "gpus: 3, product: H100"))
    faces = {
        "exporter": lambda: len(cluster.shown(exporter, SECOND)) == 3,
        "kubelet": lambda: cluster.gpus(SECOND) == ("3", "3"),
        "labels": lambda: "H100" in cluster.labels(SECOND)["nvidia.com/gpu.product"],
        "ConfigMap": lambda: "H100" in cluster.status()["nodes"][SECOND]["gpu-product"],
    }
    for face, follows in faces.items():
        assert took_s(follows, f"the change in the {face}") < SLOW_S
    assert cluster.api.get(pods)["items"] == []


def test_nonsense_in_the_config_map_changes_nothing_is_told_once_and_forgotten(cluster: Deployed, pods: str) -> None:
    cluster.api.create(pods, gpu_pod("lasting", FIRST))
    exporter = cluster.exporter("node", FIRST)
    mine = (f"{namespace_of(pods)}/lasting/main", 100)
    eventually(lambda: mine in cluster.shown(exporter, FIRST).values(), "the pod at work")
    for nonsense in ("nodes: [", "pools: {a100: {product: A1000}}"):
        before = len(cluster.events("InvalidConfiguration", NAMESPACE))
        cluster.configure(nonsense)
        eventually(
            lambda before=before: len(cluster.events("InvalidConfiguration", NAMESPACE)) == before + 1, "an event"
        )
    sleep(1)
    assert len(cluster.events("InvalidConfiguration", NAMESPACE)) == 2
    assert mine in cluster.shown(exporter, FIRST).values()
    assert (cluster.gpus(FIRST), cluster.gpus(SECOND)) == (("2", "2"), ("4", "4"))
    assert cluster.labels(SECOND)["nvidia.com/gpu.count"] == "4"
    cluster.configure(CONFIGURATION.replace("gpus: 4", "gpus: 3"))
    eventually(lambda: cluster.gpus(SECOND) == ("3", "3"), "the next good change")


def test_a_gpu_taken_out_while_it_is_held_stays_with_its_holder_and_nobody_else_gets_it(
    cluster: Deployed, pods: str
) -> None:
    cluster.api.create(pods, gpu_pod("holder", FIRST, asking("main", 2)))
    exporter = cluster.exporter("node", FIRST)
    mine = (f"{namespace_of(pods)}/holder/main", 100)
    both = dict.fromkeys(IDS, mine)
    eventually(lambda: cluster.shown(exporter, FIRST) == both, "the pod on both GPUs")
    cluster.configure(CONFIGURATION.replace(f"      - id: {IDS[1]}\n", ""))
    eventually(lambda: cluster.gpus(FIRST) == ("1", "1"), "one GPU to be had")
    eventually(lambda: cluster.labels(FIRST)["nvidia.com/gpu.count"] == "1", "one on the label")
    eventually(lambda: cluster.events("GPURemoved", namespace_of(pods)) != [], "an event")
    assert cluster.shown(exporter, FIRST) == both
    assert cluster.api.get(f"{pods}/holder")["status"]["phase"] == "Running"
    cluster.api.delete(f"{pods}/holder", gracePeriodSeconds="0")
    eventually(lambda: cluster.shown(exporter, FIRST) == {IDS[0]: ("", 0)}, "the GPU gone with its holder")
    assert len(cluster.events("GPURemoved", namespace_of(pods))) == 1
    cluster.configure(CONFIGURATION)
    eventually(lambda: cluster.gpus(FIRST) == ("2", "2"), "both GPUs back")


def test_a_node_taken_out_has_no_gpus_any_more_but_for_those_that_are_held(cluster: Deployed, pods: str) -> None:
    cluster.api.create(pods, gpu_pod("holder", FIRST))
    exporter = cluster.exporter("node", FIRST)
    mine = (f"{namespace_of(pods)}/holder/main", 100)
    eventually(lambda: mine in cluster.shown(exporter, FIRST).values(), "the pod at work")
    cluster.configure("pools: {fakes: {gpus: 2, product: T4}}")
    for node in NODES:
        eventually(lambda node=node: cluster.gpus(node) == ("0", "0"), f"no GPUs on {node}")
        eventually(lambda node=node: "nvidia.com/gpu.count" not in cluster.labels(node), f"no labels on {node}")
    assert list(cluster.shown(exporter, FIRST).values()) == [mine]
    eventually(lambda: SECOND not in cluster.status()["nodes"], "the ConfigMap without the node nobody holds")
    eventually(lambda: list(cluster.written(FIRST).values()) == [mine], "the ConfigMap with what is held")
    own = f"{MAPS}/fake-gpus-{FIRST}"
    eventually(lambda: stays_as_it_is(cluster, own), "a ConfigMap that nobody fights over")
    cluster.api.delete(f"{pods}/holder", gracePeriodSeconds="0")
    eventually(lambda: FIRST not in cluster.status()["nodes"], "the ConfigMap without it")
    eventually(lambda: not cluster.api.answers(own), "the end of the node's own")


def stays_as_it_is(cluster: Deployed, path: str) -> bool:
    before = cluster.api.get(path)["metadata"]
    sleep(2)
    return bool(cluster.api.get(path)["metadata"]["uid"] == before["uid"])


def test_a_renamed_node_keeps_its_gpus_until_the_name_is_right(cluster: Deployed, pods: str) -> None:
    cluster.api.create(pods, gpu_pod("lasting", FIRST))
    exporter = cluster.exporter("node", FIRST)
    mine = (f"{namespace_of(pods)}/lasting/main", 100)
    eventually(lambda: mine in cluster.shown(exporter, FIRST).values(), "the pod at work")
    cluster.configure(CONFIGURATION.replace(FIRST, "nod-3"))
    eventually(lambda: cluster.events("NodeRenamed", NAMESPACE) != [], "an event")
    sleep(1)
    (event,) = cluster.events("NodeRenamed", NAMESPACE)
    assert f"no node is called nod-3; {FIRST}, which it no longer names, keeps its GPUs" in event["note"]
    assert cluster.gpus(FIRST) == ("2", "2")
    assert len(cluster.shown(exporter, FIRST)) == 2
    assert mine in cluster.shown(exporter, FIRST).values()
    assert cluster.labels(FIRST)["nvidia.com/gpu.count"] == "2"


def test_without_the_api_server_everything_serves_on_and_it_is_told_once(cluster: Deployed, pods: str) -> None:
    cluster.api.create(pods, gpu_pod("lasting", FIRST))
    exporters = {node: cluster.exporter("node", node) for node in NODES}
    mine = (f"{namespace_of(pods)}/lasting/main", 100)
    eventually(lambda: mine in cluster.shown(exporters[FIRST], FIRST).values(), "the pod at work")
    parts = (("updater", ""), ("node", FIRST), ("node", SECOND))
    before = {part: cluster.logs(*part) for part in parts}
    cluster.bed.stop("kube-apiserver")
    try:
        sleep(GONE_S)
        assert mine in cluster.shown(exporters[FIRST], FIRST).values()
        assert len(cluster.shown(exporters[SECOND], SECOND)) == 4
    finally:
        cluster.bed.start("kube-apiserver")
    eventually(lambda: cluster.api.answers("/readyz"), "the API server back")
    cluster.configure(CONFIGURATION.replace("gpus: 4", "gpus: 3"))
    eventually(lambda: cluster.gpus(SECOND) == ("3", "3"), "a change after the gap")
    eventually(lambda: cluster.labels(SECOND)["nvidia.com/gpu.count"] == "3", "its label")
    for part, earlier in before.items():
        back = partial(new_words, cluster, part, earlier)
        eventually(lambda: "the API server answers again" in back(), "word of its return")  # noqa: B023
        said = back()
        assert said.count("does not answer") == 1, said
        assert said.count("the API server answers again") == 1, said
        assert "refuses" not in said, said


def new_words(cluster: Deployed, part: tuple[str, str], earlier: str) -> str:
    """What a part has said since."""
    return cluster.logs(*part).removeprefix(earlier)


# ------------------------------------------------------------------------------------------------------- fake nodes


@pytest.fixture
def fakes(cluster: Deployed) -> Iterator[tuple[str, str]]:
    """Two nodes without a kubelet, with two GPUs each."""
    names = ("fake-a", "fake-b")
    for name in names:
        cluster.api.create("/api/v1/nodes", fake_node(name, **{"gpuyard.io/gpu-pool": "fakes"}))
    yield names
    for name in names:
        cluster.api.delete(f"/api/v1/nodes/{name}")


def run_pod(cluster: Deployed, pods: str, pod: dict[str, Any]) -> None:
    """What a kubelet would do for a pod."""
    cluster.api.create(pods, pod)
    names = [container["name"] for container in pod["spec"]["containers"]]
    patch = json.dumps(running_now(*names))
    where = ("pod", pod["metadata"]["name"], "-n", namespace_of(pods))
    must(cluster.bed, "patch", *where, "--subresource=status", "--type=merge", "-p", patch)


def test_nodes_without_a_kubelet_get_gpus_labels_pods_and_metrics(
    cluster: Deployed, pods: str, fakes: tuple[str, str]
) -> None:
    for name in fakes:
        eventually(lambda name=name: cluster.gpus(name) == ("2", "2"), f"GPUs on {name}")
        eventually(lambda name=name: cluster.labels(name).get("nvidia.com/gpu.product") == "Tesla-T4", "labels")
    run_pod(cluster, pods, gpu_pod("one", "fake-a", asking("x", 1), asking("y", 1)))
    run_pod(cluster, pods, gpu_pod("two", "fake-a"))
    run_pod(cluster, pods, gpu_pod("three", "fake-b", annotations={"gpuyard.io/gpu-profile": "training"}))
    exporter, mine = cluster.exporter("updater"), namespace_of(pods)

    def shown(node: str) -> list[tuple[str, int]]:
        return list(cluster.shown(exporter, node).values())

    eventually(lambda: shown("fake-a") == [(f"{mine}/one/x", 100), (f"{mine}/one/y", 100)], "pod one on both GPUs")
    eventually(lambda: cluster.events("TooFewGPUs", mine) != [], "an event")
    assert "asks for 1 nvidia.com/gpu, and fake-a has 0 left" in cluster.events("TooFewGPUs", mine)[0]["note"]
    # It is over: its containers have run since January, and its profile lasts two hours.
    eventually(lambda: shown("fake-b") == [(f"{mine}/three/main", 0), ("", 0)], "pod three")
    eventually(lambda: cluster.written("fake-a") == cluster.shown(exporter, "fake-a"), "the same in the ConfigMap")
    cluster.api.delete(f"{pods}/one", gracePeriodSeconds="0")
    eventually(lambda: shown("fake-a") == [(f"{mine}/two/main", 100), ("", 0)], "pod two on the first GPU")


def test_an_updater_that_was_started_anew_leaves_pods_where_they_are(
    cluster: Deployed, pods: str, fakes: tuple[str, str]
) -> None:
    eventually(lambda: cluster.gpus(fakes[0]) == ("2", "2"), "GPUs")
    run_pod(cluster, pods, gpu_pod("first", fakes[0]))
    run_pod(cluster, pods, gpu_pod("second", fakes[0]))
    mine = namespace_of(pods)

    def written() -> list[str]:
        return [who for who, _ in cluster.written(fakes[0]).values()]

    eventually(lambda: written() == [f"{mine}/first/main", f"{mine}/second/main"], "both pods")
    cluster.api.delete(f"{pods}/first", gracePeriodSeconds="0")
    eventually(lambda: written() == ["", f"{mine}/second/main"], "the second pod alone")
    cluster.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{cluster.pod('updater')['metadata']['name']}")
    cluster.wait_ready()
    exporter = cluster.exporter("updater")
    now = [("", 0), (f"{mine}/second/main", 100)]
    eventually(lambda: list(cluster.shown(exporter, fakes[0]).values()) == now, "the pod on its GPU")


def test_a_fault_on_a_fake_node_takes_a_gpu_out_of_what_can_be_had(cluster: Deployed, fakes: tuple[str, str]) -> None:
    eventually(lambda: cluster.gpus(fakes[0]) == ("2", "2"), "GPUs")
    name = cluster.pod("updater")["metadata"]["name"]
    inside = ("exec", "-n", NAMESPACE, name, "--", *cluster.command("fake"))
    must(cluster.bed, *inside, "fault", fakes[0], "1", "xid:79")
    eventually(lambda: cluster.gpus(fakes[0]) == ("2", "1"), "one GPU less")
    must(cluster.bed, *inside, "heal", fakes[0], "1")
    eventually(lambda: cluster.gpus(fakes[0]) == ("2", "2"), "and back")


def test_a_node_that_leaves_its_pool_is_rid_of_everything(cluster: Deployed, fakes: tuple[str, str]) -> None:
    eventually(lambda: cluster.gpus(fakes[1]) == ("2", "2"), "GPUs")
    must(cluster.bed, "label", "node", fakes[1], "gpuyard.io/gpu-pool-")
    eventually(lambda: cluster.gpus(fakes[1]) == (None, None), "no GPUs any more")
    eventually(lambda: not any("nvidia" in name for name in cluster.labels(fakes[1])), "no labels any more")
    eventually(lambda: fakes[1] not in cluster.status()["nodes"], "and gone from the ConfigMap")


def test_a_node_that_was_deleted_is_not_made_anew(cluster: Deployed) -> None:
    """A patch that is on its way when a node goes."""
    made = cluster.api.create("/api/v1/nodes", fake_node("short-lived"))
    node = node_facts(msgspec.convert(made, Node))
    cluster.api.delete("/api/v1/nodes/short-lived")
    labels = label_patch(node, fleet_of("nodes: {short-lived: {gpu-product: T4, gpus: 1}}").machines[0], now_s=1)

    async def apply() -> None:
        client = KubeClient(read_kubeconfig(cluster.bed.kubeconfig))
        try:
            await client.apply(path_of("nodes", node.name), labels, MANAGER)
        finally:
            await client.close()

    with pytest.raises(KubeRefusedError) as caught:
        asyncio.run(apply())
    assert caught.value.status == CONFLICT
    assert not cluster.api.answers("/api/v1/nodes/short-lived")


def test_a_configuration_in_the_form_of_the_design_is_shown_in_its_own_words(cluster: Deployed, pods: str) -> None:
    """The example of the design, word for word, for a node of that name."""
    example = (MANIFESTS.parents[1] / "tests" / "fakegpu" / "valid" / "seed.yaml").read_text()
    assert cluster.api.get(pods)["items"] == []
    cluster.api.create("/api/v1/nodes", fake_node("node-a"))
    try:
        cluster.configure(example + CONFIGURATION.partition("nodes:\n")[2].partition("pools:")[0])
        eventually(lambda: cluster.gpus("node-a") == ("2", "2"), "two GPUs")
        run_pod(cluster, pods, gpu_pod("pod", "node-a", asking("container", 1)))
        eventually(lambda: "pod" in str(cluster.status()["nodes"].get("node-a")), "the pod in the ConfigMap")
        found = cluster.status()["nodes"]["node-a"]
        wanted = yaml.safe_load(example)["nodes"]["node-a"]
        assert found.keys() == wanted.keys()
        assert [gpu["id"] for gpu in found["gpus"]] == [gpu["id"] for gpu in wanted["gpus"]]
        assert found["gpus"][0]["metrics"].keys() == wanted["gpus"][0]["metrics"].keys()
        assert found["gpus"][0]["metrics"]["metadata"]["container"] == "container"
        assert found["gpus"][1]["metrics"] == {"utilization": 0, "fb-used": 0}, "what was written there is not so"
    finally:
        cluster.api.delete("/api/v1/nodes/node-a")


# -------------------------------------------------------------------------------------------------------------- KWOK


@pytest.fixture(scope="module")
def kwok(cluster: Deployed) -> Iterator[tuple[str, ...]]:
    """Nodes KWOK pretends; nobody has said what they have."""
    cluster.bed.add(Extras.of(kwok=1), print)
    names = tuple(f"pretended-{number}" for number in range(3))
    for name in names:
        cluster.api.create("/api/v1/nodes", pretended(name))
    yield names
    for name in names:
        cluster.api.delete(f"/api/v1/nodes/{name}")


def pretended(name: str) -> dict[str, Any]:
    """A node of KWOK's without a word about its size."""
    labels = {"type": "kwok", "gpuyard.io/gpu-pool": "fakes"}
    taints = [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]
    about = {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": about, "spec": {"taints": taints}}


def test_nodes_of_kwok_have_what_kwok_gives_them_and_gpus(cluster: Deployed, kwok: tuple[str, ...]) -> None:
    for name in kwok:
        eventually(lambda name=name: cluster.gpus(name) == ("2", "2"), f"GPUs on {name}")
        assert cluster.api.get(f"/api/v1/nodes/{name}")["status"]["capacity"].keys() == {"cpu", "memory", "pods", GPU}
        eventually(lambda name=name: cluster.labels(name).get("nvidia.com/gpu.count") == "2", "labels")


def test_pods_that_the_scheduler_puts_there_hold_gpus_and_never_too_many(
    cluster: Deployed, pods: str, kwok: tuple[str, ...]
) -> None:
    """Seven pods on three nodes with two GPUs each: one has to wait."""
    for name in kwok:
        eventually(lambda name=name: cluster.gpus(name) == ("2", "2"), f"GPUs on {name}")
    spec = {"nodeSelector": {"type": "kwok", "gpuyard.io/gpu-pool": "fakes"}, "tolerations": [{"operator": "Exists"}]}
    for number in range(7):
        pod = gpu_pod(f"p{number}", "", spec=spec)
        del pod["spec"]["nodeName"]
        cluster.api.create(pods, pod)
    exporter, mine = cluster.exporter("updater"), namespace_of(pods)

    def holders() -> list[str]:
        shown = [cluster.shown(exporter, name) for name in kwok]
        return sorted(who for node in shown for who, percent in node.values() if percent == 100)

    eventually(lambda: len(holders()) == 6, "six pods at work")
    assert len(set(holders())) == 6
    running = [pod["metadata"]["name"] for pod in cluster.api.get(pods)["items"] if pod["status"]["phase"] == "Running"]
    assert holders() == sorted(f"{mine}/{name}/main" for name in running)
    cluster.api.delete(f"{pods}/{running[0]}", gracePeriodSeconds="0")
    gone = f"{mine}/{running[0]}/main"
    eventually(lambda: len(holders()) == 6 and gone not in holders(), "the seventh in the place of the one that ended")
