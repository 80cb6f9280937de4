"""Following objects: nothing is missed between two lists, and every kind of end of a watch is survived."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from gpuyard.errors import KubeError, KubeRefusedError
from gpuyard.kubeapi import follow
from gpuyard.kubeapi.follow import Changed, Follower, Gone, Listed
from tests.kubeapi.scripted import CUT, HANG, Answer, Script, an_object, event, listed, refused, serving, watched


class Meta(msgspec.Struct, frozen=True):
    name: str


class Thing(msgspec.Struct, frozen=True):
    metadata: Meta


PATH = "/api/v1/things"
QUIET = watched(HANG)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "FIRST_WAIT_MS", 1)
    monkeypatch.setattr(follow, "MOST_WAIT_MS", 5)


def told(script: Script, count: int) -> tuple[list[str], list[KubeError | None]]:
    """The first changes as words, and what was told about the connection."""
    heard: list[KubeError | None] = []

    async def collect() -> list[str]:
        found = []
        async with serving(script) as client:
            async for change in Follower(client, PATH, Thing, outage=heard.append).changes():
                found.append(words(change))
                if len(found) == count:
                    break
        return found

    return asyncio.run(limited(collect)), heard


async def limited(work: Callable[[], Awaitable[list[str]]]) -> list[str]:
    return await asyncio.wait_for(work(), 60)


def words(change: Any) -> str:
    match change:
        case Listed(objects):
            return "list " + " ".join(each.metadata.name for each in objects)
        case Changed(thing):
            return f"changed {thing.metadata.name}"
        case Gone(thing):
            return f"gone {thing.metadata.name}"
    raise AssertionError(change)


def test_a_list_and_then_every_change() -> None:
    script = Script(
        listed(an_object("a"), an_object("b"), version="5"),
        watched(event("ADDED", "c", "6"), event("MODIFIED", "a", "7"), event("DELETED", "b", "8"), HANG),
    )
    assert told(script, 4)[0] == ["list a b", "changed c", "changed a", "gone b"]
    assert script.asked[1].query["resourceVersion"] == "5"
    assert script.asked[1].query["allowWatchBookmarks"] == "true"


def test_a_long_list_comes_page_by_page() -> None:
    script = Script(listed(an_object("a"), more="there"), listed(an_object("b"), version="9"), QUIET)
    assert told(script, 1)[0] == ["list a b"]
    assert script.asked[0].query["limit"] == str(follow.PAGE)
    assert script.asked[1].query["continue"] == "there"


@pytest.mark.parametrize("failure", [refused(500), refused(410, "Expired"), watched(b"{", CUT)])
def test_a_list_that_fails_half_way_is_begun_anew(failure: Answer) -> None:
    first = listed(an_object("a"), version="5", more="there")
    script = Script(first, failure, first, listed(an_object("b"), version="5"), QUIET)
    assert told(script, 1)[0] == ["list a b"]
    assert [asked.query.get("continue") for asked in script.asked[:4]] == [None, "there", None, "there"]


def test_watches_that_end_at_once_are_not_opened_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "FIRST_WAIT_MS", 400)
    script = Script(listed(version="5"), watched())

    async def follow_for_a_while() -> None:
        async with serving(script) as client:
            changes = Follower(client, PATH, Thing, outage=lambda error: None).changes()
            await anext(changes)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(changes), 0.5)

    asyncio.run(follow_for_a_while())
    assert len(script.asked) < 10


def test_a_watch_that_ends_goes_on_where_it_stood() -> None:
    script = Script(listed(), watched(event("ADDED", "a", "7")), watched(event("ADDED", "b", "8"), HANG))
    assert told(script, 3)[0] == ["list ", "changed a", "changed b"]
    assert script.asked[2].query["resourceVersion"] == "7"


def test_a_bookmark_moves_on_and_is_no_change() -> None:
    script = Script(listed(), watched(event("BOOKMARK", "", "50")), watched(event("ADDED", "a", "51"), HANG))
    assert told(script, 2)[0] == ["list ", "changed a"]
    assert script.asked[2].query["resourceVersion"] == "50"


def test_a_watch_cut_in_the_middle_of_an_event_goes_on_before_it() -> None:
    script = Script(
        listed(), watched(event("ADDED", "a", "7"), b'{"type":"ADD', CUT), watched(event("ADDED", "b", "8"), HANG)
    )
    found, heard = told(script, 3)
    assert found == ["list ", "changed a", "changed b"]
    assert any(error is not None for error in heard)
    assert heard[-1] is None


@pytest.mark.parametrize("in_stream", [True, False])
def test_a_version_that_is_too_old_means_a_new_list_at_once(in_stream: bool) -> None:
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    gone = watched({"type": "ERROR", "object": status}) if in_stream else refused(410, "Expired")
    script = Script(listed(an_object("a"), version="5"), gone, listed(an_object("b"), version="9"), QUIET)
    found, heard = told(script, 2)
    assert found == ["list a", "list b"]
    assert [error for error in heard if error] == [], "nobody needs to hear of it"


def test_a_silent_watch_is_noticed_and_opened_anew_where_it_stood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "SILENCE_S", 0.5)
    script = Script(
        listed(version="5"), watched(event("ADDED", "a", "6"), HANG), watched(event("ADDED", "b", "7"), HANG)
    )
    found, heard = told(script, 3)
    assert found == ["list ", "changed a", "changed b"]
    assert script.asked[2].query["resourceVersion"] == "6"
    assert any("has said nothing" in str(error) for error in heard if error)


@pytest.mark.slow
@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_a_refusal_is_told_and_tried_again(status: int) -> None:
    script = Script(
        refused(status, message="not now", headers="Retry-After: 0\r\n"), *([refused(status)] * 3), listed(), QUIET
    )
    found, heard = told(script, 1)
    assert found == ["list "]
    assert any("not now" in str(error) or "no" in str(error) for error in heard if error)


def test_an_answer_that_makes_no_sense_is_a_named_error() -> None:
    script = Script(Answer(200, {"metadata": {}, "items": 7}), listed(), QUIET)
    found, heard = told(script, 1)
    assert found == ["list "]
    assert "cannot be read" in str(heard[0])


def test_a_version_that_is_too_old_after_an_outage_is_no_further_one() -> None:
    """A server that was started anew has forgotten what the watch would go on from."""
    script = Script(
        listed(an_object("a"), version="5"),
        refused(500),
        refused(500),
        refused(410, "Expired"),
        listed(an_object("b")),
        QUIET,
    )
    found, heard = told(script, 2)
    assert found == ["list a", "list b"]
    assert [error.status for error in heard if isinstance(error, KubeRefusedError)] == [500, 500]
    assert heard[-1] is None


def test_a_server_that_takes_up_every_watch_only_to_say_that_it_is_too_old_is_not_asked_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "FIRST_WAIT_MS", 200)
    monkeypatch.setattr(follow, "MOST_WAIT_MS", 1_000)
    too_old = watched({"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}})
    script = Script(*[listed(version="5"), too_old] * 200)

    async def follow_for_a_while() -> None:
        async with serving(script) as client:
            async with asyncio.timeout(1):
                async for _ in Follower(client, PATH, Thing, outage=lambda error: None).changes():
                    pass

    with pytest.raises(TimeoutError):
        asyncio.run(follow_for_a_while())
    assert len(script.asked) < 60


# -------------------------------------------------------------------------------------------- objects of another shape


class Spec(msgspec.Struct, frozen=True):
    size: int = 0
    names: list[str] | None = None


class Shaped(msgspec.Struct, frozen=True):
    metadata: Meta
    spec: Spec = Spec()


def shaped(name: object, version: str = "1", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": version}, "spec": spec}


def read(script: Script, count: int) -> tuple[list[Any], list[str]]:
    said: list[str] = []

    async def collect() -> list[Any]:
        found = []
        async with serving(script) as client:
            followed = Follower(client, PATH, Shaped, outage=lambda error: None, oddity=said.append)
            async for change in followed.changes():
                found.append(change)
                if len(found) == count:
                    break
        return found

    return asyncio.run(limited(collect)), said


def test_a_field_of_a_wrong_type_is_as_if_it_were_not_there_and_the_others_are_read() -> None:
    wrong = shaped("a", size="large", names=["x"])
    script = Script(
        listed(wrong, shaped("b", size=2)),
        watched(
            {"type": "MODIFIED", "object": shaped("b", "7", size=3, names=["x", 5])},
            {"type": "DELETED", "object": shaped("a", "8", size={})},
            HANG,
        ),
    )
    found, said = read(script, 3)
    assert found == [
        Listed((Shaped(Meta("a"), Spec(0, ["x"])), Shaped(Meta("b"), Spec(2)))),
        Changed(Shaped(Meta("b"), Spec(3))),
        Gone(Shaped(Meta("a"))),
    ]
    assert said[0].startswith("a is read without spec.size: Expected `int`, got `str`")


def test_what_has_no_name_is_left_out_and_the_watch_goes_on() -> None:
    script = Script(
        listed(shaped(7), shaped("b")),
        watched({"type": "ADDED", "object": shaped(None, "7")}, {"type": "ADDED", "object": shaped("c", "8")}, HANG),
    )
    found, said = read(script, 2)
    assert found == [Listed((Shaped(Meta("b")),)), Changed(Shaped(Meta("c")))]
    assert len(said) == 2
    assert len([asked for asked in script.asked if asked.is_watch]) == 1


def test_an_event_without_end_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "MAX_EVENT_BYTES", 1000)
    endless = watched(*[b"x" * 400] * 10, HANG)
    found, heard = told(Script(listed(), endless, watched(event("ADDED", "a", "2"), HANG)), 2)
    assert found == ["list ", "changed a"]
    assert any("larger than" in str(error) for error in heard if error)
