"""Requests: what is sent, what is sent again, and which error an answer becomes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gpuyard.errors import InputError, KubeError, KubeRefusedError, KubeUnreachableError
from gpuyard.kubeapi import client as client_module
from gpuyard.kubeapi.access import Access, Program
from gpuyard.kubeapi.client import KubeClient
from gpuyard.kubeapi.paths import path_of
from tests.kubeapi.scripted import NOTHING, Answer, Script, refused, serving

Result = TypeVar("Result")


def ask(script: Script, do: Callable[[KubeClient], Awaitable[Result]], **access: Any) -> Result:
    async def talk() -> Result:
        async with serving(script, **access) as client:
            return await do(client)

    return asyncio.run(talk())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "FIRST_WAIT_MS", 1)


def test_server_side_apply_says_who_we_are_and_that_we_mean_it() -> None:
    script = Script(Answer(200, {}))
    ask(script, lambda client: client.apply("/api/v1/nodes/n", {"kind": "Node"}, "me"))
    asked = script.asked[0]
    assert (asked.method, asked.path) == ("PATCH", "/api/v1/nodes/n")
    assert asked.query == {"fieldManager": "me", "force": "true"}
    assert asked.headers["content-type"] == "application/apply-patch+yaml"
    assert asked.body == {"kind": "Node"}


def test_a_busy_server_is_asked_again_but_not_for_ever() -> None:
    busy = refused(429, "TooManyRequests", headers="Retry-After: 0\r\n")
    script = Script(busy, busy, Answer(200, {"ok": 1}))
    assert ask(script, lambda client: client.get("/x")) == b'{"ok": 1}'
    with pytest.raises(KubeRefusedError) as caught:
        ask(Script(busy), lambda client: client.get("/x"))
    assert (caught.value.status, caught.value.reason) == (429, "TooManyRequests")


def test_who_must_look_around_first_is_not_asked_for_a_second_time() -> None:
    script = Script(refused(503, headers="Retry-After: 0\r\n"), Answer(200, {}))

    async def once(client: KubeClient) -> bytes:
        return await KubeClient(client.access, tries=1).merge("/x", {})

    with pytest.raises(KubeRefusedError):
        ask(script, once)
    assert len(script.asked) == 1


def test_a_kept_connection_that_breaks_is_no_reason_to_do_something_twice() -> None:
    """Whoever reads may ask again at once; whether a write was done cannot be told from here."""
    fine, broken = Answer(200, {"ok": 1}), NOTHING
    script = Script(fine, broken, fine)
    assert ask(script, lambda client: twice(client.get("/x"), client.get("/x"))) == b'{"ok": 1}'
    assert len(script.asked) == 3
    script = Script(fine, broken, fine)
    with pytest.raises(KubeUnreachableError):
        ask(script, lambda client: twice(client.get("/x"), client.create("/x", {})))
    assert len(script.asked) == 2


async def twice(first: Awaitable[bytes], second: Awaitable[bytes]) -> bytes:
    await first
    return await second


def test_a_refusal_has_the_servers_own_words_and_a_way_out() -> None:
    with pytest.raises(KubeRefusedError) as caught:
        ask(
            Script(refused(403, "Forbidden", 'nodes is forbidden: User "x"')),
            lambda client: client.get("/api/v1/nodes"),
        )
    assert 'GET /api/v1/nodes: nodes is forbidden: User "x"' in str(caught.value)
    assert "grant it" in caught.value.fix


def test_a_refusal_that_is_not_json_is_shown_as_it_is() -> None:
    with pytest.raises(KubeRefusedError, match="bad gateway"):
        ask(Script(Answer(502, b"bad gateway")), lambda client: client.get("/x"))


def test_deleting_what_is_not_there_is_no_error() -> None:
    ask(Script(refused(404, "NotFound")), lambda client: client.delete("/x"))
    with pytest.raises(KubeRefusedError):
        ask(Script(refused(403)), lambda client: client.delete("/x"))


def test_no_answer_is_another_error_than_an_answer_of_no() -> None:
    async def talk() -> None:
        client = KubeClient(Access(server="http://127.0.0.1:1"))
        try:
            await client.get("/x")
        finally:
            await client.close()

    with pytest.raises(KubeUnreachableError, match="does not answer"):
        asyncio.run(talk())


def test_a_token_from_a_file_is_read_again_when_it_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    script = Script(Answer(200, {}), refused(401), Answer(200, {}))

    async def talk() -> None:
        async with serving(script, token_file=file) as client:
            await client.get("/x")
            file.write_text("new\n")
            await client.get("/x")

    asyncio.run(talk())
    assert [asked.headers["authorization"] for asked in script.asked] == ["Bearer old", "Bearer old", "Bearer new"]


def test_a_refused_token_that_cannot_be_renewed_is_refused_at_once() -> None:
    script = Script(refused(401, "Unauthorized"))
    with pytest.raises(KubeRefusedError):
        ask(script, lambda client: client.get("/x"), token="mine")
    assert len(script.asked) == 1


def test_a_program_gives_the_token(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text('#!/bin/sh\necho warning >&2\necho "{\\"status\\": {\\"token\\": \\"$WHO-$1\\"}}"\n')
    tool.chmod(0o755)
    program = Program((str(tool), "it"), (("WHO", "for"),), "client.authentication.k8s.io/v1")
    script = Script(Answer(200, {}))
    ask(script, lambda client: client.get("/x"), program=program)
    assert script.asked[0].headers["authorization"] == "Bearer for-it"


def test_a_program_that_fails_is_named(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\nexit 3\n")
    tool.chmod(0o755)
    program = Program((str(tool),), (), "client.authentication.k8s.io/v1beta1")
    with pytest.raises(Exception, match="gives no token: it ended with 3"):
        ask(Script(Answer(200, {})), lambda client: client.get("/x"), program=program)


def test_a_program_hears_of_the_cluster_where_it_asks_to(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text(
        '#!/bin/sh\ncase "$KUBERNETES_EXEC_INFO" in *\'"cluster": {"server": "https://x"}\'*) token=told;; esac\n'
        'echo "{\\"status\\": {\\"token\\": \\"$token\\"}}"\n'
    )
    tool.chmod(0o755)
    program = Program((str(tool),), (), "client.authentication.k8s.io/v1", {"server": "https://x"})
    script = Script(Answer(200, {}))
    ask(script, lambda client: client.get("/x"), program=program)
    assert script.asked[0].headers["authorization"] == "Bearer told"


def test_a_program_that_gives_a_certificate_or_is_not_there_is_told_apart(tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text('#!/bin/sh\necho "{\\"status\\": {\\"clientCertificateData\\": \\"x\\"}}"\n')
    tool.chmod(0o755)
    for command, words in ((tool, "takes only tokens from programs"), (tmp_path / "none", "could not be started")):
        program = Program((str(command),), (), "client.authentication.k8s.io/v1")
        with pytest.raises(KubeError, match=words):
            ask(Script(Answer(200, {})), lambda client: client.get("/x"), program=program)


def test_paths() -> None:
    assert path_of("nodes", "n", part="status") == "/api/v1/nodes/n/status"
    assert path_of("events", namespace="a", group="events.k8s.io") == "/apis/events.k8s.io/v1/namespaces/a/events"
    for name in ("../secrets", "a/b", "a?b", ""):
        if name:
            with pytest.raises(InputError):
                path_of("nodes", name)


def test_who_was_closed_opens_no_connection_any_more() -> None:
    async def talk() -> None:
        async with serving(Script(Answer(200, {}))) as client:
            await client.get("/a")
            await client.close()
            with pytest.raises(KubeUnreachableError, match="it is closed"):
                await client.get("/b")

    asyncio.run(talk())
