"""What pods are told: why they wait, once; and never that one waits which has its place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpuyard.errors import KubeRefusedError, KubeUnreachableError
from gpuyard.model.reasons import Reason, Token
from gpuyard.worlds.kubernetes import telling
from gpuyard.worlds.kubernetes.telling import AGAIN_MS, MAX_EVENTS_PER_JOB, QUICK_CHANGES, RETRY_MS, Teller, word_for
from gpuyard.worlds.kubernetes.writes import BindPod, EvictPod, PodName
from tests.worlds.kubernetes.small_cluster import SmallCluster
from tests.worlds.kubernetes.words import Words


class Told:
    """A cluster, and what its pods are told."""

    def __init__(self, nodes: int = 1, gpus: int = 1) -> None:
        self.cluster = SmallCluster(nodes, gpus)
        self.words = Words()
        picture = self.cluster.picture
        self.teller = Teller(self.words.client, self.words.writer, picture, "me", lambda: self.cluster.now_ms)

    def tell(self) -> list[tuple[str, str, str]]:
        """What is new after a cycle: conditions."""
        self.cluster.settle()
        assert self.cluster.loop is not None
        before = len(self.words.conditions())
        self.teller.waiting(self.cluster.loop.last, self.cluster.world.held_jobs(), self.cluster.world.pods_held())
        self.words.write()
        return self.words.conditions()[before:]


def test_who_waits_is_told_why_once_and_again_only_when_it_is_for_another_reason() -> None:
    told = Told()
    told.cluster.add_pod("big", 4)
    ((name, word, text),) = told.tell()
    assert (name, word) == ("big", "Unschedulable")
    assert "4 GPUs" in text
    assert told.tell() == []
    told.cluster.add_queue("team", resources={"gpu": {"quota": 0, "limit": 0}})
    ((_, word, _),) = told.tell()
    assert word != "Unschedulable", "a node more would not help"
    assert len(told.words.events()) == 2


def test_who_could_take_back_too_little_is_told_how_much() -> None:
    told = Told(nodes=2, gpus=4)
    unbounded = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    for queue, quota in (("borrowers", 5), ("lenders", 4)):
        gpus = {"quota": quota, "limit": -1, "overQuotaWeight": 1}
        told.cluster.add_queue(queue, resources={"gpu": gpus, "cpu": unbounded, "memory": unbounded})
    for number in range(8):
        told.cluster.add_pod(f"b-{number}", 1, queue="borrowers")
    told.cluster.settle()
    told.cluster.add_pod("owed", 4, queue="lenders")
    ((name, word, text),) = told.tell()
    assert (name, word) == ("owed", "Unschedulable")
    assert text.startswith("needs 4 GPUs, 3 can be had (0 free, 3 lent to others); borrowers holds 8")


def test_a_node_with_more_gpus_than_there_is_room_for_says_so_once_for_each_number() -> None:
    told = Told(nodes=2, gpus=8)
    for gpus, events in ((80, 1), (80, 1), (70, 2), (8, 2), (62, 2)):
        told.cluster.add_node("n2", gpus)
        told.cluster.hear()
        told.teller.node_notes({})
        told.words.write()
        assert told.words.events() == [("n2", "GpusLeftOut")] * events
    assert told.words.created[0]["note"].startswith("offers 80 GPUs, of which 18 stay unused")
    told.cluster.add_node("n2", 80)
    told.cluster.remove_node("n2")
    told.cluster.hear()
    assert told.cluster.picture.cut == {}


def test_other_numbers_of_the_same_reason_are_told_after_a_while_and_without_an_event() -> None:
    told = Told(nodes=1, gpus=4)
    told.cluster.add_pod("small", 1)
    told.cluster.settle()
    told.cluster.add_pod("big", 4)
    assert len(told.tell()) == 1
    told.cluster.add_pod("more", 1)
    assert told.tell() == []
    told.cluster.pass_time(AGAIN_MS)
    told.cluster.add_pod("yet-more", 1)
    ((name, _, _),) = told.tell()
    assert name == "big"
    assert told.words.events() == [("big", "FailedScheduling")]


def test_a_pod_that_was_bound_before_it_was_its_turn_is_not_told_that_it_waits() -> None:
    told = Told(nodes=0)
    told.cluster.add_pod("a")
    told.cluster.settle()
    assert told.cluster.loop is not None
    told.teller.waiting(told.cluster.loop.last, {})
    told.cluster.add_node("n1", 1)
    told.cluster.settle()
    told.words.write()
    assert told.words.conditions() == []


def test_a_condition_is_written_of_the_pod_as_it_is_known_so_that_a_bind_in_between_wins() -> None:
    told = Told(nodes=0)
    told.cluster.add_pod("a")
    told.cluster.pods["a"]["metadata"]["resourceVersion"] = "77"
    told.cluster._tell("pods", told.cluster.pods["a"])
    told.tell()
    ((_, body),) = told.words.merged
    assert body["metadata"] == {"uid": "a-1", "resourceVersion": "77"}


@pytest.mark.parametrize(
    "fault",
    [
        KubeRefusedError("no", status=409),
        KubeRefusedError("no", status=500),
        KubeRefusedError("no", status=429),
        KubeUnreachableError("nobody there"),
    ],
)
def test_what_could_not_be_written_is_told_again(fault: Exception) -> None:
    told = Told(nodes=0)
    told.cluster.add_pod("a")
    told.words.faults.append(fault)  # type: ignore[arg-type]
    assert told.tell() == []
    assert told.tell() == [], "a server that cannot take it is not asked again at once"
    told.cluster.pass_time(RETRY_MS)
    assert len(told.tell()) == 1
    assert len(told.words.events()) <= 1


def test_reasons_that_come_and_go_are_no_storm() -> None:
    told = Told(nodes=1, gpus=1)
    for at in range(100):
        told.cluster.add_pod(f"p{at}", 4)
    conditions = 0
    bounds: list[dict[str, Any]] = [{"quota": 0, "limit": 0}, {"quota": -1, "limit": -1}]
    for at in range(60):
        told.cluster.add_queue("team", resources=dict.fromkeys(("gpu", "cpu", "memory"), bounds[at % 2]))
        conditions += len(told.tell())
        told.cluster.pass_time(1_000)
    assert len(told.words.events()) == 2 * 100, "one for each kind of reason"
    assert conditions <= 100 * (QUICK_CHANGES + 60_000 // AGAIN_MS)


def test_a_pod_that_is_held_is_told_why_and_the_others_of_its_job_what_they_wait_for() -> None:
    told = Told(nodes=0)
    told.cluster.add_owner("Job", "train", 2, 1)
    first, second = sorted(told.cluster.pods)
    told.cluster.pods[first]["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    told.cluster._tell("pods", told.cluster.pods[first])
    words = {name: word for name, word, _ in told.tell()}
    assert words == {first: "GpuSharing", second: "Unschedulable"}


def test_a_pod_that_waits_for_something_else_has_waited_since_it_said_so_first() -> None:
    told = Told(nodes=0)
    told.cluster.add_pod("a")
    said = {"type": "PodScheduled", "status": "False", "lastTransitionTime": "2023-11-14T00:00:00Z"}
    told.cluster.pods["a"]["status"]["conditions"] = [said]
    told.cluster._tell("pods", told.cluster.pods["a"])
    told.tell()
    ((_, body),) = told.words.merged
    assert body["status"]["conditions"][0]["lastTransitionTime"] == said["lastTransitionTime"]


def test_a_queue_that_was_made_anew_is_told_again_what_its_author_should_know() -> None:
    told = Told()
    for uid in ("one", "one", "two"):
        told.cluster.add_queue("forgetful", resources={"gpu": {"quota": 1}})
        told.cluster.queues["forgetful"]["metadata"]["uid"] = uid
        told.cluster._tell("queues", told.cluster.queues["forgetful"])
        told.cluster.settle()
        told.teller.queue_notes(told.cluster.picture.tree)
    told.words.write()
    about = [event["regarding"]["uid"] for event in told.words.created if event["reason"] == "LimitUnset"]
    assert about == ["one", "two"]


def test_a_large_job_is_told_by_conditions_and_a_few_events() -> None:
    told = Told(nodes=0)
    told.cluster.add_owner("Job", "train", 30, 1)
    assert len(told.tell()) == 30
    assert len(told.words.events()) == MAX_EVENTS_PER_JOB


def test_whoever_begins_to_lead_says_everything_anew() -> None:
    told = Told(nodes=0)
    told.cluster.add_pod("a")
    assert len(told.tell()) == 1
    told.teller.forget()
    assert len(told.tell()) == 1


def test_an_event_that_could_not_be_written_is_said_again_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "EVENT_WAIT_S", 0.001)
    told = Told()

    async def work(fails: int) -> int:
        told.words.created.clear()
        told.words.faults.extend([KubeUnreachableError("away")] * fails)
        told.teller.bound(BindPod("a/pod/p", PodName("a", "p", "u"), "n1"))
        until = asyncio.get_running_loop().time() + 1
        while asyncio.get_running_loop().time() < until and not told.words.created:
            while told.words.queue:
                with_error = told.words.queue.popleft()()
                try:
                    await with_error
                except KubeUnreachableError:
                    return 0
            await asyncio.sleep(0.001)
        return len(told.words.created)

    assert asyncio.run(work(3)) == 1
    assert asyncio.run(work(telling.EVENT_TRIES)) == 0


def test_an_eviction_is_an_event_that_names_rule_and_beneficiary() -> None:
    told = Told()
    reason = Reason(Token.RECLAIMED, beneficiary="a/job/other")
    told.teller.evicted(EvictPod("a/pod/p", PodName("a", "p", "u"), "n1", reason, "gave way to a/job/other"))
    told.words.write()
    (event,) = told.words.created
    assert (event["reason"], event["note"]) == ("Reclaimed", "gave way to a/job/other")
    assert event["metadata"]["annotations"] == {"gpuyard.io/beneficiary": "a/job/other"}


@pytest.mark.parametrize(
    ("tokens", "word"),
    [
        ([Token.NOT_ENOUGH, Token.FRAGMENTED], "Unschedulable"),
        ([Token.NOT_ENOUGH, Token.OVER_QUOTA], "OverQuota"),
        ([Token.QUEUE_MISSING], "QueueMissing"),
        ([], "Waiting"),
    ],
)
def test_only_where_a_node_more_would_help_it_is_called_unschedulable(tokens: list[Token], word: str) -> None:
    assert word_for(Reason(token) for token in tokens) == word


def test_the_event_of_a_pod_with_a_long_name_has_a_name_the_server_takes() -> None:
    told = Told()
    name = "a" * 199 + "-" + "b" * 20
    told.teller.bound(BindPod(f"a/pod/{name}", PodName("a", name, "u"), "n1"))
    told.words.write()
    assert "-." not in told.words.created[0]["metadata"]["name"]
