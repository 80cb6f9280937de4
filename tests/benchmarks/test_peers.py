"""What the peer is given is our cluster, and what it says is read right. The peer itself is not run here."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.peers.run import CONTESTS, Contest, Measurement, Row, Times, cycles, done, line
from benchmarks.peers.snapshot import FILE_IN_ZIP, Settings, UntranslatableError, kai_snapshot, write_zip
from benchmarks.peers.toolchain import READY_PROGRAM, kai_cycle
from benchmarks.shapes import ALLOCATE_ONLY, Counts, lent_cluster, two_teams, waiting_job
from gpuyard.model.jobs import Request
from gpuyard.policies.policy import DEFAULT

TINY: Final = lent_cluster(1, 1)
TRANSLATED: Final = kai_snapshot(TINY, DEFAULT, Settings())


def objects(kind: str) -> dict[str, Any]:
    return {found["metadata"]["name"]: found for found in TRANSLATED["rawObjects"][kind]}


def test_a_node_offers_its_gpus_and_is_ready() -> None:
    (node,) = objects("nodes").values()
    assert node["status"]["allocatable"] == {
        "cpu": "128000m",
        "memory": str(1 << 40),
        "pods": "110",
        "nvidia.com/gpu": "8",
    }
    assert node["status"]["conditions"] == [{"type": "Ready", "status": "True"}]


def test_queues_keep_their_tree_and_quotas_and_ration_only_gpus() -> None:
    specs = {name: queue["spec"] for name, queue in objects("queues").items()}
    assert {name: spec["parentQueue"] for name, spec in specs.items()} == {
        "research": "",
        "speech": "research",
        "ads": "research",
    }
    assert {name: spec["resources"]["gpu"]["quota"] for name, spec in specs.items()} == {
        "research": 8,
        "speech": 8,
        "ads": 0,
    }
    assert all(spec["resources"][rest]["quota"] == -1 for spec in specs.values() for rest in ("cpu", "memory"))


def test_a_job_is_a_pod_group_with_its_minimum_queue_and_priority() -> None:
    spec = objects("podGroups")["gang"]["spec"]
    assert spec == {
        "queue": "speech",
        "minMember": 1,
        "priorityClassName": "priority-50",
        "preemptibility": "preemptible",
    }
    assert objects("priorityClasses")["priority-50"]["value"] == 50


def test_a_task_is_a_pod_of_its_group_where_it_runs() -> None:
    pods = objects("pods")
    running, waiting = pods["running-00000-3-0"], pods["gang-0000"]
    assert len(pods) == 9
    assert (running["status"]["phase"], running["spec"]["nodeName"]) == ("Running", "node-00000")
    assert (waiting["status"]["phase"], waiting["spec"]["nodeName"]) == ("Pending", "")
    assert waiting["metadata"]["annotations"] == {"pod-group-name": "gang"}
    requests = waiting["spec"]["containers"][0]["resources"]["requests"]
    assert requests == {"cpu": "8000m", "memory": str(64 << 30), "nvidia.com/gpu": "8"}


def test_older_jobs_stay_older() -> None:
    ages = [objects("podGroups")[name]["metadata"]["creationTimestamp"] for name in ("running-00000-0", "gang")]
    assert ages == ["2020-01-01T00:00:00Z", "2020-01-02T03:46:40Z"]


def test_the_peer_takes_the_steps_of_the_policy() -> None:
    assert TRANSLATED["config"]["actions"] == "allocate, consolidation, reclaim, preempt, stalegangeviction"
    assert kai_snapshot(TINY, ALLOCATE_ONLY, Settings())["config"]["actions"] == "allocate"


def test_settings_reach_the_peer() -> None:
    told = kai_snapshot(TINY, DEFAULT, Settings(max_preemptees=-1, consolidated_per_queue=2))
    assert told["schedulerParams"]["maxNumberConsolidationPreemptees"] == -1
    assert told["config"]["queueDepthPerAction"] == {"consolidation": 2}
    assert "queueDepthPerAction" not in TRANSLATED["config"]


def test_what_cannot_be_said_in_the_peers_words_is_refused() -> None:
    half = waiting_job(0, Request(devices=1, gpu_milli=500), tasks=1)
    with pytest.raises(UntranslatableError, match="waiting-00000-0 asks for more than whole GPUs"):
        kai_snapshot(two_teams(1, 8, 0, [half]), DEFAULT, Settings())


def test_the_zip_holds_one_file_of_the_peers_name(tmp_path: Path) -> None:
    write_zip(tmp_path / "snapshot.zip", TINY, DEFAULT, Settings())
    with zipfile.ZipFile(tmp_path / "snapshot.zip") as archive:
        assert archive.namelist() == [FILE_IN_ZIP]
        assert json.loads(archive.read(FILE_IN_ZIP)) == TRANSLATED


@pytest.mark.parametrize("contest", CONTESTS, ids=lambda contest: contest.shape.name)
def test_every_contest_can_be_translated(contest: Contest) -> None:
    small = contest.shape.build(20, 2)
    assert kai_snapshot(small, contest.policy(), contest.settings)["rawObjects"]["pods"]


def test_a_cycle_takes_the_sum_of_its_stages_without_loading() -> None:
    said = [
        {"stage": "load", "ms": 900, "cpu_ms": 900},
        {"stage": "open", "ms": 1.5, "cpu_ms": 1},
        {"stage": "allocate", "ms": 2, "cpu_ms": 2},
        {"binds": 3, "promises": 0, "evicts": 0, "moves": 0},
        {"stage": "open", "ms": 2.5, "cpu_ms": 2},
        {"stage": "allocate", "ms": 2, "cpu_ms": 2},
        {"binds": 3, "promises": 0, "evicts": 0, "moves": 0},
    ]
    assert cycles("\n".join(map(json.dumps, said))) == ([Times(3.5, 3), Times(4.5, 4)], Counts(binds=3))


def test_a_cycle_that_was_stopped_has_no_result() -> None:
    assert cycles('{"stage": "open", "ms": 1.5, "cpu_ms": 1}\n') == ([], None)


def test_a_side_that_did_something_else_has_no_ratio() -> None:
    right = Measurement(10, 10, 10, Counts(binds=1), as_expected=True)
    wrong = Measurement(1, 1, 1, Counts(), as_expected=False)
    stopped = Measurement(300_000, 300_000, 300_000, Counts(), as_expected=False, stopped=True)
    assert Row("a", right, wrong).ratio() is None
    assert Row("a", wrong, right).ratio() is None
    assert Row("a", stopped, right).ratio() == 30_000
    assert "> 300 s" in line(Row("a", stopped, right))
    assert "> 30000x" in line(Row("a", stopped, right))
    assert done("gpuyard", wrong) == "gpuyard: nothing!"


def test_a_program_that_is_ready_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(READY_PROGRAM, "/somewhere/kai-cycle")
    assert kai_cycle() == Path("/somewhere/kai-cycle")
