"""Problems are told once, in the log and as an event; an outage of the API server is one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gpuyard.errors import KubeRefusedError, KubeUnreachableError
from gpuyard.fakegpu.kubernetes import reports as reports_module
from gpuyard.fakegpu.kubernetes.reports import Reports
from gpuyard.kubeapi.events import Author, Subject, event_of
from gpuyard.kubeapi.outage import STARTING_REFUSALS, Outage
from tests.kubeapi.scripted import Answer, Script, refused, serving

POD = Subject("Pod", "p", "team", "uid-1")


def tell(script: Script, do: Callable[[Reports], Awaitable[None]]) -> list[str]:
    said: list[str] = []

    async def talk() -> None:
        async with serving(script) as client:
            await do(Reports(client, said.append))

    asyncio.run(talk())
    return said


def test_the_same_is_told_once_and_anything_else_at_once() -> None:
    script = Script(Answer(201, {}))

    async def do(reports: Reports) -> None:
        for note in ("bad", "bad", "worse", "worse"):
            await reports.tell(POD, "Wrong", note)

    assert tell(script, do) == ["Pod team/p: bad", "Pod team/p: worse"]
    assert [asked.path for asked in script.asked] == ["/apis/events.k8s.io/v1/namespaces/team/events"] * 2
    event = script.asked[0].body
    assert (event["reason"], event["note"], event["type"]) == ("Wrong", "bad", "Warning")
    assert event["regarding"] == {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "team", "uid": "uid-1"}


def test_what_is_over_may_be_told_again() -> None:
    async def do(reports: Reports) -> None:
        reports.take_back(POD, "Wrong", "never was")
        await reports.tell(POD, "Wrong", "bad", with_event=False)
        reports.take_back(POD, "Wrong", "well again")
        await reports.tell(POD, "Wrong", "bad", with_event=False)

    assert tell(Script(Answer(201, {})), do) == ["Pod team/p: bad", "Pod team/p: well again", "Pod team/p: bad"]


def test_the_event_of_the_same_words_has_the_same_name_in_another_life() -> None:
    author = Author("gpuyard.io/fake-gpus", "here")

    def metadata(subject: Subject, note: str) -> dict[str, str]:
        found: dict[str, str] = event_of(subject, "Wrong", note, author, "2026-11-18T09:30:00.000000Z")["metadata"]
        return found

    assert metadata(POD, "bad") == metadata(POD, "bad")
    assert metadata(POD, "bad") != metadata(POD, "good")
    assert metadata(Subject("Node", "n"), "bad")["namespace"] == "default"


def test_a_cluster_that_takes_no_event_is_told_of_once_and_holds_nothing_up() -> None:
    async def do(reports: Reports) -> None:
        await reports.tell(POD, "Wrong", "bad")
        await reports.tell(POD, "Wrong", "worse")

    said = tell(Script(refused(403, "Forbidden", "no events")), do)
    assert [line.partition(":")[0] for line in said] == ["Pod team/p", "events cannot be written", "Pod team/p"]
    assert tell(Script(refused(409, "AlreadyExists")), do) == ["Pod team/p: bad", "Pod team/p: worse"]


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports_module, "MAX_REMEMBERED", 3)

    async def do(reports: Reports) -> None:
        for number in [*range(5), 4, 0]:
            await reports.tell(Subject("Pod", str(number)), "Wrong", "bad", with_event=False)

    assert len(tell(Script(Answer(201, {})), do)) == 6


def test_an_outage_is_told_once_for_all_who_ask() -> None:
    said: list[str] = []
    outage = Outage(said.append)
    nodes, pods = outage.about("nodes"), outage.about("pods")
    for heard in (nodes, pods, nodes):
        heard(KubeUnreachableError(f"gone {len(said)}"))
    assert len(said) == 1
    assert "serves on" in said[0]
    nodes(None)
    assert len(said) == 1
    pods(None)
    pods(None)
    assert said[1:] == ["the API server answers again"]


def test_a_refusal_is_a_problem_of_its_own() -> None:
    said: list[str] = []
    outage = Outage(said.append)
    outage.about("nodes")(KubeRefusedError("may not list nodes", status=403))
    outage.about("pods")(KubeRefusedError("may not list pods", status=403))
    assert len(said) == 2


def test_a_server_that_has_just_come_back_may_refuse_a_few_times() -> None:
    said: list[str] = []
    nodes = Outage(said.append).about("nodes")
    nodes(KubeUnreachableError("gone"))
    for _ in range(STARTING_REFUSALS):
        nodes(KubeRefusedError("may not list nodes", status=403))
    assert len(said) == 1
    nodes(KubeRefusedError("may not list nodes", status=403))
    assert "may not list nodes" in said[1]
