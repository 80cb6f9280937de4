"""The lines of the KAI demo follow from the decision log alone: another log, other lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuyard.kaidemo.decisions import Decision, LogTail, decisions_in
from gpuyard.kaidemo.lines import Telling, allocations_of, lines_of

A, B, ONE, TWO = (
    "project-c/job/training-job-a",
    "project-a/job/training-job-b",
    "p/job/training-job-1",
    "p/job/training-job-2",
)
THREE = "project-c/pytorchjob/training-job-3"


def log(*lines: dict[str, Any]) -> list[Decision]:
    return list(decisions_in("".join(json.dumps({"at": "2026-01-01T00:00:00Z", **line}) + "\n" for line in lines)))


def submitted(job: str, queue: str, priority: int, gpus: float) -> dict[str, Any]:
    about = {"queue": queue.lower().replace(" ", "-"), "queue_name": queue, "queue_priority": priority}
    return {"event": "submitted", "cycle": 1, "job": job, **about, "priority": 50, "gpus": gpus, "tasks": 1}


def phase(cycle: int, which: str) -> dict[str, Any]:
    return {"event": "phase", "cycle": cycle, "phase": which}


def bind(cycle: int, job: str, node: str, gpus: float, free: float, task: str = "0") -> dict[str, Any]:
    return {"event": "bind", "cycle": cycle, "job": job, "task": task, "node": node, "gpus": gpus, "free_before": free}


def bound(job: str, node: str, task: str = "0") -> dict[str, Any]:
    return {"event": "bound", "cycle": 9, "job": job, "task": task, "node": node}


def move(cycle: int, job: str, source: str, to: str, gpus: float, beneficiary: str) -> dict[str, Any]:
    about = {"event": "move", "cycle": cycle, "job": job, "task": "0", "from": source, "to": to, "gpus": gpus}
    return {**about, "beneficiary": beneficiary, "reason": {"token": "Moved"}, "text": "moves"}


def promise(
    cycle: int, job: str, node: str, gpus: float, free: float, roomiest: tuple[str, int, int]
) -> dict[str, Any]:
    most = dict(zip(("node", "free", "gpus"), roomiest, strict=True))
    about = {"event": "promise", "cycle": cycle, "job": job, "task": "0", "node": node, "gpus": gpus}
    return {**about, "free_before": free, "roomiest": most}


def seed(most: tuple[str, int, int]) -> list[Decision]:
    """Both new workloads in one cycle, and what came of it."""
    return log(
        submitted(B, "Project A", 150, 3),
        submitted(A, "Project C", 150, 4),
        phase(7, "allocate"),
        bind(7, B, "node-3", 3, 3),
        phase(7, "consolidate"),
        move(7, TWO, "node-1", "node-2", 2, A),
        promise(7, A, "node-1", 4, 2, most),
        bound(B, "node-3"),
        {"event": "gone", "cycle": 8, "job": TWO},
        submitted(TWO, "Project C", 150, 2),
        bind(8, A, "node-1", 4, 4),
        bound(A, "node-1"),
        bind(9, TWO, "node-2", 2, 2, task="1"),
        bound(TWO, "node-2", task="1"),
    )


SEED = """\
New workload submitted: training-job-b (Project A, Priority 150)
New workload submitted: training-job-a (Project C, Priority 150)

Starting allocation phase
Attempting to schedule training-job-b (3 GPUs)
Found suitable node: node-3 (3 GPUs available)
Allocating 3 GPUs to training-job-b on node node-3

Attempting to schedule training-job-a (4 GPUs)
{why}
Training Job A (4 GPUs) pending - {pending}
Initiating resource consolidation

Starting consolidation phase
Moving training-job-2 (2 GPUs) from node-1 to node-2
Creating 4 contiguous GPUs on node-1
Scheduling training-job-a (4 GPUs) on node-1
Training Job B (3 GPUs) scheduled on Node 3
Allocating 4 GPUs to training-job-a on node node-1
Training Job A (4 GPUs) scheduled on Node 1
Allocating 2 GPUs to training-job-2 on node node-2
Training Job 2 (0 GPUs) scheduled on Node 2
"""


@pytest.mark.parametrize(
    ("most", "why", "pending"),
    [
        (("node-3", 3, 8), "Insufficient contiguous GPUs on any node", "insufficient resources"),
        (
            ("node-4", 8, 8),
            "node-4 is empty (8 GPUs available), but whole nodes are kept free",
            "Node 4 is kept free",
        ),
    ],
)
def test_the_new_workloads_are_told_as_the_demo_does_and_its_false_sentence_only_where_it_is_true(
    most: tuple[str, int, int], why: str, pending: str
) -> None:
    text = "\n".join(lines_of([*log(submitted(TWO, "Project C", 150, 2)), *seed(most)])) + "\n"
    first, _, rest = text.partition("\n")
    assert first == "New workload submitted: training-job-2 (Project C, Priority 150)"
    assert rest == SEED.format(why=why, pending=pending).replace("(0 GPUs)", "(2 GPUs)")


def test_the_initial_state_is_told_by_its_allocations_a_gang_in_one_line() -> None:
    found = allocations_of(
        log(
            submitted(ONE, "Project A", 150, 4),
            phase(1, "allocate"),
            bind(1, ONE, "node-1", 4, 8),
            bind(2, TWO, "node-1", 2, 4),
            *(bind(3, THREE, "node-2", 2, 8 - 2 * at, task=str(at)) for at in range(3)),
            bind(4, "project-d/job/interactive-job", "node-3", 5, 8),
        )
    )
    assert list(found) == [
        "Allocating 4 GPUs to training-job-1 on node node-1",
        "Allocating 2 GPUs to training-job-2 on node node-1",
        "Allocating 6 GPUs to training-job-3 on node node-2",
        "Allocating 5 GPUs to interactive-job on node node-3",
    ]


def test_other_sizes_and_names_give_other_lines() -> None:
    found = list(
        lines_of(
            log(
                submitted("x/job/mine", "Team X", 7, 5),
                phase(3, "allocate"),
                phase(3, "consolidate"),
                move(3, "y/job/yours", "left", "right", 3, "x/job/mine"),
                move(3, "y/job/theirs", "left", "middle", 1, "x/job/mine"),
                promise(3, "x/job/mine", "left", 5, 1, ("right", 4, 8)),
            )
        )
    )
    assert found[0] == "New workload submitted: mine (Team X, Priority 7)"
    assert "Attempting to schedule mine (5 GPUs)" in found
    assert found[-4:] == [
        "Moving yours (3 GPUs) from left to right",
        "Moving theirs (1 GPU) from left to middle",
        "Creating 5 contiguous GPUs on left",
        "Scheduling mine (5 GPUs) on left",
    ]


def test_on_demand_the_empty_node_is_simply_taken() -> None:
    found = lines_of(log(phase(1, "allocate"), bind(1, A, "node-4", 4, 8), bound(A, "node-4")))
    assert list(found) == [
        "Starting allocation phase",
        "Attempting to schedule training-job-a (4 GPUs)",
        "Found suitable node: node-4 (8 GPUs available)",
        "Allocating 4 GPUs to training-job-a on node node-4",
        "Training Job A (4 GPUs) scheduled on Node 4",
    ]


def test_a_gang_on_two_nodes_has_two_allocations_and_is_scheduled_once() -> None:
    found = lines_of(
        log(
            bind(1, THREE, "node-1", 2, 4, "m"),
            bind(1, THREE, "node-1", 2, 2, "w0"),
            bind(1, THREE, "node-2", 2, 8, "w1"),
            bound(THREE, "node-1", "m"),
            bound(THREE, "node-2", "w1"),
            bound(THREE, "node-1", "w0"),
        )
    )
    assert list(found)[1:] == [
        "Attempting to schedule training-job-3 (6 GPUs)",
        "Found suitable nodes: node-1 (4 GPUs available), node-2 (8 GPUs available)",
        "Allocating 4 GPUs to training-job-3 on node node-1",
        "Allocating 2 GPUs to training-job-3 on node node-2",
        "Training Job 3 (6 GPUs) scheduled on Node 1 and Node 2",
    ]


def test_a_gang_that_came_pod_by_pod_is_told_with_all_its_gpus() -> None:
    pods = [bind(1, THREE, "node-2", 2, 8 - 2 * at, task=str(at)) for at in range(3)]
    found = list(
        lines_of(
            log(submitted(THREE, "Project C", 150, 2), *pods, *(bound(THREE, "node-2", str(at)) for at in range(3)))
        )
    )
    assert "Attempting to schedule training-job-3 (6 GPUs)" in found
    assert found[-1] == "Training Job 3 (6 GPUs) scheduled on Node 2"


def waits(cycle: int, token: str, text: str) -> dict[str, Any]:
    return {"event": "waits", "cycle": cycle, "job": A, "gpus": 4, "reasons": [{"token": token}], "text": text}


def test_a_job_that_waits_is_told_once_for_each_reason() -> None:
    found = lines_of(
        log(
            waits(1, "Fragmented", "no node has 4 GPUs free"),
            waits(2, "Fragmented", "no node has 4 GPUs free"),
            waits(3, "OverLimit", "its queue has 8 of 8"),
        )
    )
    assert [line for line in found if line] == [
        "Starting allocation phase",
        "Attempting to schedule training-job-a (4 GPUs)",
        "Insufficient contiguous GPUs on any node",
        "Training Job A (4 GPUs) pending - insufficient resources",
        "Starting allocation phase",
        "Attempting to schedule training-job-a (4 GPUs)",
        "Training Job A (4 GPUs) pending - its queue has 8 of 8",
    ]


def test_who_must_go_is_told_with_the_one_it_goes_for() -> None:
    eviction = {"event": "evict", "cycle": 1, "job": TWO, "task": "0", "node": "node-1", "gpus": 2, "beneficiary": A}
    found = list(lines_of(log(phase(1, "reclaim"), eviction, promise(1, A, "node-1", 4, 2, ("node-3", 3, 8)))))
    assert found[-4:] == [
        "Starting reclaim phase",
        "Evicting training-job-2 (2 GPUs) from node-1 for training-job-a",
        "Creating 4 contiguous GPUs on node-1",
        "Scheduling training-job-a (4 GPUs) on node-1",
    ]


def test_a_place_of_somebody_who_leaves_anyway_is_held_and_then_taken() -> None:
    held = promise(1, A, "node-1", 4, 0, ("node-1", 0, 8))
    again = promise(2, A, "node-1", 4, 0, ("node-1", 0, 8))
    found = list(lines_of(log(held, again, waits(2, "PlaceFreeing", "its place is freed"), bind(3, A, "node-1", 4, 4))))
    assert found == [
        "Starting allocation phase",
        "Attempting to schedule training-job-a (4 GPUs)",
        "Holding 4 GPUs for training-job-a on node-1, once they are free",
        "Allocating 4 GPUs to training-job-a on node node-1",
    ]


def test_a_job_that_comes_again_under_its_name_is_new_again() -> None:
    found = list(lines_of(log(submitted(A, "Project C", 150, 4), {"event": "gone", "job": A}, submitted(A, "C", 1, 2))))
    assert found == [
        "New workload submitted: training-job-a (Project C, Priority 150)",
        "New workload submitted: training-job-a (C, Priority 1)",
    ]


def test_a_bind_that_fails_is_told() -> None:
    failed = {"event": "failed", "cycle": 1, "job": A, "task": "0", "node": "node-1", "why": "the pod is gone"}
    assert list(lines_of(log(bind(1, A, "node-1", 4, 4), failed, bound(A, "node-1"))))[-1] == (
        "training-job-a does not start on node-1: the pod is gone"
    )


def test_what_is_known_is_told_before_the_next_decision_when_asked_for() -> None:
    telling = Telling()
    (decision,) = log(bind(1, A, "node-1", 4, 4))
    assert telling.hear(decision) == []
    assert [line.text for line in telling.rest()][-1] == "Allocating 4 GPUs to training-job-a on node node-1"
    assert telling.rest() == []


def test_a_log_is_read_as_it_grows_and_only_whole_lines_of_it(tmp_path: Path) -> None:
    path = tmp_path / "decisions"
    tail = LogTail(path)
    assert tail.news() == []
    path.write_text('{"event": "gone", "job": "a"}\n{"event": "go')
    assert [one.job for one in tail.news()] == ["a"]
    with path.open("a") as file:
        file.write('ne", "job": "b"}\n')
    assert [one.job for one in tail.news()] == ["b"]
    assert tail.news() == []
