"""The decision log: what the core decides stands there in full, with what was free where."""

from __future__ import annotations

from typing import Any

import pytest

from gpuyard.kaidemo.decisions import decisions_in
from gpuyard.kaidemo.lines import lines_of
from gpuyard.kube.decisions import DecisionLog
from gpuyard.kube.decisions import lines_of as read_back
from gpuyard.model.snapshot import Snapshot
from gpuyard.policies.policy import Consolidation, ConsolidationMode, Policy
from gpuyard.scheduler.cycle import plan
from gpuyard.scheduler.ledger import Ledger
from tests.builders import a_cluster, a_job


def seed() -> Snapshot:
    """The KAI demo when its new workloads have come."""
    return (
        a_cluster()
        .nodes(4, gpus=8)
        .queue("department-1", quota=16, priority=200)
        .queue("department-2", quota=16, priority=100)
        .queue("project-a", quota=8, priority=150, parent="department-1")
        .queue("project-c", quota=8, priority=150, parent="department-2")
        .queue("project-d", quota=8, priority=100, parent="department-2")
        .jobs(
            a_job("training-job-1").team("project-a").gpus(4).on("node-1", 0, 1, 2, 3),
            a_job("training-job-2").team("project-c").gpus(2).on("node-1", 4, 5),
            a_job("training-job-3").team("project-c").gpus(6).on("node-2", *range(6)),
            a_job("interactive-job").team("project-d").gpus(5).on("node-3", *range(5)),
            a_job("training-job-b").team("project-a").gpus(3),
            a_job("training-job-a").team("project-c").gpus(4),
        )
        .snapshot()
    )


def logged(snapshot: Snapshot, mode: ConsolidationMode) -> str:
    lines: list[str] = []
    log = DecisionLog(lines.append, lambda: 0)
    ledger = Ledger.of(snapshot)
    decided = plan(ledger, Policy(consolidation=Consolidation(mode=mode)))
    log.decided(decided, decided.actions, ledger)
    return "\n".join(lines)


def of(text: str, event: str) -> list[dict[str, Any]]:
    return [line for line in read_back(text) if line["event"] == event]


def test_a_place_that_others_leave_stands_with_what_was_free_there_and_where_most_was_free() -> None:
    (promise,) = of(logged(seed(), ConsolidationMode.KEEP_NODES_FREE), "promise")
    assert (promise["job"], promise["node"], promise["gpus"]) == ("training-job-a", "node-1", 4)
    assert promise["free_before"] == 2
    assert promise["roomiest"] == {"node": "node-4", "free": 8, "gpus": 8}


def test_a_move_stands_with_its_ends_and_for_whom_it_is() -> None:
    (move,) = of(logged(seed(), ConsolidationMode.KEEP_NODES_FREE), "move")
    assert (move["job"], move["from"], move["to"], move["beneficiary"]) == (
        "training-job-2",
        "node-1",
        "node-2",
        "training-job-a",
    )


def test_what_is_free_counts_down_as_a_plan_takes_it() -> None:
    pair = a_cluster().nodes(1, gpus=8).jobs(a_job("one").gpus(3), a_job("two").gpus(3)).snapshot()
    binds = of(logged(pair, ConsolidationMode.ON_DEMAND), "bind")
    assert [bind["free_before"] for bind in binds] == [8, 5]


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        (
            ConsolidationMode.KEEP_NODES_FREE,
            "node-4 is empty (8 GPUs available), but whole nodes are kept free",
        ),
        (ConsolidationMode.ON_DEMAND, "Found suitable node: node-4 (8 GPUs available)"),
    ],
)
def test_the_demo_tells_the_true_reason_from_it(mode: ConsolidationMode, wanted: str) -> None:
    told = list(lines_of(decisions_in(logged(seed(), mode))))
    assert "Allocating 3 GPUs to training-job-b on node node-3" in told
    assert wanted in told
    assert "Insufficient contiguous GPUs on any node" not in told
