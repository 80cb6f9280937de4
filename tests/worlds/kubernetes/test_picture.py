"""What is known of a cluster: every pod that matters is in one group, and what means nothing marks nothing."""

from __future__ import annotations

from typing import Any

import msgspec

from gpuyard.kubeapi.follow import Changed, Gone, Listed
from gpuyard.worlds.kubernetes import objects
from gpuyard.worlds.kubernetes.membership import DOUBT_MS, MAX_VERSIONS
from gpuyard.worlds.kubernetes.objects import Owner, Pod
from gpuyard.worlds.kubernetes.picture import Picture
from gpuyard.worlds.kubernetes.settings import Settings
from tests.worlds.kubernetes.manifests import a_pod, a_pod_group, an_owner, owned_by, topologies_in

JOBS = ("batch/v1", "Job")
JOB = an_owner("{apiVersion: batch/v1, kind: Job, metadata: {name: train}, spec: {parallelism: 2, completions: 2}}")
REPLICAS = an_owner("{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: web}, spec: {replicas: 2}}")


def ours(name: str = "p", owner: Owner | None = None, uid: str = "", **about: Any) -> Pod:
    pod = a_pod(name, owner, schedulerName="gpuyard", **about)
    return changed(pod, uid=uid) if uid else pod


def changed(pod: Pod, **metadata: Any) -> Pod:
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, **metadata))


def on(node: str, pod: Pod, phase: str = "Running") -> Pod:
    spec = msgspec.structs.replace(pod.spec, node_name=node)
    return msgspec.structs.replace(pod, spec=spec, status=msgspec.structs.replace(pod.status, phase=phase))


class Seen:
    """A picture, and the time that passes."""

    def __init__(self, *pods: Pod) -> None:
        self.picture = Picture(Settings())
        self.now_ms = 1_000_000
        self.take("pods", Listed(pods))

    def take(self, kind: str, change: Any) -> list[str]:
        """The jobs that are to be looked at again because of it."""
        self.picture.looked_at()
        self.picture.take(kind, change, self.now_ms)
        return list(self.picture.jobs_changed)

    def put(self, *pods: Pod) -> list[str]:
        return [job for pod in pods for job in self.take("pods", Changed(pod))]

    def owner(self, owner: Owner) -> list[str]:
        self.picture.looked_at()
        self.picture.take_owner((owner.api_version, owner.kind), Changed(owner), self.now_ms)
        return list(self.picture.jobs_changed)

    def owners(self, kind: tuple[str, str], *owners: Owner) -> None:
        self.picture.take_owner(kind, Listed(owners), self.now_ms)

    @property
    def groups(self) -> dict[str, list[str]]:
        return {job: sorted(members) for job, members in self.picture.groups.items()}

    def held(self, name: str = "p") -> str:
        held = self.picture.pods[f"default/{name}"].held
        return held.word if held else ""


# ---------------------------------------------------------------------------------------------------------------- pods


def test_a_pod_comes_is_bound_and_goes() -> None:
    seen = Seen()
    assert seen.put(ours()) == ["default/pod/p"]
    assert seen.put(on("n1", ours())) == ["default/pod/p"]
    assert seen.picture.on_node == {"n1": {"default/p": None}}
    assert seen.take("pods", Gone(on("n1", ours()))) == ["default/pod/p"]
    assert seen.groups == {}
    assert seen.picture.on_node == {}
    assert [record.key for record in seen.picture.gone_pods] == ["default/p", "default/p"]


def test_news_that_means_nothing_marks_nothing() -> None:
    seen = Seen(on("n1", ours()))
    touched = changed(on("n1", ours()), resource_version="77")
    assert seen.put(touched) == []
    assert seen.take("pods", Listed((touched,))) == []


def test_a_pod_of_somebody_else_counts_while_it_holds_a_node() -> None:
    theirs = a_pod("t", schedulerName="default-scheduler")
    seen = Seen()
    assert seen.put(theirs) == []
    assert seen.put(on("n1", theirs)) == ["default/pod/t"]
    assert seen.picture.pods["default/t"].grouping is None
    assert seen.put(on("n1", theirs, "Succeeded")) == ["default/pod/t"]
    assert seen.groups == {}


def test_another_pod_under_the_same_name_is_another_pod() -> None:
    seen = Seen(on("n1", ours()))
    seen.put(ours(uid="second"))
    assert [record.uid for record in seen.picture.gone_pods] == ["Pod-p"]
    record = seen.picture.pods["default/p"]
    assert (record.uid, record.node) == ("second", "")
    assert seen.picture.on_node == {}


def test_after_a_gap_what_is_not_listed_is_gone_and_what_was_made_anew_is_new() -> None:
    seen = Seen(on("n1", ours("a")), ours("b"), ours("c"))
    marked = seen.take("pods", Listed((ours("a", uid="second"), ours("d"))))
    assert sorted({record.uid for record in seen.picture.gone_pods}) == ["Pod-a", "Pod-b", "Pod-c"]
    assert set(marked) == {f"default/pod/{name}" for name in "abcd"}
    assert set(seen.groups) == {"default/pod/a", "default/pod/d"}
    assert seen.picture.pods["default/a"].node == ""


def test_a_change_of_labels_is_a_change() -> None:
    seen = Seen(ours())
    assert seen.put(ours(labels={"a": "b"})) == ["default/pod/p"]


def test_a_pod_that_shrinks_holds_what_it_had_until_its_kubelet_has_taken_it_away() -> None:
    def resized(asked: str, given: str) -> Pod:
        pod = on("n1", ours(containers=[{"name": "c", "resources": {"requests": {"cpu": asked}}}]))
        status = {"name": "c", "resources": {"requests": {"cpu": given}}, "allocatedResources": {"cpu": given}}
        statuses = msgspec.convert([status], list[objects.ContainerStatus])
        return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, container_statuses=statuses))

    seen = Seen(resized("4", "4"))
    for pod, held in ((resized("1", "4"), 4_000), (resized("1", "1"), 1_000)):
        assert seen.put(pod) == ["default/pod/p"]
        assert seen.picture.pods["default/p"].request.cpu_milli == held


def test_what_cannot_be_understood_is_held_and_says_why() -> None:
    container = {"name": "c", "resources": {"requests": {"cpu": "lots"}}}
    seen = Seen(ours(containers=[container]))
    assert seen.held() == "NotUnderstood"
    seen.put(ours(containers=[{"name": "c", "resources": {"requests": {"cpu": "1"}}}]))
    assert seen.held() == ""


# -------------------------------------------------------------------------------------------------------------- owners


def test_pods_wait_for_an_owner_that_is_not_known_yet_and_are_grouped_once_it_is() -> None:
    seen = Seen(ours("train-a", JOB), ours("train-b", JOB))
    assert JOBS in seen.picture.membership.wanted_kinds
    assert seen.picture.pods["default/train-a"].grouping is None
    assert set(seen.groups) == {"default/pod/train-a", "default/pod/train-b"}
    seen.owners(JOBS, JOB)
    assert seen.groups == {"default/job/train": ["default/train-a", "default/train-b"]}
    assert seen.picture.membership.next_doubt_ms is None


def test_an_owner_that_is_never_told_of_is_not_waited_for_longer_than_a_while() -> None:
    seen = Seen(ours("train-a", JOB))
    for after_ms, left in ((0, [seen.now_ms + DOUBT_MS]), (DOUBT_MS - 1, [seen.now_ms + DOUBT_MS]), (DOUBT_MS, [None])):
        seen.picture.look_again(seen.now_ms + after_ms)
        assert [seen.picture.membership.next_doubt_ms] == left
    assert seen.picture.pods["default/train-a"].grouping is not None
    assert seen.groups == {"default/job/train": ["default/train-a"]}


def test_an_owner_that_says_something_else_marks_its_pods_and_no_others() -> None:
    seen = Seen(ours("train-a", JOB), ours("alone"))
    seen.owners(JOBS, JOB)
    other = msgspec.structs.replace(JOB, spec={"parallelism": 1, "backoffLimit": 0})
    assert seen.owner(other) == ["default/job/train"]
    assert seen.owner(msgspec.structs.replace(other, status={"active": 1})) == []


def test_an_owner_that_is_being_deleted_makes_nothing_anew() -> None:
    seen = Seen(on("n1", ours("train-a", JOB)))
    seen.owners(JOBS, JOB)
    assert seen.picture.pods["default/train-a"].grouping.recreated  # type: ignore[union-attr]
    going = msgspec.structs.replace(JOB.metadata, deletion_timestamp="2025-03-01T10:00:00Z")
    seen.owner(msgspec.structs.replace(JOB, metadata=going))
    assert not seen.picture.pods["default/train-a"].grouping.recreated  # type: ignore[union-attr]


def test_a_pod_that_its_owner_let_go_is_on_its_own() -> None:
    """As after kubectl delete --cascade=orphan."""
    seen = Seen(on("n1", ours("train-a", JOB)))
    seen.owners(JOBS, JOB)
    seen.picture.take_owner(JOBS, Gone(JOB), seen.now_ms)
    assert set(seen.groups) == {"default/job/train"}
    seen.put(on("n1", ours("train-a")))
    assert set(seen.groups) == {"default/pod/train-a"}


def test_owners_above_owners_are_followed_and_a_ring_of_them_ends() -> None:
    deployment = an_owner("{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 1}}")
    replicas = owned_by(deployment, REPLICAS)
    seen = Seen(ours("web-1", replicas))
    seen.owners(("apps/v1", "ReplicaSet"), replicas)
    assert ("apps/v1", "Deployment") in seen.picture.membership.wanted_kinds
    seen.owners(("apps/v1", "Deployment"), owned_by(replicas, deployment))
    assert seen.picture.pods["default/web-1"].grouping is not None


def test_nothing_is_kept_of_pods_that_are_gone() -> None:
    """A ReplicaSet lives for years, and its pods for hours."""
    group = a_pod_group("{kind: PodGroup, metadata: {name: g}, spec: {minMember: 2}}")
    seen = Seen()
    seen.owners(("apps/v1", "ReplicaSet"), REPLICAS)
    seen.take("podgroups", Listed((group,)))
    sizes = []
    for number in range(3):
        pods = [ours(f"web-{number}-{at}", REPLICAS, annotations={"pod-group-name": "g"}) for at in range(5)]
        seen.put(*[on(f"n{number}-{at}", pod) for at, pod in enumerate(pods)])
        for pod in pods:
            seen.take("pods", Gone(pod))
        seen.picture.looked_at()
        seen.picture.gone_pods.clear()
        sizes.append(sizes_of(seen.picture))
    assert sizes[0] == sizes[1] == sizes[2]


def sizes_of(picture: Picture) -> dict[str, int]:
    kept = vars(picture).items()
    return {name: len(value) for name, value in kept if isinstance(value, dict | list | set) and name != "_kinds"}


# ------------------------------------------------------------------------------------------------- what they refer to


def test_a_pod_group_that_comes_changes_or_goes_regroups_its_pods() -> None:
    seen = Seen(ours(annotations={"pod-group-name": "g"}))
    assert "does not exist" in waits(seen)
    group = a_pod_group("{kind: PodGroup, metadata: {name: g}, spec: {minMember: 1}}")
    assert seen.take("podgroups", Changed(group)) == ["default/podgroup/g"]
    assert waits(seen) == ""
    assert seen.take("podgroups", Changed(msgspec.structs.replace(group, status={"phase": "Running"}))) == []
    assert seen.take("podgroups", Gone(group)) == ["default/podgroup/g"]
    assert "does not exist" in waits(seen)


def waits(seen: Seen) -> str:
    grouping = seen.picture.pods["default/p"].grouping
    assert grouping is not None
    return grouping.waits


def test_names_of_levels_are_explained_by_a_topology_that_is_told_of_later() -> None:
    annotations = {
        "kai.scheduler/topology": "place",
        "kai.scheduler/topology-required-placement": "rack",
    }
    seen = Seen(ours(annotations=annotations))
    text = "{metadata: {name: place}, spec: {levels: [{nodeLabel: example.com/rack, alias: rack}]}}"
    marked = seen.take("topologies", Changed(topologies_in(text)["place"]))
    assert marked == ["default/pod/p"]
    grouping = seen.picture.pods["default/p"].grouping
    assert grouping is not None
    assert grouping.group.topology is not None
    assert grouping.group.topology.required == "example.com/rack"


def test_a_budget_marks_running_pods_of_its_namespace_only() -> None:
    seen = Seen(on("n1", ours("a")), ours("b"))
    budget = msgspec.convert(
        {
            "metadata": {"name": "b", "namespace": "default"},
            "spec": {"selector": {}},
            "status": {"disruptionsAllowed": 0},
        },
        objects.DisruptionBudget,
    )
    assert seen.take("budgets", Changed(budget)) == ["default/pod/a"]
    assert not seen.picture.surroundings.allows_disruption([seen.picture.pods["default/a"]], together=True)
    assert seen.take("budgets", Changed(budget)) == []
    assert seen.take("budgets", Gone(budget)) == ["default/pod/a"]
    assert seen.picture.surroundings.allows_disruption([seen.picture.pods["default/a"]], together=True)


def test_a_node_that_only_lives_is_no_news() -> None:
    node = msgspec.convert({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "1"}}}, objects.Node)
    seen = Seen()
    seen.take("nodes", Changed(node))
    assert list(seen.picture.nodes_changed) == ["n"]
    seen.take("nodes", Changed(node))
    assert list(seen.picture.nodes_changed) == []
    seen.take("nodes", Gone(node))
    assert list(seen.picture.nodes_changed) == ["n"]


def test_it_is_whole_once_every_kind_was_listed() -> None:
    seen = Seen()
    assert seen.picture.is_whole(["pods"])
    assert not seen.picture.is_whole(["pods", "nodes"])
    seen.take("nodes", Listed(()))
    assert seen.picture.is_whole(["pods", "nodes"])


def test_versions_of_owners_that_nobody_knows_are_followed_only_up_to_a_bound() -> None:
    seen = Seen()
    for at in range(20):
        job = an_owner(f"{{apiVersion: batch/v{at + 1}, kind: Job, metadata: {{name: train}}}}")
        seen.put(ours(f"p{at}", job))
    deployment = an_owner("{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: web}}")
    seen.put(ours("q", deployment))
    assert len(seen.picture.membership.wanted_kinds) == MAX_VERSIONS + 1
    assert ("apps/v1", "ReplicaSet") in seen.picture.membership.wanted_kinds
    assert "default/job/train" in seen.picture.groups, "the others are grouped without waiting for their owner"


def test_a_pod_whose_owner_is_gone_stays_in_its_group_whatever_else_changes() -> None:
    pod = on("n1", ours("p", JOB))
    seen = Seen(pod)
    seen.owners(JOBS, JOB)
    seen.picture.take_owner(JOBS, Gone(JOB), seen.now_ms)
    seen.put(changed(pod, labels={"new": "label"}))
    assert list(seen.picture.groups) == ["default/job/train"]
    seen.take("priorityclasses", Changed(objects.PriorityClass(objects.Metadata(name="c"), 7)))
    assert list(seen.picture.groups) == ["default/job/train"]
    assert seen.picture.membership.next_doubt_ms is None


# ------------------------------------------------------------------------------------------------------ LeaderWorkerSet


LWS = """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: llama, labels: {kai.scheduler/queue: %s}}
spec: {replicas: 1, startupPolicy: LeaderCreated, leaderWorkerTemplate: {size: 2}}
"""
SETS = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
STATEFUL_SETS = ("apps/v1", "StatefulSet")


def a_worker() -> tuple[Pod, Owner]:
    """The owners of a worker end at its leader, which is a pod; its set is named by its labels alone."""
    leader = Owner(ours("llama-0").metadata, "Pod", "v1")
    workers = an_owner("{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: llama-0}, spec: {replicas: 1}}")
    prefix = "leaderworkerset.sigs.k8s.io"
    labels = {f"{prefix}/name": "llama", f"{prefix}/group-index": "0", f"{prefix}/worker-index": "1"}
    owner = owned_by(leader, workers)
    return ours("llama-0-1", owner, labels=labels, annotations={f"{prefix}/size": "2"}), owner


def queue_of(seen: Seen) -> str | None:
    grouping = seen.picture.pods["default/llama-0-1"].grouping
    return grouping.queue if grouping else None


def test_a_worker_waits_for_its_leader_worker_set_and_follows_it() -> None:
    pod, workers = a_worker()
    seen = Seen(pod)
    seen.owners(STATEFUL_SETS, workers)
    assert SETS in seen.picture.membership.wanted_kinds
    assert queue_of(seen) is None, "its set may still be told of"
    seen.owners(SETS, an_owner(LWS % "serving"))
    assert seen.groups == {"default/leaderworkerset/llama-0": ["default/llama-0-1"]}
    assert queue_of(seen) == "serving"
    assert seen.owner(an_owner(LWS % "other")) == ["default/leaderworkerset/llama-0"]
    assert queue_of(seen) == "other"


def test_a_worker_whose_leader_worker_set_is_never_told_of_is_grouped_by_its_labels() -> None:
    pod, workers = a_worker()
    seen = Seen(pod)
    seen.owners(STATEFUL_SETS, workers)
    seen.owners(SETS)
    seen.now_ms += DOUBT_MS
    seen.picture.membership.now_ms = seen.now_ms
    seen.picture.membership.look_again()
    assert seen.groups == {"default/leaderworkerset/llama-0": ["default/llama-0-1"]}
    seen.owner(an_owner(LWS % "late"))
    assert queue_of(seen) == "late"
