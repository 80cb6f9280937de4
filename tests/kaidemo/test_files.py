"""The files of the demo: what the seed says of them, and that no node is named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuyard.errors import InputError
from gpuyard.kaidemo.files import INITIAL, NEW, QUEUES, Workload, check, own_folder, workloads

FOLDER = own_folder()


def documents(*names: str) -> list[dict[str, Any]]:
    return [body for name in names for body in yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8"))]


def pods(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The specs of all pods a workload makes."""
    if body["kind"] == "Job":
        return [body["spec"]["template"]["spec"]]
    replicas = body["spec"]["pytorchReplicaSpecs"].values()
    return [one["template"]["spec"] for one in replicas for _ in range(one["replicas"])]


def gpus(body: dict[str, Any]) -> int:
    return sum(pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for pod in pods(body))


def test_the_queues_are_those_of_the_seed() -> None:
    queues = {body["metadata"]["name"]: body["spec"] for body in documents(QUEUES) if body["kind"] == "Queue"}
    assert {name: (spec.get("parentQueue"), spec["priority"]) for name, spec in queues.items()} == {
        "department-1": (None, 200),
        "department-2": (None, 100),
        "project-a": ("department-1", 150),
        "project-b": ("department-1", 100),
        "project-c": ("department-2", 150),
        "project-d": ("department-2", 100),
    }
    assert {spec["resources"]["gpu"]["quota"] for name, spec in queues.items() if "project" in name} == {8}
    assert queues["project-a"]["displayName"] == "Project A"


def test_the_workloads_are_those_of_the_seed() -> None:
    found = {
        body["metadata"]["name"]: (body["kind"], gpus(body), body["metadata"]["labels"]["runai/queue"])
        for body in documents(INITIAL, NEW)
    }
    assert found == {
        "training-job-1": ("Job", 4, "project-a"),
        "training-job-2": ("Job", 2, "project-c"),
        "training-job-3": ("PyTorchJob", 6, "project-c"),
        "interactive-job": ("Job", 5, "project-d"),
        "training-job-b": ("Job", 3, "project-a"),
        "training-job-a": ("Job", 4, "project-c"),
    }


def test_all_pods_are_kais_and_their_namespace_is_called_as_their_queue() -> None:
    for body in documents(INITIAL, NEW):
        assert body["metadata"]["namespace"] == body["metadata"]["labels"]["runai/queue"]
        assert {pod["schedulerName"] for pod in pods(body)} == {"kai-scheduler"}


def test_no_node_is_named() -> None:
    text = "".join((FOLDER / name).read_text(encoding="utf-8") for name in (QUEUES, INITIAL, NEW))
    said = re.sub(r"#.*", "", text)
    assert not re.search(r"node-\d|nodeName|nodeSelector|[aA]ffinity|toleration|hostname", said)


def test_only_the_interactive_job_is_not_preemptible() -> None:
    classes = {body["metadata"]["name"]: pods(body)[0].get("priorityClassName") for body in documents(INITIAL, NEW)}
    assert {name for name, given in classes.items() if given == "build"} == {"interactive-job"}
    assert {given for name, given in classes.items() if name != "interactive-job"} == {None}


def test_gates_name_workloads_that_come_before_them() -> None:
    seen: set[str] = set()
    waited: dict[str, list[str]] = {}
    for body in documents(INITIAL):
        gates = [gate["name"].removeprefix("kai-demo/after-") for gate in pods(body)[0].get("schedulingGates", ())]
        assert set(gates) <= seen
        seen.add(body["metadata"]["name"])
        waited[body["metadata"]["name"]] = gates
    assert waited["training-job-3"] == ["training-job-1", "training-job-2"]
    assert waited["interactive-job"] == ["training-job-3"]


def test_the_demo_counts_the_pods_a_file_makes() -> None:
    assert workloads(FOLDER / INITIAL) == (
        Workload("project-a", "training-job-1", 1),
        Workload("project-c", "training-job-2", 1),
        Workload("project-c", "training-job-3", 3),
        Workload("project-d", "interactive-job", 1),
    )
    assert workloads(FOLDER / QUEUES) == ()


def test_a_folder_that_lacks_a_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / QUEUES).write_text("")
    with pytest.raises(InputError, match=f"there is no {INITIAL}"):
        check(tmp_path)
