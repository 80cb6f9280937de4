"""Labels and annotations of a workload: priority, preemptibility, order, place and patience."""

from __future__ import annotations

import pytest

from gpuyard.model.jobs import TaskGroup, TopologyRule
from gpuyard.worlds.kubernetes.grouping import widest
from gpuyard.worlds.kubernetes.settings import Settings
from tests.worlds.kubernetes.manifests import a_pod, a_pod_group, an_owner, grouped, topologies_in

JOB = "{apiVersion: batch/v1, kind: Job, metadata: {name: j, labels: {%s}, annotations: {%s}}, spec: {}}"

OWN_CLASS = "kind: PriorityClass\nmetadata: {name: urgent}\nvalue: 90"


@pytest.mark.parametrize(
    ("owner", "pod", "spec", "expected"),
    [
        ("priorityClassName: build", {"priorityClassName": "train"}, "inference", ("build", 100)),
        ("", {"priorityClassName": "build-preemptible"}, "inference", ("build-preemptible", 75)),
        ("", {}, "inference", ("inference", 125)),
        ("", {}, "urgent", ("urgent", 90)),
        ("priorityClassName: gone", {}, "urgent", ("urgent", 90)),
        ("priorityClassName: gone", {}, "", ("train", 50)),
        ("", {}, "", ("train", 50)),
    ],
)
def test_the_first_class_named_that_exists(
    owner: str, pod: dict[str, str], spec: str, expected: tuple[str, int]
) -> None:
    job = an_owner(JOB % (owner, ""))
    grouping = grouped(a_pod("p", job, labels=pod, priorityClassName=spec), job, classes=OWN_CLASS)
    assert (grouping.priority_class, grouping.priority) == expected


@pytest.mark.parametrize(
    ("owner", "pod", "priority_class", "expected", "notes"),
    [
        ("", {}, "train", True, 0),
        ("", {}, "build", False, 0),
        ("kai.scheduler/preemptibility: preemptible", {}, "build", True, 0),
        ("kai.scheduler/preemptibility: non-preemptible", {}, "train", False, 0),
        (
            "kai.scheduler/preemptibility: preemptible",
            {"kai.scheduler/preemptibility": "non-preemptible"},
            "build",
            True,
            0,
        ),
        ("", {"kai.scheduler/preemptibility": "non-preemptible"}, "train", False, 0),
        (
            "kai.scheduler/preemptibility: semi-preemptible",
            {"kai.scheduler/preemptibility": "non-preemptible"},
            "train",
            False,
            1,
        ),
        ("kai.scheduler/preemptibility: sometimes", {}, "train", True, 1),
    ],
)
def test_preemptible_by_label_else_by_priority(
    owner: str, pod: dict[str, str], priority_class: str, expected: bool, notes: int
) -> None:
    job = an_owner(JOB % (owner, ""))
    grouping = grouped(a_pod("p", job, labels=pod, priorityClassName=priority_class), job)
    assert grouping.preemptible is expected
    assert [note.reason for note in grouping.notes] == ["BadPreemptibility"] * notes


def test_the_order_of_tasks_is_by_label_and_then_the_one_others_look_for() -> None:
    def priority(**labels: str) -> int:
        return grouped(a_pod(labels={key.replace("__", "/"): value for key, value in labels.items()})).task_priority

    master = {"training.kubeflow.org/job-role": "master"}
    plain, first = priority(), grouped(a_pod(labels=master)).task_priority
    higher = grouped(a_pod(labels={"kai.scheduler/task-priority": "1"})).task_priority
    lower = grouped(a_pod(labels=master | {"kai.scheduler/task-priority": "-1"})).task_priority
    assert lower < plain < first < higher
    assert grouped(a_pod(labels={"kai.scheduler/task-priority": "first"})).task_priority == plain


def test_patience_is_written_on_the_owner_or_the_pod() -> None:
    annotations = 'kai.scheduler/preemption-delay: 5m, kai.scheduler/staleness-grace-period: "-1s"'
    job = an_owner(JOB % ("", annotations))
    pod = a_pod("p", job, annotations={"kai.scheduler/preemption-delay": "1h"})
    grouping = grouped(pod, job)
    assert (grouping.preemption_delay_ms, grouping.staleness_grace_ms) == (300_000, -1000)


def test_a_duration_that_is_none_gives_way_to_the_next() -> None:
    job = an_owner(JOB % ("", "kai.scheduler/preemption-delay: soon"))
    grouping = grouped(a_pod("p", job, annotations={"kai.scheduler/preemption-delay": "-5m"}), job)
    assert (grouping.preemption_delay_ms, grouping.staleness_grace_ms) == (0, None)
    assert [note.reason for note in grouping.notes] == ["BadDuration", "BadDuration"]


RACKS = "{kind: Topology, metadata: {name: racks}, spec: {levels: [{nodeLabel: example.com/rack, alias: rack}]}}"


def test_a_place_is_asked_for_by_annotations_of_the_workload() -> None:
    job = an_owner(JOB % ("", "kai.scheduler/topology: racks, kai.scheduler/topology-required-placement: rack"))
    grouping = grouped(a_pod("p", job), job, topologies=topologies_in(RACKS))
    assert grouping.group == TaskGroup(topology=TopologyRule("racks", "example.com/rack"))


def test_a_level_without_its_topology_is_not_applied() -> None:
    grouping = grouped(a_pod(annotations={"kai.scheduler/topology-preferred-placement": "rack"}))
    assert grouping.group.topology is None
    assert [note.reason for note in grouping.notes] == ["TopologyUnnamed"]


def test_the_label_of_the_queue_may_be_set() -> None:
    pod = a_pod(labels={"team": "x", "kai.scheduler/queue": "y"})
    grouping = grouped(pod, settings=Settings(queue_label="team"))
    assert (grouping.queue, grouping.queue_from) == ("x", "label team of the pod")


def test_the_widest_of_the_trees_of_a_job_counts() -> None:
    small, large = TaskGroup(min_tasks=1), TaskGroup(min_tasks=3)
    assert widest([small, large, small]) is large


@pytest.mark.parametrize("where", ["owner", "pod"])
def test_what_is_not_to_be_grouped_waits_until_it_names_its_group(where: str) -> None:
    skip = {"kai.scheduler/skip-podgrouper": "true"}
    job = an_owner(JOB % ("", 'kai.scheduler/skip-podgrouper: "true"' if where == "owner" else ""))
    annotations = skip if where == "pod" else {}
    assert "the pod names none" in grouped(a_pod("p", job, annotations=annotations), job).waits
    group = a_pod_group("{kind: PodGroup, metadata: {name: g}, spec: {minMember: 2, queue: q}}")
    grouping = grouped(a_pod("p", job, annotations=annotations | {"pod-group-name": "g"}), job, podgroup=group)
    assert (grouping.job_id, grouping.waits) == ("default/podgroup/g", "")
    assert grouping.recreated, "its owner still makes it anew"


@pytest.mark.parametrize(
    ("version", "kind", "word"),
    [
        ("batch/v1", "Job", "job"),
        ("batch.volcano.sh/v1alpha1", "Job", "job.batch.volcano.sh"),
        ("scheduling.volcano.sh/v1beta1", "PodGroup", "podgroup.scheduling.volcano.sh"),
        ("example.com/v1", "Widget", "widget"),
        ("apps/v1", "StatefulSet", "statefulset"),
    ],
)
def test_owners_of_one_name_whose_kinds_only_sound_alike_are_two_jobs(version: str, kind: str, word: str) -> None:
    owner = an_owner(f"{{apiVersion: {version}, kind: {kind}, metadata: {{name: n, namespace: default, uid: u}}}}")
    assert grouped(a_pod("p", owner), owner).job_id == f"default/{word}/n"
