"""Why a pod runs or waits: what the core says, what the world holds against it, and what is meant by a word."""

from __future__ import annotations

import pytest

from gpuyard.errors import InputError, NotFoundError
from gpuyard.kube.ask import Target
from gpuyard.kube.published import ANNOTATION, published_text
from gpuyard.kube.why import Hold, PodAnswer, find, why
from gpuyard.model.explanation import Standing
from gpuyard.model.reasons import Token
from gpuyard.policies.policy import DEFAULT
from gpuyard.worlds.kubernetes.settings import Settings
from tests.on_kube.shelves import Object, a_job, a_lease, a_namespace, a_node, a_pod, a_queue, a_team, in_yaml, read

TOLD = {ANNOTATION: published_text(Settings(), DEFAULT)}


def answer(word: str, *objects: Object) -> PodAnswer:
    return why(read(*a_team(limit=16), a_node(), a_lease(annotations=TOLD), *objects), word)


def the_hold(found: PodAnswer) -> Hold:
    (hold,) = found.holds
    return hold


# ------------------------------------------------------------------------------------------------- what the core says


def test_a_pod_that_runs_says_where_and_ends_with_zero() -> None:
    found = answer("p", a_pod("p", 2, node="node-1"))
    assert (found.exit_code, found.standing, found.job) == (0, "runs", "default/pod/p")
    assert found.explanation is not None
    assert [stay.node for stay in found.explanation.stays] == ["node-1"]
    assert (found.pods[0].phase, found.pods[0].node) == ("Running", "node-1")
    assert not found.holds
    assert not found.notes


def test_a_pod_that_waits_says_why_and_what_would_help() -> None:
    found = answer("late", a_pod("first", 6, node="node-1"), a_pod("late", 4))
    assert found.exit_code == 10
    assert found.explanation is not None
    assert found.explanation.blockers[0].token is Token.NOT_ENOUGH
    assert found.explanation.ways_out


def test_what_can_never_start_ends_with_eleven() -> None:
    found = answer("huge", a_pod("huge", 9))
    assert found.exit_code == 11
    assert found.explanation is not None
    assert found.explanation.standing is Standing.NEVER


def test_a_gang_is_one_answer_whichever_of_its_pods_is_asked_about() -> None:
    gang = a_job("train", 2)
    group = in_yaml("{kind: PodGroup, metadata: {name: g}, spec: {minMember: 2, queue: team}}")
    pods = [a_pod(f"train-{n}", 8, owner=gang, annotations={"pod-group-name": "g"}) for n in range(2)]
    found = answer("train-1", *group, gang, *pods)
    assert (found.job, found.pod) == ("default/podgroup/g", "default/train-1")
    assert found.facts[1] == "2 pods start together or not at all; 2 pods are there"
    assert [pod.name for pod in found.pods] == ["train-0", "train-1"]
    assert found.exit_code == 11


def test_a_pod_that_lacks_a_place_waits_although_others_of_its_job_run() -> None:
    job = a_job("workers", 2)
    pods = [a_pod("workers-0", 8, owner=job, node="node-1"), a_pod("workers-1", 8, owner=job)]
    assert answer("workers-1", job, *pods).exit_code == 10
    assert answer("workers-0", job, *pods).exit_code == 0
    assert answer("job/workers", job, *pods).exit_code == 0


def test_a_job_that_is_over_is_over() -> None:
    found = answer("done", a_pod("done", node="node-1", phase="Succeeded"))
    assert found.exit_code == 0
    assert found.standing.startswith("is over")


# ------------------------------------------------------------------------------------------------ what the world holds


@pytest.mark.parametrize(
    ("pod", "word", "text", "code"),
    [
        (a_pod("p", schedulingGates=[{"name": "a.b/hold"}]), "Gated", "has scheduling gates: a.b/hold", 10),
        (a_pod("p", annotations={"gpu-fraction": "0.5"}), "GpuSharing", "asks for a part of a GPU", 11),
        (a_pod("p", resourceClaims=[{"name": "gpu"}]), "ResourceClaims", "resource claims (gpu)", 11),
        (a_pod("p", annotations={"pod-group-name": "g"}), "NotReady", 'PodGroup "g"', 10),
        (
            a_pod("p", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]),
            "VolumeNotReady",
            'volume claim "data", which does not exist',
            10,
        ),
        (a_pod("p", queue="closed"), "QueueClosed", 'queue "closed" is not open to namespace "default"', 11),
    ],
)
def test_whoever_is_not_offered_to_the_scheduler_says_why(pod: Object, word: str, text: str, code: int) -> None:
    closed = a_queue("closed", parent="all", annotations={"gpuyard.io/namespaces": "others"})
    found = answer("p", closed, pod)
    hold = the_hold(found)
    assert (hold.word, hold.pods, found.exit_code) == (word, ("p",), code)
    assert text in hold.text
    assert hold.fix
    assert hold.never == (code == 11)
    assert found.standing.startswith("is not offered to the scheduler")


def test_the_same_of_several_pods_is_said_once() -> None:
    job = a_job("many", 3)
    gates = [{"name": "a.b/hold"}]
    found = answer("job/many", job, *(a_pod(f"many-{n}", owner=job, schedulingGates=gates) for n in range(3)))
    assert the_hold(found).pods == ("many-0", "many-1", "many-2")
    assert found.standing.endswith("3 of 3 pods are held back")


def test_a_pod_of_another_scheduler_is_not_called_ours() -> None:
    found = answer("p", a_pod("p", scheduler="default-scheduler"))
    assert the_hold(found).text == (
        'its schedulerName is "default-scheduler", and this scheduler places pods that say gpuyard'
    )
    assert (found.exit_code, found.explanation) == (10, None)
    assert found.notes[0].startswith("it has the label kai.scheduler/queue")
    runs = answer("p", a_pod("p", scheduler="default-scheduler", node="node-1"))
    assert (runs.exit_code, runs.standing) == (0, "runs on node-1, where default-scheduler put it")
    over = answer("p", a_pod("p", scheduler="default-scheduler", phase="Failed"))
    assert (over.exit_code, over.standing) == (0, "is over (Failed)")


def test_what_only_the_scheduler_knows_comes_from_the_condition_it_wrote() -> None:
    pod = a_pod("p")
    at = "2026-01-01T00:00:00Z"
    said = {"type": "PodScheduled", "status": "False", "reason": "BackOff", "message": "tried again", "x": 1}
    pod["status"]["conditions"] = [{**said, "lastTransitionTime": at}]
    found = answer("p", pod)
    assert found.said is not None
    assert (found.said.word, found.said.text, found.said.at) == ("BackOff", "tried again", at)


# -------------------------------------------------------------------------------------------------- how queues are read


def test_who_names_no_queue_waits_in_the_default_one_and_is_told_how_it_was_found() -> None:
    found = answer("p", a_pod("p", queue=""))
    assert found.facts[0] == 'queue "default-queue" (no label kai.scheduler/queue: the default)'
    assert found.explanation is not None
    assert found.explanation.blockers[0].token is Token.QUEUE_MISSING
    assert found.exit_code == 11


def test_a_slip_of_the_pen_a_queue_above_others_and_one_without_a_parent_are_told_apart() -> None:
    orphan = a_queue("orphan", parent="nowhere")
    assert answer("p", a_pod("p", queue="taem")).notes == ('there is no queue "taem"; did you mean "team"?',)
    assert answer("p", a_pod("p", queue="all")).notes == (
        'queue "all" has queues below it and holds no pods itself; name one of those: team',
    )
    assert 'its parent "nowhere" does not exist' in answer("p", orphan, a_pod("p", queue="orphan")).notes[0]


def test_an_answer_says_when_nobody_leads() -> None:
    idle = a_lease(age_ms=60_000, annotations=TOLD)
    found = why(read(*a_team(), idle, a_pod("p")), "p")
    assert found.notes == ("no scheduler leads this cluster now: this is what one would do; see gpuyard doctor",)


# ------------------------------------------------------------------------------------------------------- what is meant


JOB = a_job("train", 1)
MEANT = [a_namespace("vision"), JOB, a_pod("train-x", owner=JOB), a_pod("lone"), a_pod("lone", namespace="vision")]


@pytest.mark.parametrize(
    ("word", "job"),
    [
        ("lone", "default/pod/lone"),
        ("pod/lone", "default/pod/lone"),
        ("vision/lone", "vision/pod/lone"),
        ("vision/pod/lone", "vision/pod/lone"),
        ("train", "default/job/train"),
        ("job/train", "default/job/train"),
        ("jobs.batch/train", "default/job/train"),
        ("default/job/train", "default/job/train"),
        ("train-x", "default/job/train"),
        ("default/train", "default/job/train"),
    ],
)
def test_a_word_finds_the_pod_or_the_job(word: str, job: str) -> None:
    assert find(read(*a_team(), *MEANT), word)[1] == job


def test_words_that_find_nothing_say_what_is_near() -> None:
    cluster = read(*a_team(), *MEANT)
    with pytest.raises(NotFoundError, match='there is no pod or job "lnoe" in namespace default; did you mean "lone"'):
        find(cluster, "lnoe")
    elsewhere = read(*a_team(), *MEANT, target=Target(namespace="empty"))
    with pytest.raises(NotFoundError) as caught:
        find(elsewhere, "train-x")
    assert caught.value.fix == "elsewhere there is: default/train-x"
    with pytest.raises(NotFoundError):
        find(cluster, "a/b/c/d")


def test_a_name_of_two_jobs_is_no_answer() -> None:
    group = in_yaml("{kind: PodGroup, metadata: {name: train}, spec: {minMember: 1, queue: team}}")
    named = a_pod("other", annotations={"pod-group-name": "train"})
    with pytest.raises(InputError, match='"train" may be default/job/train or default/podgroup/train'):
        find(read(*a_team(), *MEANT, *group, named), "train")
