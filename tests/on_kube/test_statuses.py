"""What queues and groups say of themselves: as the books have it, written once, and anew for whatever is made anew."""

from __future__ import annotations

from typing import Any

import pytest

from gpuyard.errors import KubeRefusedError, KubeUnreachableError
from gpuyard.kube import statuses
from gpuyard.kube.statuses import Statuses, amounts
from gpuyard.loop.loop import Loop
from gpuyard.worlds.kubernetes.telling import AGAIN_MS
from tests.worlds.kubernetes.small_cluster import SmallCluster
from tests.worlds.kubernetes.words import Words

GPU = "nvidia.com/gpu"


class Told:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(statuses, "WRITE_MS", 0)
        self.cluster = SmallCluster(nodes=1, gpus=8)
        self.words = Words()
        self.statuses = Statuses(
            self.words.client, self.words.writer, self.cluster.picture, "me", lambda: self.cluster.now_ms
        )

    @property
    def loop(self) -> Loop:
        assert self.cluster.loop is not None
        return self.cluster.loop

    def tell(self) -> dict[str, dict[str, Any]]:
        """Statuses that were written, by the name of their object."""
        self.cluster.settle()
        before = len(self.words.merged)
        assert self.statuses.write(self.loop)
        self.words.write()
        return {path.split("/")[-2]: body["status"] for path, body in self.words.merged[before:]}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}


def test_a_queue_says_what_it_holds_asks_for_and_may_have(told: Told) -> None:
    told.cluster.add_pod("a", 2)
    told.cluster.add_pod("b", 3, priority="inference")
    told.cluster.add_pod("c", 16)
    status = told.tell()["team"]
    assert status["allocated"][GPU] == "5"
    assert status["allocatedNonPreemptible"][GPU] == "3"
    assert status["requested"][GPU] == "21"
    assert status["fairShare"][GPU] == "8"
    assert conditions(status) == {"Accepted": ("True", "Accepted"), "FairShare": ("True", "Divided")}


def test_a_group_says_how_many_of_it_run_and_why_the_others_do_not(told: Told) -> None:
    told.cluster.add_group("g", 2)
    told.cluster.add_pod("g-0", 4, group="g")
    status = told.tell()["g"]
    assert (status["phase"], status["pending"]) == ("Pending", 1)
    assert conditions(status)["Scheduled"] == ("False", "GangIncomplete")
    assert status["schedulingConditions"][0]["nodePool"] == "default"
    told.cluster.add_pod("g-1", 4, group="g")
    status = told.tell()["g"]
    assert (status["phase"], status["running"], status["schedulingConditions"]) == ("Running", 2, [])
    assert status["resourcesStatus"]["allocated"][GPU] == "8"


def test_what_says_the_same_is_not_written_again(told: Told) -> None:
    told.cluster.add_pod("a", 2)
    assert set(told.tell()) == {"team"}
    assert told.tell() == {}
    told.cluster.pass_time(3_600_000)
    assert told.tell() == {}


def test_since_when_is_kept_while_only_numbers_change(told: Told) -> None:
    first = told.tell()["team"]["conditions"][0]["lastTransitionTime"]
    told.cluster.pass_time(60_000)
    told.cluster.add_pod("a", 2)
    assert told.tell()["team"]["conditions"][0]["lastTransitionTime"] == first


def test_an_object_that_was_made_anew_under_its_name_is_told_anew(told: Told) -> None:
    told.cluster.groups.clear()
    for uid in ("first", "second"):
        told.cluster.add_group("g", 1)
        told.cluster.groups["g"]["metadata"]["uid"] = uid
        told.cluster._tell("podgroups", told.cluster.groups["g"])
        told.cluster.add_pod("g-0", 1, group="g")
        assert told.tell()["g"]["running"] == 1
        told.cluster.delete("g-0")
        told.cluster.remove_group("g")
        told.cluster.settle()


def test_what_could_not_be_written_is_written_the_next_time(told: Told) -> None:
    told.words.faults.append(KubeUnreachableError("away"))
    assert told.tell() == {}
    assert set(told.tell()) == {"team"}


def test_whoever_begins_to_lead_writes_everything_anew(told: Told) -> None:
    told.tell()
    told.statuses.forget()
    assert set(told.tell()) == {"team"}


def test_nothing_is_kept_of_what_is_gone(told: Told) -> None:
    told.cluster.add_group("g", 1)
    told.cluster.add_pod("g-0", 1, group="g")
    told.tell()
    told.cluster.delete("g-0")
    told.cluster.remove_group("g")
    told.tell()
    assert len(told.statuses._written) == 1
    assert {subject for subject, _ in told.statuses._since} == set(told.statuses._written)


@pytest.mark.parametrize(("milli", "text"), [(0, "0"), (8_000, "8"), (500, "500m"), (1_250, "1250m")])
def test_amounts_are_written_as_kubernetes_writes_them(milli: int, text: str) -> None:
    assert amounts((milli, 250, 1 << 30)) == {GPU: text, "cpu": "250m", "memory": str(1 << 30)}


def test_groups_that_wait_are_not_written_about_whenever_somebody_else_starts(told: Told) -> None:
    for at in range(3):
        told.cluster.add_group(f"g{at}", 1)
        told.cluster.add_pod(f"large-{at}", 8, group=f"g{at}")
    told.cluster.add_pod("small", 1)
    told.tell()
    for at in range(5):
        told.cluster.add_pod(f"other-{at}", 1)
        assert not {"g1", "g2"} & told.tell().keys(), "only the numbers in their sentence are others"
        told.cluster.pass_time(1_000)
    told.cluster.pass_time(AGAIN_MS)
    told.cluster.add_pod("one-more", 1)
    assert {"g1", "g2"} <= told.tell().keys()


def test_what_is_refused_for_good_is_not_written_again_and_again(told: Told) -> None:
    told.words.faults.append(KubeRefusedError("no such field", status=422))
    told.tell()
    before = told.words.failed
    for _ in range(3):
        assert told.tell() == {}
    assert told.words.failed == before
