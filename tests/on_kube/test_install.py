"""What a cluster gets before the scheduler starts: only what is missing, and nothing that is there is touched."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gpuyard.cli.main import cli
from gpuyard.errors import KubeError, KubeRefusedError
from gpuyard.kube import install
from gpuyard.kube.install import Wanted, default_queues, definitions, ensure, ensure_crds, missing
from gpuyard.kubeapi.access import read_kubeconfig
from gpuyard.kubeapi.client import KubeClient
from gpuyard.kubeapi.follow import listed
from gpuyard.testbed.api import Api
from gpuyard.testbed.bed import Bed
from gpuyard.worlds.kubernetes.objects import Metadata
from tests.kubeapi.scripted import Answer, Asked, Script, refused, serving
from tests.on_kube.deployed import forget

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
QUEUES = "/apis/scheduling.run.ai/v2/queues"
KINDS = (QUEUES, "/apis/scheduling.run.ai/v2alpha2/podgroups", "/apis/kai.scheduler/v1alpha1/topologies")


# ----------------------------------------------------------------------------------------------- what is asked and made


class Cluster(Script):
    """An API server that keeps what it is given; kinds are served as soon as they are defined."""

    def __init__(self, *there: Wanted) -> None:
        super().__init__(Answer())
        self.objects = {one.path: one.body for one in there}

    def next(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        if asked.method == "POST":
            path = f"{asked.path}/{asked.body['metadata']['name']}"
            if path in self.objects:
                return refused(409, "AlreadyExists")
            self.objects[path] = asked.body
            return Answer(201, asked.body)
        if asked.path in self.objects:
            return Answer(200, self.objects[asked.path])
        served = [{"name": plural} for plural, group in self.served() if asked.path == group]
        return Answer(200, {"resources": served}) if served else refused(404, "NotFound")

    def served(self) -> list[tuple[str, str]]:
        specs = [body["spec"] for body in self.objects.values() if body["kind"] == "CustomResourceDefinition"]
        return [(spec["names"]["plural"], f"/apis/{spec['group']}/{spec['versions'][0]['name']}") for spec in specs]

    def made(self) -> list[str]:
        return [asked.body["metadata"]["name"] for asked in self.asked if asked.method == "POST"]


def ensured(cluster: Script, *wanted: Wanted) -> list[str]:
    said: list[str] = []

    async def talk() -> None:
        async with serving(cluster) as client:
            await ensure(client, wanted or definitions(), said.append)

    asyncio.run(talk())
    return said


def test_an_empty_cluster_gets_kinds_and_classes_and_the_queues_after_their_kind() -> None:
    cluster = Cluster()
    ensured(cluster, *default_queues(), *definitions())
    assert cluster.made() == [
        "queues.scheduling.run.ai",
        "podgroups.scheduling.run.ai",
        "topologies.kai.scheduler",
        "default-parent-queue",
        "default-queue",
        "train",
        "build-preemptible",
        "build",
        "inference",
    ]


def test_what_is_there_is_only_read() -> None:
    cluster = Cluster(*definitions())
    said = ensured(cluster)
    assert {asked.method for asked in cluster.asked} == {"GET"}
    assert all(line.endswith("is there already and stays as it is") for line in said)


def test_a_class_of_another_value_stays_and_is_told() -> None:
    build = next(one for one in definitions() if one.name == "build")
    (line,) = ensured(Cluster(Wanted({**build.body, "value": 9000})), build)
    assert line == "PriorityClass build is there already and stays as it is: its value is 9000, not 100"


def test_one_that_somebody_else_has_made_in_the_meantime_is_theirs() -> None:
    (train, *_) = [one for one in definitions() if one.kind == install.PRIORITY_CLASS]
    script = Script(refused(404, "NotFound"), refused(409, "AlreadyExists"), Answer(200, {**train.body, "value": 7}))
    (line,) = ensured(script, train)
    assert line == "PriorityClass train is there already and stays as it is: its value is 7, not 50"


def test_a_kind_whose_version_we_read_is_not_served_is_an_error_at_once() -> None:
    (queues, *_) = definitions()
    versions = [{"name": "v3", "served": True}, {"name": "v2", "served": False}]
    cluster = Cluster(Wanted({**queues.body, "spec": {**queues.body["spec"], "versions": versions}}))
    with pytest.raises(KubeError, match=r"queues.scheduling.run.ai is there already and serves v3, but not v2"):
        ensured(cluster, queues)


def test_a_kind_that_is_never_served_is_an_error_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Cluster):
        def served(self) -> list[tuple[str, str]]:
            return []

    monkeypatch.setattr(install, "ESTABLISHED_WITHIN_MS", 50)
    with pytest.raises(KubeError, match=r"does not serve queues.scheduling.run.ai"):
        ensured(Slow(), definitions()[0])


def test_one_who_may_not_make_kinds_is_told_so() -> None:
    with pytest.raises(KubeRefusedError, match="customresourcedefinitions is forbidden"):
        ensured(Script(refused(404), refused(403, "Forbidden", "customresourcedefinitions is forbidden")))


def test_the_manifests_name_only_kinds_that_can_be_made() -> None:
    assert len({one.path for one in (*definitions(), *default_queues())}) == 9


# ------------------------------------------------------------------------------------------------- on a real API server


@pytest.fixture
def api(testbed: Bed) -> Iterator[Api]:
    """A cluster without them, before and after."""
    with testbed.api() as api:
        forget(api)
        yield api
        forget(api)


def in_cluster(bed: Bed, *wanted: Wanted) -> list[str]:
    said: list[str] = []

    async def talk() -> None:
        client = KubeClient(read_kubeconfig(bed.kubeconfig))
        try:
            if wanted:
                await ensure(client, wanted, said.append)
            else:
                await ensure_crds(client, said.append)
                assert not await missing(client, definitions())
                assert [await listed(client, path, Metadata) for path in KINDS] == [[], [], []]
        finally:
            await client.close()

    asyncio.run(talk())
    return said


def test_a_real_cluster_serves_all_of_them_the_moment_we_come_back(testbed: Bed, api: Api) -> None:
    in_cluster(testbed)
    assert [api.get(f"{CLASSES}/{name}")["value"] for name in ("train", "build-preemptible", "build", "inference")] == [
        50,
        75,
        100,
        125,
    ]


def test_kais_own_definition_is_used_and_not_changed(testbed: Bed, api: Api) -> None:
    theirs = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "queues.scheduling.run.ai"},
        "spec": {
            "group": "scheduling.run.ai",
            "scope": "Cluster",
            "names": {"kind": "Queue", "plural": "queues"},
            "versions": [
                {
                    "name": "v2",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                }
            ],
        },
    }
    api.create(CRDS, theirs)
    said = in_cluster(testbed)
    assert "CustomResourceDefinition queues.scheduling.run.ai is there already and stays as it is" in said
    assert "CustomResourceDefinition podgroups.scheduling.run.ai is made" in said
    found = api.get(f"{CRDS}/queues.scheduling.run.ai")
    assert found["metadata"]["generation"] == 1
    assert "preemptMinRuntime" not in str(found["spec"])


def test_the_command_prints_what_is_missing_and_then_makes_it(testbed: Bed, api: Api) -> None:
    words = ["kube", "install", "--default-queues", "-n", "install-test", "--kubeconfig", str(testbed.kubeconfig)]
    printed = CliRunner().invoke(cli, [*words, "--dry-run"])
    names = [body["metadata"]["name"] for body in yaml.safe_load_all(printed.stdout)]
    assert (names[0], names[-2:]) == ("install-test", ["default-parent-queue", "default-queue"])
    assert not api.answers(QUEUES)
    assert CliRunner().invoke(cli, words).exit_code == 0
    assert {queue["metadata"]["name"] for queue in api.get(QUEUES)["items"]} == {
        "default-parent-queue",
        "default-queue",
    }
    assert CliRunner().invoke(cli, [*words, "--dry-run"]).output == "nothing is missing\n"
    api.delete("/api/v1/namespaces/install-test")


def queue(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def group(name: str, **spec: Any) -> dict[str, Any]:
    about = {"name": name, "namespace": "default"}
    return {"apiVersion": "scheduling.run.ai/v2alpha2", "kind": "PodGroup", "metadata": about, "spec": spec}


def topology(name: str, *labels: str) -> dict[str, Any]:
    levels = [{"nodeLabel": label} for label in labels]
    about = {"apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology"}
    return {**about, "metadata": {"name": name}, "spec": {"levels": levels}}


GOOD = [
    {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "bare"}},
    queue(
        "whole", displayName="All", parentQueue="bare", priority=7, preemptMinRuntime="1h30m", reclaimMinRuntime="0s"
    ),
    queue("part", resources={"gpu": {"quota": 0.5, "limit": -1, "overQuotaWeight": 2}, "cpu": {"quota": 1}}),
    group("old", minMember=1, queue="part", priorityClassName="train", parallelism=1, completions=1, backoffLimit=0),
    group(
        "new", minSubGroup=1, preemptibility="", subGroups=[{"name": "a", "minMember": 0}, {"name": "b", "parent": "a"}]
    ),
    group("near", topologyConstraint={"topology": "t", "requiredTopologyLevel": "rack"}, stalenessGracePeriod="-1s"),
    topology("place", "example.com/block", "rack", "kubernetes.io/hostname"),
]
BAD = {
    "a queue is not its own parent": queue("own", parentQueue="own"),
    "must be a time such as 90s, 5m or 1h30m": queue("soon", preemptMinRuntime="soon"),
    "must be 0 or more, or -1 for no bound": queue("less", resources={"memory": {"limit": -2}}),
    "should be greater than or equal to 0": queue("light", resources={"gpu": {"overQuotaWeight": -1}}),
    "a group counts pods (minMember) or groups (minSubGroup), not both": group("both", minMember=1, minSubGroup=1),
    "a group is not its own parent": group("loop", subGroups=[{"name": "a", "parent": "a"}]),
    "Duplicate value": group("twice", subGroups=[{"name": "a"}, {"name": "a"}]),
    "Unsupported value": group("maybe", preemptibility="sometimes"),
    "a label stands for one level": topology("same", "rack", "rack"),
    "kubernetes.io/hostname can only be the narrowest level": topology("inside-out", "kubernetes.io/hostname", "rack"),
    "should have at least 1 items": topology("flat"),
}


def test_whatever_kai_accepts_is_accepted_and_what_means_nothing_is_refused_with_a_reason(
    testbed: Bed, api: Api
) -> None:
    in_cluster(testbed)
    path = testbed.record.folder / "objects.yaml"
    path.write_text(yaml.safe_dump_all(GOOD))
    done = testbed.kubectl("apply", "--validate=strict", "-f", str(path))
    assert done.code == 0, done.output
    for why, bad in BAD.items():
        path.write_text(yaml.safe_dump(bad))
        refused_ = testbed.kubectl("apply", "-f", str(path))
        assert refused_.code != 0
        assert why in refused_.output
    path.unlink()


def test_the_columns_show_what_a_queue_has_and_a_group_waits_for(testbed: Bed, api: Api) -> None:
    in_cluster(testbed)
    api.create(QUEUES, queue("team", priority=150, resources={"gpu": {"quota": 8, "limit": -1}}))
    status = '{"status":{"fairShare":{"nvidia.com/gpu":"12"},"allocated":{"nvidia.com/gpu":"6"}}}'
    testbed.kubectl("patch", "queue", "team", "--subresource", "status", "--type", "merge", "-p", status)
    assert testbed.kubectl("get", "queue", "team", "--no-headers").output.split()[:6] == [
        "team",
        "150",
        "8",
        "-1",
        "12",
        "6",
    ]
    api.create("/apis/scheduling.run.ai/v2alpha2/namespaces/default/podgroups", group("g", queue="team", minMember=3))
    status = '{"status":{"schedulingConditions":[{"reasons":[{"reason":"OverLimit"}]}]}}'
    testbed.kubectl("patch", "pg", "g", "--subresource", "status", "--type", "merge", "-p", status)
    assert testbed.kubectl("get", "pg", "g", "--no-headers").output.split()[:4] == ["g", "team", "3", "OverLimit"]


def test_the_labels_of_a_topology_stay_but_other_names_of_levels_may_change(testbed: Bed, api: Api) -> None:
    in_cluster(testbed)
    api.create("/apis/kai.scheduler/v1alpha1/topologies", topology("t", "rack", "kubernetes.io/hostname"))
    alias = '[{"op":"add","path":"/spec/levels/0/alias","value":"r"}]'
    assert testbed.kubectl("patch", "topology", "t", "--type", "json", "-p", alias).code == 0
    label = '[{"op":"replace","path":"/spec/levels/0/nodeLabel","value":"row"}]'
    assert "stay as they are" in testbed.kubectl("patch", "topology", "t", "--type", "json", "-p", label).output
