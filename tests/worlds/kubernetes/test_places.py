"""Places as they are kept in the cluster: read back as they were written, or as if nothing had been noted."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gpuyard.errors import KubeRefusedError
from gpuyard.model.jobs import LabelRule, Request, Where
from gpuyard.model.reasons import Reason, Token
from gpuyard.worlds.kubernetes.intents import Place, form_of
from gpuyard.worlds.kubernetes.places import save_places, saved_places
from gpuyard.worlds.kubernetes.writes import SavePlaces
from tests.kubeapi.scripted import Answer, Script, refused, serving
from tests.worlds.kubernetes.manifests import a_pod, grouped

PLACE = Place(
    job="a/job/train",
    heir="uid/0",
    node="n2",
    left="uid-of-the-pod",
    name="train-0",
    source="n1",
    leaf="",
    form=form_of(grouped(a_pod())),
    request=Request(devices=2, cpu_milli=500, where=Where(any_of=((LabelRule("zone", values=("z",)),),))),
    reason=Reason(Token.MOVED, beneficiary="a/job/big"),
    until_ms=1_700_000_000_000,
)


def read(script: Script) -> SavePlaces:
    async def talk() -> SavePlaces:
        async with serving(script) as client:
            return await saved_places(client, "sys")

    return asyncio.run(talk())


def test_they_are_read_back_as_they_were_written() -> None:
    saved = SavePlaces((PLACE,), (1, 2))
    script = Script(Answer(200, {}))

    async def talk() -> None:
        async with serving(script) as client:
            await save_places(client, "sys", saved)

    asyncio.run(talk())
    written = script.asked[0]
    assert written.path == "/api/v1/namespaces/sys/configmaps/gpuyard-places"
    assert read(Script(Answer(200, written.body))) == saved


def test_a_place_of_what_is_no_job_is_left_out() -> None:
    saved = SavePlaces((replace(PLACE, job="by-hand"), PLACE), ())
    data = {"places.json": msgspec.json.encode(saved).decode()}
    assert read(Script(Answer(200, {"metadata": {}, "data": data}))) == SavePlaces((PLACE,), ())


@pytest.mark.parametrize("data", [None, {}, {"places.json": "{"}, {"places.json": '{"places": [{"job": "a"}]}'}])
def test_what_cannot_be_read_is_as_if_nothing_had_been_noted(data: Any) -> None:
    assert read(Script(Answer(200, {"metadata": {"name": "gpuyard-places"}, "data": data}))) == SavePlaces((), ())


def test_nothing_was_noted_where_there_is_no_such_object_and_a_server_that_fails_is_told() -> None:
    assert read(Script(refused(404, "NotFound"))) == SavePlaces((), ())
    with pytest.raises(KubeRefusedError):
        read(Script(refused(403, "Forbidden")))
