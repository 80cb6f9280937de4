"""Work on objects: nothing is lost, nothing is done twice at once, others who interfere are met with patience."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from gpuyard.errors import KubeError
from gpuyard.fakegpu.kubernetes import mapwriter, nodewriter, writing
from gpuyard.fakegpu.kubernetes.mapwriter import MapWriter, Wanted
from gpuyard.fakegpu.kubernetes.nodewriter import NodeWriter, Patch
from gpuyard.fakegpu.kubernetes.picture import Picture
from gpuyard.fakegpu.kubernetes.reports import Reports
from gpuyard.fakegpu.kubernetes.writing import Writing
from gpuyard.kubeapi.follow import Changed, Listed
from tests.fakegpu.kubernetes.sights import a_map
from tests.kubeapi.scripted import Answer, Script, refused, serving


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "FIRST_RETRY_MS", 1)
    monkeypatch.setattr(writing, "MOST_RETRY_MS", 2)


async def until_idle(work: Writing, within_s: float = 60) -> None:
    async with asyncio.timeout(within_s):
        while not work.is_idle:
            await asyncio.sleep(0.005)


def test_what_is_marked_while_it_is_done_is_done_once_more_and_never_twice_at_once() -> None:
    done: Counter[str] = Counter()
    at_once: Counter[str] = Counter()

    async def run() -> None:
        async def do(name: str) -> int:
            at_once[name] += 1
            assert at_once[name] == 1
            if done[name] == 0:
                work.mark([name])
            await asyncio.sleep(0.01)
            at_once[name] -= 1
            done[name] += 1
            return 0

        work = Writing(do, never, workers=3)
        task = asyncio.create_task(work.run())
        work.mark(["a", "b", "c", "d", "a"])
        await until_idle(work)
        task.cancel()

    asyncio.run(run())
    assert done == {"a": 2, "b": 2, "c": 2, "d": 2}


async def never(name: str, error: KubeError) -> None:
    raise AssertionError(f"{name}: {error}")


def test_what_fails_is_tried_until_it_works() -> None:
    failures: list[str] = []
    tries = 0

    async def run() -> None:
        async def do(_: str) -> int:
            nonlocal tries
            tries += 1
            if tries < 4:
                raise KubeError("not now")
            return 0

        async def refused(name: str, error: KubeError) -> None:
            failures.append(f"{name}: {error}")

        work = Writing(do, refused, workers=1)
        task = asyncio.create_task(work.run())
        work.mark(["a"])
        await until_idle(work)
        task.cancel()

    asyncio.run(run())
    assert tries == 4
    assert failures == ["a: not now"] * 3


# ------------------------------------------------------------------------------------------------------------- nodes


def node_answers(patches: list[Patch], times: int, script: Script, said: list[str]) -> int:
    """How often a patch that never helps is applied in a moment."""

    async def run() -> None:
        async with serving(script) as client:
            writer = NodeWriter(client, Reports(client, said.append), lambda _: patches, lambda _: None)
            task = asyncio.create_task(writer.writing.run())
            for _ in range(times):
                writer.writing.mark(["n"])
                await asyncio.sleep(0.02)
            task.cancel()

    asyncio.run(run())
    return len([asked for asked in script.asked if asked.path.startswith("/api/v1/nodes/n")])


def test_a_patch_that_does_not_last_is_applied_more_and_more_slowly_and_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodewriter, "ECHO_MS", 10)
    said: list[str] = []
    patch = Patch({"metadata": {"labels": {"a": "1"}}}, "", "the same")
    count = node_answers([patch], 40, Script(Answer(200, {"metadata": {"name": "n"}})), said)
    assert 5 <= count <= 14, "0.8 s, or more where others are busy, and a pause that is doubled from 10 ms on"
    assert len([line for line in said if "keeps changing" in line]) == 1


def test_a_node_that_is_gone_is_no_problem_and_a_refusal_is_told_once() -> None:
    said: list[str] = []
    patch = Patch({}, "status", "x")
    node_answers([patch], 5, Script(refused(404, "NotFound")), said)
    assert said == []
    node_answers([patch], 5, Script(refused(403, "Forbidden", "may not")), said)
    assert len(said) == 1
    assert "may not" in said[0]


# ----------------------------------------------------------------------------------------------------- config maps


class Server(Script):
    """An API server with ConfigMaps, whose watch is the picture."""

    def __init__(self, picture: Picture) -> None:
        super().__init__(Answer(200, {}))
        self._picture = picture

    def next(self, asked: Any) -> Answer:
        self.asked.append(asked)
        data = asked.body["data"]
        self._picture.take_map(Changed(a_map(asked.path.rpartition("/")[2], **data)))
        return Answer(200, {})


def with_maps(do: Any) -> Server:
    picture = Picture()
    picture.take_map(Listed((a_map("mine", **{"fleet.yaml": "x"}),)))
    server = Server(picture)

    async def run() -> None:
        async with serving(server) as client:
            maps = MapWriter(client, "ns", picture, Reports(client, lambda text: None))
            task = asyncio.create_task(maps.writing.run())
            await do(maps, picture)
            task.cancel()

    asyncio.run(run())
    return server


def texts(server: Server) -> list[str | None]:
    return [asked.body["data"].get("status.yaml") for asked in server.asked]


def test_the_key_is_ours_and_the_uid_keeps_a_deleted_map_from_coming_back() -> None:
    async def do(maps: MapWriter, _: Picture) -> None:
        maps.want("mine", Wanted("one"))
        await until_idle(maps.writing)
        maps.want("mine", Wanted("one"))
        await until_idle(maps.writing)

    server = with_maps(do)
    assert texts(server) == ["one"]
    assert server.asked[0].body["metadata"]["uid"] == "uid-mine"


def test_a_map_that_nobody_has_made_is_not_made_by_us_but_that_of_a_node_is() -> None:
    async def do(maps: MapWriter, _: Picture) -> None:
        maps.want("theirs", Wanted("one"))
        maps.want("ours", Wanted("two", node="n"))
        await until_idle(maps.writing)

    server = with_maps(do)
    assert [asked.path.rpartition("/")[2] for asked in server.asked] == ["ours"]
    assert server.asked[0].body["metadata"]["annotations"] == {"gpuyard.io/node": "n"}


def test_what_somebody_else_writes_there_is_put_right() -> None:
    async def do(maps: MapWriter, picture: Picture) -> None:
        maps.want("mine", Wanted("one"))
        await until_idle(maps.writing)
        picture.take_map(Changed(a_map("mine", **{"status.yaml": "nonsense"})))
        maps.look({"mine"})
        await until_idle(maps.writing)

    assert texts(with_maps(do)) == ["one", "one"]


@pytest.mark.slow
def test_a_news_is_written_at_once_and_a_mere_movement_at_leisure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapwriter, "PAUSE_MS", 1)
    monkeypatch.setattr(mapwriter, "LEISURE_MS", 2_000)

    async def do(maps: MapWriter, picture: Picture) -> None:
        maps.want("mine", Wanted("one"))
        await until_idle(maps.writing)
        for number in range(5):
            maps.want("mine", Wanted(f"moved {number}"), at_leisure=True)
            await asyncio.sleep(0.01)
        maps.want("mine", Wanted("news"))
        async with asyncio.timeout(60):
            while (picture.maps["mine"].data or {}).get("status.yaml") != "news":
                await asyncio.sleep(0.01)
        maps.want("mine", Wanted("moved again"), at_leisure=True)
        await until_idle(maps.writing)

    assert texts(with_maps(do)) == ["one", "news", "moved again"]


def test_nothing_is_written_of_what_is_not_wanted_any_more() -> None:
    async def do(maps: MapWriter, _: Picture) -> None:
        maps.want("mine", Wanted("one"))
        maps.forget("mine")
        await until_idle(maps.writing)

    assert texts(with_maps(do)) == []
