"""The doctor of a Kubernetes cluster: every line of it, well and not well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuyard import __version__
from gpuyard.kube import leading
from gpuyard.kube.ask import Target
from gpuyard.kube.doctor import examine, findings
from gpuyard.kube.published import ANNOTATION, published_text
from gpuyard.model.findings import FAIL, OK, WARN, Finding
from gpuyard.policies.policy import DEFAULT
from gpuyard.worlds.kubernetes.settings import Settings
from tests.kubeapi.scripted import Answer, Asked
from tests.on_kube.shelves import (
    COLLECTIONS,
    LEASES,
    MAPS,
    PODS,
    QUEUES,
    Object,
    Shelf,
    a_job,
    a_kubeconfig,
    a_lease,
    a_namespace,
    a_node,
    a_pod,
    a_queue,
    a_team,
    in_yaml,
    seen,
    stored,
)
from tests.on_kube.test_views import published
from tests.ports import free_ports

CLASSES = [
    {"kind": "PriorityClass", "metadata": {"name": name}, "value": value}
    for name, value in (("train", 50), ("build-preemptible", 75), ("build", 100), ("inference", 125))
]
UNLED: list[Object] = [*a_team(), a_queue("default-queue", 0, parent="all"), *CLASSES]


def led() -> Object:
    """A lease that was renewed just now."""
    return a_lease("them", annotations={ANNOTATION: published_text(Settings(), DEFAULT)})


@pytest.fixture(autouse=True)
def short_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "WATCH_MS", 30)
    monkeypatch.setattr(leading, "POLL_S", 0.01)


def sound(*objects: Object) -> list[Object]:
    """A cluster in order, and these."""
    return [*UNLED, led(), *objects]


def examined(*objects: Object, pod: str = "", namespace: str = "", shelf: Shelf | None = None) -> list[Finding]:
    return list(findings(seen(*objects, target=Target(namespace=namespace), shelf=shelf), pod))


def about(found: list[Finding], *what: str) -> list[tuple[str, str]]:
    return [(finding.verdict, finding.what) for finding in found if finding.about in what]


def verdicts(found: list[Finding], subject: str) -> dict[str, str]:
    """Of one job, the worst of each check."""
    order = {OK: 0, WARN: 1, FAIL: 2}
    worst: dict[str, str] = {}
    for finding in found:
        if finding.subject == subject:
            known = worst.get(finding.about, OK)
            worst[finding.about] = max(known, finding.verdict, key=lambda verdict: order[verdict])
    return worst


# --------------------------------------------------------------------------------------------------------- the cluster


def test_a_cluster_in_order_has_nothing_to_complain_of() -> None:
    found = examined(*sound(), a_node(), published("node-1", {"p": [0]}), a_pod("p", node="node-1"))
    assert [finding for finding in found if finding.verdict != OK] == []
    assert [finding.about for finding in found] == [
        *("server", "rights", "kinds", "scheduler", "nodes", "gpus", "node part", "queues", "priorities", "pods")
    ]
    said = "\n".join(finding.what for finding in found)
    assert "answers: Kubernetes v1.34.2, and takes you for ann" in said
    assert "them has led for a moment; it takes pods of gpuyard" in said
    assert "8, of which 7 are free; at most 7 on one node" in said


def test_whoever_does_not_answer_is_the_only_finding(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(a_kubeconfig(f"http://127.0.0.1:{free_ports(1)[0]}")), encoding="utf-8")
    (finding,) = examine(Target(kubeconfig=path))
    assert (finding.verdict, finding.about) == (FAIL, "server")
    (missing,) = examine(Target(kubeconfig=tmp_path / "no-such-file"))
    assert (missing.verdict, missing.about) == (FAIL, "settings")


def test_rights_are_named_and_what_needs_them_is_not_looked_at() -> None:
    found = examined(shelf=Shelf(*sound(), denied=(PODS, QUEUES)))
    assert about(found, "rights") == [
        (FAIL, "you may not list pods"),
        (FAIL, "you may not list queues.scheduling.run.ai"),
    ]
    assert "--resource=pods,queues.scheduling.run.ai" in found[2].fix
    assert [finding.about for finding in found] == ["server", "rights", "rights", "kinds"]


def test_rights_on_our_own_objects_are_only_missed() -> None:
    found = examined(shelf=Shelf(*sound(), a_node(), denied=(MAPS, LEASES)))
    assert {verdict for verdict, _ in about(found, "rights")} == {WARN}
    assert about(found, "scheduler")[0] == (
        WARN,
        "whether one leads is not known: you may not read its lease gpuyard-system/gpuyard-scheduler",
    )
    assert about(found, "node part") == []


def test_kinds_that_are_not_there_are_told_with_the_command() -> None:
    found = examined(shelf=Shelf(absent=(QUEUES,)))
    assert (FAIL, "the cluster has no kind Queue") in about(found, "kinds")
    assert found[-1].fix.endswith("gpuyard kube install")


# ------------------------------------------------------------------------------------------------------- the scheduler


@pytest.mark.parametrize(
    ("lease", "told"),
    [
        ([], "none has ever led: there is no lease gpuyard-system/gpuyard-scheduler"),
        ([a_lease("")], "none leads: the lease gpuyard-system/gpuyard-scheduler was given back"),
        ([a_lease("me", age_ms=90_000)], "none leads: me renewed the lease"),
    ],
)
def test_a_cluster_that_nobody_leads(lease: list[Object], told: str) -> None:
    verdict, what = about(examined(*UNLED, *lease), "scheduler")[0]
    assert verdict == FAIL
    assert what.startswith(told)


def test_a_leader_whose_clock_is_wrong_still_leads() -> None:
    class Renewing(Shelf):
        def next(self, asked: Asked) -> Answer:
            for lease in self.objects[LEASES]:
                lease["spec"]["leaseTransitions"] = len(self.asked)
            return super().next(asked)

    skewed = a_lease("me", age_ms=3_600_000, annotations={ANNOTATION: published_text(Settings(), DEFAULT)})
    assert about(examined(shelf=Renewing(*UNLED, skewed)), "scheduler")[0][0] == OK


def test_a_scheduler_of_another_version_is_told() -> None:
    other = published_text(Settings(), DEFAULT).replace(f'"version":"{__version__}"', '"version":"9.9"')
    found = examined(*UNLED, a_lease(annotations={ANNOTATION: other}))
    assert about(found, "scheduler")[1][1].startswith(f"it is version 9.9 and this is {__version__}")


def test_kais_own_scheduler_beside_ours_is_a_failure() -> None:
    ours = published_text(Settings(("gpuyard", "kai-scheduler")), DEFAULT)
    shelf = Shelf(*UNLED, a_lease(annotations={ANNOTATION: ours}))
    kai = stored({**a_lease("kai-pod"), "metadata": {"name": "kai-scheduler"}})
    shelf.objects["/apis/coordination.k8s.io/v1/namespaces/kai-scheduler/leases"] = [kai]
    assert about(examined(shelf=shelf), "scheduler")[-1] == (
        FAIL,
        "KAI's own scheduler leads, too (kai-pod), and both take pods of kai-scheduler",
    )


# -------------------------------------------------------------------------------------------------------- nodes, queues


def test_nodes_that_are_not_ready_or_cordoned() -> None:
    found = examined(*sound(), a_node("a", ready=False), a_node("b", unschedulable=True), a_node("c"))
    assert about(found, "nodes") == [
        (WARN, "1 of 3 are not ready and take no pod: a"),
        (WARN, "1 are cordoned and take no pod that does not tolerate it: b"),
    ]
    assert about(examined(*sound()), "nodes") == [(FAIL, "the cluster has no node")]


def test_a_node_with_more_gpus_than_there_is_room_for() -> None:
    (found,) = [one for one in examined(*sound(), a_node("wide", gpus=80)) if "wide offers" in one.what]
    assert (found.verdict, found.about) == (WARN, "gpus")
    assert found.what == "wide offers 80 GPUs, of which 18 stay unused: no more than 62 of a node are scheduled"
    assert "make fewer" in found.fix


def test_gpus_that_nobody_offers() -> None:
    dead = a_node("dead")
    dead["status"]["allocatable"] = {**dead["status"]["allocatable"], "nvidia.com/gpu": "0"}
    assert about(examined(*sound(), a_node(gpus=0)), "gpus") == [
        (FAIL, "no node offers nvidia.com/gpu or amd.com/gpu"),
    ]
    assert about(examined(*sound(), a_node(), dead), "gpus")[0] == (
        WARN,
        "1 with GPUs offer none of them: dead; their device plugin does not run",
    )


def test_nodes_that_do_not_tell_and_gpus_that_are_broken() -> None:
    found = examined(*sound(), a_node("a", gpus=7), a_node("b"), published("a", {}, broken=(2,)))
    assert about(found, "gpus")[-1] == (WARN, "1 are broken and given to nobody: a GPU 2")
    assert about(found, "node part") == [
        (WARN, "which pod has which GPU, and which are broken, is not told by 1 of 2 nodes: b")
    ]


def test_queues_that_are_not_as_somebody_meant_them() -> None:
    forgotten = {"kind": "Queue", "metadata": {"name": "forgotten"}, "spec": {"parentQueue": "all", "resources": {}}}
    found = examined(
        a_namespace(), a_queue("all", quota=16), forgotten, a_queue("orphan", parent="nowhere"), led(), a_node()
    )
    told = about(found, "queues")
    assert (FAIL, 'its parent "nowhere" does not exist' in told[0][1]) == (told[0][0], True)
    assert any(verdict == WARN and "gpu.limit, cpu.limit, memory.limit: not set" in what for verdict, what in told)
    assert (WARN, "they are owed 16 GPUs in all, and the cluster has 8") in told
    assert (WARN, 'there is no "default-queue": pods that name no queue cannot start') in told
    assert about(examined(led(), a_namespace()), "queues")[0][0] == FAIL
    assert about(found, "priorities")[0][0] == WARN


def test_a_budget_that_keeps_our_pods_where_they_are() -> None:
    budget = in_yaml(
        "{kind: PodDisruptionBudget, metadata: {name: stay}, spec: {selector: {matchLabels: {app: a}}}, "
        "status: {disruptionsAllowed: 0}}"
    )
    pod = a_pod("p", node="node-1", labels={"app": "a"})
    assert about(examined(*sound(), a_node(), pod, *budget), "budgets") == [
        (WARN, "PodDisruptionBudget default/stay allows no eviction now: 1 of our pods give way to nobody")
    ]


# ---------------------------------------------------------------------------------------------- pods: the six questions


WELL = {"namespace": OK, "queue": OK, "scheduler": OK, "quota": OK, "nodes": OK, "turn": OK}


def test_a_pod_that_is_about_to_start_is_well() -> None:
    found = examined(*sound(), a_node(), a_pod("p", 2))
    assert verdicts(found, "default/pod/p") == WELL
    assert ("ok", "the next plan gives it a place") in about(found, "turn")


def test_question_1_the_namespace() -> None:
    closed = a_queue("closed", parent="all", annotations={"gpuyard.io/namespaces": "others"})
    found = examined(*sound(), a_node(), closed, a_pod("p", queue="closed"))
    assert verdicts(found, "default/pod/p")["namespace"] == FAIL
    vision = sound(a_namespace("vision"), a_queue("vision", parent="all"), a_node(), a_pod("p", namespace="vision"))
    told = 'there is a queue "vision", as the namespace is called, and it is in queue "team"'
    assert (WARN, told) in about(examined(*vision, namespace="vision"), "namespace")
    missing = examined(*sound(), namespace="nowhere")
    assert about(missing, "namespace") == [(FAIL, 'there is no namespace "nowhere"')]


@pytest.mark.parametrize(
    ("queue", "verdict", "told"),
    [
        ("taem", FAIL, 'there is no queue "taem" (label kai.scheduler/queue of the pod); did you mean "team"?'),
        ("all", FAIL, '"all" (label kai.scheduler/queue of the pod) has queues below it and holds no pods itself'),
        ("orphan", FAIL, "takes no part"),
        ("", WARN, "it names no queue"),
        ("team", OK, '"team" (label kai.scheduler/queue of the pod), below all'),
    ],
)
def test_question_2_the_queue(queue: str, verdict: str, told: str) -> None:
    found = examined(*sound(), a_node(), a_queue("orphan", parent="nowhere"), a_pod("p", queue=queue))
    assert verdicts(found, "default/pod/p")["queue"] == verdict
    assert any(told in what for _, what in about(found, "queue"))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"annotations": {"runai/queue": "team"}}, "runai/queue is an annotation of it, and is read as a label only"),
        ({"labels": {"runai/queu": "team"}}, 'its label "runai/queu" is not one that names a queue'),
        ({"labels": {"queue": "team"}}, 'its label "queue" is not one that names a queue'),
        ({"labels": {"kai.scheduler/subgroup-name": "x", "app": "y"}}, ""),
    ],
)
def test_question_2_what_looks_as_if_it_was_to_name_a_queue(given: dict[str, dict[str, str]], told: str) -> None:
    found = examined(*sound(), a_node(), a_pod("p", queue="", **given))  # type: ignore[arg-type]
    (_, *hints) = [what for verdict, what in about(found, "queue") if verdict == WARN]
    assert hints == ([told] if told else [])
    named = examined(*sound(), a_node(), a_pod("p", **given))  # type: ignore[arg-type]
    assert not [what for verdict, what in about(named, "queue") if verdict == WARN]


@pytest.mark.parametrize(
    ("name", "what", "fix"),
    [
        ("kai-scheduler", 'its schedulerName is "kai-scheduler"', "--also kai-scheduler"),
        ("gpuyrd", 'did you mean "gpuyard"?', "set spec.schedulerName"),
        ("default-scheduler", "places pods that say gpuyard", "set spec.schedulerName"),
    ],
)
def test_question_3_says_what_to_do_about_each_name(name: str, what: str, fix: str) -> None:
    found = examined(*sound(), a_node(), a_pod("p", scheduler=name))
    (told,) = [finding for finding in found if finding.verdict == FAIL]
    assert what in told.what
    assert fix in told.fix


def test_question_3_the_scheduler() -> None:
    """Of pods that look as if they were meant for us; others are nobody's concern."""
    meant = a_pod("meant", scheduler="default-scheduler")
    gpus = a_pod("gpus", queue="", scheduler="default-scheduler")
    other = a_pod("other", 0, queue="", scheduler="default-scheduler")
    found = examined(*sound(), a_node(), meant, gpus, other)
    subjects = {finding.subject for finding in found if finding.verdict == FAIL}
    assert subjects == {"default/pod/meant", "default/pod/gpus"}


def test_question_4_the_quota() -> None:
    found = examined(*sound(), a_queue("small", 1, 2, "all"), a_node(), a_pod("p", 4, "small"))
    assert verdicts(found, "default/pod/p")["quota"] == FAIL
    told = next(finding for finding in found if finding.about == "quota")
    assert told.what.startswith('needs 4 GPUs, and queue "small" may take only 2 more under its limit')
    assert told.fix == "queue small holds 0 of 1 owed, limit 2, fair share 2, 4 more wanted"


def test_question_5_the_nodes() -> None:
    pods = [a_pod("runs", 6, node="node-1", preemptionPolicy="Never"), a_pod("p", 4)]
    found = examined(*sound(), a_node(), *pods)
    assert verdicts(found, "default/pod/p") == {**WELL, "nodes": FAIL}
    told = next(finding for finding in found if finding.about == "nodes" and finding.verdict == FAIL)
    assert told.fix == "free now: 2 GPUs, at most 2 on one node"
    alien = examined(*sound(), a_node(), a_pod("p", nodeSelector={"zone": "moon"}))
    assert verdicts(alien, "default/pod/p")["nodes"] == FAIL


def test_question_6_the_whole_gang() -> None:
    group = in_yaml("{kind: PodGroup, metadata: {name: g}, spec: {minMember: 3, queue: team}}")
    pods = [a_pod(f"w-{n}", 4, annotations={"pod-group-name": "g"}) for n in range(3)]
    crowded = examined(*sound(), a_node(), *group, *pods)
    assert verdicts(crowded, "default/podgroup/g")["gang"] == FAIL
    (told,) = [finding for finding in crowded if finding.verdict == FAIL]
    assert told.what.startswith(
        "3 pods start together, 12 GPUs at once; 3 are there; needs 12 GPUs together, the whole"
    )
    assert told.fix == "free now: 8 GPUs, at most 8 on one node"
    taken = examined(*sound(), a_node(), a_node("node-2"), a_pod("runs", 8, node="node-1"), *group, *pods)
    (told,) = [finding for finding in taken if finding.verdict == FAIL]
    assert told.what.startswith("3 pods start together, 12 GPUs at once; 3 are there; needs 12 GPUs, 8 can be had")
    incomplete = examined(*sound(), a_node(), *group, *pods[:2])
    assert about(incomplete, "gang") == [
        (FAIL, "its gang needs 3 tasks and has 2: submit the others, or lower its gang")
    ]
    roomy = examined(*sound(), a_node(), a_node("node-2"), *group, *pods)
    assert verdicts(roomy, "default/podgroup/g") == {**WELL, "gang": OK}


def test_what_holds_a_pod_back_and_a_class_that_does_not_exist() -> None:
    gated = a_pod("p", schedulingGates=[{"name": "a.b/c"}], labels={"priorityClassName": "urgent"})
    found = examined(*sound(), a_node(), gated)
    assert verdicts(found, "default/pod/p")["held back"] == FAIL
    assert verdicts(found, "default/pod/p")["priority"] == WARN
    tried = a_pod("q")
    tried["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "BackOff", "message": "could not be started"}
    ]
    assert (WARN, "q: could not be started") in about(examined(*sound(), a_node(), tried), "held back")


def test_one_pod_alone_is_looked_at_where_it_is_named() -> None:
    objects = [*sound(), a_node(), a_pod("runs", node="node-1"), a_pod("waits", 9), a_pod("also", 9)]
    subjects = {finding.subject for finding in examined(*objects, pod="waits")}
    assert subjects == {"", "default/pod/waits"}
    assert about(examined(*objects, pod="runs"), "pods") == [(OK, "it has its place: Running on node-1")]
    assert about(examined(*objects, pod="nosuch"), "pods")[0][0] == FAIL
    other = examined(*objects, a_pod("theirs", node="node-1", scheduler="x"), pod="theirs")
    assert about(other, "scheduler")[-1][0] == OK


def test_of_very_many_the_oldest_are_looked_at_and_the_rest_counted() -> None:
    job = a_job("x", 1)
    found = examined(*sound(), a_node(), job, *(a_pod(f"p-{n:02}", 9) for n in range(25)))
    assert len({finding.subject for finding in found}) == 21
    assert found[-1].what == "5 more jobs wait here"


def test_questions_about_pods_of_kinds_nobody_may_list_do_not_fail() -> None:
    assert about(examined(shelf=Shelf(*sound(), denied=(COLLECTIONS["Job"],))), "rights")[0][0] == OK
