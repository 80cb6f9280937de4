"""Events: listed, streamed, resumed, filtered by who may see them, and bounded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import msgspec
import pytest

from gpuyard.service import limits, streams
from gpuyard.service.traffic import Traffic
from gpuyard.service.turns import SHARE
from gpuyard.wire.rest import EventObject
from tests.service.yard import Yard

STORES = ("sqlite", "postgres")


class Watcher:
    """Reads a stream message by message."""

    def __init__(self, response: httpx2.Response) -> None:
        self._lines = response.iter_lines()

    def next(self) -> dict[str, str]:
        message: dict[str, str] = {}
        for line in self._lines:
            if not line and message:
                return message
            if line:
                name, _, value = line.partition(":")
                message[name] = value.removeprefix(" ")
        raise EOFError

    def event(self) -> EventObject:
        """The next event; signs of life are passed over."""
        while True:
            message = self.next()
            if "data" in message:
                event = msgspec.json.decode(message["data"], type=EventObject)
                assert (message["id"], message["event"]) == (str(event.revision), event.kind)
                return event

    def until(self, kind: str, object: str) -> EventObject:
        while True:
            event = self.event()
            if event.kind == kind and object in event.objects:
                return event


@contextmanager
def watching(yard: Yard, user: str, after: int | None = None, token: str = "", **query: Any) -> Iterator[Watcher]:
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    with (
        yard.client(user, token=token, **headers) as client,
        client.stream("GET", "/v1/events", params={"watch": "1", **query}) as response,
    ):
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        watcher = Watcher(response)
        assert watcher.next() == {"retry": "1000"}
        yield watcher


def test_what_happens_is_streamed_with_a_sentence(yard: Yard) -> None:
    with watching(yard, "max") as watcher:
        id = yard.submit("max", name="seen", gpus=0)
        event = watcher.until("job-submitted", f"job/{id}")
        assert event.text == f"job {id} (seen) of team vision is submitted by max; it is waiting"
        assert event.actor == "max"
        assert watcher.until("attempt-began", f"job/{id}").text == f"task 0 of job {id} runs on m1, attempt 1"


def test_a_stream_goes_on_where_it_broke_off(yard: Yard) -> None:
    begin = yard.manager.state.seq
    ids = [yard.submit("max", gpus=0, hold=True) for _ in range(5)]
    with watching(yard, "max", after=begin, kind="job-submitted") as watcher:
        first = [watcher.event() for _ in range(2)]
    with watching(yard, "max", after=first[-1].revision, kind="job-submitted") as watcher:
        rest = [watcher.event() for _ in range(3)]
    seen = [event.objects[0].removeprefix("job/") for event in (*first, *rest)]
    assert seen == ids


def test_a_list_says_from_where_to_watch(yard: Yard) -> None:
    revision = yard.ask("max", "GET", "/v1/jobs").json()["revision"]
    id = yard.submit("max", gpus=0, hold=True)
    with watching(yard, "max", after=revision, kind="job-submitted") as watcher:
        assert f"job/{id}" in watcher.event().objects


def test_nobody_sees_what_happens_to_jobs_of_other_teams(yard: Yard) -> None:
    begin = yard.manager.state.seq
    theirs = yard.submit("sam", gpus=0, hold=True)
    mine = yard.submit("max", gpus=0, hold=True)
    with watching(yard, "max", after=begin) as watcher:
        event = watcher.event()
        assert f"job/{mine}" in event.objects
    with watching(yard, "olga", after=begin) as watcher:
        assert f"job/{theirs}" in watcher.event().objects


def test_commands_and_variables_are_for_those_who_may_see_them(yard: Yard) -> None:
    begin = yard.manager.state.seq
    yard.submit("mia", name="x", gpus=0, hold=True, command=["hush"], env={"KEY": "hush"})
    for user, sees in {"root": True, "lea": True, "mia": True, "max": False, "vic": False, "olga": False}.items():
        with watching(yard, user, after=begin, kind="job-submitted") as watcher:
            assert ("hush" in bytes(watcher.event().data).decode()) == sees, user


def test_filters_hold_for_streams(yard: Yard) -> None:
    begin = yard.manager.state.seq
    first, second = yard.submit("max", gpus=0, hold=True), yard.submit("max", gpus=0, hold=True)
    yard.ask("max", "POST", f"/v1/jobs/{first}/cancel")
    with watching(yard, "max", after=begin, object=f"job/{second}") as watcher:
        assert f"job/{second}" in watcher.event().objects
    with watching(yard, "max", after=begin, kind="job-went") as watcher:
        assert f"job/{first}" in watcher.event().objects


def test_a_quiet_stream_shows_that_it_lives(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_SECONDS", 0.05)
    with watching(yard, "vic", kind="node-lost") as watcher:
        assert watcher.next() == {"": "alive"}


def test_a_stream_that_its_reader_leaves_is_given_back(yard: Yard) -> None:
    with watching(yard, "max") as watcher:
        assert yard.app.service.traffic.watching >= 1
        yard.submit("max", gpus=0, hold=True)
        watcher.event()
    gone = threading.Event()

    async def wait() -> None:
        import asyncio

        while yard.app.service.traffic.watching:
            await asyncio.sleep(0.01)
        gone.set()

    yard.call(wait)
    assert gone.is_set()
    assert yard.app.service.traffic.in_flight == 0


def test_there_are_only_so_many_streams_of_one_token(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yard.app.service.traffic, "streams_per_token", 1)
    with watching(yard, "max"), yard.client("max") as client:
        refused = client.get("/v1/events?watch=1")
        assert (refused.status_code, refused.json()["reason"]) == (429, "Busy")
        assert refused.headers["retry-after"] == "1"


def test_there_are_only_so_many_requests_at_once() -> None:
    traffic = Traffic()
    users = [f"user-{number}" for number in range(limits.MAX_IN_FLIGHT - SHARE + 1)]
    held = [traffic.request(user) for user in users]
    for one in held:
        one.__enter__()
    with pytest.raises(Exception, match="requests at once is used up"), traffic.request("one more"):
        pass
    for one in held:
        one.__exit__(None, None, None)
    assert traffic.in_flight == 0


@pytest.mark.slow
def test_two_hundred_watchers_all_see_the_same(yard: Yard) -> None:
    """Streams of four people; each event is encoded once for all who may see the same of it."""
    begin = yard.manager.state.seq
    users = ["root", "lea", "max", "mia", "olga"]
    seen: list[int] = []
    opened = threading.Barrier(201, timeout=60)

    def read(user: str) -> None:
        with watching(yard, user, after=begin, kind="job-submitted") as watcher:
            opened.wait()
            for _ in range(20):
                watcher.event()
            seen.append(1)

    threads = [threading.Thread(target=read, args=(users[index % 5],)) for index in range(200)]
    for thread in threads:
        thread.start()
    opened.wait()
    for _ in range(20):
        yard.submit("max", gpus=0, hold=True)
    for thread in threads:
        thread.join(60)
    assert len(seen) == 200


# ------------------------------------------------------------------------------------------------------------- listing


def test_events_are_listed_newest_first_in_pages(yard: Yard) -> None:
    id = yard.submit("max", gpus=0)
    yard.wait_for(id, "running")
    query: dict[str, Any] = {"object": f"job/{id}", "limit": 2}
    seen: list[int] = []
    while True:
        page = yard.ask("max", "GET", "/v1/events", params=query).json()
        seen += [event["revision"] for event in page["items"]]
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    assert seen == sorted(seen, reverse=True)
    assert len(seen) >= 3


def test_the_audit_says_who_did_what(yard: Yard) -> None:
    id = yard.submit("max", gpus=0, hold=True)
    yard.ask("lea", "POST", f"/v1/jobs/{id}/cancel")
    found = yard.ask("lea", "GET", "/v1/audit", params={"object": f"job/{id}", "actor": "lea"}).json()["items"]
    assert [event["text"] for event in found] == [f"job {id} is cancelled: cancelled by its owner or an operator"]
    assert yard.ask("sue", "GET", "/v1/audit", params={"object": f"job/{id}"}).json()["items"] == []


def test_secrets_of_tokens_and_keys_of_requests_are_in_no_audit(yard: Yard) -> None:
    made = yard.ask("max", "POST", "/v1/tokens", json={}).json()
    yard.ask("max", "POST", "/v1/jobs", json={"command": ["x"], "gpus": 0}, headers={"Idempotency-Key": "my-own-key"})
    text = yard.ask("root", "GET", "/v1/audit", params={"limit": 1000}).text
    digest = yard.manager.state.tokens[made["token"]["id"]].digest
    assert made["secret"].split("_")[2] not in text
    assert digest not in text
    assert "my-own-key" not in text
    assert made["token"]["id"] in text


def test_since_bounds_the_past(yard: Yard) -> None:
    assert yard.ask("root", "GET", "/v1/audit", params={"since": "1h"}).json()["items"]
    assert yard.ask("root", "GET", "/v1/audit", params={"until": "1h"}).json()["items"] == []
    assert yard.ask("root", "GET", "/v1/events", params={"since": "2999-01-01"}).json()["items"] == []
