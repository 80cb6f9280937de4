"""The benchmark of the Kubernetes scheduler itself: the same pods for all, times read right, limits judged right."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.kube.contestants import CONTESTANTS, KAI, KUBE, OURS
from benchmarks.kube.figures import (
    AtLeast,
    Part,
    Sample,
    Usage,
    bind_s,
    gang_s,
    judged,
    pods_per_second,
    reclaim_s,
    refusal_s,
    table,
)
from benchmarks.kube.large import GPU_PODS, PODS_PER_NODE, running_pods
from benchmarks.kube.load import Event, Kind, Notes, Seen, Trace, of_any_pod, of_group, of_probe
from benchmarks.kube.objects import (
    BORROWERS,
    GPU,
    LENDERS,
    REFUSED_GPUS,
    ROOT,
    PodShape,
    pod,
    pod_group,
    queues,
)
from benchmarks.kube.run import main, with_mirror
from benchmarks.kube.wire import Answer
from gpuyard.testbed.record import Extras
from tests.kube import running_testbed

QUIET = Usage(1, 0, 0, 0, 0)


# ------------------------------------------------------------------------------------------------------ what is created


def test_pods_of_two_contestants_differ_only_in_the_scheduler_they_name() -> None:
    one, other = (pod("p", PodShape(contestant.scheduler)) for contestant in CONTESTANTS[:2])
    assert one != other
    other["spec"]["schedulerName"] = one["spec"]["schedulerName"]
    assert one == other


def test_a_pod_of_a_gang_names_its_group_and_tolerates_what_kwok_is_marked_with() -> None:
    made = pod("p", PodShape("gpuyard", gpus=2, group="gang"))
    assert made["metadata"]["annotations"] == {"pod-group-name": "gang"}
    assert made["spec"]["containers"][0]["resources"]["limits"][GPU] == "2"
    assert made["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert pod_group("gang", LENDERS, 10)["spec"]["minMember"] == 10


def test_the_queues_are_owed_one_gpu_more_than_there_is() -> None:
    quotas = {one["metadata"]["name"]: one["spec"]["resources"]["gpu"]["quota"] for one in queues(4000)}
    assert quotas == {ROOT: -1, BORROWERS: 3921, LENDERS: REFUSED_GPUS}
    assert quotas[BORROWERS] + quotas[LENDERS] == 4001


def test_every_node_of_the_large_cluster_has_a_gpu_left() -> None:
    nodes = Counter(made["spec"]["nodeName"] for made in running_pods(3, "gpuyard"))
    gpus = Counter[str]()
    for made in running_pods(3, "gpuyard"):
        gpus[made["spec"]["nodeName"]] += int(made["spec"]["containers"][0]["resources"]["limits"].get(GPU, 0))
    assert nodes == {"kwok-1": PODS_PER_NODE, "kwok-2": PODS_PER_NODE, "kwok-3": PODS_PER_NODE}
    assert set(gpus.values()) == {GPU_PODS}


# --------------------------------------------------------------------------------------------------------- what is seen


def an_event(kind: str = "MODIFIED", *, going: bool = False, **rest: Any) -> Event:
    about = {"name": "p", **({"deletionTimestamp": "2020-01-01T00:00:00Z"} if going else {})}
    return Event(kind, msgspec.convert({"metadata": about, **rest}, Seen))


def kinds(found: Any) -> list[Kind]:
    return [kind for kind, _ in found]


def test_a_pod_in_the_watch_of_bound_ones_is_bound_until_it_has_a_time_to_go() -> None:
    assert kinds(of_any_pod(an_event("ADDED"))) == [Kind.BOUND]
    assert kinds(of_any_pod(an_event(going=True))) == [Kind.EVICTED]
    assert kinds(of_any_pod(an_event("DELETED"))) == [Kind.GONE, Kind.EVICTED]


def test_a_probe_is_seen_then_explained_then_placed() -> None:
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "79 of 80 GPUs"}
    assert kinds(of_probe(an_event("ADDED"))) == [Kind.SEEN]
    assert list(of_probe(an_event(status={"conditions": [why]})))[1:] == [(Kind.EXPLAINED, "79 of 80 GPUs")]
    assert kinds(of_probe(an_event(status={"conditions": [{**why, "message": ""}]}))) == [Kind.SEEN]
    assert kinds(of_probe(an_event(spec={"nodeName": "kwok-1"}))) == [Kind.SEEN, Kind.PLACED]


def test_a_group_says_why_in_its_own_conditions() -> None:
    why = {"type": "UnschedulableOnNodePool", "status": "True", "message": "no"}
    assert list(of_group(an_event(status={"schedulingConditions": [why]}))) == [(Kind.GROUP_EXPLAINED, "no")]


def test_the_first_time_counts_unless_the_explanation_becomes_another() -> None:
    async def noted() -> tuple[Trace, list[bool]]:
        notes = Notes(Kind.EXPLAINED, 1)
        done = [notes.done.is_set()]
        notes.note(Kind.BOUND, "p")
        first = notes.trace.of(Kind.BOUND)["p"]
        notes.note(Kind.BOUND, "p")
        assert notes.trace.of(Kind.BOUND)["p"] == first
        notes.note(Kind.EXPLAINED, "p", "three of ten are there")
        early = notes.trace.of(Kind.EXPLAINED)["p"]
        notes.note(Kind.EXPLAINED, "p", "79 of 80 GPUs")
        assert notes.trace.of(Kind.EXPLAINED)["p"] > early
        return notes.trace, [*done, notes.done.is_set()]

    trace, done = asyncio.run(noted())
    assert trace.said == {"p": "79 of 80 GPUs"}
    assert done == [False, True]


def test_an_answer_in_pieces_is_put_together() -> None:
    answer = Answer()
    answer.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    answer.feed(b'8\r\n{"a":1}\n\r\n4\r\n{"b"\r\n')
    assert (answer.status, answer.lines(), answer.complete) == (200, [b'{"a":1}'], False)
    answer.feed(b"4\r\n:2}\n\r\n0\r\n\r\n")
    assert (answer.lines(), answer.complete) == ([b'{"b":2}'], True)


# ------------------------------------------------------------------------------------------------------------- figures


def a_trace(**times: dict[str, float]) -> Trace:
    return Trace({Kind(kind.replace("_", "-")): found for kind, found in times.items()}, {})


def test_the_rate_counts_from_the_first_request_to_the_last_binding() -> None:
    trace = a_trace(sent={"a": 1.0, "b": 2.0}, bound={"a": 3.0, "b": 5.0, "somebody's": 90.0})
    assert pods_per_second(trace) == 0.5


def test_a_gang_counts_from_the_moment_it_is_complete() -> None:
    trace = a_trace(sent={"a": 1, "b": 1}, created={"a": 2, "b": 3}, bound={"a": 4, "b": 7}, explained={"a": 5, "b": 4})
    assert gang_s(trace) == 4
    assert refusal_s(trace) == 2


def test_a_reclaim_counts_to_the_first_victim_whoever_it_is() -> None:
    assert reclaim_s(a_trace(sent={"new": 10}, evicted={"new": 10.5, "v1": 12, "v2": 11})) == 1


def test_a_binding_counts_within_one_watch() -> None:
    assert bind_s(a_trace(sent={"p": 1}, seen={"p": 2}, placed={"p": 2.25}, bound={"p": 2.1})) == 0.25


def a_sample(part: Part, contestant: str, value: float, *, round: int = 1, finished: bool = True) -> Sample:
    return Sample(part, contestant, round, value, value / 2, QUIET, finished=finished)


def test_rates_are_compared_round_by_round_and_the_median_is_judged() -> None:
    rates = {KUBE: (100, 160, 200), OURS: (140, 140, 20), KAI: (20, 21, 22)}
    samples = [
        a_sample(Part.PODS, name, rate, round=number)
        for name, found in rates.items()
        for number, rate in enumerate(found, 1)
    ]
    (rate,) = judged(samples)
    assert (rate.measured, rate.limit, rate.missed) == (140 / 160, 0.9, True)


def test_of_several_rates_of_a_round_all_pods_over_all_time_counts() -> None:
    samples = [a_sample(Part.PODS, name, rate) for name, rate in ((KUBE, 100), (OURS, 120), (OURS, 60), (KUBE, 100))]
    (rate,) = judged(samples)
    assert rate.measured == pytest.approx(0.8)


def test_those_who_are_compared_fill_the_cluster_once_more_the_other_way_round() -> None:
    forth = [(one.name, len(parts)) for one, parts in with_mirror(CONTESTANTS)]
    assert forth == [(KUBE, 3), (OURS, 3), (OURS, 1), (KUBE, 1), (KAI, 3)]
    back = [(one.name, len(parts)) for one, parts in with_mirror(CONTESTANTS[::-1])]
    assert back == [(KAI, 3), (OURS, 3), (KUBE, 3), (KUBE, 1), (OURS, 1)]
    assert [one.name for one, _ in with_mirror(CONTESTANTS[1:])] == [OURS, KAI]


def test_a_limit_in_seconds_is_judged_by_the_calibrated_median() -> None:
    samples = [a_sample(Part.GANG, OURS, 12), a_sample(Part.GANG, KAI, 49)]
    (gang,) = judged(samples)
    assert (gang.measured, gang.calibrated, gang.missed) == (12, 6, True)
    assert not AtLeast("x", "x", measured=0.5, calibrated=0.9, limit=0.9).missed


def test_a_part_nobody_was_asked_for_has_no_line() -> None:
    assert list(judged([a_sample(Part.PODS, KUBE, 160), a_sample(Part.RECLAIM, KAI, 14)])) == []


def test_the_table_says_who_did_not_come_to_an_end() -> None:
    samples = [a_sample(Part.REFUSAL, KAI, 300, finished=False), a_sample(Part.REFUSAL, OURS, 0.5)]
    lines = table(samples, (KUBE, OURS, KAI))
    assert len(lines) == 2
    assert lines[1].split()[-6:] == ["-", "0.50", "(0.25)", ">", "300.00", "(150.00)"]


# ----------------------------------------------------------------------------------------------------------------- all


@pytest.mark.slow
def test_a_small_run_measures_on_a_real_api_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "bench" / "kube.json"
    with running_testbed(nodes=0, extras=Extras.of(kwok=3, kwok_gpus=8)) as bed:
        chosen = ("--only", "pods", "--without", KAI, "--without", OURS)
        small = ("--bed", bed.record.name, "--nodes", "3", "--rounds", "2")
        assert main([*chosen, *small, "--output", str(output)]) == 0
    written = json.loads(output.read_text())
    assert [sample["notes"]["bound"] for sample in written["samples"]] == [24, 24]
    assert all(sample["value"] > 1 for sample in written["samples"])
    assert "single-GPU pods bound per second" in capsys.readouterr().out
